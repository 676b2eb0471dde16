"""A client of Spark Connect: views, jobs, foreachBatch, relative paths, mistakes, and the brokers of a cluster.

    python -m tests.spark.over_connect ADDRESS BOOTSTRAP

tests/spark/test_connect.py runs it as a program, because a process cannot have a classic session and one of these.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

import datasource
import logstore
from datasource.jobs import schedule
from logstore.errors import PylogError
from replication.client.kafka_client import KafkaClient
from tests.spark.mistakes import Place, answer

TOPICS = ("connect.in", "connect.copied", "connect.written", "connect.counts")  # of the cluster
RELATIVE = "log"  # of the place, were a server's task where the client is


def answers(place: Place, bootstrap: str, mistakes: Sequence[str]) -> dict[str, Any]:
    spark = place.spark
    return {
        "kind": type(spark).__module__,
        "mistakes": {mistake: answer(place, mistake) for mistake in mistakes},
        "relative": {name: refusal(use) for name, use in relative(spark, place.directory).items()},
        "views": views(spark, place),
        "typed": typed(spark, place),
        "count": datasource.count(spark, path=place.path, subscribe="orders"),
        "jobs": jobs(spark, place),
        "upsert": last_states(place, datasource.upsert),
        "replace": last_states(place, datasource.replace),
        "nameless": refusal(lambda: counts(place, datasource.upsert, "s3://bucket/checkpoint")),
        "brokers": over_brokers(spark, bootstrap, place.directory),
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
    stream = spark.readStream.format("pylog").options(**read)
    return {
        "read": lambda: spark.read.format("pylog").options(**read).load().collect(),
        "write": lambda: rows.write.format("pylog").options(path=RELATIVE, topic="orders").mode("append").save(),
        "stream": lambda: run(stream.load(), "noop"),
        "stream write": lambda: run(streamed.select("value"), "pylog", path=RELATIVE, topic="payments"),
        "count": lambda: datasource.count(spark, **read),
    }


def views(spark: SparkSession, place: Place) -> list[Any]:
    """The names of the views, and how many records one has after each INSERT."""
    found: list[Any] = [datasource.register(spark, place.path, ["small", "cut"])]
    for _ in range(2):
        spark.sql("INSERT INTO small (key, value) SELECT key, value FROM cut WHERE offset < 5").collect()
        found.append(spark.sql("SELECT count(*) FROM small").collect()[0][0])
    return found


def typed(spark: SparkSession, place: Place) -> dict[str, Any]:
    """Columns of a topic with a misfit: a stream with dead letters, a batch, what is written, and a view."""
    with logstore.open(place.path) as store:
        for topic in ("paid", "paid.on"):
            store.create_topic(topic, schema="n int")
        store.append("paid", [{"value": '{"n": 1}'}, {"value": "nonsense"}])
    given, checkpoint = {"path": place.path, "typed": "true"}, tempfile.mkdtemp(dir=place.directory)
    kept = {"dlq.topic": "misfits", "startingOffsets": "earliest"}
    with datasource.observe(spark) as seen:
        stream = spark.readStream.format("pylog").options(**given, **kept, subscribe="paid").load()
        writer = stream.selectExpr("n + 1 AS n").writeStream.format("pylog").options(**given, topic="paid.on")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        counted = datasource.lag(seen.last_progress(query, timeout_s=60))["misfits"]
    datasource.register(spark, place.path, "paid.on", typed=True, metadata=True)
    batch = spark.read.format("pylog").options(**given, subscribe="paid")
    with logstore.open(place.path, mode="r") as store:
        letters = [key.decode().split("|", 1) for key in store.read("misfits").read_all()["key"].to_pylist()]
    return {
        "misfits": counted,
        "letters": letters == [[str(query.id), "paid|0|1"]],
        "refused": refusal(batch.load().collect),
        "rows": list(map(list, batch.option("mode", "DROPMALFORMED").load().collect())),
        "view": list(map(list, spark.sql("SELECT n, _offset FROM `paid.on`").collect())),
    }


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


def fresh(store: logstore.LogStore) -> None:
    """Make the topic `counts`, with a key that no batch has."""
    store.create_topic("counts", config={"cleanup.policy": "compact"})
    store.append("counts", [{"key": "gone", "value": "1"}])


def last_states(place: Place, mode: Callable[..., Any]) -> dict[str, Any]:
    """The records that a query writes to `counts`, with a run that repeats its batch, as if the driver had died."""
    checkpoint = Path(tempfile.mkdtemp(dir=place.directory))
    for _ in range(2):
        counts(place, mode, str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
        for commit in ("0", ".0.crc"):
            (checkpoint / "commits" / commit).unlink()
    with logstore.open(place.path) as store:
        rows = store.read("counts", partition=0).read_all().to_pylist()[1:]
        store.delete_topic("counts")
        fresh(store)
    return {"records": len(rows)} | {row["key"].decode(): row["value"] and row["value"].decode() for row in rows}


def over_brokers(spark: SparkSession, bootstrap: str, directory: Path) -> dict[str, Any]:
    """Write a topic, copy it by a stream and by foreachBatch, and upsert its counts, each last batch twice."""
    client, place = KafkaClient(bootstrap), {"kafka.bootstrap.servers": bootstrap}
    for topic in TOPICS:
        client.create_topic(topic, partitions=2, cleanup_policy="compact" if topic == TOPICS[-1] else "delete")
    source, copied, written, counted = TOPICS

    def load(topic: str) -> DataFrame:
        return spark.read.format("pylog").options(**place, subscribe=topic).load()

    def write(frame: DataFrame, number: int) -> None:
        rows = frame.write.format("pylog").options(**place, topic=written, txnId="by-hand", txnVersion=str(number))
        rows.mode("append").save()

    def run(start: Callable[[DataFrame, str], Any]) -> None:
        checkpoint = Path(tempfile.mkdtemp(dir=directory))
        options = place | {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "12"}
        for _ in range(2):
            stream = spark.readStream.format("pylog").options(**options).load()
            start(stream, str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
            for commit in ("1", ".1.crc"):
                (checkpoint / "commits" / commit).unlink()

    def copy(stream: DataFrame, checkpoint: str) -> Any:
        rows = stream.select("key", "value").writeStream.format("pylog").options(**place, topic=copied)
        return rows.option("checkpointLocation", checkpoint)

    def by_hand(stream: DataFrame, checkpoint: str) -> Any:
        rows = stream.select("key", "value").writeStream.foreachBatch(write)
        return rows.option("checkpointLocation", checkpoint)

    def upsert(stream: DataFrame, checkpoint: str) -> Any:
        users = stream.groupBy(functions.expr("string(key)").alias("user")).count()
        return datasource.upsert(users, bootstrap, topic=counted, key="user", checkpoint=checkpoint)

    rows = spark.range(20).selectExpr("string(id % 5) AS key", "string(id) AS value")
    rows.write.format("pylog").options(**place, topic=source).mode("append").save()
    for start in (copy, by_hand, upsert):
        run(start)
    found: dict[str, Any] = {topic: datasource.count(spark, **place, subscribe=topic) for topic in TOPICS}
    for topic in (source, copied, written):
        found[f"values of {topic}"] = sorted(int(row[0]) for row in load(topic).selectExpr("string(value)").collect())
    last = load(counted).orderBy("partition", "offset").selectExpr("string(value)").collect()
    found["states"] = {row["user"]: row["count"] for row in map(json.loads, (each[0] for each in last))}
    return found


def main(remote: str, bootstrap: str, *mistakes: str) -> None:
    spark = datasource.spark_session(**{"spark.remote": remote})
    with tempfile.TemporaryDirectory() as directory:
        place = Place(spark, Path(directory))
        with logstore.open(place.path) as store:
            fresh(store)
        found = answers(place, bootstrap, mistakes)
    print(json.dumps(found | {"path": place.path}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
