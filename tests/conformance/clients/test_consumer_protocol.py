"""librdkafka's consumers with `group.protocol=consumer` on our brokers: joins, leaves, static members, expressions."""

import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack, suppress

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.clients.members import until
from tests.support.commands import run_pylog
from tests.support.in_process import brokers_in_process
from tests.support.repeats import only_long, soaked
from tests.support.tried_cluster import TriedCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PARTITIONS = 6


class Owners:
    """The readers of partitions, by what the members were told; `twice` are those that had two readers at once."""

    def __init__(self):
        self.lock = threading.Lock()
        self.of = {}
        self.twice, self.gave = [], []

    def take(self, member, partitions):
        with self.lock:
            for tp in partitions:
                key = tp.topic, tp.partition
                if key in self.of:
                    self.twice.append((key, self.of[key], member))
                self.of[key] = member

    def give(self, member, partitions):
        with self.lock:
            self.gave += [member] * len(partitions)
            for tp in partitions:
                key = tp.topic, tp.partition
                if self.of.get(key) == member:
                    del self.of[key]

    def counts(self):
        with self.lock:
            return sorted(Counter(self.of.values()).values())


class Reader(threading.Thread):
    """A member that counts what it reads, and commits after every record."""

    def __init__(self, owners, bootstrap, topics, name, **options):
        super().__init__(daemon=True)
        self.name, self.owners, self.stopping = name, owners, threading.Event()
        self.seen = Counter()
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "client.id": name,
            "log_level": 0,
            "socket.timeout.ms": 5000,
            "topic.metadata.refresh.interval.ms": 1000,  # a Kafka that does not know the new topic yet is asked again
            **options,
        }
        self.consumer = Consumer(settings)
        self.consumer.subscribe(topics, on_assign=self._assign, on_revoke=self._give, on_lost=self._give)

    def _assign(self, consumer, partitions):
        self.owners.take(self.name, partitions)
        consumer.incremental_assign(partitions)

    def _give(self, consumer, partitions):
        self.owners.give(self.name, partitions)
        consumer.incremental_unassign(partitions)

    def run(self):
        is_committed = True
        while not self.stopping.is_set():
            message = self.consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.seen[message.value()] += 1
                is_committed = False
            if not is_committed:
                with suppress(KafkaException):  # the coordinator moves, or the partitions do: again
                    self.consumer.commit(asynchronous=False)
                    is_committed = True
        self.consumer.close()

    def end(self):
        self.stopping.set()
        self.join(60)


class EagerReader(Reader):
    """A member of the classic protocol, which gives up all that it reads whenever its group changes."""

    def __init__(self, owners, bootstrap, topics, name, **options):
        classic = {"group.protocol": "classic", "partition.assignment.strategy": "range"}
        super().__init__(owners, bootstrap, topics, name, **classic, **{"heartbeat.interval.ms": 200}, **options)

    def _assign(self, consumer, partitions):
        self.owners.take(self.name, partitions)
        consumer.assign(partitions)

    def _give(self, consumer, partitions):
        self.owners.give(self.name, partitions)
        consumer.unassign()


class CooperativeReader(Reader):
    """A member of the classic protocol, which gives up only what another one is to get."""

    def __init__(self, owners, bootstrap, topics, name, **options):
        classic = {"group.protocol": "classic", "partition.assignment.strategy": "cooperative-sticky"}
        super().__init__(owners, bootstrap, topics, name, **classic, **{"heartbeat.interval.ms": 200}, **options)


def create(bootstrap, *topics, copies=1):
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for made in admin.create_topics([NewTopic(name, PARTITIONS, copies) for name in topics]).values():
        made.result()


def produce(bootstrap, topic, words):
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "acks": "all"})
    for at, word in enumerate(words):
        producer.produce(topic, word.encode(), partition=at % PARTITIONS)
    assert producer.flush(60) == 0


@pytest.fixture
def bootstrap(tmp_path):
    settings = {"group_consumer_heartbeat_interval_ms": 100, "group_consumer_min_heartbeat_interval_ms": 100}
    with brokers_in_process(tmp_path, (1,), **settings) as running:
        create(running.bootstrap, "t-1")
        yield running.bootstrap


def test_members_join_and_leave_and_no_partition_has_two_readers(bootstrap):
    owners, readers = Owners(), []
    with ExitStack() as ends:
        for count, name in enumerate("abc", 1):
            reader = Reader(owners, bootstrap, ["t-1"], name)
            reader.start()
            ends.callback(reader.end)
            readers.append(reader)
            until(
                lambda count=count: len(owners.counts()) == count and sum(owners.counts()) == PARTITIONS, "shared out"
            )
        assert owners.counts() == [2, 2, 2]
        words = [f"w{number}" for number in range(60)]
        produce(bootstrap, "t-1", words)
        until(lambda: sum(len(reader.seen) for reader in readers) == 60, "all is read")
        said = run_pylog("groups", "describe", "g", "--state", "--bootstrap-server", bootstrap).ok().out
        assert "Stable" in said
        assert "uniform" in said
        assert run_pylog("groups", "members", "g", "--bootstrap-server", bootstrap).ok().out.count("t-1") >= 3
        readers[0].end()
        until(lambda: owners.counts() == [3, 3], "shared out again")
    assert owners.twice == []
    assert Counter(word for reader in readers for word in reader.seen.copy().elements()) == Counter(
        word.encode() for word in words
    )
    assert "Empty" in run_pylog("groups", "list", "--bootstrap-server", bootstrap).ok().out


def test_a_member_is_rolled_from_the_classic_protocol_to_the_other_and_back_while_it_reads(bootstrap):
    assert roll(bootstrap, "t-1", CooperativeReader, members=1) == {1}


@only_long("members come and go for half a minute")
@pytest.mark.parametrize("classic", [EagerReader, CooperativeReader])
def test_members_are_rolled_from_the_classic_protocol_to_the_other_and_back_while_they_read(bootstrap, classic):
    assert roll(bootstrap, "t-1", classic) == {1}


def roll(bootstrap, topic, classic, members=2, disturb=lambda: None, group="g"):
    """Replace the members of a group one by one, by such of the other protocol, and back; return how often each
    record is read. `disturb` is called while the group changes.
    """
    owners, readers, words = Owners(), {}, []
    with ExitStack() as ends:

        def begin(kind, name):
            readers[name] = kind(owners, bootstrap, [topic], name, **{"group.id": group})
            readers[name].start()
            ends.callback(readers[name].end)

        def is_shared(count):
            return len(owners.counts()) == count and sum(owners.counts()) == PARTITIONS

        def is_read():
            return set().union(*(reader.seen.copy() for reader in readers.values())) >= {
                word.encode() for word in words
            }

        def step(count):
            until(lambda: is_shared(count), f"shared out among {count}", within_s=120)
            more = [f"{len(words)}-{number}" for number in range(PARTITIONS)]
            words.extend(more)
            produce(bootstrap, topic, more)
            until(is_read, "all is read", within_s=120)

        numbers = range(members)
        for number in numbers:
            begin(classic, f"old-{number}")
        step(members)
        for kind, former, later in ((Reader, "old", "new"), (classic, "new", "back")):
            for number in numbers:
                begin(kind, f"{later}-{number}")
                disturb()
                step(members + 1)
                readers[f"{former}-{number}"].end()
                step(members)
    assert owners.twice == []
    seen = Counter(word for reader in readers.values() for word in reader.seen.copy().elements())
    assert seen.keys() == {word.encode() for word in words}
    return set(seen.values())


MEMBER = """
import sys
from confluent_kafka import Consumer
settings = {"group.id": "g", "group.protocol": "consumer", "client.id": "new"}
consumer = Consumer({"bootstrap.servers": sys.argv[1], **settings})
consumer.subscribe(["t-1"])
while True:
    consumer.poll(0.1)
"""


@only_long("a session ends")
def test_a_member_that_was_silent_until_its_group_became_a_classic_one_comes_back(tmp_path):
    settings = {
        "group_consumer_heartbeat_interval_ms": 100,
        "group_consumer_min_heartbeat_interval_ms": 100,
        "group_consumer_session_timeout_ms": 2000,
        "group_consumer_min_session_timeout_ms": 2000,
    }
    owners = Owners()
    with brokers_in_process(tmp_path, (1,), **settings) as running, ExitStack() as ends:
        create(running.bootstrap, "t-1")
        reader = CooperativeReader(owners, running.bootstrap, ["t-1"], "old")
        reader.start()
        ends.callback(reader.end)
        until(lambda: owners.counts() == [6], "the classic member has all")
        member = ends.enter_context(subprocess.Popen([sys.executable, "-c", MEMBER, running.bootstrap]))
        ends.callback(member.kill)
        until(lambda: owners.counts() == [3], "the other member has its half", within_s=60)
        member.send_signal(signal.SIGSTOP)
        until(lambda: owners.counts() == [6], "the classic member has all again", within_s=60)
        member.send_signal(signal.SIGCONT)
        until(lambda: owners.counts() == [3], "the other member is back", within_s=60)


@pytest.mark.soak
@pytest.mark.timeout(900)
@only_long("brokers that are killed while members are replaced")
@pytest.mark.parametrize("classic", (CooperativeReader, EagerReader)[: soaked(1, 2)])
def test_members_are_rolled_to_the_other_protocol_and_back_while_coordinators_are_killed(classic):
    """No partition has two readers, and no record is missed; one whose commit went with its broker may come again."""
    settings = {
        "offsets.topic.num.partitions": 3,
        "zookeeper.session.timeout.ms": 2000,
        "min.insync.replicas": 2,
        "group.consumer.heartbeat.interval.ms": 300,
        "group.consumer.min.heartbeat.interval.ms": 300,
    }
    with TriedCluster(3, settings=settings) as cluster:
        create(cluster.bootstrap, "t", copies=3)
        killed = []

        def kill():
            cluster.restart(*killed)
            until(cluster.is_whole, "all brokers are back", within_s=120)
            killed[:] = [cluster.coordinator("g")]
            cluster.kill(killed[0])

        roll(cluster.bootstrap, "t", classic, disturb=kill)
        assert killed


def test_a_static_member_that_restarts_gets_its_partitions_back_and_the_other_keeps_its_own(bootstrap):
    owners = Owners()
    with ExitStack() as ends:
        one, other = (Reader(owners, bootstrap, ["t-1"], name, **{"group.instance.id": name}) for name in "ab")
        for reader in (one, other):
            reader.start()
            ends.callback(reader.end)
        until(lambda: owners.counts() == [3, 3], "shared out")
        had = dict(owners.of)
        owners.gave.clear()
        one.end()
        again = Reader(owners, bootstrap, ["t-1"], "a", **{"group.instance.id": "a"})
        again.start()
        ends.callback(again.end)
        until(lambda: owners.of == had, "the same again")
        assert "b" not in owners.gave
    assert owners.twice == []


def test_an_expression_takes_in_a_topic_that_comes_later(bootstrap):
    owners = Owners()
    with ExitStack() as ends:
        reader = Reader(owners, bootstrap, ["^t-[0-9]+"], "a")
        reader.start()
        ends.callback(reader.end)
        until(lambda: owners.counts() == [PARTITIONS], "the topic that there is")
        create(bootstrap, "t-22", "u-1")
        until(lambda: owners.counts() == [2 * PARTITIONS], "the topic that has come")
        assert {topic for topic, _ in owners.of} == {"t-1", "t-22"}


@only_long("brokers that are killed")
def test_a_group_goes_on_when_its_coordinator_is_killed(tmp_path):
    settings = {
        "offsets.topic.num.partitions": 3,
        "zookeeper.session.timeout.ms": 2000,
        "min.insync.replicas": 2,
        "group.consumer.heartbeat.interval.ms": 300,
        "group.consumer.min.heartbeat.interval.ms": 300,
    }
    owners, readers = Owners(), []
    with TriedCluster(3, settings=settings) as cluster, ExitStack() as ends:
        create(cluster.bootstrap, "t", copies=3)
        for name in "abc":
            readers.append(Reader(owners, cluster.bootstrap, ["t"], name))
            readers[-1].start()
            ends.callback(readers[-1].end)
        until(lambda: owners.counts() == [2, 2, 2], "shared out", within_s=120)
        first, second = ([f"{part}-{number}" for number in range(60)] for part in ("first", "second"))
        produce(cluster.bootstrap, "t", first)
        until(lambda: sum(len(reader.seen) for reader in readers) >= 60, "the first part is read", within_s=60)
        until(lambda: sum(committed(cluster.bootstrap)) == 60, "and committed", within_s=60)
        coordinator = cluster.coordinator("g")
        cluster.kill(coordinator)
        produce(cluster.bootstrap, "t", second)
        wanted = {word.encode() for word in (*first, *second)}
        until(lambda: {word for reader in readers for word in reader.seen.copy()} == wanted, "all is read", within_s=90)
        until(lambda: sum(committed(cluster.bootstrap)) == 120, "and committed", within_s=90)
        assert cluster.coordinator("g") != coordinator
        doubled = Counter(word for reader in readers for word in reader.seen.copy().elements())
        assert not [word for word, times in doubled.items() if word.startswith(b"first") and times > 1]
        assert owners.counts() == [2, 2, 2]
    assert owners.twice == []


def committed(bootstrap):
    """Return the committed offsets of the group."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    asked = ConsumerGroupTopicPartitions("g", [TopicPartition("t", number) for number in range(PARTITIONS)])
    try:
        found = admin.list_consumer_group_offsets([asked], request_timeout=10)["g"].result()
    except Exception:  # noqa: BLE001 - the coordinator is another one in a moment
        return [0]
    return [max(tp.offset, 0) for tp in found.topic_partitions]
