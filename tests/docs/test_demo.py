"""`pylog demo` as it is, in a process of its own: with --long. Some of it, always: tests/spark/test_demo.py."""

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.spark.test_demo import ALL, check, leave_as_an_earlier_run
from tests.support.repeats import only_long


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(700)
@only_long("all flights")
def test_the_demo_does_what_it_says_with_all_flights(tmp_path, variables, jvm_classes):
    path = tmp_path / "a store"
    leave_as_an_earlier_run(path)
    classes = tmp_path / jvm_classes.name
    variables["SPARK_HOME"] = str(Path(pyspark.__file__).parent)  # the classes are known by jars that stay
    variables["SPARK_SUBMIT_OPTS"] += f" -XX:ArchiveClassesAtExit={classes} -Xlog:disable"
    done = subprocess.run(
        [sys.executable, "-c", "from datasource.demo import cli; cli.demo()", "--path", str(path), "--output", "json"],
        cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check(done.stdout, done.stderr, path, ALL)
    if classes.exists():  # not every Java can
        classes.rename(jvm_classes)
