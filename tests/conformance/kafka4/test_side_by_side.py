"""The same requests to a real Kafka 4.4: it answers as we do, except where docs/protocol.md says so."""

import subprocess
import uuid
from pathlib import Path

import pytest

from tests.support import kafka_answers
from tests.support.asker import Asker
from tests.support.in_process import brokers_in_process
from tests.support.kafka4 import java_program
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
