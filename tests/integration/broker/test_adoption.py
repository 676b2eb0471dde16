"""From a library on a directory to a broker over the same files, and back for reading."""

import pyarrow as pa
import pytest

import logstore
from logstore.errors import NotAStoreError, ReadOnlyStoreError, StoreLockedError, TopicExistsError
from replication.broker.broker import Broker as ClusterBroker
from replication.config.broker import BrokerConfig
from replication.coordination import cluster, topics
from replication.errors import ErrorCode
from replication.model.cluster import LeaderAndIsr, TopicPartition
from tests.support.site import Broker, Site, on_loop, values_of

T1 = TopicPartition("orders", 1)


def rows(*values):
    return pa.table({"value": list(values), "partition": pa.array([1] * len(values), pa.int32())})


def read(store):
    return store.read("orders", partition=1).read_all()["value"].to_pylist()


async def led(site, broker):
    """Let a controller take over the topics that it finds."""
    found = (await cluster.read_topics(site.tree))["orders"]
    assert found.replicas == {0: (1,), 1: (1,), 2: (1,)}
    site.topic_ids["orders"], site.replicas[T1] = found.topic_id, (1,)
    await site.tree.create("/brokers/topics/orders/partitions")
    await site.tree.create("/brokers/topics/orders/partitions/1")
    await site.tree.create("/brokers/topics/orders/partitions/1/state")
    await site.lead(T1, LeaderAndIsr(1, 0, (1,), 1), is_new=True)
    return found


@on_loop
async def test_what_the_library_wrote_is_served_and_what_clients_wrote_is_read_by_the_library(tmp_path):
    root = tmp_path / "broker-1"
    with logstore.open(root) as store:
        topic = store.create_topic("orders", partitions=3, config={"segment.bytes": "1000"})
        store.append("orders", rows(b"a", b"b"))
        with store.transaction() as transaction:
            store.append("orders", rows(b"c"), transaction=transaction)
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        found = await led(site, one)
        assert found.topic_id == topic.topic_id
        config = one.replicas.partitions()[T1].replica.config
        assert (config.segment_bytes, config.retention_ms) == (1000, -1)  # what was kept for ever still is
        fetched = await one.consume(tp=T1)
        assert values_of(fetched.records)[:3] == [b"a", b"b", b"c"]
        done = await one.produce(b"d", tp=T1)
        assert done.error_code == ErrorCode.NONE
        with pytest.raises(StoreLockedError):
            logstore.open(root)
        await one.stop()
        with logstore.open(root) as store:
            assert read(store) == [b"a", b"b", b"c", b"d"]
            with pytest.raises(ReadOnlyStoreError, match="broker 1's"):
                store.append("orders", rows(b"e"))
        await one.start()  # it adopts once only
        assert (await cluster.read_topics(site.tree))["orders"].topic_id == topic.topic_id


@on_loop
async def test_a_directory_has_one_owner(tmp_path):
    """S21."""
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        await one.stop()
        other = Broker(site, 2, {"log.dirs": str(tmp_path / "broker-1")})
        with pytest.raises(NotAStoreError, match="belongs to broker 1"):
            await other.start()
        await other.tree.close()


@on_loop
async def test_another_topic_of_the_same_name_stops_the_adoption(tmp_path):
    with logstore.open(tmp_path / "broker-1") as store:
        store.create_topic("orders")
    async with Site(tmp_path) as site:
        await topics.create_topic(site.tree, "orders", "A" * 22, {0: (7,)}, {})
        one = Broker(site, 1, {})
        with pytest.raises(TopicExistsError):
            await one.start()
        await one.tree.close()
        with logstore.open(tmp_path / "broker-1") as store:
            store.append("orders", pa.table({"value": [b"it is still the library's"]}))


@on_loop
async def test_a_topic_that_was_adopted_and_deleted_stays_deleted(tmp_path):
    with logstore.open(tmp_path / "broker-1") as store:
        store.create_topic("orders", partitions=3)
    async with Site(tmp_path) as site:
        (one,) = await site.start(1)
        await led(site, one)
        assert await site.stop_replica(1, T1) == ErrorCode.NONE
        await one.stop()
        with logstore.open(tmp_path / "broker-1") as store:
            assert store.topics() == []


@on_loop
async def test_a_broker_serves_what_its_directory_brought_from_its_first_answer_on(tmp_path):
    with logstore.open(tmp_path) as store:
        store.create_topic("orders", partitions=20)
    broker = ClusterBroker(
        BrokerConfig.from_properties({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"})
    )
    await broker.start()
    try:
        assert [broker.replicas.metadata.leader("orders", number) for number in range(20)] == [0] * 20
    finally:
        await broker.stop()
