"""How long a small client waits beside the largest request of each API, against the same client alone.

python tests/benchmarks/bench_giants.py [--seconds 3] [--only METADATA]

One broker in a process of its own. The small client asks for DescribeCluster and sends one record (acks=1), in turns; a
second client sends the giant over and over. Printed are p50 and p99 of the small client, and the ratio of its p99 to
that of the same client alone, measured right before.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from harness import show

from replication.protocol import apis
from replication.protocol.apis import ApiKey
from replication.protocol.messages import ProducePartition, ProduceRequest, ProduceTopic
from tests.integration.cluster.test_giants import Client, Process, epochs, prepare
from tests.support.giants import BATCH, PARTITIONS, giant, names


def wire(key: ApiKey, version: int, body: object) -> bytes:
    return b"".join(map(bytes, apis.encode_request(key, version, 1, "small", body)))


SMALL = (
    wire(ApiKey.DESCRIBE_CLUSTER, 0, {"include_cluster_authorized_operations": False}),
    wire(
        ApiKey.PRODUCE,
        7,
        ProduceRequest(1, 30_000, (ProduceTopic(PARTITIONS, (ProducePartition(0, BATCH),)),)),
    ),
)


def waits_ms(client: Client, until_s: float) -> list[float]:
    """How long each request of a small client took."""
    found = []
    while time.perf_counter() < until_s:
        for request in SMALL:
            begin_s = time.perf_counter()
            client.ask(request)
            found.append((time.perf_counter() - begin_s) * 1000)
    return sorted(found)


def beside(process: Process, name: str, seconds: float, known: dict[str, int]) -> list[object]:
    asked = giant(name, **known)
    with Client(process.port) as small, Client(process.port) as large:
        alone = waits_ms(small, time.perf_counter() + min(seconds, 1.0))
        over, answers = threading.Event(), [0]

        def ask() -> None:
            while not over.is_set():
                large.ask(asked.wire)
                answers[0] += 1

        thread = threading.Thread(target=ask)
        thread.start()
        found = waits_ms(small, time.perf_counter() + seconds)
        over.set()
        thread.join()
    p50, p99 = found[len(found) // 2], found[int(len(found) * 0.99)]
    return [name, answers[0], p50, p99, p99 / alone[int(len(alone) * 0.99)]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--only", default="")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, Process(Path(directory)) as process:
        with Client(process.port) as client:
            prepare(client)
        known = asyncio.run(epochs(Path(directory)))
        rows = [
            beside(process, name, chosen.seconds, known) for name in names() if name.startswith(chosen.only)
        ]
    show("a small client beside a giant", ("giant", "answers", "p50 ms", "p99 ms", "p99 / alone"), rows)


if __name__ == "__main__":
    main()
