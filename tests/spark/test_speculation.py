"""Spark runs a task twice at once, on two executors: its rows are there once, in a directory and over a cluster."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import Topics, TopicsOfCluster
from tests.spark.speculate import ROWS
from tests.support.repeats import only_long

pytestmark = [pytest.mark.spark, pytest.mark.slow, only_long("JVMs of a Spark cluster"), pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]


def test_a_task_that_spark_speculates_on_is_there_once(cluster, tmp_path):
    """(T6)"""
    places = [Topics(tmp_path / "log"), TopicsOfCluster(cluster, tmp_path)]
    for place in places:
        place.create("t")
    options = [json.dumps(place.options | {"topic": "t"}) for place in places]
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.speculate", tmp_path, *options],
        env=os.environ | {"PYTHONPATH": python_path},
        timeout=500,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    began = {path.name for path in (tmp_path / "began").iterdir()}
    for number, place in enumerate(places):
        assert {f"{number}-0-0", f"{number}-0-1"} < began
        assert sorted(place.values("t")) == [f"{n}" for n in range(ROWS)]
        assert place.open_transactions() == []
    places[1].close()
