"""conf/: what is written down is what `spark_session()` sets, and Spark takes it from there."""

import subprocess
import sys
from pathlib import Path

import pytest

from datasource.session import SETTINGS, java_home

CONF = Path(__file__).parents[2] / "conf"


def written() -> dict[str, str]:
    lines = (CONF / "spark-defaults.conf").read_text().splitlines()
    return dict(line.split() for line in lines if line.strip() and not line.startswith("#"))


def test_the_written_defaults_are_those_of_spark_session():
    assert written() == SETTINGS


@pytest.mark.spark
@pytest.mark.slow
def test_spark_takes_them_and_is_quiet(tmp_path, variables):
    code = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').getOrCreate()\n"
        f"print({{name: spark.conf.get(name) for name in {sorted(written())}}} == {written()})\n"
    )
    variables |= {"SPARK_CONF_DIR": str(CONF), "JAVA_HOME": str(java_home())}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "True"
    assert "WARN" not in done.stderr.replace("WARNING: Using incubator modules", "")
    assert "default log4j profile" not in done.stderr
