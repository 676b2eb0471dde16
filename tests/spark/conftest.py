"""One local Spark for all tests here, and a log to fill."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import logstore
from datasource import spark_session

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores, and each task may be tried three times."""
    with pytest.MonkeyPatch.context() as patch:  # so that Java finds the daemon, wherever pytest was started
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        session = start()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def start() -> SparkSession:
    return spark_session(
        master="local[2,3]",
        app_name="pylog-tests",
        **{
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.showConsoleProgress": False,
            "spark.sql.streaming.stopTimeout": "30s",
        },
    )


class Topics:
    """A store directory, seen from the side that is not Spark."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        with logstore.open(self.path) as store:
            store.create_topic(
                topic, partitions=partitions, config={k.replace("_", "."): v for k, v in config.items()}
            )

    def append(self, topic: str, values: list[str], **columns: object) -> None:
        with logstore.open(self.path) as store:
            store.append(topic, pa.table({"value": values, **columns}))

    def values(self, topic: str) -> list[str]:
        """All values, partition by partition."""
        with logstore.open(self.path, mode="r") as store:
            return [
                value.decode()
                for partition in range(store.topic(topic).partitions)
                for value in store.read(topic, partition=partition).read_all()["value"].to_pylist()
            ]

    def ends(self, topic: str) -> list[int]:
        with logstore.open(self.path, mode="r") as store:
            return [extent.end for extent in store.offsets(topic).values()]


@pytest.fixture
def topics(tmp_path: Path) -> Topics:
    return Topics(tmp_path / "log")


@pytest.fixture
def read(spark: SparkSession, topics: Topics):
    def load(schema: str | None = None, **options: object) -> DataFrame:
        reader = spark.read.format("pylog").option("path", topics.path).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    return load


@pytest.fixture
def write(topics: Topics):
    def save(frame: DataFrame, mode: str | None = "append", **options: object) -> None:
        writer = frame.write.format("pylog").option("path", topics.path).options(**options)
        (writer.mode(mode) if mode else writer).save()

    return save
