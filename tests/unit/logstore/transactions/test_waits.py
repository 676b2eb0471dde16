"""Waits for writers and drivers that died, went silent, or cannot be seen from here, and where there is none."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

import logstore
from logstore import TransactionAbortedError
from logstore.env import SYSTEM, Env, OsFiles
from tests.support.disk import StillClock
from tests.support.inside import die, journal_of
from tests.support.transactions import HOST, alive, is_settled, part, values

# One of another container.
UNSEEN = "elsewhere 1 1"


def test_the_writer_is_gone_so_anyone_may_abort_it(store, path):
    with logstore.open(path) as other:
        dead = part(other, ["x"], driver=alive())
        store.transactions.complete_or_abort()
        assert dead.producer in store.transactions.state().attempts
        die(other)
        assert store.transactions.complete_or_abort() == 1
    assert is_settled(store)


def test_what_is_prepared_lives_as_long_as_its_driver(store, path):
    """Spark may end an idle worker long before the driver commits."""
    with logstore.open(path) as other:
        prepared = part(other, ["x"], driver=alive()).prepare()
    assert store.transactions.complete_or_abort() == 0
    store.transactions.commit([prepared])
    gone = part(store, ["y"], batch_id=1, run="r2", driver=alive())
    prepared = gone.prepare()
    with WithDriver(store, gone, f"{HOST} 4194304 1"):
        assert store.transactions.complete_or_abort() == 1
    with pytest.raises(TransactionAbortedError, match="the driver of the query is gone"):
        store.transactions.commit([prepared])
    assert values(store) == ["x"]


class Meddled(OsFiles):
    """Files that have something happen, once, before somebody looks whether a process lives."""

    act = None

    def lock(self, path, **how):
        act, name = self.act, str(path).rpartition("/")[2]
        if act is not None and name.startswith(".holder-"):
            self.act = None
            act()
        return super().lock(path, **how)


def test_who_is_prepared_and_ends_while_somebody_looks_is_not_taken_for_dead(store, path):
    """Spark may end a worker with its task."""
    files, prepared = Meddled(), []
    with logstore.open(path) as worker, logstore.open(path, env=Env(files=files)) as watcher:
        task = part(worker, ["x"], driver=alive())

        def end():
            prepared.append(task.prepare())
            die(worker)

        files.act = end
        assert watcher.transactions.complete_or_abort() == 0
        store.transactions.commit(prepared)
    assert values(store) == ["x"]


class WithDriver:
    """Note another driver for an attempt: one that never was."""

    def __init__(self, store, transaction, driver):
        self.store, self.producer, self.driver = store, transaction.producer, driver

    def __enter__(self):
        journal = journal_of(self.store)
        with journal.changing() as state:
            attempt = state.attempts[self.producer]
            changed = replace(attempt, owner=replace(attempt.owner, driver=self.driver))
            journal.append([["open", changed.to_json()]])

    def __exit__(self, *error):
        pass


def test_nobody_is_aborted_for_being_slow_while_it_is_seen_to_live(path):
    """A batch job of two hours: one task writes, another one has been waiting for it for long."""
    clock = StillClock(SYSTEM.clock.now_ms())
    with logstore.open(path, env=Env(clock)) as store:
        done = part(store, ["x"], driver=alive(), task="0").prepare()
        slow = part(store, ["y"], driver=alive(), task="1")
        clock.time_ms += 2 * 3_600_000
        assert store.transactions.complete_or_abort() == 0
        store.transactions.commit([done, slow.prepare()])
        assert values(store) == ["x", "y"]


def test_a_query_that_was_stopped_does_not_hold_readers_for_ever(path):
    """Everything is prepared, the driver lives, and never commits: Spark's abort() of streams may get lost."""
    clock = StillClock(SYSTEM.clock.now_ms())
    with logstore.open(path, env=Env(clock)) as store:
        part(store, ["x"], driver=alive()).prepare()
        clock.time_ms += 59_000
        assert store.transactions.complete_or_abort() == 0
        clock.time_ms += 2_000
        assert store.transactions.complete_or_abort() == 1
        assert is_settled(store)


def test_a_batch_whose_driver_cannot_be_seen_is_timed_out(path):
    clock = StillClock(SYSTEM.clock.now_ms())
    with logstore.open(path, env=Env(clock)) as store:
        part(store, ["x"], driver=UNSEEN).prepare()
        clock.time_ms += 61_000
        assert store.transactions.complete_or_abort() == 1


def test_a_task_without_rows_yet_keeps_its_batch_alive(path):
    """One task is done, the other computes for hours before its first row: neither is timed out."""
    clock = StillClock(SYSTEM.clock.now_ms())
    with logstore.open(path, env=Env(clock)) as store, logstore.open(path, env=Env(clock)) as worker:
        done = part(store, ["x"], driver=alive()).prepare()
        part(store, ["z"], name="other", driver=alive()).prepare()
        slow = part(worker, [], driver=alive(), task="1")
        with worker.transactions.at_work(slow):
            clock.time_ms += 2 * 3_600_000
            assert store.transactions.complete_or_abort() == 1  # that of the other batch
            worker.append("a", pa.table({"value": ["y"]}), transaction=slow)
            prepared = slow.prepare()
        store.transactions.commit([done, prepared])
        assert values(store) == ["x", "y"]


def test_a_process_may_be_at_work_on_several_batches(path):
    """Sail runs many tasks in one process."""
    clock = StillClock(SYSTEM.clock.now_ms())
    with logstore.open(path, env=Env(clock)) as store, logstore.open(path, env=Env(clock)) as worker:
        for name in ("long", "short", "over"):
            part(store, ["x"], name=name, driver=alive()).prepare()
        at_work = worker.transactions.at_work
        with at_work(part(worker, [], name="long", driver=alive(), task="1")):
            with at_work(part(worker, [], name="short", driver=alive(), task="1")):
                with at_work(part(worker, [], name="short", driver=alive(), task="2")):
                    clock.time_ms += 61_000
                assert store.transactions.complete_or_abort() == 1  # "over"
            assert store.transactions.complete_or_abort() == 1  # "short"
        assert store.transactions.complete_or_abort() == 1


def test_a_task_that_is_over_keeps_nobody_waiting(path):
    clock = StillClock(SYSTEM.clock.now_ms())
    with logstore.open(path, env=Env(clock)) as store, logstore.open(path, env=Env(clock)) as worker:
        part(store, ["x"], driver=UNSEEN).prepare()
        with worker.transactions.at_work(part(worker, [], driver=UNSEEN, task="1")):
            clock.time_ms += 59_000
        clock.time_ms += 2_000
        assert store.transactions.complete_or_abort() == 1


class Jumping(StillClock):
    """Wall time that jumps by itself."""

    jump_ms = 0

    def now_ms(self) -> int:
        return self.time_ms + self.jump_ms


def test_a_clock_that_jumps_ends_nobody_on_this_machine_and_keeps_nobody(path):
    """(S17) Waits go by monotonic time."""
    clock = Jumping(SYSTEM.clock.now_ms())
    with logstore.open(path, env=Env(clock)) as store:
        part(store, ["x"], driver=UNSEEN).prepare()
        clock.jump_ms = 3_600_000
        assert store.transactions.complete_or_abort() == 0
        clock.jump_ms = -3_600_000
        clock.time_ms += 61_000
        assert store.transactions.complete_or_abort() == 1
