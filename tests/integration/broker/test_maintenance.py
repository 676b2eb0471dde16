"""The maintenance of a broker's logs by itself: checkpoints, retention, compaction, deleted replicas."""

import time

import pytest

from logstore.records import compaction  # noqa: F401  its kernels: to load or compile them takes longer than any test
from logstore.records.batch import Record, batches, build, records
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition
from tests.support.inside import storage
from tests.support.site import T0, Site, batch, on_loop, until

OFTEN = {
    "log.retention.check.interval.ms": 100,
    "log.cleaner.backoff.ms": 100,
    "log.flush.offset.checkpoint.interval.ms": 100,
    "replica.high.watermark.checkpoint.interval.ms": 50,
}


PATIENT = {"replica.lag.time.max.ms": 600_000}  # nobody leaves the ISR unless the test says so
T1 = TopicPartition("orders", 1)


@on_loop
async def test_retention_never_passes_the_high_watermark(tmp_path):
    """R33."""
    async with Site(tmp_path) as site:
        (one,) = await site.start(1, **OFTEN, **PATIENT)
        config = {
            "retention.ms": "-1",
            "retention.bytes": "0",
            "segment.bytes": "200",
            "file.delete.delay.ms": "0",
        }
        await site.create(replicas=(1, 2), config=config)
        await site.create(T1, replicas=(1,), config=config)
        for tp in (T0, T1):
            for number in range(10):
                await one.produce(b"%d" % number * 100, acks=1, tp=tp)
        log, other = (one.replicas.partitions()[tp].replica.log for tp in (T0, T1))
        await until(lambda: other.log_start_offset > 0)  # in that round or before, it was the other's turn
        assert (one.role.high_watermark, log.log_start_offset) == (0, 0)
        await site.elect(1, isr=(1,))
        await until(lambda: log.log_start_offset > 0)
        assert log.log_start_offset <= one.role.high_watermark
        await until(lambda: one.replicas.partitions()[T0].replica.start == log.log_start_offset == 9)
        found = await one.consume(0)
        assert (found.error_code, found.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 9)


@on_loop
async def test_compaction_never_passes_the_high_watermark(tmp_path):
    """R33."""
    async with Site(tmp_path) as site:
        (one,) = await site.start(1, **OFTEN, **PATIENT)
        config = {"cleanup.policy": "compact", "segment.bytes": "300", "min.cleanable.dirty.ratio": "0"}
        await site.create(replicas=(1, 2), config=config)
        await site.create(T1, replicas=(1,), config=config)
        for tp in (T0, T1):
            await fill(one, tp)
        log, other = (one.replicas.partitions()[tp].replica.log for tp in (T0, T1))
        size_bytes = size_of(log)
        for _ in range(2):  # by the end of the second round, T0 had its turn in the first
            await until(lambda: size_of(other) < size_bytes, within_s=40)
            assert (one.role.high_watermark, size_of(log)) == (0, size_bytes)
            await fill(one, T1)
        await site.elect(1, isr=(1,))
        await until(lambda: size_of(log) < size_bytes, within_s=40)


async def fill(broker, tp):
    """Give a log of small segments what compaction takes away nearly all of."""
    for number in range(12):
        record = build([Record(0, 1000, b"key", b"%d" % number * 40)])
        await broker.replicas.append({tp: record}, acks=1, timeout_ms=100)


def size_of(log):
    return sum(segment.size_bytes for segment in log.segments())


@on_loop
async def test_compaction_runs_by_itself(tmp_path):
    async with Site(tmp_path) as site:
        (one,) = await site.start(1, **OFTEN)
        config = {"cleanup.policy": "compact", "segment.bytes": "300", "min.cleanable.dirty.ratio": "0"}
        await site.create(replicas=(1,), config=config)
        for number in range(12):
            record = build([Record(0, 1000, b"key", b"%d" % number * 40)])
            await one.replicas.append({T0: record}, acks=1, timeout_ms=100)
        log = one.replicas.partitions()[T0].replica.log
        await until(lambda: sum(segment.size_bytes for segment in log.segments()) < 700, within_s=40)
        await until(lambda: one.role.recent.read(0, upper=12, max_bytes=1) is None)
        found = await one.consume(0)  # neither from memory
        assert found.error_code == ErrorCode.NONE
        left = [row.offset for at, _ in batches(found.records) for row in records(found.records, at)]
        assert all(offset > 3 for offset in left)


@pytest.mark.parametrize("flushed_by", ["the broker", "each append"])
@on_loop
async def test_high_watermarks_and_recovery_points_are_stored_and_survive_a_kill(tmp_path, flushed_by):
    """R30."""
    async with Site(tmp_path) as site:
        (one,) = await site.start(1, **OFTEN)
        messages = {"flush.messages": "1"} if flushed_by == "each append" else {}
        await site.create(replicas=(1,), config={"retention.ms": "-1", **messages})
        await one.produce(b"a", b"b")
        root = tmp_path / "broker-1"
        stored, flushed = root / "replication-offset-checkpoint", root / "recovery-point-offset-checkpoint"
        await until(lambda: stored.exists() and "orders 0 2" in stored.read_text())
        await until(lambda: flushed.exists() and "orders 0 2" in flushed.read_text())
        await one.kill()
        with (root / "orders-0" / "00000000000000000000.log").open("ab") as log:
            log.write(bytes(batch(b"half"))[:40])  # what a killed process leaves
        await one.start()
        partition = one.replicas.partitions()[T0]
        assert (partition.high_watermark, partition.replica.end) == (2, 2)
        await site.tell(1)
        assert (await one.produce(b"c")).base_offset == 2


@on_loop
async def test_the_files_of_a_deleted_replica_go_after_their_delay(tmp_path):
    async with Site(tmp_path) as site:
        (one,) = await site.start(1, **OFTEN, **{"log.segment.delete.delay.ms": 300})
        await site.create(replicas=(1,))
        await one.produce(b"a")
        await site.stop_replica(1)
        hidden = list((tmp_path / "broker-1").glob("orders-0.*.deleted"))
        assert len(hidden) == 1
        await until(lambda: not hidden[0].exists())


@on_loop
async def test_the_topic_says_how_long_the_files_of_its_deleted_replica_stay(tmp_path):
    """Whatever the broker says, which is for those that it found hidden when it started."""
    async with Site(tmp_path) as site:
        (one,) = await site.start(1, **OFTEN, **{"log.segment.delete.delay.ms": 300})
        other = TopicPartition("kept", 0)
        await site.create(replicas=(1,), config={"file.delete.delay.ms": "1"})
        await site.create(other, replicas=(1,), config={"file.delete.delay.ms": "600000"})
        for tp in (other, T0):
            await one.produce(b"a", tp=tp)
            await site.stop_replica(1, tp)
        (kept,) = (tmp_path / "broker-1").glob("kept-0.*.deleted")
        await until(lambda: not list((tmp_path / "broker-1").glob("orders-0.*.deleted")))
        storage(one.replicas).dir.sweep(0)
        assert kept.exists()
        await one.stop()
        await one.start()
        await until(lambda: not kept.exists())


@on_loop
async def test_flush_ms_acts_though_nothing_is_appended_any_more(tmp_path):
    async with Site(tmp_path) as site:
        (one,) = await site.start(1, log_flush_offset_checkpoint_interval_ms=600_000)
        await site.create(replicas=(1,), config={"flush.ms": "500"})
        await site.create(T1, replicas=(1,), config={"flush.ms": "500"})
        began_s = time.monotonic()
        await one.produce(b"a")
        log = one.replicas.partitions()[T0].replica.log
        assert log.point.offset == 0 or time.monotonic() - began_s > 0.5
        await until(lambda: log.point.offset == 1)
        stored = tmp_path / "broker-1" / "recovery-point-offset-checkpoint"
        await until(lambda: stored.exists() and "orders 0 1" in stored.read_text())
