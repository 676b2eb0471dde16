"""The same brokers over ZooKeeper: registration, elections, ISRs, the controller's office."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.conformance.coordination.conftest import zookeeper  # noqa: F401  a fixture
from tests.integration.cluster.conftest import SESSION_TIMEOUT_MS, running
from tests.integration.cluster.test_reassignment import ask_in_the_tree, replicas_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(zookeeper, tmp_path_factory):  # noqa: F811
    directory = tmp_path_factory.mktemp("brokers")
    with running(3, directory, coordination=f"zookeeper:{zookeeper}/brokers-test") as tested:
        yield tested


def test_brokers_over_zookeeper_fail_over_and_come_back(cluster):
    controller, one, two = cluster.roles()
    topic = cluster.create((controller, one, two), (one, two, controller))
    assert cluster.produce(topic, range(50)) == []

    cluster.running.kill(controller)
    took_s = cluster.until_states(topic, {0: (one, [one, two], 1), 1: (one, [one, two], 1)})

    assert took_s < 3 * SESSION_TIMEOUT_MS / 1000  # see test_failover.py
    assert cluster.running.controller() in (one, two)
    assert cluster.produce(topic, range(50, 100)) == []
    cluster.running.restart(controller)
    cluster.until(lambda: cluster.states(topic)[0] == (one, [one, two, controller], 1))
    assert cluster.values(topic, count=100) == [str(number) for number in range(100)]


def test_a_partition_moves_over_zookeeper(cluster):
    topic = cluster.create((1, 2))
    assert cluster.produce(topic, range(50)) == []
    ask_in_the_tree(cluster, topic, [3, 2])
    cluster.until(lambda: replicas_of(cluster, topic) == [3, 2])
    leader, isr, _ = cluster.states(topic)[0]
    assert (leader, sorted(isr)) == (3, [2, 3])
    assert cluster.values(topic, count=50) == [str(number) for number in range(50)]


KAFKA = Path(os.environ.get("PYLOG_KAFKA_HOME", ""))


@pytest.mark.skipif(
    not (KAFKA / "bin" / "kafka-topics.sh").exists(),
    reason="no Kafka 0.9: PYLOG_KAFKA_HOME says where one is",
)
def test_the_tools_of_kafka_0_9_see_and_change_the_cluster(zookeeper, tmp_path):  # noqa: F811
    def run(tool, *words):
        command = [str(KAFKA / "bin" / tool), "--zookeeper", f"{zookeeper}/tools-test", *words]
        quiet = {"KAFKA_GC_LOG_OPTS": " ", "KAFKA_JVM_PERFORMANCE_OPTS": "-server", "LOG_DIR": str(tmp_path)}
        ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | quiet, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout.splitlines()

    def kafka_topics(*words):
        return [line.split("\t") for line in run("kafka-topics.sh", *words)]

    place = {"coordination": f"zookeeper:{zookeeper}/tools-test", "auto.leader.rebalance.enable": "false"}
    with running(3, tmp_path / "data", **place) as cluster:
        topic = cluster.create((1, 2, 3), (2, 3, 1))
        assert kafka_topics("--describe") == [
            [f"Topic:{topic}", "PartitionCount:2", "ReplicationFactor:3", "Configs:"],
            ["", f"Topic: {topic}", "Partition: 0", "Leader: 1", "Replicas: 1,2,3", "Isr: 1,2,3"],
            ["", f"Topic: {topic}", "Partition: 1", "Leader: 2", "Replicas: 2,3,1", "Isr: 2,3,1"],
        ]
        kafka_topics("--create", "--topic", "theirs", "--partitions", "3", "--replication-factor", "2")
        cluster.until(lambda: len(cluster.states("theirs")) == 3)
        assert cluster.produce("theirs", range(10)) == []
        assert cluster.values("theirs", count=10) == [str(number) for number in range(10)]

        cluster.running.stop(2)
        cluster.until(lambda: cluster.states(topic)[1][0] == 3)
        cluster.running.restart(2)
        cluster.until(lambda: set(cluster.states(topic)[1][1]) == {1, 2, 3})
        assert cluster.states(topic)[1][0] == 3
        run("kafka-preferred-replica-election.sh")
        cluster.until(lambda: cluster.states(topic)[1][0] == 2)

        plan = tmp_path / "plan.json"
        rows = f'{{"topic":"{topic}","partition":0,"replicas":[3]}}'
        plan.write_text(f'{{"version":1,"partitions":[{rows}]}}')
        reassign = ("kafka-reassign-partitions.sh", "--reassignment-json-file", str(plan))
        assert "Successfully started reassignment" in " ".join(run(*reassign, "--execute"))
        cluster.until(lambda: not cluster.running.describe().reassignments)
        assert run(*reassign, "--verify")[1:] == [f"Reassignment of partition [{topic},0] completed successfully"]
        assert cluster.states(topic)[0][:2] == (3, [3])
