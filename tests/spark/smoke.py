"""An engineer's first day, in any kind of session: `python smoke.py DIRECTORY`, spark-submit, or %run in a notebook.

tests/spark/test_smoke.py runs it. It is a script, too, because each kind of session starts one differently.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

import logstore
from datasource.jobs import tiering, verify

KEYS = [f"k{n % 7}" for n in range(30)]


def run(spark: SparkSession, directory: Path) -> dict[str, Any]:
    """Write and read a topic, copy it by a stream whose driver dies once, run two jobs; return facts of each step."""
    path, checkpoint = str(directory / "log"), directory / "checkpoint"
    with logstore.open(path) as store:
        for topic in ("in", "out"):
            store.create_topic(topic, partitions=3)

    def load(topic: str, **more: str) -> DataFrame:
        return spark.read.format("pylog").options(path=path, subscribe=topic, **more).load()

    def append(numbers: range) -> None:
        rows = spark.createDataFrame([(KEYS[n], f"v{n}") for n in numbers], "key string, value string")
        rows.write.format("pylog").options(path=path, topic="in").mode("append").save()

    def copy() -> int:
        source = spark.readStream.format("pylog").options(path=path, subscribe="in", maxOffsetsPerTrigger=9)
        rows = source.option("startingOffsets", "earliest").load().select("key", "value")
        sink = rows.writeStream.format("pylog").options(path=path, topic="out", checkpointLocation=str(checkpoint))
        query = sink.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return query.lastProgress["batchId"]

    append(range(20))
    found: dict[str, Any] = {"pyspark": pyspark.__version__, "k1": load("in").where("string(key) = 'k1'").count()}
    last = copy()
    for name in (str(last), f".{last}.crc"):  # as if the driver had died between the sink's commit and its own
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    append(range(20, 30))
    copy()
    found |= {topic: contents(load(topic)) for topic in ("in", "out")}
    found["tiering"] = statuses(tiering.run(spark, path=path, topics="out"))
    found["tiered"] = load("out", includeTiered="true").count()
    found["verify"] = statuses(verify.run(spark, path=path))
    return found


def contents(frame: DataFrame) -> list[list[Any]]:
    """Partition, key and value of each record, in the order of the log."""
    rows = frame.sort("partition", "offset").selectExpr("partition", "string(key)", "string(value)").collect()
    return [list(row) for row in rows]


def statuses(report: DataFrame) -> list[str]:
    return sorted({row["status"] for row in report.collect()})


if __name__ == "__main__":
    session = SparkSession.builder.getOrCreate()
    print(json.dumps(run(session, Path(sys.argv[1]))))
    session.stop()
