"""Real broker processes. One cluster of three serves most tests: each leaves it whole, and has topics of its own."""

import itertools
import time
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient, NewTopic

from logstore.schemas.subjects import TOPIC
from replication.client.kafka_client import KafkaClient
from replication.model.cluster import TopicPartition
from tests.support.commands import run_pylog
from tests.support.inside import broker_settings
from tests.support.tried_cluster import TriedCluster

SESSION_TIMEOUT_MS = 3000
SETTINGS = {
    "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
    "auto.leader.rebalance.enable": "false",
    "replica.fetch.backoff.ms": 200,
    "transaction.two.phase.commit.enable": "true",
}


class Tested:
    """A cluster, and what tests look at."""

    def __init__(self, running):
        self.running = running
        self.names = (f"topic{number}" for number in itertools.count(1))

    def administer(self, call, *arguments, **options):
        """Ask an admin client for something, and wait for it; what it returns, or for several things each of them."""
        client = AdminClient({"bootstrap.servers": self.running.bootstrap, "log_level": 0})
        asked = getattr(client, call)(*arguments, **options)
        if isinstance(asked, dict):
            return {name: future.result() for name, future in asked.items()}
        return asked.result()

    def create(self, *assignments, name=None, **config):
        """A topic with these replicas, whose state is written."""
        name = name or next(self.names)
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        topic = NewTopic(name, len(assignments), replica_assignment=[list(row) for row in assignments], config=settings)
        self.administer("create_topics", [topic], operation_timeout=20)
        return name

    def states(self, topic):
        """(leader, ISR, leader epoch) per partition, as the state nodes have them."""
        found = self.running.describe().leadership
        return {
            tp.partition: (state.leader, list(state.isr), state.leader_epoch)
            for tp, state in sorted(found.items())
            if tp.topic == topic
        }

    def state(self, topic, partition=0):
        return self.running.describe().leadership[TopicPartition(topic, partition)]

    def until(self, holds, timeout_s=40.0):
        """Return when it holds, with the seconds that took."""
        begin = time.monotonic()
        while not (found := holds()):
            assert time.monotonic() - begin < timeout_s, "it did not come to that"
            time.sleep(0.03)
        return time.monotonic() - begin, found

    def until_states(self, topic, wanted, timeout_s=40.0):
        begin = time.monotonic()
        while (found := self.states(topic)) != wanted:
            assert time.monotonic() - begin < timeout_s, f"{found}, and not {wanted}"
            time.sleep(0.03)
        return time.monotonic() - begin

    def produce(self, topic, values, *, partition=0, **settings):
        """Send these with acks=all, once each whatever is sent again; return the errors."""
        once = {"acks": "all", "enable.idempotence": settings.keys().isdisjoint({"acks", "retries"})}
        producer = Producer({"bootstrap.servers": self.running.bootstrap, "log_level": 0, **once, **settings})
        errors = []
        for value in values:
            producer.produce(
                topic, str(value).encode(), partition=partition,
                on_delivery=lambda error, message: errors.append(error) if error else None,
            )  # fmt: skip
        assert producer.flush(30) == 0
        return errors

    def values(self, topic, count, partition=0):
        """The records that a consumer gets from the beginning: so many, and any others that are there then."""
        settings = {"group.id": "-", "enable.partition.eof": True, "fetch.wait.max.ms": 50, "log_level": 0}
        consumer = Consumer({"bootstrap.servers": self.running.bootstrap, **settings})
        try:
            consumer.assign([Position(topic, partition, 0)])
            found, is_at_end = [], False
            while len(found) < count or not is_at_end:
                message = consumer.poll(15)
                if message is None:
                    break
                is_at_end = message.error() == KafkaError._PARTITION_EOF
                if not is_at_end:
                    assert message.error() is None, message.error()
                    found.append(message.value().decode())
            return found
        finally:
            consumer.close()

    def roles(self):
        """(the controller, the two others)."""
        controller = self.until(self.running.controller)[1]
        return controller, *(broker for broker in self.running.live if broker != controller)


@contextmanager
def running(brokers=3, directory=None, coordination=None, own=None, **settings):
    """A cluster of its own; `own`: settings of single brokers."""
    made = TriedCluster(brokers, directory, {**SETTINGS, **settings}, coordination=coordination)
    for broker, its in (own or {}).items():
        broker_settings(made, broker).update(its)
    with made as started:
        yield Tested(started)


@pytest.fixture(scope="package")
def shared(tmp_path_factory):
    with running(directory=tmp_path_factory.mktemp("cluster")) as tested:
        yield tested


@pytest.fixture
def cluster(shared):
    """The shared cluster, with all of its brokers up."""
    yield shared
    shared.running.mend()


@pytest.fixture
def client(cluster):
    """A client; what it registers goes at the end of the test."""
    with KafkaClient(cluster.running.bootstrap) as client:
        yield client
        if TOPIC in client.topics():
            client.delete_topic(TOPIC)


@pytest.fixture
def pylog(cluster):
    """Run a command on the shared cluster."""

    def run(*arguments, input=None):
        return run_pylog(*arguments, "--bootstrap-server", cluster.running.bootstrap, input=input)

    return run


@pytest.fixture
def name(cluster):
    return next(cluster.names)
