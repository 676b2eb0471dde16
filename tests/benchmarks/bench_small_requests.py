"""Small requests beside a real Kafka: how many brokers answer per second of their CPU, and after how long.

python tests/benchmarks/bench_small_requests.py [--kafka 4.4] [--only produce,produce-all,fetch,…]
    [--connections 1,10,100,1000] [--seconds 3] [--rounds 3] [--path DIR]

Each connection sends one request, waits for its answer, and sends the next. *produce*: 10 records of 100 B to one of 10
partitions of one broker, acks=1; *produce-all*: the same to three brokers and replicas, acks=all; the others ask one
broker, by 100 connections: *fetch* for such a batch, *metadata* of the topic, *commit* of one offset, *heartbeat* of a
group with one member, *api-versions* (which Kafka 0.9 does not know); *commit-all*: three brokers and replicas. Both
sides get the same versions, but for Kafka 0.9, which gets its own. The sides take turns, and warm up for three rounds;
CPU is that of all brokers, user and system; the clients use the other core. The echo server reads as many bytes as a
produce request has and sends as many back: what a Python loop costs that does nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import uvloop
from bench_cluster import Side, add_kafka, cpu_s, sides
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from harness import AGAIN, ratio, show

from logstore.records.batch import Record, build
from replication.protocol.apis import ApiKey, encode_request
from replication.protocol.messages import ProducePartition, ProduceRequest, ProduceTopic

TOPIC, PARTITIONS = "small", 10
CONNECTIONS = 100  # of the kinds that are asked with one number only
KINDS = ("produce", "produce-all", "commit-all", "fetch", "metadata", "commit", "heartbeat", "api-versions")
PRODUCED_BYTES = 1263
READY_S = 60
WARM = 3  # rounds in which a JVM compiles
ECHO = """
import asyncio, sys, uvloop
ANSWER = bytes(60)
class Echo(asyncio.Protocol):
    def connection_made(self, transport): self.transport = transport
    def data_received(self, data): self.transport.write(ANSWER)
async def main():
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0, backlog=2000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
uvloop.run(main())
"""


class Found(NamedTuple):
    """One round of one side."""

    cpu_s_per_request: float
    p50_ms: float
    p99_ms: float


class Asking(asyncio.Protocol):
    """One connection that sends the same request again after each answer; `delays_s` gets the seconds of each."""

    def __init__(self, request: bytes, answer_bytes: int, delays_s: list[float]) -> None:
        self._request, self._answer_bytes, self._delays_s = request, answer_bytes, delays_s
        self._size, self._got_bytes = answer_bytes, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the first time."""
        self._transport = transport
        self.ask_once()

    def data_received(self, data: bytes) -> None:
        """Ask again when the answer is whole; its first four bytes say its size (of the echo's, we know it)."""
        if not self._got_bytes and not self._answer_bytes:
            self._size = 4 + int.from_bytes(data[:4], "big")
        self._got_bytes += len(data)
        if self._got_bytes >= self._size:
            self._got_bytes = 0
            self._delays_s.append(time.perf_counter() - self._since)
            self.ask_once()

    def ask_once(self) -> None:
        self._since = time.perf_counter()
        self._transport.write(self._request)


# Requests as bytes. All but those for records have the old encoding, which both sides read.


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def frame(key: int, version: int, body: bytes) -> bytes:
    request = struct.pack(">hhi", key, version, 1) + text("bench") + body
    return struct.pack(">i", len(request)) + request


def in_partition(partition: int, rest: bytes) -> bytes:
    """An array of the one topic with one partition."""
    return struct.pack(">i", 1) + text(TOPIC) + struct.pack(">ii", 1, partition) + rest


def message_set() -> bytes:
    """Ten messages of 100 B in the format of Kafka 0.9."""
    body = struct.pack(">bbii", 0, 0, -1, 100) + bytes(100)
    message = struct.pack(">I", zlib.crc32(body)) + body
    return b"".join(struct.pack(">qi", n, len(message)) + message for n in range(10))


def produce(side: Side, acks: int, partition: int) -> bytes:
    if side.is_old:
        data = message_set()
        return frame(
            0, 1, struct.pack(">hi", acks, 30_000) + in_partition(partition, struct.pack(">i", len(data)) + data)
        )
    batch = memoryview(build([Record(n, 1_700_000_000_000, None, bytes(100)) for n in range(10)]))
    topic = ProduceTopic(TOPIC, (ProducePartition(partition, batch),))
    return b"".join(encode_request(ApiKey.PRODUCE, 9, 1, "bench", ProduceRequest(acks, 30_000, (topic,))))


def fetch(side: Side, partition: int) -> bytes:
    """Wait up to 500 ms for one byte: there is one batch. Kafka 0.9 cuts at the bytes, later versions after a batch."""
    size = len(message_set())
    head = struct.pack(">iii", -1, 500, 1)
    if side.is_old:
        return frame(1, 1, head + in_partition(partition, struct.pack(">qi", 0, size)))
    head += struct.pack(">ibii", size, 0, 0, -1)
    asked = struct.pack(">iqqi", -1, 0, -1, size)
    return frame(1, 11, head + in_partition(partition, asked) + struct.pack(">i", 0) + text(""))


def commit(n: int) -> bytes:
    """A consumer without a group's membership commits."""
    head = text(f"committed-{n}") + struct.pack(">i", -1) + text("") + struct.pack(">q", -1)
    return frame(8, 2, head + in_partition(n % PARTITIONS, struct.pack(">q", n) + text("")))


async def ask(port: int, request: bytes) -> bytes:
    """The answer to one request, after its correlation id."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    size = int.from_bytes(await reader.readexactly(4), "big")
    answer = await reader.readexactly(size)
    writer.close()
    return answer[4:]


async def coordinator(port: int, n: int) -> int:
    """The port of the broker that keeps the group of `commit`."""
    until = time.monotonic() + READY_S
    while True:
        answer = await ask(port, frame(10, 0, text(f"committed-{n}")))
        if answer[:2] == b"\0\0":
            return int.from_bytes(answer[-4:], "big")
        assert time.monotonic() < until, f"no coordinator: {answer!r}"
        await asyncio.sleep(0.2)


async def heartbeat(side: Side, port: int, group: str) -> bytes:
    """The heartbeat of a new member of a new group: join, sync, and what its generation and name are then."""
    protocols = struct.pack(">i", 1) + text("range") + struct.pack(">i", 0)
    version, times = (0, struct.pack(">i", 30_000)) if side.is_old else (2, struct.pack(">ii", 30_000, 30_000))
    join = frame(11, version, text(group) + times + text("") + text("consumer") + protocols)
    until = time.monotonic() + READY_S
    while True:
        answer = (await ask(port, join))[0 if side.is_old else 4 :]  # after the throttle time
        error, generation = struct.unpack_from(">hi", answer)
        if not error:
            break
        assert time.monotonic() < until, f"joining {group}: error {error}"
        await asyncio.sleep(0.2)
    at = 6
    for _ in range(3):  # protocol, leader, member
        size = int.from_bytes(answer[at : at + 2], "big")
        member = answer[at + 2 : at + 2 + size].decode()
        at += 2 + size
    named = text(group) + struct.pack(">i", generation) + text(member)
    synced = await ask(port, frame(14, 0, named + struct.pack(">i", 1) + text(member) + struct.pack(">i", 0)))
    assert synced[:2] == b"\0\0", synced
    beat = frame(12, 0, named)
    assert await ask(port, beat) == b"\0\0"
    return beat


def refused(side: Side, kind: str, answer: bytes) -> bool:
    """Whether an answer says so, or brings no records."""
    if kind == "fetch":
        return len(answer) < 10 * 100
    if kind in ("metadata", "api-versions"):
        return False
    if kind.startswith("produce"):
        at = 19 if side.is_old else 13
        return answer[at : at + 2] != b"\0\0"
    return answer[-2:] != b"\0\0"


# One row


def leaders(side: Side) -> list[int]:
    """The port of the leader of each partition."""
    admin = AdminClient({"bootstrap.servers": side.bootstrap, "log_level": 0, **side.client})
    until = time.monotonic() + READY_S
    while True:
        try:
            found = admin.list_topics(TOPIC, timeout=30)
            parts = found.topics[TOPIC].partitions
            return [found.brokers[parts[n].leader].port for n in range(PARTITIONS)]
        except (KafkaException, KeyError):  # not all have a leader yet
            assert time.monotonic() < until, f"{side.name} has no leaders"
            time.sleep(0.2)


def request(side: Side, kind: str, n: int) -> bytes:
    """That of connection `n`. Heartbeats need members first."""
    match kind:
        case "produce":
            return produce(side, 1, n % PARTITIONS)
        case "produce-all":
            return produce(side, -1, n % PARTITIONS)
        case "fetch":
            return fetch(side, n % PARTITIONS)
        case "metadata":
            return frame(3, 0, struct.pack(">i", 1) + text(TOPIC))
        case "commit" | "commit-all":
            return commit(n)
        case "api-versions":
            return frame(18, 0, b"")
    return b""


async def requests(side: Side, kind: str, connections: int) -> list[tuple[int, bytes]]:
    """(port, request) of each connection."""
    ports = leaders(side)
    made: list[tuple[int, bytes]] = []
    for n in range(connections):
        port = await coordinator(ports[0], n) if kind == "commit-all" else ports[n % PARTITIONS]
        made.append((port, request(side, kind, n)))
    if kind == "heartbeat":
        groups = (f"beating-{time.time_ns()}-{n}" for n in range(connections))
        beats = await asyncio.gather(*(heartbeat(side, ports[0], group) for group in groups))
        made = [(ports[0], beat) for beat in beats]
    for port, one in made:
        await accepted(side, kind, port, one)
    return made


async def accepted(side: Side, kind: str, port: int, one: bytes) -> None:
    """Ask until it is not refused."""
    until = time.monotonic() + READY_S
    while refused(side, kind, answer := await ask(port, one)):
        assert time.monotonic() < until, f"{side.name} refuses {kind}: {answer!r}"
        await asyncio.sleep(0.2)


async def load(asked: Sequence[tuple[int, bytes]], answer_bytes: int, seconds: float) -> list[float]:
    """The seconds of every answer that came; an answer that names its size has 0 `answer_bytes`."""
    delays_s: list[float] = []
    loop = asyncio.get_running_loop()
    asking = [
        await loop.create_connection(partial(Asking, one, answer_bytes, delays_s), "127.0.0.1", port)
        for port, one in asked
    ]
    await asyncio.sleep(seconds)
    for transport, _ in asking:
        transport.abort()
    return delays_s


def measure(pids: Sequence[int], asked: Sequence[tuple[int, bytes]], seconds: float, answer_bytes: int = 0) -> Found:
    before = sum(map(cpu_s, pids))
    delays_s = uvloop.run(load(asked, answer_bytes, seconds))
    points = statistics.quantiles(delays_s, n=100)
    time.sleep(0.3)
    return Found((sum(map(cpu_s, pids)) - before) / len(delays_s), 1000 * points[49], 1000 * points[98])


@contextmanager
def echoing() -> Iterator[tuple[int, int]]:
    """(process id, port) of the echo server."""
    with subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True) as echo:
        assert echo.stdout is not None
        yield echo.pid, int(echo.stdout.readline())
        echo.terminate()


def row(measured: Sequence[Side], kind: str, connections: int, options: argparse.Namespace) -> list[object]:
    """The cost of one kind of request with so many connections."""
    works: dict[str, Callable[[], Found]] = {}
    for side in measured:
        if side.is_old and kind == "api-versions":
            continue
        asked, pids = uvloop.run(requests(side, kind, connections)), side.pids()
        works[side.name] = partial(measure, pids, asked, options.seconds)
    found: dict[str, list[Found]] = {name: [] for name in (*works, AGAIN)}
    peer = works.get("Kafka", works["pylog"])
    with echoing() as (pid, port):
        for number in range(WARM + options.rounds):
            for name, work in {**works, AGAIN: peer}.items():
                one = work()
                if number >= WARM:
                    found[name].append(one)
        bare = measure([pid], [(port, bytes(PRODUCED_BYTES))] * connections, options.seconds, 60)

    def cost(name: str) -> list[float]:
        return [one.cpu_s_per_request for one in found[name]]

    cells: list[object] = [kind, connections]
    for name in ("pylog", "Kafka"):
        if name not in works:
            cells += ["", "", ""]
            continue
        cells += [round(1 / statistics.median(cost(name)))]
        cells += [round(statistics.median(one[n] for one in found[name]), 1) for n in (1, 2)]
    beside = "Kafka" in works
    noise = ratio(cost(AGAIN), cost("Kafka" if beside else "pylog"))
    cells += [ratio(cost("pylog"), cost("Kafka")) if beside else "", noise, round(1 / bare.cpu_s_per_request)]
    print(*cells, file=sys.stderr, flush=True)
    return cells


def main() -> None:
    """Print one row for each kind and number of connections."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(KINDS))
    add_kafka(parser)
    parser.add_argument("--connections", default="1,10,100,1000")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--path", type=Path)
    options = parser.parse_args()
    kinds = options.only.split(",")
    rows = []
    for brokers, group in itertools.groupby(
        sorted(kinds, key=KINDS.index), lambda kind: 3 if kind.endswith("-all") else 1
    ):
        with sides(brokers, options.path or Path(tempfile.gettempdir()), options.kafka) as measured:
            for side in measured:
                side.create(TOPIC, PARTITIONS, brokers)
                for n, port in enumerate(leaders(side)):
                    asyncio.run(accepted(side, "produce", port, produce(side, 1, n)))
                asyncio.run(ask(leaders(side)[0], frame(10, 0, text("a group"))))  # makes the topic of offsets
            for kind in group:
                each = map(int, options.connections.split(",")) if kind.startswith("produce") else (CONNECTIONS,)
                rows += [row(measured, kind, connections, options) for connections in each]
    columns = [
        "request",
        "conns",
        "pylog/CPU s",
        "p50 ms",
        "p99 ms",
        "Kafka/CPU s",
        "p50 ms",
        "p99 ms",
        "ratio",
        "noise",
        "echo",
    ]
    show("Small requests per second of the brokers' CPU", columns, rows)


if __name__ == "__main__":
    main()
