"""Groups while their coordinator dies, stops and comes back, on three real brokers (R28)."""

import threading
import time
from collections import Counter
from functools import partial

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from replication.client.admin import elect_leaders, reassign
from replication.client.kafka_client import KafkaClient
from replication.coordinators.binary import partition_of
from replication.model.cluster import OFFSETS_TOPIC
from replication.model.cluster import TopicPartition as Partition
from tests.conformance.clients.members import CLIENTS, until
from tests.support.repeats import only_long
from tests.support.tried_cluster import TriedCluster

PARTITIONS = 6
PAUSE_S = 0.01  # between requests: without it three threads and a broker are busy with nothing else
pytestmark = [
    # kafka-python's own way to read its files; sockets that it forgets when a broker dies.
    pytest.mark.filterwarnings("ignore:.*is deprecated. Use files:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def cluster():
    settings = {
        "offsets.topic.num.partitions": 3,
        "zookeeper.session.timeout.ms": 2000,
        "group.min.session.timeout.ms": 1000,
        "min.insync.replicas": 2,
    }
    with TriedCluster(3, settings=settings) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster, request):
    cluster.wait_until_known()  # also one that was paused before
    name = f"t{abs(hash(request.node.name))}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, PARTITIONS, 3)])[name].result()
    return name


def options(bootstrap, group):
    """A request to a broker that stands still is given up soon."""
    return {"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0, "socket.timeout.ms": 3000}


class Committer(threading.Thread):
    """Commits growing offsets, and remembers the last that was acknowledged."""

    def __init__(self, bootstrap, group, topic):
        super().__init__(daemon=True)
        self.consumer = Consumer(options(bootstrap, group))
        self.tp, self.acknowledged, self.failed = (topic, 0), 0, 0
        self.stopping = threading.Event()

    def has_reached(self, offset):
        return self.acknowledged >= offset

    def run(self):
        offset = 0
        while not self.stopping.is_set():
            offset += 1
            try:
                self.consumer.commit(offsets=[TopicPartition(*self.tp, offset)], asynchronous=False)
            except KafkaException:
                self.failed += 1
                time.sleep(0.05)
            else:
                self.acknowledged = offset
            time.sleep(PAUSE_S)
        self.consumer.close()


class Asker(threading.Thread):
    """Asks for the committed offset, again and again: what it is told is never older than what was acknowledged."""

    def __init__(self, bootstrap, group, committer):
        super().__init__(daemon=True)
        self.consumer = Consumer(options(bootstrap, group))
        self.committer, self.answers, self.wrong = committer, 0, []

    def has_reached(self, answers):
        return self.answers >= answers

    def run(self):
        while not self.committer.stopping.is_set():
            before = self.committer.acknowledged
            try:
                (found,) = self.consumer.committed([TopicPartition(*self.committer.tp)], timeout=5)
            except KafkaException:
                time.sleep(0.05)
                continue
            self.answers += 1
            if found.error is None and max(found.offset, 0) < before:
                self.wrong.append((before, found.offset))
            time.sleep(PAUSE_S)
        self.consumer.close()


@only_long("brokers that are killed")
def test_an_acknowledged_commit_is_never_forgotten(cluster, topic):
    """(R28) Nobody is told an older offset, or none, while coordinators are killed, stopped, paused, and load."""
    group = "committer"
    committer = Committer(cluster.bootstrap, group, topic)
    askers = [Asker(cluster.bootstrap, group, committer) for _ in range(2)]
    for thread in (committer, *askers):
        thread.start()
    until(lambda: committer.acknowledged > 10, "commits begin")
    ends = {cluster.kill: cluster.restart, cluster.stop: cluster.restart, cluster.pause: cluster.resume}
    for end, begin_again in ends.items():
        until(cluster.is_whole, "all replicas in sync", within_s=60)
        coordinator = cluster.coordinator(group)
        end(coordinator)
        at_least = committer.acknowledged + 20
        until(partial(committer.has_reached, at_least), "commits go on", within_s=60)
        assert cluster.coordinator(group) != coordinator
        for asker in askers:
            until(partial(asker.has_reached, asker.answers + 5), "answers go on", within_s=60)
        begin_again(coordinator)
    committer.stopping.set()
    for thread in (committer, *askers):
        thread.join(30)
    assert [asker.wrong for asker in askers] == [[], []]
    assert all(asker.answers > 20 for asker in askers)


@only_long("brokers that restart")
def test_a_member_whose_coordinator_moves_just_when_it_asks_for_its_offsets_reads_on(cluster, topic):
    """librdkafka asks once: told that the coordinator is another one, it would read nothing more of its partitions."""
    until(cluster.is_whole, "all replicas in sync", within_s=60)
    group, moved, errors, found = "moved", [], [], []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for partition in range(PARTITIONS):
        producer.produce(topic, b"%d" % partition, partition=partition)
    assert producer.flush(30) == 0

    def move(consumer, partitions):
        """Between the answer that assigns them and the question for their offsets, once."""
        if moved:
            return
        tp = Partition(OFFSETS_TOPIC, partition_of(group, 3))
        former = cluster.coordinator(group)
        others = [broker for broker in cluster.live if broker != former]
        with KafkaClient(cluster.bootstrap) as client:
            client.run(lambda asked: reassign(asked, {tp: (*others, former)}))

            def moves():  # no election is needed while the new order is not known, none succeeds out of sync
                client.run(lambda asked: elect_leaders(asked, [tp]))
                return cluster.coordinator(group) == others[0]

            until(moves, "it moves", within_s=60)
        moved.append(former)

    own = {"auto.offset.reset": "earliest", "heartbeat.interval.ms": 500}  # by which it hears of the new coordinator
    consumer = Consumer({**options(cluster.bootstrap, group), **own})
    consumer.subscribe([topic], on_assign=move)
    try:
        deadline = time.monotonic() + 90
        while len(set(found)) < PARTITIONS and not errors and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None:
                (errors if message.error() else found).append(message.error() or message.value())
    finally:
        consumer.close()
    assert (len(moved), errors, set(found)) == (1, [], {b"%d" % number for number in range(PARTITIONS)})


@only_long("clients of every kind")
def test_members_of_all_clients_outlive_their_coordinator(cluster, topic):
    """Killed, then another one stopped in good order: nothing is missed, and all partitions are read at the end."""
    group = "survivors"
    members = [make(cluster.bootstrap, group, topic) for make in CLIENTS.values()]
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0})
    sent, stopping = [], threading.Event()

    def produce():
        while not stopping.is_set():
            value = b"%d" % len(sent)
            producer.produce(topic, value, partition=len(sent) % PARTITIONS)
            sent.append(value)
            producer.poll(0)
            time.sleep(0.01)
        assert producer.flush(60) == 0

    def unread(count=None):
        return set(sent[:count]) - {value for member in members for _, _, value in member.records}

    def shared():
        owned = [partition for member in members for partition in member.partitions]
        return sorted(owned) == list(range(PARTITIONS))

    def state():
        missing = Counter(int(value) % PARTITIONS for value in unread())
        owned = [sorted(member.partitions) for member in members]
        return f"sent {len(sent)}; not read, by partition: {dict(missing)}; owned: {owned}"

    feed = threading.Thread(target=produce, daemon=True)
    with members[0], members[1], members[2]:
        until(shared, "all partitions are read", within_s=60)
        feed.start()
        for end in (cluster.kill, cluster.stop):
            until(cluster.is_whole, "all replicas in sync", within_s=60)
            coordinator = cluster.coordinator(group)
            end(coordinator)
            before = len(sent)
            until(lambda before=before: len(sent) > before + 100, state, within_s=60)
            until(lambda count: not unread(count), state, len(sent), within_s=60)
            cluster.restart(coordinator)
        stopping.set()
        feed.join(60)
        until(lambda: not unread(), state, within_s=60)
        until(shared, state, within_s=60)
