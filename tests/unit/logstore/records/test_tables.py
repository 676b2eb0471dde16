"""The rows of an append, from whichever library they come."""

from datetime import UTC, datetime

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import logstore
from logstore.errors import InvalidRecordError
from logstore.records.tables import as_arrow

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
COLUMNS = {"key": ["a", None, "c"], "value": ["x", "y", None]}
ROWS = [{"key": "a", "value": "x"}, {"value": "y"}, {"key": "c"}]


@pytest.mark.parametrize(
    "data",
    [
        pa.table(COLUMNS),
        pa.record_batch(COLUMNS),
        pa.RecordBatchReader.from_batches(pa.table(COLUMNS).schema, pa.table(COLUMNS).to_batches()),
        pd.DataFrame(COLUMNS, index=[7, 8, 9]),
        pl.DataFrame(COLUMNS),
        COLUMNS,
        ROWS,
        tuple(ROWS),
    ],
    ids=["table", "batch", "stream", "pandas", "polars", "columns", "rows", "tuple of rows"],
)
def test_rows_of_any_library_are_stored_alike(tmp_path, data):
    with logstore.open(tmp_path / "data") as store:
        store.create_topic("t", partitions=1)
        store.append("t", data)
        found = store.read("t", partition=0, columns=["key", "value"]).read_all().to_pylist()
    assert found == [
        {"key": b"a", "value": b"x"},
        {"key": None, "value": b"y"},
        {"key": b"c", "value": None},
    ]


def test_a_dict_is_one_row_if_its_value_is():
    row = {"key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"1"}], "timestamp": WHEN}
    assert as_arrow(row).to_pylist() == [row]
    assert as_arrow({"key": ["k"], "value": [b"v"]}).to_pylist() == [{"key": "k", "value": b"v"}]
    assert as_arrow({"key": "gone"}).num_rows == 1


def test_arrow_is_not_copied():
    table = pa.table(COLUMNS)
    assert as_arrow(table) is table


def test_no_rows_are_none():
    for nothing in ([], {"value": []}):
        assert as_arrow(nothing).num_rows == 0


@pytest.mark.parametrize("data", [{}, [{}], {"key": "k"}, [{"key": "k"}], {"key": ["k"]}])
def test_rows_without_a_value_are_refused(tmp_path, data):
    with logstore.open(tmp_path / "data") as store:
        store.create_topic("t")
        with pytest.raises(InvalidRecordError):
            store.append("t", data)
        assert store.offsets("t")[0].end == 0


@pytest.mark.parametrize("data", ["text", b"bytes", 7, None, ["a", "b"], [("k", "v")], iter(ROWS)])
def test_what_is_no_table_is_refused_with_the_ways_to_make_one(data):
    with pytest.raises(InvalidRecordError, match=r"give a pyarrow Table, a DataFrame .*, or a list of dicts"):
        as_arrow(data)


@pytest.mark.parametrize("data", [{"value": [1, "a"]}, {"value": ["a", "b"], "key": ["k"]}, {"value": 5, "key": []}])
def test_columns_that_do_not_fit_are_refused_with_the_reason(data):
    with pytest.raises(InvalidRecordError, match="the rows cannot be read as columns: "):
        as_arrow(data)
