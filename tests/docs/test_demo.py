"""`pylog demo` in a process of its own: with --long; all flights: --soak. A few, always: tests/spark/test_demo.py."""

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from datasource.demo.run import RECORDS_PER_TRIGGER
from tests.spark.test_demo import ALL, check, leave_as_an_earlier_run
from tests.support.repeats import only_long, soaked

FLIGHTS = soaked(2 * RECORDS_PER_TRIGGER, ALL)
DEMO = f"""
from datasource.demo import cli, run
load = run.load_flights
run.load_flights = lambda: load().slice(0, {FLIGHTS})
cli.demo()
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.soak
@only_long("a JVM")
def test_the_demo_does_what_it_says_in_a_process_of_its_own(tmp_path, variables, jvm_classes):
    path = tmp_path / "a store"
    leave_as_an_earlier_run(path)
    classes = tmp_path / jvm_classes.name
    variables["SPARK_HOME"] = str(Path(pyspark.__file__).parent)  # the classes are known by jars that stay
    variables["SPARK_SUBMIT_OPTS"] += f" -XX:ArchiveClassesAtExit={classes} -Xlog:disable"
    done = subprocess.run(
        [sys.executable, "-c", DEMO, "--path", str(path), "--output", "json"],
        cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check(done.stdout, done.stderr, path, FLIGHTS, batches=-(-FLIGHTS // RECORDS_PER_TRIGGER))
    if classes.exists():  # not every Java can
        classes.rename(jvm_classes)
