"""Brokers that may have few replicas: whoever asks for more, in whatever way, is told; and what there is goes on."""

import asyncio
import time
from collections import Counter

import pytest

from replication.errors import ErrorCode
from replication.network.client import Client
from replication.protocol.apis import ApiKey
from tests.support.in_process import brokers_in_process

LIMIT = 12


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    settings = {
        "max_broker_partitions": LIMIT,
        "offsets_topic_num_partitions": 2,
        "controlled_shutdown_enable": "false",
    }
    with brokers_in_process(tmp_path_factory.mktemp("limits"), (1, 2), **settings) as running:
        yield running


@pytest.fixture
def ask(brokers):
    """Ask brokers something, all at once; the answers."""

    async def one(broker, key, request):
        endpoint = brokers.brokers[broker].endpoint
        client = Client(endpoint.host, endpoint.port, "test", timeout_ms=30_000)
        try:
            return await client.call(key, request)
        finally:
            client.close()

    def call(*asked):
        async def together():
            return await asyncio.gather(*(one(*each) for each in asked))

        return brokers.do(together())

    return call


def creation(*topics, validate_only=False):
    rows = [
        {"name": name, "num_partitions": count, "replication_factor": -1, "assignments": [], "configs": []}
        for name, count in topics
    ]
    return {"topics": rows, "timeout": 20_000, "validate_only": validate_only}


def codes(answer):
    return {row.name: (ErrorCode(row.error_code), row.error_message) for row in answer.topics}


def test_replicas_beyond_the_limit_are_refused_in_every_way(brokers, ask):
    many = creation(*((f"many-{n}", 1001) for n in range(10)))
    (answer,) = ask((1, ApiKey.CREATE_TOPICS, many))
    assert {code for code, _ in codes(answer).values()} == {ErrorCode.POLICY_VIOLATION}
    assert "10,010 new partitions in one request" in codes(answer)["many-0"][1]

    # Two brokers are asked for twice as much as there is room for, at the same time.
    halves = [(broker, ApiKey.CREATE_TOPICS, creation(*((f"t{n}-{broker}", 4) for n in range(6)))) for broker in (1, 2)]
    found = Counter(code for answer in ask(*halves) for code, _ in codes(answer).values())
    assert found == {ErrorCode.NONE: 6, ErrorCode.POLICY_VIOLATION: 6}
    made = sorted(brokers.brokers[1].replicas.metadata.topics())
    assert len(made) == 6

    grown = {"topics": [{"name": made[0], "count": 5, "assignments": None}], "timeout": 20_000}
    once = {"topic_id": None, "name": "auto"}
    metadata = {
        "topics": [once],
        "allow_auto_topic_creation": True,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    to_both = {"partition_index": 0, "replicas": [1, 2]}
    moved = {"topics": [{"name": made[0], "partitions": [to_both]}], "timeout": 20_000}
    controller = 1 if brokers.brokers[1].controller.is_active else 2
    created, checked, partitions, auto, moves = ask(
        (1, ApiKey.CREATE_TOPICS, creation(("x", 1))),
        (1, ApiKey.CREATE_TOPICS, creation(("x", 1), validate_only=True)),
        (2, ApiKey.CREATE_PARTITIONS, {**grown, "validate_only": False}),
        (2, ApiKey.METADATA, metadata),
        (controller, ApiKey.ALTER_PARTITION_REASSIGNMENTS, moved),
    )
    refused = ErrorCode.POLICY_VIOLATION
    assert codes(created)["x"][0] == codes(checked)["x"][0] == refused
    assert "max.broker.partitions is 12" in codes(created)["x"][1]
    assert partitions.results[0].error_code == auto.topics[0].error_code == moves.error_code == refused
    assert sorted(brokers.brokers[1].replicas.metadata.topics()) == made

    # Groups are not kept from their topic, and what is deleted makes room.
    find = {"key_type": 0, "coordinator_keys": ["g"]}
    deletion = {"topics": [{"name": name, "topic_id": None} for name in made], "timeout": 20_000}
    (coordinator,) = ask((1, ApiKey.FIND_COORDINATOR, find))
    assert coordinator.coordinators[0].error_code in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert "__consumer_offsets" in brokers.brokers[1].replicas.metadata.topics()
    (deleted,) = ask((1, ApiKey.DELETE_TOPICS, deletion))
    assert {row.error_code for row in deleted.responses} == {ErrorCode.NONE}
    end_s = time.monotonic() + 20  # replicas go a moment after their topic
    while codes(ask((1, ApiKey.CREATE_TOPICS, creation(("x", 1))))[0])["x"][0] != ErrorCode.NONE:
        assert time.monotonic() < end_s
        time.sleep(0.05)
