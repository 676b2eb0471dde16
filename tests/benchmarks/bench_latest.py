"""A read with `view=latest` against a plain read of the same topic, which is compacted already: what the keys cost.

    python tests/benchmarks/bench_latest.py [--path DIR] [--rounds 7] [--share 1]

Two tasks on two cores, all columns to `noop`, from a directory, from its tiered part, and from one broker. A ratio is
the CPU time of Spark's processes with the view, in units of the plain read's: the goal is 1.5 at most. `Python` is the
same for a read by one process without Spark.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from bench_spark import SHAPES, TASKS, consume, cpu_s
from harness import AGAIN, interleave, ratio, show
from pyspark.sql import SparkSession

import datasource
import logstore
from datasource import PylogDataSource
from datasource.jobs import tiering
from replication.client.kafka_client import KafkaClient
from replication.local_cluster import LocalCluster

GOAL = 1.5
COMPACTED = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0"}


def rows_of(rows: int, value_bytes: int, partition: int) -> pa.Table:
    """Each key once, in no order."""
    order = np.random.default_rng(partition).permutation(rows)
    value = (b"0123456789abcdef" * (value_bytes // 16 + 1))[:value_bytes]
    columns = {"key": pa.array([b"key-%012d" % number for number in order], pa.binary()), "value": [value] * rows}
    return pa.table(columns | {"partition": pa.repeat(pa.scalar(partition, pa.int32()), rows)})


def fill(path: Path, topic: str, rows: int, value_bytes: int) -> None:
    """Each key twice, and compact."""
    with logstore.open(path) as store:
        store.create_topic(topic, partitions=TASKS, config=COMPACTED)
        for partition in range(TASKS):
            data = rows_of(rows // TASKS, value_bytes, partition)
            store.append(topic, data.slice(0, data.num_rows // 10))
            store.append(topic, data)
            store.log(topic, partition).roll()
            store.compact(topic, partition)


def works(consumed: Callable[[Mapping[str, str]], object], place: Mapping[str, str]) -> dict[str, Callable[[], object]]:
    return {
        "view": lambda: consumed({**place, "view": "latest"}),
        "plain": lambda: consumed(place),
        AGAIN: lambda: consumed(place),
    }


def measured(
    what: str, value_bytes: int, rows: int, place: dict[str, str], each: Callable, rounds: int
) -> list[object]:
    cpu: dict[str, list[float]] = {}

    def counted(name: str, work: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            before = cpu_s()
            work()
            cpu.setdefault(name, []).append(cpu_s() - before)

        return run

    seconds = interleave(
        {name: counted(name, work) for name, work in works(each, place).items()}, rounds=rounds, warmups=2
    )
    cpu = {name: found[2:] for name, found in cpu.items()}
    speed = f"{rows / statistics.median(seconds['view']) / 1e6:.2f} M rows/s"
    return [what, f"{value_bytes} B", speed, ratio(cpu["plain"], cpu["view"]), ratio(cpu["plain"], cpu[AGAIN])]


def bench(spark: SparkSession, root: Path, rounds: int, share: float) -> Iterator[list[object]]:
    def by_spark(place: Mapping[str, str]) -> None:
        consume(spark.read.format("pylog").options(**place).load())

    def by_python(place: Mapping[str, str]) -> None:
        source = PylogDataSource(dict(place))
        reader = source.reader(source.schema())
        for task in reader.partitions():
            for _ in reader.read(task):
                pass

    store = root / "store"
    for value_bytes, most in SHAPES:
        rows, topic = int(most * share), f"t{value_bytes}"
        fill(store, topic, rows, value_bytes)
        place = {"path": str(store), "subscribe": topic}
        yield measured("directory", value_bytes, rows, place, by_spark, rounds)
        yield measured("directory, Python", value_bytes, rows, place, by_python, rounds)
        tiering.rows(None, path=str(store), topics=topic)
        with logstore.open(store) as opened:
            opened.delete_records(topic, {p: extent.end for p, extent in opened.offsets(topic).items()})
        place = place | {"includeTiered": "true"}
        yield measured("tiered", value_bytes, rows, place, by_spark, rounds)
        yield measured("tiered, Python", value_bytes, rows, place, by_python, rounds)
    with LocalCluster(1, root / "one") as brokers, KafkaClient(brokers.bootstrap) as client:
        for value_bytes, most in SHAPES:
            rows, topic = int(most * share), f"t{value_bytes}"
            client.create_topic(topic, partitions=TASKS)
            for partition in range(TASKS):
                client.append(topic, rows_of(rows // TASKS, value_bytes, partition))
            place = {"kafka.bootstrap.servers": brokers.bootstrap, "subscribe": topic}
            yield measured("one broker", value_bytes, rows, place, by_spark, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", help="directory on the disk to measure; default: a temporary one")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--share", type=float, default=1.0, help="of the rows")
    asked = parser.parse_args()
    spark = datasource.spark_session(master=f"local[{TASKS}]", **{"spark.ui.showConsoleProgress": "false"})
    with tempfile.TemporaryDirectory(dir=asked.path, prefix="pylog-bench-") as name:
        found = list(bench(spark, Path(name), asked.rounds, asked.share))
    spark.stop()
    show("view=latest against a plain read", ["where", "values", "view", "CPU ratio", "noise"], found)
    sys.exit(any(row[3] > GOAL for row in found if "Python" not in str(row[0])))


if __name__ == "__main__":
    main()
