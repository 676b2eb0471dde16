"""Our own consumers with `group_protocol="consumer"`, on a real Kafka 4.4 of three brokers."""

import pytest

from replication.client.kafka_client import KafkaClient
from tests.support.our_members import (
    PARTITIONS,
    Group,
    ending,
    is_described,
    members_and_coordinators_die,
    members_come_and_go,
)
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("starts a Kafka")]


def test_a_group_outlives_members_and_its_coordinator(three_brokers):
    killed = []

    def kill(broker):
        killed.append(broker)
        three_brokers.kill(broker)

    try:
        with KafkaClient(three_brokers.bootstrap) as client:
            client.create_topic("ours", partitions=PARTITIONS, replicas=3)
            group = Group(client, "ours", "our-members")
            with ending(group):
                members_come_and_go(group, three_brokers.bootstrap)
                members_and_coordinators_die(group, kill)
                is_described(group, three_brokers.bootstrap, members=3)
    finally:
        for broker in killed:
            three_brokers.start(broker)
