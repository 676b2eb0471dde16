"""A damaged replica in a broker: what it serves while it is the only one, and how it is mended (S3)."""

from contextlib import asynccontextmanager

from logstore.errors import CorruptLogError
from logstore.log import soundness
from logstore.records.batch import Record, build
from replication.errors import ErrorCode
from replication.model.times import SpecialTime
from replication.protocol.messages import EXAMINER, FetchPartition
from tests.integration.broker.test_offline import brokers, is_led
from tests.support.site import T0, Site, batch, on_loop, until, values_of


def log_of(site, number):
    return site.path / f"broker-{number}" / "orders-0" / f"{0:020d}.log"


def damage(path, *, batch, at):
    """Flip a bit of the batch of this number; `at` counts from its begin."""
    data = bytearray(path.read_bytes())
    position = 0
    for _ in range(batch):
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    data[position + at] ^= 0x40
    path.write_bytes(data)


@on_loop
async def test_a_log_whose_end_is_damaged_serves_what_is_below_and_lets_nobody_cut_by_it(tmp_path):
    async with Site(tmp_path) as site:
        one, two = await site.start(1, 2)
        await site.create(replicas=(1, 2))
        for value in (b"a", b"b", b"c"):
            await one.produce(value)
        await until(lambda: two.end == 3)
        await one.stop()
        damage(log_of(site, 1), batch=2, at=8)  # its length: nobody can tell where it ends
        before = log_of(site, 1).read_bytes()

        await one.start()
        await site.elect(1)

        assert T0 in one.replicas.offline.reasons
        assert values_of((await one.consume(0)).records) == [b"a", b"b"]
        assert (await one.consume(2)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await one.consume(3)).error_code == ErrorCode.KAFKA_STORAGE_ERROR  # not: out of range
        assert (await one.produce(b"d")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await one.replicas.offset_for_time(T0, SpecialTime.LATEST)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        asked = two.replicas.counters.failed_fetches
        await until(lambda: two.replicas.counters.failed_fetches > asked + 1)
        assert two.stored() == [b"a", b"b", b"c"]
        end = one.replicas.end_offset_for_epoch(T0, 0, replica_id=2)
        assert end.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await one.stop()
        assert log_of(site, 1).read_bytes() == before


def keyed(*values):
    return build([Record(i, 1_000 + i, value, value) for i, value in enumerate(values)])


@on_loop
async def test_a_damaged_replica_of_a_compacted_topic_is_copied_whole(tmp_path):
    """A tombstone that the leader has removed cannot tell any more that a key below the damage is deleted."""
    settings = {"log.scrub.interval.ms": "200", "log.cleanup.policy": "compact"}
    async with brokers(tmp_path, 2, **settings) as running:
        leader, follower = running[1].replicas, running[2].replicas
        for value in (b"a", b"b", b"c"):
            await leader.append({T0: keyed(value)}, acks=-1, timeout_ms=5000)
        replica = follower.partitions()[T0].replica
        await until(lambda: replica.end == 3)
        began = []
        start = replica.log.cut_damage
        replica.log.cut_damage = lambda offset, place: (began.append((offset, place)), start(offset, place))

        damage(tmp_path / "broker-2" / "orders-0" / f"{0:020d}.log", batch=1, at=66)

        await until(lambda: follower.counters.repairs == 1)
        await until(lambda: replica.end == 3 and is_led(running, 1, {1, 2}))
        assert began == [(0, None)]
        files = [tmp_path / f"broker-{n}" / "orders-0" / f"{0:020d}.log" for n in (1, 2)]
        assert files[0].read_bytes() == files[1].read_bytes()
        assert len(list(files[1].parent.glob("*.damaged"))) == 1
        assert follower.damaged() == 0


@on_loop
async def test_damage_below_what_the_leader_retains_makes_the_follower_begin_there(tmp_path):
    async with brokers(tmp_path, 2, **{"log.scrub.interval.ms": "200"}) as running:
        leader, follower = running[1].replicas, running[2].replicas
        for value in (b"a", b"b", b"c"):
            await leader.append({T0: batch(value)}, acks=-1, timeout_ms=5000)
        replica = follower.partitions()[T0].replica
        await until(lambda: replica.end == 3)
        log = leader.partitions()[T0].replica
        await log.call(log.log.roll)
        await log.call(lambda: log.log.advance_start(3))

        damage(tmp_path / "broker-2" / "orders-0" / f"{0:020d}.log", batch=1, at=66)

        await until(lambda: follower.counters.repairs == 1 or replica.start == 3)
        await until(lambda: (replica.start, replica.end) == (3, 3) and is_led(running, 1, {1, 2}))
        assert follower.counters.lost_records == 0


SEGMENT = f"{0:020d}.log"


@asynccontextmanager
async def two_brokers(path, *values, **settings):
    """(the leader, the follower, its replica), both with these values, each a batch, and nobody who scrubs."""
    async with brokers(path, 2, **settings) as running:
        leader, follower = running[1].replicas, running[2].replicas
        for value in values:
            await leader.append({T0: batch(value)}, acks=-1, timeout_ms=5000)
        replica = follower.partitions()[T0].replica
        await until(lambda: replica.end == len(values))
        await leader.partitions()[T0].replica.call(leader.partitions()[T0].replica.log.flush)
        yield leader, follower, replica


async def scrub(replicas):
    """Read the log and report damage, like the broker's scrub."""
    replica = replicas.partitions()[T0].replica
    found = await replica.call(lambda: soundness.find(replica.log))
    if found is not None:
        replica.suspect(CorruptLogError(found.path, found.position, found.reason))


def file_of(path, number):
    return path / f"broker-{number}" / "orders-0" / SEGMENT


def kept(path, number):
    return list(file_of(path, number).parent.glob("*.damaged"))


def is_well(replicas):
    role = replicas.partitions()[T0].role
    return replicas.damaged() == 0 and role is not None and (T0 not in replicas.offline.reasons)


@on_loop
async def test_nothing_is_cut_while_the_leader_has_damage_there_that_nobody_has_found(tmp_path, caplog):
    """The only sound copy of what the follower would cut is the follower's."""
    async with two_brokers(tmp_path, b"a", b"b", b"c") as (leader, follower, replica):
        damage(file_of(tmp_path, 1), batch=2, at=66)
        damage(file_of(tmp_path, 2), batch=1, at=66)
        damage(file_of(tmp_path, 1), batch=1, at=66)
        before = file_of(tmp_path, 2).read_bytes()

        await scrub(follower)

        await until(lambda: follower.not_shown() == 1)
        await until(lambda: leader.damaged() == 1)
        assert file_of(tmp_path, 2).read_bytes() == before
        assert (kept(tmp_path, 2), replica.end, follower.counters.repairs) == ([], 3, 0)
        assert follower.damaged() == 1
        told = [line for line in caplog.messages if "is not cut yet" in line]
        assert len(told) == len(set(told)), "each reason is told once"


@on_loop
async def test_a_leader_that_is_damaged_elsewhere_is_as_good_as_any_and_is_mended_next(tmp_path):
    """Each copies from who is sound there: first the follower, which then leads."""
    async with two_brokers(tmp_path, b"a", b"b", b"c") as (leader, follower, _):
        before = file_of(tmp_path, 1).read_bytes()
        damage(file_of(tmp_path, 1), batch=0, at=66)
        damage(file_of(tmp_path, 2), batch=2, at=66)

        await scrub(follower)
        await until(lambda: follower.counters.repairs == 1)
        await scrub(leader)

        await until(lambda: leader.counters.repairs == 1)
        await until(lambda: is_well(leader) and is_well(follower))
        await until(lambda: file_of(tmp_path, 1).read_bytes() == file_of(tmp_path, 2).read_bytes() == before)


@on_loop
async def test_what_an_examiner_is_shown_is_what_is_on_the_disk(tmp_path):
    """Whatever the leader still has of it in memory."""
    async with two_brokers(tmp_path, b"a", b"b") as (leader, _, _):
        damage(file_of(tmp_path, 1), batch=1, at=66)
        wanted = {T0: FetchPartition(0, 1, 1 << 20)}
        for reader, code in ((-1, ErrorCode.NONE), (EXAMINER, ErrorCode.KAFKA_STORAGE_ERROR)):
            found = await leader.fetch(wanted, replica_id=reader, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20)
            assert found[T0].error_code == code
