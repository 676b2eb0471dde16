"""Fixtures for the tests of programs that use pylog, or any client of Kafka: pytest loads them by itself.

`pylog_store` is an empty store of the test's own, `pylog_cluster` brokers for the whole session. Nothing of pylog is
imported before a test asks for one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from logstore import LogStore
    from replication.local_cluster import LocalCluster

__all__ = ["pylog_cluster", "pylog_store", "pytest_addoption"]


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
    """Running brokers, each a process of its own. `bootstrap` is their address; `kill` and `restart` are for faults.

    They serve all tests of the session (with pytest-xdist: of one worker), so tests take topics of their own.
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
        yield cluster


def _setting(line: str) -> tuple[str, str]:
    key, equals, value = line.partition("=")
    if not equals:
        pytest.fail(f"pylog_broker_settings: {line!r} is not of the form KEY=VALUE", pytrace=False)
    return key.strip(), value.strip()
