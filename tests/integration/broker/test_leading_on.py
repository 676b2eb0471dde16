"""A leader that goes on leading in another leader epoch: who waits for it waits on. The epoch alone says nothing."""

import asyncio
import threading
from dataclasses import replace

import pytest

from logstore.records.batch import TRANSACTIONAL
from logstore.records.marker import Marker
from replication.errors import ErrorCode
from replication.model.times import SpecialTime
from replication.protocol.messages import FIRST_REQUEST, FetchPartition
from replication.replica.leader.offsets import low_watermark
from replication.replica.leader.purgatory import PendingProduce
from replication.replica.leader.results import FetchTerms
from replication.replica.machine import isr
from tests.integration.broker.test_followed_fetches import as_found, with_silent_follower
from tests.integration.broker.test_groups import coordinators
from tests.integration.broker.test_small_commits import Outcomes, commit, offsets_of, ready
from tests.integration.broker.test_small_produce import produce, result
from tests.support.peer import Peer, hang_up
from tests.support.site import PATIENT, T0, Site, on_loop, until, values_of


async def led_with_one_away(site, **config):
    """Broker 1 leads, and counts on broker 2, which is not there: nothing is committed."""
    (one,) = await site.start(1, **PATIENT)
    await site.create(replicas=(1, 2), config=config)
    return one


def waiting(call):
    return asyncio.ensure_future(call)


@on_loop
async def test_appends_wait_until_the_isr_of_a_later_epoch_has_them(tmp_path):
    async with Site(tmp_path) as site:
        one = await led_with_one_away(site)
        await one.produce(b"opens", acks=1, attributes=TRANSACTIONAL, producer=(7, 0, 0))
        leader, marked = one.role, PendingProduce([T0])
        small, large = waiting(one.produce(b"a")), waiting(one.produce(b"b" * 100_000))  # the loop, or a thread
        peer = await Peer.connect(one.port)
        peer.send(*produce(b"of one batch", acks=-1))
        leader.end_transaction(Marker(7, 0, commits=True, coordinator_epoch=0, is_above=False), marked)
        await until(lambda: one.end == 5)
        await site.elect(1)
        await site.elect(1)
        assert (one.role is leader, leader.state.leader_epoch, leader.high_watermark) == (True, 2, 0)
        assert not any((small.done(), large.done(), marked.is_over))
        await site.elect(1, isr=(1,))
        rows = [await small, await large, marked.results[T0]]
        assert [row.error_code for row in rows] == [ErrorCode.NONE] * 3
        assert result(await peer.frame())[0] == ErrorCode.NONE
        await hang_up()


@on_loop
async def test_what_waits_is_committed_by_the_followers_of_the_new_epoch_and_by_no_former_word(tmp_path):
    async with Site(tmp_path) as site:
        one, three = await with_silent_follower(site, "120000")
        sent = waiting(one.produce(b"a"))
        await until(lambda: one.end == 1)
        await three.ask({T0: 0})
        await site.elect(1)
        await three.ask({T0: 0})
        assert (one.role.high_watermark, sent.done()) == (0, False)
        await three.ask({T0: 1})
        assert (await sent).error_code is ErrorCode.NONE


@on_loop
async def test_too_few_replicas_in_the_new_epoch_are_named_after_the_append(tmp_path):
    async with Site(tmp_path) as site:
        one = await led_with_one_away(site, **{"min.insync.replicas": "2"})
        sent = waiting(one.produce(b"a"))
        await until(lambda: one.end == 1)
        await site.elect(1, isr=(1,))
        assert (await sent).error_code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


@on_loop
async def test_a_time_out_counts_from_the_request_in_any_epoch(tmp_path):
    async with Site(tmp_path) as site:
        one = await led_with_one_away(site)
        sent = waiting(one.produce(b"a", timeout_ms=300))
        await until(lambda: one.end == 1)
        await site.elect(1)
        assert (await sent).error_code is ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize("between", [2, -1])
@on_loop
async def test_who_led_no_more_in_between_refuses_what_waited(tmp_path, between):
    """It may have cut the records."""
    async with Site(tmp_path) as site:
        one = await led_with_one_away(site)
        sent = waiting(one.produce(b"a"))
        await until(lambda: one.end == 1)
        leader = one.role
        await site.elect(between)
        await site.elect(1, isr=(1,))
        assert (await sent).error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert one.role is not leader


@on_loop
async def test_appends_that_are_under_way_when_an_epoch_begins_are_in_it_or_before_it(tmp_path):
    """None is refused meanwhile, and the log has them in the order in which they came."""
    async with Site(tmp_path) as site:
        (one,) = await site.start(1, **PATIENT)
        await site.create(replicas=(1,))
        queue, held = one.replicas.partitions()[T0].replica, threading.Event()
        sent = [waiting(one.produce(b"0"))]
        blocked = waiting(queue.call(held.wait))
        sent += [waiting(one.produce(b"%d" % n * (1 + n % 2 * 40_000))) for n in range(1, 5)]
        await asyncio.sleep(0)
        electing = waiting(site.elect(1))
        await until(lambda: one.replicas.partitions()[T0].known_leader_epoch == 1)
        sent += [waiting(one.produce(b"%d" % n)) for n in range(5, 9)]
        await asyncio.sleep(0)
        held.set()
        await blocked
        await electing
        sent.append(waiting(one.produce(b"9")))
        assert [(await each).error_code for each in sent] == [ErrorCode.NONE] * 10
        assert [value[:1] for value in one.stored()] == [b"%d" % n for n in range(10)]
        assert [start.epoch for start in queue.log.epochs.starts] == [0, 1]


@on_loop
async def test_a_deletion_of_records_waits_for_the_followers_of_the_new_epoch(tmp_path):
    async with Site(tmp_path) as site:
        one, three = await with_silent_follower(site, "120000")
        await one.produce(b"a", acks=1)
        await three.ask({T0: 1})
        deleted = waiting(one.replicas.delete_records(T0, 1, timeout_ms=20_000))
        await until(lambda: one.replicas.partitions()[T0].replica.start == 1)
        await site.elect(1)
        await three.ask({T0: 1})
        assert not deleted.done()  # its log starts at 0
        await site.elect(1, isr=(1,))
        assert await deleted == (ErrorCode.NONE, 1)


@on_loop
async def test_a_consumer_waits_on_unless_it_knows_the_epoch_that_is_over(tmp_path):
    async with Site(tmp_path) as site:
        (one,) = await site.start(1, **PATIENT)
        await site.create(replicas=(1,))
        await one.produce(b"a")
        parked = waiting(one.consume(1, max_wait_ms=20_000))
        knowing = waiting(
            one.replicas.fetch({T0: FetchPartition(0, 1, 100, 0)}, max_wait_ms=20_000, min_bytes=1, max_bytes=100)
        )
        await until(lambda: len(one.role.replica.consumers) == 2)
        await site.elect(1)
        assert (await knowing)[T0].error_code is ErrorCode.FENCED_LEADER_EPOCH
        assert not parked.done()
        await one.produce(b"b")
        assert values_of((await parked).records) == [b"b"]


@pytest.mark.parametrize("epoch", [0, -1])
@on_loop
async def test_a_follower_asks_anew_in_the_new_epoch(tmp_path, epoch):
    """A fetch of the former epoch is answered at once, and shows nothing of the follower's present log."""
    async with Site(tmp_path) as site:
        one, three = await with_silent_follower(site, "120000")
        session = one.replicas.fetch_session(0, FIRST_REQUEST, (3, three.life), "")
        terms = FetchTerms(3, three.life, 20_000)
        parked = session.fetch({T0: FetchPartition(0, 0, 100, epoch, log_start_offset=0)}, (), terms, as_found)
        await until(lambda: one.role.replica.followers)
        await site.elect(1)
        assert (await parked)[T0].error_code is ErrorCode.FENCED_LEADER_EPOCH
        assert not one.role.caught_up
        await one.produce(b"a", acks=1)
        assert one.role.high_watermark == 0


@on_loop
async def test_what_followers_told_in_the_former_epoch_is_forgotten_with_it(tmp_path):
    async with Site(tmp_path) as site:
        one, three = await with_silent_follower(site, "120000")
        await three.ask({T0: 0})
        leader, stored = one.role, site.states[T0]
        assert (set(leader.caught_up), low_watermark(leader)) == ({3}, 0)
        leader.lead_on(replace(stored, leader_epoch=1), (1, 3))
        assert (dict(leader.caught_up), low_watermark(leader)) == ({}, -1)
        assert leader.state.followers[3].log_end_offset == isr.UNKNOWN_OFFSET


@on_loop
async def test_the_end_of_a_log_is_told_at_once_in_the_new_epoch(tmp_path):
    """Nobody else has led: what was committed is known. A leader that has only begun must learn it first."""
    async with Site(tmp_path) as site:
        one, three = await with_silent_follower(site, "120000")
        assert (await one.replicas.offset_for_time(T0, SpecialTime.LATEST)).offset == 0
        sent = waiting(one.produce(b"a"))
        await until(lambda: one.end == 1)
        await site.elect(1)
        assert (await one.replicas.offset_for_time(T0, SpecialTime.LATEST))[2:] == (0, 1)
        await three.ask({T0: 1})
        assert (await sent).error_code is ErrorCode.NONE
        assert (await one.replicas.offset_for_time(T0, SpecialTime.LATEST)).offset == 1


@on_loop
async def test_commits_of_offsets_wait_on(tmp_path):
    async with coordinators(tmp_path, 1, 2, **PATIENT) as all_:
        groups = await ready(all_, 1, 2)
        await all_.site.brokers.pop(2).stop()
        many = Outcomes(groups, [commit("g", {T0: 5})])
        alone = waiting(all_.commit(1, 7, group="h"))
        await asyncio.sleep(0)
        await all_.elect(1)
        await asyncio.sleep(0)
        assert not alone.done()
        await all_.elect(1, isr=[1])
        assert (await alone).error is ErrorCode.NONE
        assert await many.all() == [ErrorCode.NONE]
        assert (offsets_of(groups, "g"), offsets_of(groups, "h")) == ({T0: 5}, {T0: 7})
