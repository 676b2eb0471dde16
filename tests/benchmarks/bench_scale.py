"""How cost grows with the work: each row is a curve, and its last point as a multiple of its first.

python tests/benchmarks/bench_scale.py [--only segments,topics,connections,partitions,starts,…] [--full]
    [--sizes 10,100] [--keep curves.json] [--plot X.svg]

A store: segments of a log, topics. A broker: connections that send small produce requests, partitions that these go to,
starts; three brokers: failovers, groups of consumers (see `scale_brokers` and `scale_groups`). The commit of a batch of
Spark, in a directory and in a cluster (`scale_commits`). Calls of all sizes take
turns, so that a slow moment of the machine meets them all; the CPU is that of the broker's process. `--full` goes as
far as the goals do, in some twenty minutes; without it the last size of each curve is left out. With `--keep`, curves
of several runs are kept in one file, and drawn together.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from harness import show
from scale_brokers import connections, failovers, partitions, starts
from scale_commits import cluster_commits, commits
from scale_curve import Curve, merge, plot, say
from scale_groups import groups

import logstore
from tests.support.inside import open_stores

ROUNDS, CALLS = 7, 50
ROW = pa.table({"value": ["x" * 100]})
BASE_MS = 1_700_000_000_000


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


def planning(sizes: Sequence[int], root: Path) -> list[Curve]:
    """The work of Spark's process before a read of all partitions that match a pattern, 100 partitions a topic.

    First in a process that has just opened the store, then once more.
    """
    from datasource.connector.source import PylogDataSource

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
                open_stores().clear()
            began = time.perf_counter()
            tasks = source.reader(source.schema()).partitions()
            taken.append(time.perf_counter() - began)
            assert sum(len(task.ranges) for task in tasks) == size  # type: ignore[attr-defined]
        first.append((size, taken[1]))
        again.append((size, min(taken[2:])))
        open_stores().clear()
    return [
        Curve("partitions that a Spark read takes", "its plan, in a new process", "s", first, "< 2 s"),
        Curve("partitions that a Spark read takes", "its plan, again", "s", again, "< 2 s"),
    ]


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


MEASURES: dict[str, tuple[Callable[[Sequence[int], Path], list[Curve]], Sequence[int]]] = {
    "segments": (segments, (10, 1000, 10_000)),
    "topics": (topics, (10, 1000, 10_000)),
    "connections": (connections, (1, 10, 100, 1000)),
    "partitions": (partitions, (10, 100, 1000, 10_000)),
    "planning": (planning, (100, 1000, 10_000)),
    "commits": (commits, (2, 20, 200)),
    "cluster-commits": (cluster_commits, (2, 20, 200)),
    "keys": (keys, (1_000_000, 4_000_000, 10_000_000, 30_000_000)),
    "starts": (starts, (500, 2000, 5000, 10_000)),
    "failovers": (failovers, (100, 1000, 10_000)),
    "groups": (groups, (10, 100, 1000)),
}


def main() -> None:
    """Print a row for each curve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(MEASURES))
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--sizes", help="instead of those that the curve has")
    parser.add_argument("--path", help="directory on the disk to measure; default: a temporary one")
    parser.add_argument("--keep", type=Path, help="a JSON file that these curves are added to, and drawn from")
    parser.add_argument("--plot", type=Path, help="an SVG or PNG file to draw the curves to")
    asked = parser.parse_args()
    curves: list[Curve] = []
    with tempfile.TemporaryDirectory(dir=asked.path, prefix="pylog-bench-") as root:
        for name in asked.only.split(","):
            measure, sizes = MEASURES[name]
            if asked.sizes:
                sizes = [int(size) for size in asked.sizes.split(",")]
            elif not asked.full:
                sizes = sizes[:-1]
            say(f"{name}: {', '.join(map(str, sizes))}")
            curves += measure(sizes, Path(root))
    rows = [
        [c.grows, c.what, ", ".join(f"{size:,}: {value:.3g}" for size, value in c.points), c.unit, c.growth, c.goal]
        for c in curves
    ]
    show("Cost as work grows", ["what grows", "what", "values", "unit", "growth", "goal"], rows)
    if asked.keep:
        curves = merge(curves, asked.keep)
    if asked.plot:
        plot(curves, asked.plot)


if __name__ == "__main__":
    main()
