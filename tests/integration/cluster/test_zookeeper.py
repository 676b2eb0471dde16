"""The same brokers over ZooKeeper: registration, elections, ISRs, the controller's office."""

import json

import pytest
from confluent_kafka.admin import ConfigResource

from tests.conformance.coordination.conftest import zookeeper  # noqa: F401  a fixture
from tests.integration.cluster.conftest import SESSION_TIMEOUT_MS, running
from tests.integration.cluster.test_reassignment import ask_in_the_tree, replicas_of
from tests.support.kafka_tools import kafka_home, run_tool
from tests.support.repeats import only_long

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


@only_long("brokers over a ZooKeeper")
def test_a_partition_moves_over_zookeeper(cluster):
    topic = cluster.create((1, 2))
    assert cluster.produce(topic, range(50)) == []
    ask_in_the_tree(cluster, topic, [3, 2])
    cluster.until(lambda: replicas_of(cluster, topic) == [3, 2])
    leader, isr, _ = cluster.states(topic)[0]
    assert (leader, sorted(isr)) == (3, [2, 3])
    assert cluster.values(topic, count=50) == [str(number) for number in range(50)]


@pytest.fixture
def tool(zookeeper, tmp_path):  # noqa: F811
    """Run a tool of Kafka 0.9 on the tree; the lines that it prints."""
    kafka_home()  # skips, before brokers are started
    place = ("--zookeeper", f"{zookeeper}/tools-test")
    return lambda name, *words: run_tool(f"kafka-{name}.sh", *place, *words, logs=tmp_path)


@only_long("a JVM for each of twelve commands")
def test_the_tools_of_kafka_0_9_see_and_change_the_cluster(zookeeper, tool, tmp_path):  # noqa: F811
    def described(topic):
        return [line.split("\t") for line in tool("topics", "--describe", "--topic", topic)]

    def row(topic, partition, leader, replicas, isr):
        numbers = f"Leader: {leader}", f"Replicas: {replicas}", f"Isr: {isr}"
        return ["", f"Topic: {topic}", f"Partition: {partition}", *numbers]

    place = {"coordination": f"zookeeper:{zookeeper}/tools-test", "auto.leader.rebalance.enable": "false"}
    with running(3, tmp_path / "data", **place) as cluster:
        topic = cluster.create((1, 2, 3), (2, 3, 1))
        assert described(topic) == [
            [f"Topic:{topic}", "PartitionCount:2", "ReplicationFactor:3", "Configs:"],
            row(topic, 0, 1, "1,2,3", "1,2,3"),
            row(topic, 1, 2, "2,3,1", "2,3,1"),
        ]

        # Create, alter, delete: a topic of theirs serves our clients.
        made = "--partitions", "1", "--replication-factor", "2", "--config", "retention.ms=1000000"
        tool("topics", "--create", "--topic", "theirs", *made)
        cluster.until(lambda: len(cluster.states("theirs")) == 1)
        assert cluster.produce("theirs", range(10)) == []
        tool("topics", "--alter", "--topic", "theirs", "--partitions", "3")
        tool("configs", "--alter", "--entity-type", "topics", "--entity-name", "theirs", "--add-config", "flush.ms=9")
        cluster.until(lambda: len(cluster.states("theirs")) == 3)
        assert described("theirs")[0][1:] == ["PartitionCount:3", "ReplicationFactor:2", CONFIGS]
        assert cluster.produce("theirs", range(10), partition=2) == []
        for partition in (0, 2):
            assert cluster.values("theirs", count=10, partition=partition) == [str(number) for number in range(10)]
        cluster.until(lambda: flush_ms(cluster, "theirs") == ["9"])
        tool("topics", "--delete", "--topic", "theirs")
        cluster.until(lambda: cluster.states("theirs") == {} and "theirs" not in cluster.running.describe().topics)
        cluster.until(lambda: not list((tmp_path / "data").glob("broker-*/theirs-[0-9]")))
        assert "theirs" not in tool("topics", "--list")

        # Elect: the leader that was stopped is back, and leads again once it is asked for.
        cluster.running.stop(2)
        cluster.until(lambda: cluster.states(topic)[1][0] == 3)
        cluster.running.restart(2)
        cluster.until(lambda: set(cluster.states(topic)[1][1]) == {1, 2, 3})
        assert cluster.states(topic)[1][0] == 3
        tool("preferred-replica-election")
        cluster.until(lambda: cluster.states(topic)[1][0] == 2)

        # Generate, execute, verify: what they propose for brokers 2 and 3 is what comes to be.
        asked, plan = tmp_path / "topics.json", tmp_path / "plan.json"
        asked.write_text(f'{{"version":1,"topics":[{{"topic":"{topic}"}}]}}')
        generate = "--generate", "--topics-to-move-json-file", str(asked), "--broker-list", "1,2,3"
        said = tool("reassign-partitions", *generate)
        proposed = json.loads(said[-1])
        assert {len(row["replicas"]) for row in proposed["partitions"]} == {3}
        for moved, replicas in zip(proposed["partitions"], ([3, 1], [2, 3]), strict=True):
            moved["replicas"] = replicas
        plan.write_text(json.dumps(proposed))
        reassign = "reassign-partitions", "--reassignment-json-file", str(plan)
        assert "Successfully started reassignment" in " ".join(tool(*reassign, "--execute"))
        cluster.until(lambda: not cluster.running.describe().reassignments)
        done = {f"Reassignment of partition [{topic},{part}] completed successfully" for part in (0, 1)}
        assert set(tool(*reassign, "--verify")[1:]) == done
        for moved in proposed["partitions"]:
            leader, isr, _ = cluster.states(topic)[moved["partition"]]
            assert (leader, sorted(isr)) == (moved["replicas"][0], sorted(moved["replicas"]))


CONFIGS = "Configs:flush.ms=9,retention.ms=1000000"


def flush_ms(cluster, topic):
    """The brokers' value of the setting."""
    asked = [ConfigResource(ConfigResource.Type.TOPIC, topic)]
    return [found["flush.ms"].value for found in cluster.administer("describe_configs", asked).values()]
