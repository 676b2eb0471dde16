"""The reactions of a broker when its disk is full, hangs, or cannot be trusted any more."""

import asyncio
import threading
import time

import pytest

from logstore.env import Env, OsFiles
from logstore.errors import DiskFullError, FailedStoreError, StorageError
from replication.broker import process
from replication.broker.broker import Broker as ClusterBroker
from replication.config.broker import BrokerConfig
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition
from tests.support.data_client import T1, Client
from tests.support.peer import hang_up
from tests.support.site import T0, Broker, Site, batch, on_loop, until, values_of
from tests.support.waits import stays

WAIT_S = 15
SLOW_S = 0.3


class BadDisk(OsFiles):
    """A disk that is full, whose fsyncs fail, or of which nothing more can be opened, from some time on."""

    is_full = is_failing = is_shut = False

    def list(self, path):
        if self.is_shut and str(path).endswith("orders-0"):
            raise StorageError(f"{path}: too many open files", path=str(path), reason="EMFILE")
        return super().list(path)

    def write(self, path, position, data):
        if self.is_full and str(path).endswith(".log"):
            raise DiskFullError(f"{path}: full", path=str(path), reason="full")
        super().write(path, position, data)

    def fsync(self, path):
        if self.is_failing:
            raise FailedStoreError(f"{path}: fsync failed", path=str(path), reason="EIO")
        super().fsync(path)


class HangingDisk(OsFiles):
    """A disk on which writes to `orders-0` wait, from some time on, until they may go on."""

    def __init__(self):
        super().__init__()
        self.hangs = self.is_slow = False
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def write(self, path, position, data):
        if self.is_slow:
            time.sleep(SLOW_S)
        if self.hangs and str(path).endswith("orders-0/00000000000000000000.log"):
            self.begun.set()
            assert self.may_go_on.wait(WAIT_S)
        super().write(path, position, data)


async def on_a_bad_disk(site, number=1, **properties):
    disk = BadDisk()
    site.brokers[number] = broker = Broker(site, number, properties)
    broker.env = Env(files=disk)
    return await broker.start(), disk


@on_loop
async def test_a_failed_fsync_ends_the_broker_and_nothing_of_it_is_acknowledged(tmp_path):
    """S8, R22."""
    async with Site(tmp_path) as site:
        one, disk = await on_a_bad_disk(site)
        await site.create(replicas=(1,), config={"flush.messages": "1"})
        assert (await one.produce(b"a")).error_code == ErrorCode.NONE
        disk.is_failing = True
        assert (await one.produce(b"b")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert one.replicas.disk_failed.is_set()
        disk.is_failing = False
        assert (await one.produce(b"c")).error_code == ErrorCode.KAFKA_STORAGE_ERROR  # a second try proves nothing
        await one.stop()
        assert not (tmp_path / "broker-1" / ".kafka_cleanshutdown").exists()


@on_loop
async def test_the_failed_fsync_of_what_a_broker_notes_ends_it_too(tmp_path):
    """S8, R22."""
    async with Site(tmp_path) as site:
        one, disk = await on_a_bad_disk(site, **{"replica.high.watermark.checkpoint.interval.ms": 50})
        await site.create(replicas=(1,))
        disk.is_failing = True
        await one.produce(b"a")
        await until(one.replicas.disk_failed.is_set)  # the high watermark is another one
        disk.is_failing = False
        assert (await one.produce(b"b")).error_code == ErrorCode.KAFKA_STORAGE_ERROR


@on_loop
async def test_the_failed_fsync_of_a_new_replica_ends_the_broker_too(tmp_path):
    """S8, R22."""
    async with Site(tmp_path) as site:
        one, disk = await on_a_bad_disk(site)
        await site.create(replicas=(1,))
        disk.is_failing = True
        other = TopicPartition("orders", 1)
        await site.create(other, replicas=(1,))
        assert one.replicas.disk_failed.is_set()
        disk.is_failing = False
        assert (await one.produce(b"b")).error_code == ErrorCode.KAFKA_STORAGE_ERROR


@on_loop
async def test_a_replica_that_could_not_be_made_is_made_at_the_next_word_of_it(tmp_path):
    async with Site(tmp_path) as site:
        one, disk = await on_a_bad_disk(site)
        (two,) = await site.start(2)
        disk.is_shut = True
        await site.create(replicas=(2, 1), isr=(2,))
        assert T0 not in one.replicas.partitions()
        disk.is_shut = False
        await site.elect(2)
        await until(lambda: two.role.state.isr == (2, 1))
        assert (await two.produce(b"a")).error_code == ErrorCode.NONE
        assert one.stored() == [b"a"]


def test_the_process_of_a_broker_whose_disk_failed_ends_with_an_error(tmp_path, monkeypatch):
    """R22."""
    brokers = []

    def made(config):
        brokers.append(ClusterBroker(config))
        return brokers[0]

    monkeypatch.setattr(process, "Broker", made)
    config = BrokerConfig.from_properties({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"})

    def say(line):
        brokers[0].replicas.disk_failed.set()

    with pytest.raises(FailedStoreError, match="run `pylog recover"):
        asyncio.run(asyncio.wait_for(process._serve(config, say, None), 30))


@on_loop
async def test_a_full_disk_refuses_records_and_serves_on(tmp_path):
    """S9."""
    async with Site(tmp_path) as site:
        one, disk = await on_a_bad_disk(site)
        await site.create(replicas=(1,))
        await one.produce(b"a")
        disk.is_full = True
        assert (await one.produce(b"b")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert values_of((await one.consume()).records) == [b"a"]
        disk.is_full = False
        assert (await one.produce(b"c")).base_offset == 1


@on_loop
async def test_a_follower_with_a_full_disk_leaves_the_isr_and_comes_back(tmp_path):
    """S9: the leader goes on, and the follower catches up once it has room."""
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        two, disk = await on_a_bad_disk(site, 2)
        await site.create(replicas=(1, 2))
        await one.produce(b"a")
        disk.is_full = True
        assert (await one.produce(b"b", timeout_ms=20_000)).error_code == ErrorCode.NONE
        assert one.role.state.isr == (1,)
        disk.is_full = False
        await until(lambda: 2 in one.role.state.isr)
        assert two.stored() == [b"a", b"b"]


@on_loop
async def test_a_follower_with_a_full_disk_asks_less_and_less_often(tmp_path):
    """S9: each time it is sent all the records, and writes a line about it, perhaps onto the same disk."""
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        two, disk = await on_a_bad_disk(site, 2, **{"replica.fetch.backoff.ms": 2000})
        await site.create(replicas=(1, 2))
        disk.is_full = True
        await one.produce(b"a", acks=1)
        counters = two.replicas.counters
        await until(lambda: counters.failed_fetches)
        before = counters.failed_fetches
        await stays(lambda: counters.failed_fetches - before < 8, 1)


@on_loop
async def test_after_a_failed_fsync_nothing_is_acknowledged_in_another_partition_either(tmp_path):
    """S8: also not what the event loop would have written by itself."""
    async with Site(tmp_path) as site:
        one, disk = await on_a_bad_disk(site)
        other = TopicPartition("others", 0)
        await site.create(other, replicas=(1,))
        await site.create(replicas=(1,), config={"flush.messages": "1"})
        for _ in range(2):
            assert (await one.produce(b"a", tp=other, acks=1)).error_code == ErrorCode.NONE
        disk.is_failing = True
        assert (await one.produce(b"b")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await one.produce(b"c", tp=other, acks=1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await one.stop()


@on_loop
async def test_s24_while_the_disk_of_one_partition_hangs_everything_else_is_answered(tmp_path):
    """S24: also who reads what that partition has."""
    async with Site(tmp_path) as site:
        site.brokers[1] = one = Broker(site, 1, {"num.io.threads": 8})
        disk = HangingDisk()
        one.env = Env(files=disk)
        await one.start()
        for tp in (T0, T1):
            await site.create(tp, replicas=(1,))
        writer, other = [(await Client.connect(one.port)).keep(site) for _ in range(2)]
        await other.inform()
        assert (await writer.produce(bytes(batch(b"a")))).base_offset == 0
        disk.is_slow = True  # the event loop writes by itself, until that takes long
        assert (await other.produce(bytes(batch(b"c")), tp=T1)).base_offset == 0
        disk.is_slow, disk.hangs = False, True
        waiting = asyncio.create_task(writer.produce(bytes(batch(b"b"))))
        try:
            assert await asyncio.to_thread(disk.begun.wait, WAIT_S)
            for number in range(1, 20):
                assert (await other.produce(bytes(batch(b"c")), tp=T1)).base_offset == number
            assert values_of((await other.fetch(tp=T1)).records) == [b"c"] * 20
            assert values_of((await other.fetch()).records) == [b"a"]
            assert await other.list_offset(-1) == (0, 1, -1)
            assert not waiting.done()
        finally:
            disk.may_go_on.set()
            assert (await waiting).base_offset == 1
            await hang_up()
