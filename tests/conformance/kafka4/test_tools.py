"""Our tools on a real Kafka 4.4 of three brokers."""

import json
import subprocess
from contextlib import ExitStack, contextmanager
from functools import partial

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition

from datasource import lag_of_group
from replication.client.group_admin import describe_group, list_groups
from replication.client.kafka_client import KafkaClient
from replication.errors import KafkaError
from replication.model.cluster import TopicPartition
from replication.tools.reassignments import present
from tests.support.asker import until
from tests.support.commands import run_pylog
from tests.support.kafka4 import java
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("starts a Kafka")]


@pytest.fixture(scope="module")
def kafka(three_brokers):
    return three_brokers


@pytest.fixture(scope="module")
def client(kafka):
    with KafkaClient(kafka.bootstrap) as made:
        yield made


@pytest.fixture
def pylog(kafka):
    return lambda *words, **given: run_pylog(*words, "--bootstrap-server", kafka.bootstrap, **given)


def values_of(pylog, entity):
    return [row["value"] for row in pylog("configs", "describe", *entity, "--output", "json").ok().json]


def test_settings_of_each_broker_are_changed_at_that_broker(pylog):
    key = "leader.replication.throttled.rate"
    for broker in (1, 2, 3):
        of = ("--entity-type", "brokers", "--entity-name", broker)
        pylog("configs", "alter", *of, "--add-config", f"{key}={broker}000").ok()
        assert f"{broker}000" in values_of(pylog, of)
        pylog("configs", "alter", *of, "--delete-config", key).ok()


def test_a_throttled_reassignment_is_begun_and_verified(pylog, client):
    client.create_topic("moved", partitions=1, replicas=1)
    (before,) = present(client, [TopicPartition("moved", 0)]).values()
    new = [broker for broker in (1, 2, 3) if broker not in before][:1]
    plan = json.dumps({"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": new}]})
    file = ("--reassignment-json-file", "-")
    begun = pylog("reassign-partitions", "--execute", "--throttle", 1_000_000, *file, input=plan).ok()
    assert "throttled to 1000000 bytes" in begun.err
    waited = pylog("reassign-partitions", "--verify", "--wait", *file, input=plan)
    assert "throttle removed from 1 topic and 2 brokers" in waited.err
    # UpdateMetadata may reach the asked broker last. No broker shows a throttle now.
    until(lambda: pylog("reassign-partitions", "--verify", *file, input=plan).code == 0)


@pytest.fixture(scope="module")
def groups(kafka, client):
    """A group of each type that has read a topic, with a member each: their names by type."""
    client.create_topic("read", partitions=2)
    client.append("read", pa.table({"value": [b"x"] * 10}))
    named = {type_: f"group-of-{type_}" for type_ in ("classic", "consumer", "share")}
    shared = java(
        "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
        "--bootstrap-server", kafka.bootstrap, "--topic", "read", "--group", named["share"],
    )  # fmt: skip
    with ExitStack() as ends:
        process = subprocess.Popen(shared, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ends.callback(process.wait)
        ends.callback(process.kill)
        consumers = [ends.enter_context(reading(kafka, named[type_], type_)) for type_ in ("classic", "consumer")]

        def are_assigned():
            for consumer in consumers:
                consumer.poll(0.2)
            listed = [each.id for each in client.run(list_groups) if each.id in named.values()]
            found = [client.run(partial(describe_group, group=name)) for name in listed]
            partitions = {each.type: sum(len(member.partitions) for member in each.members) for each in found}
            return partitions == dict.fromkeys(named, 2)

        until(are_assigned, within_s=120)
        for consumer in consumers:
            consumer.commit(offsets=[ConfluentPartition("read", number, 0) for number in (0, 1)], asynchronous=False)
        yield named


@contextmanager
def reading(kafka, group, protocol):
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": group, "group.protocol": protocol}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    try:
        consumer.subscribe(["read"])
        yield consumer
    finally:
        consumer.close()


@pytest.mark.parametrize("type_", ["classic", "consumer", "share"])
def test_a_group_of_each_type_is_described_with_its_members(pylog, groups, type_):
    name = groups[type_]
    listed = pylog("groups", "list", "--output", "json").ok().json
    assert {(row["group"], row["type"], row["state"]) for row in listed} >= {(name, type_, "Stable")}
    described = pylog("groups", "describe", "--group", name, "--output", "json").ok().json
    assert {(row["topic"], row["partition"], row["type"]) for row in described} == {
        ("read", number, type_) for number in (0, 1)
    }
    offset, lag = (None, None) if type_ == "share" else (0, 10)
    assert {row["current_offset"] for row in described} == {offset}
    assert lag is None or sum(row["lag"] for row in described) == lag
    (member,) = pylog("groups", "members", "--group", name, "--output", "json").ok().json
    assert (member["partitions"], member["assignment"]) == (2, ["read-0", "read-1"])
    named = None if type_ == "share" else member["consumer_id"]  # all members of a share group may read a partition
    assert {row["consumer_id"] for row in described} == {named}


def test_all_groups_are_described_together_and_what_is_none_is_said(pylog, groups, kafka):
    told = pylog("groups", "describe", "--all-groups", "--output", "json").ok().json
    assert {row["group"] for row in told} >= set(groups.values())  # other tests have some in this Kafka, too
    shown = pylog("cluster", "status", "--groups", 1000, "--output", "json").ok().json["groups"]
    assert {row["group"]: row["lag"] for row in shown}[groups["consumer"]] == 10
    told = pylog("groups", "describe", "--group", "never", "--group", groups["consumer"])
    assert (told.code, len(told.lines)) == (1, 3)
    never = pylog("groups", "reset-offsets", "--group", "never", "--all-topics", "--to-latest", "--execute")
    assert "group id not found" in never.failed()
    with pytest.raises(KafkaError):
        lag_of_group(kafka.bootstrap, "never")
    assert lag_of_group(kafka.bootstrap, groups["consumer"])["offsetsBehindLatest"] == 10


def test_every_api_of_a_kafka_has_its_name(pylog):
    names = [row["api"] for row in pylog("broker-api-versions", "--output", "json").ok().json]
    assert len(set(names)) > 60
    assert "UNKNOWN" not in names
