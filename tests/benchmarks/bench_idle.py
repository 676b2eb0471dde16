"""An idle stream: the share of a core that it takes while no record comes, and how soon a record is in a batch.

    python tests/benchmarks/bench_idle.py [--seconds 30] [--appends 30] [--limit 0.06] [--only directory]

One query `readStream.format("pylog")` into foreachBatch, with Spark's default trigger, over a directory and over a
cluster of one broker. The share is the CPU time of all processes of Spark (driver, JVM, Python workers) over the time,
after a warm-up; brokers do not count. It ends with 1 if a share is above `--limit`.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
sys.path.insert(0, str(HERE.parents[1]))

import pyarrow as pa  # noqa: E402
from harness import show  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402

import datasource  # noqa: E402
import logstore  # noqa: E402
from replication.client.kafka_client import KafkaClient  # noqa: E402
from replication.local_cluster import LocalCluster  # noqa: E402

WARM_UP_S = 10
TICKS = os.sysconf("SC_CLK_TCK")
COLUMNS = ["place", "of a core", "limit", "JVM", "Python", "append to batch: median", "worst"]

Append = Callable[[str], object]


@contextmanager
def directory(root: Path) -> Iterator[tuple[dict[str, str], Append, set[int]]]:
    with logstore.open(root / "store") as store:
        store.create_topic("t", partitions=3)
        yield {"path": str(root / "store")}, lambda text: store.append("t", pa.table({"value": [text]})), set()


@contextmanager
def cluster(root: Path) -> Iterator[tuple[dict[str, str], Append, set[int]]]:
    before = set(tree(os.getpid()))
    with LocalCluster(1, directory=root / "cluster") as running, KafkaClient(running.bootstrap) as client:
        client.create_topic("t", partitions=3)
        brokers = set(tree(os.getpid())) - before
        append = lambda text: client.append("t", pa.table({"value": [text]}), partitioner="sticky", compression=None)  # noqa: E731
        yield {"kafka.bootstrap.servers": running.bootstrap}, append, brokers


def tree(root: int) -> dict[int, tuple[str, int]]:
    """Return the name and the CPU ticks, of itself and of children that ended, of a process and all that it started."""
    rows = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                text = (path / "stat").read_text()
            except OSError:
                continue
            name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
            rows[int(path.name)] = int(rest[1]), name, sum(map(int, rest[11:15]))
    found, waiting = {}, [root]
    while waiting:
        pid = waiting.pop()
        if pid in rows:
            found[pid] = rows[pid][1:]
            waiting += [child for child, row in rows.items() if row[0] == pid]
    return found


def cpu_s(without: set[int]) -> dict[str, float]:
    total = {"java": 0.0, "python": 0.0}
    for pid, (name, ticks) in tree(os.getpid()).items():
        if pid not in without:
            total["java" if name == "java" else "python"] += ticks / TICKS
    return total


def measure(spark: SparkSession, options: dict[str, str], append: Append, brokers: set[int], asked: argparse.Namespace):
    seen: dict[str, float] = {}

    def keep(batch: object, _number: int) -> None:
        now = time.perf_counter()
        for row in batch.collect():
            seen[row.value.decode()] = now

    stream = spark.readStream.format("pylog").options(**options, subscribe="t", startingOffsets="earliest").load()
    query = stream.writeStream.foreachBatch(keep).start()
    try:
        latencies_ms = []
        for i in range(asked.appends + 5):
            text, start = f"record {i}", time.perf_counter()
            append(text)
            while text not in seen:
                time.sleep(0.001)
            latencies_ms.append((seen[text] - start) * 1000)
            time.sleep(random.uniform(0.3, 1.5))
        latencies_ms = latencies_ms[5:]
        time.sleep(WARM_UP_S)
        before, start = cpu_s(brokers), time.perf_counter()
        time.sleep(asked.seconds)
        took = time.perf_counter() - start
        share = {name: (value - before[name]) / took for name, value in cpu_s(brokers).items()}
        start = time.perf_counter()
        query.stop()
        print(f"stop: {time.perf_counter() - start:.2f} s", file=sys.stderr)
    finally:
        query.stop()
    return share, latencies_ms


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--appends", type=int, default=30)
    parser.add_argument("--limit", type=float, default=0.06)
    parser.add_argument("--only")
    asked = parser.parse_args()
    rows, worst = [], 0.0
    spark = datasource.spark_session(master="local[2]", **{"spark.ui.showConsoleProgress": False})
    spark.sparkContext.setLogLevel("OFF")
    for place in (directory, cluster):
        if asked.only not in (None, place.__name__):
            continue
        with tempfile.TemporaryDirectory() as root, place(Path(root)) as (options, append, brokers):
            share, latencies_ms = measure(spark, options, append, brokers, asked)
        total = sum(share.values())
        worst = max(worst, total)
        rows.append(
            [
                place.__name__,
                f"{total:.1%}",
                f"{asked.limit:.0%}",
                f"{share['java']:.1%}",
                f"{share['python']:.1%}",
                f"{statistics.median(latencies_ms):.0f} ms",
                f"{max(latencies_ms):.0f} ms",
            ]
        )
    spark.stop()
    show("an idle stream", COLUMNS, rows)
    return int(worst > asked.limit)


if __name__ == "__main__":
    sys.exit(main())
