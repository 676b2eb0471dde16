"""Dead letters count once, and are sent again exactly once, whatever ends a run or runs beside it."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

import logstore
from logstore.errors import InvalidRequestError, UnknownTopicError
from logstore.maintenance.compaction import compact
from logstore.records.schema import RECORD_SCHEMA
from logstore.schemas.misfits import STORED, dead_letters
from logstore.tools.dead_letters import Directory, Wanted, first, replay, summary
from tests.support.repeats import only_long

ROOT = Path(__file__).parents[4]
BOUNDS = {"tries_max": 3, "count_max": 1000}
ALL = Wanted()


@pytest.fixture
def store(tmp_path):
    with logstore.open(tmp_path / "data") as store:
        store.create_topic("orders", partitions=2)
        store.create_topic("mended", partitions=2)
        store.create_topic("misfits", config={"cleanup.policy": "compact"})
        yield store


def kept(store, *offsets, reason="no number", partition=1, name="audit", tries=None, now_ms=5, value=b"{\xff"):
    """A reader keeps records that do not fit so."""
    headers = [{"key": "trace", "value": b"t"}, *([{"key": "dlq.tries", "value": tries}] if tries else [])]
    rows = [
        {
            "key": b"k%d" % offset,
            "value": value,
            "offset": offset,
            "timestamp": datetime(2024, 1, 31, tzinfo=UTC),
            "timestampType": 0,
            "headers": headers,
        }
        for offset in offsets
    ]
    records = pa.RecordBatch.from_pylist(rows, RECORD_SCHEMA).select(list(STORED))
    reasons = dict.fromkeys(range(len(rows)), reason)
    facts = {"topic": "orders", "partition": partition, "name": name, "query": "q", "now_ms": now_ms}
    store.append("misfits", dead_letters(records, reasons, **facts))


def records(store, topic):
    columns = ["key", "value", "headers", "timestamp"]
    return [
        {"partition": p, **row}
        for p in range(2)
        for row in store.read(topic, partition=p, columns=columns).read_all().to_pylist()
    ]


def offsets(letters):
    return [letter.offset for letter in letters]


def test_one_without_a_value_outlives_compaction_and_has_none_again_when_it_is_sent(store):
    settings = {"segment.bytes": "500", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}
    store.alter_topic("misfits", config={"cleanup.policy": "compact", **settings})
    kept(store, 1, value=None)
    for offset in range(2, 12):  # a tombstone is gone by the second pass over it
        kept(store, offset, value=b"")
        compact(store.log("misfits", 0))
    assert [letter.value for letter in first(Directory(store), "misfits", ALL, 2)] == [None, b""]
    replay(Directory(store), "misfits", ALL, **BOUNDS)
    sent = {row["key"]: row["value"] for row in records(store, "orders")}
    assert (sent[b"k1"], sent[b"k2"], len(sent)) == (None, b"", 11)


def test_each_key_counts_once_by_topic_and_reason(store):
    kept(store, 1, 2, now_ms=10)
    kept(store, 2, 3, now_ms=30)  # a task that ran again
    kept(store, 4, reason="cut off", now_ms=20)
    place = Directory(store)
    counted = [(row["reason"], row["records"], row["first_ms"], row["last_ms"]) for row in summary(place, "misfits")]
    assert counted == [("no number", 3, 10, 30), ("cut off", 1, 20, 20)]
    assert offsets(first(place, "misfits", ALL, 3)) == [1, 2, 3]
    assert offsets(first(place, "misfits", Wanted(since_ms=20, until_ms=30), 9)) == [4]
    assert offsets(first(place, "misfits", Wanted(reason="cut"), 9)) == [4]
    assert offsets(first(place, "misfits", Wanted(key=b"k2"), 9)) == [2]
    with pytest.raises(UnknownTopicError, match="misfits"):
        summary(place, "misfit")


def test_a_record_is_sent_again_as_it_was_once(store):
    kept(store, 7, 8)
    kept(store, 9, value=None)
    place = Directory(store)
    assert offsets(replay(place, "misfits", ALL, dry_run=True, **BOUNDS).sent) == [7, 8, 9]
    assert records(store, "orders") == []
    assert offsets(replay(place, "misfits", ALL, **BOUNDS).sent) == [7, 8, 9]
    headers = [{"key": "trace", "value": b"t"}, {"key": "dlq.tries", "value": b"1"}]
    at = datetime(2024, 1, 31, tzinfo=UTC)
    expected = [
        {"partition": 1, "key": key, "value": value, "headers": headers, "timestamp": at}
        for key, value in [(b"k7", b"{\xff"), (b"k8", b"{\xff"), (b"k9", None)]
    ]
    assert records(store, "orders") == expected
    assert replay(place, "misfits", ALL, **BOUNDS).sent == []
    kept(store, 7)  # a reader that begins anew
    store.compact("misfits", 0)
    assert replay(place, "misfits", ALL, **BOUNDS).sent == []
    assert summary(place, "misfits") == []
    assert records(store, "orders") == expected


def test_a_record_goes_elsewhere_no_more_than_once_and_not_to_its_dead_letters(store):
    kept(store, 1, 2, 3)
    place = Directory(store)
    assert replay(place, "misfits", ALL, to="mended", tries_max=3, count_max=2).left == 1
    assert offsets(replay(place, "misfits", ALL, to="orders", **BOUNDS).sent) == [3]
    assert sorted(row["key"] for row in records(store, "mended")) == [b"k1", b"k2"]
    assert [row["key"] for row in records(store, "orders")] == [b"k3"]
    with pytest.raises(InvalidRequestError, match="name another topic"):
        replay(place, "misfits", ALL, to="misfits", **BOUNDS)
    kept(store, 4)
    with pytest.raises(UnknownTopicError, match="mende"):
        replay(place, "misfits", ALL, to="mende", **BOUNDS)
    assert offsets(first(place, "misfits", ALL, 9)) == [4]


def test_a_record_that_failed_too_often_stays(store):
    kept(store, 1)
    kept(store, 2, tries=b"2")  # which is its third
    found = replay(Directory(store), "misfits", ALL, **BOUNDS)
    assert (offsets(found.sent), found.tired) == ([1], 1)
    (left,) = first(Directory(store), "misfits", ALL, 9)
    assert (left.offset, left.tries) == (2, 3)
    assert offsets(replay(Directory(store), "misfits", ALL, tries_max=4, count_max=9).sent) == [2]
    tries = [pair["value"] for row in records(store, "orders") for pair in row["headers"] if pair["key"] == "dlq.tries"]
    assert tries == [b"1", b"3"]


class Interrupted(Directory):
    """Does something in a replay: 0, as soon as it began; 1, records appended; 2, and marked; 3, committed."""

    def __init__(self, store, step, act):
        super().__init__(store)
        self.step, self.act = step, act

    @contextmanager
    def replaying(self, topic):
        steps = count()

        def reached():
            if next(steps) == self.step:
                self.act()

        def appended(*rows):
            append(*rows)
            reached()

        with super().replaying(topic) as append:
            reached()
            yield appended
        reached()


@pytest.mark.parametrize("step", [0, 1, 2])
def test_of_two_runs_at_once_one_sends_each_record(store, step):
    kept(store, 1, 2)

    def overtake():
        with logstore.open(store.path) as other:
            assert offsets(replay(Directory(other), "misfits", Wanted(key=b"k1"), **BOUNDS).sent) == [1]

    with pytest.raises(InvalidRequestError, match="another replay began"):
        replay(Interrupted(store, step, overtake), "misfits", ALL, **BOUNDS)
    assert [row["key"] for row in records(store, "orders")] == [b"k1"]
    assert offsets(replay(Directory(store), "misfits", ALL, **BOUNDS).sent) == [2]
    assert [row["key"] for row in records(store, "orders")] == [b"k1", b"k2"]
    assert summary(Directory(store), "misfits") == []


def test_a_run_that_fails_sends_nothing(store):
    kept(store, 1, 2)
    for step in (1, 2):
        with pytest.raises(ZeroDivisionError):
            replay(Interrupted(store, step, lambda: 1 // 0), "misfits", ALL, **BOUNDS)
    assert records(store, "orders") == []
    assert offsets(replay(Directory(store), "misfits", ALL, **BOUNDS).sent) == [1, 2]


def replay_until_killed(path, step):
    with logstore.open(path) as store:
        replay(Interrupted(store, int(step), lambda: os.kill(os.getpid(), signal.SIGKILL)), "misfits", ALL, **BOUNDS)


@only_long("processes that are killed")
@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_a_run_that_is_killed_sent_nothing_or_everything(store, step):
    kept(store, 1, 2)
    code = f"import sys; from {__name__} import replay_until_killed; replay_until_killed(*sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, store.path, str(step)], cwd=ROOT, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    kept(store, 3)
    again = offsets(replay(Directory(store), "misfits", ALL, **BOUNDS).sent)
    assert again == ([3] if step == 3 else [1, 2, 3])
    assert [row["key"] for row in records(store, "orders")] == [b"k1", b"k2", b"k3"]
    assert summary(Directory(store), "misfits") == []
