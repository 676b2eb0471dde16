"""Transactions of our client at three brokers; confluent-kafka, a stranger, reads what is committed."""

import threading

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Position

from replication.client import transactions
from replication.client.kafka_client import KafkaClient
from replication.coordinators.binary import partition_of
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TRANSACTIONS_TOPIC
from replication.network.client import Client
from replication.protocol.apis import ApiKey
from tests.support.repeats import times

TIMEOUT_MS = 60_000


@pytest.fixture
def client(cluster):
    with KafkaClient(cluster.running.bootstrap, timeout_ms=40_000) as opened:
        yield opened


def rows(*values, partition=0):
    return pa.table({"value": [str(v) for v in values], "partition": pa.array([partition] * len(values), pa.int32())})


def committed(cluster, topic, count, partition=0):
    """The values that another client reads: so many, and nothing more up to the last stable offset."""
    settings = {"group.id": "-", "isolation.level": "read_committed", "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": cluster.running.bootstrap, **settings})
    consumer.assign([Position(topic, partition, 0)])
    found, is_over = [], False
    try:
        while not (is_over and len(found) >= count):
            message = consumer.poll(20)
            assert message is not None, f"{found} and no more"
            is_over = message.error() is not None
            found += [] if is_over else [int(message.value())]
        return found
    finally:
        consumer.close()


def keeper(cluster, client, name):
    """The broker that keeps this transactional id."""
    number = partition_of(name, len(client.topic(TRANSACTIONS_TOPIC).leaders))
    return cluster.state(TRANSACTIONS_TOPIC, number).leader


def test_what_is_committed_is_seen_in_all_topics_and_what_is_aborted_in_none(cluster, client):
    one, two = cluster.create((1, 2, 3), (2, 3, 1)), cluster.create((3, 1, 2))
    with client.transaction("both") as transaction:
        transaction.append(one, rows(*range(3000)))
        transaction.append(one, rows(1, 2, partition=1))
        transaction.append(two, rows(5))
        assert client.describe_transactions(["both", "nobody"])["both"].partitions == transaction.partitions
        assert {tp.topic for tp in transaction.partitions} == {one, two}
        assert len(transaction.partitions) == 3
    with pytest.raises(ZeroDivisionError):
        fail(client, one, two)
    with client.transaction("both") as transaction:
        pass  # nothing to end
    with client.transaction("both") as transaction:
        transaction.append(two, rows(6))
    assert committed(cluster, two, 2) == [5, 6]
    assert committed(cluster, one, 3000) == list(range(3000))
    assert committed(cluster, one, 2, partition=1) == [1, 2]


def fail(client, *topics):
    with client.transaction("both") as transaction:
        for topic in topics:
            transaction.append(topic, rows(-1))
        raise ZeroDivisionError


def test_a_producer_that_another_one_has_replaced_can_neither_write_nor_end(cluster, client):
    topic = cluster.create((1, 2, 3))
    old = client.init_producer("fenced", timeout_ms=TIMEOUT_MS).pair
    with client.transactional_producer("fenced", old) as zombie:
        zombie.append(topic, rows(-1))
        new = client.init_producer("fenced", timeout_ms=TIMEOUT_MS).pair  # aborts what is open
        assert new > old
        with pytest.raises(KafkaError, match=r"append to .*: another producer took this transactional id") as refused:
            zombie.append(topic, rows(-2))
        with pytest.raises(KafkaError) as again:
            zombie.append(topic, rows(-3))  # it has failed for good
        assert str(again.value) == str(refused.value)
        with pytest.raises(KafkaError):
            zombie.flush()
    with pytest.raises(KafkaError, match="another producer took this transactional id over") as ended:
        client.end_transaction("fenced", old, commits=True)
    assert ended.value.code is ErrorCode.PRODUCER_FENCED
    with pytest.raises(KafkaError, match="no such transaction"):
        client.end_transaction("fenced", new, commits=True)
    with client.transaction("fenced") as transaction:
        transaction.append(topic, rows(1))
    assert committed(cluster, topic, 1) == [1]


def test_a_prepared_transaction_is_ended_with_its_pair_by_another_client_more_than_once(cluster, client):
    topic = cluster.create((1, 2, 3))
    assert client.run(transactions.has_two_phase)
    names = [f"prepared-{n}" for n in range(6)]
    pairs = {name: client.init_producer(name, timeout_ms=1, is_two_phase=True).pair for name in names}
    for n, (name, pair) in enumerate(pairs.items()):
        with client.transactional_producer(name, pair) as producer:
            producer.append(topic, rows(n))
    with KafkaClient(cluster.running.bootstrap) as other:
        kept = other.init_producer(names[0], timeout_ms=1, is_two_phase=True, keeps=True)
        assert kept.ongoing == pairs[names[0]]
        listed = {each.transactional_id for each in other.list_transactions(states=["Ongoing"])}
        assert set(names) <= listed
        for _ in range(2):
            assert other.run(lambda cluster: transactions.end_transactions(cluster, pairs, commits=True)) == {}
        refused = other.run(lambda cluster: transactions.end_transactions(cluster, pairs, commits=False))
        assert {error.code for error in refused.values()} == {ErrorCode.INVALID_TXN_STATE}
        assert refused.keys() == set(names)
    assert sorted(committed(cluster, topic, 6)) == list(range(6))
    described = client.describe_transactions(names)
    assert {described[name].pair for name in names[1:]} == {pairs[name] for name in names[1:]}


@pytest.mark.parametrize("fault", ["kill", "pause"][: times(1, 2)])
def test_a_coordinator_that_dies_before_the_end_costs_nothing(cluster, client, fault):
    topic = cluster.create((1, 2, 3), (2, 3, 1), (3, 1, 2))
    name = f"orphan-{fault}"
    with client.transaction(name) as transaction:
        for partition in range(3):
            transaction.append(topic, rows(*range(10), partition=partition))
        victim = keeper(cluster, client, name)
        getattr(cluster.running, fault)(victim)
        seen = {}
        asked = [
            threading.Thread(target=lambda: seen.update(listed=client.list_transactions(states=["Ongoing"]))),
            threading.Thread(target=lambda: seen.update(described=client.describe_transactions([name]))),
        ]
        for thread in asked:
            thread.start()
        for thread in asked:  # another one takes over, and loads
            thread.join(40)
        assert name in {each.transactional_id for each in seen["listed"]}
        assert len(seen["described"][name].partitions) == 3
        for partition in range(3):
            transaction.append(topic, rows(*range(10, 20), partition=partition))
    assert keeper(cluster, client, name) != victim
    for partition in range(3):
        assert committed(cluster, topic, 20, partition) == list(range(20))


def test_an_end_whose_answer_is_lost_is_asked_again(cluster, client, monkeypatch):
    topic, name = cluster.create((1, 2, 3)), "lost-answer"
    pair = client.init_producer(name, timeout_ms=TIMEOUT_MS).pair
    with client.transactional_producer(name, pair) as producer:
        producer.append(topic, rows(1, 2))
    calls, ask = [], Client.call

    async def lose_the_first(self, key, request, **bounds):
        answer = await ask(self, key, request, **bounds)
        if key is ApiKey.END_TXN:
            calls.append(key)
            if len(calls) == 1:
                raise ConnectionResetError("after it was answered")
        return answer

    monkeypatch.setattr(Client, "call", lose_the_first)
    client.end_transaction(name, pair, commits=True)
    assert len(calls) >= 2
    assert committed(cluster, topic, 2) == [1, 2]
