"""Topics made, described, changed, shortened and deleted by the admin clients; listed by kcat."""

import asyncio
import contextlib
import re
from pathlib import Path

import aiokafka
import aiokafka.admin
import confluent_kafka
import pytest
from aiokafka.admin.config_resource import ConfigResource as AioResource
from aiokafka.admin.config_resource import ConfigResourceType as AioType
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from .members import until
from .tools import PATIENCE_S, Kcat, kafka

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated. Use files:DeprecationWarning")


class Confluent:
    """The questions of the test, with confluent-kafka's words."""

    exists = confluent_kafka.KafkaException

    def __init__(self, bootstrap):
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def create(self, name, config):
        self.admin.create_topics([NewTopic(name, 2, 3, config=config)])[name].result(PATIENCE_S)

    def partitions(self, name):
        topic = self.admin.list_topics(timeout=PATIENCE_S).topics.get(name)
        return {} if topic is None else {p.id: len(p.replicas) for p in topic.partitions.values()}

    def grow(self, name, count):
        self.admin.create_partitions([NewPartitions(name, count)])[name].result(PATIENCE_S)

    def config(self, name, key):
        resource = ConfigResource(ResourceType.TOPIC, name)
        return self.admin.describe_configs([resource])[resource].result(PATIENCE_S)[key].value

    def set(self, name, key, value):
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

    def shorten(self, name, offset):
        asked = confluent_kafka.TopicPartition(name, 0, offset)
        return self.admin.delete_records([asked])[asked].result(PATIENCE_S).low_watermark

    def brokers(self):
        return {node.id for node in self.admin.describe_cluster().result(PATIENCE_S).nodes}

    def delete(self, name):
        self.admin.delete_topics([name])[name].result(PATIENCE_S)

    def close(self):
        pass


class KafkaPython:
    exists = kafka.errors.TopicAlreadyExistsError

    def __init__(self, bootstrap):
        self.admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)

    def create(self, name, config):
        new = kafka.admin.NewTopic(name, num_partitions=2, replication_factor=3, topic_configs=config)
        self.admin.create_topics([new])

    def partitions(self, name):
        found = self.admin.describe_topics()
        rows = next((topic["partitions"] for topic in found if topic["name"] == name), ())
        return {p["partition_index"]: len(p["replica_nodes"]) for p in rows}

    def grow(self, name, count):
        self.admin.create_partitions({name: kafka.admin.NewPartitions(count)})

    def config(self, name, key):
        resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, name)
        found = self.admin.describe_configs([resource], config_filter="all")
        value = re.search(rf"'{key}': {{[^}}]*'value': '([^']*)'", str(found))
        return value and value[1]

    def set(self, name, key, value):
        resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, name, configs={key: value})
        self.admin.alter_configs([resource])

    def shorten(self, name, offset):
        tp = kafka.TopicPartition(name, 0)
        found = self.admin.delete_records({tp: offset})[tp]
        return found["low_watermark"] if isinstance(found, dict) else found

    def brokers(self):
        return {broker["broker_id"] for broker in self.admin.describe_cluster()["brokers"]}

    def delete(self, name):
        self.admin.delete_topics([name])

    def close(self):
        self.admin.close()


class Aiokafka:
    exists = aiokafka.errors.TopicAlreadyExistsError

    def __init__(self, bootstrap):
        self.runner = asyncio.Runner()
        self.admin = self.runner.run(self._start(bootstrap))

    async def _start(self, bootstrap):
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        return admin

    def run(self, asked):
        found = self.runner.run(asyncio.wait_for(asked, PATIENCE_S))
        for _, code, *_ in getattr(found, "topic_errors", None) or getattr(found, "topic_error_codes", ()):
            if code:
                raise aiokafka.errors.for_code(code)
        return found

    def create(self, name, config):
        self.run(self.admin.create_topics([aiokafka.admin.NewTopic(name, 2, 3, topic_configs=config)]))

    def partitions(self, name):
        found = self.run(self.admin.describe_topics())  # of all: to ask for one by its name would make it
        rows = next((topic["partitions"] for topic in found if topic["topic"] == name), ())
        return {p["partition"]: len(p["replicas"]) for p in rows}

    def grow(self, name, count):
        self.run(self.admin.create_partitions({name: aiokafka.admin.NewPartitions(count)}))

    def config(self, name, key):
        (answer,) = self.run(self.admin.describe_configs([AioResource(AioType.TOPIC, name)]))
        entries = answer.resources[0][4]
        return next((entry[1] for entry in entries if entry[0] == key), None)

    def set(self, name, key, value):
        resource = AioResource(AioType.TOPIC, name, configs={key: value})
        self.run(self.admin.alter_configs([resource]))

    def shorten(self, name, offset):
        tp = aiokafka.TopicPartition(name, 0)
        return self.run(self.admin.delete_records({tp: aiokafka.admin.RecordsToDelete(offset)}))[tp]

    def brokers(self):
        return {broker["node_id"] for broker in self.run(self.admin.describe_cluster())["brokers"]}

    def delete(self, name):
        self.run(self.admin.delete_topics([name]))

    def close(self):
        self.run(self.admin.close())
        self.runner.close()


@pytest.fixture(params=[Confluent, KafkaPython, Aiokafka], ids=lambda made: made.__name__.lower())
def admin(request, cluster):
    with contextlib.closing(request.param(cluster.bootstrap)) as made:
        yield made


def has(admin, name, partitions):
    """Every broker is asked, in turn, and hears of a change when it is told: that is soon."""
    until(lambda: admin.partitions(name) == dict.fromkeys(range(partitions), 3), f"{partitions} partitions")
    return True


def test_the_life_of_a_topic(admin, all_tools):
    name = f"life-of-{type(admin).__name__}"
    assert admin.brokers() == {1, 2, 3}
    admin.create(name, {"retention.ms": "3600000"})
    assert has(admin, name, 2)
    until(lambda: admin.config(name, "retention.ms") == "3600000", "retention.ms")
    assert admin.config(name, "cleanup.policy") == "delete"
    with pytest.raises(admin.exists):
        admin.create(name, {})
    writer, reader = (
        all_tools[-1],
        all_tools[0],
    )  # nobody who goes on to ask for the topic, which would make it anew
    writer.produce(name, [f"{number}" for number in range(20)])
    assert admin.shorten(name, 7) == 7
    assert (reader.offset_at(name, 0, -2), reader.offset_at(name, 0, -1)) == (7, 20)
    assert admin.shorten(name, -1) == 20
    admin.grow(name, 5)
    assert has(admin, name, 5)
    until(lambda: writes(writer, name, "to the new one", 4), "the new partition is known to all")
    assert reader.consume(name, 1, partition=4)[0][2] == "to the new one"
    admin.set(name, "max.message.bytes", "2000")
    until(lambda: admin.config(name, "max.message.bytes") == "2000", "max.message.bytes")
    admin.delete(name)
    assert has(admin, name, 0)
    # The same name, and another topic.
    until(lambda: makes(admin, name), "the former topic is gone everywhere")
    assert has(admin, name, 2)
    until(lambda: ends_at(reader, name) == 0, "its records are gone")


def test_log_dirs_are_told_with_their_bytes(cluster):
    with contextlib.closing(kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)) as admin:
        admin.create_topics([kafka.admin.NewTopic("sized", num_partitions=2, replication_factor=3)])
        cluster_says = admin.describe_log_dirs({"sized": [0, 1], "nobody": [3]})
        everything = admin.describe_log_dirs()
    assert {row["broker"] for row in cluster_says} == {1, 2, 3}
    for row in cluster_says:
        (log_dir,) = row["log_dirs"]
        assert Path(log_dir["log_dir"]).name == f"broker-{row['broker']}"
        assert {t["name"]: len(t["partitions"]) for t in log_dir["topics"]} == {"sized": 2}
    assert all(len(row["log_dirs"][0]["topics"]) >= 1 for row in everything)


def makes(admin, name):
    try:
        admin.create(name, {})
    except admin.exists:  # brokers hear first that a topic is deleted, then its replicas go
        return False
    return True


def writes(writer, name, value, partition):
    try:
        writer.produce(name, [value], partition=partition)
    except AssertionError:  # it asked a broker that has not heard of it yet
        return False
    return True


def ends_at(reader, name):
    try:
        return reader.offset_at(name, 0, -1)
    except (AssertionError, confluent_kafka.KafkaException):  # a broker that has not heard of it yet
        return None


def test_kcat_lists_brokers_topics_leaders_and_replicas(cluster):
    kcat = Kcat(cluster.bootstrap)
    kcat.produce("listed", ["a"])
    text = kcat.run("-L", "-t", "listed")
    assert " 3 brokers:" in text
    assert 'topic "listed" with 3 partitions:' in text
    assert len(re.findall(r"partition \d, leader [123], replicas: [123,]{5}, isrs: [123,]{1,5}", text)) == 3
