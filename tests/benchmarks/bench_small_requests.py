"""Small produce requests: how many one broker answers per second of its CPU, beside a bare echo server of asyncio.

python tests/benchmarks/bench_small_requests.py [--connections 10,100,1000] [--seconds 5] [--path DIR]

Each connection sends one request (10 records of 100 B to one of 10 partitions, acks=1), waits for its answer, and sends
the next. The echo server reads the same bytes and sends as many back as the broker does: what a Python loop costs that
does nothing. CPU is that of the server's process, user and system. The clients use the other core.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop
from harness import show

from logstore.records.batch import Record, build
from replication.client.kafka_client import KafkaClient
from replication.local_cluster import LocalCluster
from replication.protocol.apis import ApiKey, encode_request
from replication.protocol.messages import ProducePartition, ProduceRequest, ProduceTopic

PARTITIONS = 10
TICKS = os.sysconf("SC_CLK_TCK")
ECHO = """
import asyncio, sys, uvloop
ANSWER = bytes(int(sys.argv[1]))
class Echo(asyncio.Protocol):
    def connection_made(self, transport): self.transport = transport
    def data_received(self, data): self.transport.write(ANSWER)
async def main():
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0, backlog=2000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
uvloop.run(main())
"""


class Asking(asyncio.Protocol):
    """One connection, whose answers have so many bytes each; `delays_s` gets the seconds of every one."""

    def __init__(self, request: bytes, answer_bytes: int, delays_s: list[float]) -> None:
        self._request, self._answer_bytes, self._delays_s = request, answer_bytes, delays_s
        self._got_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the first time."""
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        """Ask again when the answer is whole."""
        self._got_bytes += len(data)
        if self._got_bytes >= self._answer_bytes:
            self._got_bytes = 0
            self._delays_s.append(time.perf_counter() - self._since)
            self._ask()

    def _ask(self) -> None:
        self._since = time.perf_counter()
        self._transport.write(self._request)


def request(partition: int) -> bytes:
    """A Produce request as it goes over the wire."""
    batch = memoryview(build([Record(n, 1_700_000_000_000, None, bytes(100)) for n in range(10)]))
    topic = ProduceTopic("small", (ProducePartition(partition, batch),))
    return b"".join(encode_request(ApiKey.PRODUCE, 9, 1, "bench", ProduceRequest(1, 30_000, (topic,))))


async def answer_bytes_of(port: int) -> int:
    """The size of one answer of the broker."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(0))
    size = 4 + int.from_bytes(await reader.readexactly(4), "big")
    writer.close()
    return size


async def load(port: int, answer_bytes: int, connections: int, seconds: float) -> list[float]:
    """The seconds of every answer that came while so many connections asked."""
    delays_s: list[float] = []
    asking = [
        await asyncio.get_running_loop().create_connection(
            lambda n=n: Asking(request(n % PARTITIONS), answer_bytes, delays_s), "127.0.0.1", port
        )
        for n in range(connections)
    ]
    await asyncio.sleep(seconds)
    for transport, _ in asking:
        transport.abort()
    return delays_s


def cpu_s(pid: int) -> float:
    """The CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measure(pid: int, port: int, answer_bytes: int, connections: int, seconds: float) -> tuple[float, float, float]:
    """(answers per second of the server's CPU, their median and 99th percentile in ms)."""
    before = cpu_s(pid)
    delays_s = uvloop.run(load(port, answer_bytes, connections, seconds))
    points = statistics.quantiles(delays_s, n=100)
    return len(delays_s) / (cpu_s(pid) - before), 1000 * points[49], 1000 * points[98]


def main() -> None:
    """Print one row for each number of connections."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", default="10,100,1000")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--path", type=Path)
    options = parser.parse_args()
    directory = options.path or Path(tempfile.mkdtemp(prefix="pylog-bench-"))
    rows = []
    with LocalCluster(1, directory) as cluster, KafkaClient(cluster.bootstrap) as client:
        client.create_topic("small", partitions=PARTITIONS)
        port, pid = int(cluster.bootstrap.rsplit(":", 1)[1]), cluster.pid(1)
        size = asyncio.run(answer_bytes_of(port))
        with subprocess.Popen([sys.executable, "-c", ECHO, str(size)], stdout=subprocess.PIPE, text=True) as echo:
            assert echo.stdout is not None
            echo_port = int(echo.stdout.readline())
            for connections in map(int, options.connections.split(",")):
                for _ in range(2):  # the first warms up
                    found = measure(pid, port, size, connections, options.seconds)
                bare = measure(echo.pid, echo_port, size, connections, options.seconds)
                rows.append([connections, *(round(n, 1) for n in found), round(bare[0]), found[0] / bare[0]])
            echo.terminate()
    columns = ["connections", "requests per CPU s", "p50 ms", "p99 ms", "echo per CPU s", "ratio"]
    show("Small produce requests to one broker", columns, rows)


if __name__ == "__main__":
    main()
