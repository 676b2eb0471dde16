"""Our tools on a real Kafka 4.4 of three brokers."""

import json

import pytest

from replication.client.kafka_client import KafkaClient
from replication.model.cluster import TopicPartition
from replication.tools.reassignments import present
from tests.support.commands import rows, run_pylog
from tests.support.kafka4 import Kafka4
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, only_long("starts a Kafka")]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    with Kafka4(tmp_path_factory.mktemp("kafka4"), 3) as running:
        yield running


@pytest.fixture(scope="module")
def client(kafka):
    with KafkaClient(kafka.bootstrap) as made:
        yield made


@pytest.fixture
def pylog(kafka):
    return lambda *words, **given: run_pylog(*words, "--bootstrap-server", kafka.bootstrap, **given)


def test_settings_of_each_broker_are_changed_at_that_broker(pylog):
    key = "leader.replication.throttled.rate"
    for broker in (1, 2, 3):
        of = ("--entity-type", "brokers", "--entity-name", broker)
        pylog("configs", "alter", *of, "--add-config", f"{key}={broker}000").ok()
        described = pylog("configs", "describe", *of, "--output", "json").ok().json
        assert [row["value"] for row in described if row["name"] == key] == [f"{broker}000"]
        pylog("configs", "alter", *of, "--delete-config", key).ok()


def test_a_throttled_reassignment_is_begun_and_verified(pylog, client):
    client.create_topic("moved", partitions=1, replicas=1)
    (before,) = present(client, [TopicPartition("moved", 0)]).values()
    new = [broker for broker in (1, 2, 3) if broker not in before][:1]
    plan = json.dumps({"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": new}]})
    file = ("--reassignment-json-file", "-")
    begun = pylog("reassign-partitions", "--execute", "--throttle", 1_000_000, *file, input=plan).ok()
    assert "throttled to 1000000 bytes" in begun.err
    verified = pylog("reassign-partitions", "--verify", "--wait", *file, input=plan).ok()
    assert rows(verified)[0][-1] == "complete"
    assert "throttle removed from 1 topic and 2 brokers" in verified.err
    pylog("reassign-partitions", "--verify", *file, input=plan).ok()  # no broker shows a throttle now
