"""Java's share consumers and Admin, and Kafka 4.4's tool for share groups, on our brokers."""

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
JAVA = Path(__file__).parent / "java/ShareGroups.java"
TOOL = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
RECORDS = 60
QUICK = {"group_share_heartbeat_interval_ms": 200, "group_share_min_heartbeat_interval_ms": 200}


@contextmanager
def killed(process):
    try:
        yield
    finally:
        process.kill()


def test_javas_members_share_records_and_kafkas_tool_shows_and_ends_their_group(tmp_path):
    with brokers_in_process(tmp_path, (1, 2), **QUICK) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("t-1", 2, 2)])["t-1"].result()
        producer = Producer({"bootstrap.servers": running.bootstrap, "log_level": 0})
        for number in range(RECORDS):
            producer.produce("t-1", b"%d" % number, partition=number % 2)
        assert producer.flush(30) == 0
        command = java_program(JAVA, tmp_path / "classes", running.bootstrap, RECORDS)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as java, killed(java):
            assert [java.stdout.readline().strip() for _ in range(5)] == [
                "settings of: [java]",
                f"read: {RECORDS}, each once: true",
                "members: 2, Stable",
                "left: {t-1-0=0, t-1-1=0}",
                "ready",
            ]
            words = ("--bootstrap-server", running.bootstrap, "--describe", "--group", "java")
            state = run_tool(TOOL, *words, "--state").stdout
            row = next(line.split() for line in state.splitlines() if line.startswith("java"))
            assert row[-2:] == ["Stable", "2"], state
            offsets = run_tool(TOOL, *words, "--offsets").stdout
            rows = sorted(line.split()[1:] for line in offsets.splitlines() if line.startswith("java"))
            assert rows == [["t-1", "0", "30", "0"], ["t-1", "1", "30", "0"]], offsets
            java.stdin.write("\n")
            java.stdin.flush()
            assert java.stdout.read().splitlines() == [
                "altered: {t-1-0=26, t-1-1=0}",
                "again: 26",
                "deleted: {}",
                "groups: []",
            ]
            assert java.wait(60) == 0
