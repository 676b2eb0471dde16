"""Retention, compaction and deleted records of a store: by its clock, beside its writers and readers."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pyarrow as pa
import pytest

import logstore
from logstore import InvalidRequestError, OffsetOutOfRangeError, OffsetRange, UnknownPartitionError
from logstore.env import Env, OsFiles
from tests.support.repeats import only_long

DAY_MS = 24 * 3_600_000
NOW_MS = 1_700_000_000_000


class Clock:
    """Wall time that somebody may set, and time that goes on."""

    def __init__(self) -> None:
        self.wall_ms, self.uptime_ms = NOW_MS, 5_000

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> int:
        return self.uptime_ms

    def sleep_ms(self, duration_ms: float) -> None:
        self.pass_ms(int(duration_ms))

    def pass_ms(self, duration_ms: int) -> None:
        self.wall_ms += duration_ms
        self.uptime_ms += duration_ms


class DatedFiles(OsFiles):
    """The real files; what is written gets its time from the clock of the test."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def write(self, path: str | Path, position: int, data: bytes) -> None:
        super().write(path, position, data)
        self.set_time(path, self.clock.wall_ms * 1_000_000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def dated(tmp_path: Path, clock: Clock) -> logstore.LogStore:
    return logstore.open(tmp_path / "dated", env=Env(clock, DatedFiles(clock)))


def append(store: logstore.LogStore, count: int, *, key: str | None = None, timestamp: int | None = None) -> None:
    """`count` appends of one record each."""
    for number in range(count):
        columns = {"value": pa.array([b"%d" % number + b"." * 90])}
        if key is not None:
            columns["key"] = pa.array([key.encode()])
        if timestamp is not None:
            columns["timestamp"] = pa.array([timestamp], pa.int64())
        store.append("t", pa.table(columns))


def removed(store: logstore.LogStore) -> int:
    return len(store.expire("t", 0).removed)


def test_records_dated_into_the_future_go_by_their_append_s17(dated: logstore.LogStore, clock: Clock) -> None:
    dated.create_topic("t", config={"segment.bytes": "400", "retention.ms": str(7 * DAY_MS)})
    append(dated, 9, timestamp=NOW_MS + 3650 * DAY_MS)
    clock.pass_ms(6 * DAY_MS)
    append(dated, 3)
    assert removed(dated) == 0
    clock.pass_ms(DAY_MS + 1)
    assert removed(dated) > 0
    clock.pass_ms(7 * DAY_MS)
    removed(dated)
    assert dated.offsets("t") == {0: OffsetRange(12, 12)}


@pytest.mark.parametrize("jump_ms", [3650 * DAY_MS, -3650 * DAY_MS])
def test_a_clock_that_jumps_deletes_neither_all_nor_nothing_s17(
    dated: logstore.LogStore, clock: Clock, jump_ms: int
) -> None:
    dated.create_topic("t", config={"segment.bytes": "400", "retention.ms": str(7 * DAY_MS)})
    append(dated, 4)
    clock.pass_ms(4 * DAY_MS)
    append(dated, 4)
    assert removed(dated) == 0  # the clock was looked at
    clock.pass_ms(1000)
    clock.wall_ms += jump_ms
    assert removed(dated) == 0
    append(dated, 4)
    clock.pass_ms(DAY_MS - 2000)
    assert removed(dated) == 0
    clock.wall_ms -= jump_ms  # somebody saw it
    clock.pass_ms(2 * DAY_MS + 2000)
    assert removed(dated) >= 1
    assert dated.offsets("t")[0].start in (3, 4)


def test_tombstones_do_not_go_because_the_clock_jumped_s17(dated: logstore.LogStore, clock: Clock) -> None:
    dated.create_topic(
        "t",
        config={
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0",
            "delete.retention.ms": str(DAY_MS),
            "segment.bytes": "400",
        },
    )

    def compact() -> set[bytes]:
        append(dated, 1, key="end")
        dated.log("t", 0).roll()
        dated.compact("t", 0)
        return set(dated.read("t", partition=0).read_all()["key"].to_pylist())

    dated.append("t", pa.table({"key": ["gone"], "value": pa.array([None], pa.binary())}))
    append(dated, 1, key="stays")
    assert compact() == {b"gone", b"stays", b"end"}
    clock.wall_ms += 3650 * DAY_MS
    assert compact() == {b"gone", b"stays", b"end"}
    clock.wall_ms -= 3650 * DAY_MS
    clock.pass_ms(DAY_MS)
    assert compact() == {b"stays", b"end"}


def test_what_was_compacted_is_no_younger_than_before_s17(dated: logstore.LogStore, clock: Clock) -> None:
    settings = {"cleanup.policy": "compact,delete", "retention.ms": str(7 * DAY_MS), "segment.bytes": "400"}
    dated.create_topic("t", config=settings)
    for key in "abab":
        append(dated, 3, key=key, timestamp=NOW_MS + 3650 * DAY_MS)
    clock.pass_ms(5 * DAY_MS)
    append(dated, 4, key="c")
    report = dated.compact("t", 0)
    assert report.rounds == 1
    assert report.bytes_after < report.bytes_before
    assert removed(dated) == 0
    clock.pass_ms(2 * DAY_MS + 1)
    assert removed(dated) >= 1
    assert set(dated.read("t", partition=0).read_all()["key"].to_pylist()) == {b"c"}


def test_housekeeping_is_done_at_a_roll_at_opening_and_at_closing(tmp_path: Path, clock: Clock) -> None:
    env = Env(clock, DatedFiles(clock))
    path = tmp_path / "house"
    store = logstore.open(path, env=env)
    store.create_topic("t", config={"segment.bytes": "400", "retention.bytes": "1000", "file.delete.delay.ms": "1000"})
    append(store, 40)
    store.flush()
    append(store, 8)  # rolls, and what was flushed may go
    started = store.offsets("t")[0].start
    assert started > 20
    assert list((path / "t-0").glob("*.deleted"))
    clock.pass_ms(1000)
    append(store, 40)
    store.close()
    assert not [name for name in (path / "t-0").glob("*.log.*.deleted") if f".{NOW_MS}." in name.name]
    clock.pass_ms(1000)
    with logstore.open(path, env=env) as again:
        assert again.offsets("t")[0].start > started + 30
        assert not list((path / "t-0").glob("*.deleted"))


def test_deleted_records_are_gone_for_every_process_and_for_good(tmp_path: Path) -> None:
    path = tmp_path / "deleted"
    store, other = logstore.open(path), logstore.open(path)
    store.create_topic("t", partitions=2, config={"segment.bytes": "400"})
    store.append("t", pa.table({"value": ["v" * 90] * 20, "partition": pa.array([0] * 20, pa.int32())}))
    assert other.read("t", partition=0).read_all().num_rows == 20
    assert store.delete_records("t", {0: 7, 1: -1}) == {0: OffsetRange(7, 20), 1: OffsetRange(0, 0)}
    assert other.read("t", partition=0, start=7).read_all()["offset"].to_pylist() == list(range(7, 20))
    with pytest.raises(OffsetOutOfRangeError):
        other.read("t", partition=0, start=6).read_all()
    assert store.delete_records("t", {0: 3})[0].start == 7
    other.close()
    store.close()
    with logstore.open(path) as again:
        assert again.delete_records("t", {0: -1}) == {0: OffsetRange(20, 20)}
        assert again.append("t", pa.table({"value": ["w"], "partition": pa.array([0], pa.int32())})) == {
            0: OffsetRange(20, 21)
        }


def test_what_cannot_be_deleted_is_refused_before_anything_is(store: logstore.LogStore) -> None:
    store.create_topic("t", partitions=2)
    store.create_topic("c", config={"cleanup.policy": "compact"})
    store.append("t", pa.table({"value": ["v"] * 4, "partition": pa.array([0, 0, 1, 1], pa.int32())}))
    for offsets, error in (
        ({0: 1, 1: 3}, OffsetOutOfRangeError),
        ({0: 1, 1: -2}, OffsetOutOfRangeError),
        ({0: 1, 2: 0}, UnknownPartitionError),
    ):
        with pytest.raises(error):
            store.delete_records("t", offsets)
    with pytest.raises(InvalidRequestError, match="tombstone"):
        store.delete_records("c", {0: 0})
    assert {extent.start for extent in store.offsets("t").values()} == {0}


# ------------------------------------------------------------------ all at once

ROUNDS, KEYS = 40, 7


def _write(path: Path, name: str) -> None:
    """Every key once per round, with the number of the round."""
    with logstore.open(path) as store:
        for number in range(ROUNDS):
            keys = [f"{name} {key}" for key in range(KEYS)]
            values = [b"%d " % number + b"." * 50] * KEYS
            store.append("t", pa.table({"key": keys, "value": values}))


def _compact(path: Path, stop: multiprocessing.synchronize.Event) -> None:
    with logstore.open(path) as store:
        while not stop.is_set():
            store.compact("t", 0)
            store.expire("t", 0)


def _look(path: Path, stop: multiprocessing.synchronize.Event, wrong: multiprocessing.Queue[str]) -> None:
    """Per key, what is read goes up, and never back from one reading to the next.

    A record may make way for one that was appended behind the end of a reading: then that is there, further on.
    """
    newest: dict[bytes, int] = {}
    with logstore.open(path, mode="r") as store:
        while not stop.is_set():
            found, offsets, end = {}, [], 0
            while True:
                start, end = end, store.offsets("t")[0].end
                for batch in store.read("t", partition=0, start=start, end=end):
                    for row in batch.to_pylist():
                        found[row["key"]] = int(row["value"].split()[0])
                        offsets.append(row["offset"])
                gone_back = [key for key, number in newest.items() if found.get(key, -1) < number]
                if not gone_back or start == end:
                    break
            if offsets != sorted(set(offsets)):
                wrong.put(f"offsets {offsets}")
            if gone_back:
                wrong.put(f"{gone_back} went back")
            newest = found


@only_long("writers and readers in processes")
def test_compaction_goes_on_beside_writers_and_readers_in_processes(tmp_path: Path) -> None:
    path = tmp_path / "busy"
    settings = {
        "cleanup.policy": "compact",
        "segment.bytes": "3000",
        "min.cleanable.dirty.ratio": "0",
        "file.delete.delay.ms": "0",
    }
    logstore.open(path).create_topic("t", config=settings)
    context = multiprocessing.get_context("fork")
    stop, wrong = context.Event(), context.Queue()
    writers = [context.Process(target=_write, args=(path, name)) for name in "ab"]
    others = [context.Process(target=_compact, args=(path, stop)) for _ in range(2)]
    others.append(context.Process(target=_look, args=(path, stop, wrong)))
    for process in (*others, *writers):
        process.start()
    for process in writers:
        process.join(60)
    time.sleep(0.2)
    stop.set()
    for process in others:
        process.join(60)
    assert [process.exitcode for process in (*writers, *others)] == [0] * 5
    assert wrong.empty(), wrong.get()
    with logstore.open(path) as store:
        store.log("t", 0).roll()
        store.compact("t", 0)
        rows = store.read("t", partition=0).read_all()
        assert rows.num_rows <= 2 * KEYS + 1
        last = {
            key: int(value.split()[0])
            for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
        }
        assert last == {f"{name} {key}".encode(): ROUNDS - 1 for name in "ab" for key in range(KEYS)}
        assert list(store.log("t", 0).verify()) == []
