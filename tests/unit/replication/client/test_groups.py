"""Groups as a client sees them: coordinators that move, load or hang; and librdkafka's, in versions of its own."""

import asyncio
import re
import socket
import time

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Position

from replication.client.cluster import Cluster
from replication.client.groups import Committed, commit, committed
from replication.client.kafka_client import KafkaClient
from replication.client.topics import create_topic
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TopicPartition
from replication.protocol.apis import SERVED, ApiKey, Versions
from tests.support.peer import run, serving, until

T0 = TopicPartition("t", 0)
LOADING, MOVED, TIMED_OUT, NOT_CONTROLLER = 14, 16, 7, 41
UNKNOWN_TOPIC, UNKNOWN_MEMBER = 3, 25


class Coordinator:
    """Answers a commit with the next of these codes; the last one stays."""

    def __init__(self, *codes):
        self.codes = list(codes)
        self.asked = self.found = 0
        self.offsets = {}
        self.ports = []
        self.connections = set()

    def handlers(self):
        return {ApiKey.FIND_COORDINATOR: self.find, ApiKey.OFFSET_COMMIT: self.commit}

    async def find(self, context, body):
        self.found += 1
        row = {"key": body.coordinator_keys[0], "node_id": 1, "host": "127.0.0.1", "port": self.ports[-1]}
        return {"coordinators": [{"error_code": 0, "error_message": None, **row}]}

    async def commit(self, context, body):
        self.asked += 1
        self.connections.add(context.connection_id)
        code = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        if code is None:  # it hangs
            context.park()
            await asyncio.sleep(60)
        rows = [{"partition_index": row.partition_index, "error_code": code} for row in body.topics[0].partitions]
        if not code:
            self.offsets = {row.partition_index: row.committed_offset for row in body.topics[0].partitions}
        return {"topics": [{"name": "t", "partitions": rows}]}


def committing(*codes, offsets=None, timeout_ms=5000):
    """A commit to a coordinator that answers so; the coordinator after it."""
    coordinator = Coordinator(*codes)

    async def main():
        async with serving(coordinator.handlers()) as (_, port):
            coordinator.ports.append(port)
            cluster = Cluster(f"127.0.0.1:{port}", timeout_ms=timeout_ms)
            try:
                await commit(cluster, "g", offsets or {T0: Committed(5)})
            finally:
                cluster.close()

    run(main())
    return coordinator


def test_a_coordinator_is_looked_up_once_and_asked_again_while_it_loads():
    done = committing(LOADING, TIMED_OUT, LOADING, 0)
    assert (done.offsets, done.asked, done.found) == ({0: 5}, 4, 1)


def test_a_coordinator_that_has_moved_is_looked_up_again():
    done = committing(MOVED, 15, 0)
    assert (done.offsets, done.asked, done.found) == ({0: 5}, 3, 3)


def test_what_no_repetition_mends_is_told_at_once_and_names_the_partition():
    many = {TopicPartition("t", n): Committed(n) for n in range(300)}
    with pytest.raises(KafkaError, match="commit of t-0 in group 'g': it has members"):
        committing(UNKNOWN_MEMBER, offsets=many)
    with pytest.raises(KafkaError, match=r"unknown topic or partition .* commit of t-0"):
        committing(UNKNOWN_TOPIC)
    assert committing(0, offsets=many).offsets == {n: n for n in range(300)}


def test_nobody_who_keeps_the_group_is_an_error_when_the_time_is_over():
    with pytest.raises(KafkaError, match=r"OFFSET_COMMIT of group 'g' .* within 0.3 s; last: NOT_COORDINATOR"):
        committing(MOVED, timeout_ms=300)


@pytest.mark.parametrize("kind", ["coordinator", "controller"])
def test_a_call_ends_at_its_deadline_also_when_its_last_attempt_hangs(kind):
    timeout_ms, elapsed_s = 2500, []  # the five attempts take up to 0.9 s, and longer on a busy machine

    async def main():
        coordinator = Coordinator(*[MOVED] * 4, None)
        row = {"name": "t", "topic_id": None, "error_code": NOT_CONTROLLER, "error_message": None}
        none = {"num_partitions": -1, "replication_factor": -1, "configs": []}
        create = {"topics": [row | none]}

        async def metadata(context, body):
            here = {"node_id": 1, "host": "127.0.0.1", "port": coordinator.ports[0], "rack": None}
            return {"cluster_id": "c", "controller_id": 1, "brokers": [here], "topics": []}

        async def create_topics(context, body):
            coordinator.asked += 1
            if coordinator.asked > 4:
                context.park()
                await asyncio.sleep(60)
            return create

        handlers = {ApiKey.METADATA: metadata, ApiKey.CREATE_TOPICS: create_topics}
        async with serving({**coordinator.handlers(), **handlers}) as (_, port):
            coordinator.ports.append(port)
            cluster = Cluster(f"127.0.0.1:{port}", timeout_ms=timeout_ms)
            begin = time.monotonic()
            calls = {
                "coordinator": lambda: commit(cluster, "g", {T0: Committed(5)}),
                "controller": lambda: create_topic(cluster, "t", partitions=1, settings={}),
            }
            with pytest.raises(KafkaError, match=r"did not succeed .*last: did not answer in time"):
                await calls[kind]()
            elapsed_s.append(time.monotonic() - begin)
            assert coordinator.asked == 5
            cluster.close()

    run(main())
    assert elapsed_s[0] < 1.5 * timeout_ms / 1000


def test_a_broker_that_takes_a_connection_and_says_nothing_costs_one_attempt(monkeypatch):
    async def metadata(context, body):
        return {"cluster_id": "c", "controller_id": 1, "brokers": [], "topics": []}

    async def main():
        monkeypatch.setattr("replication.client.cluster.METADATA_TIMEOUT_MS", 1000)
        with socket.create_server(("127.0.0.1", 0)) as mute:
            async with serving({ApiKey.METADATA: metadata}) as (_, port):
                cluster = Cluster(f"127.0.0.1:{mute.getsockname()[1]},127.0.0.1:{port}", timeout_ms=15_000)
                begin = time.monotonic()
                assert (await cluster.describe()).topics == {}
                cluster.close()
                return time.monotonic() - begin

    assert run(main()) < 12


def test_a_coordinator_that_hangs_is_given_up_when_another_one_keeps_the_group():
    hanging, next_one = Coordinator(None), Coordinator(0)

    async def main():
        async with serving(hanging.handlers()) as (_, first), serving(next_one.handlers()) as (_, second):
            hanging.ports.append(first)
            cluster = Cluster(f"127.0.0.1:{first}")
            asked = asyncio.create_task(commit(cluster, "g", {T0: Committed(7)}))
            await until(lambda: hanging.asked)
            hanging.ports.append(second)
            await asked
            cluster.close()

    run(main())
    assert next_one.offsets == {0: 7}


def test_offsets_that_have_moved_are_asked_for_where_they_are_though_the_former_place_says_that_they_load():
    former, next_one = Coordinator(0), Coordinator(0)

    async def loading(context, body):
        former.ports.append(next_one.ports[0])
        return {"groups": [{"group_id": "g", "topics": [], "error_code": LOADING}]}

    async def loaded(context, body):
        row = {"partition_index": 0, "committed_offset": 7, "metadata": "", "error_code": 0}
        topics = [{"name": "t", "partitions": [row | {"committed_leader_epoch": -1}]}]
        return {"groups": [{"group_id": "g", "topics": topics, "error_code": 0}]}

    async def main():
        handlers = former.handlers() | {ApiKey.OFFSET_FETCH: loading}
        others = next_one.handlers() | {ApiKey.OFFSET_FETCH: loaded}
        async with serving(handlers) as (_, first), serving(others) as (_, second):
            former.ports.append(first)
            next_one.ports.append(second)
            cluster = Cluster(f"127.0.0.1:{first}")
            found = await committed(cluster, "g", [T0])
            cluster.close()
            return found[T0].offset

    assert run(main()) == 7


def test_calls_of_a_group_share_its_connection():
    coordinator = Coordinator(0)

    async def main():
        async with serving(coordinator.handlers()) as (_, port):
            coordinator.ports.append(port)
            cluster = Cluster(f"127.0.0.1:{port}")
            await asyncio.gather(*(commit(cluster, "g", {T0: Committed(n)}) for n in range(8)))
            cluster.close()

    run(main())
    assert (coordinator.asked, len(coordinator.connections)) == (8, 1)


@pytest.fixture(scope="module")
def mock():
    producer = Producer({"test.mock.num.brokers": 3, "bootstrap.servers": "unused", "log_level": 0})
    brokers = producer.list_topics(timeout=20).brokers.values()
    producer.produce("made", b"by writing")
    assert producer.flush(20) == 0
    yield ",".join(f"{b.host}:{b.port}" for b in brokers)
    producer.flush(0)  # the brokers live as long as it does


def test_groups_of_another_make_are_read_and_written(mock):
    tps = [TopicPartition("made", n) for n in range(3)]
    other = Consumer({"bootstrap.servers": mock, "group.id": "g", "log_level": 0})
    with KafkaClient(mock, timeout_ms=20_000) as client:
        assert client.committed("g", tps) == {}
        client.commit("g", {tps[0]: Committed(5, metadata="mine"), tps[2]: Committed(7)})
        assert [p.offset for p in other.committed([Position(*tp) for tp in tps], timeout=20)] == [5, -1001, 7]
        other.commit(offsets=[Position("made", 1, 9)], asynchronous=False)
        found = client.committed("g", tps)
        assert {tp: each.offset for tp, each in found.items()} == {tps[0]: 5, tps[1]: 9, tps[2]: 7}
    other.close()


def test_an_answer_of_any_version_is_understood(monkeypatch):
    """The oldest version has no error of the whole, the newest several groups."""
    tps = {T0: 5, TopicPartition("t", 1): -1}

    async def fetch(context, body):
        versions.append(context.version)
        parts = [
            {"partition_index": tp.partition, "committed_offset": at, "metadata": "", "error_code": 0}
            for tp, at in tps.items()
        ]
        topics = [{"name": "t", "partitions": parts}]
        whole = {"topics": topics, "error_code": 30 if body_group(body) == "secret" else 0}
        return {**whole, "groups": [{"group_id": body_group(body), **whole}]}

    def body_group(body):
        return body.groups[0].group_id if body.groups else body.group_id

    async def main():
        coordinator = Coordinator(0)
        async with serving({**coordinator.handlers(), ApiKey.OFFSET_FETCH: fetch}) as (_, port):
            coordinator.ports.append(port)
            cluster = Cluster(f"127.0.0.1:{port}")
            with pytest.raises(KafkaError) as caught:
                await committed(cluster, "secret", tps)
            assert caught.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
            for version in (9, 8, 7, 2, 1):
                monkeypatch.setitem(SERVED, ApiKey.OFFSET_FETCH, Versions(1, version))
                assert await committed(cluster, "g", tps) == {T0: Committed(5)}
                assert versions[-1] == version
            cluster.close()

    versions = []
    run(main())


def test_a_broker_that_has_heard_of_no_controller_yet_is_not_believed_about_topics():
    """It has just started, and learns of the cluster's topics in a moment."""
    asked = []

    async def metadata(context, body):
        asked.append(context.version)
        is_new = len(asked) < 4
        row = {
            "error_code": 3 if is_new else 0,
            "topic_id": None,
            "name": "t",
            "is_internal": False,
            "partitions": [],
        }
        return {"cluster_id": "c", "controller_id": -1 if is_new else 1, "brokers": [], "topics": [row]}

    async def main():
        async with serving({ApiKey.METADATA: metadata}) as (_, port):
            cluster = Cluster(f"127.0.0.1:{port}", timeout_ms=5000)
            assert (await cluster.topic("t")).error is ErrorCode.NONE
            cluster.close()

    run(main())
    assert len(asked) == 4


def test_a_new_topic_is_waited_for_where_the_broker_that_is_asked_has_not_heard_of_it():
    asked = []

    async def metadata(context, body):
        asked.append(body.topics)
        here = {"node_id": 1, "host": "127.0.0.1", "port": ports[0], "rack": None}
        led = {"error_code": 0, "partition_index": 0, "leader_id": 1, "leader_epoch": 0, "replica_nodes": [1]}
        part = {**led, "isr_nodes": [1], "offline_replicas": []}
        row = {"error_code": 0, "topic_id": None, "name": "t", "is_internal": False, "partitions": [part]}
        topics = [row] if len(asked) > 5 else []
        return {"cluster_id": "c", "controller_id": 1, "brokers": [here], "topics": topics}

    async def create_topics(context, body):
        row = {"name": "t", "topic_id": None, "error_code": 0, "error_message": None}
        return {"topics": [row | {"num_partitions": 1, "replication_factor": 1, "configs": []}]}

    async def main():
        async with serving({ApiKey.METADATA: metadata, ApiKey.CREATE_TOPICS: create_topics}) as (_, port):
            ports.append(port)
            cluster = Cluster(f"127.0.0.1:{port}", timeout_ms=5000)
            await create_topic(cluster, "t", partitions=1, settings={})
            cluster.close()

    ports = []
    run(main())
    assert len(asked) > 5


def test_an_error_that_is_not_known_here_is_named_by_its_number():
    """Kafka has FEATURE_UPDATE_FAILED, which is not said here."""

    async def metadata(context, body):
        here = {"node_id": 1, "host": "127.0.0.1", "port": ports[0], "rack": None}
        return {"cluster_id": "c", "controller_id": 1, "brokers": [here], "topics": []}

    async def create_topics(context, body):
        row = {"name": "t", "topic_id": None, "error_code": 96, "error_message": "later"}
        return {"topics": [row | {"num_partitions": -1, "replication_factor": -1, "configs": []}]}

    async def main():
        async with serving({ApiKey.METADATA: metadata, ApiKey.CREATE_TOPICS: create_topics}) as (_, port):
            ports.append(port)
            cluster = Cluster(f"127.0.0.1:{port}", timeout_ms=5000)
            try:
                await create_topic(cluster, "t", partitions=1, settings={})
            finally:
                cluster.close()

    ports = []
    with pytest.raises(KafkaError, match="error code 96; topic 't': later") as caught:
        run(main())
    assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_what_an_old_cluster_lacks_is_told_once(monkeypatch, caplog):
    async def metadata(context, body):
        return {"cluster_id": "c", "controller_id": 1, "brokers": [], "topics": []}

    async def main():
        async with serving({ApiKey.METADATA: metadata}) as (_, port):
            cluster = Cluster(f"127.0.0.1:{port}")
            await cluster.describe()
            await cluster.describe()
            cluster.close()

    told = []
    for version in (12, 9, 6):
        monkeypatch.setitem(SERVED, ApiKey.METADATA, Versions(0, version))
        run(main())
        told.append(re.findall(r"older than (\S+),", caplog.text))
        caplog.clear()
    assert told == [[], ["2.8"], ["2.1", "2.8"]]
