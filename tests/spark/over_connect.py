"""A session of Spark Connect, with a server of its own: views, jobs, foreachBatch, relative paths, and mistakes.

tests/spark/test_connect.py runs it as a program, because a process cannot have a classic session and one of these.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

import datasource
import logstore
from datasource.jobs import schedule
from logstore.errors import PylogError
from tests.spark.mistakes import Place, answer

RELATIVE = "log"  # of the place, were a server's task where the client is


def answers(place: Place, wanted: list[str]) -> dict[str, Any]:
    spark = place.spark
    return {
        "kind": type(spark).__module__,
        "mistakes": {mistake: answer(place, mistake) for mistake in wanted},
        "relative": {name: refusal(use) for name, use in relative(spark, place.directory).items()},
        "views": views(spark, place),
        "jobs": jobs(spark, place),
        "upsert": last_states(place, datasource.upsert),
        "replace": last_states(place, datasource.replace),
        "nameless": refusal(lambda: counts(place, datasource.upsert, "s3://bucket/checkpoint")),
    }


def refusal(use: Callable[[], Any]) -> str:
    try:
        use()
    except (PySparkException, PylogError) as error:
        return str(error)
    return ""


def relative(spark: SparkSession, directory: Path) -> dict[str, Callable[[], Any]]:
    read = {"path": RELATIVE, "subscribe": "orders"}
    rows = spark.sql("SELECT 'a' AS value")

    def run(frame: DataFrame, sink: str, **options: str) -> None:
        writer = frame.writeStream.format(sink).options(**options, checkpointLocation=tempfile.mkdtemp(dir=directory))
        writer.trigger(availableNow=True).start().awaitTermination()

    streamed = spark.readStream.format("pylog").options(**read | {"path": str(directory / "log")}).load()
    with_schema = spark.readStream.format("pylog").options(**read).schema("value binary")
    return {
        "read": lambda: spark.read.format("pylog").options(**read).load().collect(),
        "write": lambda: rows.write.format("pylog").options(path=RELATIVE, topic="orders").mode("append").save(),
        "stream": lambda: run(with_schema.load(), "noop"),
        "stream write": lambda: run(streamed.select("value"), "pylog", path=RELATIVE, topic="payments"),
    }


def views(spark: SparkSession, place: Place) -> list[Any]:
    """The names of the views, and how many records one has after each INSERT."""
    found: list[Any] = [datasource.register(spark, place.path, ["small", "cut"])]
    for _ in range(2):
        spark.sql("INSERT INTO small (key, value) SELECT key, value FROM cut WHERE offset < 5").collect()
        found.append(spark.sql("SELECT count(*) FROM small").collect()[0][0])
    return found


def jobs(spark: SparkSession, place: Place) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, job in schedule.JOBS.items():
        seen: list[tuple[int, int]] = []
        rows = job(
            spark, path=place.path, topics=["orders", "counts"], progress=lambda *at, seen=seen: seen.append(at)
        ).collect()
        found[name] = {"statuses": sorted({row["status"] for row in rows}), "seen": seen}
    return found


def counts(place: Place, mode: Callable[..., Any], checkpoint: str) -> Any:
    options = {"path": place.path, "subscribe": "payments", "startingOffsets": "earliest"}
    rows = place.spark.readStream.format("pylog").options(**options).load()
    frame = rows.groupBy((functions.col("offset") % 3).alias("rest")).count()
    return mode(frame, place.path, topic="counts", key="rest", checkpoint=checkpoint)


def last_states(place: Place, mode: Callable[..., Any]) -> dict[str, str]:
    """The topic after a run of the query, and a second one that repeats its batch, as if the driver had died."""
    checkpoint = Path(tempfile.mkdtemp(dir=place.directory))
    for _ in range(2):
        counts(place, mode, str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
        for commit in ("0", ".0.crc"):
            (checkpoint / "commits" / commit).unlink(missing_ok=True)
    with logstore.open(place.path) as store:
        rows = store.read("counts", partition=0).read_all().to_pylist()
        store.delete_records("counts", {0: len(rows)})
        store.delete_topic("counts")
        store.create_topic("counts", config={"cleanup.policy": "compact"})
    return {row["key"].decode(): row["value"].decode() for row in rows} | {"records": str(len(rows))}


def main() -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    datasource.register(spark)
    with tempfile.TemporaryDirectory() as directory:
        place = Place(spark, Path(directory))
        with logstore.open(place.path) as store:
            store.create_topic("counts", config={"cleanup.policy": "compact"})
            store.append("counts", pa.table({"key": ["gone"], "value": ["1"]}))
            store.delete_records("counts", {0: 1})
        found = answers(place, sys.argv[1:])
    print(json.dumps(found | {"path": place.path}))
    spark.stop()


if __name__ == "__main__":
    main()
