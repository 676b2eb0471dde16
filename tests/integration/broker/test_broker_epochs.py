"""A broker is believed if it names the epoch in which it lives; a controller, if the tree has its epoch."""

import asyncio

import pytest

from replication.errors import ErrorCode
from replication.model.cluster import topic_uuid
from replication.network.client import Client
from replication.protocol.apis import ApiKey
from replication.protocol.messages import FetchPartition, FetchRequest, FetchTopic
from tests.support.site import T0, Site, on_loop, until


async def fetch(leader, site, *, replica, epoch, offset):
    """The error code of a fetch from `offset` on, in the name of a follower."""
    client = Client("127.0.0.1", leader.port, "stranger", timeout_ms=20_000)
    rows = (FetchPartition(0, offset, 1000, -1),)
    topics = (FetchTopic("orders", topic_uuid(site.topic_ids["orders"]), rows),)
    try:
        request = FetchRequest(0, 0, topics, replica_id=replica, replica_epoch=epoch)
        answer = await client.call(ApiKey.FETCH, request)
        return answer.topics[0].partitions[0].error_code
    finally:
        client.close()


@on_loop
async def test_nobody_commits_records_in_the_name_of_a_follower(tmp_path):
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2, replica_lag_time_max_ms=60_000)
        await site.create(replicas=(1, 2))
        assert (await one.produce(b"a")).error_code is ErrorCode.NONE
        known = two.epoch
        await two.stop()
        assert (await one.produce(b"b", timeout_ms=1)).error_code is ErrorCode.REQUEST_TIMED_OUT

        for guess in (-1, 0, 1, known - 1, known + 1, known + (1 << 40), 2**63 - 1):
            code = await fetch(one, site, replica=2, epoch=guess, offset=2)
            assert code == ErrorCode.STALE_BROKER_EPOCH, guess

        assert one.role.high_watermark == 1
        await two.start()  # and whose epoch it is, that moves it
        assert await site.tell(2) is ErrorCode.NONE
        await until(lambda: one.role.high_watermark == 2)


def looks_of(epochs):
    return epochs._looks


@on_loop
async def test_a_look_at_the_tree_serves_all_who_ask_meanwhile(tmp_path):
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        epochs = one.replicas.broker_epochs
        asked = [epochs.is_current(broker, 7) for broker in range(500)]
        assert not any(await asyncio.gather(*asked))
        assert (looks := looks_of(epochs)) <= 2
        assert all(await asyncio.gather(*(epochs.is_current(1, one.epoch) for _ in range(500))))
        assert looks_of(epochs) == looks  # what is known is not looked up again
        one.replicas.disconnect()
        assert not await epochs.is_current(1, one.epoch)


@pytest.mark.parametrize("ahead", [5, 2**31 - 1])
@on_loop
async def test_a_controller_epoch_counts_if_the_tree_has_it(tmp_path, ahead):
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        await site.create(replicas=(1,))
        site.controller_epoch = ahead  # and the tree has 1; the epoch of the broker is the right one
        assert await site.stop_replica(1) is ErrorCode.STALE_BROKER_EPOCH
        assert T0 in one.replicas.partitions()
        await site.begin_term(2)
        await site.elect(1)
        assert (await one.produce(b"a")).error_code is ErrorCode.NONE
        site.controller_epoch = 1
        assert await site.stop_replica(1) is ErrorCode.STALE_CONTROLLER_EPOCH
        assert (await one.produce(b"b")).error_code is ErrorCode.NONE


@on_loop
async def test_a_broker_that_is_ahead_of_the_tree_comes_back_by_itself(tmp_path):
    """This happens after a tree was restored from a copy; before, also after one forged frame."""
    async with Site(tmp_path) as site:
        await site.start(1)
        await site.begin_term(900)
        await site.create(replicas=(1,))
        await site.begin_term(3)
        assert await site.stop_replica(1, delete=False) is ErrorCode.NONE
