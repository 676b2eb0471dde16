"""Queries as an observer sees them: names, lag, rates and dropped rows, in a classic session and over Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pytest

import datasource
from datasource.session import java_home
from tests.spark import observed
from tests.support.repeats import only_long

pytestmark = pytest.mark.spark


def check(found):
    assert found["lag"] == 0
    assert found["first"] == [["first", "stopped", 0, 50, [["log", 0]]]]
    assert found["renamed"] == [["renamed", "running", 1, 30, [["log", 20]]]]
    assert found["late"] == found["renamed"]
    assert 'pylog_query_running{query="renamed"' in found["page"]
    assert "first" not in found["page"]
    title, row = found["table"].splitlines()
    assert title.startswith("QUERY")
    assert row.split()[:3] == ["renamed", "stopped", "1"]


def test_queries_of_a_session_are_seen(spark, tmp_path):
    check(observed.run(spark, tmp_path))


@only_long("a JVM of its own")
@pytest.mark.slow
@pytest.mark.skipif(find_spec("grpc") is None, reason="Spark Connect needs grpcio: pip install 'pyspark[connect]'")
def test_queries_over_spark_connect_are_seen(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "JAVA_HOME": str(java_home())}
    command = [sys.executable, Path(observed.__file__), tmp_path]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    check(json.loads(done.stdout.splitlines()[-1]))


@only_long("batches with a watermark")
def test_rows_that_came_too_late_are_counted(spark, topics, tmp_path):
    topics.create("t")

    def append(*seconds):
        moments = pa.array([1_700_000_000_000 + 1000 * s for s in seconds], pa.timestamp("ms", "UTC"))
        topics.append("t", ["v"] * len(seconds), timestamp=moments)

    stream = spark.readStream.format("pylog").options(**topics.options, subscribe="t", startingOffsets="earliest")
    counted = stream.load().withWatermark("timestamp", "1 second").groupBy("timestamp").count()
    sink = counted.writeStream.format("noop").outputMode("update")
    with datasource.observe(spark) as seen:
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            append(0, 1000)
            query.processAllAvailable()
            append(1, 2, 2000)
            query.processAllAvailable()
        finally:
            query.stop()
        assert seen.last_progress(query, timeout_s=60)["batchId"] >= 1
        assert seen.queries()[0]["dropped_rows"] == 2
