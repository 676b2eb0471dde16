"""Spark's own Kafka source and sink over brokers of pylog: batches, micro-batches, and the real-time mode."""

import json
import subprocess
import sys

import pytest

from replication.client.kafka_client import KafkaClient
from tests.conformance.kafka4.test_spark import transactions
from tests.support.kafka4 import spark_jars
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("a JVM for Spark")]
STEPS = ("batch", "committed", "bounded", "streamed", "real_time")
TOPICS = {"columns": 2, "aborted": 1, "source": 2, "streamed": 2, "live": 2, "live-out": 2}
ENDED_WITHIN_S = 500


@pytest.fixture(scope="module")
def found(cluster, tmp_path_factory):
    """The results of each step of the program."""
    jars, directory = spark_jars(), tmp_path_factory.mktemp("spark")
    with KafkaClient(cluster.bootstrap) as client:
        for topic, partitions in TOPICS.items():
            client.create_topic(topic, partitions=partitions, replicas=3)
        transactions(client, "aborted")
    module = "tests.conformance.java.spark_jar_queries"
    command = [sys.executable, "-m", module, cluster.bootstrap, str(jars), str(directory)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=ENDED_WITHIN_S, check=False)
    assert ran.returncode == 0, ran.stderr[-5000:]
    return dict(map(json.loads, ran.stdout.splitlines()))


@pytest.mark.parametrize("step", STEPS)
def test_sparks_own_source_and_sink_are_at_home(found, step):
    for there, wanted in found[step]:
        assert there == wanted
