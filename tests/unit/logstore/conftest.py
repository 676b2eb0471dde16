from pathlib import Path

import pytest

from logstore.env import Env
from tests.support.disk import Disk, StillClock


@pytest.fixture
def disk() -> Disk:
    """A disk in memory with the directory /store."""
    disk = Disk()
    disk.mkdir("/store")
    return disk


@pytest.fixture
def env(disk: Disk) -> Env:
    """A still clock and the disk in memory."""
    return Env(StillClock(), disk)


@pytest.fixture
def root() -> Path:
    return Path("/store")
