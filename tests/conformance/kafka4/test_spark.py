"""Spark over a real Kafka 4.4 of three brokers, beside Spark's own Kafka source: the same rows, each once."""

import json
import subprocess
import sys
import time
from contextlib import suppress

import pyarrow as pa
import pytest

from replication.client.kafka_client import KafkaClient
from tests.support.kafka4 import spark_jars
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("a real Kafka 4.4, and a JVM for Spark")]

STEPS = ("large", "once", "columns", "committed", "streamed", "bounded")
ENDED_WITHIN_S = 600
TOPICS = {"once": 2, "columns": 2, "aborted": 1, "source": 2, "streamed": 1}
TOPICS |= {f"large-{codec}": 1 for codec in ("none", "zstd")}


@pytest.fixture(scope="module")
def found(three_brokers, tmp_path_factory):
    """The results of each step of the program."""
    kafka, jars, directory = three_brokers, spark_jars(), tmp_path_factory.mktemp("spark")
    with KafkaClient(kafka.bootstrap) as client:
        for topic, partitions in TOPICS.items():
            client.create_topic(topic, partitions=partitions, replicas=3, retention_ms=-1)  # times of 1970
        transactions(client, "aborted")
    command = [sys.executable, "-m", "tests.conformance.kafka4.spark_queries", kafka.bootstrap, jars, directory]
    with (directory / "said").open("w+") as said, (directory / "errors").open("w+") as errors:
        process = subprocess.Popen(list(map(str, command)), stdout=said, stderr=errors)
        try:
            kill_while_streaming(kafka, process, directory)
            process.wait(ENDED_WITHIN_S)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, (directory / "errors").read_text()[-5000:]
    return dict(map(json.loads, (directory / "said").read_text().splitlines()))


def transactions(client, topic):
    """Two committed transactions, and between them one that is aborted."""
    for number, failure in enumerate((None, RuntimeError, RuntimeError, None)):
        rows = pa.table({"value": [f"{number}-{n}" for n in range(250)]})
        with suppress(RuntimeError), client.transaction("writer") as transaction:
            transaction.append(topic, rows)
            transaction.flush()
            if failure:
                raise failure


def kill_while_streaming(kafka, process, directory):
    """Kill the leader of the topic that is written, once the stream has written a batch, and start it again."""
    deadline = time.monotonic() + ENDED_WITHIN_S
    while not (directory / "streaming").exists():
        if process.poll() is not None:
            return
        assert time.monotonic() < deadline, "the stream did not begin"
        time.sleep(0.05)
    with KafkaClient(kafka.bootstrap) as client:
        leader = client.topic("streamed").leaders[0].broker
    kafka.kill(leader)
    (directory / "killed").touch()
    kafka.start(leader)


@pytest.mark.parametrize("step", STEPS)
def test_spark_reads_and_writes_a_real_kafka(found, step):
    for there, wanted in found[step]:
        assert there == wanted
