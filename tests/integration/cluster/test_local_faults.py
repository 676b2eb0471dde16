"""The faults of a LocalCluster that people's tests use: leaders killed, brokers paused or cut off from each other."""

import pytest

from logstore.errors import UnknownPartitionError, UnknownTopicError
from replication.local_cluster import LocalClusterError
from tests.integration.cluster.conftest import running

QUICK = {"zookeeper.session.timeout.ms": 1000, "replica.lag.time.max.ms": 1000, "min.insync.replicas": 2}


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    with running(directory=tmp_path_factory.mktemp("faults"), **QUICK) as tested:
        yield tested


@pytest.fixture
def cluster(three):
    yield three
    three.running.mend()


def test_a_killed_leader_is_named_and_another_one_leads(cluster):
    topic = cluster.create((1, 2, 3), (2, 3, 1))
    assert cluster.running.leader(topic, 1) == 2
    assert cluster.running.kill_leader(topic, 1) == 2
    assert cluster.running.live == [1, 3]
    assert cluster.running.leader(topic, 1) == 3  # waits for the election
    assert cluster.produce(topic, ["after"], partition=1) == []
    cluster.running.mend()
    assert cluster.running.live == [1, 2, 3]


def test_brokers_that_are_cut_off_from_each_other_do_not_replicate_until_the_network_is_healed(cluster):
    topic = cluster.create((1, 2, 3))
    assert cluster.produce(topic, ["before"]) == []
    with cluster.running.partition([1, 2], 3):
        cluster.until(lambda: cluster.state(topic).isr == (1, 2))
        assert cluster.produce(topic, ["meanwhile"]) == []  # clients still reach the leader
        cluster.running.partition(1)  # which replaces the first one: the leader is alone
        cluster.until(lambda: cluster.state(topic).isr == (1,))
        (error,) = cluster.produce(topic, ["refused"], **{"message.timeout.ms": 300})
        assert error is not None
    cluster.until(lambda: len(cluster.state(topic).isr) == 3)
    assert cluster.produce(topic, ["after"]) == []
    assert [each for each in cluster.values(topic, count=3) if each != "refused"] == ["before", "meanwhile", "after"]


def test_a_paused_broker_goes_on_at_the_end_of_the_block(cluster):
    topic = cluster.create((2, 3, 1))
    with cluster.running.pause(2):
        cluster.until(lambda: cluster.state(topic).leader == 3)
        assert cluster.produce(topic, ["meanwhile"]) == []
    cluster.until(lambda: len(cluster.state(topic).isr) == 3)


def test_everything_that_was_done_to_a_cluster_is_mended(cluster):
    topic = cluster.create((1, 2, 3))
    cluster.running.partition(1)
    cluster.running.kill(2)
    cluster.running.pause(3)
    cluster.running.mend()
    assert cluster.running.live == [1, 2, 3]
    assert cluster.produce(topic, ["after"]) == []
    cluster.until(lambda: len(cluster.state(topic).isr) == 3)


def test_a_fault_of_nothing_is_refused(cluster):
    topic, made = cluster.create((1, 2, 3)), cluster.running
    with pytest.raises(UnknownTopicError, match=f"no topic '{topic}s' in .*did you mean '{topic}'"):
        made.kill_leader(f"{topic}s")
    with pytest.raises(UnknownPartitionError, match="it has 1"):
        made.kill_leader(topic, 7)
    for sides in ((), ([1, 2, 3],), (1, 1), ([1, 2], [2, 3])):
        with pytest.raises(LocalClusterError, match=r"name brokers of \[1, 2, 3\], each on one side"):
            made.partition(*sides)
    with pytest.raises(LocalClusterError, match="no broker 9"):
        made.partition(9)
    with made.pause(3), pytest.raises(LocalClusterError, match="broker 3 is paused: resume it first"):
        made.partition(3)
    made.kill(1)
    with pytest.raises(LocalClusterError, match="broker 1 is not up"):
        made.pause(1)
