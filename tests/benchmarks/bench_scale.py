"""How cost grows with the work: each row is a curve, and its last point as a multiple of its first.

python tests/benchmarks/bench_scale.py [--only segments,topics,connections,partitions,starts,…] [--full] [--plot X.svg]

A store: segments of a log, topics. A broker: connections that send small produce requests, and partitions that these go
to. Calls of all sizes take turns, so that a slow moment of the machine meets them all; the CPU is that of the broker's
process. `--full` goes as far as the goals do, in some ten minutes; without it the last size of each curve is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import uvloop
from bench_cluster import Pylog, cpu_s
from bench_small_requests import Asking, ask, frame, heartbeat, produce, text
from harness import show

import logstore
from replication.client.kafka_client import KafkaClient
from replication.model.cluster import LeaderAndIsr

ROUNDS, CALLS = 7, 50
ROW = pa.table({"value": ["x" * 100]})
BASE_MS = 1_700_000_000_000


class Curve(NamedTuple):
    """What grows, what is measured, its unit, (size, value) of each point, and what the last may be of the first."""

    grows: str
    what: str
    unit: str
    points: Sequence[tuple[int, float]]
    goal: str

    @property
    def growth(self) -> float:
        return self.points[-1][1] / self.points[0][1] if self.points[0][1] else math.nan


def in_turns(calls: dict[int, Callable[[], object]]) -> list[tuple[int, float]]:
    """The median microseconds of a call of each size."""
    found: dict[int, list[float]] = {size: [] for size in calls}
    for turn in range(ROUNDS + 1):
        for size, call in calls.items():
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            if turn:  # the first warms up
                found[size].append((time.perf_counter() - began) / CALLS * 1e6)
    return [(size, statistics.median(values)) for size, values in found.items()]


def segments(sizes: Sequence[int], root: Path) -> list[Curve]:
    """A log of one partition: a read of one record at random, a lookup by time, an append."""
    reads: dict[int, Callable[[], object]] = {}
    lookups: dict[int, Callable[[], object]] = {}
    appends: dict[int, Callable[[], object]] = {}
    with ExitStack() as stack:
        for size in sizes:
            store = stack.enter_context(logstore.open(root / f"segments-{size}"))
            store.create_topic("t")
            log = store.log("t", 0)
            for n in range(size):
                times = pa.array([BASE_MS + n], pa.timestamp("ms", tz="UTC"))
                store.append("t", ROW.append_column("timestamp", times))
                log.roll()
            store.append("t", ROW)
            assert len(log.segments()) == size + 1
            any_of = random.Random(size)  # no secret

            def read(store: logstore.LogStore = store, size: int = size, any_of: random.Random = any_of) -> None:
                at = any_of.randrange(size)
                assert sum(rows.num_rows for rows in store.read("t", partition=0, start=at, end=at + 1)) == 1

            def lookup(store: logstore.LogStore = store, size: int = size, any_of: random.Random = any_of) -> None:
                at = any_of.randrange(size)
                assert store.offsets_for_times("t", {0: BASE_MS + at})[0] is not None

            reads[size], lookups[size] = read, lookup
            appends[size] = lambda store=store: store.append("t", ROW)  # type: ignore[misc]
        return [
            Curve("segments of a log", name, "µs", in_turns(calls), "1.3")
            for name, calls in (("read of a record", reads), ("lookup by time", lookups), ("append", appends))
        ]


def topics(sizes: Sequence[int], root: Path) -> list[Curve]:
    """A store with so many topics: an append to one and a read of it, `topics()` for each of them."""
    appends: dict[int, Callable[[], object]] = {}
    reads: dict[int, Callable[[], object]] = {}
    lists: list[tuple[int, float]] = []
    with ExitStack() as stack:
        for size in sizes:
            store = stack.enter_context(logstore.open(root / f"topics-{size}"))
            for n in range(size):
                store.create_topic(f"t{n}")
            for n in range(min(size, 10)):
                store.append(f"t{n}", ROW)
            turns = itertools.cycle(range(min(size, 10)))
            appends[size] = lambda store=store, turns=turns: store.append(f"t{next(turns)}", ROW)  # type: ignore[misc]
            reads[size] = lambda store=store: list(store.read("t0", partition=0, start=0, end=1))  # type: ignore[misc]
            seconds = []
            time.sleep(0.2)  # descriptions of this moment are read again
            for _ in range(3):
                began = time.perf_counter()
                assert len(store.topics()) == size
                seconds.append((time.perf_counter() - began) / size)
            lists.append((size, min(seconds) * 1e6))
        return [
            Curve("topics of a store", "append", "µs", in_turns(appends), "1.3"),
            Curve("topics of a store", "read", "µs", in_turns(reads), "1.3"),
            Curve("topics of a store", "`topics()`, per topic", "µs", lists, "1.3"),
        ]


class Spread(Asking):
    """One connection that asks one partition after the other."""

    def __init__(self, requests: Sequence[bytes], first: int, delays_s: list[float]) -> None:
        super().__init__(b"", 0, delays_s)
        self._requests = itertools.islice(itertools.cycle(requests), first, None)

    def _ask(self) -> None:
        self._request = next(self._requests)
        super()._ask()


async def load(port: int, requests: Sequence[bytes], connections: int, seconds: float) -> list[float]:
    """The seconds of every answer that came while so many connections asked."""
    delays_s: list[float] = []
    step, loop = max(1, len(requests) // connections), asyncio.get_running_loop()
    asking = [
        await loop.create_connection(
            lambda n=n: Spread(requests, n * step % len(requests), delays_s), "127.0.0.1", port
        )
        for n in range(connections)
    ]
    await asyncio.sleep(seconds)
    for transport, _ in asking:
        transport.abort()
    return delays_s


def resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


async def held_kib(port: int, pid: int, request: bytes, count: int) -> float:
    """The memory of one of so many more connections that were answered once."""
    before_kib, streams = resident_kib(pid), []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        streams.append(writer)
    found = (resident_kib(pid) - before_kib) / count
    for writer in streams:
        writer.close()
    return found


def connections(sizes: Sequence[int], root: Path) -> list[Curve]:
    """Small requests to ten partitions of one broker: its CPU for one."""
    costs, waits, memories = [], [], []
    with Pylog(1, root / "connections", {}) as cluster, KafkaClient(cluster.bootstrap) as client:
        client.create_topic("small", partitions=10)
        port, pid = int(cluster.bootstrap.rsplit(":", 1)[1]), cluster.pid(1)
        requests = [produce(cluster, 1, n) for n in range(10)]
        # First: later ones get memory that others have left. Fewer than a hundred do not show.
        memories += [(n, asyncio.run(held_kib(port, pid, requests[0], n))) for n in sizes if n >= 100]
        for size in sizes:
            for _ in range(2):  # the first warms up
                before = cpu_s(pid)
                delays_s = uvloop.run(load(port, requests, size, 4))
            costs.append((size, (cpu_s(pid) - before) / len(delays_s) * 1e6))
            waits.append((size, 1000 * statistics.quantiles(delays_s, n=100)[98] / size))
    return [
        Curve("connections that produce", "CPU per request", "µs", costs, "1.67"),
        Curve("connections that produce", "p99 per connection", "ms", waits, ""),
        Curve("connections that produce", "memory of one", "KiB", memories, "< 60"),
    ]


def partitions(sizes: Sequence[int], root: Path) -> list[Curve]:
    """Small requests of 100 connections that go round the partitions of one broker: its CPU for one, and to idle."""
    costs, idles, memories, creations = [], [], [], []
    for size in sizes:
        with Pylog(1, root / f"partitions-{size}", {}) as cluster, KafkaClient(cluster.bootstrap) as client:
            port, pid = int(cluster.bootstrap.rsplit(":", 1)[1]), cluster.pid(1)
            empty_kib, began = resident_kib(pid), time.perf_counter()
            client.create_topic("small", partitions=size)
            creations.append((size, (time.perf_counter() - began) / size * 1e3))
            time.sleep(3)
            before = cpu_s(pid)
            time.sleep(5)
            idles.append((size, (cpu_s(pid) - before) / 5 * 100))
            memories.append((size, (resident_kib(pid) - empty_kib) / size))
            requests = [produce(cluster, 1, n) for n in range(size)]
            warm = 0
            while warm < 5 * size:  # the first append to a partition makes its files
                warm += len(uvloop.run(load(port, requests, 100, 3)))
            before = cpu_s(pid)
            delays_s = uvloop.run(load(port, requests, 100, 5))
            costs.append((size, (cpu_s(pid) - before) / len(delays_s) * 1e6))
    return [
        Curve("partitions of a broker", "CPU per request", "µs", costs, "1.5"),
        Curve("partitions of a broker", "idle CPU", "%", idles, "< 3 %"),
        Curve("partitions of a broker", "memory of one, empty", "KiB", memories, "< 10"),
        Curve("partitions of a broker", "creating one", "ms", creations, "< 1"),
    ]


def planning(sizes: Sequence[int], root: Path) -> list[Curve]:
    """What Spark's process does before a read of all partitions that match a pattern, 100 partitions a topic.

    First in a process that has just opened the store, then once more.
    """
    from datasource.connector.source import PylogDataSource
    from datasource.topics import directory

    first, again = [], []
    for size in sizes:
        path = root / f"planned-{size}"
        with logstore.open(path) as store:
            each = min(size, 100)
            rows = pa.table({"value": ["x" * 100] * each, "partition": pa.array(range(each), pa.int32())})
            for n in range(size // each):
                store.create_topic(f"t{n}", partitions=each)
                store.append(f"t{n}", rows)
        source = PylogDataSource({"path": str(path), "subscribePattern": "t.*"})
        taken = []
        for turn in range(4):
            if turn < 2:  # the first of all loads the code
                directory._stores.clear()
            began = time.perf_counter()
            tasks = source.reader(source.schema()).partitions()
            taken.append(time.perf_counter() - began)
            assert sum(len(task.ranges) for task in tasks) == size  # type: ignore[attr-defined]
        first.append((size, taken[1]))
        again.append((size, min(taken[2:])))
        directory._stores.clear()
    return [
        Curve("partitions that a Spark read takes", "its plan, in a new process", "s", first, "< 2 s"),
        Curve("partitions that a Spark read takes", "its plan, again", "s", again, "< 2 s"),
    ]


COMMIT_PARTITIONS = 32


def commits(sizes: Sequence[int], root: Path) -> list[Curve]:
    """The driver's commit of one exactly-once batch that so many tasks wrote, each to 32 partitions of a directory."""
    seconds, cpu = [], []
    count = COMMIT_PARTITIONS
    rows = pa.table({"value": ["x"] * count, "partition": pa.array(range(count), pa.int32())})
    for size in sizes:
        path, took, spent = root / f"commits-{size}", [], []
        with logstore.open(path) as store:
            store.create_topic("t", partitions=count)
            for batch in range(4):
                parts = []
                for task in range(size):
                    part = store.transactions.begin("q", batch, run="r", task=str(task))
                    store.append("t", rows, transaction=part)
                    parts.append(part.prepare())
                began, cpu_began = time.perf_counter(), time.process_time()
                with logstore.open(path) as driver:
                    driver.transactions.commit(parts)
                took.append(time.perf_counter() - began)
                spent.append(time.process_time() - cpu_began)
        seconds.append((size, statistics.median(took[1:])))
        cpu.append((size, statistics.median(spent[1:]) / size * 1e3))
    what = f"tasks of a batch, x {count} partitions"
    return [Curve(what, "its commit", "s", seconds, "< 3 s"), Curve(what, "CPU per task", "ms", cpu, "1")]


KEY_BYTES = 16
MAP_BYTES = 128 * 1024 * 1024


def keys(sizes: Sequence[int], root: Path) -> list[Curve]:
    """Compaction of a partition with so many keys, each there twice, records of 100 B, with a map of 128 MiB.

    An entry takes 32 bytes of the map, with a key of 16, and its slot 8 of a table that is at most six tenths full and
    a power of two: 2,516,582 keys fit.
    """
    from logstore.records import compaction  # noqa: F401 - not to measure how its kernels load

    rounds, speeds, each_keys = [], [], 1_000_000
    value = pa.array([b"x" * 80] * each_keys, pa.binary())
    for size in sizes:
        path = root / f"keys-{size}"
        with logstore.open(path) as store:
            store.create_topic("t", config={"cleanup.policy": "compact", "segment.bytes": 128 * 1024 * 1024})
            order = np.random.default_rng(7)
            for _ in range(2):
                shuffled = order.permutation(size)
                for at in range(0, size, each_keys):
                    chosen = shuffled[at : at + each_keys]
                    text = pc.utf8_lpad(pc.cast(pa.array(chosen), pa.string()), KEY_BYTES, "0")
                    store.append("t", pa.table({"key": text, "value": value[: len(chosen)]}))
            store.log("t", 0).roll()
            rewritten = list[int]()  # bytes of each round

            def note(done_bytes: int, total_bytes: int, rewritten: list[int] = rewritten) -> None:
                if done_bytes == total_bytes:
                    rewritten.append(total_bytes)

            began = time.process_time()
            report = store.compact("t", 0, key_map_bytes=MAP_BYTES, progress=note)
            taken = time.process_time() - began
        assert report.records_after == size, report
        rounds.append((size, float(report.rounds)))
        speeds.append((size, taken * 1e9 / sum(rewritten)))
        shutil.rmtree(path)
    what = "keys of a partition, each there twice"
    return [
        Curve(what, "rounds of its compaction", "", rounds, ""),
        Curve(what, "CPU per GB that a round looks at", "s", speeds, "1.3"),
    ]


def starts(sizes: Sequence[int], root: Path) -> list[Curve]:
    """A broker with so many partitions, each with a record: until it serves again, after a stop and after a kill."""
    stopped, killed = [], []
    for size in sizes:
        with Pylog(1, root / f"starts-{size}", {}) as cluster, KafkaClient(cluster.bootstrap) as client:
            client.create_topic("small", partitions=size)
            port, requests = int(cluster.bootstrap.rsplit(":", 1)[1]), [produce(cluster, 1, n) for n in range(size)]
            answers = 0
            while answers < 2 * size:
                answers += len(uvloop.run(load(port, requests, 100, 2)))
            for end, found in ((cluster.stop, stopped), (cluster.kill, killed)):
                end(1)
                began = time.perf_counter()
                cluster.restart(1)
                while cluster.leaderless(1):
                    time.sleep(0.01)
                found.append((size, time.perf_counter() - began))
    return [
        Curve("partitions of a broker", "start after a stop", "s", stopped, "< 5 s"),
        Curve("partitions of a broker", "start after a kill", "s", killed, "< 15 s"),
    ]


def failovers(sizes: Sequence[int], root: Path) -> list[Curve]:
    """Three brokers, one of which is killed: from the first new leader to the last, and how others fare meanwhile."""
    spans, slower = [], []
    for size in sizes:
        settings = {"zookeeper.session.timeout.ms": 6000, "auto.leader.rebalance.enable": "false"}
        with Pylog(3, root / f"failovers-{size}", settings) as cluster, KafkaClient(cluster.bootstrap) as client:
            client.create_topic("many", partitions=size, replicas=3)
            client.create_topic("small", partitions=30, replicas=1)
            while sum(one.leader >= 0 and len(one.isr) == 3 for one in led(cluster, "many")) < size:
                time.sleep(0.5)
            asked = requests_of(cluster, 2)
            calm_s = uvloop.run(load(*asked, 10, 4))
            lost = sum(one.leader == 1 for one in led(cluster, "many"))
            with ThreadPoolExecutor(1) as other:
                cluster.kill(1)
                while sum(one.leader == 1 for one in led(cluster, "many")) == lost:
                    time.sleep(0.02)
                first = time.perf_counter()
                meanwhile = other.submit(lambda asked=asked: uvloop.run(load(*asked, 10, 4)))
                while any(one.leader == 1 for one in led(cluster, "many")):
                    time.sleep(0.02)
                spans.append((size, time.perf_counter() - first))
                slower.append((size, p99(meanwhile.result()) / p99(calm_s)))
    return [
        Curve("partitions of a broker that dies", "first to last leader", "s", spans, "< 1 s at 1,000"),
        Curve("partitions of a broker that dies", "p99 of others, against before", "times", slower, "< 2"),
    ]


def led(cluster: Pylog, topic: str) -> list[LeaderAndIsr]:
    return [one for tp, one in cluster.describe().leadership.items() if tp.topic == topic]


def requests_of(cluster: Pylog, broker: int) -> tuple[int, list[bytes]]:
    """The port of a broker, and a small produce request for each partition of `small` that it leads."""
    found = cluster.describe()
    own = [tp.partition for tp, one in found.leadership.items() if tp.topic == "small" and one.leader == broker]
    return found.brokers[broker].port, [produce(cluster, 1, n) for n in own]


def p99(delays_s: Sequence[float]) -> float:
    return statistics.quantiles(delays_s, n=100)[98]


def groups(sizes: Sequence[int], root: Path) -> list[Curve]:
    """So many groups of one member that beats once a second, three times as often as clients do."""
    waits = []
    with Pylog(1, root / "groups", {}) as cluster:
        port = int(cluster.bootstrap.rsplit(":", 1)[1])
        for size in sizes:
            waits.append((size, 1000 * p99(uvloop.run(beating(port, size, 5)))))
    return [Curve("groups of consumers", "p99 of a heartbeat", "ms", waits, "< 50")]


async def beating(port: int, count: int, seconds: float) -> list[float]:
    await ask(port, frame(10, 0, text("a group")))  # makes the topic of offsets
    beats = await asyncio.gather(*(heartbeat(port, f"beating-{count}-{n}") for n in range(count)))
    delays_s: list[float] = []

    async def beat(request: bytes, first_s: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(first_s)
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            writer.write(request)
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            delays_s.append(time.perf_counter() - began)
            await asyncio.sleep(1)
        writer.close()

    await asyncio.gather(*(beat(request, n / count) for n, request in enumerate(beats)))
    return delays_s


MEASURES: dict[str, tuple[Callable[[Sequence[int], Path], list[Curve]], Sequence[int]]] = {
    "segments": (segments, (10, 1000, 10_000)),
    "topics": (topics, (10, 1000, 10_000)),
    "connections": (connections, (10, 100, 1000)),
    "partitions": (partitions, (10, 100, 1000, 5000)),
    "planning": (planning, (100, 1000, 10_000)),
    "commits": (commits, (2, 20, 200)),
    "keys": (keys, (1_000_000, 4_000_000, 10_000_000, 30_000_000)),
    "starts": (starts, (500, 2000, 10_000)),
    "failovers": (failovers, (100, 1000, 10_000)),
    "groups": (groups, (10, 100, 1000)),
}


def plot(curves: Sequence[Curve], file: Path) -> None:
    """Draw every curve with a growth as a goal, relative to its first point."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        if curve.goal and not curve.goal.startswith("<"):
            axes.plot(
                [size for size, _ in curve.points],
                [value / curve.points[0][1] for _, value in curve.points],
                marker="o",
                label=f"{curve.grows}: {curve.what}",
            )
    axes.set(xscale="log", xlabel="how many", ylabel="cost, against the first point", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(file)


def main() -> None:
    """Print a row for each curve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(MEASURES))
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--path", help="directory on the disk to measure; default: a temporary one")
    parser.add_argument("--plot", type=Path, help="an SVG or PNG file to draw the curves to")
    asked = parser.parse_args()
    curves: list[Curve] = []
    with tempfile.TemporaryDirectory(dir=asked.path, prefix="pylog-bench-") as root:
        for name in asked.only.split(","):
            measure, sizes = MEASURES[name]
            curves += measure(sizes if asked.full else sizes[:-1], Path(root))
    rows = [
        [c.grows, c.what, ", ".join(f"{size:,}: {value:.3g}" for size, value in c.points), c.unit, c.growth, c.goal]
        for c in curves
    ]
    show("Cost as work grows", ["what grows", "what", "values", "unit", "growth", "goal"], rows)
    if asked.plot:
        plot(curves, asked.plot)


if __name__ == "__main__":
    main()
