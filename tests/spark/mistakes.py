"""Mistakes of people who use `format("pylog")`, by the words of docs/spark.md, which has the line that answers each.

A place is a directory with the topics `orders` (two partitions of ten records), `payments` (one of twenty), `cut`
(its first two records are deleted) and `small`, which takes small records only. `python -m tests.spark.mistakes` makes
all of them in a session without any setting.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import logstore

NOWHERE = {"kafka.bootstrap.servers": "127.0.0.1:9"}


class Place:
    """Where mistakes are made: a log, a session, and a directory for checkpoints."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory, self.path = spark, directory, str(directory / "log")
        with logstore.open(self.path) as store:
            for topic, partitions, config in (
                ("orders", 2, {}),
                ("payments", 1, {}),
                ("cut", 1, {}),
                ("small", 1, {"max.message.bytes": "1000"}),
            ):
                store.create_topic(topic, partitions=partitions, config=config)
            for topic in ("orders", "payments", "cut"):
                store.append(topic, pa.table({"value": [f"v{n}" for n in range(20)]}))
            store.delete_records("cut", {0: 2})

    def load(self, schema: str | None = None, **options: str) -> DataFrame:
        reader = self.spark.read.format("pylog").options(**{"path": self.path} | options)
        return (reader.schema(schema) if schema else reader).load()

    def read(self, schema: str | None = None, **options: str) -> None:
        self.load(schema, **options).collect()

    def over(self, **options: str) -> None:
        """Read a cluster, not the directory."""
        self.spark.read.format("pylog").options(**options).load().collect()

    def stream(self, *columns: str, checkpoint: str = "", sink: dict[str, str] | None = None, **options: str) -> None:
        """Read as a stream; with `sink`, write to pylog with these options."""
        place = {} if NOWHERE.items() <= options.items() else {"path": self.path}
        rows = self.spark.readStream.format("pylog").options(**place | options).load().selectExpr(*columns or "*")
        writer = rows.writeStream.format("noop" if sink is None else "pylog")
        if sink is not None:
            writer = writer.options(**{"path": self.path} | sink)
        checkpoint = checkpoint or tempfile.mkdtemp(dir=self.directory)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        writer.start().awaitTermination()

    def stream_to(self, *columns: str, **sink: str) -> None:
        self.stream(*columns, sink=sink, subscribe="orders", startingOffsets="earliest")

    def write(self, columns: str, mode: str = "append", **options: str) -> None:
        rows = self.spark.sql(f"SELECT {columns}")
        place = {} if NOWHERE.items() <= options.items() else {"path": self.path}
        rows.write.format("pylog").options(**place | options).mode(mode).save()

    def other_topic(self) -> None:
        checkpoint = tempfile.mkdtemp(dir=self.directory)
        for topic in ("orders", "payments"):
            self.stream(checkpoint=checkpoint, subscribe=topic, startingOffsets="earliest")

    def other_source(self) -> None:
        """Resume, with pylog, the query of Spark's own source `rate`."""
        checkpoint = tempfile.mkdtemp(dir=self.directory)
        rows = self.spark.readStream.format("rate").load()
        query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        query.processAllAvailable()
        query.stop()
        self.stream(checkpoint=checkpoint, subscribe="payments")


AT_LOAD: dict[str, Callable[[Place], Any]] = {
    "neither `path` nor `kafka.bootstrap.servers`": lambda p: p.over(subscribe="orders"),
    "both": lambda p: p.load(subscribe="orders", **NOWHERE),
    "an object store's path": lambda p: p.load(subscribe="orders", path="s3://bucket/log"),
    "no topics": lambda p: p.load(),
    "`subscribe` and `assign`": lambda p: p.load(subscribe="orders", assign='{"orders":[0]}'),
    "`topic` in a read": lambda p: p.load(topic="orders"),
    "`topics`": lambda p: p.load(topics="orders"),
    "`kafka.bootstrap.server`": lambda p: p.over(**{"kafka.bootstrap.server": "h:9092", "subscribe": "orders"}),
    "`startingoffset`": lambda p: p.load(subscribe="orders", startingoffset="earliest"),
    "`kafka.group.id`": lambda p: p.load(subscribe="orders", **{"kafka.group.id": "g"}),
    "`startingOffsets=newest`": lambda p: p.load(subscribe="orders", startingOffsets="newest"),
    "`startingOffsets={orders:0}`": lambda p: p.load(subscribe="orders", startingOffsets="{orders:0}"),
    "`maxOffsetsPerTrigger=many`": lambda p: p.load(subscribe="orders", maxOffsetsPerTrigger="many"),
    "`failOnDataLoss=maybe`": lambda p: p.load(subscribe="orders", failOnDataLoss="maybe"),
    "`subscribePattern=ord[`": lambda p: p.load(subscribePattern="ord["),
    "`columns=vale`": lambda p: p.load(subscribe="orders", columns="vale"),
}
IN_A_BATCH: dict[str, Callable[[Place], Any]] = {
    "no such directory": lambda p: p.read(subscribe="orders", path=f"{p.path}s"),
    "no such topic": lambda p: p.read(subscribe="ordrs"),
    "no such partition": lambda p: p.read(assign='{"orders":[7]}'),
    "an offset behind the end": lambda p: p.read(subscribe="payments", startingOffsets='{"payments":{"0":99}}'),
    "an offset of one partition only": lambda p: p.read(subscribe="orders", startingOffsets='{"orders":{"0":1}}'),
    "an end before the start": lambda p: p.read(
        subscribe="payments", startingOffsets='{"payments":{"0":9}}', endingOffsets='{"payments":{"0":3}}'
    ),
    "a time after the last record": lambda p: p.read(subscribe="payments", startingTimestamp="99999999999999"),
    "an offset that is deleted": lambda p: p.read(subscribe="cut", startingOffsets='{"cut":{"0":0}}'),
    "a stream's option in a batch": lambda p: p.read(subscribe="orders", maxOffsetsPerTrigger="5"),
    "a schema with another name": lambda p: p.read("vale string", subscribe="orders"),
    "a schema with another type": lambda p: p.read("offset string", subscribe="orders"),
    "no broker at the address": lambda p: p.over(subscribe="orders", **NOWHERE),
}
IN_A_STREAM: dict[str, Callable[[Place], Any]] = {
    "stream: no such topic": lambda p: p.stream(subscribe="ordrs"),
    "stream: no such directory": lambda p: p.stream(subscribe="orders", path=f"{p.path}s"),
    "stream: an offset behind the end": lambda p: p.stream(
        subscribe="payments", startingOffsets='{"payments":{"0":99}}'
    ),
    "stream: `endingOffsets`": lambda p: p.stream(subscribe="orders", endingOffsets="latest"),
    "stream: an offset that is deleted": lambda p: p.stream(subscribe="cut", startingOffsets='{"cut":{"0":0}}'),
    "stream: the checkpoint of another topic": lambda p: p.other_topic(),
    "stream: the checkpoint of another source": lambda p: p.other_source(),
    "stream: no broker at the address": lambda p: p.stream(subscribe="orders", **NOWHERE),
}
IN_A_WRITE: dict[str, Callable[[Place], Any]] = {
    "no column `value`": lambda p: p.write("'a' AS key", topic="orders"),
    "an int as `value`": lambda p: p.write("1 AS value", topic="orders"),
    "another column": lambda p: p.write("'a' AS value, 1 AS amount", topic="orders"),
    "`.mode('overwrite')`": lambda p: p.write("'a' AS value", mode="overwrite", topic="orders"),
    "neither option nor column `topic`": lambda p: p.write("'a' AS value"),
    "write: no such topic": lambda p: p.write("'a' AS value", topic="ordrs"),
    "write: no such topic in the column": lambda p: p.write("'a' AS value, 'ordrs' AS topic"),
    "a null in the column `topic`": lambda p: p.write("'a' AS value, CAST(NULL AS STRING) AS topic"),
    "a partition that is none": lambda p: p.write("'a' AS value, 7 AS partition", topic="orders"),
    "a record that is too large": lambda p: p.write("repeat('a', 5000) AS value", topic="small"),
    "`subscribe` in a write": lambda p: p.write("'a' AS value", subscribe="orders"),
    "`compression=rar`": lambda p: p.write("'a' AS value", topic="orders", compression="rar"),
    "write: no broker at the address": lambda p: p.write("'a' AS value", topic="orders", **NOWHERE),
    "stream write: no such topic": lambda p: p.stream_to("value", topic="ordrs"),
    "stream write: no column `value`": lambda p: p.stream_to("key", topic="orders"),
    "stream write: `compresion`": lambda p: p.stream_to("value", topic="orders", compresion="zstd"),
}
MISTAKES = AT_LOAD | IN_A_BATCH | IN_A_STREAM | IN_A_WRITE


def answer(place: Place, mistake: str) -> str:
    """Make the mistake, and return the text of its error; "" if there is none."""
    try:
        found = MISTAKES[mistake](place)
        if isinstance(found, DataFrame):
            _ = found.schema  # over Spark Connect, load() does not ask the server
    except PySparkException as error:
        return str(error)
    return ""


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    with tempfile.TemporaryDirectory() as directory:
        place = Place(spark, Path(directory))
        answers = {mistake: answer(place, mistake) for mistake in sys.argv[1:] or MISTAKES}
    print(json.dumps({"path": place.path, "answers": answers}))


if __name__ == "__main__":
    main()
