"""The largest legal request of each API, sent to a real broker: in how many steps, and in how much memory.

No time is measured: what is counted is how many lines of Python the event loop runs between two of its turns, in which
others are served. Decision 58 promises: a turn takes one step, a step 250 items, an item 50 us at most. A
line takes some 0.1 us. And a request costs its own size and 50 MB.
"""

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from asyncio.base_events import BaseEventLoop
from pathlib import Path

import pytest

from logstore.env import Env
from logstore.store.log_dir import BROKER
from replication.broker.broker import Broker
from replication.config.broker import BrokerConfig
from replication.coordination import cluster, open_tree
from replication.coordination.own_file import COORDINATION_FILE
from replication.network.connection import LOGINS
from replication.protocol import apis, bounds
from replication.protocol.apis import ApiKey
from tests.support.fork_server import quick
from tests.support.giants import EXISTING, GROUP, PARTITIONS, SHAPES, giant, names
from tests.support.proving import prove, secret_of
from tests.support.repeats import times

LINES_MAX = 250 * 50 * 10
# Counting lines makes them slow. So many items that to do all of them in one turn would be above LINES_MAX: an item
# costs some 300 lines and more with the DEAR ones, some 40 and more with others.
ITEMS, DEAR_ITEMS = 4_000, 800
DEAR = {
    ApiKey.CREATE_PARTITIONS,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_GROUPS,
    ApiKey.DELETE_RECORDS,
    ApiKey.DELETE_TOPICS,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.FIND_COORDINATOR,
    ApiKey.LIST_OFFSETS,
    ApiKey.PRODUCE,
}
PATIENCE_S = 60
MORE_BYTES = 50 * 1024 * 1024


class Turns:
    """Counts the lines that the thread of a loop runs, turn by turn."""

    def __init__(self):
        self.most = self.lines = 0

    def trace(self, frame, event, argument):
        if frame.f_code is BaseEventLoop._run_once.__code__:
            self.most = max(self.most, self.lines)
            self.lines = 0
            return None
        self.lines += 1
        return self.line

    def line(self, frame, event, argument):
        self.lines += 1
        return self.line


class Client:
    """A plain socket."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.socket.close()

    def ask(self, wire):
        """The answer to a request, its size left out."""
        self.socket.sendall(wire)
        return self.answer()

    def answer(self):
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def _read(self, size):
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(min(size - len(data), 1 << 20))
            assert piece, "the broker closed the connection"
            data += piece
        return data

    def call(self, key, version, body):
        frame = b"".join(map(bytes, apis.encode_request(key, version, 1, "test", body)))
        return apis.decode_response(key, version, memoryview(self.ask(frame)))[1]


# Every right is looked up, and nothing is refused.
RIGHTS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def settings(path):
    return {
        "broker.id": 1,
        "log.dirs": str(path),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
    }


def prepare(client):
    """Topics, a group with offsets in all of them, and a name that is known."""
    topic = {
        "name": PARTITIONS,
        "num_partitions": EXISTING,
        "replication_factor": 1,
        "assignments": (),
        "configs": (),
    }
    made = client.call(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout": 60_000, "validate_only": False})
    assert made.topics[0].error_code == 0
    client.call(ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [GROUP]})
    rows = [
        {"partition_index": n, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
        for n in range(EXISTING)
    ]
    body = {
        "group_id": GROUP,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": PARTITIONS, "partitions": rows}],
    }
    while client.call(ApiKey.OFFSET_COMMIT, 9, body).topics[0].partitions[0].error_code:
        pass  # it is being loaded


class InProcess:
    """A broker in a thread of this process, whose turns are counted."""

    def __init__(self, path):
        self.turns = Turns()
        self.path = path
        self.started = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        assert self.started.wait(PATIENCE_S)
        return self

    def __exit__(self, *error):
        self.loop.call_soon_threadsafe(self.over.set)
        self.thread.join()

    def run(self):
        asyncio.run(self.serve())

    async def serve(self):
        self.loop, self.over = asyncio.get_running_loop(), asyncio.Event()
        self.broker = Broker(BrokerConfig.from_properties(settings(self.path) | RIGHTS), Env())
        self.endpoint = await self.broker.start()
        self.started.set()
        await self.over.wait()
        sys.settrace(None)
        await self.broker.stop()

    def count(self):
        """Begin to count; the loop has turned since when this returns."""
        counting = threading.Event()

        def begin():
            self.turns.most = self.turns.lines = 0
            sys.settrace(self.turns.trace)
            self.loop.call_soon(counting.set)

        self.loop.call_soon_threadsafe(begin)
        assert counting.wait(PATIENCE_S)

    def counted(self):
        """The most lines of one turn."""
        over = threading.Event()

        def end():
            sys.settrace(None)
            over.set()

        self.loop.call_soon_threadsafe(end)
        assert over.wait(PATIENCE_S)
        return max(self.turns.most, self.turns.lines)


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """With at most ITEMS in a request."""
    with pytest.MonkeyPatch.context() as patch, InProcess(tmp_path_factory.mktemp("giants")) as running:
        few = {
            key: bound._replace(items_max=min(bound.items_max, DEAR_ITEMS if key in DEAR else ITEMS))
            for key, bound in bounds.BOUNDS.items()
        }
        patch.setattr(bounds, "BOUNDS", few)
        with Client(running.endpoint.port) as client:
            prepare(client)
        yield running


# A broker that gives back what is free when it is told to: what one request left would hide the cost of the next.
FRUGAL = quick("""
import ctypes, gc, signal, sys
from replication.broker import process as broker_process
def give_back(number, frame):
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    print(gc.get_stats()[2]["collections"], flush=True)
signal.signal(signal.SIGUSR1, give_back)
sys.exit(broker_process.main(sys.argv[1:]))
""")


class Process:
    """A broker in a process of its own, whose memory is looked at."""

    def __init__(self, path):
        properties = [f"{key}={value}" for key, value in settings(path).items()]
        command = [sys.executable, "-c", FRUGAL, *properties, f"parent={os.getpid()}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().rpartition(":")[2])
        self.proc = Path(f"/proc/{self.process.pid}")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.terminate()
        self.process.communicate()

    def most_bytes(self):
        """The most that it had in memory since `forget`; just after it, what it needs."""
        line = next(line for line in (self.proc / "status").read_text().splitlines() if "VmHWM" in line)
        return int(line.split()[1]) * 1024

    def forget(self):
        """How often all of its objects have been looked through for garbage, this time included."""
        self.process.send_signal(signal.SIGUSR1)
        collections = int(self.process.stdout.readline())
        (self.proc / "clear_refs").write_text("5")
        return collections


def test_every_api_that_is_served_has_its_largest_request():
    assert SHAPES.keys() == apis.SERVED.keys()


@pytest.mark.parametrize("name", names()[:: times(6, 1)])
def test_the_largest_request_of_an_api_is_answered_in_bounded_steps(name, broker):
    assert most_lines(name, broker) < LINES_MAX


@pytest.mark.parametrize("name", names()[:: times(9, 1)])
def test_the_largest_request_that_is_decoded_in_one_turn_is_a_bounded_step(name, broker, monkeypatch):
    short = {
        key: bound._replace(items_max=min(bound.items_max, bounds.short_items(key)))
        for key, bound in bounds.BOUNDS.items()
    }
    monkeypatch.setattr(bounds, "BOUNDS", short)
    assert most_lines(name, broker) < LINES_MAX


def most_lines(name, broker):
    """The most lines of one turn of the loop, while it answers this request."""
    asked = giant(
        name,
        controller_epoch=broker.broker.replicas.requests.controller_epoch,
        broker_epoch=broker.broker.lifecycle.epoch,
    )
    with Client(broker.endpoint.port) as client:
        if asked.key not in LOGINS:
            prove(client.call, broker.broker.inter_broker.users.secret)
        broker.count()
        try:
            answer = client.ask(asked.wire)
        finally:
            most = broker.counted()
    assert len(answer) >= 4
    return most


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    path = tmp_path_factory.mktemp("process")
    with Process(path) as running:
        with Client(running.port) as client:
            prepare(client)
        running.epochs = asyncio.run(epochs(path))
        running.secret = secret_of(f"sqlite:{path / BROKER / COORDINATION_FILE}")
        yield running


async def epochs(path):
    tree = await open_tree(f"sqlite:{path / BROKER / COORDINATION_FILE}", on_session=lambda event: None)
    try:
        brokers = await cluster.read_brokers(tree)
        return {
            "controller_epoch": await cluster.read_controller_epoch(tree),
            "broker_epoch": brokers[1].epoch,
        }
    finally:
        await tree.close()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("name", names()[:: times(9, 1)])
def test_the_largest_request_of_an_api_costs_its_own_size_and_little_more(name, process):
    """Its own size is that of the request and of the answer."""
    asked = giant(name, **process.epochs)
    with Client(process.port) as client:
        if asked.key not in LOGINS:
            prove(client.call, process.secret)
        process.forget()
        before = process.most_bytes()
        answer = client.ask(asked.wire)
    assert process.most_bytes() - before - len(asked.frame) - len(answer) < MORE_BYTES


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("name", ["UPDATE_METADATA-partitions", "OFFSET_FETCH-groups"])
def test_nobody_waits_for_a_search_for_garbage_in_all_that_a_large_request_is(name, process):
    """It would be one turn, of 100 ms."""
    asked = giant(name, **process.epochs)
    with Client(process.port) as client:
        prove(client.call, process.secret)
        before = process.forget()
        client.ask(asked.wire)
    assert process.forget() - before <= 2  # its own, and that of each minute
