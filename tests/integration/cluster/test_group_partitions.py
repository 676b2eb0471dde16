"""Groups stay where they are, whatever is done to the number of partitions of the topic that keeps them."""

import time

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from replication.coordination import nodes, topics
from replication.model.cluster import OFFSETS_TOPIC
from tests.support.in_process import brokers_in_process

GROUPS = [f"group-{number}" for number in range(8)]
MADE_WITH = 3
QUICK = {"offsets_topic_num_partitions": MADE_WITH, "default_replication_factor": 1}


def consumer(brokers, group):
    return Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": group, "log_level": 0})


def commit(brokers):
    """Each group its own offset."""
    for number, group in enumerate(GROUPS):
        one = consumer(brokers, group)
        one.commit(offsets=[TopicPartition("read", 0, 10 + number)], asynchronous=False)
        one.close()


def committed(brokers):
    found = []
    for group in GROUPS:
        one = consumer(brokers, group)
        found.append(one.committed([TopicPartition("read", 0)], 20)[0].offset)
        one.close()
    return found


def until(holds):
    end_s = time.monotonic() + 20
    while not (found := holds()):
        assert time.monotonic() < end_s
        time.sleep(0.02)
    return found


def grow_behind_the_brokers(brokers, count):
    """Add partitions in the tree, without the brokers; wait until the broker leads the new ones."""
    broker = brokers.brokers[1]
    added = dict.fromkeys(range(MADE_WITH, count), (1,))
    brokers.do(topics.grow_topic(broker.replicas.tree, OFFSETS_TOPIC, added))
    until(lambda: broker.replicas.metadata.leader(OFFSETS_TOPIC, count - 1) == 1)
    until(lambda: (OFFSETS_TOPIC, count - 1) in broker.replicas.partitions())


def test_the_partitions_of_internal_topics_cannot_become_more_and_groups_stay_if_they_do(tmp_path):
    wanted = [10 + number for number in range(len(GROUPS))]
    with brokers_in_process(tmp_path, (1,), **QUICK) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("read", 1, 1)])["read"].result(20)
        commit(brokers)
        with pytest.raises(KafkaException) as refused:
            admin.create_partitions([NewPartitions(OFFSETS_TOPIC, 7)])[OFFSETS_TOPIC].result(20)
        assert refused.value.args[0].code() == KafkaError.TOPIC_EXCEPTION
        grow_behind_the_brokers(brokers, 7)
        assert committed(brokers) == wanted
        note = nodes.PartitionCount(brokers.brokers[1].replicas.metadata.topic(OFFSETS_TOPIC).id, MADE_WITH)
        stored = brokers.do(brokers.brokers[1].replicas.tree.get(nodes.PARTITION_COUNTS[OFFSETS_TOPIC]))
        assert nodes.decode_partition_count("note", stored.data) == note
    with brokers_in_process(tmp_path, (1,), **QUICK) as brokers:  # which has never known another number
        assert committed(brokers) == wanted


def test_a_topic_of_groups_that_is_older_than_the_rule_keeps_the_number_that_it_has(tmp_path):
    wanted = [10 + number for number in range(len(GROUPS))]
    with brokers_in_process(tmp_path, (1,), **QUICK) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("read", 1, 1)])["read"].result(20)
        commit(brokers)
        brokers.do(brokers.brokers[1].replicas.tree.delete(nodes.PARTITION_COUNTS[OFFSETS_TOPIC]))
    with brokers_in_process(tmp_path, (1,), **QUICK) as brokers:
        assert committed(brokers) == wanted
        grow_behind_the_brokers(brokers, 5)
        assert committed(brokers) == wanted
