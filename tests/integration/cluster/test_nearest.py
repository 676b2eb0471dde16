"""Followers that serve the consumers of their rack: two brokers, of which the second stands where the readers are."""

import time

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Position

from replication.client.kafka_client import Isolation, KafkaClient
from replication.config.broker import RACK_AWARE_SELECTOR
from tests.integration.cluster.conftest import running
from tests.integration.cluster.test_metrics import free_ports, samples
from tests.support.repeats import only_long, times

LEADER, FOLLOWER = 1, 2
SIZE = 1000


@pytest.fixture(scope="module")
def racks(tmp_path_factory):
    ports = free_ports(2)
    own = {
        broker: {"broker.rack": rack, "metrics.port": str(port)}
        for broker, rack, port in zip((LEADER, FOLLOWER), ("far", "near"), ports, strict=True)
    }
    settings = {"replica.selector.class": RACK_AWARE_SELECTOR, "transaction.state.log.replication.factor": 2}
    with running(2, tmp_path_factory.mktemp("racks"), own=own, **settings) as tested:
        tested.ports = ports
        yield tested


def sent(racks):
    """The bytes that the leader and the follower have sent to consumers."""
    found = [samples(port) for port in racks.ports]
    return [each[("kafka_server_brokertopicmetrics_bytesout_total",)] for each in found]


def rows(begin, count):
    return pa.table({"value": [f"{n}".ljust(SIZE, ".") for n in range(begin, begin + count)]})


def numbers(values):
    return [int(value.rstrip(b".")) for value in values]


def theirs(racks, topic, count):
    """The records that confluent-kafka reads in that rack."""
    settings = {"bootstrap.servers": racks.running.bootstrap, "group.id": "-", "log_level": 0}
    consumer = Consumer({**settings, "client.rack": "near"})
    consumer.assign([Position(topic, 0, 0)])
    found = []
    while len(found) < count:
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        found.append(message.value())
    consumer.close()
    return found


def ours(racks, topic, count):
    with KafkaClient(racks.running.bootstrap, rack="near", timeout_ms=20_000) as client:
        return [v for batch in client.read(topic, 0, 0, count) for v in batch["value"].to_pylist()]


@pytest.mark.parametrize("read", [theirs, ours][: times(1, 2)])
def test_who_names_a_rack_reads_at_the_follower_there_and_others_at_the_leader(racks, read):
    topic = racks.create((LEADER, FOLLOWER))
    with KafkaClient(racks.running.bootstrap, timeout_ms=20_000) as client:
        client.append(topic, rows(0, 3000))
        begin = sent(racks)
        assert numbers(read(racks, topic, 3000)) == list(range(3000))
        by_leader, by_follower = (end - at for at, end in zip(begin, sent(racks), strict=True))
        assert by_follower >= 3000 * SIZE
        assert by_leader == 0
        assert sum(batch.num_rows for batch in client.read(topic, 0, 0, 3000)) == 3000
        assert sent(racks)[0] - begin[0] >= 3000 * SIZE


def test_a_follower_shows_what_is_committed_and_nothing_of_other_transactions(racks):
    topic = racks.create((LEADER, FOLLOWER))
    producer = Producer({"bootstrap.servers": racks.running.bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    for number, end in enumerate(
        (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction)
    ):
        producer.begin_transaction()
        for n in range(100 * number, 100 * number + 100):
            producer.produce(topic, f"{n}".ljust(SIZE, "."), partition=0)
        producer.flush(30)
        end(30)
    producer.begin_transaction()
    producer.produce(topic, "open", partition=0)
    producer.flush(30)
    begin, committed = sent(racks), [*range(100), *range(200, 300)]
    assert numbers(theirs(racks, topic, 200)) == committed
    with KafkaClient(racks.running.bootstrap, rack="near", timeout_ms=20_000) as client:
        isolation = Isolation.READ_COMMITTED
        (extent,) = client.extents(topic, isolation=isolation).values()
        read = client.read(topic, 0, extent.start, extent.end, isolation=isolation)
        assert numbers([value for batch in read for value in batch["value"].to_pylist()]) == committed
        assert extent.end == 303  # three markers; the open transaction begins there
    by_leader, by_follower = (end - at for at, end in zip(begin, sent(racks), strict=True))
    assert by_follower >= 2 * 200 * SIZE
    assert by_leader == 0
    producer.abort_transaction(30)


@only_long("brokers that restart")
def test_the_leader_serves_when_the_follower_dies_and_nothing_is_lost_or_doubled(racks):
    topic = racks.create((LEADER, FOLLOWER))
    with KafkaClient(racks.running.bootstrap, rack="near", timeout_ms=20_000) as client:
        member = client.consumer(topic, "g", auto_offset_reset="earliest", enable_auto_commit=False)
        found, begin = [], sent(racks)

        def until(count):
            end = time.monotonic() + 40
            while len(found) < count:
                assert time.monotonic() < end, f"{len(found)} of {count}"
                if (batch := member.poll()) is not None:
                    found.extend(numbers(batch["value"].to_pylist()))

        for part in range(10):
            client.append(topic, rows(100 * part, 100))
            until(100 * part + 100)
        by_leader, by_follower = (end - at for at, end in zip(begin, sent(racks), strict=True))
        assert by_follower >= 1000 * SIZE
        assert by_leader < 100 * SIZE  # what group offsets take
        racks.running.kill(FOLLOWER)
        client.append(topic, rows(1000, 500))
        until(1500)
        assert found == list(range(1500))
        racks.running.restart(FOLLOWER)
