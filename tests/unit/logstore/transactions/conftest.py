from pathlib import Path

import pytest

import logstore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with logstore.open(tmp_path / "log") as store:
        store.create_topic("a", partitions=2)
        store.create_topic("b")
    return tmp_path / "log"


@pytest.fixture
def store(path):
    with logstore.open(path) as opened:
        yield opened
