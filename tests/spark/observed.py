"""Queries under observers, in any kind of session: `python observed.py DIRECTORY` is one over Spark Connect."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import datasource
import logstore


def run(spark: SparkSession, directory: Path) -> dict[str, Any]:
    """Run a query, and another from its checkpoint under another name; return facts of each step."""
    path = str(directory / "log")
    with logstore.open(path) as store:
        store.create_topic("t", partitions=2)

    def append(count: int) -> None:
        with logstore.open(path) as store:
            store.append("t", [{"value": "v", "key": str(n)} for n in range(count)])

    def start(name: str, checkpoint: str, limit: int = 1000, **trigger: Any) -> StreamingQuery:
        source = spark.readStream.format("pylog").options(path=path, subscribe="t", maxOffsetsPerTrigger=limit)
        sink = source.option("startingOffsets", "earliest").load().writeStream.format("noop").queryName(name)
        return sink.option("checkpointLocation", str(directory / checkpoint)).trigger(**trigger).start()

    append(50)
    found: dict[str, Any] = {}
    with datasource.observe(spark, port=0) as seen:
        query = start("first", "a", availableNow=True)
        assert query.awaitTermination(120)
        progress = seen.last_progress(query, timeout_s=60)
        found["lag"] = datasource.lag(progress)["offsetsBehindLatest"]
        found["first"] = told(seen)
        append(50)
        query = start("renamed", "a", 30, processingTime="1 hour")
        until(lambda: seen.queries()[0]["batch"] == 1)
        found["renamed"] = told(seen)
        found["page"] = urllib.request.urlopen(f"http://127.0.0.1:{seen.port}/metrics", timeout=60).read().decode()
        with datasource.observe(spark) as late:
            found["late"] = told(late)
        query.stop()
        until(lambda: seen.queries()[0]["state"] == "stopped")
        found["table"] = str(seen)
    return found


def until(holds: Callable[[], bool], within_s: float = 120) -> None:
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, "it did not come to that"
        time.sleep(0.05)


def told(seen: datasource.QueryObserver) -> list[Any]:
    """Name, state, batch, rows, and by source the place and the lag, of each query of this test."""
    return [
        [
            each["query"],
            each["state"],
            each["batch"],
            each["rows"],
            [[Path(source["place"]).name, source["offsetsBehindLatest"]] for source in each["sources"]],
        ]
        for each in seen.queries()
    ]


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = SparkSession.builder.remote("local[2]").getOrCreate()
    datasource.register(session)
    print(json.dumps(run(session, Path(sys.argv[1]))))
    session.stop()
