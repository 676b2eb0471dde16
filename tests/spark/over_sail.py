"""Sail, without Java: reads, writes, views, jobs, and what is refused, over the place that the options name.

    python -m tests.spark.over_sail OPTIONS [die | ADDRESS]

tests/spark/test_sail.py makes the topics, runs this as a program, because a process cannot have a classic session and
one of these, and reads the log by itself afterwards. With `die` Sail's process ends between a write and its
commit. ADDRESS is that of a server elsewhere.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import datasource
from datasource.connector.writer import BatchWriter
from datasource.jobs import verify
from datasource.jobs.remote_tasks import GROUP, over_connect
from logstore.errors import PylogError
from logstore.progress import no_progress

ZONE = "America/New_York"
COLUMNS = (
    "topic",
    "partition",
    "offset",
    "key",
    "value",
    "unix_micros(timestamp) AS micros",
    "timestampType",
    "headers",
)
PERMISSIVE = {"value.format": "json", "mode": "PERMISSIVE"}
HOURS = ("partition", "offset", "hour(timestamp) AS hour", "date_format(timestamp, 'yyyy-MM-dd HH') AS text")


class Place:
    def __init__(self, spark: SparkSession, options: dict[str, str]) -> None:
        self.spark, self.options = spark, options

    def load(self, topic: str, schema: str | None = None, **more: str) -> DataFrame:
        reader = self.spark.read.format("pylog").options(**self.options, subscribe=topic, **more)
        return (reader.schema(schema) if schema else reader).load()

    def save(self, rows: DataFrame, mode: str | None = "append", **more: str) -> None:
        writer = rows.write.format("pylog").options(**self.options, **more)
        (writer.mode(mode) if mode else writer).save()

    def stream(self, topic: str) -> DataFrame:
        return self.spark.readStream.format("pylog").options(**self.options, subscribe=topic).load()


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def facts(place: Place) -> dict[str, Any]:
    """Rows of a topic that the test has filled, its counts, and those that this writes to `counts` and `copy`."""
    spark = place.spark
    where = place.options.get("path") or place.options["kafka.bootstrap.servers"]
    found: dict[str, Any] = {
        "rows": rows(place.load("orders", includeHeaders="true").selectExpr(*COLUMNS).sort("partition", "offset")),
        "hours": rows(place.load("orders").selectExpr(*HOURS)),
        "offsets": rows(place.load("orders", columns="offset")),
        "count": place.load("orders").count(),
        "count by headers": datasource.count(spark, **place.options, subscribe="orders"),
        "empty": [rows(place.load("empty")), place.load("empty").count()],
        "of a schema": rows(
            place.load("orders", "VALUE binary, timestamp timestamp").selectExpr("VALUE", "hour(timestamp) AS hour")
        ),
        "views": datasource.register(spark, where, ["orders", "counts"]),
    }
    grouped = spark.sql(
        "SELECT key, string(count(*)) AS value, max(timestamp) AS timestamp, "
        "array(struct('by' AS key, cast(NULL AS binary) AS value)) AS headers FROM orders GROUP BY key"
    )
    place.save(grouped, topic="counts")
    found["grouped"] = rows(spark.sql("SELECT string(key) AS key, string(value) AS value FROM counts"))
    found["grouped hours"] = rows(spark.sql("SELECT hour(timestamp) AS hour FROM counts"))
    place.save(place.load("orders", includeHeaders="true").repartition(3), topic="copy")
    place.save(place.load("orders").where("offset = 0").drop("partition"), topic="once", txnId="job", txnVersion="1")
    place.save(place.load("orders").where("offset = 0").drop("partition"), topic="once", txnId="job", txnVersion="1")
    found["tasks"] = over_connect(spark, range(-GROUP, 2), abs, no_progress)
    found["frozen"] = gc.get_freeze_count()  # of this program, which is not ours to freeze
    found["typed"] = typed(place, where)
    checked = verify.run(spark, **job_place(place.options), topics=["orders", "counts", "copy", "once"])
    found["jobs"] = sorted({row["status"] for row in checked.collect()})
    return found


def typed(place: Place, where: str) -> dict[str, Any]:
    """Columns of a topic with a misfit, read by its schema and by one of the query, written, and in a view."""
    kept = {"typed": "true", "dlq.topic": "misfits", "dlq.name": "sail"}
    named = place.load("paid", "n int, at timestamp, _timestamp timestamp, _corrupt_record string", **PERMISSIVE)
    place.save(place.load("paid", **kept).selectExpr("n + 1 AS n", "at"), topic="paid.on", typed="true")
    datasource.register(place.spark, where, ["paid"], **kept)
    return {
        "misfit": error(place.load("paid", typed="true").collect),
        "named": rows(named.selectExpr("n", "hour(at) AS at", "hour(_timestamp) AS hour", "_corrupt_record AS bad")),
        "written": rows(place.load("paid.on", typed="true", columns="n,_offset")),
        "view": rows(place.spark.sql("SELECT n, hour(at) AS hour FROM paid")),
        "letters": rows(place.load("misfits").selectExpr("string(key) AS key").distinct()),
    }


def job_place(options: dict[str, str]) -> dict[str, str]:
    return {"path": options["path"]} if "path" in options else {"bootstrap": options["kafka.bootstrap.servers"]}


def refused(place: Place) -> dict[str, list[str]]:
    """The kind and the text of the error for each thing that Sail cannot do."""
    spark, value = place.spark, place.spark.sql("SELECT 'x' AS value")
    rate = spark.readStream.format("rate").load().selectExpr("string(value) AS value")
    checkpoint = tempfile.mkdtemp()
    options = ", ".join(f"`{name}` '{text}'" for name, text in place.options.items())
    stream = place.stream

    def upsert() -> None:
        changes = stream("orders").groupBy("key").count()
        where = next(iter(place.options.values()))
        datasource.upsert(changes, where, topic="states", key="key", checkpoint=checkpoint, txnId="q").start()

    uses: dict[str, Callable[[], Any]] = {
        "stream": lambda: stream("orders").writeStream.format("noop").start(),
        "stream to a table": lambda: stream("orders").writeStream.toTable("t"),
        "stream to foreachBatch": lambda: stream("orders").writeStream.foreachBatch(lambda rows, number: None).start(),
        "stream that is collected": lambda: stream("orders").where("offset = 0").collect(),
        "stream in a view": lambda: stream("orders").createOrReplaceTempView("later"),
        "stream in SQL": lambda: spark.sql("SELECT count(*) FROM {rows}", rows=stream("orders")).collect(),
        "stream of a view": lambda: spark.readStream.table("Orders").writeStream.format("noop").start(),
        "stream write": lambda: (
            rate.writeStream.format("pylog")
            .options(**place.options, topic="copy", checkpointLocation=checkpoint)
            .start()
        ),
        "upsert": upsert,
        "observe": lambda: datasource.observe(spark),
        "no mode": lambda: place.save(value, None, topic="copy"),
        "mode ignore": lambda: place.save(value, "ignore", topic="copy"),
        "mode overwrite": lambda: place.save(value, "overwrite", topic="copy"),
        "saveAsTable": lambda: value.write.format("pylog").options(**place.options, topic="copy").saveAsTable("t"),
        "writeTo": lambda: value.writeTo("t").using("pylog").options(**place.options, topic="copy").create(),
        "create as select": lambda: spark.sql(
            f"CREATE TABLE t USING pylog OPTIONS ({options}, topic 'copy') AS SELECT 'x' AS value"
        ),
        "time without a zone": lambda: place.save(
            spark.sql("SELECT 'x' AS value, timestamp_ntz'2026-01-01 00:00:00' AS timestamp"), topic="copy"
        ),
        "no such topic": lambda: place.load("ordrs").collect(),
        "misspelt option": lambda: place.load("orders", startingoffset="earliest").collect(),
        "no such partition": lambda: place.save(spark.sql("SELECT 'x' AS value, 77 AS partition"), topic="copy"),
    }
    return {name: error(use) for name, use in uses.items()}


def others(spark: SparkSession) -> int:
    """How many rows a table of another format has, which is written without a mode; a stream of another runs, too."""
    query = spark.readStream.format("rate").load().writeStream.format("noop").start()
    query.stop()
    spark.range(7).write.format("parquet").saveAsTable("numbers")
    return spark.table("numbers").count()


def error(use: Callable[[], Any]) -> list[str]:
    try:
        use()
    except (PySparkException, PylogError) as refusal:
        return [type(refusal).__name__, str(refusal)]
    return []


def unregistered(remote: str, options: dict[str, str]) -> list[str]:
    """The error in a session that knows the format by Spark's own call."""
    other = SparkSession.builder.remote(remote).create()
    other.dataSource.register(datasource.PylogDataSource)
    found = error(lambda: other.read.format("pylog").options(**options, subscribe="orders").load().collect())
    other.stop()
    return found


def from_elsewhere(options: dict[str, str], remote: str) -> dict[str, Any]:
    """Facts of a client that has not started its server."""
    place = Place(datasource.spark_session(**{"spark.remote": remote}), options)
    there = Place(place.spark, {"path": "log"})
    read = place.spark.read.format("pylog").option("subscribe", "orders")
    write = place.spark.sql("SELECT 'x' AS value").write.format("pylog").option("topic", "orders").mode("append")
    uses: dict[str, Callable[[], Any]] = {
        "read": there.load("orders").collect,
        "load": lambda: read.load("log").count(),
        "count": lambda: datasource.count(place.spark, path="log", subscribe="orders"),
        "write": lambda: there.save(place.spark.sql("SELECT 'x' AS value"), topic="orders"),
        "save": lambda: write.save("log"),
    }
    write.save(options["path"])
    found = {"relative": {name: error(use) for name, use in uses.items()}, "count": read.load(options["path"]).count()}
    place.spark.stop()
    return found


def main(options: dict[str, str], fate: str = "") -> None:
    if fate.startswith("sc:"):
        print(json.dumps(from_elsewhere(options, fate)))
        return
    from pysail.spark import SparkConnectServer  # here: a process that has it counts as Sail's

    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    host, port = server.listening_address
    remote = f"sc://{host}:{port}"
    spark = datasource.spark_session(**{"spark.remote": remote, "spark.sql.session.timeZone": ZONE})
    place = Place(spark, options)
    if fate == "die":
        BatchWriter.commit = lambda self, messages: os._exit(9)  # type: ignore[method-assign]
        place.save(spark.sql("SELECT 'lost' AS value FROM range(10)").repartition(2), topic="once")
    found = facts(place) | {
        "others": others(spark),
        "unregistered": unregistered(remote, options),
        "refused": refused(place),
    }
    spark.stop()
    server.stop()
    print(json.dumps(found, default=lambda value: value.hex()))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), *sys.argv[2:])
