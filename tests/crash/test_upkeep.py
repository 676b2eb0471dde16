"""Every crash point of compaction, retention and deleted records: one valid version is left (S11, S20, S23, T2).

Laws, whatever kind of crash: no key loses its last record and none comes back from the dead; nothing of an
aborted transaction is seen, what was open stays open, and no producer is forgotten; offsets are unique and go
up; nothing below the log start is seen again; recovery leaves no file of an unfinished change, a second one
changes nothing; compaction can run again and gives what it would have given. While nobody has recovered yet, a
reader sees the same.

A workload runs once: at every change that is not part of an append, a copy of the disk suffers the cut.
`PYLOG_CRASH_SEEDS` says how often each is torn (default 1), `PYLOG_CRASH_EVERY` which of these disks each kind of
crash befalls (every second one, with --long each).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path
from typing import NamedTuple

import pytest

from logstore.env import Env
from logstore.log.segments.directory import create
from logstore.maintenance import compaction, retention
from logstore.records.batch import TRANSACTIONAL, Record, build
from logstore.store.reading import read_isolated
from tests.support.disk import Crash, Disk, PowerCut, StillClock
from tests.support.partition import TOPIC_ID, appended, ended, reopen
from tests.support.repeats import times

ROOT = Path("/store")
DIRECTORY = ROOT / "t-0"
SEEDS = times(1, 2, "PYLOG_CRASH_SEEDS")
EVERY = times(8, 1, "PYLOG_CRASH_EVERY")
SETTINGS = {
    "segment_bytes": 500,
    "index_interval_bytes": 100,
    "max_message_bytes": 400,
    "cleanup_policy": frozenset({"compact", "delete"}),
    "min_cleanable_dirty_ratio": 0.0,
    "delete_retention_ms": 0,
    "file_delete_delay_ms": 0,
}


class Watched(Disk):
    """Hands over a copy of itself at every crash point: the change that comes next is cut in that copy."""

    seen = None

    def _change(self, name, *arguments):
        if self.seen is not None:
            for seed in range(SEEDS):
                cut = self.copy()
                cut.crash_at = 0
                cut.random.seed(seed)
                try:
                    getattr(cut, name)(*arguments)
                except PowerCut:
                    self.seen(cut)
        getattr(Disk, name)(self, *arguments)

    write = partialmethod(_change, "write")
    create = partialmethod(_change, "create")
    truncate = partialmethod(_change, "truncate")
    fsync = partialmethod(_change, "fsync")
    rename = partialmethod(_change, "rename")
    link = partialmethod(_change, "link")
    unlink = partialmethod(_change, "unlink")


class Said(NamedTuple):
    """The knowledge of a user: the committed records, the end, the flushed end, the start that the log has or should
    get.
    """

    rows: dict[int, tuple[bytes, bytes | None]]
    end: int
    flushed: int
    start: int
    start_wanted: int
    opened: tuple[int, ...]
    sequences: dict[int, int]


class Store:
    """One partition; notes at every crash point the disk and what was said by then."""

    def __init__(self) -> None:
        self.disk = Watched()
        self.disk.mkdir(ROOT)
        env = Env(StillClock(), self.disk)
        create(DIRECTORY, topic_id=TOPIC_ID, env=env)
        env.files.fsync(ROOT)
        self.log = reopen(DIRECTORY, env, **SETTINGS)
        self.rows: dict[int, tuple[bytes, bytes | None]] = {}
        self.flushed = self.start = self.start_wanted = 0
        self.sequences: dict[int, int] = {}
        self.opened: dict[int, list[tuple[int, bytes, bytes | None]]] = {}
        self.points: list[tuple[Disk, Said]] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        end = self.log.log_end_offset
        opened, sequences = tuple(sorted(self.opened)), dict(self.sequences)
        self.disk.seen = lambda cut: self.points.append(
            (cut, Said(dict(self.rows), end, self.flushed, self.start, self.start_wanted, opened, sequences))
        )
        yield
        self.disk.seen = None

    def append(self, key: bytes, value: bytes | None, producer: int | None = None) -> None:
        row = Record(0, 1000, key, value)
        if producer is None:
            offset = appended(self.log, build([row])).first_offset
            self.rows[offset] = key, value
            return
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + 1
        batch = build([row], attributes=TRANSACTIONAL, producer=(producer, 0, sequence))
        offset = appended(self.log, batch).first_offset
        self.opened.setdefault(producer, []).append((offset, key, value))

    def end(self, producer: int, *, commit: bool) -> None:
        ended(self.log, producer, 0, commit=commit)
        rows = self.opened.pop(producer)
        if commit:
            self.rows |= {offset: (key, value) for offset, key, value in rows}

    def fill(self, count: int, keys: int = 3) -> None:
        for number in range(count):
            self.append(b"key %d" % (number % keys), b"%d" % self.log.log_end_offset + b"." * 30)

    def flush(self) -> None:
        self.flushed = self.log.flush()

    def compact(self, *, flushed: bool = True) -> None:
        if flushed:
            self.flush()
        with self.watched():
            compaction.compact(self.log)

    def delete_below(self, offset: int) -> None:
        self.start_wanted = offset
        with self.watched():
            self.start = self.log.advance_start(offset)
        self.flushed = max(self.flushed, offset)

    def expire(self) -> None:
        with self.watched():
            retention.expire(self.log)


def compacts_again_and_merges(s: Store) -> None:
    s.fill(9)
    s.append(b"gone", b"v")
    s.compact()
    s.append(b"gone", None)
    s.fill(9)
    s.compact()
    s.fill(5)
    s.compact()


def compacts_what_nobody_flushed(s: Store) -> None:
    s.fill(4)
    s.flush()
    s.fill(8)
    s.compact(flushed=False)


def deletes(s: Store) -> None:
    s.fill(14)
    s.delete_below(9)
    s.fill(4)
    s.delete_below(16)
    s.expire()


def deletes_and_compacts(s: Store) -> None:
    s.fill(10)
    s.compact()
    s.delete_below(6)
    s.fill(5)
    s.compact()
    s.expire()


def compacts_transactions(s: Store) -> None:
    s.fill(3)
    s.append(b"key 0", b"aborted", producer=7)
    s.append(b"key 1", b"committed", producer=8)
    s.append(b"key 2", b"aborted", producer=7)
    s.end(7, commit=False)
    s.append(b"key 1", b"aborted", producer=7)
    s.end(8, commit=True)
    s.end(7, commit=False)
    s.fill(4, keys=2)
    s.compact()
    s.append(b"key 0", b"open", producer=9)
    s.fill(5)
    s.compact()


WORKLOADS = [
    compacts_again_and_merges,
    compacts_what_nobody_flushed,
    deletes,
    deletes_and_compacts,
    compacts_transactions,
]


def rows_of(log):
    names = ["offset", "key", "value"]
    parts = read_isolated(log, log.log_start_offset, log.log_end_offset, names, "read_committed")
    return [tuple(row.values()) for part in parts for row in part.to_pylist()]


def check_content(said: Said, log) -> None:
    """A reader gets all appended records, without those that have a later record of their key."""
    found, end = rows_of(log), log.log_end_offset
    assert said.flushed <= end <= said.end
    assert said.start <= log.log_start_offset <= max(said.start, said.start_wanted)
    assert tuple(t.producer_id for t in log.producers.open_transactions()) == said.opened
    assert {s.producer_id: s.last_sequence + 1 for s in log.producers.states()} == said.sequences
    assert [offset for offset, *_ in found] == sorted({offset for offset, *_ in found})
    assert all(said.rows[offset] == (key, value) for offset, key, value in found)
    stable = log.producers.last_stable_offset
    expected = {key: (o, value) for o, (key, value) in said.rows.items() if log.log_start_offset <= o < stable}
    last = {key: (offset, value) for offset, key, value in found}
    for key, (offset, value) in expected.items():
        if value is not None:
            assert last[key][0] == offset
        elif key in last:  # a tombstone may be gone; what it deleted may not be back
            assert last[key][1] is None


def check(disk: Disk, said: Said, kind: Crash) -> None:
    found = disk.after_crash(kind)
    env = Env(StillClock(), found)
    if kind is Crash.KILLED:  # nobody recovers while other processes have the store open: they go on
        reader = reopen(DIRECTORY, env, recovery_point=said.flushed, read_only=True, **SETTINGS)
        check_content(said, reader)
        writer = reopen(DIRECTORY, Env(StillClock(), found.after_crash(kind)), **SETTINGS)
        with writer.lock():
            check_content(said, writer)
    log = reopen(DIRECTORY, env, recovery_point=said.flushed, **SETTINGS)
    log.recover()
    check_content(said, log)
    assert list(log.verify()) == []
    left = [name for name in found.names if name.startswith(f"{DIRECTORY}/")]
    assert not [name for name in left if name.endswith((".cleaned", ".swap", ".tmp"))]

    before = found.state()
    again = reopen(DIRECTORY, env, recovery_point=said.flushed, **SETTINGS).recover()
    assert (again.cut_bytes, again.removed, again.rebuilt) == (0, (), ())
    assert found.state() == before

    appended(log, build([Record(0, 1000, b"last", b"v")]))
    log.roll()
    compaction.compact(log)
    rows = rows_of(log)
    assert len({key for _, key, _ in rows}) == len(rows)
    check_content(said._replace(rows=said.rows | {log.log_end_offset - 1: (b"last", b"v")}, end=1 << 60), log)


@pytest.mark.parametrize("kind", Crash)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_s11_every_crash_point_leaves_one_valid_version(workload, kind):
    store = Store()
    workload(store)
    assert len(store.points) > 40
    checked = set()
    for disk, said in store.points[list(Crash).index(kind) % EVERY :: EVERY]:
        found = disk.after_crash(kind)
        # The same files with the same promises need be looked at once.
        same = hash((frozenset(found.state().items()), said.end, said.flushed, said.start, said.opened))
        if same not in checked:
            checked.add(same)
            check(found, said, Crash.KILLED if kind is Crash.KILLED else Crash.LOST)
