"""Java's consumers with `group.protocol=consumer`, and Kafka 4.4's tool for groups, on our brokers."""

import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.in_process import brokers_in_process
from tests.support.kafka4 import java_program, run_tool
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("starts a JVM several times")]
JAVA = Path(__file__).parent / "java/ConsumerGroups.java"
TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
RECORDS = 60


@contextmanager
def killed(process):
    try:
        yield
    finally:
        process.kill()


def test_javas_members_share_a_topic_and_kafkas_tool_shows_their_group(tmp_path):
    with brokers_in_process(
        tmp_path, (1,), group_consumer_heartbeat_interval_ms=200, group_consumer_min_heartbeat_interval_ms=200
    ) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("t-1", 6, 1)])["t-1"].result()
        producer = Producer({"bootstrap.servers": running.bootstrap, "log_level": 0})
        for number in range(RECORDS):
            producer.produce("t-1", b"%d" % number, partition=number % 6)
        assert producer.flush(30) == 0
        command = java_program(JAVA, tmp_path / "classes", running.bootstrap, RECORDS)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as java, killed(java):
            said = [java.stdout.readline().strip() for _ in range(3)]
            assert said == ["shared: [0, 1, 2, 3, 4, 5]", f"read: {RECORDS}", "ready"]
            words = ("--bootstrap-server", running.bootstrap, "--describe", "--group", "java")
            state = run_tool(TOOL, *words, "--state").stdout
            row = next(line.split() for line in state.splitlines() if line.startswith("java"))
            assert row[-3:] == ["uniform", "Stable", "2"], state
            offsets = run_tool(TOOL, *words).stdout
            rows = [line.split() for line in offsets.splitlines() if line.startswith("java")]
            assert [row[2:6] for row in sorted(rows, key=lambda row: row[2])] == [
                [str(number), "10", "10", "0"] for number in range(6)
            ], offsets
            java.stdin.write("\n")
            java.stdin.flush()
            assert java.stdout.read().strip() == "alone: [0, 1, 2, 3, 4, 5]"
            assert java.wait(60) == 0


@pytest.mark.parametrize("assignor", ["RangeAssignor", "CooperativeStickyAssignor"])
def test_javas_members_are_rolled_from_the_classic_protocol_to_the_other_and_back(tmp_path, assignor):
    with brokers_in_process(
        tmp_path, (1,), group_consumer_heartbeat_interval_ms=200, group_consumer_min_heartbeat_interval_ms=200
    ) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("t", 6, 1)])["t"].result()
        producer = Producer({"bootstrap.servers": running.bootstrap, "log_level": 0})
        for number in range(RECORDS):
            producer.produce("t", b"%d" % number, partition=number % 6)
        assert producer.flush(30) == 0
        program = Path(__file__).parent / "java/RolledGroup.java"
        command = java_program(program, tmp_path / "classes", running.bootstrap, RECORDS, assignor)
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        said = done.stdout.splitlines()
        assert said[-1:] == [f"twice owned: 0, read: {RECORDS}, again: 0"], done.stdout + done.stderr[-3000:]
        assert said[:-1] == ["shared among 1", "shared among 2", *["shared among 3", "shared among 2"] * 4]
