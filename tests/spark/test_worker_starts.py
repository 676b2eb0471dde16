"""Spark's Python workers start in time, also on a busy machine; and one that does not is explained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from datasource import session
from datasource.connector import workers
from datasource.demo import run as demo
from tests.support.repeats import only_long, soaked

ROOT = Path(__file__).parents[2]
BUSY = 16

STREAMS = """
import json, sys, tempfile
import pyarrow as pa, pyspark
import logstore
from datasource import spark_session

with logstore.open("log") as store:
    store.create_topic("t")
    store.append("t", pa.table({"value": ["a", "b"]}))
spark = spark_session(master="local[2]", **{"spark.ui.showConsoleProgress": False})
spark.sparkContext.setLogLevel("OFF")
stream = spark.readStream.format("pylog").options(path="log", subscribe="t", startingOffsets="earliest").load()
counts = []
for turn in range(int(sys.argv[1])):
    query = stream.writeStream.format("memory").queryName(f"q{turn}").trigger(availableNow=True).start()
    query.awaitTermination()
    counts.append(spark.table(f"q{turn}").count())
print(json.dumps(counts))
"""


@pytest.mark.spark
def test_workers_import_the_pyspark_that_is_compiled(spark):
    """The archive that Spark puts first on their path holds sources only: a second of each start."""
    import pyspark

    [found] = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.modules["pyspark"].__file__).collect()
    assert found == pyspark.__file__
    assert "SPARK_HOME" not in os.environ  # it is for the JVM alone


def test_workers_keep_the_archive_where_the_installed_package_is_not_theirs(monkeypatch, tmp_path):
    package = Path(demo.pa.__file__).parent  # some other package of this environment
    for name in ("jars", "python/lib"):
        (tmp_path / "pyspark" / name).mkdir(parents=True)
    (tmp_path / "pyspark/python/lib/pyspark.zip").touch()
    mine, on_path = tmp_path / "pyspark", {"PYTHONPATH": str(tmp_path)}
    assert workers.applies(mine, sys.executable, on_path)
    assert not workers.applies(mine, "/usr/bin/another", on_path)
    assert not workers.applies(mine, sys.executable, {})
    assert not workers.applies(mine, sys.executable, on_path | {"SPARK_HOME": "/opt/spark"})
    assert not workers.applies(mine, sys.executable, on_path | {"PYSPARK_GATEWAY_PORT": "1"})
    assert not workers.applies(package, sys.executable, {})


def test_the_demo_takes_a_step_again_that_a_worker_came_too_late_for():
    said, left = [], [2]

    def step(text="terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"):
        if left[0]:
            left[0] -= 1
            raise PySparkException(text)

    demo.again(said.append, step)
    assert [line.partition(" because ")[0] for line in said] == ["Once more,"] * 2
    left[0] = 3
    with pytest.raises(PySparkException) as caught:
        demo.again(said.append, step)
    assert "10 s, because this machine is busy; run it again" in session.line_of(caught.value)
    left[0], count = 1, len(said)
    with pytest.raises(PySparkException, match="another"):
        demo.again(said.append, lambda: step("another\nerror"))
    assert len(said) == count


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(900)
@only_long("a session beside 16 busy processes")
def test_streams_start_beside_16_busy_processes(tmp_path):
    turns = soaked(1, 12)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        done = subprocess.run(
            [sys.executable, "-c", STREAMS, str(turns)],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [2] * turns
