"""Followers over real sockets: what they copy, what they cut, when they are in sync; who is fenced."""

import asyncio
import errno
import itertools
from functools import partial

from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition
from replication.protocol.messages import FetchPartition
from replication.replica.follower.follower import Follower
from replication.replica.leader.results import FetchTerms
from tests.support.inside import fetchers
from tests.support.partition import appended
from tests.support.site import PATIENT, T0, Site, batch, on_loop, until, values_of, with_three, write_at_once


@on_loop
async def test_followers_copy_and_acks_all_waits_for_them(tmp_path):
    async with Site(tmp_path) as site:
        one, two, three = await with_three(site)
        for number in range(20):
            done = await one.produce(b"%d" % number, b"x")
            assert (done.error_code, done.base_offset) == (ErrorCode.NONE, 2 * number)
            assert two.end == three.end == 2 * number + 2  # it was acknowledged by both
        assert one.stored() == two.stored() == three.stored()
        await until(lambda: two.role.high_watermark == three.role.high_watermark == 40)
        assert values_of((await one.consume(38)).records) == [b"19", b"x"]


@on_loop
async def test_a_follower_that_comes_back_catches_up_and_joins_again(tmp_path):
    async with Site(tmp_path) as site:
        one, two, _ = await with_three(site, lag_ms=1000)
        await one.produce(b"a")
        await two.stop()
        assert (await one.produce(*[b"%d" % n for n in range(500)], timeout_ms=20_000)).error_code == ErrorCode.NONE
        await two.start()
        assert await site.tell(2, state=await site.stored()) == ErrorCode.NONE
        await until(lambda: 2 in one.role.state.isr)
        assert two.stored() == one.stored()
        assert 2 in (await site.stored()).isr
        await one.produce(b"z")
        assert two.end == 502


@on_loop
async def test_small_appends_wait_for_no_thread_and_others_do(tmp_path):
    async with Site(tmp_path) as site:
        one, two, three = await with_three(site)
        await one.produce(b"a")  # begins the leader epoch, with a fsync
        log, disk, in_thread = two.role.replica.log, two.role.replica.host.disk, []
        append = log.append_as_follower

        def noted(records, *, may_wait=True, **how):
            if may_wait:
                in_thread.append(len(records))
            return append(records, may_wait=may_wait, **how)

        log.append_as_follower = noted
        write_at_once(disk)
        for number in range(5):
            await one.produce(b"%d" % number)
        assert not in_thread
        await one.produce(bytes(40_000))
        assert len(in_thread) == 1
        disk.begin_write = lambda queue: False  # it is slow
        await one.produce(b"z")
        assert len(in_thread) == 2
        write_at_once(disk)
        await one.produce(b"y")
        assert len(in_thread) == 2
        assert one.stored() == two.stored() == three.stored()
        await until(lambda: two.role.jobs == 0 and two.role.high_watermark == 9)


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
async def test_appends_that_fail_are_done_again(tmp_path):
    async with Site(tmp_path) as site:
        one, two, log = await far_behind(site)
        calls = itertools.count()

        def now_and_then(append, records, **how):
            if next(calls) % 3 == 1:
                raise OSError(errno.EIO, "out of order")
            return append(records, **how)

        log.append_as_follower = partial(now_and_then, log.append_as_follower)  # in a thread, and in the event loop
        await site.tell(2, state=await site.stored())
        await until(lambda: 2 in one.role.state.isr)
        assert two.stored() == one.stored()
        assert next(calls) > 6


@on_loop
async def test_a_new_leader_has_all_and_the_old_one_cuts_what_was_not_committed(tmp_path):
    """R1, R2."""
    # By leader epoch, never to the high watermark
    async with Site(tmp_path) as site:
        one, two, three = await with_three(site)
        await one.produce(b"a", b"b")
        one.replicas.disconnect()  # deposed without knowing, and cut off from the others
        await two.stop()
        await three.stop()
        await site.tell(1, state=site.states[T0])  # refused: it has no epoch
        await two.start()
        await three.start()
        stored = await site.stored()
        for number in (2, 3):
            await site.tell(number, state=stored)
        log = one.replicas.partitions()[T0].replica.log
        appended(log, batch(b"lost"), leader_epoch=0)
        one.replicas.partitions()[T0].replica.note((0, 3))
        one.replicas.connect(one.tree, one.epoch)
        await site.elect(2, isr=(2, 3))
        await two.produce(b"c")
        await until(lambda: one.end == 3 and one.stored() == [b"a", b"b", b"c"])
        assert two.stored() == three.stored() == one.stored()
        await until(lambda: 1 in two.role.state.isr)


@on_loop
async def test_a_cut_that_fails_is_made_again_and_takes_nothing_else_along(tmp_path):
    """R2. It is in the ISR: who cut more would lose what was acknowledged."""
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2)
        await site.create(replicas=(1, 2))
        await one.produce(b"a", b"b")
        log = one.replicas.partitions()[T0].replica.log
        appended(log, batch(b"lost"), leader_epoch=0)
        one.replicas.partitions()[T0].replica.note((0, 3))
        cut, cuts = log.truncate_to, []

        def cut_at_the_second_try(offset):
            cuts.append(offset)
            if len(cuts) == 1:
                raise OSError(errno.EIO, "out of order")
            cut(offset)

        log.truncate_to = cut_at_the_second_try
        await site.elect(2, isr=(1, 2))
        await two.produce(b"c")
        await until(lambda: one.stored() == two.stored() == [b"a", b"b", b"c"])
        assert cuts == [2, 2]
        assert one.replicas.counters.lost_records == 0


@on_loop
async def test_a_fetch_of_another_epoch_or_life_is_fenced(tmp_path):
    """R5, R10."""
    async with Site(tmp_path) as site:
        one, two, _ = await with_three(site)
        await one.produce(b"a")
        leader, life = one.replicas.leader(T0), two.epoch

        def asked(epoch, replica=2, broker_epoch=life):
            answer = leader.admit(FetchPartition(0, 1, 100, epoch), FetchTerms(replica, broker_epoch))
            return ErrorCode.NONE if answer is None else answer.error_code

        assert asked(0) == ErrorCode.NONE
        assert asked(0, broker_epoch=life - 1) == ErrorCode.STALE_BROKER_EPOCH
        assert asked(7) == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert asked(0, replica=9) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await site.elect(1)
        leader = one.replicas.leader(T0)
        assert asked(0) == ErrorCode.FENCED_LEADER_EPOCH


@on_loop
async def test_a_consumer_that_knows_another_epoch_is_told_so(tmp_path):
    """R5: it may have read what the present leader never had."""
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        await site.create(replicas=(1,))
        await one.produce(b"a")
        await site.elect(1)

        async def answered(epoch):
            found = await one.replicas.fetch(
                {T0: FetchPartition(0, 0, 100, epoch)}, max_wait_ms=0, min_bytes=1, max_bytes=100
            )
            return found[T0].error_code, values_of(found[T0].records)

        assert await answered(0) == (ErrorCode.FENCED_LEADER_EPOCH, [])
        assert await answered(1) == await answered(-1) == (ErrorCode.NONE, [b"a"])
        assert await answered(2) == (ErrorCode.UNKNOWN_LEADER_EPOCH, [])


@on_loop
async def test_who_follows_a_leader_no_more_leaves_no_connection_to_it(tmp_path):
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2)
        await site.create(replicas=(1, 2))
        await one.produce(b"a")
        assert one.server.connections
        await site.stop_replica(2, delete=False)
        await until(lambda: not one.server.connections)
        await site.elect(1)  # and it follows again when it is told to
        await one.produce(b"b")
        assert two.end == 2


@on_loop
async def test_a_partition_that_comes_while_others_wait_at_the_leader_is_copied_at_once(tmp_path):
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2, **PATIENT)
        for name in ("a", "b", "c", "d"):
            tp = TopicPartition(name, 0)
            await site.create(tp, replicas=(1, 2))
            await until(lambda tp=tp: one.replicas.leader(tp).replica.followers)
            assert (await one.produce(b"1", tp=tp, timeout_ms=5000)).error_code == ErrorCode.NONE
        (fetcher,) = fetchers(two.replicas)._leaders.values()
        main, spare = fetcher._connections
        await one.produce(b"2", tp=TopicPartition("a", 0))  # the first connection is back, and takes over
        await until(lambda: spare.is_idle and len(main._roles) == 4)


@on_loop
async def test_a_leader_that_leads_no_more_is_one_line_and_not_one_per_partition(tmp_path, caplog):
    caplog.set_level("INFO", "replication.replica.follower.fetcher")
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2)
        tps = [TopicPartition(name, 0) for name in "abcdefghijklmnopqrst"]
        for tp in tps:
            await site.create(tp, replicas=(1, 2))
        await until(lambda: all(one.replicas.leader(tp).replica.followers for tp in tps))
        before, failed = len(caplog.messages), two.replicas.counters.failed_fetches
        for tp in tps:
            one.replicas.partitions()[tp].leave_role()
        await until(lambda: two.replicas.counters.failed_fetches >= failed + 3 * len(tps))
        told = [line for line in caplog.messages[before:] if "refuses to be followed" in line]
        assert 0 < len(told) < (two.replicas.counters.failed_fetches - failed) / 2


@on_loop
async def test_asking_a_leader_that_leads_no_more_costs_no_step_and_few_timers(tmp_path, monkeypatch):
    """While very many leaderships move, all followers ask again and again: that must not be what keeps them."""
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2)
        tps = [TopicPartition(name, 0) for name in "abcdefghijklmnopqrst"]
        for tp in tps:
            await site.create(tp, replicas=(1, 2))
        await until(lambda: all(one.replicas.leader(tp).replica.followers for tp in tps))
        counters = two.replicas.counters
        for tp in tps:
            one.replicas.partitions()[tp].leave_role()
        await until(lambda: counters.failed_fetches >= len(tps))
        steps, timers, loop = [], [], asyncio.get_running_loop()
        step, call_later = Follower.step, loop.call_later

        def counted(delay_s, act, *args):
            timers.extend([act] * act.__module__.startswith("replication.replica.follower"))
            return call_later(delay_s, act, *args)

        monkeypatch.setattr(Follower, "step", lambda *args: (steps.append(args), step(*args)))
        monkeypatch.setattr(loop, "call_later", counted)
        failed = counters.failed_fetches
        await until(lambda: counters.failed_fetches >= failed + 6 * len(tps))
        assert not steps
        assert 0 < len(timers) < (counters.failed_fetches - failed) / 4
        for tp in tps:  # and it leads again
            await site.elect(1, tp)
        assert (await one.produce(b"a", tp=tps[3])).error_code == ErrorCode.NONE
        assert two.stored(tps[3]) == [b"a"]


@on_loop
async def test_followers_keep_up_with_many_partitions_under_load(tmp_path):
    """I10: one fetcher per partition, whatever comes and goes."""
    async with Site(tmp_path) as site:
        one, two, three = await site.start(1, 2, 3)
        tps = [T0._replace(partition=number) for number in range(12)]
        for tp in tps:
            await site.create(tp, replicas=(1, 2, 3))

        async def load(tp):
            for number in range(40):
                done = await one.produce(b"%d" % number * 50, tp=tp, timeout_ms=20_000)
                assert (done.error_code, done.base_offset) == (ErrorCode.NONE, number)

        await asyncio.gather(*map(load, tps))
        for tp in tps:
            assert one.stored(tp) == two.stored(tp) == three.stored(tp)
        came = [each.replicas.counters.replication_bytes_in for each in (two, three)]
        assert one.replicas.counters.replication_bytes_out == sum(came) > 0
        assert one.replicas.counters.bytes_out == 0
