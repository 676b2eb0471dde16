"""Every crash point of compaction, retention and deleted records: one valid version is left (S11, S20, S23).

Laws, whatever kind of crash: no key loses its last record and none comes back from the dead; offsets are
unique and go up; nothing below the log start is seen again; recovery leaves no file of an unfinished change, a
second one changes nothing; compaction can run again and gives what it would have given. While nobody has
recovered yet, a reader sees the same.
"""

import itertools
from pathlib import Path

import pytest

from logstore import compaction, housekeeping
from logstore.env import Env
from logstore.log import create
from logstore.records.batch import Record, batches, build
from logstore.records.batch import records as decoded
from tests.crash.disk import Crash, Disk, PowerCut, StillClock
from tests.unit.storage.partition import TOPIC_ID, reopen

ROOT = Path("/store")
DIRECTORY = ROOT / "t-0"
SETTINGS = {
    "segment_bytes": 500,
    "index_interval_bytes": 100,
    "max_message_bytes": 400,
    "cleanup_policy": frozenset({"compact", "delete"}),
    "min_cleanable_dirty_ratio": 0.0,
    "delete_retention_ms": 0,
    "file_delete_delay_ms": 0,
}


class Store:
    """One partition, what was ever appended to it, and how far its start was said to be moved."""

    def __init__(self, env: Env) -> None:
        self.appended: list[Record] = []
        self.flushed = self.start = self.start_wanted = 0
        create(DIRECTORY, topic_id=TOPIC_ID, env=env)
        env.files.fsync(ROOT)
        self.log = reopen(DIRECTORY, env, **SETTINGS)

    def append(self, key: bytes, value: bytes | None) -> None:
        row = Record(len(self.appended), 1000, key, value)
        self.appended.append(row)
        self.log.append_as_leader(build([row._replace(offset=0)]))

    def fill(self, count: int, keys: int = 3) -> None:
        for number in range(count):
            self.append(b"key %d" % (number % keys), b"%d" % len(self.appended) + b"." * 30)

    def flush(self) -> None:
        self.flushed = self.log.flush()

    def compact(self) -> None:
        self.flush()
        compaction.compact(self.log)

    def delete_below(self, offset: int) -> None:
        self.start_wanted = offset
        self.start = self.log.advance_start(offset)
        self.flushed = max(self.flushed, offset)

    def expire(self) -> None:
        housekeeping.expire(self.log)


def compacts(s: Store) -> None:
    s.fill(24)
    s.compact()


def compacts_again_and_merges(s: Store) -> None:
    s.fill(18)
    s.append(b"gone", b"v")
    s.compact()
    s.append(b"gone", None)
    s.fill(18)
    s.compact()
    s.fill(12)
    s.compact()


def deletes(s: Store) -> None:
    s.fill(20)
    s.delete_below(9)
    s.fill(4)
    s.delete_below(21)
    s.expire()


def deletes_and_compacts(s: Store) -> None:
    s.fill(16)
    s.compact()
    s.delete_below(10)
    s.fill(8)
    s.compact()
    s.expire()


WORKLOADS = [compacts, compacts_again_and_merges, deletes, deletes_and_compacts]


def rows_of(log):
    found, offset = [], log.log_start_offset
    while True:
        result = log.read(offset, max_bytes=200)
        if not result.data:
            return found
        for at, _ in batches(result.data):
            found += [r for r in decoded(result.data, at) if r.offset >= offset]
        offset = result.next_offset


def run(workload, crash_at, seed):
    disk = Disk(crash_at=crash_at, seed=seed)
    disk.mkdir(ROOT)
    store = None
    try:
        store = Store(Env(StillClock(), disk))
        workload(store)
    except PowerCut:
        return disk, store, False
    return disk, store, True


def check_content(store: Store, log) -> None:
    """What is read is what was appended, without what has a later record of its key."""
    found, end = rows_of(log), log.log_end_offset
    assert store.flushed <= end <= len(store.appended)
    assert store.start <= log.log_start_offset <= max(store.start, store.start_wanted)
    assert [r.offset for r in found] == sorted({r.offset for r in found})
    appended = {r.offset: (r.key, r.value) for r in store.appended}
    assert all(appended[r.offset] == (r.key, r.value) for r in found)
    expected = {r.key: r for r in store.appended[log.log_start_offset : end]}
    last = {r.key: r for r in found}
    for key, row in expected.items():
        if row.value is not None:
            assert last[key].offset == row.offset
        elif key in last:  # a tombstone may be gone; what it deleted may not be back
            assert last[key].value is None


def check(disk: Disk, store: Store, kind: Crash) -> None:
    found = disk.after_crash(kind)
    env = Env(StillClock(), found)
    if kind is Crash.KILLED:  # nobody recovers while other processes have the store open: they go on
        reader = reopen(DIRECTORY, env, recovery_point=store.flushed, read_only=True, **SETTINGS)
        check_content(store, reader)
        writer = reopen(DIRECTORY, Env(StillClock(), found.after_crash(kind)), **SETTINGS)
        with writer.lock():
            check_content(store, writer)
    log = reopen(DIRECTORY, env, recovery_point=store.flushed, **SETTINGS)
    log.recover()
    check_content(store, log)
    assert list(log.verify()) == []
    left = [name for name in found.names if name.startswith(f"{DIRECTORY}/")]
    assert not [name for name in left if name.endswith((".cleaned", ".swap", ".tmp"))]

    before = found.state()
    again = reopen(DIRECTORY, env, recovery_point=store.flushed, **SETTINGS).recover()
    assert (again.cut_bytes, again.removed, again.rebuilt) == (0, (), ())
    assert found.state() == before

    log.append_as_leader(build([Record(0, 1000, b"last", b"v")]))
    log.roll()
    compaction.compact(log)
    rows = rows_of(log)
    assert len({r.key for r in rows}) == len(rows)
    assert list(log.verify()) == []


@pytest.mark.parametrize("kind", Crash)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_s11_every_crash_point_leaves_one_valid_version(workload, kind):
    for crash_at in itertools.count(1):
        for seed in range(3 if kind is Crash.TORN else 1):
            disk, store, finished = run(workload, crash_at, seed)
            if store is not None:
                check(disk, store, kind)
        if finished:
            break
    assert crash_at > 100
