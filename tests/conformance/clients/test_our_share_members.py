"""Our own members of share groups, on our own brokers."""

import asyncio
import time

import pytest

from replication.client.kafka_client import KafkaClient
from tests.support import share_life, share_tools
from tests.support.commands import run_pylog
from tests.support.in_process import begun_by_an_earlier_release, brokers_in_process
from tests.support.repeats import only_long
from tests.support.share_members import ShareGroup, members_and_leaders_die
from tests.support.tried_cluster import TriedCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SETTINGS = {
    "group_share_heartbeat_interval_ms": 100,
    "group_share_min_heartbeat_interval_ms": 100,
    "group_share_record_lock_duration_ms": 3000,
    "group_share_min_record_lock_duration_ms": 1000,
}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with (
        brokers_in_process(tmp_path_factory.mktemp("brokers"), (1,), **SETTINGS) as running,
        KafkaClient(running.bootstrap) as client,
    ):
        yield client


def test_each_kind_of_acknowledgement_acts(client):
    client.create_topic("kinds")
    share_life.each_kind_of_acknowledgement_acts(client, "kinds", "kinds-share")


@only_long("a lock ends")
def test_a_member_that_is_late_does_not_know_that_another_one_has_accepted(client):
    client.create_topic("late")
    share_life.a_member_that_is_late_does_not_know_that_another_one_has_accepted(client, "late", "late-share")


def test_polls_and_ends_of_blocks_accept_or_release(client):
    client.create_topic("polls")
    share_life.polls_and_ends_of_blocks_accept_or_release(client, "polls", "polls-share")


def test_an_expelled_member_joins_again_and_says_so(client, caplog):
    client.create_topic("expelled")
    share_life.an_expelled_member_joins_again(client, "expelled", "expelled-share", caplog)


def test_a_group_of_another_type_and_other_bad_input_has_one_clear_line(client):
    client.create_topic("classic")
    client.append("classic", [{"value": "a"}])
    with client.consumer("classic", "classic-group", auto_offset_reset="earliest") as consumer:
        assert consumer.poll(60_000) is not None
    share_tools.bad_input_has_one_clear_line(client, "classic", "classic-group")


def test_consume_accepts_what_it_prints(client):
    client.create_topic("printed")
    share_tools.consume_accepts_what_it_prints(client, "printed", "printers")


def test_groups_are_listed_described_reset_and_deleted(client):
    client.create_topic("described", partitions=2)
    share_tools.groups_are_listed_described_reset_and_deleted(client, "described", "describers")


def test_brokers_that_know_no_share_groups_are_told_of_in_one_line_within_seconds(tmp_path):
    asyncio.run(begun_by_an_earlier_release(f"sqlite:{tmp_path / 'tree.db'}"))
    with brokers_in_process(tmp_path, (1,)) as running, KafkaClient(running.bootstrap) as client:
        client.create_topic("mine")
        client.append("mine", [{"value": "a"}])
        begun = time.monotonic()
        refused = run_pylog("consume", "mine", "--share-group", "g", "--bootstrap-server", running.bootstrap).failed()
        assert "share groups need Kafka 4.1 or later" in refused
        assert time.monotonic() - begun < 10


@only_long("brokers that are killed")
def test_each_record_is_accepted_once_while_members_and_a_leader_are_killed(tmp_path):
    settings = {
        "zookeeper.session.timeout.ms": 2000,
        "group.share.heartbeat.interval.ms": 300,
        "group.share.min.heartbeat.interval.ms": 300,
        "group.share.session.timeout.ms": 6000,
        "group.share.min.session.timeout.ms": 6000,
        "group.share.record.lock.duration.ms": 5000,
        "group.share.min.record.lock.duration.ms": 1000,
        "group.share.delivery.count.limit": 10,
    }
    with TriedCluster(3, settings=settings) as cluster, KafkaClient(cluster.bootstrap) as client:
        client.create_topic("shared", partitions=3, replicas=3)
        share_life.from_the_beginning(client, "workers")
        with ShareGroup(client, "shared", "workers", tmp_path) as group:
            members_and_leaders_die(group, cluster.kill, cluster.restart)
