"""How long a small client waits beside the largest request of each API, against the same client alone.

python tests/benchmarks/bench_giants.py [--seconds 3] [--rounds 3] [--only METADATA] [--turns] [--refused]

One broker in a process of its own. The small client asks for DescribeCluster and sends one record (acks=1), in turns; a
second client sends the giant over and over. Printed are p50 and p99 of the small client, and the ratio of its p99 to
that of the same client alone, measured right before; of several rounds the best, since others may use the machine.

`--turns`: in place of that, the CPU time of the longest turn of the broker's event loop for each giant, which does not
depend on who else uses the machine. The broker is in a thread then, its collection of garbage as in its own process.

`--refused`: Metadata requests beyond the bounds, with which a broker once was busy for minutes: CPU and most memory.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench_cluster import cpu_s
from harness import show

from replication.broker import garbage
from replication.network.loops import new_event_loop
from replication.protocol import apis, bounds
from replication.protocol.apis import ApiKey
from replication.protocol.messages import ProducePartition, ProduceRequest, ProduceTopic
from tests.integration.cluster.test_giants import Client, InProcess, Process, epochs, prepare
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


TURN_S, TURN_ROUNDS = 0.02, 3
# The request of an audit: larger than any allowed one.
REFUSED = (
    ("100,000 times the same name", "METADATA-same", 100_000),
    ("1,000,000 names", "METADATA-names", 1_000_000),
    ("999,999 times an existing one", "METADATA-existing", 999_999),
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
            with suppress(AssertionError):  # a peer whom nobody knows is cut off
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


def p99_of(row: list[object]) -> object:
    return row[3]


class Spinning(InProcess):
    """A broker whose loop never sleeps: so the CPU time between two calls is that of one turn."""

    def run(self) -> None:
        garbage.begin()
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(self.serve())

    def spin(self, last_s: float | None = None) -> None:
        now_s = time.thread_time()
        if last_s is not None:
            self.turns_s.append(now_s - last_s)
        self.loop.call_soon(self.spin, now_s)

    def most(self, ask: Callable[[], object]) -> list[object]:
        """The most CPU of a turn for one request, and how many turns were above 20 ms."""
        time.sleep(0.05)
        self.turns_s = []
        with suppress(AssertionError):  # a peer whom nobody knows is cut off
            ask()
        time.sleep(0.05)
        over = sum(turn_s > TURN_S for turn_s in self.turns_s)
        return [max(self.turns_s) * 1000, over]


def turns(chosen: list[str]) -> list[list[object]]:
    found = []
    with tempfile.TemporaryDirectory() as directory, Spinning(Path(directory)) as broker:
        with Client(broker.endpoint.port) as client:
            prepare(client)
        broker.turns_s = []
        broker.loop.call_soon_threadsafe(broker.spin)
        garbage.collect(is_all=True)
        known = asyncio.run(epochs(Path(directory)))
        for name in chosen:
            asked = giant(name, **known)
            rows = []
            for _ in range(TURN_ROUNDS):
                with Client(broker.endpoint.port) as client:
                    rows.append(broker.most(partial(client.ask, asked.wire)))
            found.append([name, *min(rows)])
    return found


def refused() -> list[list[object]]:
    found = []
    with tempfile.TemporaryDirectory() as directory, Process(Path(directory)) as process:
        with Client(process.port) as client:
            prepare(client)
        for name, shape, count in REFUSED:
            wire = beyond(shape, count)
            process.forget()
            before, used_s = process.most_bytes(), cpu_s(process.process.pid)
            begin_s = time.perf_counter()
            with Client(process.port) as client:
                try:
                    outcome = f"{len(client.ask(wire))} bytes"
                except (AssertionError, OSError):
                    outcome = "closed"
            wall_s = time.perf_counter() - begin_s
            more_mb = (process.most_bytes() - before) / 1e6
            found.append([name, len(wire) / 1e6, outcome, wall_s, cpu_s(process.process.pid) - used_s, more_mb])
    return found


def beyond(shape: str, count: int) -> bytes:
    """The wire bytes of a Metadata request with so many items, whatever the bounds are."""
    known = bounds.BOUNDS
    try:
        bounds.BOUNDS = {**known, ApiKey.METADATA: bounds.Bound(1 << 30, count + 1)}
        return giant(shape).wire
    finally:
        bounds.BOUNDS = known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", action="store_true")
    parser.add_argument("--refused", action="store_true")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--only", default="")
    chosen = parser.parse_args()
    wanted = [name for name in names() if name.startswith(chosen.only)]
    if chosen.turns:
        show("the longest turn", ("giant", "CPU ms", "turns > 20 ms"), turns(wanted))
        return
    if chosen.refused:
        columns = "Metadata", "MB", "answer", "wall s", "CPU s", "more memory, MB"
        show("beyond the bounds", columns, refused())
        return
    with tempfile.TemporaryDirectory() as directory, Process(Path(directory)) as process:
        with Client(process.port) as client:
            prepare(client)
        known = asyncio.run(epochs(Path(directory)))
        rows = [
            min((beside(process, name, chosen.seconds, known) for _ in range(chosen.rounds)), key=p99_of)
            for name in wanted
        ]
    print(f"load: {', '.join(f'{load:.1f}' for load in os.getloadavg())} in the last 1, 5, 15 minutes")
    show("a small client beside a giant", ("giant", "answers", "p50 ms", "p99 ms", "p99 / alone"), rows)


if __name__ == "__main__":
    main()
