"""Clients of transaction version 2 begin a transaction at once after a commit, while markers are still written."""

import time

import pytest

from replication.client.kafka_client import KafkaClient
from tests.conformance.clients.members import until
from tests.conformance.clients.transacting import Program, franz, java, librdkafka, values, violations
from tests.support.repeats import only_long, soaked

PARTITIONS, PRODUCERS = 6, 8

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(soaked(600, 1800)),
    only_long("builds programs in Java and Go"),
]


@pytest.mark.parametrize("build", [java, franz, librdkafka])
def test_no_transaction_that_begins_at_once_after_another_fails(cluster, tmp_path, build):
    topic, seconds = f"short-{build.__name__}", soaked(12, 600)
    with KafkaClient(cluster.bootstrap) as client:
        client.create_topic(topic, partitions=PARTITIONS, replicas=3)
        sizes = {"partitions": PARTITIONS, "producers": PRODUCERS}
        with Program(build, cluster.bootstrap, topic, tmp_path / "program", **sizes) as program:
            program.until_moved()
            end_s = time.monotonic() + seconds
            until(lambda: program.failures() or time.monotonic() > end_s, "", within_s=seconds + 60)
            program.end()
        assert program.failures() == []
        assert violations(values(client, topic), program.outcomes()) == []
