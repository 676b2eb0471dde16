"""Fixtures for the tests of programs that use pylog, or any client of Kafka: pytest loads them by itself.

`pylog_store` is an empty store of the test's own, `pylog_cluster` brokers for the whole session, `pylog_stream` makes
streaming queries that run micro-batch by micro-batch. Nothing of pylog is imported before a test asks for one of them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from datasource import SteppedStream
    from logstore import LogStore
    from replication.local_cluster import LocalCluster

__all__ = ["pylog_cluster", "pylog_store", "pylog_stream", "pytest_addoption", "pytest_runtest_teardown"]

_running: pytest.StashKey[LocalCluster] = pytest.StashKey()


class Streams(Protocol):
    """A function that makes queries: see `datasource.SteppedStream`. Without a checkpoint it is below `tmp_path`."""

    def __call__(
        self,
        query: DataFrame | DataStreamWriter,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        output_mode: str = "append",
    ) -> SteppedStream: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    """Settings for pytest.ini or pyproject.toml."""
    parser.addini("pylog_brokers", "how many brokers pylog_cluster has", default="1")
    parser.addini("pylog_broker_settings", "KEY=VALUE, one a line: settings of these brokers", type="linelist")


@pytest.fixture
def pylog_store(tmp_path: Path) -> Iterator[LogStore]:
    """A store that holds nothing yet, in a directory below `tmp_path`; it is closed after the test."""
    import logstore

    with logstore.open(tmp_path / "pylog") as store:
        yield store


@pytest.fixture(scope="session")
def pylog_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Running brokers, each a process of its own. `bootstrap` is their address, `kill_leader` a fault.

    They serve all tests of the session (with pytest-xdist: of one worker), so tests take topics of their own. After
    each test its faults end: all brokers are up, and reach each other.
    """
    try:
        from replication.local_cluster import LocalCluster
    except ModuleNotFoundError as error:
        pytest.fail(f'pylog_cluster needs {error.name}: pip install "pyspark-pylog[cluster]"', pytrace=False)
    brokers: str = request.config.getini("pylog_brokers")
    if not brokers.isdecimal() or not int(brokers):
        pytest.fail(f"pylog_brokers = {brokers}: it must be a number of brokers from 1 on", pytrace=False)
    settings = dict(_setting(line) for line in request.config.getini("pylog_broker_settings"))
    with LocalCluster(int(brokers), tmp_path_factory.mktemp("pylog-cluster"), settings=settings) as cluster:
        request.config.stash[_running] = cluster
        yield cluster
        del request.config.stash[_running]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """End the faults of the test that is over, before the next one begins."""
    try:
        return (yield)
    finally:
        cluster = item.config.stash.get(_running, None)
        if cluster is not None and "pylog_cluster" in getattr(item, "fixturenames", ()):
            cluster.mend()


@pytest.fixture
def pylog_stream(tmp_path: Path) -> Streams:
    """A function that makes a streaming query whose `step` runs exactly one micro-batch, from its checkpoint."""
    from datasource import SteppedStream

    numbers = itertools.count(1)

    def make(
        query: DataFrame | DataStreamWriter,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        output_mode: str = "append",
    ) -> SteppedStream:
        where = checkpoint or tmp_path / f"checkpoint-{next(numbers)}"
        return SteppedStream(query, where, output_mode=output_mode)

    return make


def _setting(line: str) -> tuple[str, str]:
    key, equals, value = line.partition("=")
    if not equals:
        pytest.fail(f"pylog_broker_settings: {line!r} is not of the form KEY=VALUE", pytrace=False)
    return key.strip(), value.strip()
