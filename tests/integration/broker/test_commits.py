"""Commits over real sockets: who is answered, and how much a new epoch keeps."""

import asyncio

from replication.errors import ErrorCode
from replication.model.times import SpecialTime
from replication.replica.leader.offsets import for_time
from replication.replica.leader.results import Isolation
from tests.integration.broker.test_followed_fetches import with_silent_follower
from tests.support.partition import appended
from tests.support.site import PATIENT, T0, Site, batch, on_loop, until, values_of, with_three


@on_loop
async def test_consumers_see_only_what_all_in_sync_have(tmp_path):
    async with Site(tmp_path) as site:
        one, two, _ = await with_three(site, lag_ms=1000)
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
async def test_a_leader_that_is_cut_off_from_the_tree_commits_nothing_that_one_in_sync_lacks(tmp_path):
    """R6, R25, R31: it goes on while all in sync fetch, and stops as soon as one does not."""
    async with Site(tmp_path) as site:
        one, two, _ = await with_three(site, lag_ms=1000)
        one.replicas.suspend()
        assert (await one.produce(b"a")).error_code == ErrorCode.NONE
        await two.stop()
        assert (await one.produce(b"b", timeout_ms=2500)).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert (one.role.high_watermark, (await site.stored()).isr) == (1, (1, 2, 3))
        one.replicas.suspend(is_suspended=False)
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
        one, two, three = await with_three(site, lag_ms=1000)
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
            found = await for_time(lambda tp: two.role, T0, SpecialTime.LATEST, **asked)
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
        appended(log, batch(b"never sent"), leader_epoch=0)
        await site.elect(1)
        await one.produce(b"b")
        await until(lambda: three.stored() == two.stored() == [b"a", b"b"])


@on_loop
async def test_a_repeated_batch_waits_for_its_own_records_only(tmp_path):
    """T1: what others have appended behind it is not committed yet."""
    async with Site(tmp_path) as site:
        one, three = await with_silent_follower(site, "120000")
        sent = [one.produce(b"a", producer=(7, 0, 0)), one.produce(b"x"), one.produce(b"a", producer=(7, 0, 0))]
        first, other, again = [asyncio.ensure_future(each) for each in sent]
        await until(lambda: one.end == 2)
        await three.ask({T0: 1})
        assert (await again) == (await first)
        assert (await one.produce(b"a", producer=(7, 0, 0))).base_offset == 0, "and so does one that comes later"
        assert not other.done()
