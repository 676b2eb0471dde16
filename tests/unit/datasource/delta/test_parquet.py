"""The files of a tiered table: which day a record belongs to."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from datasource.delta.parquet import FIRST_DAY, LAST_DAY, days

DAY_US = 86_400_000_000


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3 * DAY_US, 3 * DAY_US)))
def test_every_moment_has_a_day_that_delta_can_write(moments):
    found = days(pa.array(moments, pa.timestamp("us", tz="UTC"))).cast(pa.int32()).to_pylist()
    assert found == [min(max(moment // DAY_US, FIRST_DAY), LAST_DAY) for moment in moments]
