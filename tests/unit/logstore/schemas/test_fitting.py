"""A caller's columns take the types of the topic if nothing is lost."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from logstore.errors import InvalidRecordError
from logstore.schemas import ddl
from logstore.schemas.fitting import as_columns, fitted
from logstore.schemas.misfits import UnwritableError

NAIVE, ZONED = pa.timestamp("us"), pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("given", "kind", "found"),
    [
        (pa.array([1, None]), pa.int8(), [1, None]),
        (pa.array([1.0, None]), pa.int64(), [1, None]),
        (pa.array([7]), pa.float64(), [7.0]),
        (pa.array([7]), pa.decimal128(10, 2), [Decimal("7.00")]),
        (pa.array([Decimal("1.5")]), pa.decimal128(10, 2), [Decimal("1.50")]),
        (pa.array(["a"], pa.large_string()), pa.string(), ["a"]),
        (pa.array(["a"]).dictionary_encode(), pa.string(), ["a"]),
        (pa.array([b"ab"], pa.binary(2)), pa.binary(), [b"ab"]),
        (pa.array([0], pa.timestamp("ns", tz="Asia/Tokyo")), ZONED, [datetime(1970, 1, 1, tzinfo=UTC)]),
        (pa.array([0], NAIVE), ZONED, [datetime(1970, 1, 1, tzinfo=UTC)]),
        (pa.nulls(2), pa.string(), [None, None]),
        (pa.array([[1], None]), pa.list_(pa.field("element", pa.int32())), [[1], None]),
        (pa.array([{"a": 1}]), pa.struct([("a", pa.int8())]), [{"a": 1}]),
        (pa.array([{"a": 1}]), pa.struct([("a", pa.int8()), ("b", pa.string())]), [{"a": 1, "b": None}]),
    ],
    ids=str,
)
def test_what_loses_nothing_is_converted(given, kind, found):
    column = fitted(given, pa.field("x", kind))
    assert column.type == kind
    assert column.to_pylist() == found


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (pa.array([1, 300, 400]), pa.int8(), "row 1: x: 300 does not fit tinyint"),
        (pa.array([1.0, 2.0, 1.5]), pa.int64(), "row 2: x: 1.5 does not fit bigint"),
        (pa.array([Decimal("1.555")]), pa.decimal128(10, 2), r"row 0: x: 1.555 does not fit decimal\(10,2\)"),
        (pa.array([2**62], pa.int64()), pa.decimal128(10, 2), "row 0: x: 4611686018427387904 does not fit"),
        (pa.array([0, 1], pa.timestamp("ns")), NAIVE, r"row 1: x: .* does not fit"),
        (pa.array([[1], [300]]), pa.list_(pa.int8()), r"row 1: x: \[300\] does not fit"),
    ],
    ids=str,
)
def test_a_value_that_would_lose_something_is_refused_with_its_row(given, kind, message):
    with pytest.raises(UnwritableError, match=message):
        fitted(given, pa.field("x", kind))


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (pa.array(["1"]), pa.int64()),
        (pa.array([1]), pa.string()),
        (pa.array([1.5]), pa.decimal128(10, 2)),
        (pa.array([Decimal(1)]), pa.float64()),
        (pa.array([b"a"]), pa.string()),
        (pa.array([True]), pa.int8()),
        (pa.array([0], ZONED), NAIVE),
        (pa.array([{"b": 1}]), pa.struct([("a", pa.int8())])),
        (pa.array([["a"]]), pa.list_(pa.int8())),
    ],
    ids=str,
)
def test_a_column_of_another_kind_is_refused(given, kind):
    with pytest.raises(InvalidRecordError, match=r"column 'x' is .*, and the topic has"):
        fitted(given, pa.field("x", kind))


FIELDS = ddl.parse("n int, d decimal(10,2), m map<string, int>, l array<int>, at timestamp, s struct<a: int>")
NAMES = [field.name for field in FIELDS]


@pytest.mark.parametrize(
    "row",
    [
        {"n": 1, "d": 2, "m": [("a", 1)], "l": [1, None], "at": datetime(2024, 1, 1, tzinfo=UTC), "s": {"a": None}},
        {"d": Decimal("1.5"), "l": []},
        {},
    ],
    ids=str,
)
def test_rows_of_python_become_columns(row):
    table = as_columns([row, {}], FIELDS)
    assert table.num_rows == 2
    columns = {
        name: fitted(table.column(name).combine_chunks(), FIELDS[i]) for i, name in enumerate(NAMES) if name in row
    }
    assert {name: column.to_pylist() for name, column in columns.items()} == {
        name: [row[name], None] for name in columns
    }


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"n": "x"}, "column 'n' is string, and the topic has int"),
        ({"d": 1.5}, r"row 1: d: '1\.5' is no decimal\(10,2\)"),
        ({"m": {"a": "x"}}, "row 1: m: "),
        ({"at": datetime(2024, 1, 1)}, "row 1: at: a datetime needs a time zone"),  # noqa: DTZ001
        ({"s": {"b": 1}}, "column 's' is struct<b bigint>"),
        ({"n": 2**40}, "row 1: n: 1099511627776 does not fit int"),
        ({"n": 2**70}, "row 1: n: '1180591620717411303424' is no int"),
    ],
    ids=str,
)
def test_a_value_of_python_that_does_not_fit_is_refused(row, message):
    [name] = row
    with pytest.raises(InvalidRecordError, match=message):
        fitted(as_columns([{}, row], FIELDS).column(name).combine_chunks(), FIELDS[NAMES.index(name)])
