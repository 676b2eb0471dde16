"""Schemas of a cluster: several clients register at once, and the leader of the topic is killed meanwhile."""

import json
import threading

import pytest

from logstore import InvalidRequestError
from logstore.schemas.registry import UnknownSchemaError, schema_of
from logstore.schemas.subjects import TOPIC
from replication.client.kafka_client import KafkaClient
from replication.errors import KafkaError
from replication.model.cluster import TopicPartition
from tests.integration.cluster.conftest import running
from tests.support.repeats import only_long, soaked

pytestmark = pytest.mark.slow

STRING, INT = schema_of("AVRO", '"string"'), schema_of("AVRO", '"int"')


def test_clients_see_what_each_other_registers(cluster, client):
    assert client.schemas.subjects() == []
    assert TOPIC not in client.topics()
    first = client.schemas.register("orders-value", STRING)
    assert client.topic(TOPIC).replicas == 3
    with KafkaClient(cluster.running.bootstrap) as other:
        assert other.schemas.latest("orders-value") == first
        assert other.schemas.register("orders-key", INT).id == 2
        assert client.schemas.by_id(2) == INT
        assert other.schemas.delete("orders-key") == [1]
        assert client.schemas.subjects() == ["orders-value"]
        client.schemas.set_level("FULL", "orders-value")
        assert other.schemas.level("orders-value") == "FULL"
    with pytest.raises(UnknownSchemaError, match=r"'order-value' is not in _schemas of the cluster .*; did you mean"):
        client.schemas.latest("order-value")
    with pytest.raises(UnknownSchemaError, match=r"id 77 in _schemas of the cluster .* by schema\.registry\.url"):
        client.schemas.by_id(77)
    with pytest.raises(KafkaError, match="pylog hands out the ids of _schemas here"):
        client.append(TOPIC, [{"key": b'{"keytype":"NOOP","magic":0}', "value": None}])


@only_long("the commands on a directory always run")
def test_topics_have_columns_by_command_and_by_client(client, pylog, name):
    pylog("topics", "create", name, "--value-schema", "n bigint").ok()
    client.create_topic(f"{name}-typed", schema="n bigint", key_schema="id int")
    rows = pylog("schemas", "list", "--output", "json").ok().json
    assert [(row["subject"], row["id"]) for row in rows] == [
        (f"{name}-typed-key", 2),
        (f"{name}-typed-value", 1),
        (f"{name}-value", 1),
    ]
    pylog("topics", "alter", name, "--key-schema", "id int").ok()
    assert pylog("schemas", "get", f"{name}-key", "--output", "json").ok().json["columns"] == "id int"
    assert "exists already" in pylog("topics", "create", name, "--value-schema", "m bigint").failed()
    assert [entry.version for entry in client.schemas.versions(f"{name}-value")] == [1]
    client.append(name, [{"value": '{"n": 1, "user": "Ada"}'}])
    assert pylog("schemas", "infer", name).ok().out == "n bigint, user string\n"
    pylog("schemas", "delete", f"{name}-key", "--yes").ok()
    assert "written by" not in pylog("schemas", "level", f"{name}-value", "--set", "NONE").ok().err


@only_long("brokers without processes are tested for it")
def test_a_topic_that_a_registry_writes_is_only_read(client):
    client.create_topic(TOPIC, cleanup_policy="compact")
    key = b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    value = b'{"subject":"s","version":1,"id":3,"schema":"\\"string\\"","deleted":false}'
    client.append(TOPIC, [{"key": key, "value": value}])
    assert client.schemas.latest("s").id == 3
    with pytest.raises(InvalidRequestError, match="written by another registry"):
        client.schemas.register("t", INT)


def register_many(bootstrap, name, acknowledged, is_over):
    """Register schemas of one's own, and such as everybody has, until it is over, and some more after that."""
    with KafkaClient(bootstrap) as client:
        number = 0
        while not is_over.is_set() or number % 20:
            for subject, kind in ((f"{name}-{number}", f"{name}{number}"), (f"common-{number}", f"common{number}")):
                text = json.dumps({"type": "fixed", "name": kind, "size": 1})
                entry = client.schemas.register(subject, schema_of("AVRO", text))
                acknowledged.append((subject, entry.schema.text, entry.version, entry.id))
            number += 1


def assert_one_id_each(client, acknowledged):
    """Assert that each id is of one text, that each text has one, and that each acknowledged version is there."""
    texts = {}
    extent = client.extents(TOPIC)[0]
    for rows in client.read(TOPIC, 0, extent.start, extent.end):
        for row in rows.to_pylist():
            value = json.loads(row["value"])
            assert texts.setdefault(value["id"], value["schema"]) == value["schema"]
    assert len(set(texts.values())) == len(texts), "a text with two ids"
    assert sorted(texts) == list(range(1, len(texts) + 1))
    for subject, text, version, number in acknowledged:
        (entry,) = client.schemas.versions(subject)
        assert (entry.schema.text, entry.version, entry.id) == (text, version, number)


@pytest.mark.soak
@pytest.mark.timeout(900)
@only_long("a cluster of its own, and its failovers")
def test_two_clients_register_while_the_leader_is_killed_and_no_id_is_handed_out_twice():
    with running() as cluster, KafkaClient(cluster.running.bootstrap) as client:
        client.schemas.register("first", STRING)
        acknowledged, is_over = [], threading.Event()
        arguments = cluster.running.bootstrap
        threads = [
            threading.Thread(target=register_many, args=(arguments, name, acknowledged, is_over)) for name in "ab"
        ]
        for thread in threads:
            thread.start()
        for _ in range(soaked(2, 20)):
            before = len(acknowledged)
            cluster.until(lambda before=before: len(acknowledged) > before + 30, timeout_s=120)
            leader = cluster.running.describe().leadership[TopicPartition(TOPIC, 0)].leader
            cluster.running.kill(leader)
            cluster.until(
                lambda leader=leader: cluster.running.describe().leadership[TopicPartition(TOPIC, 0)].leader != leader,
                timeout_s=120,
            )
            cluster.running.restart(leader)
        is_over.set()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)
        assert_one_id_each(client, acknowledged)
