"""The same requests to a real Kafka 4.4: it answers as we do, except where docs/protocol.md says so."""

import subprocess
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from replication.coordinators.groups.consumer.records import decode, encode
from replication.coordinators.groups.consumer.state import Progress
from replication.coordinators.groups.keys import Key, Kind
from replication.model.cluster import OFFSETS_TOPIC
from tests.support import kafka_answers
from tests.support.asker import Asker, until
from tests.support.in_process import brokers_in_process
from tests.support.kafka4 import java_program
from tests.support.kafka_answers.consumers import Member
from tests.support.kafka_answers.topics import create, topic_id
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("starts a Kafka")]
JAVA = Path(__file__).parent / "java/AdminAnswers.java"


@pytest.fixture(scope="module")
def kafka(one_broker):
    return one_broker


@pytest.fixture(scope="module")
def asker(kafka):
    with Asker(kafka.bootstrap, uuid.uuid4().hex[:8], patience_s=5) as made:
        kafka_answers.prepare(made)
        yield made


@pytest.mark.parametrize("case", kafka_answers.cases(), ids=lambda case: case.name)
def test_a_real_kafka_answers_as_said(asker, case):
    assert case.ask(asker) == case.kafkas


def test_a_real_kafka_writes_assignments_and_their_epochs_as_we_do(kafka, asker):
    name = asker.named("epochs-of-three")
    create(asker, name, num_partitions=3)
    first, second = (Member(asker, "written", name) for name in ("m1", "m2"))
    number = topic_id(asker, name)
    until(lambda: first.hear(0, subscribed_topic_names=(name,))[2])
    then = first.epoch
    second.hear(0, subscribed_topic_names=(name,))
    kept = until(lambda: first.hear()[2])
    first.hear(topic_partitions=({"topic_id": number, "partitions": kept[0]},))
    until(lambda: second.hear()[2])
    written = [
        (Key(Kind.CURRENT, record.key()[-2:].decode()), record.value())
        for record in records_of_offsets(kafka.bootstrap)
        if record.key()[:2] == b"\0\x08" and first.group.encode() in record.key()
    ]
    read = [decode(*each) for each in written]
    assert [encode(each) for each in read] == [value for _, value in written]
    assert {each.progress for each in read} >= {Progress.STABLE, Progress.REVOKING}
    last = dict(zip((key.of for key, _ in written), read, strict=True))
    assert sorted(last["m1"].since.values()) == [then, then]
    assert list(last["m2"].since.values()) == [last["m2"].epoch] == [last["m1"].epoch]
    assert last["m1"].epoch > then


def records_of_offsets(bootstrap):
    """Return what `__consumer_offsets` has."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.partition.eof": True})
    partitions = consumer.list_topics(OFFSETS_TOPIC, timeout=30).topics[OFFSETS_TOPIC].partitions
    consumer.assign([TopicPartition(OFFSETS_TOPIC, number, 0) for number in partitions])
    found, ends = [], 0
    while ends < len(partitions):
        record = consumer.poll(30)
        assert record is not None
        if record.error() is None:
            found.append(record)
        else:
            assert record.error().code() == KafkaError._PARTITION_EOF
            ends += 1
    consumer.close()
    return found


def test_javas_clients_get_of_our_brokers_what_a_real_kafka_tells(kafka, tmp_path):
    """By ids, of the largest time behind a marker, and of producers from any replica."""
    settings = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}
    with brokers_in_process(tmp_path / "brokers", (1, 2), **settings) as ours:
        told = [told_to_java(each.bootstrap, tmp_path / "classes") for each in (kafka, ours)]
    assert (
        told[0]
        == told[1]
        == [
            "by its id: by-id",
            "by an unknown id: UnknownTopicIdException",
            "largest time: at 3",
            "replicas that do not tell of producers: 0",
            "earliest local: 0",
            "earliest pending upload: -1",
            "latest tiered: -1",
            "in pages of two: [0, 1, 2, 3, 4], eligible leaders: [], known before: []",
            "fenced: 0",
            "transactions: [by-id]",
            "deleted by its id",
        ]
    )


def told_to_java(bootstrap, classes):
    command = java_program(JAVA, classes, bootstrap)
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()
