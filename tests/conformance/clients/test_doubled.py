"""Four clients produce with acks=all while everything changes but the leader: nothing is lost, nothing is there twice.

A client without idempotence sends again what is answered with an error, and one with it may. So no append may be
refused that is stored, and is still led.
`DOUBLED_ROUNDS=10 python -m pytest -n0 tests/conformance/clients/test_doubled.py` is a longer form.
"""

import asyncio
import random
import threading
import time
import warnings
from collections import Counter
from contextlib import closing, suppress

import confluent_kafka
import pyarrow as pa
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka.admin import AdminClient, NewTopic

from replication.client.admin import elect_leaders, reassign
from replication.client.kafka_client import KafkaClient
from replication.coordination import nodes
from replication.coordination.cluster import read_controller_epoch
from replication.errors import ErrorCode
from replication.local_cluster.description import read
from replication.model.cluster import TopicPartition
from tests.conformance.clients.members import until
from tests.support.repeats import only_long, times
from tests.support.tried_cluster import TriedCluster

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its own way to read its files
    import kafka

ROUNDS = times(1, 4, "DOUBLED_ROUNDS")
RECORDS = times(400, 5000)  # at least so many of each client
LEADER, FOLLOWERS = 1, (2, 3)
TIMEOUT_MS = 120_000  # nothing may be sent again because it took long
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120 + 120 * ROUNDS),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Sender(threading.Thread):
    """Sends numbers to a topic of its own, until it is told to end; `acked` and `failed` say what became of them."""

    def __init__(self, bootstrap, topic):
        super().__init__(daemon=True)
        self.bootstrap, self.topic = bootstrap, topic
        self.sent, self.acked, self.failed = 0, set(), []
        self.over, self.error = threading.Event(), None

    def run(self):
        try:
            self.send_all()
        except BaseException as error:  # noqa: BLE001  the test raises it
            self.error = error

    def numbers(self):
        """The next numbers to send, again and again."""
        chance = random.Random(self.topic)
        while not self.over.is_set() or self.sent < RECORDS:
            first, self.sent = self.sent, self.sent + chance.randint(1, 12)
            yield range(first, self.sent)

    def is_waiting(self):
        return self.sent > len(self.acked) + len(self.failed) + 12


class Confluent(Sender):
    is_idempotent = False

    def send_all(self):
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "acks": "all",
                "enable.idempotence": self.is_idempotent,
                "linger.ms": 2,
                "request.timeout.ms": TIMEOUT_MS,
                "message.timeout.ms": TIMEOUT_MS,
                "log_level": 0,
            }
        )
        for some in self.numbers():
            for number in some:
                producer.produce(self.topic, b"%d" % number, partition=0, on_delivery=self._told)
            producer.poll(0.01)
        assert producer.flush(60) == 0

    def _told(self, error, message):
        if error is None:
            self.acked.add(int(message.value()))
        else:
            self.failed.append(error)


class Idempotent(Confluent):
    is_idempotent = True


class KafkaPython(Sender):
    def send_all(self):
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap.split(",")[:1],
            acks="all",
            enable_idempotence=False,
            linger_ms=2,
            request_timeout_ms=TIMEOUT_MS,
            delivery_timeout_ms=2 * TIMEOUT_MS,
        )
        with closing(producer):
            for some in self.numbers():
                for number in some:
                    future = producer.send(self.topic, b"%d" % number, partition=0)
                    future.add_callback(lambda _, number=number: self.acked.add(number))
                    future.add_errback(self.failed.append)
                time.sleep(0.01)
            producer.flush(60)


class Aiokafka(Sender):
    def send_all(self):
        asyncio.run(self._send_all())

    async def _send_all(self):
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap.split(",")[:1], acks="all", linger_ms=2, request_timeout_ms=TIMEOUT_MS
        )
        await producer.start()
        sending = []
        for some in self.numbers():
            sending += [await producer.send(self.topic, b"%d" % number, partition=0) for number in some]
            for number, future in zip(some, sending[-len(some) :], strict=True):
                future.add_done_callback(lambda done, number=number: self._told(done, number))
            await asyncio.sleep(0.01)
        await asyncio.wait(sending, timeout=60)
        await producer.stop()

    def _told(self, done, number):
        if done.exception() is None:
            self.acked.add(number)
        else:
            self.failed.append(done.exception())


class Own(Sender):
    def send_all(self):
        with KafkaClient(self.bootstrap) as client, client.producer(linger_ms=2) as producer:
            sending = []
            for some in self.numbers():
                sending.append(producer.send(self.topic, pa.table({"value": [str(number) for number in some]})))
                sending[-1].add_done_callback(lambda done, some=some: self._told(done, some))
                time.sleep(0.01)
            for future in sending:
                with suppress(Exception):  # it is in `failed`
                    future.result(60)

    def _told(self, done, some):
        if done.exception() is None:
            self.acked.update(some)
        else:
            self.failed.append(done.exception())


SENDERS = {
    "librdkafka": Confluent,
    "librdkafka-idempotent": Idempotent,
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
    "pylog": Own,
}


class Disturbed:
    """A cluster, its topics, and what happens to them. Each event ends when all replicas are in sync again."""

    def __init__(self, cluster, senders):
        self.cluster, self.senders = cluster, senders
        self.tps = [TopicPartition(sender.topic, 0) for sender in senders]
        self._client = KafkaClient(cluster.bootstrap)

    def close(self):
        self._client.close()

    def states(self):
        found = self.cluster.describe().leadership
        return [found[tp] for tp in self.tps]

    def until_in_sync(self, count=3):
        until(lambda: all(len(state.isr) == count for state in self.states()), self.states, within_s=60)

    def a_follower_dies(self, broker):
        """While everybody waits for it."""
        self.cluster.pause(broker)
        until(lambda: all(sender.is_waiting() for sender in self.senders), "nobody waits")
        self.cluster.kill(broker)
        self.until_in_sync(2)
        self.cluster.restart(broker)
        self.until_in_sync()

    def an_isr_shrinks(self, broker):
        self.cluster.pause(broker)
        until(lambda: any(broker not in state.isr for state in self.states()), self.states)
        self.cluster.resume(broker)
        self.until_in_sync()

    def replicas_move(self, *replicas):
        wanted = dict.fromkeys(self.tps, replicas)
        self._ask(lambda cluster: reassign(cluster, wanted))
        until(lambda: not self.cluster.describe().reassignments, "it is being moved", within_s=60)
        self.until_in_sync(len(replicas))

    def the_preferred_lead(self):
        self._ask(lambda cluster: elect_leaders(cluster, self.tps))

    def another_term_begins(self):
        before = self._terms()
        self._in_tree(lambda tree: tree.delete(nodes.CONTROLLER))
        until(lambda: self._terms() > before, "nobody controls")

    def _terms(self):
        return self._in_tree(read_controller_epoch)

    def _in_tree(self, act):
        return asyncio.run(read(self.cluster.coordination, act))

    def _ask(self, act):
        """Have the controller do it, once it is known who that is."""

        def done():
            codes = {getattr(error, "code", None) for error in self._client.run(act).values()}
            return codes <= {None, ErrorCode.ELECTION_NOT_NEEDED}

        until(done, "it is not done")


@pytest.fixture(scope="module")
def cluster():
    settings = {
        "zookeeper.session.timeout.ms": 3000,
        "replica.lag.time.max.ms": 1000,
        "auto.leader.rebalance.enable": "false",
    }
    with TriedCluster(3, settings=settings) as cluster:
        yield cluster


def stored(bootstrap, topic):
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "-", "log_level": 0})
    try:
        place = confluent_kafka.TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=20)
        consumer.assign([place])
        found = []
        while len(found) < end:
            message = consumer.poll(20)
            assert message is not None, f"{len(found)} of {end}"
            assert message.error() is None, message.error()
            found.append(int(message.value()))
        return found
    finally:
        consumer.close()


@only_long("five clients for seconds")
def test_who_waits_while_the_leader_stays_is_never_told_to_send_again(cluster):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    topics = [NewTopic(name, 1, replica_assignment=[[LEADER, *FOLLOWERS]]) for name in SENDERS]
    for made in admin.create_topics(topics, operation_timeout=20).values():
        made.result()
    senders = [make(cluster.bootstrap, name) for name, make in SENDERS.items()]
    for sender in senders:
        sender.start()
    with closing(Disturbed(cluster, senders)) as disturbed:
        until(
            lambda: all(sender.acked for sender in senders),
            lambda: {sender.topic: (len(sender.acked), sender.failed[:3], sender.error) for sender in senders},
            within_s=60,
        )
        for number in range(ROUNDS):
            disturbed.a_follower_dies(FOLLOWERS[number % 2])
            disturbed.an_isr_shrinks(FOLLOWERS[1 - number % 2])
            disturbed.replicas_move(LEADER, FOLLOWERS[1])
            disturbed.replicas_move(FOLLOWERS[1], LEADER, FOLLOWERS[0])
            disturbed.replicas_move(LEADER, *FOLLOWERS)
            disturbed.the_preferred_lead()
            disturbed.another_term_begins()
        states = disturbed.states()
    for sender in senders:
        sender.over.set()
    for sender in senders:
        sender.join(120)
        assert not sender.is_alive(), f"{sender.topic} does not end"

    assert {sender.topic: (sender.error, sender.failed[:3]) for sender in senders} == dict.fromkeys(SENDERS, (None, []))
    assert [state.leader for state in states] == [LEADER] * len(states), "another one leads: the test says nothing"
    assert min(state.leader_epoch for state in states) >= 3 * ROUNDS
    for sender in senders:
        found = Counter(stored(cluster.bootstrap, sender.topic))
        doubled = {number: count for number, count in found.items() if count > 1}
        assert (doubled, sender.acked - set(found)) == ({}, set()), f"{sender.topic}: doubled, lost"
        assert len(sender.acked) == sender.sent >= RECORDS
