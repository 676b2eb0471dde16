"""Replicas that are damaged in different places, and no other one: each has from the others what is damaged (S3)."""

from contextlib import asynccontextmanager

import pytest

from logstore.log import isolation
from logstore.records.batch import TRANSACTIONAL
from logstore.records.marker import Marker
from replication.errors import ErrorCode
from replication.protocol.messages import EXAMINER, FetchPartition
from replication.replica import repairs
from replication.replica.leader.leader import Leader
from replication.replica.leader.purgatory import PendingProduce
from tests.integration.broker.test_damage import damage, file_of, is_well, kept, scrub
from tests.integration.broker.test_offline import brokers
from tests.support.inside import storage
from tests.support.site import T0, Site, batch, on_loop, until, values_of

VALUES = (b"a", b"b", b"c")


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(repairs, "HAND_OVER_S", 0.1)
    monkeypatch.setattr(repairs, "ASK_S_MAX", 0.5)


@asynccontextmanager
async def damaged(path, *batches):
    """Brokers 1, 2, ... which lead and follow, each with batches that are damaged, and what their file was before."""
    async with brokers(path, len(batches)) as running:
        replicas = [running[number].replicas for number in range(1, len(batches) + 1)]
        for value in VALUES:
            await replicas[0].append({T0: batch(value)}, acks=-1, timeout_ms=5000)
        for each in replicas:
            replica = each.partitions()[T0].replica
            await until(lambda replica=replica: replica.end == len(VALUES))
            await replica.call(replica.log.flush)
        before = file_of(path, 1).read_bytes()
        for number, some in enumerate(batches, 1):
            for each in some:
                damage(file_of(path, number), batch=each, at=66)
        yield replicas, before


async def scrub_all(replicas):
    for each in replicas:
        await scrub(each)


@on_loop
async def test_a_leader_that_is_damaged_behind_its_follower_is_mended_when_that_one_is(tmp_path, caplog):
    async with damaged(tmp_path, [2], [0]) as (replicas, before):
        await scrub(replicas[1])
        await until(lambda: replicas[1].counters.repairs == 1)
        if not replicas[0].counters.repairs:  # the follower asked it before it knew of its new epoch, and read no more
            await scrub(replicas[0])
        await until(lambda: [each.counters.repairs for each in replicas] == [1, 1])
        await until(lambda: all(is_well(each) for each in replicas))
        await until(lambda: [file_of(tmp_path, number).read_bytes() for number in (1, 2)] == [before] * 2)
        assert len(kept(tmp_path, 1)) == len(kept(tmp_path, 2)) == 1
        assert sum(each.counters.lost_records for each in replicas) == 0
        assert "tp=orders-0 offsets 0 to 1 are filled" in caplog.messages


@on_loop
async def test_each_range_comes_from_who_has_it_soundly_leader_or_not(tmp_path):
    async with damaged(tmp_path, [0, 1], [1, 2], [0, 2]) as (replicas, before):
        await scrub_all(replicas)
        await until(lambda: all(is_well(each) for each in replicas))
        await until(lambda: [file_of(tmp_path, number).read_bytes() for number in (1, 2, 3)] == [before] * 3)


@on_loop
async def test_a_leader_alone_is_filled_where_a_marker_is_damaged_at_a_crash_and_takes_appends_again(tmp_path):
    """It was taken for a log of which nobody knows the end, and stayed so for ever."""
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2)
        await site.create(replicas=(1, 2))
        await one.produce(b"opens", attributes=TRANSACTIONAL, producer=(7, 0, 0))
        one.role.end_transaction(Marker(7, 0, commits=False, coordinator_epoch=0, is_above=False), PendingProduce([T0]))
        await until(lambda: one.end == two.end == 2)
        replica, directory = one.replicas.partitions()[T0].replica, storage(one.replicas).dir
        await replica.call(lambda: directory.flush([(T0, replica.log)]))
        await site.elect(1, isr=(1,))
        await one.kill()
        damage(file_of(tmp_path, 1), batch=1, at=66)
        for suffix in (".txnindex", ".txncheck"):
            file_of(tmp_path, 1).with_suffix(suffix).write_bytes(b"")

        await one.start()
        await site.elect(1, isr=(1,))
        assert T0 in one.replicas.offline.reasons
        await until(lambda: is_well(one.replicas))

        assert (await one.produce(b"d")).error_code == ErrorCode.NONE
        end, aborted = isolation.committed(one.replicas.partitions()[T0].replica.log, 0, 3)
        assert (end, [each.producer_id for each in aborted]) == (3, [7])


@on_loop
async def test_what_nobody_has_soundly_is_refused_and_told_and_the_rest_is_had_again(tmp_path, caplog):
    async with damaged(tmp_path, [0, 2], [1, 2]) as (replicas, before):
        await scrub_all(replicas)

        def differs(number):
            data = file_of(tmp_path, number).read_bytes()
            return [at for at, (one, other) in enumerate(zip(data, before, strict=True)) if one != other]

        await until(lambda: len(differs(1)) == len(differs(2)) == 1)
        assert differs(1) == differs(2)
        await until(lambda: all(each.not_shown() == 1 for each in replicas))
        (leads,) = (each for each in replicas if isinstance(each.partitions()[T0].role, Leader))
        for offset, value in enumerate(VALUES):  # from the disk, whatever the leader has in memory
            spec = {T0: FetchPartition(0, offset, 1 << 20)}
            answer = await leads.fetch(spec, replica_id=EXAMINER, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20)
            if offset < 2:
                assert values_of(answer[T0].records)[0] == value
            else:
                assert answer[T0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert [each.damaged() for each in replicas] == [1, 1]
        assert any("sound nowhere" in line for line in caplog.messages)


@on_loop
async def test_a_follower_shows_an_examiner_what_it_has_and_nobody_else(tmp_path):
    async with damaged(tmp_path, [], [1]) as ((_, follower), _):
        answers = []
        for reader in (EXAMINER, -1):
            for epoch, offset in ((-1, 0), (0, 0), (7, 0), (-1, 1), (-1, 2), (-1, 9)):
                spec = FetchPartition(0, offset, 1, current_leader_epoch=epoch)
                found = await follower.fetch(
                    {T0: spec}, replica_id=reader, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20
                )
                answers.append(found[T0].error_code)
        assert answers == [
            ErrorCode.NONE,
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.NONE,
            ErrorCode.OFFSET_OUT_OF_RANGE,
            *[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 6,
        ]
