"""The program that is killed: a query, or a batch write.

    python -m tests.spark.kills.query DIRECTORY NUMBER MASTER

It makes a session of this master, and waits for the file `go-NUMBER`, which names its job. `copy`: queries that copy a
topic to another, one after the other or only one, until the file `stop` appears; exit status 0: everything that was
there then is copied. `write`: a batch write, under a name, of rows in two topics; exit status 0: it has succeeded.
`upsert`: counts of the values of `in`, in `out`, in update or complete mode, which kill their process at a point of a
batch; exit status 0: all that was there is counted. `sift`: the records of `in` that fit, in `out`, and dead letters of
the others, in `misfits`, likewise. Anything else is a failure.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.kills import points

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

# Spark and its workers are started again and again: plans that are not compiled.
QUICK = {
    "spark.sql.codegen.wholeStage": False,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.ui.showConsoleProgress": False,
    "spark.sql.pyspark.jvmStacktrace.enabled": True,  # a failure says why
    # All of a cluster takes part from the start, and a task may lose many executors.
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.scheduler.minRegisteredResourcesRatio": 1.0,
    "spark.task.maxFailures": 10,
    "spark.driver.host": "127.0.0.1",
}


# A row at which a task attempt fails, by chance, once in the life of a JVM: of its three attempts a task may lose one
# like this and one to the killer.
VALUE = """if(cast(java_method('java.lang.Math', 'random') as double) < 0.00005
    and java_method('java.lang.System', 'setProperty', 'told', 'x') = 'null', raise_error('told to fail'), value)"""


def main(directory: str, number: str, master: str) -> None:
    from datasource import spark_session

    root = Path(directory)
    spark = spark_session(master=master, app_name="kills", **QUICK)
    spark.sparkContext.setLogLevel("OFF")
    job, options = asked(root / f"go-{number}")
    {"copy": copy, "write": write, "upsert": upsert, "sift": sift}[job](spark, root, **options)
    spark.stop()


def asked(note: Path) -> tuple[str, dict[str, Any]]:
    """Wait for the note of `Drivers.take`; return the job and its options."""
    killer = os.getppid()
    while not note.exists():
        time.sleep(0.02)
        if os.getppid() != killer:
            raise SystemExit("nobody asks for it any more")
    found = json.loads(note.read_text())
    return found["job"], found["options"]


def copy(spark: SparkSession, root: Path, hops: list[dict[str, dict[str, str]]]) -> None:
    queries = [start(spark, hop, str(root / f"checkpoint{number or ''}")) for number, hop in enumerate(hops)]
    (root / "started").touch()
    while not (root / "stop").exists():
        if not all(query.isActive for query in queries):
            raise SystemExit("a query ended by itself")
        time.sleep(0.2)
    for query in queries:
        query.processAllAvailable()
        query.stop()


def start(spark: SparkSession, hop: dict[str, dict[str, str]], checkpoint: str) -> StreamingQuery:
    source = spark.readStream.format("pylog").option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 4000)
    rows = source.options(**hop["source"]).load().selectExpr("key", f"{VALUE} value")
    sink = rows.writeStream.format("pylog").options(**hop["sink"])
    return sink.option("checkpointLocation", checkpoint).start()


def write(spark: SparkSession, root: Path, *, number: int, rows: int, topics: list[str], sink: dict[str, str]) -> None:
    """The rows of write `number`: `rows` values, half of them in each topic."""
    values = f"concat('{number}-', id) value", f"if(id % 2 = 0, '{topics[0]}', '{topics[1]}') topic"
    frame = spark.range(0, rows, 1, 2).selectExpr(*values)
    name = {} if "exactlyOnce" in sink else {"txnId": "kills", "txnVersion": number}
    frame.write.format("pylog").options(**sink, **name).mode("append").save()


def upsert(spark: SparkSession, root: Path, *, way: str, size: int, point: str, batch: int) -> None:
    """Count values in batches of `size` records, by `datasource.upsert` or `replace`; a fifth count deletes its key."""
    import datasource

    log = str(root / "log")
    options = {"subscribe": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(size)}
    stream = spark.readStream.format("pylog").options(path=log, **options).load()
    counts = stream.selectExpr("string(value) AS user").groupBy("user").count()
    if way == "upsert":
        rows = counts.selectExpr("user", "if(count % 5 = 0, null, string(count)) AS value")
    else:
        rows = counts.where("count % 5 > 0").selectExpr("user", "string(count) AS value")
    points.disarm(root)
    die_in_batch(root, point, batch)
    writer = getattr(datasource, way)(rows, log, topic="out", key="user", value="value", checkpoint=root / "checkpoint")
    assert writer.trigger(availableNow=True).start().awaitTermination(240)


def sift(spark: SparkSession, root: Path, *, place: dict[str, str], size: int, point: str, batch: int) -> None:
    """Sift values of JSON in batches of `size` records, by `datasource.sift`."""
    import datasource

    options = {"subscribe": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": size, "includeHeaders": True}
    stream = spark.readStream.format("pylog").options(**place, **options).load()
    points.disarm(root)
    die_in_batch(root, point, batch)
    where, topics = next(iter(place.values())), {"topic": "out", "dlq_topic": "misfits"}
    writer = datasource.sift(stream, where, schema="n int", checkpoint=root / "checkpoint", **topics)
    assert writer.trigger(availableNow=True).start().awaitTermination(240)


def die_in_batch(root: Path, point: str, batch: int) -> None:
    """Let this process die at a point of the so-and-so-many-th call of foreachBatch, from 0: one of its own, one of the
    journal, or `later SECONDS` after it began.
    """
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    begun, foreach, save = [-1], DataStreamWriter.foreachBatch, DataFrameWriter.save

    def at(name: str) -> None:
        if name == point and begun[0] == batch:
            points.die()

    def watched(writer: DataStreamWriter, function: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        def work(frame: DataFrame, number: int) -> None:
            begun[0] += 1
            if point in points.JOURNAL and begun[0] == batch:
                points.arm(root, point)
            if point.startswith("later ") and begun[0] == batch:
                threading.Timer(float(point.split()[1]), points.die).start()
            at("begin")
            function(frame, number)
            at("end")

        return foreach(writer, work)

    def saved(writer: DataFrameWriter, *given: Any, **options: Any) -> None:
        at("before the write")
        save(writer, *given, **options)
        at("after the write")

    DataStreamWriter.foreachBatch, DataFrameWriter.save = watched, saved


if __name__ == "__main__":
    main(*sys.argv[1:])
