"""Partitions move to other brokers while records come, and everything is there in the end (R34)."""

import asyncio
import threading
import warnings
from contextlib import closing

import pytest
from confluent_kafka import Producer

from replication.coordination import nodes, open_tree
from replication.model.cluster import Reassignment, TopicPartition
from replication.network.client import Client
from replication.protocol.apis import ApiKey
from tests.integration.cluster.conftest import running
from tests.support.repeats import only_long
from tests.support.waits import remains

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its own way to read its files
    from kafka import KafkaAdminClient
    from kafka import TopicPartition as Partition
    from kafka.errors import (
        InvalidReplicationAssignmentError,
        NoReassignmentInProgressError,
        UnknownTopicOrPartitionError,
    )

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*is deprecated. Use files:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    with running(4, tmp_path_factory.mktemp("four")) as cluster:
        yield cluster


@pytest.fixture
def cluster(four):
    yield four
    four.running.mend()


@pytest.fixture
def admin(cluster):
    with closing(KafkaAdminClient(bootstrap_servers=cluster.running.bootstrap.split(","))) as client:
        yield client


class Producing:
    """Sends numbers with acks=all until it is told to stop; `acked` are those that the cluster has promised to keep."""

    def __init__(self, cluster, topic):
        self.acked, self.errors, self._is_over = [], [], threading.Event()
        self._cluster, self._topic = cluster, topic
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join()

    def _run(self):
        producer = Producer(
            {
                "bootstrap.servers": self._cluster.running.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "log_level": 0,
            }
        )
        number = 0
        while not self._is_over.is_set():
            producer.produce(self._topic, b"%d" % number, partition=0, on_delivery=self._told)
            number += 1
            producer.poll(0.002)
        producer.flush(60)

    def _told(self, error, message):
        if error:
            self.errors.append(error)
        else:
            self.acked.append(int(message.value()))


def ask_in_the_tree(cluster, topic, replicas, partition=0):
    """Ask for it like `kafka-reassign-partitions --execute` of Kafka 0.9."""
    data = b'{"version":1,"partitions":[{"topic":"%s","partition":%d,"replicas":%s}]}' % (
        topic.encode(), partition, str(replicas).encode(),
    )  # fmt: skip

    async def write():
        tree = await open_tree(cluster.running.coordination, on_session=lambda event: None)
        try:
            await tree.create(nodes.REASSIGNMENT, data)
        finally:
            await tree.close()

    asyncio.run(write())


def ask(cluster, broker, key, **body):
    """One broker, and no other: a client that looks for one may come to the one that stands still."""
    host, port = cluster.running.address(broker).rsplit(":", 1)

    async def call():
        client = Client(host, int(port), "test", timeout_ms=20_000)
        try:
            return await client.call(key, {"timeout": 10_000, **body})
        finally:
            client.close()

    return asyncio.run(call())


def alter(cluster, broker, topic, replicas):
    rows = [{"name": topic, "partitions": [{"partition_index": 0, "replicas": replicas}]}]
    answer = ask(cluster, broker, ApiKey.ALTER_PARTITION_REASSIGNMENTS, topics=rows)
    return answer.responses[0].partitions[0].error_code


def replicas_of(cluster, topic, partition=0):
    return list(cluster.running.describe().topics[topic].partitions[partition])


def until_over(cluster, timeout_s=30.0):
    cluster.until(lambda: not cluster.running.describe().reassignments, timeout_s)


def holders(cluster, topic, partition=0):
    """Brokers that have a directory of it."""
    name = f"{topic}-{partition}"
    return [b for b in (1, 2, 3, 4) if (cluster.running.log_dir(b) / name).is_dir()]


def check_records(cluster, topic, producing):
    """Nothing that was promised is missing, nothing is there twice."""
    found = [int(value) for value in cluster.values(topic, count=len(producing.acked))]
    assert producing.errors == []
    assert len(producing.acked) > 50
    assert found == sorted(set(found)), "in order, and none twice"
    assert set(found) >= set(producing.acked)


def test_a_partition_moves_while_records_come_as_kafka_09s_tool_asks_for_it(cluster):
    topic = cluster.create((1, 2))
    cluster.produce(topic, [-number for number in range(200, 0, -1)])
    with Producing(cluster, topic) as producing:
        cluster.until(lambda: len(producing.acked) > 20)
        ask_in_the_tree(cluster, topic, [3, 4])
        until_over(cluster)
        count = len(producing.acked)
        cluster.until(lambda: len(producing.acked) > count + 20)

    assert replicas_of(cluster, topic) == [3, 4]
    leader, isr, _ = cluster.states(topic)[0]
    assert leader in (3, 4)
    assert sorted(isr) == [3, 4]
    assert holders(cluster, topic) == [3, 4]
    check_records(cluster, topic, producing)


def test_more_replicas_then_fewer_through_the_admin_api(cluster, admin):
    topic = cluster.create((1,), (2,))
    tp = Partition(topic, 0)
    cluster.produce(topic, range(100))

    assert admin.alter_partition_reassignments({tp: [1, 2, 3]}) == {tp: None}
    cluster.until(lambda: replicas_of(cluster, topic) == [1, 2, 3])
    until_over(cluster)
    assert sorted(cluster.state(topic).isr) == [1, 2, 3]
    assert admin.alter_partition_reassignments({tp: [3]}) == {tp: None}
    until_over(cluster)

    assert cluster.states(topic)[0][:2] == (3, [3])
    assert holders(cluster, topic) == [3]
    assert replicas_of(cluster, topic, 1) == [2]
    described = admin.describe_topics([topic])[0]["partitions"][0]
    assert (described["leader_id"], described["replica_nodes"], described["isr_nodes"]) == (3, [3], [3])
    assert cluster.values(topic, 100) == [str(number) for number in range(100)]


@only_long("brokers that restart")
def test_nothing_goes_before_all_that_stay_are_in_sync_and_it_can_be_taken_back(cluster):
    """(R34) One of the new replicas stands still."""
    controller, old, new, slow = cluster.roles()
    topic = cluster.create((old,))
    cluster.produce(topic, range(100))
    cluster.running.pause(slow)

    assert alter(cluster, controller, topic, (new, slow)) == 0
    cluster.until(lambda: set(cluster.state(topic).isr) == {old, new})
    remains(lambda: set(cluster.state(topic).isr) == {old, new}, 0.5)
    (found,) = ask(cluster, controller, ApiKey.LIST_PARTITION_REASSIGNMENTS, topics=None).topics
    (row,) = found.partitions
    assert (row.replicas, row.adding_replicas, row.removing_replicas) == (
        (old, new, slow),
        (new, slow),
        (old,),
    )
    assert cluster.state(topic).leader == old
    assert alter(cluster, controller, topic, None) == 0
    until_over(cluster)

    assert replicas_of(cluster, topic) == [old]
    assert cluster.states(topic)[0][:2] == (old, [old])
    cluster.until(lambda: set(holders(cluster, topic)) <= {old, slow})
    cluster.running.resume(slow)
    assert cluster.values(topic, 100) == [str(number) for number in range(100)]


def test_what_cannot_be_is_refused(cluster, admin):
    topic = cluster.create((1, 2))
    tp, unknown = Partition(topic, 0), Partition("nowhere", 0)
    assert admin.alter_partition_reassignments({tp: None}) == {tp: NoReassignmentInProgressError}
    assert admin.alter_partition_reassignments({unknown: [1]}) == {unknown: UnknownTopicOrPartitionError}
    for wrong in ([1, 9], [1, 1]):
        assert admin.alter_partition_reassignments({tp: wrong}) == {tp: InvalidReplicationAssignmentError}
    assert admin.alter_partition_reassignments({tp: [1, 2]}) == {tp: None}
    assert admin.list_partition_reassignments() == {}
    ask_in_the_tree(cluster, topic, [7])
    until_over(cluster)
    assert replicas_of(cluster, topic) == [1, 2]


@only_long("brokers that restart")
def test_the_controller_is_killed_in_the_middle(cluster):
    controller, one, two, three = cluster.roles()
    topic = cluster.create((controller, one))
    cluster.produce(topic, [-number for number in range(200, 0, -1)])
    with Producing(cluster, topic) as producing:
        cluster.until(lambda: len(producing.acked) > 20)
        cluster.running.pause(three)  # so that it cannot be over
        ask_in_the_tree(cluster, topic, [two, three])
        cluster.until(lambda: two in cluster.state(topic).isr)
        cluster.running.kill(controller)
        cluster.until(lambda: cluster.running.controller() not in (None, controller))
        tp = TopicPartition(topic, 0)
        assert cluster.running.describe().reassignments == {tp: Reassignment((two, three), (controller, one))}
        cluster.running.resume(three)
        until_over(cluster)
        count = len(producing.acked)
        cluster.until(lambda: len(producing.acked) > count + 20)

    assert replicas_of(cluster, topic) == [two, three]
    cluster.until(lambda: sorted(cluster.state(topic).isr) == sorted([two, three]))
    # A broker that was down keeps its directory; a live one has deleted it.
    assert set(holders(cluster, topic)) - {controller} == {two, three}
    check_records(cluster, topic, producing)
