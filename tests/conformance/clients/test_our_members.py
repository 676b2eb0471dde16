"""Our own consumers with `group_protocol="consumer"`, on our own brokers."""

import asyncio
import inspect

import pytest

from replication.client import group_admin
from replication.client.cluster import UnreachableError
from replication.client.heartbeats import Heartbeats
from replication.client.kafka_client import KafkaClient
from replication.errors import ErrorCode, KafkaError
from replication.model.features import CONSUMER_GROUPS
from tests.conformance.clients.members import until
from tests.support.commands import run_pylog
from tests.support.in_process import begun_by_an_earlier_release, brokers_in_process
from tests.support.our_members import (
    PARTITIONS,
    Group,
    is_described,
    members_and_coordinators_die,
    members_come_and_go,
)
from tests.support.repeats import only_long
from tests.support.tried_cluster import TriedCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def client(tmp_path):
    settings = {
        "group_consumer_heartbeat_interval_ms": 100,
        "group_consumer_min_heartbeat_interval_ms": 100,
        "group_consumer_session_timeout_ms": 20_000,
        "group_consumer_min_session_timeout_ms": 20_000,
    }
    with brokers_in_process(tmp_path, (1,), **settings) as running, KafkaClient(running.bootstrap) as client:
        client.create_topic("mine", partitions=PARTITIONS, replicas=1)
        yield client


def test_members_come_and_go(client):
    with Group(client, "mine", "readers") as group:
        members_come_and_go(group, client.where)


def test_a_static_member_that_comes_back_has_its_partitions_and_its_double_is_refused(client):
    with Group(client, "mine", "readers") as group:
        group.join("a", group_instance_id="a")
        group.join("b", group_instance_id="b")
        group.is_shared(3, 3)
        had = dict(group.of)
        group.gave.clear()
        double = client.consumer("mine", "readers", group_protocol="consumer", group_instance_id="b")
        with pytest.raises(KafkaError, match="owned by") as refused:
            double.poll(20_000)
        assert refused.value.code is ErrorCode.UNRELEASED_INSTANCE_ID
        double.close()
        group.members["b"].leave()
        group.join("b", group_instance_id="b")
        until(lambda: group.of == had, "the same again", within_s=60)
        assert "a" not in group.gave
    assert group.twice == []


def test_a_program_that_polls_too_late_loses_its_partitions_and_gets_them_again(client):
    revoked = []
    with client.consumer(
        "mine", "late", group_protocol="consumer", auto_offset_reset="earliest", enable_auto_commit=False,
        max_poll_interval_ms=300, on_revoke=revoked.append,
    ) as consumer:  # fmt: skip
        until(lambda: consumer.poll(100) is None and len(consumer.assignment) == PARTITIONS, "assigned", within_s=60)

        def is_lost():
            try:
                consumer.commit(dict.fromkeys(consumer.assignment, 0))
            except KafkaError as error:
                return "partitions were lost" in str(error)
            return False

        until(is_lost, "lost", within_s=60)
        assert revoked == []  # within a poll only
        until(
            lambda: consumer.poll(50) is None and revoked and len(consumer.assignment) == PARTITIONS,
            "again",
            within_s=60,
        )
        assert [len(each) for each in revoked] == [PARTITIONS]


def test_members_of_both_protocols_are_in_one_group(client):
    classic = client.consumer("mine", "mixed", heartbeat_interval_ms=200)
    later = client.consumer("mine", "mixed", group_protocol="consumer")

    def are_shared(*counts):
        return [poll(member) for member in (classic, later)] == [*counts]

    def poll(member):
        member.poll(20)
        return len(member.assignment)

    with later:
        with classic:
            until(lambda: poll(classic) == PARTITIONS, "read by the classic one", within_s=60)
            until(lambda: are_shared(PARTITIONS // 2, PARTITIONS // 2), "shared out", within_s=60)
        until(lambda: poll(later) == PARTITIONS, "read by the other one alone", within_s=60)


def test_an_assignor_that_the_coordinator_has_not_is_told(client):
    consumer = client.consumer("mine", "g", group_protocol="consumer", group_remote_assignor="sticky")
    with consumer, pytest.raises(KafkaError, match="ServerAssignor sticky is not supported"):
        consumer.poll(20_000)


def test_brokers_that_do_not_serve_the_protocol_yet_say_how_they_do(tmp_path):
    asyncio.run(begun_by_an_earlier_release(f"sqlite:{tmp_path / 'tree.db'}"))
    with brokers_in_process(tmp_path, (1,)) as running, KafkaClient(running.bootstrap) as client:
        client.create_topic("mine")
        consumer = client.consumer("mine", "g", group_protocol="consumer")
        told = rf"pylog features upgrade --level {CONSUMER_GROUPS}`; group_protocol='classic' does without it"
        with consumer, pytest.raises(KafkaError, match=told):
            consumer.poll(20_000)


def test_a_command_reads_one_topic_and_says_where_an_expression_is_taken(client):
    refused = run_pylog("consume", "^mine", "--group", "g", "--bootstrap-server", client.where)
    assert refused.code == 2
    assert refused.err.splitlines()[-1].endswith("reads one topic: KafkaClient.consumer takes expressions")


def answered_again(answer):
    return answer


def refused(answer):
    raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "heartbeat")


async def silent(answer):
    await asyncio.Event().wait()


@pytest.mark.parametrize(("then", "is_committed"), [(answered_again, True), (refused, False), (silent, False)])
def test_a_member_that_missed_its_new_epoch_still_commits_and_leaves(client, monkeypatch, caplog, then, is_committed):
    """Brokers before KIP-1251 take commits of the new epoch only, which the next heartbeat tells."""
    monkeypatch.setattr("replication.coordinators.groups.consumer.commits.has_held", lambda *_: False)
    if then is silent:
        monkeypatch.setattr("replication.client.consumer.CLOSE_S", 2.0)
    client.create_topic("other", partitions=1, replicas=1)
    client.append("mine", {"value": [b"%d" % n for n in range(100)]})
    ask, missed = Heartbeats.ask, []

    async def misses(requests, member_id, beat):
        answer = await ask(requests, member_id, beat)
        if member_id in missed:
            return await found if inspect.isawaitable(found := then(answer)) else found
        if 0 < beat.epoch < answer.epoch:
            missed.append(member_id)
            raise UnreachableError("the answer was lost")
        return answer

    monkeypatch.setattr(Heartbeats, "ask", misses)
    named = {"group_protocol": "consumer", "auto_offset_reset": "earliest"}
    one = client.consumer("mine", "g", auto_commit_interval_ms=60_000, **named)
    until(lambda: one.poll(100) is None and sum(map(one.position, one.assignment)) == 100, "read", within_s=60)
    with client.consumer("other", "g", **named) as two:
        until(lambda: two.poll(100) is None and missed, "missed", within_s=60)
        one.close()
        assert len(client.run(group_admin.describe_group, "g").members) == 1
    assert sum(each.offset for each in client.committed("g").values()) == (100 if is_committed else 0)
    assert ("did not answer in time" in caplog.text) == (then is silent)


@only_long("brokers that are killed")
def test_a_group_outlives_members_and_its_coordinator():
    settings = {
        "offsets.topic.num.partitions": 3,
        "zookeeper.session.timeout.ms": 2000,
        "group.consumer.heartbeat.interval.ms": 300,
        "group.consumer.min.heartbeat.interval.ms": 300,
        "group.consumer.session.timeout.ms": 6000,
        "group.consumer.min.session.timeout.ms": 6000,
    }
    with TriedCluster(3, settings=settings) as cluster, KafkaClient(cluster.bootstrap) as client:
        client.create_topic("mine", partitions=PARTITIONS, replicas=3)
        with Group(client, "mine", "readers") as group:
            members_come_and_go(group, cluster.bootstrap)
            members_and_coordinators_die(group, cluster.kill)
            is_described(group, cluster.bootstrap, members=3)
