"""One Kafka of one broker and one of three serve all tests here: a start is most of what they cost."""

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from replication.client.kafka_client import KafkaClient
from tests.conformance.kafka4 import worlds
from tests.support.asker import until
from tests.support.kafka4 import Kafka4, is_whole

# `test_directories` needs this: segments are compacted within seconds.
CLEANER = {"log.cleaner.backoff.ms": 500, "log.cleaner.dedupe.buffer.size": 2_000_000}
# `test_our_members` needs these: groups notice within seconds that a member is gone.
GROUPS = {
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.heartbeat.interval.ms": 300,
    "group.consumer.session.timeout.ms": 6000,
    "group.consumer.min.session.timeout.ms": 6000,
}
# `test_share_groups` needs these: the same, locks of seconds, and no record is given up.
SHARE_GROUPS = {
    "group.share.heartbeat.interval.ms": 300,
    "group.share.min.heartbeat.interval.ms": 300,
    "group.share.session.timeout.ms": 6000,
    "group.share.min.session.timeout.ms": 6000,
    "group.share.record.lock.duration.ms": 5000,
    "group.share.min.record.lock.duration.ms": 1000,
    "group.share.delivery.count.limit": 10,
    "errors.deadletterqueue.auto.create.topics.enable": "true",
}

WHOLE_WITHIN_S = 120


@pytest.fixture(scope="package")
def one_broker(tmp_path_factory):
    with Kafka4(tmp_path_factory.mktemp("kafka4"), settings=CLEANER) as running:
        yield running


@pytest.fixture(scope="package")
def three_brokers(tmp_path_factory):
    with Kafka4(tmp_path_factory.mktemp("kafka4"), 3, settings=GROUPS | SHARE_GROUPS) as running:
        yield running


@pytest.fixture(autouse=True)
def _left_whole(request):
    """Start what a test has left dead of the three, and wait for it: the next test expects them whole."""
    yield
    if "three_brokers" in request.fixturenames:
        kafka = request.getfixturevalue("three_brokers")
        for number in kafka.numbers:
            if not kafka.is_running(number):
                kafka.start(number)
        with KafkaClient(kafka.bootstrap) as client:
            until(lambda: is_whole(client), WHOLE_WITHIN_S)


@pytest.fixture(scope="package")
def visits(one_broker, registry):
    """The topics of `worlds`, on the Kafka of one broker."""
    with KafkaClient(one_broker.bootstrap) as client, SchemaRegistryClient({"url": registry.url}) as schemas:
        for topic in worlds.STRATEGIES:
            client.create_topic(topic)
        worlds.write(one_broker.bootstrap, schemas)
    return worlds.STRATEGIES
