"""Our own consumers with `group_protocol="consumer"`, on a real Kafka 4.4 of three brokers."""

import pytest

from replication.client.kafka_client import KafkaClient
from tests.conformance.clients.test_consumer_protocol import EagerReader, create, roll
from tests.support.commands import run_pylog
from tests.support.our_members import (
    PARTITIONS,
    Group,
    is_described,
    members_and_coordinators_die,
    members_come_and_go,
)
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("starts a Kafka")]


def test_members_are_rolled_from_the_classic_protocol_to_the_other_and_back_as_on_our_brokers(three_brokers):
    """A Kafka believes a member that reads less than it may, so that a record may come twice there. One that it
    expels for its silence never comes back, so that sessions are long here. Members of the other protocol cannot join
    cooperative ones of librdkafka there: their assignments have user data from their second rebalance on.
    """
    topic = group = "rolled"
    create(three_brokers.bootstrap, topic, copies=3)
    alter = "configs", "alter", "--entity-type", "groups", "--entity-name", group
    run_pylog(
        *alter, "--add-config", "consumer.session.timeout.ms=45000", "--bootstrap-server", three_brokers.bootstrap
    ).ok()
    roll(three_brokers.bootstrap, topic, EagerReader, group=group)


def test_a_group_outlives_members_and_its_coordinator(three_brokers):
    with KafkaClient(three_brokers.bootstrap) as client:
        client.create_topic("ours", partitions=PARTITIONS, replicas=3)
        with Group(client, "ours", "our-members") as group:
            members_come_and_go(group, three_brokers.bootstrap)
            members_and_coordinators_die(group, three_brokers.kill)
            is_described(group, three_brokers.bootstrap, members=3)
