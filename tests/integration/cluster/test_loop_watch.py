"""R24: a broker whose event loop is stuck, while its threads live on, loses its session, acknowledges nothing more."""

import asyncio
import os
import subprocess
import sys
import time

import pytest

from logstore.records.batch import Record, build
from logstore.store.log_dir import BROKER
from replication.coordination import cluster, open_tree
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition
from replication.protocol import apis
from replication.protocol.apis import ApiKey
from replication.protocol.messages import ProducePartition, ProduceRequest, ProduceTopic
from tests.conformance.coordination.conftest import zookeeper  # noqa: F401  a fixture
from tests.integration.cluster.test_giants import Client
from tests.support.fork_server import quick
from tests.support.repeats import times

SESSION_MS, PATIENCE_S = 2000, 60
SLOW_WRITE_S = 5  # a disk that keeps the event loop waiting for longer than the session timeout, once
# A broker whose answer to DescribeCluster holds the loop until there is this file in its directory: only the loop, for
# the threads go on while it sleeps.
# And one write to a log takes long, when there is the other file.
RELEASED, SLOW = "released", "slow"
STUCK = quick(f"""
import pathlib, sys, time
from logstore.env import OsFiles
from replication.broker import process as broker_process
from replication.broker.handlers.cluster import ClusterHandlers
def stuck(self, context, body):
    while not pathlib.Path(LOG_DIR, "{RELEASED}").exists():
        time.sleep(0.05)
    return {{"error_code": 0, "error_message": None, "cluster_id": "-", "controller_id": 1, "brokers": ()}}
ClusterHandlers.describe_cluster = stuck
def slow(self, path, position, data, write=OsFiles.write):
    if str(path).endswith(".log") and (flag := pathlib.Path(LOG_DIR, "{SLOW}")).exists():
        flag.unlink()
        time.sleep({SLOW_WRITE_S})
    write(self, path, position, data)
OsFiles.write = slow
LOG_DIR = next(word.partition("=")[2] for word in sys.argv if word.startswith("log.dirs="))
sys.exit(broker_process.main(sys.argv[1:]))
""")
TP = TopicPartition("stuck", 0)


class Process:
    def __init__(self, number, path, store):
        self.path = path / f"broker-{number}"
        settings = {
            "broker.id": number,
            "log.dirs": self.path,
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "coordination": store,
            "zookeeper.session.timeout.ms": SESSION_MS,
            "auto.leader.rebalance.enable": "false",
            "metrics.port": 0,
            "parent": os.getpid(),
        }
        command = [sys.executable, "-c", STUCK, *(f"{key}={value}" for key, value in settings.items())]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def started(self):
        self.port = int(self.process.stdout.readline().rpartition(":")[2])

    def log(self):
        return (self.path / BROKER / "server.log").read_text()

    def stop(self):
        self.process.terminate()
        self.process.communicate()


@pytest.fixture(params=["sqlite", "zookeeper"][: times(1, 2)])
def store(request, tmp_path):
    """The store whose session a thread keeps alive: ours, or kazoo's."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'tree.db'}"
    return f"zookeeper:{request.getfixturevalue('zookeeper')}/{tmp_path.name}"


@pytest.fixture
def brokers(tmp_path, store):
    made = [Process(number, tmp_path, store) for number in (1, 2)]
    try:
        for each in made:
            each.started()
        yield made
    finally:
        for each in made:
            each.path.mkdir(exist_ok=True)  # it may have failed before
            (each.path / RELEASED).touch()
            each.stop()


def state(store):
    async def read():
        tree = await open_tree(store, on_session=lambda event: None)
        try:
            return (await cluster.read_states(tree, [TP])).get(TP)
        finally:
            await tree.close()

    return asyncio.run(read())


def until(holds):
    end_s = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < end_s, "it did not come to that"
        time.sleep(0.05)
    return found


def produce(acks):
    records = bytes(build([Record(0, 1_000, b"k", b"value")]))
    request = ProduceRequest(acks, 20_000, (ProduceTopic(TP.topic, (ProducePartition(0, records),)),))
    return b"".join(map(bytes, apis.encode_request(ApiKey.PRODUCE, 7, 1, "test", request)))


def outcome(frame):
    answer = apis.decode_response(ApiKey.PRODUCE, 7, memoryview(frame))[1]
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def create(admin, store):
    topic = {
        "name": TP.topic,
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [{"partition_index": 0, "broker_ids": (1, 2)}],
        "configs": (),
    }
    body = {"topics": [topic], "timeout": 30_000, "validate_only": False}
    assert admin.call(ApiKey.CREATE_TOPICS, 7, body).topics[0].error_code == 0
    until(lambda: state(store).isr == (1, 2))


def test_one_write_that_keeps_the_loop_beyond_the_session_timeout_does_not_end_the_session(brokers, store):
    slow, other = brokers
    with Client(other.port) as admin, Client(slow.port) as producer:
        create(admin, store)
        for _ in range(2):  # the first is a thread's: it begins a leader epoch
            assert outcome(producer.ask(produce(1))) is ErrorCode.NONE
        before = state(store)
        (slow.path / SLOW).touch()
        assert outcome(producer.ask(produce(1))) is ErrorCode.NONE
        assert "the event loop turns again" in slow.log()  # it was the loop that stood
        assert "gives it up" not in slow.log()
        assert (state(store).leader, state(store).leader_epoch) == (1, before.leader_epoch)
        assert outcome(producer.ask(produce(-1))) is ErrorCode.NONE


def test_a_broker_whose_loop_is_stuck_loses_its_session_and_acknowledges_nothing_when_it_turns_again(brokers, store):
    stuck, other = brokers
    with Client(other.port) as admin, Client(stuck.port) as hand, Client(stuck.port) as producer:
        create(admin, store)
        assert outcome(producer.ask(produce(1))) is ErrorCode.NONE
        hand.socket.sendall(
            b"".join(
                map(
                    bytes,
                    apis.encode_request(
                        ApiKey.DESCRIBE_CLUSTER,
                        0,
                        1,
                        "test",
                        {"include_cluster_authorized_operations": False},
                    ),
                )
            )
        )
        until(lambda: "the event loop has been stalled" in stuck.log())
        producer.socket.sendall(produce(1))  # it waits in the socket
        until(lambda: state(store).leader == 2)
        assert "turns again" not in stuck.log()  # another one leads while it is still stuck
        (stuck.path / RELEASED).touch()
        assert outcome(producer.answer()) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        until(lambda: set(state(store).isr) == {1, 2})  # and it comes back by itself
    (line,) = (line for line in stuck.log().splitlines() if "has been stalled" in line)
    assert "DESCRIBE_CLUSTER of client 127.0.0.1" in line
