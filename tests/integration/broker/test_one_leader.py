"""One broker that leads: records in, records out, and who waits for what."""

import asyncio

from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition
from replication.model.times import SpecialTime
from tests.support.site import T0, Site, on_loop, until, values_of
from tests.support.waits import stays


@on_loop
async def test_what_is_appended_is_committed_and_read_as_it_was_stored(tmp_path):
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        await site.create(replicas=(1,))
        first, second = await asyncio.gather(one.produce(b"a", b"b"), one.produce(b"c"))
        assert (first.error_code, first.base_offset, second.base_offset) == (ErrorCode.NONE, 0, 2)
        found = await one.consume()
        assert (values_of(found.records), found.high_watermark) == ([b"a", b"b", b"c"], 3)
        assert values_of((await one.consume(2)).records) == [b"c"]


@on_loop
async def test_a_fetch_waits_for_records_and_gives_up_in_time(tmp_path):
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        await site.create(replicas=(1,))
        empty = await one.consume(max_wait_ms=50)
        assert (empty.error_code, bytes(empty.records)) == (ErrorCode.NONE, b"")
        waiting = asyncio.ensure_future(one.consume(max_wait_ms=10_000))
        await stays(lambda: not waiting.done(), 0.05)
        await one.produce(b"news", acks=1)
        assert values_of((await asyncio.wait_for(waiting, 2)).records) == [b"news"]


@on_loop
async def test_a_fetch_waits_for_as_many_bytes_as_it_says(tmp_path):
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        await site.create(replicas=(1,))
        waiting = asyncio.ensure_future(one.consume(max_wait_ms=10_000, min_bytes=2000))
        await one.produce(b"x" * 1000)
        await stays(lambda: not waiting.done(), 0.05)
        await one.produce(b"y" * 1000)
        assert len(values_of((await asyncio.wait_for(waiting, 2)).records)) == 2


@on_loop
async def test_errors_are_codes(tmp_path):
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        await site.create(replicas=(1,))
        assert (await one.produce(b"a", tp=TopicPartition("no", 0))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await one.consume(7)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        broken = await one.replicas.append({T0: bytearray(b"nonsense" * 20)}, acks=1, timeout_ms=10)
        assert broken[T0].error_code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)


@on_loop
async def test_a_leader_that_is_deposed_refuses_and_lets_nobody_wait(tmp_path):
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        await site.create(replicas=(1, 2))  # 2 is not there: nothing is committed
        parked = asyncio.ensure_future(one.consume(max_wait_ms=10_000))
        waiting = asyncio.ensure_future(one.produce(b"a"))
        await stays(lambda: not waiting.done(), 0.1)
        await site.elect(2)
        assert (await waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await parked).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await one.produce(b"b")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@on_loop
async def test_acks_all_needs_min_insync_replicas_and_time_runs_out(tmp_path):
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        await site.create(replicas=(1, 2), config={"min.insync.replicas": "2"})
        assert (await one.produce(b"a", timeout_ms=50)).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert bytes((await one.consume()).records) == b""  # not committed: not read
        # 2 never fetches: it leaves the ISR, which the tree says, too
        await until(lambda: one.replicas.leader(T0).state.isr == (1,))
        assert (await site.stored()).isr == (1,)
        assert (await one.produce(b"b")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await one.produce(b"c", acks=1)).error_code == ErrorCode.NONE


@on_loop
async def test_a_restarted_broker_serves_what_it_had(tmp_path):
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        await site.create(replicas=(1,))
        await one.produce(b"a")
        await one.stop()
        await one.start()
        assert (await one.consume()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await site.tell(1) == ErrorCode.NONE
        assert values_of((await one.consume()).records) == [b"a"]


@on_loop
async def test_offsets_by_time_and_by_epoch_and_records_deleted(tmp_path):
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        await site.create(replicas=(1,))
        await one.produce(b"a", b"b")  # at 1000, 1001
        await site.elect(1)
        await one.produce(b"c")  # at 1000, in epoch 1
        look = one.replicas.offset_for_time
        assert (await look(T0, SpecialTime.LATEST))[2:] == (3, 1)
        assert (await look(T0, SpecialTime.EARLIEST))[2:] == (0, 0)
        assert await look(T0, 1001) == (ErrorCode.NONE, 1001, 1, 0)
        assert (await look(T0, SpecialTime.MAX_TIMESTAMP))[:3] == (ErrorCode.NONE, 1001, 1)
        assert (await look(T0, 5000)).offset == -1
        assert (await look(T0, SpecialTime.LATEST, leader_epoch=7)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert one.replicas.end_offset_for_epoch(T0, 0)[1:] == (0, 2)
        assert one.replicas.end_offset_for_epoch(T0, 1)[1:] == (1, 3)
        await site.elect(1)
        assert one.replicas.end_offset_for_epoch(T0, 2)[1:] == (2, 3)  # it has no record yet
        assert one.replicas.end_offset_for_epoch(T0, 3)[1:] == (-1, -1)
        assert one.replicas.end_offset_for_epoch(T0, 3, replica_id=2)[1:] == (1, 3)  # a follower may be ahead
        assert one.replicas.end_offset_for_epoch(T0, 0, leader_epoch=0)[0] == ErrorCode.FENCED_LEADER_EPOCH
        assert await one.replicas.delete_records(T0, 1, timeout_ms=100) == (ErrorCode.NONE, 1)
        assert (await one.consume(0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await look(T0, SpecialTime.EARLIEST)).offset == 1
