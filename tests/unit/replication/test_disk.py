"""The threads of a broker's disk: order within a lane, batches, errors; and who waits for a commit."""

import asyncio
import threading

import pytest

from replication.replica.disk import Disk
from replication.replica.purgatory import CommitWaits, Countdown


def with_disk(test):
    async def go():
        disk = Disk(4)
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

    def done(self):
        pass


def test_a_lane_works_in_order_and_what_waits_goes_together():
    async def run(disk):
        lane, log, gate = disk.lane(), [], threading.Event()
        disk.submit(lane, first := Counting(log))
        blocked = disk.call(lane, gate.wait)
        first.members.append("a")
        await asyncio.sleep(0.01)
        assert not first.is_open
        disk.submit(lane, second := Counting(log))
        await asyncio.sleep(0.01)
        assert second.is_open  # the lane is busy: it may still be joined
        second.members += ["b", "c"]
        gate.set()
        await blocked
        await disk.call(lane, lambda: None)
        assert log == [("a",), ("b", "c")]

    with_disk(run)


def test_lanes_and_readers_do_not_wait_for_each_other():
    async def run(disk):
        gate, lanes = threading.Event(), [disk.lane() for _ in range(4)]
        before = disk.call(lanes[0], lambda: 0)
        blocked = disk.call(lanes[1], gate.wait)
        beside = disk.call(lanes[2], lambda: 1)
        assert [await before, await beside] == [0, 1]
        assert await disk.call(lanes[3], lambda: 2) == 2
        assert await disk.read(lambda: 3) == 3
        behind = disk.call(lanes[1], lambda: 4)
        await asyncio.sleep(0.05)
        assert not blocked.done()
        assert not behind.done()
        gate.set()
        assert await blocked
        assert await behind == 4

    with_disk(run)


def test_errors_come_to_who_asked_and_the_lane_goes_on():
    async def run(disk):
        def fail():
            raise ValueError("no")

        lane = disk.lane()
        failing, fine = disk.call(lane, fail), disk.call(lane, lambda: 3)
        with pytest.raises(ValueError, match="no"):
            await failing
        assert await fine == 3
        cancelled = disk.call(lane, lambda: 4)
        cancelled.cancel()
        assert await disk.call(lane, lambda: 5) == 5

    with_disk(run)


class Wait:
    is_over = False

    def __init__(self, end_offset):
        self.end_offset = end_offset


def test_waits_end_in_order_and_those_that_are_over_are_left_out():
    waits = CommitWaits()
    one, two, three = Wait(1), Wait(5), Wait(9)
    for wait in (one, two, three):
        waits.add(wait)
    two.is_over = True
    assert waits.reached(0) == []
    assert waits.reached(5) == [one]
    assert waits.all() == [three]
    assert len(waits) == 0
    waits.add(three)
    three.is_over = True
    waits.sweep()
    assert len(waits) == 0


def test_a_countdown_calls_once():
    calls = []
    countdown = Countdown(2, lambda: calls.append(1))
    countdown.one_less()
    assert calls == []
    countdown.one_less()
    assert calls == [1]
