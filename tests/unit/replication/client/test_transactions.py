"""Transactions as a client sees them: coordinators that move or load, what is sent; and librdkafka's mock cluster."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from logstore.errors import PylogError, RecordTooLargeError
from logstore.records.batch import batches
from logstore.records.encoding import encode
from logstore.records.rows import Rows
from replication.client import transactions
from replication.client.cluster import Cluster
from replication.client.kafka_client import KafkaClient
from replication.client.metadata import PartitionLeader
from replication.client.producing import Sender
from replication.client.transactions import Pair, Transaction, add_partitions, end_transactions
from replication.errors import ErrorCode, KafkaError, UnsupportedVersionError
from replication.model.cluster import TopicPartition
from replication.protocol.apis import ApiKey
from replication.protocol.messages import PartitionProduced
from tests.support.peer import run, serving

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MINE = Transaction("x", Pair(7, 3))
LOADING, MOVED, BUSY, NOT_ATTEMPTED, UNKNOWN_TOPIC = 14, 16, 51, 55, 3
GAP, FENCED, TIMED_OUT, TOO_LARGE, NOT_ENOUGH = 45, 90, 7, 10, 19


class Coordinator:
    """Answers each API with the next of its codes; the last one stays. Every id is kept at the last of the ports."""

    def __init__(self, **codes):
        self.codes = {name: list(each) for name, each in codes.items()}
        self.ports, self.asked, self.connections = [], [], set()

    def handlers(self):
        return {
            ApiKey.FIND_COORDINATOR: self.find,
            ApiKey.ADD_PARTITIONS_TO_TXN: self.add,
            ApiKey.END_TXN: self.end,
            ApiKey.DESCRIBE_TRANSACTIONS: self.describe,
        }

    def code(self, name, context):
        self.asked.append(name)
        self.connections.add(context.connection_id)
        left = self.codes.get(name, [0])
        return left.pop(0) if len(left) > 1 else left[0]

    async def find(self, context, body):
        self.code("find", context)
        here = {"node_id": 1, "host": "127.0.0.1", "port": self.ports[-1], "error_code": 0, "error_message": None}
        return {"coordinators": [{"key": key, **here} for key in body.coordinator_keys]}

    async def add(self, context, body):
        code = self.code("add", context)
        rows = [
            {"partition_index": n, "partition_error_code": c} for n, c in ((0, NOT_ATTEMPTED if code else 0), (1, code))
        ]
        return {"results_by_topic_v3_and_below": [{"name": "t", "results_by_partition": rows}]}

    async def end(self, context, body):
        return {"error_code": self.code("end", context)}

    async def describe(self, context, body):
        rows = [
            {
                "error_code": self.code(name, context),
                "transactional_id": name,
                "transaction_state": "Ongoing",
                "transaction_timeout": 2**31 - 1,
                "transaction_start_time": datetime.fromtimestamp(1.234, UTC),
                "producer_id": 5,
                "producer_epoch": 6,
                "topics": [{"topic": "t", "partitions": [1]}],
            }
            for name in body.transactional_ids
        ]
        return {"transaction_states": rows}


def asking(coordinator, ask, timeout_ms=5000):
    async def main():
        async with serving(coordinator.handlers()) as (_, port):
            coordinator.ports.append(port)
            cluster = Cluster(f"127.0.0.1:{port}", timeout_ms=timeout_ms)
            try:
                return await ask(cluster)
            finally:
                cluster.close()

    return run(main())


def test_partitions_are_added_again_until_the_coordinator_has_done_so():
    coordinator = Coordinator(add=[LOADING, BUSY, MOVED, UNKNOWN_TOPIC, 0])
    asking(coordinator, lambda cluster: add_partitions(cluster, "x", MINE.pair, [T0, T1]))
    assert coordinator.asked == ["find", "add", "add", "add", "find", "add", "add"]


def test_the_partition_that_was_refused_and_not_its_companion_is_the_reason():
    with pytest.raises(KafkaError, match="ADD_PARTITIONS_TO_TXN of transactional id 'x': another producer took"):
        asking(Coordinator(add=[FENCED]), lambda cluster: add_partitions(cluster, "x", MINE.pair, [T0, T1]))


def test_many_ids_are_found_at_once_and_share_a_connection():
    coordinator = Coordinator(end=[BUSY, MOVED, BUSY] + [0] * 197 + [FENCED])
    pairs = {f"id-{n}": Pair(n, 0) for n in range(200)}
    refused = asking(coordinator, lambda cluster: end_transactions(cluster, pairs, commits=True))
    assert [error.code for error in refused.values()] == [ErrorCode.PRODUCER_FENCED] * 3
    assert coordinator.asked.count("find") == 2  # of all, and of the one that has moved
    assert len(coordinator.connections) == 2  # one of them is for metadata and FindCoordinator


def test_ids_that_moved_apart_are_described_by_those_that_keep_them_now():
    coordinator = Coordinator(a=[0], b=[MOVED, LOADING, 0], c=[105])
    found = asking(coordinator, lambda cluster: transactions.describe_transactions(cluster, ["a", "b", "c"]))
    assert found.keys() == {"a", "b"}
    assert found["b"] == ("b", "Ongoing", (5, 6), 1234, 2**31 - 1, {T1})


@pytest.mark.parametrize("trouble", ["loads", "moves"])
def test_a_list_is_taken_again_until_every_coordinator_has_loaded_and_none_has_moved(trouble):
    moves = trouble == "moves"
    coordinator, epochs = Coordinator(list=[0] if moves else [LOADING, 0]), [5, 6] if moves else [5]

    async def metadata(context, body):
        epoch = epochs.pop(0) if len(epochs) > 1 else epochs[0]
        here = {"node_id": 1, "host": "127.0.0.1", "port": coordinator.ports[0], "rack": None}
        led = {"partition_index": 0, "leader_id": 1, "leader_epoch": epoch, "error_code": 0}
        led |= {"replica_nodes": [1], "isr_nodes": [1], "offline_replicas": []}
        topic = {
            "name": "__transaction_state",
            "topic_id": None,
            "error_code": 0,
            "partitions": [led],
            "is_internal": True,
        }
        return {"cluster_id": "c", "controller_id": 1, "brokers": [here], "topics": [topic]}

    async def listed(context, body):
        assert body.state_filters == ("Ongoing",)
        rows = [{"transactional_id": "x", "producer_id": 5, "transaction_state": "Ongoing"}]
        code = coordinator.code("list", context)
        return {"error_code": code, "unknown_state_filters": (), "transaction_states": () if code else rows}

    handlers = {ApiKey.METADATA: metadata, ApiKey.LIST_TRANSACTIONS: listed}
    coordinator.handlers = lambda: handlers
    found = asking(coordinator, lambda cluster: transactions.list_transactions(cluster, states=["Ongoing"]))
    assert found == [("x", 5, "Ongoing")]
    assert coordinator.asked == ["list", "list"]


def test_brokers_without_what_is_asked_for_say_so():
    coordinator = Coordinator()
    handlers = coordinator.handlers()
    del handlers[ApiKey.DESCRIBE_TRANSACTIONS]
    coordinator.handlers = lambda: handlers | {ApiKey.INIT_PRODUCER_ID: None}  # advertised up to 5
    assert asking(coordinator, lambda cluster: transactions.describe_transactions(cluster, ["a"])) is None
    assert not asking(coordinator, transactions.has_two_phase)
    with pytest.raises(UnsupportedVersionError, match="newer brokers are needed"):
        asking(coordinator, lambda c: transactions.init_producer(c, "x", timeout_ms=1, is_two_phase=True))


# ----------------------------------------------------------------- what is sent


def one(value, count=1):
    rows = Rows(pa.table({"value": [value] * count}), now_ms=1)
    (data,) = encode(rows, batch_bytes=10_000, batch_bytes_max=10_000)
    return data


def sending(*codes, batches_sent=3, count=1, timeout_ms=20_000):
    """Batches to T0 in turn, answered with these codes; what left, and what the sender told of them."""
    left, outcomes, codes, errors = [], [], list(codes), []

    async def call_leader(leader, topics, key, request, **bounds):
        ((row,),) = (topic.partitions for topic in request.topics)
        ((_, header),) = batches(row.records)
        left.append((header, request.transactional_id, bounds))
        code = codes.pop(0) if codes else 0
        if code == TIMED_OUT:
            await asyncio.sleep(60)
        found = PartitionProduced(0, code, len(left))
        return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[found])])

    async def leader(tp):
        return PartitionLeader(1)

    async def main():
        cluster = SimpleNamespace(call_leader=call_leader, leader=leader, forget=lambda topics: None)
        sender = Sender(cluster, MINE.pair, timeout_ms=timeout_ms, transaction=MINE)
        sender.added = frozenset({T0})
        for n in range(batches_sent):
            sender.send(T0, one(f"{n}", count), n, count, lambda first, count, outcome: outcomes.append(outcome))
        await sender.room(0)
        if sender.error is not None:
            with pytest.raises(PylogError):
                sender.send(T0, one("later"), 9, 1, lambda *_: None)
        errors.append(sender.error)
        await sender.close()

    run(main())
    return left, outcomes, errors[0]


def test_every_batch_of_a_transaction_bears_its_pair_and_leaves_in_a_version_that_all_kafkas_know():
    left, outcomes, error = sending(NOT_ENOUGH)
    assert outcomes == [2, 3, 4]
    assert error is None
    for header, name, bounds in left:
        assert header.is_transactional
        assert ((header.producer_id, header.producer_epoch), name) == (MINE.pair, "x")
        assert bounds == {"version_max": 11}
    assert [header.base_sequence for header, _, _ in left[:4]] == [0, 0, 1, 2]


@pytest.mark.parametrize("code", [GAP, FENCED, 59, 48])
def test_the_first_batch_that_is_lost_fails_all_and_no_epoch_is_begun(code):
    left, outcomes, error = sending(0, *[code] * 5)
    assert [header.producer_epoch for header, _, _ in left] == [3] * len(left)
    assert outcomes[0] == 1
    assert outcomes[1:] == [error, error]
    assert error.code == code


def test_a_batch_that_is_late_fails_all():
    _, outcomes, error = sending(*[NOT_ENOUGH] * 100, timeout_ms=300)
    assert outcomes == [error] * 3
    assert "was not acknowledged in time" in str(error)


def test_halves_belong_to_the_transaction_too_and_a_record_that_is_too_large_ends_it():
    left, outcomes, error = sending(TOO_LARGE, 0, 0, batches_sent=1, count=4)
    assert [header.is_transactional for header, _, _ in left] == [True] * 3
    assert [header.base_sequence for header, _, _ in left] == [0, 0, 2]
    left, outcomes, error = sending(*[TOO_LARGE] * 3, count=2)
    assert isinstance(error, RecordTooLargeError)
    assert outcomes == [error] * len(outcomes)


def test_a_transaction_at_brokers_of_another_make():
    other = Producer({"test.mock.num.brokers": 2, "bootstrap.servers": "unused", "log_level": 0})
    addresses = ",".join(f"{b.host}:{b.port}" for b in other.list_topics(timeout=20).brokers.values())
    other.produce("made", b"by writing", partition=0)
    assert other.flush(20) == 0
    with KafkaClient(addresses, timeout_ms=15_000) as client:
        assert not client.run(transactions.has_two_phase)
        assert client.list_transactions() is None
        assert client.describe_transactions(["mine"]) is None
        for n in range(2):
            with client.transaction("mine") as transaction:
                transaction.append("made", pa.table({"value": [f"{n}"], "partition": pa.array([0], pa.int32())}))
        # Its markers, at offsets 2 and 4, have no CRC.
        values = [v for n in (1, 3) for rows in client.read("made", 0, n, n + 1) for v in rows["value"].to_pylist()]
    assert values == [b"0", b"1"]
