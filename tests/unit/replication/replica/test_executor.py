"""The threads of a broker's disk: order within a queue, batches, errors; and who waits for a commit."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from logstore.env import Env, OsFiles
from replication.errors import ErrorCode
from replication.replica.leader.purgatory import CommitWait, PendingProduce, PendingProduces
from replication.replica.leader.results import AppendResult
from replication.replica.storage.blocked_time import BlockedTime
from replication.replica.storage.executor import PATIENCE_MS, PATIENCE_S, DiskExecutor, JobError
from tests.support.site import until
from tests.support.waits import stays


def with_disk(test):
    async def go():
        disk = DiskExecutor(4)
        async with asyncio.timeout(20):
            await test(disk)
            await disk.close()

    asyncio.run(go())


class Counting:
    """A job that others join until it goes."""

    def __init__(self, log):
        self.members, self.log, self.is_open = [], log, True

    def seal(self):
        self.is_open = False

    def run(self):
        self.log.append(tuple(self.members))

    def fail(self, error):
        raise error

    def done(self):
        pass


def test_a_lane_works_in_order_and_what_waits_goes_together():
    async def run(disk):
        queue, log, gate = disk.queue(), [], threading.Event()
        disk.submit(queue, first := Counting(log))
        blocked = disk.call(queue, gate.wait)
        first.members.append("a")
        await until(lambda: not first.is_open)
        disk.submit(queue, second := Counting(log))
        await stays(lambda: second.is_open, 0.01)  # the queue is busy: it may still be joined
        second.members += ["b", "c"]
        gate.set()
        await blocked
        await disk.call(queue, lambda: None)
        assert log == [("a",), ("b", "c")]

    with_disk(run)


def test_lanes_and_readers_do_not_wait_for_each_other():
    async def run(disk):
        gate, queues = threading.Event(), [disk.queue() for _ in range(4)]
        before = disk.call(queues[0], lambda: 0)
        blocked = disk.call(queues[1], gate.wait)
        beside = disk.call(queues[2], lambda: 1)
        assert [await before, await beside] == [0, 1]
        assert await disk.call(queues[3], lambda: 2) == 2
        assert await disk.read(lambda: 3) == 3
        behind = disk.call(queues[1], lambda: 4)
        await stays(lambda: not (blocked.done() or behind.done()), 0.05)
        gate.set()
        assert await blocked
        assert await behind == 4

    with_disk(run)


def test_errors_come_to_who_asked_and_the_lane_goes_on():
    async def run(disk):
        def fail():
            raise ValueError("no")

        queue = disk.queue()
        failing, fine = disk.call(queue, fail), disk.call(queue, lambda: 3)
        with pytest.raises(ValueError, match="no"):
            await failing
        assert await fine == 3
        cancelled = disk.call(queue, lambda: 4)
        cancelled.cancel()
        assert await disk.call(queue, lambda: 5) == 5

    with_disk(run)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (MemoryError(), MemoryError),
        (SystemExit(1), JobError),
        (KeyboardInterrupt(), JobError),
        (asyncio.CancelledError(), JobError),
        (StopIteration(), JobError),
        (GeneratorExit(), JobError),
    ],
)
def test_whatever_a_job_raises_its_caller_is_told_and_the_writer_goes_on(raised, told):
    """An exception that would end the task, the loop or the process of the caller comes as an error that names it."""

    async def run(disk):
        def fail():
            raise raised

        queue, other = disk.queue(), disk.queue()
        failing, behind, beside = disk.call(queue, fail), disk.call(queue, lambda: 1), disk.call(other, lambda: 2)
        with pytest.raises(told) as found:
            await failing
        assert raised in (found.value, found.value.__cause__)
        assert [await behind, await beside] == [1, 2]
        assert await disk.call(queue, lambda: 3) == 3

    with_disk(run)


def test_a_caller_is_told_also_where_what_comes_before_fails():
    async def run(disk):
        def fail():
            raise ValueError("no")

        assert await disk.call(disk.queue(), lambda: 1, then=fail) == 1

    with_disk(run)


def test_waits_end_in_order_and_those_that_are_over_are_left_out():
    request, over = PendingProduce(["a"]), PendingProduce([])
    waits, (one, two, three) = (
        PendingProduces(),
        [CommitWait(end, AppendResult(), request) for end in (1, 5, 9)],
    )
    for wait in (one, two, three):
        waits.add(wait)
    assert waits.reached(0) == []
    assert waits.reached(5) == [one, two]
    assert waits.all() == [three]
    assert len(waits) == 0
    waits.add(three)
    waits.add(CommitWait(10, AppendResult(), over))
    waits.sweep()
    assert waits.all() == [three]


def test_a_produce_request_is_answered_when_each_partition_has_a_result():
    async def run():
        request = PendingProduce(["a", "b"])
        request.settle("a", AppendResult(base_offset=1))
        answer = request.wait(dict, -1)
        request.settle("a", AppendResult(base_offset=2))
        assert not answer.done()
        request.settle("b", AppendResult(base_offset=3))
        assert await answer == {"a": AppendResult(base_offset=1), "b": AppendResult(base_offset=3)}

    asyncio.run(run())


def test_a_request_is_over_when_each_partition_has_a_result():
    request = PendingProduce(["a", "b"])
    request.settle("a", AppendResult())
    assert not request.is_over
    request.settle("a", AppendResult())
    assert not request.is_over
    request.settle("b", AppendResult())
    assert request.is_over


def test_the_time_of_a_request_ends_and_what_comes_later_is_nobodys():
    async def run():
        request = PendingProduce(["a", "b"])
        request.settle("b", AppendResult(base_offset=3))
        found = await request.wait(dict, 1)
        request.settle("a", AppendResult(base_offset=2))
        assert found == {
            "a": AppendResult(ErrorCode.REQUEST_TIMED_OUT),
            "b": AppendResult(base_offset=3),
        }

    asyncio.run(run())


def test_a_response_that_cannot_be_made_is_an_error_of_its_request():
    def fail(results):
        raise ValueError("no")

    async def run():
        request = PendingProduce(["a"])
        answer = request.wait(fail, -1)
        request.settle("a", AppendResult())
        with pytest.raises(ValueError, match="no"):
            await answer

    asyncio.run(run())


def test_a_request_that_was_waited_for_is_freed_without_a_look_for_garbage():
    async def run():
        request = PendingProduce(["a"])
        answer = request.wait(dict, -1)
        request.settle("a", AppendResult())
        await answer
        assert not gc.get_referrers(request)

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()


class Syncing(OsFiles):
    is_syncing = False


def may_write(disk, queue, write=lambda: None):
    """May the loop write? Then it does."""
    may = disk.begin_write(queue)
    if may:
        write()
        disk.end_write()
    return may


def test_the_event_loop_writes_where_nothing_is_under_way_and_no_fsync_runs():
    async def run():
        files = Syncing()
        disk = DiskExecutor(2, Env(files=files))
        queue, gate = disk.queue(), threading.Event()
        assert may_write(disk, queue)
        blocked = disk.call(queue, gate.wait)
        assert not may_write(disk, queue)
        gate.set()
        await blocked
        assert may_write(disk, queue)
        files.is_syncing = True
        assert not may_write(disk, queue)
        files.is_syncing = False
        assert may_write(disk, queue)
        await disk.close()

    asyncio.run(run())


def test_after_a_write_that_waited_for_the_disk_the_threads_write_for_a_while():
    async def run():
        disk = DiskExecutor(2)
        queue = disk.queue()
        assert may_write(disk, queue)
        assert may_write(disk, queue, lambda: time.sleep(2 * PATIENCE_S))  # the loop stands
        assert not may_write(disk, queue)
        await disk.close()

    asyncio.run(run())


def test_a_write_that_others_kept_from_the_cpu_says_nothing_of_the_disk(monkeypatch):
    async def run():
        disk = DiskExecutor(2)
        queue, blocked_ms = disk.queue(), iter([7, 8, 8, 9 + PATIENCE_MS])
        monkeypatch.setattr(BlockedTime, "ms", lambda self: next(blocked_ms))
        assert may_write(disk, queue, lambda: time.sleep(2 * PATIENCE_S))
        assert may_write(disk, queue, lambda: time.sleep(2 * PATIENCE_S))
        assert not may_write(disk, queue)
        await disk.close()

    asyncio.run(run())


def test_a_thread_that_sleeps_is_blocked_and_one_that_has_no_cpu_is_not():
    blocked = BlockedTime()
    before_ms = blocked.ms()
    time.sleep(0.05)
    assert blocked.ms() - before_ms >= 49
    if sys.platform == "linux":
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * os.cpu_count())]
        try:
            before_ms, began_s, began_cpu_s = blocked.ms(), time.monotonic(), time.thread_time()
            while time.monotonic() - began_s < time.thread_time() - began_cpu_s + 0.05:
                pass  # until others have had the CPU for so long
            assert blocked.ms() - before_ms < 10
        finally:
            for process in busy:
                process.kill()
                process.wait()
    blocked.close()


def test_what_is_let_go_of_without_a_close_leaves_no_file_open():
    gc.collect()  # what other tests have left
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        BlockedTime()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
