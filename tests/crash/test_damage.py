"""Random damage in any file of a store: it is read as it was written, or the damage is reported by name.

Never a record that nobody wrote, a flushed record silently missing, an endless loop, a huge allocation, or an exception
that is not PylogError; nothing of an aborted transaction; no batch of a producer twice. Each case is a seed, which the
failure prints; `PYLOG_DAMAGE_CASES=20000` makes it a long run, `PYLOG_DAMAGE_SEED` chooses where it begins,
`PYLOG_DAMAGE_FILES=txnindex,journal` keeps to files whose names end so. (S3 to S7, S15, S16, S22, T1, T2, T5)
"""

from __future__ import annotations

import os
import random
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

import logstore
from logstore import LogStore, PylogError
from logstore.env import Env
from logstore.records.batch import Record, build
from logstore.store import disk_reserve
from logstore.tools.dump import dump
from logstore.tools.verify import verify_store
from tests.crash.damage import KINDS
from tests.support.disk import Crash, Disk, StillClock
from tests.support.partition import appended
from tests.support.repeats import times

ROOT = Path("/store")
CASES = times(6, 70, "PYLOG_DAMAGE_CASES")
SEED = int(os.environ.get("PYLOG_DAMAGE_SEED", "0"))
FILES = tuple(os.environ.get("PYLOG_DAMAGE_FILES", "").split(","))

ALLOCATION_MAX = 2 << 30  # more than any of these stores needs, less than a length field can ask for
CASE_SECONDS_MAX = 20

Contents = dict[tuple[str, int], "Partition"]

SMALL = {"segment.bytes": 900, "max.message.bytes": 600, "index.interval.bytes": 100}
TOPICS: dict[str, dict[str, object]] = {
    "plain": {},
    "packed": {"compression.type": "zstd"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
}


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {
            "key": pa.array([b"k%d" % (n % 5) if n % 7 else None for n in numbers], pa.binary()),
            "value": pa.array([b"value %d " % n * (n % 9) if n % 11 else None for n in numbers], pa.binary()),
            "timestamp": pa.array([1_000_000 + 10 * n for n in numbers], pa.int64()),
            "headers": pa.array(
                [[{"key": "h", "value": b"%d" % n}] if n % 3 == 0 else None for n in numbers],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )


COMPACTED = SMALL | {
    "cleanup.policy": "compact,delete",
    "min.cleanable.dirty.ratio": 0.0,
    "file.delete.delay.ms": 0,
    "delete.retention.ms": 0,
}


def in_transaction(store: LogStore, first: int, count: int, *, commit: bool) -> None:
    transaction = store.transaction()
    for at in range(first, first + count, 2):
        store.append("transactional", rows(at, 2), transaction=transaction, partitioner="round_robin")
    transaction.commit() if commit else transaction.abort()


def keyed(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    values = pa.array([b"value %d " % n * (n % 5) for n in numbers], pa.binary())
    return pa.table({"key": [b"k%d" % (n % 7) for n in numbers], "value": values})


def produced(sequence: int) -> bytearray:
    """A batch of two records of producer 77: what a retry sends again."""
    values = [Record(i, 1_000 + i, b"k", b"produced %d" % (sequence + i)) for i in range(2)]
    return build(values, producer=(77, 3, sequence))


LAST_SEQUENCE = 38
WITH_PRODUCERS = ("transactional", "produced")


def fill_with_producers(store: LogStore) -> None:
    """Aborted transactions between committed ones, compacted segments, moved log starts, a batch id to remember."""
    store.create_topic("transactional", partitions=2, config=SMALL)
    for number in range(8):
        in_transaction(store, 10 * number, 6, commit=number % 3 != 1)
        store.append("transactional", rows(10 * number + 6, 4), partitioner="round_robin")
    with store.transaction("query", batch_id=4) as transaction:
        store.append("transactional", rows(80, 2), transaction=transaction, partitioner="round_robin")
    store.create_topic("keys", config=COMPACTED)
    for first in range(0, 80, 4):
        store.append("keys", keyed(first, 4))
        if first % 40 == 36:
            store.compact("keys", 0)
    store.create_topic("started", config=SMALL)
    for first in range(0, 40, 4):
        store.append("started", rows(first, 4))
    store.delete_records("started", {0: 22})
    store.create_topic("produced", config=SMALL)
    for sequence in range(0, LAST_SEQUENCE + 2, 2):
        appended(store.log("produced", 0), produced(sequence))
        if sequence == 20:
            store.log("produced", 0).roll()


def fill(store: LogStore) -> None:
    for topic, settings in TOPICS.items():
        store.create_topic(topic, partitions=2, config=SMALL | settings)
        for first in range(0, 120, 6):
            store.append(topic, rows(first, 6), partitioner="round_robin")
    store.create_topic("epochs", config=SMALL)
    for epoch in range(4):
        records = build([Record(i, 1_000 + i, b"k", b"epoch %d" % epoch) for i in range(3)])
        appended(store.log("epochs", 0), records, leader_epoch=epoch)
    store.append("epochs", rows(12, 3))
    store.create_topic("gone", config={"file.delete.delay.ms": 10**9})
    store.append("gone", rows(0, 3))
    store.delete_topic("gone")
    fill_with_producers(store)


class Partition(NamedTuple):
    """The content of a partition: the committed records, and where it ends."""

    rows: list[dict[str, object]]
    end: int


def contents(store: LogStore) -> Contents:
    return {
        (info.name, p): Partition(read(store, info.name, p), store.log(info.name, p).log_end_offset)
        for info in store.topics()
        for p in range(info.partitions)
    }


def read(store: LogStore, topic: str, partition: int, start: int | None = None) -> list[dict[str, object]]:
    return store.read(topic, partition=partition, start=start).read_all().to_pylist()


class Case:
    """One damaged store, and what it must say."""

    def __init__(self, disk: Disk, expected: Contents, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk, self.expected = disk, expected
        self.env = Env(StillClock(2_000_000), disk, self.rng)
        paths = sorted(p for p in disk.names if not p.endswith((".lock", ".reserve")))
        self.path = self.rng.choice([p for p in paths if p.endswith(FILES)])
        self.kind = self.rng.choice(KINDS)
        data = disk.names[self.path].data
        other = self.rng.choice([p for p in paths if Path(p).suffix != ".log" or not self.path.endswith(".log")])
        before = bytes(data)
        self.kind(data, self.rng, bytes(disk.names[other].data))
        self.is_changed = before != data

    def attempt(self, act):
        """The result of `act`, or the PylogError that it raises; anything else is a failure."""
        try:
            return act()
        except PylogError as error:
            return error

    def check_all(self) -> None:
        mode = self.rng.choice(("r", "auto", "auto after a crash", "recover"))
        if mode in ("auto after a crash", "recover"):
            self.disk.names.pop(str(ROOT / ".kafka_cleanshutdown"), None)
        if mode == "recover":
            self.attempt(lambda: logstore.recover(ROOT, env=self.env))
        store = self.attempt(
            lambda: logstore.open(ROOT, mode="r" if mode == "r" else "auto", create=False, env=self.env)
        )
        if isinstance(store, PylogError):
            assert self.names_it(store), store
            return
        with suppress(PylogError), store:
            self.check_store(store)

    def check_store(self, store: LogStore) -> None:
        failed = {key for key in self.expected if not self.check_reads(store, key)}
        reports = self.attempt(lambda: list(verify_store(store)))
        if not isinstance(reports, PylogError):
            reported = {(report.topic, report.partition) for report in reports if report.damage}
            assert failed <= reported, f"{failed} cannot be read, verify says {reported}"
        for path in [p for p in self.disk.names if p.endswith((".log", "index"))]:
            self.attempt(lambda path=path: list(dump(Path(path), with_records=True, verify=True, env=self.env)))
        if not store.read_only:
            self.check_repeats(store)
            for key in self.expected:
                self.check_append(store, key)

    def check_reads(self, store: LogStore, key: tuple[str, int]) -> bool:
        """Everything, and from the middle on, and by time: as it was written, or named; False if it is damaged.

        A look-up by time goes by headers, whose CRCs it does not look at: only who reads what it leads to is told.
        """
        topic, partition = key
        expected = self.expected[key].rows
        found = self.attempt(lambda: read(store, topic, partition))
        if isinstance(found, PylogError):
            assert self.names_it(found), found
        elif found != expected:
            # A header that looks like an open transaction holds readers up: `verify` must tell.
            assert topic in WITH_PRODUCERS
            assert found == expected[: len(found)]
            return False
        start = self.rng.choice(expected)["offset"]
        some = self.attempt(lambda: read(store, topic, partition, start))
        assert isinstance(some, PylogError) or some == [row for row in expected if row["offset"] >= start]
        time_ms = 1_000_000 + self.rng.randrange(1_200)
        by_time = self.attempt(lambda: store.log(topic, partition).reader.offset_for_time(time_ms))
        is_damaged = isinstance(by_time, PylogError) or isinstance(found, PylogError)
        if topic in TOPICS and not is_damaged:  # elsewhere it may be a record that is not seen
            first = next((r for r in expected if r["timestamp"].timestamp() * 1000 >= time_ms), None)
            assert (by_time and by_time.offset) == (first and first["offset"])
        return not isinstance(found, PylogError)

    def check_repeats(self, store: LogStore) -> None:
        """The state of producers and of batches is right, or missing by name."""
        log, end = store.log("produced", 0), self.expected["produced", 0].end
        again = self.attempt(lambda: appended(log, produced(LAST_SEQUENCE)))
        if not isinstance(again, PylogError):
            assert (again.is_duplicate, again.first_offset) == (True, end - 2)
        replayed = self.attempt(lambda: store.transaction("query", batch_id=4))
        if not isinstance(replayed, PylogError):
            assert replayed.is_replay

    def check_append(self, store: LogStore, key: tuple[str, int]) -> None:
        topic, partition = key
        data = keyed(500, 2).append_column("partition", pa.array([partition] * 2, pa.int32()))
        done = self.attempt(lambda: store.append(topic, data))
        if isinstance(done, PylogError):
            assert self.names_it(done), done
            return
        expected, end = self.expected[key]
        if topic in WITH_PRODUCERS and done[partition].start > end:
            return  # what looked like an open transaction was ended
        assert done[partition].start == end
        found = self.attempt(lambda: read(store, topic, partition))
        if not isinstance(found, PylogError) and not (topic in WITH_PRODUCERS and len(found) < len(expected)):
            assert found[: len(expected)] == expected
            assert [row["offset"] for row in found[-2:]] == [end, end + 1]

    def names_it(self, error: PylogError) -> bool:
        """Does the message lead to the damage: the file, its partition, or its topic?"""
        path = Path(self.path)
        topic = path.parent.name.rpartition("-")[0] if path.parent != ROOT else path.stem
        return any(name and name in str(error) for name in (path.name, path.parent.name, topic, path.stem))


@pytest.fixture(scope="module")
def store_and_contents() -> Iterator[tuple[Disk, Contents]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_reserve, "RESERVE_BYTES", 4_096)  # it is copied for every case
        yield made_store()


def made_store() -> tuple[Disk, Contents]:
    disk = Disk()
    disk.mkdir(ROOT)
    with logstore.open(ROOT, env=Env(StillClock(2_000_000), disk, random.Random(1))) as store:
        fill(store)
    with logstore.open(ROOT, env=Env(StillClock(2_000_000), disk, random.Random(1))) as store:
        expected = contents(store)
    assert sum(len(expected[topic, p].rows) for topic in TOPICS for p in (0, 1)) == 120 * len(TOPICS)
    assert {suffix for name in disk.names for suffix in (".txnindex", ".snapshot") if name.endswith(suffix)}
    assert len(expected["keys", 0].rows) < 40
    assert expected["started", 0].rows[0]["offset"] == 22
    return disk.after_crash(Crash.LOST), expected


@contextmanager
def limits() -> Iterator[None]:
    """No more memory than these stores need, and no more time."""

    def too_slow(*_: object) -> None:
        raise AssertionError(f"not done after {CASE_SECONDS_MAX} s")

    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ALLOCATION_MAX, before[1]))
    handler = signal.signal(signal.SIGALRM, too_slow)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_damage_anywhere_is_read_over_or_reported_by_name(store_and_contents, caplog):
    caplog.set_level("CRITICAL")
    disk, expected = store_and_contents
    seen = set()
    with limits():
        for seed in range(SEED, SEED + CASES):
            case = Case(disk.copy(), expected, seed)
            signal.alarm(CASE_SECONDS_MAX)
            try:
                case.check_all()
            except BaseException as error:
                error.add_note(f"PYLOG_DAMAGE_SEED={seed} PYLOG_DAMAGE_CASES=1: {case.kind.__name__} in {case.path}")
                raise
            seen.add(Path(case.path).suffix)
    assert FILES != ("",) or CASES < 40 or {".log", ".index", ".timeindex", ".txnindex", ".snapshot"} <= seen
