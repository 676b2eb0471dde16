"""Builders for stores and rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import logstore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[logstore.LogStore]:
    with logstore.open(tmp_path / "store") as opened:
        yield opened


def rows(values: Sequence[str | bytes | None], **columns: object) -> pa.Table:
    return pa.table({"value": pa.array(values), **columns})
