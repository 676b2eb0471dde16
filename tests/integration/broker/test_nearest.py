"""A follower shows the records that it knows to be committed to the consumers of its rack, as soon as they are."""

import asyncio

from replication.config.broker import RACK_AWARE_SELECTOR
from replication.errors import ErrorCode
from replication.protocol.messages import FetchPartition
from replication.replica.machine.follower import Phase
from tests.support.site import T0, Site, on_loop, until, values_of

SELECTOR = {"replica.selector.class": RACK_AWARE_SELECTOR}


def error_of(fetched):
    return ErrorCode(fetched.error_code)


@on_loop
async def test_a_follower_shows_what_it_knows_to_be_committed_and_nothing_else(tmp_path):
    async with Site(tmp_path) as site:
        one, two, three = await site.start(1, 2, 3, **SELECTOR)
        await site.create(replicas=(1, 2, 3))
        await one.produce(b"a", b"b")
        await until(lambda: two.role.high_watermark == 2)
        assert values_of((await two.consume(0, rack="r")).records) == [b"a", b"b"]
        assert error_of(await two.consume(0)) is ErrorCode.NOT_LEADER_OR_FOLLOWER  # it has named no rack

        await three.stop()  # and is in the ISR: what follows is not committed
        await one.produce(b"c", acks=1)
        await until(lambda: two.end == 3)
        shown = await two.consume(1, rack="r")
        assert (values_of(shown.records), shown.high_watermark) == ([b"a", b"b"], 2)
        assert error_of(await two.consume(3, rack="r")) is ErrorCode.OFFSET_NOT_AVAILABLE
        assert error_of(await two.consume(4, rack="r")) is ErrorCode.OFFSET_OUT_OF_RANGE
        waiting = asyncio.ensure_future(two.consume(2, rack="r", max_wait_ms=20_000))
        assert values_of((await waiting).records) == [b"c"]  # once 3 has left the ISR


@on_loop
async def test_a_consumer_that_knows_another_epoch_is_refused_and_one_that_waits_hears_of_the_next(tmp_path):
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2, **SELECTOR)
        await site.create(replicas=(1, 2))
        await one.produce(b"a")
        await site.elect(1)
        await until(lambda: (two.role.high_watermark, two.role.state.phase) == (1, Phase.FETCHING))

        async def asked(epoch):
            found = await two.replicas.fetch(
                {T0: FetchPartition(0, 0, 100, epoch)}, max_wait_ms=0, min_bytes=1, max_bytes=100, rack="r"
            )
            return error_of(found[T0])

        assert [await asked(epoch) for epoch in (0, 1, 2)] == [
            ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NONE, ErrorCode.UNKNOWN_LEADER_EPOCH,
        ]  # fmt: skip
        waiting = asyncio.ensure_future(two.consume(1, rack="r", max_wait_ms=20_000))
        await asyncio.sleep(0)
        await site.elect(2)
        assert error_of(await waiting) is ErrorCode.NOT_LEADER_OR_FOLLOWER


@on_loop
async def test_a_follower_hears_of_a_commit_at_once(tmp_path):
    """And not with the next record, or when its fetch has waited for one in vain."""
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2, **SELECTOR, **{"replica.fetch.wait.max.ms": 20_000})
        await site.create(replicas=(1, 2))
        for number in range(5):
            waiting = asyncio.ensure_future(two.consume(number, rack="r", max_wait_ms=20_000))
            await one.produce(b"%d" % number)
            async with asyncio.timeout(5):
                assert values_of((await waiting).records) == [b"%d" % number]
