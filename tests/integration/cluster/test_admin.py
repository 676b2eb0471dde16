"""The answers to administrators, code by code; other tests send every version of every request."""

import asyncio

import pytest

from replication.errors import ErrorCode
from replication.network.client import Client
from replication.protocol.apis import ApiKey

pytestmark = pytest.mark.slow

TOPIC, BROKER = 2, 4


@pytest.fixture
def ask(cluster):
    """Ask a broker something in the newest version."""

    def call(key, broker=1, **request):
        async def once():
            host, _, port = cluster.running.address(broker).rpartition(":")
            client = Client(host, int(port), "test", timeout_ms=20_000)
            try:
                return await client.call(key, request)
            finally:
                client.close()

        return asyncio.run(once())

    return call


def new(name, partitions=1, replicas=1, assignments=(), **configs):
    rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": [{"partition_index": n, "broker_ids": row} for n, row in assignments],
        "configs": rows,
    }


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (new("..") , ErrorCode.INVALID_TOPIC_EXCEPTION),
        (new("not a name"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (new("x", partitions=0), ErrorCode.INVALID_PARTITIONS),
        (new("x", replicas=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (new("x", replicas=4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (new("x", dummy_doesntexist="1"), ErrorCode.INVALID_CONFIG),
        (new("x", retention_ms="soon"), ErrorCode.INVALID_CONFIG),
        (new("x", min_compaction_lag_ms="2", max_compaction_lag_ms="1"), ErrorCode.INVALID_CONFIG),
        (new("x", -1, -1, [(0, (9,))]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (new("x", -1, -1, [(0, (1, 1))]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (new("x", -1, -1, [(1, (1,))]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (new("x", 1, 1, [(0, (1,))]), ErrorCode.INVALID_REQUEST),
    ],
)  # fmt: skip
def test_a_topic_that_cannot_be_is_refused_and_others_of_the_request_are_made(cluster, ask, topic, code):
    good = next(cluster.names)
    answer = ask(ApiKey.CREATE_TOPICS, topics=[topic, new(good)], timeout=20_000, validate_only=False)
    assert [row.error_code for row in answer.topics] == [code, ErrorCode.NONE]
    assert cluster.states(good)
    assert cluster.states(topic["name"]) == {}


def test_a_topic_is_made_once_and_only_if_it_is_meant(cluster, ask):
    name = next(cluster.names)

    def create(*topics, validate_only=False):
        return [
            row.error_code
            for row in ask(ApiKey.CREATE_TOPICS, topics=topics, timeout=20_000, validate_only=validate_only).topics
        ]

    assert create(new(name), new(name)) == [ErrorCode.INVALID_REQUEST]
    assert create(new(name), validate_only=True) == [ErrorCode.NONE]
    assert cluster.states(name) == {}
    assert create(new(name)) == [ErrorCode.NONE]
    assert create(new(name)) == [ErrorCode.TOPIC_ALREADY_EXISTS]


def test_names_that_are_the_same_in_metrics_are_refused_whoever_asks_for_them(cluster, ask):
    """my.topic and my_topic, in one request, in two, of other brokers, by a producer; and what brokers write to."""
    name = f"a.{next(cluster.names)}_x"

    def create(*names, broker=1, validate_only=False):
        request = {"topics": [*map(new, names)], "timeout": 20_000, "validate_only": validate_only}
        return [row.error_code for row in ask(ApiKey.CREATE_TOPICS, broker, **request).topics]

    refused = ErrorCode.INVALID_TOPIC_EXCEPTION
    other = name.replace(".", "_")
    assert sorted(create(name, other)) == [ErrorCode.NONE, refused]
    (made,) = [each for each in (name, other) if cluster.states(each)]
    (left,) = {name, other} - {made}
    for broker in (1, 2, 3):
        assert create(left, name.replace("_", "."), broker=broker) == [refused, refused]
    assert create(left, broker=2, validate_only=True) == [refused]
    assert create(made) == [ErrorCode.TOPIC_ALREADY_EXISTS]
    assert create("__consumer.offsets") == [refused]
    answer = ask(ApiKey.METADATA, topics=[{"topic_id": None, "name": left}], allow_auto_topic_creation=True,
                 include_topic_authorized_operations=False)  # fmt: skip
    assert [row.error_code for row in answer.topics] == [refused]
    assert cluster.states(left) == {}


def test_settings_are_described_changed_and_given_back(cluster, ask):
    topic = cluster.create((1,), retention_ms=1000)

    def described(*keys):
        asked = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": keys or None}
        answer = ask(ApiKey.DESCRIBE_CONFIGS, resources=[asked], include_synonyms=False, include_documentation=False)
        return {row.name: (row.value, row.config_source) for row in answer.results[0].configs}

    def change(*rows, key=ApiKey.INCREMENTAL_ALTER_CONFIGS):
        asked = {"resource_type": TOPIC, "resource_name": topic, "configs": rows}
        return ask(key, resources=[asked], validate_only=False).responses[0].error_code

    def row(name, operation, value=None):
        return {"name": name, "config_operation": operation, "value": value}

    cluster.until(described)  # this broker hears of the topic a moment after the one that made it
    assert described("retention.ms", "segment.ms") == {
        "retention.ms": ("1000", 1),
        "segment.ms": ("604800000", 5),
    }
    assert change(row("cleanup.policy", 2, "compact"), row("retention.ms", 1)) == ErrorCode.NONE
    assert described("retention.ms", "cleanup.policy") == {
        "retention.ms": ("604800000", 5),
        "cleanup.policy": ("delete,compact", 1),
    }
    assert change(row("cleanup.policy", 3, "delete")) == ErrorCode.NONE
    assert described("cleanup.policy") == {"cleanup.policy": ("compact", 1)}
    assert change(row("retention.ms", 2, "5")) == ErrorCode.INVALID_CONFIG
    assert change(row("no.such.setting", 0, "5")) == ErrorCode.INVALID_CONFIG
    lags = row("min.compaction.lag.ms", 0, "2"), row("max.compaction.lag.ms", 0, "1")
    assert change(*lags) == ErrorCode.INVALID_CONFIG
    assert change({"name": "segment.ms", "value": "5000"}, key=ApiKey.ALTER_CONFIGS) == ErrorCode.NONE
    assert {name for name, (_, source) in described().items() if source == 1} == {"segment.ms"}


def test_a_broker_tells_its_own_settings_and_nobody_elses(ask):
    def described(name):
        asked = {"resource_type": BROKER, "resource_name": name, "configuration_keys": None}
        return ask(
            ApiKey.DESCRIBE_CONFIGS, 2, resources=[asked], include_synonyms=True, include_documentation=True
        ).results[0]

    mine = {row.name: row for row in described("2").configs}
    assert (mine["broker.id"].value, mine["broker.id"].read_only, mine["broker.id"].config_source) == (
        "2",
        True,
        4,
    )
    assert mine["advertised.listeners"].documentation
    assert described("1").error_code == ErrorCode.INVALID_REQUEST


def test_metadata_makes_topics_only_when_it_may(cluster, ask):
    name = next(cluster.names)

    def codes(*names, may_create):
        topics = [{"name": each, "topic_id": None} for each in names]
        answer = ask(
            ApiKey.METADATA, topics=topics, allow_auto_topic_creation=may_create,
            include_topic_authorized_operations=False,
        )  # fmt: skip
        assert {broker.node_id for broker in answer.brokers} == {1, 2, 3}
        assert answer.controller_id == cluster.running.controller()
        return [topic.error_code for topic in answer.topics]

    assert codes(name, may_create=False) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert codes("not a name", may_create=True) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert codes(name, may_create=True) == [ErrorCode.NONE]
    assert len(cluster.states(name)) == 1
