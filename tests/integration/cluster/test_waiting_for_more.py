"""A wait for records at the leaders of partitions ends with the first one, and holds nothing up."""

import threading
import time
from contextlib import contextmanager

import pyarrow as pa
import pytest

from replication.client.fetching import LATEST
from replication.client.kafka_client import KafkaClient
from replication.model.cluster import TopicPartition
from replication.protocol.messages import Isolation

LONG_MS = 60_000  # no test waits for its end


@pytest.fixture
def client(cluster):
    with KafkaClient(cluster.running.bootstrap, timeout_ms=40_000) as opened:
        yield opened


@pytest.fixture
def topic(cluster):
    return cluster.create((1, 2, 3), (2, 3, 1), (3, 1, 2))


def row(partition):
    return pa.table({"value": ["v"], "partition": pa.array([partition], pa.int32())})


def ends(client, topic, isolation=Isolation.READ_COMMITTED):
    wanted = {TopicPartition(topic, p): LATEST for p in client.topic(topic).leaders}
    return {tp: found.offset for tp, found in client.offsets(wanted, isolation=isolation).items()}


def wait(client, asked, wait_ms=LONG_MS):
    return client.wait_for_more(asked, wait_ms=wait_ms, isolation=Isolation.READ_COMMITTED)


@contextmanager
def waiting(client, topic):
    """A wait for LONG_MS that has begun, and must be over with True at the end of the block."""
    asked, found = ends(client, topic), []
    wait(client, asked, 1)  # the connections are open
    thread = threading.Thread(target=lambda: found.append(wait(client, asked)))
    thread.start()
    yield thread
    thread.join(LONG_MS / 1000 - 10)
    assert found == [True]


def in_vain_s(client, asked):
    """How long a wait of 300 ms that ends with nothing takes; 0: each ends with something.

    A leader that answers late, on a busy machine, is asked again.
    """
    for _ in range(20):
        begun_s = time.monotonic()
        if not wait(client, asked, 300):
            return time.monotonic() - begun_s
    return 0


def test_a_wait_without_a_record_takes_its_time_and_no_more(client, topic):
    assert 0.29 < in_vain_s(client, ends(client, topic)) < LONG_MS / 1000


@pytest.mark.parametrize("partition", range(3))
def test_a_record_of_any_leader_ends_the_wait(client, topic, partition):
    with waiting(client, topic):
        client.append(topic, row(partition))
    before = {TopicPartition(topic, p): 0 for p in range(3)}
    assert wait(client, before)  # it came before the wait


def test_other_requests_do_not_wait_for_it(client, topic):
    with waiting(client, topic) as thread:
        for _ in range(20):
            assert set(ends(client, topic).values()) == {0}
        assert thread.is_alive()
        client.append(topic, row(0))


def test_records_count_when_they_are_committed(client, topic):
    name = f"waits-{topic}"
    pair = client.init_producer(name, timeout_ms=40_000).pair
    with client.transactional_producer(name, pair) as producer:
        producer.append(topic, row(1))
        producer.flush()
        asked = ends(client, topic)
        assert asked != ends(client, topic, Isolation.READ_UNCOMMITTED)
        assert in_vain_s(client, asked)
        with waiting(client, topic):
            client.end_transaction(name, pair, commits=True)


def test_a_leader_that_dies_ends_the_wait(cluster, client):
    with waiting(client, cluster.create((1,))):
        cluster.running.kill(1)


def test_a_leader_that_stands_still_is_not_waited_for(cluster, client, topic):
    asked = ends(client, topic)
    with cluster.running.pause(client.topic(topic).leaders[0].broker):
        assert wait(client, asked, 300)


def test_a_topic_that_is_deleted_ends_the_wait(client, topic):
    with waiting(client, topic):
        client.delete_topic(topic)
