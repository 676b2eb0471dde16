"""A follower's fetch from memory, without a task: it says what any other fetch says, and waits as long."""

import asyncio

import pytest

from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition
from replication.protocol.messages import FetchPartition
from replication.replica.leader.fetches import fetch, fetch_followed
from replication.replica.leader.results import FetchTerms
from tests.support.site import PATIENT, T0, Site, on_loop, until, write_at_once

OTHER = TopicPartition("other", 0)
ENOUGH = 1 << 20


async def led(site):
    """Broker 1, which leads two partitions; broker 3 is to follow them and does not run."""
    (one,) = await site.start(1, **PATIENT)
    for tp in (T0, OTHER):
        await site.create(tp, replicas=(1, 3), isr=(1,))
    return one


def terms(wait_ms=0, min_bytes=1, max_bytes=ENOUGH):
    return FetchTerms(3, 7, wait_ms, min_bytes, max_bytes)


def followed(one, offsets, asked_terms):
    return fetch_followed(one.replicas.leader, wanted(one, offsets), asked_terms, dict)


def wanted(one, offsets):
    epoch = one.replicas.leader(T0).state.leader_epoch
    return {tp: FetchPartition(0, offset, ENOUGH, epoch, log_start_offset=0) for tp, offset in offsets.items()}


def plain(found):
    return {tp: row._replace(records=bytes(row.records)) for tp, row in found.items()}


@on_loop
async def test_it_says_what_any_other_fetch_says(tmp_path):
    async with Site(tmp_path) as site:
        one = await led(site)
        for number in range(6):
            for tp in (T0, OTHER)[: 1 + number % 2]:
                await one.produce(b"%d" % number * 50, tp=tp, acks=1)
        ends = {tp: one.replicas.leader(tp).replica.end for tp in (T0, OTHER)}
        for first in range(ends[T0] + 1):
            for second in range(ends[OTHER] + 1):
                for limit in (1, 150, 400, ENOUGH):
                    offsets = {T0: first, OTHER: second}
                    found = followed(one, offsets, terms(max_bytes=limit))
                    expected = await fetch(one.replicas.leader, wanted(one, offsets), terms(max_bytes=limit))
                    if found is not None:
                        assert plain(found) == plain(expected)
                    assert found is not None or limit < ENOUGH


@on_loop
async def test_it_waits_and_tells_all_that_came_in_one_turn(tmp_path):
    async with Site(tmp_path) as site:
        one = await led(site)
        for tp in (T0, OTHER):
            await one.produce(b"a", tp=tp, acks=1)  # begins the leader epoch, with a fsync
        write_at_once(one.replicas.leader(T0).replica.host.disk)
        waiting = followed(one, {T0: 1, OTHER: 1}, terms(20_000))
        produced = [one.produce(b"x", tp=tp, acks=1) for tp in (T0, OTHER)]
        await asyncio.gather(*produced)
        found = await waiting
        assert all(row.records for row in found.values())
        await asyncio.sleep(0)
        assert not one.replicas.leader(T0).replica.followers
        assert not one.replicas.leader(OTHER).replica.followers


@on_loop
async def test_it_waits_for_so_many_bytes_but_no_longer_than_it_may(tmp_path):
    async with Site(tmp_path) as site:
        one = await led(site)
        waiting = followed(one, {T0: 0}, terms(300, min_bytes=10_000))
        await one.produce(b"x", acks=1)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        (row,) = (await waiting).values()
        assert (row.error_code, len(row.records) > 0) == (ErrorCode.NONE, True)
        waiting = followed(one, {T0: 1}, terms(20_000, min_bytes=1000))
        await one.produce(b"x" * 500, acks=1)
        await one.produce(b"x" * 500, acks=1)
        (row,) = (await waiting).values()
        assert len(row.records) > 1000


@on_loop
async def test_what_is_not_in_memory_comes_from_the_disk_after_all(tmp_path):
    async with Site(tmp_path) as site:
        one = await led(site)
        waiting = followed(one, {T0: 0}, terms(20_000))
        await one.produce(bytes(300_000), acks=1)  # more than is kept
        (row,) = (await waiting).values()
        assert len(row.records) > 300_000
        assert followed(one, {T0: 0}, terms()) is None


@on_loop
async def test_one_that_nobody_waits_for_is_forgotten(tmp_path):
    async with Site(tmp_path) as site:
        one = await led(site)
        waiting = followed(one, {T0: 0, OTHER: 0}, terms(20_000))
        replica = one.replicas.leader(T0).replica
        assert replica.followers
        waiting.cancel()
        await until(lambda: not replica.followers)
        await one.produce(b"x", acks=1)  # wakes nobody


@on_loop
async def test_it_hears_that_the_leader_leads_no_more(tmp_path):
    async with Site(tmp_path) as site:
        one = await led(site)
        waiting = followed(one, {T0: 0}, terms(20_000))
        one.replicas.partitions()[T0].leave_role()
        (row,) = (await waiting).values()
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("offset", [-1, 5])
@on_loop
async def test_what_is_to_be_refused_is_left_to_the_other_way(tmp_path, offset):
    async with Site(tmp_path) as site:
        one = await led(site)
        assert followed(one, {T0: offset}, terms()) is None
        assert followed(one, {TopicPartition("unknown", 0): 0}, terms()) is None


@on_loop
async def test_what_fails_while_it_waits_is_told(tmp_path):
    async with Site(tmp_path) as site:
        one = await led(site)

        def respond(found):
            raise ValueError("cannot be said")

        waiting = fetch_followed(one.replicas.leader, wanted(one, {T0: 0}), terms(20_000), respond)
        await one.produce(b"x", acks=1)
        with pytest.raises(ValueError, match="cannot be said"):
            await waiting


@on_loop
async def test_what_a_quota_may_hold_back_is_left_to_the_other_way(tmp_path):
    async with Site(tmp_path) as site:
        (one,) = await site.start(1, **PATIENT)
        config = {"leader.replication.throttled.replicas": "*"}
        await site.create(replicas=(1, 3), isr=(1,), config=config)
        await one.produce(b"x", acks=1)
        assert followed(one, {T0: 0}, terms()) is None
        assert followed(one, {T0: 1}, terms()) is not None  # there is nothing to hold back
