"""The answers of a broker, request by request; `test_side_by_side` sends the same to a real Kafka."""

import re
from pathlib import Path

import pytest

from tests.support import kafka_answers
from tests.support.asker import Asker
from tests.support.in_process import brokers_in_process

PAGE = Path(__file__).parents[3] / "docs/protocol.md"


@pytest.fixture(scope="module")
def asker(tmp_path_factory):
    settings = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}
    directory = tmp_path_factory.mktemp("answers")
    with (
        brokers_in_process(directory, (1,), group_initial_rebalance_delay_ms=0, **settings) as running,
        Asker(running.bootstrap, "x") as made,
    ):
        kafka_answers.prepare(made)
        yield made


@pytest.mark.parametrize("case", kafka_answers.cases(), ids=lambda case: case.name)
def test_a_broker_answers_as_said(asker, case):
    assert case.ask(asker) == case.ours


def test_the_page_names_what_a_real_kafka_answers_otherwise():
    table = PAGE.read_text().partition("## Where a Kafka 4.4 answers otherwise")[2].partition("\n## ")[0]
    rows = [row[2:].split(" | ")[0] for row in table.splitlines() if re.match(r"\| (?!Request)[A-Z]", row)]
    assert sorted(rows) == sorted({case.name for case in kafka_answers.cases() if case.differs})
