"""Typed topics in Spark against what people write without them: from_json and to_json, in one session and in turns.

    python tests/benchmarks/bench_typed.py [--path DIR] [--rows 1000000] [--rounds 7] [--only ROW]

Documents of about 100 bytes with five columns, in two partitions, by two tasks. A read of all columns goes to `noop`;
`aggregate` filters by one column, groups by another and reads all. `raw` is our read of the column `value` and
from_json(CAST(value AS STRING)), or to_json(struct(*)) and our write of that. `floor` is the same through a Python
source that hands over the columns, decoded beforehand, or a sink that drops them: what the same API costs Spark when
pylog costs nothing. In `bad` one record in a thousand does not fit, and is dropped. `dead letters` keeps these. Ratios
are those of the CPU time of Spark and all of its processes, but for the micro-batches: those are of time, typed and
then not, of 1,000 records each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa
from harness import AGAIN, ratio, show
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.functions import col, from_json, struct, to_json

HERE = Path(__file__).parent
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])

import peers  # noqa: E402
from bench_spark import consume, cpu_s  # noqa: E402

import datasource  # noqa: E402
import logstore  # noqa: E402
from datasource.topics.interface import BATCH_BYTES  # noqa: E402

TASKS = 2
SCHEMA = "user string, amount decimal(10,2), number bigint, at timestamp, is_new boolean"
BAD_EVERY = 1000
MICRO_BATCHES, MICRO_ROWS = 20, 1000
WARMUPS = 2
JSON = {"value.format": "json"}
COLUMNS = ["what", "measured", "against", "ratio", "noise"]


def document(i: int) -> str:
    at = f"2024-01-31T10:{i // 60 % 60:02d}:{i % 60:02d}Z"
    fields = {"user": f"u{i % 977}", "amount": f"{i % 9973 / 100:.2f}", "number": i, "at": at, "is_new": i % 3 == 0}
    return json.dumps(fields)


def fill(path: Path, rows: int) -> None:
    values = [document(i) for i in range(rows // TASKS)]
    bad = ['{"number": "none"}' if i % BAD_EVERY == 0 else value for i, value in enumerate(values)]
    with logstore.open(path) as store:
        for topic, texts in (("good", values), ("bad", bad)):
            store.create_topic(topic, partitions=TASKS)
            for partition in range(TASKS):
                where = pa.repeat(pa.scalar(partition, pa.int32()), len(texts))
                store.append(topic, pa.table({"value": texts, "partition": where}))
        store.create_topic("out", partitions=TASKS)
        store.create_topic("micro", partitions=TASKS)
        for _ in range(MICRO_BATCHES):
            store.append("micro", pa.table({"value": values[:MICRO_ROWS]}))


def typed(spark: SparkSession, path: Path, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("pylog").schema(SCHEMA).options(path=str(path), subscribe=topic, **JSON)
    return reader.options(**{name.replace("_", "."): value for name, value in options.items()}).load()


def raw(spark: SparkSession, path: Path, topic: str) -> DataFrame:
    values = spark.read.format("pylog").options(path=str(path), subscribe=topic, columns="value").load()
    return values.select(from_json(col("value").cast("string"), SCHEMA).alias("row")).select("row.*")


def floor(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("floor").schema(SCHEMA).options(path=str(path), tasks=str(TASKS)).load()


def aggregate(frame: DataFrame) -> None:
    found = frame.filter("is_new").groupBy("user").agg(f.sum("amount"), f.max("at"), f.count("number"))
    found.write.format("noop").mode("overwrite").save()


def keep_columns(path: Path) -> None:
    """Write what a typed read of `good` hands over to a file for each task."""
    with logstore.open(path) as store:
        for task in range(TASKS):
            batches = store.read("good", partition=task, schema=SCHEMA, batch_bytes=BATCH_BYTES)
            peers.write_floor(path.parent / f"floor{task}", batches)


def save(frame: DataFrame, path: Path, **options: str) -> None:
    frame.write.format("pylog").mode("append").options(path=str(path), topic="out", **options).save()


def drop(frame: DataFrame) -> None:
    frame.write.format("floor").mode("append").save()


def in_turns(works: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """The CPU time of each in every round, of all processes."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(WARMUPS + rounds):
        for name, work in works.items():
            before = cpu_s()
            work()
            if turn >= WARMUPS:
                found[name].append(cpu_s() - before)
    return found


def bench_read(spark: SparkSession, path: Path, rows: int, rounds: int) -> Iterator[list[object]]:
    def read(topic: str, **options: str) -> Callable[[], object]:
        return lambda: consume(typed(spark, path, topic, **options))

    keep_columns(path)
    works = {
        "typed": read("good"),
        "raw": lambda: consume(raw(spark, path, "good")),
        AGAIN: lambda: consume(raw(spark, path, "good")),
        "floor": lambda: consume(floor(spark, path.parent)),
        "typed aggregate": lambda: aggregate(typed(spark, path, "good")),
        "raw aggregate": lambda: aggregate(raw(spark, path, "good")),
        "floor aggregate": lambda: aggregate(floor(spark, path.parent)),
        "bad": read("bad", mode="DROPMALFORMED"),
        "kept": read("bad", dlq_topic="kept", dlq_name="bench"),
    }
    took = in_turns(works, rounds)
    noise = ratio(took[AGAIN], took["raw"])
    speed = {name: f"{rows / statistics.median(each) / 1000:.0f} k rows per CPU s" for name, each in took.items()}
    for more in ("", " aggregate"):
        ours = took["typed" + more]
        for peer, what in (("raw", "from_json"), ("floor", "floor")):
            against = f"{what}, {speed[peer + more]}"
            yield ["read" + more, speed["typed" + more], against, ratio(ours, took[peer + more]), noise]
    for name, what in (("bad", "1 in 1,000 bad"), ("kept", "1 in 1,000 bad, dead letters")):
        yield [f"read, {what}", speed[name], f"none bad, {speed['typed']}", ratio(took[name], took["typed"]), noise]


def bench_write(spark: SparkSession, path: Path, rows: int, rounds: int) -> Iterator[list[object]]:
    frame = spark.range(0, rows, 1, TASKS).selectExpr(
        "concat('u', id % 977) AS user", "cast(id % 9973 / 100 AS decimal(10,2)) AS amount", "id AS number",
        "timestamp_seconds(1700000000 + id) AS at", "id % 3 = 0 AS is_new",
    )  # fmt: skip
    text = frame.select(to_json(struct("*")).alias("value"))
    works = {
        "typed": lambda: save(frame, path, **JSON),
        "raw": lambda: save(text, path),
        AGAIN: lambda: save(text, path),
        "floor": lambda: drop(frame),
        "floor of text": lambda: drop(text),
    }
    took = in_turns(works, rounds)
    speed = {name: f"{rows / statistics.median(each) / 1000:.0f} k rows per CPU s" for name, each in took.items()}
    noise = ratio(took[AGAIN], took["raw"])
    for peer, what in (("raw", "to_json"), ("floor", "floor")):
        yield ["write", speed["typed"], f"{what}, {speed[peer]}", ratio(took["typed"], took[peer]), noise]
    against = f"floor of to_json, {speed['floor of text']}"
    yield ["write, floor", speed["floor"], against, ratio(took["floor"], took["floor of text"]), noise]


def bench_micro_batches(spark: SparkSession, path: Path, rows: int, rounds: int) -> Iterator[list[object]]:
    took_ms: dict[str, list[float]] = {"typed": [], "raw": [], AGAIN: []}
    for turn in range(rounds + 1):  # the first one warms up
        for name in took_ms:
            stream = spark.readStream.format("pylog").options(path=str(path), subscribe="micro")
            stream = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger=MICRO_ROWS)
            stream = stream.schema(SCHEMA).options(**JSON) if name == "typed" else stream
            checkpoint = tempfile.mkdtemp(dir=path.parent)
            sink = stream.load().writeStream.format("noop").trigger(availableNow=True)
            query = sink.option("checkpointLocation", checkpoint).start()
            query.awaitTermination()
            done = [p for p in query.recentProgress if p["numInputRows"]]
            assert sum(p["numInputRows"] for p in done) == MICRO_BATCHES * MICRO_ROWS
            if turn:
                took_ms[name] += [p["durationMs"]["triggerExecution"] for p in done[1:]]
    middle = {name: statistics.median(each) for name, each in took_ms.items()}
    what = f"micro-batch of {MICRO_ROWS:,} records, p50"
    found = middle["raw"] / middle["typed"], middle["raw"] / middle[AGAIN]
    yield [what, f"{middle['typed']:.0f} ms", f"key and value, {middle['raw']:.0f} ms", *found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", type=Path, help="an existing directory on the disk to measure")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    benches = {"read": bench_read, "write": bench_write, "micro-batch": bench_micro_batches}
    parser.add_argument("--only", choices=benches)
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="typed", dir=arguments.path))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = datasource.spark_session(master=f"local[{TASKS}]", **{"spark.sql.session.timeZone": "UTC"})
    spark.dataSource.register(peers.FloorSource)
    try:
        fill(root / "store", arguments.rows)
        chosen = [arguments.only] if arguments.only else list(benches)
        parts = [partial(benches[name], spark, root / "store", arguments.rows, arguments.rounds) for name in chosen]
        show("Typed topics in Spark", COLUMNS, [row for part in parts for row in part()])
    finally:
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
