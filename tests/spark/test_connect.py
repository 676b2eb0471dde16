"""With --long: Spark Connect, in a process of its own that has a server, and Sail, a Spark without Java."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from datasource.session import java_home
from tests.spark import over_connect, smoke
from tests.spark.test_mistakes import FEW, LINES, is_answered
from tests.spark.test_smoke import check
from tests.support.repeats import only_long

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
NO_JVM = ROOT / "notebooks" / "examples" / "no_jvm.py"


def run(*command, cwd, **variables):
    """The last line that a Python program prints. No Spark of another test is to be seen by it."""
    hidden = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_REMOTE", "PWD")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])} | variables
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=380, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


def with_java():
    return {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable}


@only_long("a JVM")
def test_connect_reads_writes_streams_and_runs_jobs(tmp_path):
    check(json.loads(run(smoke.__file__, tmp_path, cwd=tmp_path, SPARK_REMOTE="local[2]", **with_java())))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    directory = tmp_path_factory.mktemp("connect")
    return json.loads(run("-m", over_connect.__name__, *FEW, cwd=directory, **with_java())) | {"cwd": str(directory)}


@only_long("a JVM")
def test_connect_answers_a_mistake_by_one_line(found):
    assert found["kind"].startswith("pyspark.sql.connect.")
    wrong = {m: text for m, text in found["mistakes"].items() if not is_answered(text, LINES[m], found["path"])}
    assert (len(found["mistakes"]), wrong) == (len(FEW), {})


@only_long("a JVM")
def test_connect_refuses_relative_paths_and_says_the_absolute_one(found):
    assert list(found["relative"]) == ["read", "write", "stream", "stream write"]
    for text in found["relative"].values():
        assert "InvalidConfigError: option path='log': must be absolute over Spark Connect" in text
        assert f"'{found['cwd']}/log'" in text
        assert "\tat org.apache" not in text
    assert not (Path(found["cwd"]) / "log").exists()


@only_long("a JVM")
def test_connect_has_views_to_read_and_to_write(found):
    assert found["views"] == [["cut", "small"], 3, 6]


@only_long("a JVM")
def test_connect_runs_all_jobs_and_shows_their_progress(found):
    statuses = {name: job["statuses"] for name, job in found["jobs"].items()}
    assert statuses.pop("tiering") == ["nothing to do", "tiered"]
    assert statuses == {"retention": ["nothing to do"], "compaction": ["nothing to do"], "verify": ["sound"]}
    for job in found["jobs"].values():
        assert job["seen"] == sorted(job["seen"])
        assert job["seen"][-1][0] == job["seen"][-1][1]


@only_long("a JVM")
@pytest.mark.parametrize("mode", ["upsert", "replace"])
def test_connect_writes_each_batch_of_a_mode_once(found, mode):
    """The second run repeats the batch: its records do not come again."""
    values = {key: json.loads(value)["count"] for key, value in found[mode].items() if key != "records"}
    assert values == {"0": 7, "1": 7, "2": 6}
    assert found[mode]["records"] == "3"


@only_long("a JVM")
def test_connect_needs_a_name_for_a_query_whose_checkpoint_it_cannot_read(found):
    assert re.fullmatch(r"checkpoint 's3://bucket/checkpoint' is in no local .*: set option txnId to a .*", found["nameless"])


@only_long("Sail")
@pytest.mark.skipif(importlib.util.find_spec("pysail") is None, reason="pip install pysail")
def test_sail_reads_and_writes_without_java(tmp_path):
    found = json.loads(run(NO_JVM, tmp_path / "data", cwd=tmp_path, JAVA_HOME="/nowhere"))
    assert found["counts"] == {"Ada": 2, "Bob": 1}
    assert found["read back"] == {"Ada": "2", "Bob": "1"}
    assert found["view"] == 3
    assert found["verify"] == ["sound"]
    assert "Error: no topic 'ordrs'" in found["mistake"].splitlines()[0]
    assert "batch" in found["stream"].splitlines()[0]
