"""Transactions of four clients on three real brokers: exactly once, while coordinators and leaders are killed."""

import asyncio
import itertools
import random
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from kafka import KafkaProducer
from kafka import TopicPartition as KafkaPartition
from kafka.structs import OffsetAndMetadata

from replication.model.cluster import TRANSACTIONS_TOPIC
from tests.conformance.clients.members import until
from tests.support.repeats import only_long, soaked, times
from tests.support.tried_cluster import TriedCluster

RECORDS = soaked(times(300, 1200), 2400)
STANDING_S = 60  # a transaction takes less, on any machine, with its timeout of 20 s
PAUSE_S = 0.1  # between transactions, so that there are some at every kill
KILLS = soaked(times(2, 6), 12)
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated. Use files:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def cluster():
    settings = {
        "offsets.topic.num.partitions": 3,
        "transaction.state.log.num.partitions": 3,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
        "zookeeper.session.timeout.ms": 2000,
        "group.min.session.timeout.ms": 1000,
        "min.insync.replicas": 2,
        "default.replication.factor": 3,
    }
    with TriedCluster(3, settings=settings) as cluster:
        yield cluster


def create(cluster, *names, partitions=3):
    cluster.wait_until_known()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(name, partitions, 3) for name in names]).values():
        future.result(30)
    return admin


def quiet(cluster, **more):
    return {"bootstrap.servers": cluster.bootstrap, "log_level": 0, "socket.timeout.ms": 3000, **more}


def read(cluster, topic, isolation="read_committed"):
    """Everything in the topic up to its end, which for committed data is the last stable offset."""
    admin = AdminClient(quiet(cluster))
    tps = [TopicPartition(topic, number) for number in admin.list_topics(topic, 20).topics[topic].partitions]
    consumer = Consumer(
        quiet(cluster, **{"group.id": "reader", "isolation.level": isolation, "enable.partition.eof": True})
    )
    consumer.assign([TopicPartition(tp.topic, tp.partition, 0) for tp in tps])
    values, at_end = [], set()
    deadline = time.monotonic() + 60
    while len(at_end) < len(tps) and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None:
            continue
        if message.error() is None:
            values.append(message.value())
        elif message.error().name() == "_PARTITION_EOF":
            at_end.add(message.partition())
    consumer.close()
    assert len(at_end) == len(tps), "the end was not reached"
    return values


# ---------------------------------------------------------------- three clients


class Confluent:
    """A producer with a transactional id: begins, sends, and ends transactions."""

    def __init__(self, cluster, name):
        self.producer = Producer(quiet(cluster, **{"transactional.id": name, "transaction.timeout.ms": 20_000}))
        self.producer.init_transactions(60)

    def write(self, topic, values, *, commits=True, offsets=None, consumer=None):
        self.producer.begin_transaction()
        for value in values:
            self.producer.produce(topic, value, key=value)
        if offsets is not None:
            rows = [TopicPartition(*tp, offset) for tp, offset in offsets.items()]
            self.producer.send_offsets_to_transaction(rows, consumer.consumer_group_metadata(), 30)
        self.producer.flush(30)
        (self.producer.commit_transaction if commits else self.producer.abort_transaction)(60)

    def close(self):
        self.producer = None


class KafkaPython:
    def __init__(self, cluster, name):
        self.producer = KafkaProducer(
            bootstrap_servers=cluster.bootstrap, transactional_id=name, transaction_timeout_ms=20_000
        )
        self.producer.init_transactions()

    def write(self, topic, values, *, commits=True, offsets=None, consumer=None):
        self.producer.begin_transaction()
        for value in values:
            self.producer.send(topic, value, key=value)
        if offsets is not None:
            rows = {KafkaPartition(*tp): OffsetAndMetadata(offset, "", -1) for tp, offset in offsets.items()}
            self.producer.send_offsets_to_transaction(rows, consumer)
        self.producer.flush(30)
        self.producer.commit_transaction() if commits else self.producer.abort_transaction()

    def close(self):
        self.producer.close(0)


class Aio:
    """aiokafka, on a loop of its own."""

    def __init__(self, cluster, name):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

        async def make():
            made = AIOKafkaProducer(
                bootstrap_servers=cluster.bootstrap, transactional_id=name, transaction_timeout_ms=20_000
            )
            try:
                await made.start()
            except BaseException:
                await made.stop()
                raise
            return made

        try:
            self.producer = self.do(make())
        except BaseException:
            self.end()
            raise

    def do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(90)

    def write(self, topic, values, *, commits=True, offsets=None, consumer=None):
        self.do(self._write(topic, values, commits, offsets, consumer))

    async def _write(self, topic, values, commits, offsets, group):
        await self.producer.begin_transaction()
        sent = [await self.producer.send(topic, value, key=value) for value in values]
        if offsets is not None:
            rows = {AioPartition(*tp): offset for tp, offset in offsets.items()}
            await self.producer.send_offsets_to_transaction(rows, group)
        await asyncio.gather(*sent)
        await (self.producer.commit_transaction() if commits else self.producer.abort_transaction())

    def close(self):
        async def stop():
            task = asyncio.ensure_future(self.producer.stop())
            await asyncio.wait([task], timeout=5)
            task.cancel()

        self.do(stop())
        self.end()

    def end(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


PRODUCERS = {"confluent-kafka": Confluent, "kafka-python": KafkaPython, "aiokafka": Aio}


@pytest.mark.parametrize("client", [*PRODUCERS][: times(1, 9)])
def test_committed_data_is_read_aborted_data_is_not_and_an_older_instance_is_fenced(cluster, client):
    topic = f"plain-{client}"
    create(cluster, topic)
    old = PRODUCERS[client](cluster, f"id-{client}")
    old.write(topic, [b"a%d" % n for n in range(50)])
    old.write(topic, [b"aborted"] * 50, commits=False)
    old.write(topic, [b"b%d" % n for n in range(50)])
    wanted = Counter([b"a%d" % n for n in range(50)] + [b"b%d" % n for n in range(50)])
    until(lambda: Counter(read(cluster, topic)) == wanted, "what is committed is read")
    assert read(cluster, topic, "read_uncommitted").count(b"aborted") == 50
    new = PRODUCERS[client](cluster, f"id-{client}")
    with pytest.raises(Exception, match=r"(?i)fenced|newer producer|epoch"):
        old.write(topic, [b"zombie"])
    new.write(topic, [b"new"])
    wanted[b"new"] += 1
    until(lambda: Counter(read(cluster, topic)) == wanted, "and nothing of the zombie")
    for each in (old, new):
        each.close()


def test_a_transaction_that_is_open_holds_committed_reads_until_its_timeout(cluster):
    admin = create(cluster, "held", partitions=1)
    producer = Producer(quiet(cluster, **{"transactional.id": "held", "transaction.timeout.ms": 3000}))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("held", b"open")
    assert producer.flush(30) == 0
    plain = Producer(quiet(cluster))
    plain.produce("held", b"behind")
    assert plain.flush(30) == 0
    assert read(cluster, "held") == []
    tp = TopicPartition("held", 0)
    stable = admin.list_offsets({tp: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED)
    assert stable[tp].result(20).offset == 0
    until(lambda: read(cluster, "held") == [b"behind"], "it is aborted", within_s=30)
    with pytest.raises(KafkaException):
        producer.commit_transaction(20)


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed: apt install kcat")
@only_long("clients that are killed")
def test_kcat_commits_at_the_end_of_its_input_and_a_killed_one_is_aborted_by_the_next(cluster):
    create(cluster, "kcat", partitions=1)
    command = ["kcat", "-b", cluster.bootstrap, "-P", "-t", "kcat", "-X", "transactional.id=kcat", "-X", "linger.ms=1"]
    # More than the block that it reads at a time. One that gives up before it begins, on a busy machine, is run again.
    half, given_up = b"half\n" * 40_000, []

    def is_open():
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as killed:
            try:
                killed.stdin.write(half)
                killed.stdin.flush()
            except BrokenPipeError:
                given_up.append(killed.stderr.read())
                return False
            until(lambda: b"half" in read(cluster, "kcat", "read_uncommitted"), "it is open")
            killed.kill()
        return True

    def is_committed():
        done = subprocess.run(command, input=b"whole 1\nwhole 2\n", capture_output=True, timeout=60, check=False)
        given_up.append(done.stderr)
        return done.returncode == 0

    until(is_open, lambda: given_up)
    until(is_committed, lambda: given_up)
    until(lambda: read(cluster, "kcat") == [b"whole 1", b"whole 2"], "the second is committed")


# ------------------------------------------------------------------- copying


class Copier:
    """Consume, transform, produce: all of a topic into another, with its offsets in the same transactions.

    It takes up again from the committed offsets whenever something fails, as programs do; and, as a supervisor of
    programs does, it is replaced where it stands still: a librdkafka (2.16) whose broker was gone from the metadata
    for a moment may wait for it for ever. Late messages of the replaced one have to be fenced.
    """

    def __init__(self, cluster, client, source, target, total):
        self.cluster, self.client = cluster, client
        self.source, self.target, self.total = source, target, total
        self.group = f"group-{client}"
        self.failures = []
        self.offsets = {}
        self.done = threading.Event()

    def start(self):
        self.moved = time.monotonic()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while self.is_current():
            try:
                self.copy()
            except Exception as error:  # noqa: BLE001  whatever a client raises when brokers die
                self.failures.append(repr(error))
                time.sleep(0.2)

    def is_current(self):
        return self.thread is threading.current_thread() and not self.done.is_set()

    def copy(self):
        producer = PRODUCERS[self.client](self.cluster, f"copy-{self.client}")
        consumer = Consumer(
            quiet(
                self.cluster,
                **{
                    "group.id": self.group,
                    "isolation.level": "read_committed",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                },
            )
        )
        try:
            tps = [TopicPartition(self.source, number) for number in range(3)]
            found = consumer.committed(tps, 20)  # stable ones: the last transaction has ended
            offsets = {(tp.topic, tp.partition): max(tp.offset, 0) for tp in found}
            assert not any(tp.error for tp in found), found
            consumer.assign([TopicPartition(*tp, offset) for tp, offset in offsets.items()])
            while self.is_current() and sum(offsets.values()) < self.total:
                messages = consumer.consume(10, 0.5)
                time.sleep(PAUSE_S)
                values = []
                for message in messages:
                    if message.error() is None:
                        values.append(message.value())
                        offsets[message.topic(), message.partition()] = message.offset() + 1
                if values:
                    group = consumer if self.client == "confluent-kafka" else self.group
                    producer.write(self.target, values, offsets=offsets, consumer=group)
                    if self.is_current():
                        self.moved, self.offsets = time.monotonic(), dict(offsets)
            if self.is_current():
                self.done.set()
        finally:
            consumer.close()
            producer.close()

    def replace_if_it_stands(self):
        if time.monotonic() - self.moved > STANDING_S and not self.done.is_set():
            self.failures.append(f"stood still: {self.place()}")
            self.start()

    def place(self):
        """Return where it is now: its offsets, what failed last, and its stack."""
        frame = sys._current_frames().get(self.thread.ident)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        return f"{self.client}: {self.offsets}, {self.failures[-3:]}\n{stack}"


def has_committed(cluster, topic):
    """Is there anything to read? (The end of what somebody writes to may not be reached.)"""
    wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(3)}
    admin = AdminClient(quiet(cluster))
    found = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=20)
    return any(each.result(30).offset > 0 for each in found.values())


def feed(cluster, topic, values):
    producer = Producer(quiet(cluster, **{"enable.idempotence": True}))
    for value in values:
        producer.produce(topic, value, key=value)
    assert producer.flush(60) == 0


def check(cluster, copier, values):
    deadline = time.monotonic() + 300
    while not copier.done.wait(1) and time.monotonic() < deadline:
        copier.replace_if_it_stands()
    assert copier.done.is_set(), copier.place()
    wanted = Counter(values)
    until(
        lambda: sum(Counter(read(cluster, copier.target)).values()) >= len(values),
        "all is decided",
        within_s=60,
    )
    assert Counter(read(cluster, copier.target)) == wanted, (copier.client, copier.failures)


@only_long("a copy by one client more")
def test_kafka_python_copies_everything_once(cluster):
    """Without kills: it sends nothing more once the connection to its coordinator has failed (3.0.12)."""
    create(cluster, "few", "out-kafka-python")
    values = [b"%d" % n for n in range(60)]
    feed(cluster, "few", values)
    copier = Copier(cluster, "kafka-python", "few", "out-kafka-python", len(values))
    copier.start()
    check(cluster, copier, values)


@pytest.mark.soak
@only_long("brokers that are killed")
def test_everything_is_copied_exactly_once_while_coordinators_and_others_are_killed(cluster):
    clients = ("confluent-kafka", "aiokafka")
    create(cluster, "in", *(f"out-{client}" for client in clients))
    values = [b"%d" % n for n in range(RECORDS)]
    feed(cluster, "in", values)
    copiers = [Copier(cluster, client, "in", f"out-{client}", RECORDS) for client in clients]
    for copier in copiers:
        copier.start()
    for copier in copiers:  # the internal topics are there, with three replicas
        until(lambda copier=copier: has_committed(cluster, copier.target), "copying begins", within_s=60)
    chance = random.Random(KILLS)
    names = itertools.cycle(f"copy-{client}" for client in clients)
    for number in range(KILLS):
        until(cluster.is_whole, "all replicas in sync", within_s=90)
        victim = cluster.coordinator(next(names), TRANSACTIONS_TOPIC) if number % 2 == 0 else chance.choice((1, 2, 3))
        cluster.kill(victim or 1)
        time.sleep(chance.random() * 2)
        cluster.restart(victim or 1)
        for copier in copiers:
            copier.replace_if_it_stands()
    for copier in copiers:
        check(cluster, copier, values)
