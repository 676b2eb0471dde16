"""The files of a tiered table: which day a record belongs to."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import logstore
from datasource.delta.parquet import FIRST_DAY, LAST_DAY, OffsetSlice, days, write_piece
from datasource.delta.storage import TableDirectory
from datasource.topics.locations import Location
from logstore.errors import DiskFullError
from tests.unit.logstore.store.test_full_disk import small_file_system

DAY_US = 86_400_000_000


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3 * DAY_US, 3 * DAY_US)))
def test_every_moment_has_a_day_that_delta_can_write(moments):
    found = days(pa.array(moments, pa.timestamp("us", tz="UTC"))).cast(pa.int32()).to_pylist()
    assert found == [min(max(moment // DAY_US, FIRST_DAY), LAST_DAY) for moment in moments]


def test_a_full_disk_is_named_with_the_file_and_the_way_out(tmp_path):
    with logstore.open(tmp_path / "log") as store:
        store.create_topic("t")
        store.append("t", {"value": [Random(n).randbytes(1 << 18) for n in range(8)]})
    table = tmp_path / "disk"
    with small_file_system(table, "1m"):
        location = Location(str(tmp_path / "log"))
        piece = OffsetSlice(location=location, topic="t", partition=0, start=0, end=8, table=TableDirectory(table))
        with pytest.raises(
            DiskFullError, match=rf"^{table}/date=.*: cannot write: .*No space left.*; free some space$"
        ):
            write_piece(piece)
        assert not list(table.rglob("*.parquet")), "what was written is removed"
