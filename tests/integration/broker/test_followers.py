"""Followers over real sockets: what they copy, what they cut, when they are in sync; who is fenced."""

import asyncio
import errno
import itertools
import shutil
import time
from dataclasses import replace

import pytest

from replication.coordination import cluster, nodes
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition
from replication.protocol.messages import FetchPartition
from replication.replica.follower.follower import Follower
from replication.replica.leader.offsets import Special, for_time
from replication.replica.leader.results import FetchTerms, Isolation
from tests.support.site import T0, Site, batch, on_loop, until, values_of


async def with_three(site, **config):
    brokers = await site.start(1, 2, 3)
    await site.create(replicas=(1, 2, 3), config=config)
    return brokers


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
async def test_consumers_see_only_what_all_in_sync_have(tmp_path):
    async with Site(tmp_path) as site:
        one, two, _ = await with_three(site)
        await one.produce(b"a")
        await two.stop()
        waiting = asyncio.ensure_future(one.produce(b"b", timeout_ms=20_000))
        await until(lambda: one.end == 2)
        assert (await one.consume(1)).high_watermark == 1  # 2 is in the ISR, and does not have it
        assert not waiting.done()
        assert (await waiting).error_code == ErrorCode.NONE  # until it has left
        assert set((await site.stored()).isr) == {1, 3}
        assert values_of((await one.consume(1)).records) == [b"b"]


@on_loop
async def test_a_follower_that_comes_back_catches_up_and_joins_again(tmp_path):
    async with Site(tmp_path) as site:
        one, two, _ = await with_three(site)
        await one.produce(b"a")
        await two.stop()
        assert (
            await one.produce(*[b"%d" % n for n in range(500)], timeout_ms=20_000)
        ).error_code == ErrorCode.NONE
        await two.start()
        assert await site.tell(2, state=await site.stored()) == ErrorCode.NONE
        await until(lambda: 2 in one.role.state.isr)
        assert two.stored() == one.stored()
        assert 2 in (await site.stored()).isr
        await one.produce(b"z")
        assert two.end == 502


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
        log.append_as_leader(batch(b"lost"), leader_epoch=0)
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
        log.append_as_leader(batch(b"lost"), leader_epoch=0)
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
async def test_a_replica_that_is_behind_the_leaders_log_begins_anew(tmp_path):
    """R15."""
    async with Site(tmp_path) as site:
        one, two, three = await with_three(site)
        await one.produce(b"a")
        await two.stop()
        for number in range(10):
            await one.produce(b"%d" % number, timeout_ms=20_000)
        assert (await one.replicas.delete_records(T0, 8, timeout_ms=5000)) == (ErrorCode.NONE, 8)
        assert three.replicas.partitions()[T0].replica.start == 8
        await two.start()
        await site.tell(2, state=await site.stored())
        await until(lambda: two.end == 11 and 2 in one.role.state.isr)
        assert two.replicas.partitions()[T0].replica.start == 8
        assert two.stored()[-3:] == [b"7", b"8", b"9"]


@on_loop
async def test_who_deletes_records_waits_for_no_follower_that_has_left_the_isr(tmp_path):
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2)
        await site.create(replicas=(1, 2))
        await one.produce(b"a", b"b")
        await two.stop()
        assert (await one.replicas.delete_records(T0, 1, timeout_ms=6000)) == (ErrorCode.NONE, 1)
        assert one.role.state.isr == (1,)


@on_loop
async def test_a_follower_that_has_moved_its_start_says_so_when_it_asks_next(tmp_path):
    """Who deletes records waits for that."""
    async with Site(tmp_path) as site:
        one, _ = await site.start(1, 2)
        await site.create(replicas=(1, 2))
        await one.produce(*[b"a"] * 4)
        said, note = [], one.role._note_start

        def noted(replica, offset):
            said.append(offset)
            note(replica, offset)

        one.role._note_start = noted
        late = 0
        for offset in (1, 2, 3):
            said.clear()
            assert (await one.replicas.delete_records(T0, offset, timeout_ms=5000)).low_watermark == offset
            late += offset - 1 in said
        assert late <= 1  # it asked in that very moment


# What has to wait until a follower asks again takes longer than a test.
PATIENT = {"replica_fetch_wait_max_ms": 60_000, "replica_lag_time_max_ms": 120_000}


@on_loop
async def test_a_partition_that_comes_while_others_wait_at_the_leader_is_copied_at_once(tmp_path):
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2, **PATIENT)
        for name in ("a", "b", "c", "d"):
            tp = TopicPartition(name, 0)
            await site.create(tp, replicas=(1, 2))
            await until(lambda tp=tp: one.replicas.leader(tp).replica.followers)
            assert (await one.produce(b"1", tp=tp, timeout_ms=5000)).error_code == ErrorCode.NONE
        (fetcher,) = two.replicas._fetchers._leaders.values()
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
async def test_followers_hear_at_once_where_a_log_begins_now(tmp_path):
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2, **PATIENT)
        await site.create(replicas=(1, 2))
        await one.produce(b"a", b"b", b"c")
        await until(lambda: one.replicas.leader(T0).replica.followers)
        done = await one.replicas.delete_records(T0, 2, timeout_ms=5000)
        assert (done.error_code, done.low_watermark) == (ErrorCode.NONE, 2)
        assert two.replicas.partitions()[T0].replica.start == 2


@on_loop
async def test_a_follower_that_asks_after_a_log_start_moved_hears_of_it_at_once(tmp_path):
    """Its question was on the way when the others were woken: it tells where its own log begins."""
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2, **PATIENT)
        await site.create(replicas=(1, 2))
        await one.produce(b"a", b"b")
        await until(lambda: one.role.high_watermark == 2)
        two.replicas._fetchers.close()  # from here on the test asks in its name

        async def ask(own_start, wait_ms):
            terms = {"replica_id": 2, "replica_epoch": two.epoch, "max_wait_ms": wait_ms}
            spec = FetchPartition(0, 2, 1 << 20, log_start_offset=own_start)
            return (await one.replicas.fetch({T0: spec}, min_bytes=1, max_bytes=1 << 20, **terms))[T0]

        deleting = asyncio.create_task(one.replicas.delete_records(T0, 1, timeout_ms=50_000))
        await until(lambda: one.replicas.partitions()[T0].replica.start == 1)
        async with asyncio.timeout(20):
            found = await ask(own_start=0, wait_ms=60_000)
        assert (found.error_code, found.log_start_offset) == (ErrorCode.NONE, 1)
        await ask(own_start=1, wait_ms=0)
        assert await deleting == (ErrorCode.NONE, 1)


@on_loop
async def test_a_follower_that_cannot_move_its_log_start_asks_again_after_pauses(tmp_path):
    """The leader answers it at once, for there is something to tell; its disk and its log are spared nevertheless."""
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2, **PATIENT | {"replica_fetch_backoff_ms": 200})
        await site.create(replicas=(1, 2))
        await one.produce(b"a", b"b")
        await until(lambda: one.role.high_watermark == 2)
        log = two.replicas.partitions()[T0].replica.log
        tries, advance = [], log.advance_start

        def fail_at_first(offset):
            tries.append(time.monotonic())
            if len(tries) < 6:
                raise OSError(errno.EIO, "the disk says no")
            advance(offset)

        log.advance_start = fail_at_first
        assert await one.replicas.delete_records(T0, 1, timeout_ms=50_000) == (ErrorCode.NONE, 1)
        assert tries[5] - tries[0] > 0.4


@on_loop
async def test_a_deleted_replica_is_gone_and_can_be_made_again_under_the_same_name(tmp_path):
    """R29."""
    async with Site(tmp_path) as site:
        one, two, _ = await with_three(site)
        await one.produce(b"a")
        for broker in site.brokers.values():
            assert await site.stop_replica(broker.id) == ErrorCode.NONE
            assert not (tmp_path / f"broker-{broker.id}" / "orders-0").exists()
            assert T0 not in broker.replicas.partitions()
        del site.topic_ids["orders"]
        await site.tree.delete("/brokers/topics/orders/partitions/0/state")
        await site.create(replicas=(1, 2, 3))
        assert (await one.produce(b"b")).base_offset == 0
        assert two.stored() == [b"b"]


@on_loop
async def test_replicas_that_come_are_counted_and_those_that_go_are_gone_for_good(tmp_path):
    """R34: what was said before a replica went, or before it came back, and is heard late, changes nothing."""
    async with Site(tmp_path) as site:
        one, two, three = await site.start(1, 2, 3)
        await site.create(replicas=(1, 2))
        await one.produce(b"a")
        first = site.states[T0]
        site.replicas[T0] = (1, 2, 3)
        await site.elect(1)
        await until(lambda: one.role.state.isr == (1, 2, 3))
        assert three.stored() == [b"a"]
        site.replicas[T0] = (2, 3)
        await site.elect(2, isr=(2, 3))
        gone = site.states[T0].leader_epoch
        assert await site.stop_replica(1, leader_epoch=gone) == ErrorCode.NONE
        assert not (tmp_path / "broker-1" / "orders-0").exists()
        await two.produce(b"b")

        site.replicas[T0] = (1, 2)
        assert await site.tell(1, state=first, is_new=True) == ErrorCode.STALE_CONTROLLER_EPOCH
        assert T0 not in one.replicas.partitions()

        site.replicas[T0] = (2, 3, 1)
        await site.elect(2)
        await until(lambda: two.role.state.isr == (2, 3, 1))
        assert await site.stop_replica(1, leader_epoch=gone) == ErrorCode.FENCED_LEADER_EPOCH
        assert one.stored() == [b"a", b"b"]


@on_loop
async def test_what_an_earlier_topic_left_on_a_broker_that_was_away_is_hidden(tmp_path):
    """R29."""
    async with Site(tmp_path) as site:
        one, two, _ = await with_three(site)
        await one.produce(b"old")
        await two.stop()
        for number in (1, 3):
            await site.stop_replica(number)
        del site.topic_ids["orders"]
        await site.tree.delete("/brokers/topics/orders/partitions/0/state")
        await site.create(replicas=(1, 2, 3), isr=(1, 3))
        await one.produce(b"new")
        await two.start()
        assert await site.tell(2) == ErrorCode.NONE
        await until(lambda: two.end == 1)
        assert two.stored() == [b"new"]


@on_loop
async def test_requests_of_former_controllers_and_for_former_lives_are_refused(tmp_path):
    """R18, R23, R32."""
    async with Site(tmp_path) as site:
        one, *_ = await with_three(site)
        assert await site.tell(1, epoch=one.epoch - 1) == ErrorCode.STALE_BROKER_EPOCH
        assert await site.tell(1) == ErrorCode.STALE_CONTROLLER_EPOCH  # the same leader epoch again
        await site.begin_term(5)
        await site.elect(2)
        site.controller_epoch = 4
        assert await site.tell(1) == ErrorCode.STALE_CONTROLLER_EPOCH
        assert isinstance(one.role, Follower)


@pytest.mark.parametrize("silence", ["leader", "follower"])
def test_a_broker_that_loses_its_session_serves_nothing_until_it_is_told_anew(tmp_path, silence):
    """R24, R25."""

    @on_loop
    async def run():
        async with Site(tmp_path) as site:
            one, two, _ = await with_three(site)
            await one.produce(b"a")
            broker = one if silence == "leader" else two
            broker.replicas.disconnect()
            assert (await one.produce(b"b", timeout_ms=200)).error_code in (
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                ErrorCode.REQUEST_TIMED_OUT,
            )
            broker.replicas.connect(broker.tree, broker.epoch)
            await site.elect(1)
            assert (await one.produce(b"c")).error_code == ErrorCode.NONE

    run()


@on_loop
async def test_a_session_that_ends_while_a_role_is_taken_takes_it_along(tmp_path):
    """(R24) Or else a broker that stood still would lead alone, in an epoch that the cluster has left behind."""
    async with Site(tmp_path) as site:
        one, *_ = await with_three(site)
        alone = replace(site.states[T0], leader_epoch=7, isr=(1,))
        partition = one.replicas.partitions()[T0]
        for waits_for in (one.replicas._set, partition.replica):
            one.replicas.connect(one.tree, one.epoch)
            end_session_in_the_middle(one.replicas, waits_for)
            await site.tell(1, state=alone)
            assert partition.role is None
            assert partition.known_leader_epoch is None


def end_session_in_the_middle(replicas, waits_for):
    """While this is waited for, once."""
    name = "learn_configs" if waits_for is replicas._set else "call"
    wait = getattr(waits_for, name)

    async def waited(*args, **options):
        delattr(waits_for, name)
        replicas.disconnect()
        return await wait(*args, **options)

    setattr(waits_for, name, waited)


@on_loop
async def test_a_broker_that_lost_writes_says_so_while_a_topic_of_it_cannot_be_understood(tmp_path):
    """R19: the ISRs there count on it, and no controller has decided about them."""
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2)
        other = TopicPartition("others", 0)
        for tp in (T0, other):
            await site.create(tp, replicas=(1, 2))
            await one.produce(b"a", tp=tp)
        await two.stop()
        node = nodes.topic_path("others")
        found = await site.tree.get(node)
        await site.tree.set(node, b"{ not json")
        await two.start(lost_writes=True)
        two.replicas._set.dir.has_lost_writes = True
        await site.elect(1, isr=(1,))
        assert two.replicas.has_lost_writes
        await site.tree.set(node, found.data)
        await site.elect(1, other, isr=(1,))
        assert not two.replicas.has_lost_writes


@on_loop
async def test_a_broker_whose_replica_is_gone_says_so_until_it_was_told_of_all(tmp_path):
    """R19: an empty disk must not lead, nor count as in sync."""
    async with Site(tmp_path) as site:
        one, two, _ = await with_three(site)
        await one.produce(b"a")
        await two.stop()
        shutil.rmtree(tmp_path / "broker-2")
        await two.start(lost_writes=None)
        assert two.replicas.has_lost_writes
        await site.elect(1, isr=(1, 3))  # what the controller does with it
        await until(lambda: 2 in one.role.state.isr)
        assert two.stored() == [b"a"]
        assert not two.replicas.has_lost_writes
        two.replicas._set.dir.has_lost_writes = True
        await two.replicas._set.maybe_forget_losses(site.tree)
        assert two.replicas.has_lost_writes, "said in another session, it is not said"
        assert not (await cluster.read_brokers(site.tree))[2].lost_writes


@on_loop
async def test_a_replica_that_vanishes_under_a_running_broker_takes_no_role(tmp_path):
    """R19."""
    async with Site(tmp_path) as site:
        one, *_ = await with_three(site)
        one.replicas._set.dir.topic_ids.clear()
        await site.elect(2)
        assert (
            await site.tell(1, state=replace(site.states[T0], leader_epoch=9))
            == ErrorCode.KAFKA_STORAGE_ERROR
        )


@on_loop
async def test_a_leader_that_is_cut_off_from_the_tree_commits_nothing_that_one_in_sync_lacks(tmp_path):
    """R6, R25, R31: it goes on while all in sync fetch, and stops as soon as one does not."""
    async with Site(tmp_path) as site:
        one, two, _ = await with_three(site)
        one.replicas.suspend()
        assert (await one.produce(b"a")).error_code == ErrorCode.NONE
        await two.stop()
        assert (await one.produce(b"b", timeout_ms=2500)).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert (one.role.high_watermark, (await site.stored()).isr) == (1, (1, 2, 3))
        one.replicas.resume()
        await until(lambda: one.role.high_watermark == 2)
        assert set((await site.stored()).isr) == {1, 3}


@on_loop
async def test_who_waits_while_the_isr_shrinks_below_the_minimum_is_told_that_the_records_are_there(tmp_path):
    """R27."""
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2)
        await site.create(replicas=(1, 2), config={"min.insync.replicas": "2"})
        await one.produce(b"a")
        await two.stop()
        done = await one.produce(b"b", timeout_ms=20_000)
        assert (done.error_code, done.base_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, 1)
        assert (await one.produce(b"c")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert one.end == 2


@on_loop
async def test_committed_records_that_an_unclean_leader_lacks_are_counted_when_they_are_cut(tmp_path):
    """R16, R17."""
    async with Site(tmp_path) as site:
        one, two, three = await with_three(site)
        await one.produce(b"a")
        await three.stop()
        await one.produce(b"b", b"c", timeout_ms=20_000)
        await until(lambda: two.role.high_watermark == 3)
        await three.start()
        await site.elect(3, isr=(3,))
        await three.produce(b"d")
        await until(lambda: one.stored() == two.stored() == [b"a", b"d"])
        assert one.replicas.counters.lost_records == two.replicas.counters.lost_records == 2


async def with_a_follower_that_does_not_know_what_is_committed(site):
    """All three have three records; 2 and 3 would hear that they are committed when they ask next, which takes long."""
    one, two, three = await site.start(1, 2, 3, **PATIENT)
    await site.create(replicas=(1, 2, 3))
    assert (await one.produce(b"a", b"b", b"c", timeout_ms=20_000)).error_code == ErrorCode.NONE
    assert (two.end, two.role.high_watermark) == (three.end, three.role.high_watermark) == (3, 0)
    await one.kill()
    return two, three


@on_loop
async def test_the_end_is_not_told_before_the_true_high_watermark_is_known(tmp_path):
    """R13: a consumer that heard of an earlier end than before would start again from somewhere else."""
    async with Site(tmp_path) as site:
        two, three = await with_a_follower_that_does_not_know_what_is_committed(site)
        await three.kill()
        await site.elect(2, isr=(2, 3))

        async def end():
            asked = {"replica_id": -1, "leader_epoch": -1, "isolation": Isolation.READ_UNCOMMITTED}
            found = await for_time(lambda tp: two.role, T0, Special.LATEST, **asked)
            return found.error_code, found.offset

        assert await end() == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
        await three.start()
        await site.tell(3)
        await until(lambda: two.role.state.is_settled)
        assert await end() == (ErrorCode.NONE, 3)


@on_loop
async def test_a_follower_that_restarts_before_it_knows_what_is_committed_keeps_it_and_leads(tmp_path):
    """R1: with a log cut to the high watermark that it knew, all that was acknowledged would be gone."""
    async with Site(tmp_path) as site:
        two, three = await with_a_follower_that_does_not_know_what_is_committed(site)
        await three.kill()
        await two.kill()
        await two.start()
        assert await site.tell(2) == ErrorCode.NONE  # it follows 1, which is gone
        assert (two.role.high_watermark, two.end) == (0, 3)
        await site.elect(2, isr=(2,))
        assert values_of((await two.consume()).records) == [b"a", b"b", b"c"]
        assert (await two.produce(b"d")).base_offset == 3


@on_loop
async def test_the_same_leader_in_a_new_epoch_is_reconciled_with_too(tmp_path):
    """R4."""
    async with Site(tmp_path) as site:
        one, two, three = await with_three(site)
        await one.produce(b"a")
        three.replicas.partitions()[T0].leave_role()
        log = three.replicas.partitions()[T0].replica.log
        log.append_as_leader(batch(b"never sent"), leader_epoch=0)
        await site.elect(1)
        await one.produce(b"b")
        await until(lambda: three.stored() == two.stored() == [b"a", b"b"])


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
