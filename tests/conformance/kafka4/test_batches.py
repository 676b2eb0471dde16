"""Batches beside a real Kafka 4.4: what our client and tools send is taken there."""

import os
import socket
import time

import pyarrow as pa
import pytest

import logstore
from replication.client.kafka_client import KafkaClient
from replication.local_cluster import LocalCluster
from replication.protocol import apis
from replication.protocol.apis import ApiKey
from replication.protocol.messages import ProducePartition, ProduceRequest, ProduceTopic
from replication.tools.mirror import mirror
from tests.support.commands import run_pylog
from tests.support.hostile_batches import CASES
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("starts a Kafka")]
ROWS, SIZE = 4000, 1000  # several batches


@pytest.fixture(scope="module")
def kafka(one_broker):
    return one_broker


@pytest.fixture(scope="module")
def client(kafka):
    with KafkaClient(kafka.bootstrap) as made:
        yield made


def table():
    return pa.table({"value": [os.urandom(SIZE) for _ in range(ROWS)]})


def until(holds, within_s=60):
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.1)


def counted(client, topic):
    return sum(batch.num_rows for batch in client.read(topic, 0, 0, ROWS))


def test_a_kafka_takes_several_batches_of_our_producers(client):
    """Each begins at offset 0, or the Kafka refuses it: with each kind of acks, compressed, and in a transaction."""
    for number, settings in enumerate(({}, {"acks": 1}, {"acks": 0}, {"compression_type": "lz4"})):
        topic = f"sent-{number}"
        client.create_topic(topic, partitions=1)
        with client.producer(**settings) as producer:
            producer.send(topic, table()).result(60)
        if settings.get("acks") == 0:  # nobody tells when they are there
            until(lambda topic=topic: counted(client, topic) == ROWS)
        assert counted(client, topic) == ROWS
    client.create_topic("appended", partitions=1)
    assert client.append("appended", table())[0][:2] == (0, ROWS)
    client.create_topic("in-transaction", partitions=1)
    with client.transaction("id") as transaction:
        transaction.append("in-transaction", table())
    assert counted(client, "in-transaction") == ROWS


def test_a_kafka_takes_what_mirror_and_perf_bring(kafka, client):
    with LocalCluster(brokers=1) as source:
        with KafkaClient(source.bootstrap) as origin:
            origin.create_topic("mirrored", partitions=1)
            origin.append("mirrored", table())
        assert sum(copied.records for copied in mirror(source.bootstrap, kafka.bootstrap, topics=["mirrored"])) == ROWS
    assert counted(client, "mirrored") == ROWS
    client.create_topic("measured", partitions=1)
    address = ("--bootstrap-server", kafka.bootstrap, "--topic", "measured")
    run_pylog("perf", "produce", *address, "--num-records", str(ROWS), "--record-size", str(SIZE))
    assert counted(client, "measured") == ROWS


def test_mirror_names_the_settings_that_it_leaves_out_and_copies_the_others(kafka, client, tmp_path, caplog):
    settings = {"message.timestamp.after.max.ms": "99999999", "max.message.bytes": "70000"}
    client.create_topic("set", partitions=1, **settings, **{"compression.zstd.level": "5"})
    client.append("set", table().slice(0, 3))
    with LocalCluster(brokers=1) as ours:
        for target in (str(tmp_path / "copy"), ours.bootstrap):
            caplog.clear()
            (copied,) = mirror(kafka.bootstrap, target, topics=["set"])
            assert copied.records == 3
            assert "does not know compression.zstd.level" in caplog.text
        with KafkaClient(ours.bootstrap) as there:
            assert there.overrides(["set"])["set"].items() >= settings.items()
    with logstore.open(tmp_path / "copy", mode="r") as store:
        assert store.topic("set").overrides.items() >= settings.items()


@pytest.mark.parametrize("name", CASES)
def test_a_real_kafka_answers_as_the_page_says(kafka, client, name):
    case = CASES[name]
    settings = {"compact": {"cleanup.policy": "compact"}, "append time": {"message.timestamp.type": "LogAppendTime"}}
    topic = f"hostile-{case.kind.replace(' ', '-')}"
    if topic not in client.topics():
        client.create_topic(topic, partitions=1, replicas=1, **settings.get(case.kind, {}))
    wanted = case.code if case.kafka == "same" else case.kafka
    assert produced(kafka, topic, case.data) == (None if wanted is None else int(wanted))


def produced(kafka, topic, data):
    """The error code for these bytes; None: it does not answer."""
    topics = (ProduceTopic(topic, (ProducePartition(0, data),)),)
    host, port = kafka.address(1).split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        for piece in apis.encode_request(ApiKey.PRODUCE, 9, 1, "test", ProduceRequest(-1, 5000, topics)):
            connection.sendall(piece)
        try:
            answered = b""
            while len(answered) < 4 or len(answered) < 4 + int.from_bytes(answered[:4], "big"):
                piece = connection.recv(65536)
                if not piece:
                    return None
                answered += piece
        except TimeoutError:
            return None
    found = apis.decode_response(ApiKey.PRODUCE, 9, memoryview(answered)[4:])[1]
    return found.topics[0].partitions[0].error_code
