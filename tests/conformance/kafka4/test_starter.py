"""The starter of a real Kafka 4.4 starts one: other tests of this folder build on it."""

import pytest

from replication.client.kafka_client import KafkaClient
from tests.support.kafka4 import Kafka4, run_tool
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), only_long("starts a Kafka")]


def test_a_real_kafka_serves_our_client_and_its_own_tools_and_survives_a_kill(tmp_path):
    with Kafka4(tmp_path) as kafka, KafkaClient(kafka.bootstrap) as client:
        client.create_topic("greetings", partitions=2)
        words = ("--bootstrap-server", kafka.bootstrap, "--describe", "--topic", "greetings")
        assert "PartitionCount: 2" in run_tool("org.apache.kafka.tools.TopicCommand", *words).stdout
        kafka.kill(1)
        kafka.start(1)
        assert client.topics()
