"""conf/: what is written down is what `spark_session()` sets (that Spark takes it: tests/spark/test_jobs.py)."""

from pathlib import Path

from datasource.session import SETTINGS

CONF = Path(__file__).parents[2] / "conf"


def written() -> dict[str, str]:
    lines = (CONF / "spark-defaults.conf").read_text().splitlines()
    return dict(line.split() for line in lines if line.strip() and not line.startswith("#"))


def test_the_written_defaults_are_those_of_spark_session():
    assert written() == SETTINGS
