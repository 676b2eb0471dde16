"""A follower that is far behind asks for more while it appends, and goes on whatever fails meanwhile."""

import errno
import itertools
import threading

from replication.errors import ErrorCode
from replication.model import TopicPartition
from replication.replica.fetcher import _Connection

from .site import T0, Site, on_loop, until


async def far_behind(site):
    """Broker 1 leads, 2 was away for long and is here again, and is not told yet. Returns them, and the log of 2."""
    one, two = await site.start(1, 2, **{"replica.fetch.max.bytes": "2000"})
    await site.create(replicas=(1, 2))
    await one.produce(b"a")
    await two.stop()
    for number in range(50):
        assert (await one.produce(b"%d" % number * 100, timeout_ms=20_000)).error_code == ErrorCode.NONE
    await two.start()
    return one, two, two.replicas.partitions()[T0].replica.log


@on_loop
async def test_while_it_appends_a_follower_that_is_far_behind_asks_for_more_and_counts_for_nothing(tmp_path):
    async with Site(tmp_path) as site:
        one, two, log = await far_behind(site)
        append, may_append = log.append_as_follower, threading.Event()

        def slowly(records):
            may_append.wait(10)
            return append(records)

        log.append_as_follower = slowly
        await site.tell(2, state=await site.stored())
        await until(lambda: one.role.state.followers[2].log_end_offset > 1)
        assert two.end == 1
        assert one.role.state.followers[2].log_end_offset < one.role.high_watermark
        assert one.role.state.isr == (1,)
        may_append.set()
        await until(lambda: 2 in one.role.state.isr)
        assert two.stored() == one.stored()


@on_loop
async def test_appends_that_fail_are_done_again_whatever_was_asked_ahead(tmp_path):
    async with Site(tmp_path) as site:
        one, two, log = await far_behind(site)
        append, calls = log.append_as_follower, itertools.count()

        def now_and_then(records):
            if next(calls) % 3 == 1:
                raise OSError(errno.EIO, "out of order")
            return append(records)

        log.append_as_follower = now_and_then
        await site.tell(2, state=await site.stored())
        await until(lambda: 2 in one.role.state.isr)
        assert two.stored() == one.stored()
        assert next(calls) > 6


@on_loop
async def test_what_was_asked_ahead_and_waited_takes_no_later_questions_place(tmp_path, monkeypatch):
    """Its append fails, and it asks anew, while the connection is busy with another partition's epochs."""
    ask, find_ends = _Connection._fetch, _Connection._ends
    may_fail, told, failed = threading.Event(), [], []
    other = TopicPartition("others", 0)

    async def fetch(self, client, fetches, questions):
        await ask(self, client, fetches, questions)
        if not told and any(role.replica.tp == T0 for role in fetches):
            told.append(T0)
            for connection in self._owner._connections:
                connection.is_idle = False  # so that this one takes it
            await site.tell(2, other, state=await site.stored(other))

    async def ends(self, client, asked):
        if any(role.replica.tp == other for role in asked):
            may_fail.set()
            await until(lambda: any(role.replica.tp == T0 for role in self._waiting))
        return await find_ends(self, client, asked)

    def append_at_the_second_try(records):
        if not failed:
            failed.append(T0)
            may_fail.wait(10)
            raise OSError(errno.EIO, "out of order")
        return append(records)

    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2, **{"replica.fetch.max.bytes": "2000", "num.io.threads": "8"})
        for tp in (T0, other):
            await site.create(tp, replicas=(1, 2))
            await one.produce(b"a", tp=tp)
        await two.stop()
        for number in range(50):
            await one.produce(b"%d" % number * 100, timeout_ms=20_000)
        await two.start()
        log = two.replicas.partitions()[T0].replica.log
        append, log.append_as_follower = log.append_as_follower, append_at_the_second_try
        monkeypatch.setattr(_Connection, "_fetch", fetch)
        monkeypatch.setattr(_Connection, "_ends", ends)
        await site.tell(2, state=await site.stored())
        await until(lambda: 2 in one.role.state.isr, within_s=8)
        assert two.stored() == one.stored()
