"""Declarative pipelines: the commands of docs/pipelines.md, and runs that are killed between their steps.

The packages of `pyspark[pipelines]` are needed. Twenty kills: `pytest --soak`.
"""

import os
import random
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from datasource.demo.pipelines import NEEDS
from tests.docs.test_readme import blocks
from tests.spark.kills.drivers import run_until
from tests.spark.kills.pipelining import prove, read
from tests.support.repeats import only_long, soaked

KILLS = soaked(1, 20)
MISSING = [package for module, package in NEEDS.items() if find_spec(module) is None]
PAGE = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"spark-pipelines needs {', '.join(MISSING)}"),
]


@only_long("two JVMs")
@pytest.mark.timeout(900)
def test_the_commands_of_the_page_run_and_show_what_they_say(activated, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_TESTING", "1")  # Spark Connect takes a free port, and not always the same
    (commands,) = blocks("bash", PAGE)
    ran: list[subprocess.CompletedProcess[str]] = []

    def run() -> int:
        shutil.rmtree(tmp_path / "shop", ignore_errors=True)
        done = subprocess.run(
            ["bash", "-euc", commands], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
        )
        ran.append(done)
        return done.returncode

    run_until(0, run, lambda: ran[-1].stderr)
    done = ran[-1]
    assert "Run is COMPLETED" in done.stdout
    thanks = ["thank you for cake", "thank you for milk", "thank you for tea"]
    assert sorted(done.stdout.splitlines()[-3:]) == thanks
    assert sorted(value for _, value in read(tmp_path / "shop", "thanks")) == thanks


@only_long("JVMs that are killed")
@pytest.mark.soak
@pytest.mark.timeout(600 + 100 * KILLS)
def test_a_killed_run_is_made_up_for_and_a_full_refresh_writes_nothing_twice(tmp_path):
    seed = int(os.environ.get("PYLOG_SEED", str(random.SystemRandom().randrange(10_000))))
    print(prove(tmp_path, kills=KILLS, seed=seed))
