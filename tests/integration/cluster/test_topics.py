"""Topics are deleted and made again, on real brokers; settings change while they run."""

from contextlib import closing

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition
from confluent_kafka.admin import NewPartitions

from tests.support.repeats import only_long

from .conftest import running

pytestmark = pytest.mark.slow


def _directories(cluster, topic):
    return [path for broker in (1, 2, 3) for path in cluster.running.log_dir(broker).glob(f"{topic}-[0-9]")]


def test_a_deleted_topic_is_gone_everywhere_and_can_be_made_again(cluster):
    topic = cluster.create((1, 2), (2, 3))
    assert cluster.produce(topic, range(10)) == []
    assert len(_directories(cluster, topic)) == 4

    cluster.administer("delete_topics", [topic], operation_timeout=20)
    cluster.until(lambda: topic not in cluster.running.describe().topics)

    assert _directories(cluster, topic) == []
    assert cluster.running.describe().deletions == ()
    cluster.create((2, 3, 1), name=topic)
    assert cluster.states(topic) == {0: (2, [2, 3, 1], 0)}
    assert cluster.produce(topic, ["anew"]) == []
    assert cluster.values(topic, count=1) == ["anew"]


@only_long("brokers that restart")
def test_a_deletion_waits_for_the_replica_that_is_down(cluster):
    _, one, two = cluster.roles()
    topic = cluster.create((one, two))
    cluster.running.kill(two)
    cluster.until_states(topic, {0: (one, [one], 1)})

    cluster.administer("delete_topics", [topic], operation_timeout=0.5)
    cluster.until(lambda: cluster.states(topic) == {0: (-1, [], 2)})
    assert cluster.running.describe().deletions == (topic,)

    cluster.running.restart(two)
    cluster.until(lambda: topic not in cluster.running.describe().topics)
    assert cluster.running.describe().deletions == ()
    assert _directories(cluster, topic) == []


def test_partitions_are_added(cluster):
    topic = cluster.create((1, 2))
    cluster.administer("create_partitions", [NewPartitions(topic, 3)], operation_timeout=20)
    assert {number: len(isr) for number, (_, isr, _) in cluster.states(topic).items()} == {0: 2, 1: 2, 2: 2}


@only_long("brokers that restart")
def test_a_new_controller_goes_on_with_what_the_former_one_had_begun(cluster):
    controller, one, two = cluster.roles()
    topic, other = cluster.create((one, two)), cluster.create((controller, one))
    cluster.running.kill(two)
    cluster.until_states(topic, {0: (one, [one], 1)})
    cluster.administer("delete_topics", [topic], operation_timeout=0.5)
    cluster.until(lambda: cluster.states(topic) == {0: (-1, [], 2)})

    cluster.running.kill(controller)
    cluster.until(lambda: cluster.running.controller() == one)
    cluster.running.restart(two)

    cluster.until(lambda: topic not in cluster.running.describe().topics)
    assert cluster.running.describe().deletions == ()
    assert _directories(cluster, topic) == []
    assert cluster.states(other)[0][0] == one


def test_offsets_of_groups_go_with_their_topic_and_are_committed_again_in_a_new_one(tmp_path):
    """Deleting an internal topic is allowed, as in Kafka: groups begin without offsets then, and go on."""
    with running(1, tmp_path) as alone:
        topic = alone.create((1,))
        alone.produce(topic, range(3))
        settings = {"bootstrap.servers": alone.running.bootstrap, "group.id": "readers", "log_level": 0}

        def committed(*, commit=None):
            with closing(Consumer(settings)) as consumer:
                if commit is not None:
                    consumer.commit(offsets=[TopicPartition(topic, 0, commit)], asynchronous=False)
                return consumer.committed([TopicPartition(topic, 0)], timeout=20)[0].offset

        assert committed(commit=2) == 2
        alone.administer("delete_topics", ["__consumer_offsets"], operation_timeout=20)
        assert committed() == OFFSET_INVALID
        assert committed(commit=1) == 1
        assert alone.values(topic, 3) == ["0", "1", "2"]
