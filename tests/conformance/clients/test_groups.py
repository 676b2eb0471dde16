"""Consumer groups with real clients against a real broker: members come, go, come back, and vanish."""

import shutil
import subprocess
import sys
import textwrap
import time

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from replication.local_cluster import LocalCluster
from tests.conformance.clients.members import CLIENTS, SESSION_MS, Confluent, kafka, until
from tests.support.repeats import only_long, times

PARTITIONS = 4
# kafka-python's own way to read its files.
pytestmark = [
    # kafka-python's own way to read its files; sockets that it forgets when a connection is lost.
    pytest.mark.filterwarnings("ignore:.*is deprecated. Use files:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
# All of them share a group in a test of its own.
client = pytest.mark.parametrize("member", [*CLIENTS.values()][: times(1, 9)], ids=[*CLIENTS][: times(1, 9)])


@pytest.fixture(scope="module")
def bootstrap():
    with LocalCluster(1, settings={"offsets.topic.num.partitions": 3}) as cluster:
        yield cluster.bootstrap


@pytest.fixture(scope="module")
def admin(bootstrap):
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


@pytest.fixture
def topic(admin, request):
    name = f"t{abs(hash(request.node.name))}"
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result()
    return name


class Feed:
    """Produces numbered records, spread over the partitions."""

    def __init__(self, bootstrap, topic):
        self.producer, self.topic, self.sent = (
            Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0}),
            topic,
            [],
        )

    def send(self, count):
        for n in range(len(self.sent), len(self.sent) + count):
            self.producer.produce(self.topic, b"%d" % n, partition=n % PARTITIONS)
            self.sent.append(b"%d" % n)
        assert self.producer.flush(20) == 0


@pytest.fixture
def feed(bootstrap, topic):
    return Feed(bootstrap, topic)


def all_of(*members):
    return [value for member in members for _, _, value in member.records]


def share(*members):
    """Do they have all partitions, each one of them, and each of them some?"""
    owned = [partition for member in members for partition in member.partitions]
    return sorted(owned) == list(range(PARTITIONS)) and all(member.partitions for member in members)


@client
def test_members_join_and_leave_and_each_record_is_read_by_one(member, bootstrap, topic, feed):
    feed.send(100)
    with member(bootstrap, "g-" + topic, topic) as first:
        until(lambda: len(first.records) == 100, "all read by one")
        assert first.partitions == set(range(PARTITIONS))
        with member(bootstrap, "g-" + topic, topic) as second:
            until(lambda: share(first, second), "both have some")
            feed.send(100)
            until(lambda: len(all_of(first, second)) >= 200, "all read by both")
        until(lambda: first.partitions == set(range(PARTITIONS)), "one has all again")
        feed.send(100)
        until(lambda: len(all_of(first, second)) >= 300, "all read by the one that stayed")
    feed.send(10)
    with member(bootstrap, "g-" + topic, topic) as third:
        until(lambda: len(third.records) >= 10, "goes on where the others were")
    assert sorted(all_of(first, second, third)) == sorted(feed.sent)


def test_members_of_different_clients_share_a_group(bootstrap, topic, feed):
    """Their common protocol is `range`."""
    members = [make(bootstrap, "g-" + topic, topic) for make in CLIENTS.values()]
    with members[0], members[1], members[2]:
        until(lambda: share(*members), "each has some")
        feed.send(400)
        until(lambda: len(all_of(*members)) >= 400, "all read")
        assert sorted(all_of(*members)) == sorted(feed.sent)


@client
def test_a_static_member_that_comes_back_disturbs_nobody(member, bootstrap, topic, feed):
    with member(bootstrap, "g-" + topic, topic, instance="stays") as stays:
        leaves = member(bootstrap, "g-" + topic, topic, instance="comes-back")
        with leaves:
            until(lambda: share(stays, leaves), "both have some")
            before, changes = leaves.partitions, stays.changes
        with member(bootstrap, "g-" + topic, topic, instance="comes-back") as back:
            until(lambda: back.partitions == before, "it has what it had")
            feed.send(40)
            until(lambda: len(all_of(stays, back)) >= 40, "all read")
            assert stays.changes == changes
        assert sorted(all_of(stays, back)) == sorted(feed.sent)


@only_long("one of our own keeps them in test_consumer.py")
def test_cooperative_members_keep_what_they_have(bootstrap, topic, feed):
    first = Confluent(bootstrap, "g-" + topic, topic, cooperative=True)
    second = Confluent(bootstrap, "g-" + topic, topic, cooperative=True)
    with first:
        until(lambda: first.partitions == set(range(PARTITIONS)), "one has all")
        with second:
            until(lambda: share(first, second), "both have some")
            feed.send(200)
            until(lambda: len(all_of(first, second)) >= 200, "all read")
    assert sorted(all_of(first, second)) == sorted(feed.sent)


def test_a_member_that_is_killed_is_missed_after_its_session_timeout(bootstrap, topic, feed):
    code = f"""
        from tests.conformance.clients.members import Confluent
        import time
        with Confluent({bootstrap!r}, {"g-" + topic!r}, {topic!r}) as member:
            while not member.partitions: time.sleep(0.02)
            print("in", flush=True)
            time.sleep(100)
    """
    with Confluent(bootstrap, "g-" + topic, topic) as first:
        until(lambda: len(first.partitions) == PARTITIONS, "one has all")
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout.readline() == "in\n"
            until(lambda: 0 < len(first.partitions) < PARTITIONS, "one has half")
            other.kill()
        began = time.monotonic()
        until(lambda: len(first.partitions) == PARTITIONS, "one has all again")
        assert SESSION_MS / 1000 - 1.5 < time.monotonic() - began < SESSION_MS / 1000 + 10


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed: apt install kcat")
def test_kcat_reads_in_a_group_and_goes_on_where_it_was(bootstrap, topic, feed):
    def read(count):
        words = ["-G", "g-" + topic, topic, "-X", "auto.offset.reset=earliest", "-c", str(count), "-f", "%s "]
        done = subprocess.run(["kcat", "-b", bootstrap, *words], capture_output=True, text=True, check=True, timeout=40)
        return sorted(map(int, done.stdout.split()))

    feed.send(8)
    assert read(8) == list(range(8))
    feed.send(8)
    assert read(8) == list(range(8, 16))


def test_offsets_come_back_as_they_were_committed(bootstrap, topic, feed):
    """With their text, exactly, and their leader epoch; those never committed as none."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g-" + topic, "log_level": 0})
    text = "naïve — " + "x" * 1000
    consumer.commit(offsets=[TopicPartition(topic, 0, 7, text, 0), TopicPartition(topic, 1, 8)], asynchronous=False)
    found = consumer.committed([TopicPartition(topic, n) for n in range(3)])
    assert [(each.offset, each.metadata or "") for each in found] == [(7, text), (8, ""), (-1001, "")]
    assert found[0].leader_epoch == 0
    with pytest.raises(KafkaException) as refused:
        consumer.commit(offsets=[TopicPartition(topic, 0, 9, "x" * 4097)], asynchronous=False)
    assert refused.value.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    with pytest.raises(KafkaException) as refused:
        consumer.commit(offsets=[TopicPartition("nowhere", 0, 9)], asynchronous=False)
    assert refused.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    consumer.close()


def test_administrators_see_and_change_groups(bootstrap, topic, feed, admin):
    group = "g-" + topic
    feed.send(4)
    with Confluent(bootstrap, group, topic) as member:
        until(lambda: len(member.records) == 4, "all read")
        listed = {each.group_id: each for each in admin.list_consumer_groups().result().valid}
        assert listed[group].state is ConsumerGroupState.STABLE
        only_empty = admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result().valid
        assert group not in {each.group_id for each in only_empty}
        described = admin.describe_consumer_groups([group])[group].result()
        assert described.state is ConsumerGroupState.STABLE
        assert described.partition_assignor == "range"
        assert [len(each.assignment.topic_partitions) for each in described.members] == [PARTITIONS]
        assert described.members[0].host == "/127.0.0.1"
        with pytest.raises(KafkaException) as refused:
            admin.delete_consumer_groups([group])[group].result()
        assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
        moved = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 0)])
        (row,) = admin.alter_consumer_group_offsets([moved])[group].result().topic_partitions
        assert row.error.code() == KafkaError.UNKNOWN_MEMBER_ID
    assert admin.describe_consumer_groups([group])[group].result().state is ConsumerGroupState.EMPTY
    asked = ConsumerGroupTopicPartitions(group)
    offsets = admin.list_consumer_group_offsets([asked])[group].result().topic_partitions
    assert sorted((each.partition, each.offset) for each in offsets) == [(n, 1) for n in range(PARTITIONS)]
    admin.alter_consumer_group_offsets([moved])[group].result()
    with Confluent(bootstrap, group, topic) as again:
        until(lambda: len(again.records) == 1, "the one that is read again")
        assert again.records[0][2] == b"0"
    admin.delete_consumer_groups([group])[group].result()
    assert admin.describe_consumer_groups([group])[group].result().state is ConsumerGroupState.DEAD
    with pytest.raises(KafkaException) as refused:
        admin.delete_consumer_groups([group])[group].result()
    assert refused.value.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND


@only_long("a second client")
def test_another_client_s_administrators_see_groups(bootstrap, topic, feed):
    group = "g-" + topic
    feed.send(4)
    with Confluent(bootstrap, group, topic) as member:
        until(lambda: len(member.records) == 4, "all read")
        admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
        assert group in str(admin.list_groups())
        assert "Stable" in str(admin.describe_groups([group]))
        admin.close()
