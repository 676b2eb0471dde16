"""Spark's Python workers start in time, also on a busy machine; and one that does not is explained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException

from datasource.connector import workers
from datasource.demo.run import again
from tests.conftest import PRELOAD
from tests.support.repeats import only_long, soaked

ROOT = Path(__file__).parents[2]

# The worker that plans a stream sleeps longer than Spark waits, once.
LATE = """
import os, sys, time

if "pyspark.sql.streaming.python_streaming_source_runner" in sys.orig_argv and os.path.exists("late"):
    os.unlink("late")
    time.sleep(11)
"""
SESSION = """
import json, os, subprocess, sys
from pathlib import Path
import pyarrow as pa
import logstore
from datasource import spark_session
from datasource.demo.run import again

BUSY = "import time; end = time.monotonic() + 300\\nwhile time.monotonic() < end: pass"

with logstore.open("log") as store:
    store.create_topic("t")
    store.append("t", pa.table({"value": ["a", "b"]}))
spark = spark_session(master="local[2]", **{"spark.ui.showConsoleProgress": False})
spark.sparkContext.setLogLevel("OFF")
[file] = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.modules["pyspark"].__file__).collect()
stream = spark.readStream.format("pylog").options(path="log", subscribe="t", startingOffsets="earliest").load()
said, counts = [], []

def run():
    name = f"q{len(counts)}"
    query = stream.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
    query.awaitTermination()
    counts.append(spark.table(name).count())

Path("late").touch()
again(said.append, run)
busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(int(sys.argv[1]))]
try:
    for _ in range(int(sys.argv[2])):
        again(print, run)
finally:
    for process in busy:
        process.kill()
        process.wait()
print(json.dumps({"file": file, "home": os.environ.get("SPARK_HOME"), "said": said, "counts": counts}))
"""


def session_of_its_own(room, busy, turns):
    """In a process without what tests load ahead; the temporary directory has a space in its name."""
    (room / "a temp").mkdir()
    (room / "late_site").mkdir()
    (room / "late_site" / "sitecustomize.py").write_text(LATE)
    paths = [str(room / "late_site"), str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(busy), str(turns)],
        cwd=room,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(p for p in paths if p != PRELOAD), "TMPDIR": str(room / "a temp")},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not list((room / "a temp").glob("pylog-spark-*"))
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(900)
@only_long("a JVM, and 11 s of waiting")
def test_workers_import_the_pyspark_that_is_compiled_and_a_stream_outlives_one_that_comes_too_late(tmp_path):
    """The archive that Spark puts first on their path holds sources only: most of a second of each start.

    With --soak twenty streams more start beside 16 busy processes. This needs a machine that is not busy already.
    """
    turns = soaked(0, 20)
    found = session_of_its_own(tmp_path, busy=soaked(0, 16), turns=turns)
    assert found["file"] == pyspark.__file__
    assert found["home"] is None  # it is for the JVM alone
    assert found["counts"] == [2] * (1 + turns)
    assert found["said"][0] == f"Once more: {workers.CAME_TOO_LATE.partition(';')[0]}"


def test_workers_keep_the_archive_where_the_installed_package_is_not_theirs(tmp_path):
    package = tmp_path / "pyspark"
    for name in ("jars", "bin", "python/lib"):
        (package / name).mkdir(parents=True)
    archive = package / "python/lib/pyspark.zip"
    archive.touch()
    on_path = {"PYTHONPATH": os.pathsep.join(["", "elsewhere", str(tmp_path)])}
    assert workers.applies(package, on_path)
    assert not workers.applies(package, {})
    assert not workers.applies(package, on_path | {"SPARK_HOME": "/opt/spark"})
    assert not workers.applies(package, on_path | {"PYSPARK_GATEWAY_PORT": "1"})
    archive.unlink()  # as in installs without it
    assert not workers.applies(package, on_path)


def test_the_home_of_spark_is_set_for_workers_of_this_python_on_this_machine(monkeypatch):
    monkeypatch.setattr(workers.SparkContext, "_gateway", None)
    for name in (workers.HOME, *workers.PYTHONS, "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)

    def home(master="local[2]", **conf):
        with workers.compiled_workers(master, {name.replace("_", "."): value for name, value in conf.items()}):
            found = os.environ.get(workers.HOME)
            links = found and {each.name for each in Path(found).iterdir()}
        assert workers.HOME not in os.environ
        return links

    package = Path(pyspark.__file__).parent
    assert home() == {each.name for each in package.iterdir()} - {"python"}
    assert home("yarn") is None
    assert home(spark_pyspark_python="/usr/bin/another") is None
    for name in workers.PYTHONS:
        with monkeypatch.context() as patch:
            patch.setenv(name, "/usr/bin/another")
            assert home() is None
    with monkeypatch.context() as patch:
        patch.setattr(workers.tempfile, "tempdir", "/no/such/directory")
        assert home() is None
    monkeypatch.setattr(workers.SparkContext, "_gateway", object())  # a JVM runs
    assert home() is None


def test_the_demo_runs_a_stream_again_whose_worker_came_too_late():
    said, left = [], []

    def stream(text="terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"):
        if left:
            left.pop()
            raise PySparkException(text)

    left[:] = [1, 2]
    again(said.append, stream)
    assert len(said) == 2
    left[:] = [1, 2, 3]
    with pytest.raises(PySparkException, match="connect back"):
        again(said.append, stream)
    assert len(said) == 4
    left[:] = [1]
    with pytest.raises(PySparkException, match="another"):
        again(said.append, lambda: stream("another\nerror"))
    assert len(said) == 4
