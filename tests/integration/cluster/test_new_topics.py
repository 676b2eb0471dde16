"""Clients use a topic that was just created: three whole brokers; one obeys late, all wait for long."""

import asyncio
import time
import warnings

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode as WireCode

from replication.broker import topic_admin
from replication.errors import ErrorCode
from replication.protocol import interbroker as ib
from tests.support.in_process import brokers_in_process

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its own way to read its files
    import kafka

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated. Use files:DeprecationWarning")
SLOW_S = 0.4
COUNT = 20
# A request that waits for a follower's next fetch takes FETCH_WAIT_S: much longer than a busy machine needs for the
# rest.
FETCH_WAIT_S, PATIENCE_S = 90, 45


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    fetch_wait_ms = FETCH_WAIT_S * 1000
    patient = {"replica_fetch_wait_max_ms": fetch_wait_ms, "replica_lag_time_max_ms": 2 * fetch_wait_ms}
    with brokers_in_process(tmp_path_factory.mktemp("new"), **patient) as running:
        yield running


@pytest.fixture
def slow(brokers):
    """Has a broker obey LeaderAndIsr later, by `SLOW_S` or what else is said."""
    told = []

    def make_slow(number, slow_s=SLOW_S):
        requests = brokers.brokers[number].replicas.requests
        obey = requests.obey
        told.append((requests, obey))

        async def later(request, correlation_id=0):
            if isinstance(request, ib.LeaderAndIsrRequest):
                await asyncio.sleep(slow_s)
            return await obey(request, correlation_id)

        requests.obey = later

    yield make_slow
    for requests, obey in told:
        requests.obey = obey


def create(brokers, topic, *assignments):
    """By way of the first broker, which hears of it first."""
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
    new = NewTopic(topic, len(assignments), replica_assignment=[list(row) for row in assignments])
    admin.create_topics([new], operation_timeout=PATIENCE_S)[topic].result(PATIENCE_S)


def confluent(bootstrap, topic, acks):
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": acks, "retries": 0, "log_level": 0})
    for number in range(COUNT):
        producer.produce(topic, str(number).encode(), partition=0)
    assert producer.flush(PATIENCE_S) == 0


def kafka_python(bootstrap, topic, acks):
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, acks=int(acks), retries=0)
    for number in range(COUNT):
        producer.send(topic, str(number).encode(), partition=0)
    producer.flush(PATIENCE_S)
    producer.close(PATIENCE_S)


@pytest.fixture
def refusing(brokers):
    """Has a broker that lives refuse to lead, whatever a controller says: a full disk, say."""
    told = []

    def make_refuse(number):
        requests = brokers.brokers[number].replicas.requests
        obey = requests.obey
        told.append((requests, obey))

        async def refuse(request, correlation_id=0):
            if not isinstance(request, ib.LeaderAndIsrRequest):
                return await obey(request, correlation_id)
            rows = tuple(
                ib.LeaderAndIsrTopicError(
                    topic_id=topic.topic_id,
                    partition_errors=tuple(
                        ib.LeaderAndIsrPartitionError(
                            partition_index=state.partition_index,
                            error_code=WireCode(ErrorCode.KAFKA_STORAGE_ERROR),
                        )
                        for state in topic.partition_states
                    ),
                )
                for topic in request.topic_states
            )
            return ib.LeaderAndIsrResponse(error_code=WireCode(ErrorCode.NONE), topics=rows)

        requests.obey = refuse

    yield make_refuse
    for requests, obey in told:
        requests.obey = obey


def test_a_topic_is_not_said_to_be_made_before_it_can_be_written(brokers, refusing):
    refusing(2)
    for asked in (1, 2):  # another broker leads, or the one that was asked
        new = topic_admin.NewTopic(name=f"asked-{asked}", assignment={0: (1, 2), 1: (2, 1)})
        assert brokers.do(brokers.brokers[asked].admin.create(new, timeout_s=1.5)) is None


def end_of(brokers, topic, leader):
    found = brokers.brokers[leader].replicas.partitions().get((topic, 0))
    return 0 if found is None else found.replica.end


def until_end(brokers, topic, leader):
    until_s = time.monotonic() + PATIENCE_S
    while (found := end_of(brokers, topic, leader)) < COUNT and time.monotonic() < until_s:
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("write", [confluent, kafka_python], ids=["confluent", "kafka-python"])
@pytest.mark.parametrize("acks", ["0", "1"])
def test_the_first_records_of_a_new_topic_arrive_without_being_sent_again(brokers, slow, write, acks):
    topic = f"new-{write.__name__}-{acks}"
    slow(2)
    create(brokers, topic, (2, 1))
    write(brokers.bootstrap, topic, acks)
    assert until_end(brokers, topic, 2) == COUNT


def consume(bootstrap, topic, count):
    """So many of its records from the first on, or what comes until nothing comes any more."""
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=PATIENCE_S * 1000,
    )
    found = []
    for record in consumer:
        found.append(int(record.value))
        if len(found) == count:
            break
    consumer.close()
    return sorted(found)


def test_records_of_topics_that_are_made_one_after_the_other_are_read_at_once(brokers):
    """Their followers ask for them, though all that they asked before waits at the leaders."""
    producer = kafka.KafkaProducer(bootstrap_servers=brokers.bootstrap, acks=1)
    for round_ in range(3):
        topic = f"plain-{round_}"
        create(brokers, topic, (1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 3, 2))
        for number in range(100):
            producer.send(topic, str(number).encode(), partition=number % 4)
        producer.flush(PATIENCE_S)
        assert consume(brokers.bootstrap, topic, 100) == list(range(100))
    producer.close(PATIENCE_S)


def test_who_deletes_records_reads_all_the_others_at_once(brokers):
    create(brokers, "shortened", (1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 3, 2))
    producer = kafka.KafkaProducer(bootstrap_servers=brokers.bootstrap, acks="all")
    for number in range(400):
        producer.send("shortened", str(number).encode(), partition=number % 4)
    producer.flush(PATIENCE_S)
    producer.close(PATIENCE_S)
    admin = kafka.KafkaAdminClient(bootstrap_servers=brokers.bootstrap)
    before = {kafka.TopicPartition("shortened", n): 5 for n in range(4)}
    admin.delete_records(before, timeout_ms=PATIENCE_S * 1000)
    admin.close()
    assert consume(brokers.bootstrap, "shortened", 380) == list(range(20, 400))
