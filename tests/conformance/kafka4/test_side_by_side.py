"""The same requests to a real Kafka 4.4: it answers as we do, except where docs/protocol.md says so."""

import uuid

import pytest

from tests.support import kafka_answers
from tests.support.asker import Asker
from tests.support.kafka4 import Kafka4
from tests.support.repeats import only_long

pytestmark = only_long("a real Kafka 4.4")


@pytest.fixture(scope="module")
def asker(tmp_path_factory):
    with (
        Kafka4(tmp_path_factory.mktemp("kafka4")) as running,
        Asker(running.bootstrap, uuid.uuid4().hex[:8], patience_s=5) as made,
    ):
        kafka_answers.prepare(made)
        yield made


@pytest.mark.parametrize("case", kafka_answers.cases(), ids=lambda case: case.name)
def test_a_real_kafka_answers_as_said(asker, case):
    assert case.ask(asker) == case.kafkas
