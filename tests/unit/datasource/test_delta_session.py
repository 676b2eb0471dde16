"""`spark_session(delta=True)`: the settings that Delta Lake asks for, and where its jars come from."""

from __future__ import annotations

import builtins

import pytest
from pyspark.sql import SparkSession

from datasource.session import DELTA_CATALOG, DELTA_EXTENSION, DELTA_JARS, with_delta
from logstore import StorageError


@pytest.fixture
def without_package(monkeypatch):
    """A Python that has no package `delta`."""
    load = builtins.__import__

    def refuse(name, *rest):
        if name == "delta":
            raise ImportError(name)
        return load(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_named_jars_are_taken_and_nothing_is_downloaded(monkeypatch, without_package):
    monkeypatch.setenv(DELTA_JARS, "/jars/delta-spark.jar,/jars/delta-storage.jar")
    builder, conf = with_delta(SparkSession.Builder(), {"spark.jars": "/own.jar"})
    assert conf == {
        "spark.jars": "/jars/delta-spark.jar,/jars/delta-storage.jar,/own.jar",
        "spark.sql.extensions": DELTA_EXTENSION,
        "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
    }
    assert builder._options == {}


def test_own_extensions_are_kept(monkeypatch):
    monkeypatch.setenv(DELTA_JARS, "/delta.jar")
    _, conf = with_delta(SparkSession.Builder(), {"spark.sql.extensions": "my.Own"})
    assert conf["spark.sql.extensions"] == f"{DELTA_EXTENSION},my.Own"


def test_without_jars_and_package_one_line_says_what_to_do(monkeypatch, without_package):
    monkeypatch.delenv(DELTA_JARS, raising=False)
    with pytest.raises(StorageError, match=r'pip install "pyspark-pylog\[delta-spark\]".*PYLOG_DELTA_JARS'):
        with_delta(SparkSession.Builder(), {})


def test_the_package_names_the_jars_that_spark_downloads(monkeypatch):
    pytest.importorskip("delta", reason="the package delta-spark is not installed")
    monkeypatch.delenv(DELTA_JARS, raising=False)
    builder, conf = with_delta(SparkSession.Builder(), {"spark.jars.packages": "org.x:y:1"})
    packages = builder._options["spark.jars.packages"].split(",")
    assert "org.x:y:1" in packages
    assert any(package.startswith("io.delta:delta-spark") for package in packages)
    assert conf["spark.sql.extensions"] == DELTA_EXTENSION
