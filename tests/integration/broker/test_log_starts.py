"""Where the logs of a partition's replicas start: records that are deleted, and followers that hear of it."""

import asyncio
import errno
import time

from replication.errors import ErrorCode
from replication.protocol.messages import FetchPartition
from tests.support.inside import fetchers
from tests.support.site import PATIENT, T0, Site, on_loop, until, with_three


@on_loop
async def test_a_replica_that_is_behind_the_leaders_log_begins_anew(tmp_path):
    """R15."""
    async with Site(tmp_path) as site:
        one, two, three = await with_three(site, lag_ms=1000)
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
    """DeleteRecords waits for that."""
    async with Site(tmp_path) as site:
        one, _ = await site.start(1, 2)
        await site.create(replicas=(1, 2))
        await one.produce(*[b"a"] * 4)
        said, note = [], one.role.starts.note

        def noted(replica, offset):
            said.append(offset)
            note(replica, offset)

        one.role.starts.note = noted
        late = 0
        for offset in (1, 2, 3):
            said.clear()
            assert (await one.replicas.delete_records(T0, offset, timeout_ms=5000)).low_watermark == offset
            late += offset - 1 in said
        assert late <= 1  # it asked in that very moment


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
        fetchers(two.replicas).close()  # from here on the test asks in its name

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
