"""Every crash point of several workloads: recovery makes of what is left a beginning of what was written.

Laws: nothing that was flushed is missing; nothing is there that was never written; indexes lead to the right
batches; a second recovery changes nothing; the log takes appends again. (S1, S2, S6, S7, S12, S13, S16, S23)
"""

import itertools
from pathlib import Path

import pytest

from logstore.env import Env
from logstore.log.segments.directory import create
from tests.support.disk import Crash, Disk, PowerCut, StillClock
from tests.support.partition import TOPIC_ID, appended, batch, contents, reopen
from tests.support.repeats import times

ROOT = Path("/store")
DIRECTORY = ROOT / "t-0"
SEEDS = times(1, 2, "PYLOG_CRASH_SEEDS")  # tears per crash point
EVERY = times(8, 1, "PYLOG_CRASH_EVERY")  # crash point of each kind; half of them by kinds together
SETTINGS = {"segment_bytes": 400, "index_interval_bytes": 100, "max_message_bytes": 400}


class History:
    """The history of a workload: every state that the log ever had, and how much of it was flushed."""

    def __init__(self) -> None:
        self.states: list[list[tuple[int, bytes]]] = [[]]
        self.flushed = 0

    def will_append(self, values: list[bytes]) -> None:
        state = self.states[-1]
        for value in values:  # batch by batch: a killed process may leave some of them
            state = [*state, (len(state), value)]
            self.states.append(state)

    def will_truncate(self, offset: int) -> None:
        self.flushed = min(self.flushed, offset)
        self.states.append(self.states[-1][:offset])


class Writer:
    """The operations of a workload, noted before they are done."""

    def __init__(self, env: Env, history: History) -> None:
        self.history, self.count = history, itertools.count()
        create(DIRECTORY, topic_id=TOPIC_ID, env=env)
        env.files.fsync(ROOT)
        self.log = reopen(DIRECTORY, env, **SETTINGS)
        self.is_owner = False

    def append(self, batches: int, size: int = 30, epoch: int = 0) -> None:
        values = [b"%d" % next(self.count) + b"." * size for _ in range(batches)]
        self.history.will_append(values)
        data = bytearray().join(batch(v) for v in values)
        self.is_owner = not self.is_owner  # every other one as a broker does it
        appended(self.log, data, leader_epoch=epoch, is_owner=self.is_owner)

    def truncate(self, offset: int) -> None:
        self.history.will_truncate(offset)
        self.log.truncate_to(offset)

    def flush(self) -> None:
        self.history.flushed = self.log.flush()


def appends_only(w: Writer) -> None:
    for _ in range(4):
        w.append(2)


def rolls_and_flushes(w: Writer) -> None:
    for number in range(6):
        w.append(3)
        if number % 2:
            w.flush()


def one_append_over_three_segments(w: Writer) -> None:
    w.append(1)
    w.flush()
    w.append(9)


def truncates(w: Writer) -> None:
    w.append(6)
    w.flush()
    w.append(3)
    w.truncate(4)
    w.append(2)
    w.flush()
    w.append(1)


def changes_leaders(w: Writer) -> None:
    for epoch in range(4):
        w.append(2, epoch=epoch)
        w.log.roll()
        w.flush()


def large_batches(w: Writer) -> None:
    for size in (300, 10, 250):
        w.append(2, size=size)
    w.flush()
    w.append(1, size=300)


WORKLOADS = [
    appends_only,
    rolls_and_flushes,
    one_append_over_three_segments,
    truncates,
    changes_leaders,
    large_batches,
]


def run(workload, crash_at: int | None, seed: int) -> tuple[Disk, History, bool]:
    disk, history = Disk(crash_at=crash_at, seed=seed), History()
    disk.mkdir(ROOT)
    try:
        workload(Writer(Env(StillClock(), disk), history))
    except PowerCut:
        return disk, history, False
    return disk, history, True


def check_recovery(disk: Disk, history: History, kind: Crash) -> None:
    found = disk.after_crash(kind)
    if found.stat(DIRECTORY / "partition.metadata") is None:
        assert not history.flushed
        return
    env = Env(StillClock(), found)
    log = reopen(DIRECTORY, env, recovery_point=history.flushed, **SETTINGS)
    report = log.recover()
    left = contents(log)
    assert report.log_end_offset == log.log_end_offset == len(left)
    assert len(left) >= history.flushed
    assert any(state[: len(left)] == left for state in history.states)
    assert not list(log.verify())
    assert [start.start_offset < len(left) for start in log.epochs.starts] == [True] * len(log.epochs.starts)

    before = found.state()
    again = reopen(DIRECTORY, env, recovery_point=history.flushed, **SETTINGS).recover()
    assert (again.cut_bytes, again.removed, again.rebuilt) == (0, (), ())
    assert found.state() == before

    for offset, value in left:
        assert contents(log, offset, max_bytes=1)[0] == (offset, value)
    appended(log, batch(b"more"))
    assert contents(log) == [*left, (len(left), b"more")]


@pytest.mark.parametrize("kind", Crash)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_crash_point_recovers_to_a_beginning_of_what_was_written(workload, kind):
    for crash_at in itertools.count(1 + list(Crash).index(kind) % EVERY, EVERY):
        for seed in range(SEEDS if kind is Crash.TORN else 1):
            disk, history, finished = run(workload, crash_at, seed)
            check_recovery(disk, history, kind)
        if finished:
            break
    assert crash_at > 20


@pytest.mark.parametrize("kind", Crash)
def test_a_crash_during_recovery_is_recovered_from_by_recovery(kind):
    for first in itertools.count(20, 7):
        disk, history, finished = run(truncates, first, seed=first)
        if finished:
            break
        for second in itertools.count(1):
            left = disk.after_crash(kind)
            left.crash_at = left.calls + second
            try:
                reopen(DIRECTORY, Env(StillClock(), left), recovery_point=history.flushed, **SETTINGS).recover()
            except PowerCut:
                check_recovery(left, history, kind)
                continue
            break


def test_a_killed_process_needs_no_recovery_the_next_append_cuts_what_it_left():
    for crash_at in itertools.count(1):
        disk, history, finished = run(rolls_and_flushes, crash_at, seed=crash_at)
        if finished:
            break
        if disk.stat(DIRECTORY / "partition.metadata") is None:
            continue
        env = Env(StillClock(), disk.after_crash(Crash.KILLED))
        log = reopen(DIRECTORY, env, **SETTINGS)
        left = contents(log)
        assert any(state[: len(left)] == left for state in history.states)
        appended(log, batch(b"more"))
        assert contents(log) == [*left, (len(left), b"more")]
