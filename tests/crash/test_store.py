"""Crash points of a whole store: transactions, retention, deleted records, compaction, checkpoints, topics (S11, S23).

Laws, whatever kind of crash, when the store is opened again:

- what was acknowledged as flushed or committed is there once, in its order; what was deleted or aborted is not;
- a batch that was being committed is there as a whole or not at all, and who saw it before the store was opened
  still sees it; nothing is left open;
- topics are those that were made and not deleted;
- a clean end and another open change nothing; the store takes appends, and the batch that was under way can be
  written again: it is there once.

A workload runs once; at every `PYLOG_CRASH_EVERY`-th change (1: at all of them) a copy of the disk is what the crash
left. `PYLOG_CRASH_SEEDS` is how often each is torn, `PYLOG_CRASH_SEED` which dice are thrown; a failure prints it.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

import logstore
from logstore import BatchConflictError, LogStore
from logstore.env import Env
from logstore.store.stray import unowned
from logstore.store.transactions.transaction import Prepared
from tests.support.disk import Crash, Disk, PowerCut, StillClock
from tests.support.repeats import times

ROOT = Path("/disk/deep/store")  # none of them is there before
EVERY = times(83, 19, "PYLOG_CRASH_EVERY")
SEEDS = times(1, 2, "PYLOG_CRASH_SEEDS")
SEED = int(os.environ.get("PYLOG_CRASH_SEED", str(random.SystemRandom().randrange(10_000))))

SMALL = {
    "segment.bytes": 600,
    "max.message.bytes": 500,
    "index.interval.bytes": 100,
    "file.delete.delay.ms": 0,
}
COMPACTED = SMALL | {
    "cleanup.policy": "compact,delete",
    "min.cleanable.dirty.ratio": 0.0,
    "delete.retention.ms": 0,
}
SHORT = SMALL | {"retention.ms": 1_000_000}


@dataclass
class Value:
    """One record. Its text is unique; `batch` is what it becomes visible with."""

    topic: str
    partition: int
    key: str
    text: str
    offset: int
    batch: str = ""
    is_safe: bool = False  # flushed, or committed
    is_gone: bool = False  # deleted, or aborted
    may_go: bool = False  # its deletion was asked for


@dataclass
class Said:
    """The knowledge of the store's user; operations under way may have happened."""

    values: dict[str, Value] = field(default_factory=dict)
    pending: dict[str, Value] = field(default_factory=dict)
    topics: dict[str, bool | None] = field(default_factory=dict)  # None: it is being made, or deleted
    batches: dict[str, str] = field(default_factory=dict)  # open, committing, committed, aborted
    last: tuple[int, list[str]] | None = None  # the last batch of the query, and what is in it


class User:
    """Does things with a store, and notes what it was told."""

    def __init__(self, disk: Disk) -> None:
        self.said = Said()
        self.clock, self.disk = StillClock(), disk
        self.pass_ms(10_000_000)
        self.env = Env(self.clock, disk, random.Random(1))
        self.count = 0
        self.store: LogStore | None = None

    def pass_ms(self, duration_ms: int) -> None:
        self.clock.time_ms += duration_ms
        self.disk.epoch_ns = self.clock.time_ms * 1_000_000

    def open(self) -> None:
        self.store = logstore.open(ROOT, env=self.env)

    def create(self, topic: str, config: dict[str, object] = SMALL, partitions: int = 1) -> None:
        self.said.topics[topic] = None
        self.store.create_topic(topic, partitions=partitions, config=config)
        self.said.topics[topic] = True

    def delete(self, topic: str) -> None:
        self.said.topics[topic] = None
        # The next process that opens the store finishes a deletion that was cut off.
        for value in self.said.values.values():
            value.may_go |= value.topic == topic
        self.store.delete_topic(topic)
        self.said.topics[topic] = False

    def append(self, topic: str, count: int = 1, *, batch: str = "", transaction=None) -> None:
        for _ in range(count):
            self.count += 1
            key, text, partition = f"k{self.count % 3}", f"v{self.count}" + "." * 20, 0
            if topic == "wide":
                partition = self.count % 2
            value = Value(topic, partition, key, text, -1, batch)
            self.said.pending = {text: value}
            rows = pa.table({"key": [key], "value": [text], "partition": pa.array([partition], pa.int32())})
            done = self.store.append(topic, rows, transaction=transaction)
            value.offset = done[partition].start
            self.said.values[text], self.said.pending = value, {}

    def flush(self) -> None:
        self.store.flush()
        for value in self.said.values.values():
            if not value.batch:
                value.is_safe = True

    def part(self, name: str, batch_id: int, task: str, *topics: str, batch: str):
        """One writer's part of a batch, prepared."""
        self.said.batches.setdefault(batch, "open")
        transaction = self.store.transactions.begin(name, batch_id, run="run", task=task)
        for topic in topics:
            self.append(topic, batch=batch, transaction=transaction)
        return transaction

    def commit(self, batch: str, parts: list[Prepared]) -> None:
        self.said.batches[batch] = "committing"
        if parts[0].kept:
            texts = [text for text, value in self.said.values.items() if value.batch == batch]
            self.said.last = parts[0].batch_id, texts
        self.store.transactions.commit(parts)
        self.said.batches[batch] = "committed"

    def query_batch(self, number: int, *topics: str, loser: bool = False) -> None:
        """A batch of a stream: two tasks, and perhaps an attempt that does not count."""
        batch = f"q{number}"
        parts = [self.part("q", number, task, *topics, batch=batch).prepare() for task in "ab"]
        if loser:
            self.part("q", number, "a", *topics, batch=f"loser{number}").prepare()
        self.commit(batch, parts)
        if loser:
            self.said.batches[f"loser{number}"] = "aborted"

    def one_transaction(self, batch: str, *topics: str, commit: bool) -> None:
        self.said.batches[batch] = "open"
        transaction = self.store.transaction()
        for topic in topics:
            self.append(topic, batch=batch, transaction=transaction)
        if commit:
            self.commit(batch, [transaction.prepare()])
        else:
            transaction.abort()
            self.said.batches[batch] = "aborted"

    def remove_below(self, topic: str, offset: int) -> None:
        below = [v for v in self.said.values.values() if v.topic == topic and v.offset < offset]
        for value in below:
            value.may_go = True
        self.store.delete_records(topic, {0: offset})
        for value in below:
            value.is_gone = True

    def expire(self, topic: str) -> None:
        self.pass_ms(5_000_000)
        for value in self.said.values.values():
            value.may_go |= value.topic == topic
        self.store.expire(topic, 0)

    def reopen(self) -> None:
        store, self.store = self.store, None
        store.close()
        for value in self.said.values.values():
            value.is_safe |= not value.batch
        self.store = logstore.open(ROOT, env=self.env)


def transactions(user: User) -> None:
    user.create("a")
    user.create("wide", partitions=2)
    user.append("a")
    user.one_transaction("t1", "a", "wide", "wide", commit=True)
    user.append("wide", 2)
    user.flush()
    user.one_transaction("t2", "a", "wide", commit=False)
    user.append("a")
    user.one_transaction("t3", "wide", commit=True)
    user.reopen()
    user.one_transaction("t4", "wide", "a", commit=True)


def query(user: User) -> None:
    user.create("a")
    user.create("wide", partitions=2)
    for number in range(3):
        user.query_batch(number, "a", "wide", loser=number == 1)
    user.flush()
    user.query_batch(3, "wide")
    user.pass_ms(100_000)  # decisions that are old are forgotten
    user.query_batch(4, "a")


def keeping_house(user: User) -> None:
    user.create("short", SHORT)
    user.append("short", 8)
    user.flush()
    user.remove_below("short", 3)
    user.append("short", 4)
    user.expire("short")
    user.append("short", 2)
    user.one_transaction("t1", "short", commit=True)
    user.remove_below("short", 9)
    user.reopen()
    user.append("short")


def compaction(user: User) -> None:
    user.create("keys", COMPACTED)
    user.append("keys", 8)
    user.one_transaction("t1", "keys", commit=True)
    user.one_transaction("t2", "keys", commit=False)
    user.append("keys", 4)
    user.store.log("keys", 0).roll()
    user.store.compact("keys", 0)
    user.append("keys", 5)
    user.remove_below("keys", 4)
    user.query_batch(0, "keys")
    user.append("keys", 3)
    user.store.log("keys", 0).roll()
    user.store.compact("keys", 0)
    user.flush()


def topics(user: User) -> None:
    user.create("a")
    user.append("a", 2)
    user.flush()
    user.create("gone")
    user.append("gone")
    user.store.alter_topic("a", partitions=2)
    user.one_transaction("t1", "a", "gone", commit=True)
    user.delete("gone")
    user.create("wide", partitions=2)
    user.one_transaction("t2", "a", "wide", commit=True)
    user.reopen()
    user.append("wide", 2)
    user.flush()


WORKLOADS: list[Callable[[User], None]] = [transactions, query, keeping_house, compaction, topics]


class Check:
    """The disk after a crash, against the acknowledged operations."""

    def __init__(self, found: Disk, said: Said, kind: Crash, now_ms: int) -> None:
        self.said, self.kind = said, kind
        self.env = Env(StillClock(now_ms), found, random.Random(2))
        self.found = found

    def run(self) -> None:
        seen = set()
        if self.kind is Crash.KILLED and self.found.stat(ROOT / "meta.properties") is not None:
            with logstore.open(ROOT, mode="r", env=self.env) as store:
                seen = set(self.check(store))
        with logstore.open(ROOT, env=self.env) as store:
            there = self.check(store)
            lost = seen - set(there)
            assert all(self.is_replaced(text, there) or self.value(text).may_go for text in lost), lost
            self.check_nothing_is_open(store)
        before = self.found.state()
        with logstore.open(ROOT, env=self.env) as store:
            assert self.check(store) == there
        assert self.found.state() == before
        with logstore.open(ROOT, env=self.env) as store:
            self.check_it_goes_on(store, there)

    def value(self, text: str) -> Value:
        return self.said.values.get(text) or self.said.pending[text]

    def is_replaced(self, text: str, there: dict[str, int]) -> bool:
        """Compacted away: a later record of its key is there."""
        value = self.value(text)
        later = (self.value(t) for t, at in there.items() if value.offset < at)
        return value.topic == "keys" and any((v.topic, v.key) == ("keys", value.key) for v in later)

    def check(self, store: LogStore) -> dict[str, int]:
        """Return the offset of every committed record, if what is there and what is not agree with what was said."""
        names = [info.name for info in store.topics()]
        for topic, is_there in self.said.topics.items():
            assert is_there is None or (topic in names) == is_there, topic
        there: dict[str, int] = {}
        for topic in names:
            for partition in range(store.topic(topic).partitions):
                rows = store.read(topic, partition=partition).read_all()
                for text, offset in zip(rows["value"].to_pylist(), rows["offset"].to_pylist(), strict=True):
                    assert text.decode() not in there
                    there[text.decode()] = offset
        for text, offset in there.items():
            value = self.value(text)
            assert not value.is_gone, value
            assert value.offset in (-1, offset), value
        self.check_missing(names, there)
        self.check_batches(names, there)
        return there

    def check_missing(self, names: list[str], there: dict[str, int]) -> None:
        """Plain records: what was promised is there; of the others no later one without the earlier one."""
        ends: dict[tuple[str, int], int] = {}
        for text, at in there.items():
            value = self.value(text)
            place = value.topic, value.partition
            ends[place] = max(at, ends.get(place, -1))
        for value in self.said.values.values():
            if value.batch or value.topic not in names or value.text in there:
                continue
            assert not (value.is_safe or self.kind is Crash.KILLED) or self.is_excused(value, there), value
            if value.offset < ends.get((value.topic, value.partition), -1):
                assert self.is_excused(value, there), value

    def is_excused(self, value: Value, there: dict[str, int]) -> bool:
        return value.may_go or value.is_gone or self.is_replaced(value.text, there)

    def check_batches(self, names: list[str], there: dict[str, int]) -> None:
        for batch, state in self.said.batches.items():
            wanted = [v for v in self.said.values.values() if v.batch == batch and v.topic in names]
            texts = {v.text for v in wanted if not self.is_excused(v, there)}
            found = texts & there.keys()
            if state == "committed":
                assert found == texts, (batch, texts - found)
            elif state == "committing":
                assert found in (set(), texts), (batch, texts, found)
            else:
                assert not {v.text for v in wanted} & there.keys(), (batch, state)

    def check_nothing_is_open(self, store: LogStore) -> None:
        for info in store.topics():
            for partition in range(info.partitions):
                log = store.log(info.name, partition)
                assert log.producers.open_transactions() == (), info.name
                # Indexes of an active segment are not synced at a clean end: a search is longer without them.
                assert [d for d in log.verify() if not d.reason.endswith("and right")] == []
        assert unowned(ROOT, self.env).lost == ()
        state = store.transactions.state()
        assert not any(state.is_open(attempt) for attempt in state.attempts)

    def check_it_goes_on(self, store: LogStore, there: dict[str, int]) -> None:
        for info in store.topics():
            store.append(info.name, pa.table({"key": ["k"], "value": ["more"]}), flush=True)
            if "compact" in info.config.cleanup_policy:
                store.log(info.name, 0).roll()
                store.compact(info.name, 0)
        if self.said.last is None:
            return
        number, texts = self.said.last
        is_there = any(text in there for text in texts)
        values = [self.said.values[text] for text in texts]
        with suppress(BatchConflictError), store.transaction("q", batch_id=number) as transaction:
            assert transaction.is_replay or not is_there
            for value in values:
                rows = {"key": [value.key], "value": [value.text]}
                partition = pa.array([value.partition], pa.int32())
                store.append(value.topic, pa.table(rows | {"partition": partition}), transaction=transaction)
        again = sum(
            row.decode() in texts
            for info in store.topics()
            for p in range(info.partitions)
            for row in store.read(info.name, partition=p).read_all()["value"].to_pylist()
        )
        replaced = {v.text for v in values if v.topic == "keys"}
        assert again <= len(texts)
        assert again >= len(set(texts) - replaced)
        with store.transaction("q", batch_id=number + 1) as transaction:
            assert not transaction.is_replay


def crashed_while_opening(disk: Disk, dice: random.Random, now_ms: int) -> Disk:
    """The recovering process was cut off, too, somewhere."""
    disk.crash_at = disk.calls + dice.randint(1, 40)
    with suppress(PowerCut):
        logstore.open(ROOT, env=Env(StillClock(now_ms), disk, random.Random(3)))
    return disk


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("workload", WORKLOADS)
def test_s23_every_crash_point_of_a_store_leaves_what_was_acknowledged(workload, caplog):
    caplog.set_level("CRITICAL")
    disk = Disk(seed=SEED)
    images: list[tuple[Disk, Said, int]] = []
    user = User(disk)
    disk.watch_every = EVERY
    disk.calls = SEED % EVERY
    disk.watch = lambda image: images.append((image, copy.deepcopy(user.said), user.clock.time_ms))
    user.open()
    workload(user)
    disk.watch = None
    user.store.close()
    assert disk.calls > 200
    dice = random.Random(SEED)
    for image, said, now_ms in images:
        twice = dice.choice(list(Crash))
        for kind in Crash:
            for _ in range(SEEDS if kind is Crash.TORN else 1):
                try:
                    found = image.after_crash(kind)
                    if kind is twice:
                        found = crashed_while_opening(found, dice, now_ms).after_crash(kind)
                    Check(found, copy.deepcopy(said), kind, now_ms).run()
                except BaseException as error:
                    error.add_note(f"PYLOG_CRASH_SEED={SEED}: {kind.name} at change {image.calls}")
                    raise


@pytest.mark.usefixtures("_small")
def test_markers_that_the_power_took_are_written_again_though_the_journal_says_that_they_are_there():
    """Else the decision would be forgotten as soon as the log is long enough again, and the batch with it."""
    disk = Disk()
    user = User(disk)
    user.open()
    user.create("a")
    user.one_transaction("t", "a", commit=True)
    disk.fsync(ROOT / "transactions" / "journal")
    env = Env(user.clock, disk.after_crash(Crash.LOST))
    with logstore.open(ROOT, env=env) as store:
        log = store.log("a", 0)
        assert (log.log_end_offset, log.producers.open_transactions()) == (2, ())
        assert store.read("a", partition=0).read_all().num_rows == 1
