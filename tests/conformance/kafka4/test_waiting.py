"""A wait for records at a real Kafka 4.4: what an idle stream of Spark does there."""

import threading
import time

import pyarrow as pa
import pytest

from replication.client.fetching import LATEST
from replication.client.kafka_client import KafkaClient
from replication.model.cluster import TopicPartition
from replication.protocol.messages import Isolation
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("starts a Kafka")]
LONG_MS = 60_000  # no test waits for its end
COMMITTED = Isolation.READ_COMMITTED


@pytest.fixture(scope="module")
def kafka(three_brokers):
    with KafkaClient(three_brokers.bootstrap) as made:
        made.create_topic("waits", partitions=3, replicas=1)
    return three_brokers


@pytest.fixture
def client(kafka):
    """One of its own: brokers answer a connection in order, first the fetches of a wait that ended early."""
    with KafkaClient(kafka.bootstrap) as made:
        yield made


def ends(client):
    wanted = {TopicPartition("waits", p): LATEST for p in range(3)}
    return {tp: found.offset for tp, found in client.offsets(wanted, isolation=COMMITTED).items()}


def in_vain_s(client):
    """How long a wait of 300 ms that ends with nothing takes; 0: each ends with something.

    A leader that answers late, on a busy machine, is asked again.
    """
    for _ in range(20):
        asked, begun_s = ends(client), time.monotonic()
        if not client.wait_for_more(asked, wait_ms=300, isolation=COMMITTED):
            return time.monotonic() - begun_s
    return 0


def ends_the_wait(client, act):
    """Whether a wait that has begun is over, with True, once something is done."""
    found, asked = [], ends(client)
    client.wait_for_more(asked, wait_ms=1, isolation=COMMITTED)  # the connections are open
    wait = threading.Thread(
        target=lambda: found.append(client.wait_for_more(asked, wait_ms=LONG_MS, isolation=COMMITTED))
    )
    wait.start()
    act()
    wait.join(LONG_MS / 1000 - 10)
    return found == [True]


def test_a_wait_ends_with_the_first_record_of_any_leader_and_not_without_one(kafka, client):
    assert in_vain_s(client) > 0.29
    for partition in range(3):
        row = pa.table({"value": ["v"], "partition": pa.array([partition], pa.int32())})
        with KafkaClient(kafka.bootstrap) as other:
            assert ends_the_wait(other, lambda row=row: client.append("waits", row))


def test_records_of_a_transaction_end_the_wait_when_they_are_committed(client):
    pair = client.init_producer("waits", timeout_ms=40_000).pair
    with client.transactional_producer("waits", pair) as producer:
        producer.append("waits", pa.table({"value": ["v"], "partition": pa.array([1], pa.int32())}))
        producer.flush()
        assert in_vain_s(client)
        assert ends_the_wait(client, lambda: client.end_transaction("waits", pair, commits=True))
