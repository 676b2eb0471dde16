"""Stores that are cheap to copy, for crash points."""

import random
import uuid

import pytest

from logstore.store import disk_reserve
from logstore.store.transactions import journal


@pytest.fixture
def _small(monkeypatch):
    """Little to copy per crash point, a journal that is replaced, and names that are the same in every run."""
    dice = random.Random(1)
    monkeypatch.setattr(disk_reserve, "RESERVE_BYTES", 4_096)
    monkeypatch.setattr(journal, "JOURNAL_BYTES", 2_000)
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=dice.getrandbits(128), version=4))
