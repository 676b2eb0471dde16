"""With --long, each kind of session reads, writes, streams exactly once and runs jobs.

.ci/run repeats this file, and a pipeline, on PySpark 4.3.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyspark
import pytest

from tests.spark import smoke
from tests.support.notebooks import execute
from tests.support.repeats import only_long

pytestmark = pytest.mark.spark

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
SCRIPT = smoke.__file__
VALUES = [[key, f"v{n}"] for n, key in enumerate(smoke.KEYS)]


def check(found):
    assert found["pyspark"] == pyspark.__version__
    assert found["k1"] == smoke.KEYS[:20].count("k1")
    assert sorted(row[1:] for row in found["in"]) == sorted(VALUES)
    assert found["out"] == found["in"]
    assert found["tiering"] == ["tiered"]
    assert found["tiered"] == len(VALUES)
    assert found["verify"] == ["sound"]


@only_long("a stream twice, and jobs")
def test_spark_session(spark, tmp_path):
    check(smoke.run(spark, tmp_path))


@only_long("JVMs")
@pytest.mark.slow
@pytest.mark.parametrize("start", [["python"], [SUBMIT, "--master", "local[2]"]], ids=["getOrCreate", "spark-submit"])
def test_a_script(start, activated, tmp_path):
    done = subprocess.run(
        [*start, SCRIPT, tmp_path], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    check(json.loads(done.stdout.splitlines()[-1]))


@only_long("a JVM")
@pytest.mark.slow
@pytest.mark.skipif(find_spec("grpc") is None, reason='pip install -e ".[test]" brings the packages of Spark Connect')
def test_a_client_of_spark_connect(connect_server, activated, monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_REMOTE", connect_server[0])
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    check(json.loads(done.stdout.splitlines()[-1]))


@only_long("a kernel and a JVM")
@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the notebook machinery, not of ours
def test_a_notebook(activated, tmp_path):
    (shown,) = execute([f"%run '{SCRIPT}' '{tmp_path}'"], tmp_path)
    check(json.loads(shown.splitlines()[-1]))
