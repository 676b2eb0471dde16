"""The program that is killed: a query that copies the topic `in` to the topic `out`, until a file says stop.

    python -m tests.spark.kills.query DIRECTORY SEED

Exit status 0: everything that was in the topic when the file appeared is copied. Anything else is the query's failure.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

# Spark is started again and again: a JVM that compiles little, and plans that are not compiled at all.
QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": False,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.ui.showConsoleProgress": False,
}


def sometimes_failing(seed: int):
    """A step of the query in which a task attempt fails now and then: its first attempts only."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import random

        from pyspark import TaskContext

        task = TaskContext.get()
        dice = random.Random(f"{seed} {os.getpid()} {task.taskAttemptId()} {time.time_ns()}")
        fails = task.attemptNumber() == 0 and dice.random() < 0.05
        yield from batches
        if fails:
            raise RuntimeError("this attempt was told to fail")

    return step


def main(directory: str, seed: str) -> None:
    from datasource import spark_session

    root = Path(directory)
    spark = spark_session(master="local[2,3]", app_name="kills", **QUICK)
    spark.sparkContext.setLogLevel("OFF")
    source = spark.readStream.format("pylog").option("path", str(root / "log")).option("subscribe", "in")
    frame = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 4000).load()
    rows = frame.select("key", "value").mapInArrow(sometimes_failing(int(seed)), "key binary, value binary")
    sink = rows.writeStream.format("pylog").option("path", str(root / "log")).option("topic", "out")
    query = sink.option("checkpointLocation", str(root / "checkpoint")).start()
    (root / "started").touch()
    while not (root / "stop").exists():
        if query.awaitTermination(0.2):
            raise SystemExit("the query ended by itself")
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
