"""Columns written as JSON are read again as they were, and what JSON cannot say is refused with its row."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.schemas import documents
from logstore.schemas.misfits import UnwritableError
from logstore.schemas.rendering import render

texts = st.one_of(st.text(max_size=6), st.text('"\\\n\x00\x1f\u2028\ud7ff😀 a', max_size=6))
whole_numbers = {kind: st.integers(-(2**bits), 2**bits - 1) for kind, bits in
                 ((pa.int8(), 7), (pa.int16(), 15), (pa.int32(), 31), (pa.int64(), 63))}  # fmt: skip
SCALARS = {
    **whole_numbers,
    pa.float32(): st.floats(width=32, allow_nan=False, allow_infinity=False),
    pa.float64(): st.floats(allow_nan=False, allow_infinity=False),
    pa.string(): texts,
    pa.binary(): st.binary(max_size=8),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", tz="UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.decimal128(4, 2): st.decimals(-99, 99, places=2),
    pa.decimal128(38, 18): st.decimals(-(10**19), 10**19, places=18),
    pa.decimal128(38, 0): st.integers(-(10**37), 10**37).map(Decimal),
}


def nullable(values, is_nullable=True):
    return st.one_of(st.none(), values) if is_nullable else values


def lists(inner):
    kind, values = inner
    return pa.list_(pa.field("element", kind)), st.lists(nullable(values), max_size=3)


def maps(inner):
    kind, values = inner
    return pa.map_(pa.string(), kind), st.dictionaries(texts, nullable(values), max_size=3).map(lambda d: [*d.items()])


def structs(members):
    fields = [pa.field(name, kind, is_nullable) for name, ((kind, _), is_nullable) in members.items()]
    values = {name: nullable(values, is_nullable) for name, ((_, values), is_nullable) in members.items()}
    return pa.struct(fields), st.fixed_dictionaries(values)


# (type, strategy of its values)
types = st.recursive(
    st.sampled_from(list(SCALARS.items())),
    lambda inner: st.one_of(
        inner.map(lists),
        inner.map(maps),
        st.dictionaries(texts, st.tuples(inner, st.booleans()), max_size=3).map(structs),
    ),
    max_leaves=4,
)


@st.composite
def tables(draw):
    members = draw(st.dictionaries(texts, st.tuples(types, st.booleans()), min_size=1, max_size=4))
    kind, values = structs(members)
    rows = draw(st.lists(values, min_size=1, max_size=5))
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in kind]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(kind)))


def check_round_trip(table):
    values = render(table)
    assert values.type == pa.binary()
    for value in values.to_pylist():
        json.loads(value, parse_constant=pytest.fail)
    found = documents.parse(values, list(table.schema))
    assert not found.reasons
    for field, ours, theirs in zip(table.schema, found.columns, table.columns, strict=True):
        assert ours.equals(theirs), field


@given(tables())
def test_what_is_written_is_read_again(table):
    check_round_trip(table)


@given(tables(), st.integers(0, 4))
def test_a_slice_is_written_as_its_rows_alone(table, start):
    assert render(table.slice(start)).to_pylist() == render(table).to_pylist()[start:]


@pytest.fixture
def _in_bulk(monkeypatch):
    monkeypatch.setattr(documents, "FEW", 1)


@pytest.mark.usefixtures("_in_bulk")
@given(tables())
def test_what_is_written_is_read_again_in_bulk(table):
    check_round_trip(pa.Table.from_batches([table] * 3).combine_chunks().to_batches()[0])


def column(kind, *values, nullable=True):
    return pa.RecordBatch.from_arrays([pa.array(values, kind)], schema=pa.schema([pa.field("x", kind, nullable)]))


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.string(), 'a"\\\n\t\x01\x7f\u2028é', '"a\\"\\\\\\n\\t\\u0001\x7f\u2028é"'),
        (pa.float64(), 1e300, "1e+300"),
        (pa.float64(), -0.0, "-0.0"),
        (pa.float64(), 5e-324, "5e-324"),
        (pa.float32(), 0.1, "0.1"),
        (pa.int64(), -(2**63), "-9223372036854775808"),
        (pa.decimal128(10, 2), Decimal("1.50"), "1.50"),
        (pa.date32(), date(1, 1, 1), '"0001-01-01"'),
        (pa.timestamp("us"), datetime.max, '"9999-12-31T23:59:59.999999"'),  # noqa: DTZ901
        (pa.timestamp("us", tz="UTC"), datetime(1969, 12, 31, 23, tzinfo=UTC), '"1969-12-31T23:00:00.000000Z"'),
        (pa.binary(), b"\xff\xff", '"//8="'),
        (pa.bool_(), False, "false"),
        (pa.list_(pa.string()), ["a", None], '["a",null]'),
        (pa.list_(pa.int8()), [], "[]"),
        (pa.map_(pa.string(), pa.int8()), [('"', 1), ("b", None)], '{"\\"":1,"b":null}'),
        (pa.struct([("a", pa.int8()), ("b", pa.int8())]), {"a": None, "b": 2}, '{"b":2}'),
        (pa.struct([]), {}, "{}"),
    ],
    ids=str,
)
def test_each_type_has_one_text(kind, value, text):
    assert render(column(kind, value, None)).to_pylist() == [b'{"x":%s}' % text.encode(), b"{}"]


def test_signs_of_zero_are_kept():
    table = column(pa.float64(), -0.0, 0.0)
    for values in (render(table), pa.concat_arrays([render(table)] * 50)):
        found = documents.parse(values, list(table.schema)).columns[0].to_pylist()
        assert [str(number) for number in found] == ["-0.0", "0.0"] * (len(values) // 2)


NOT_NULL = pa.struct([pa.field("a", pa.int8(), nullable=False)])


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (pa.float64(), [1.0, None, float("nan")], "row 2: x: NaN is no JSON"),
        (pa.float32(), [1.0, -float("inf"), float("nan")], "row 1: x: Infinity is no JSON"),
        (pa.list_(pa.float64()), [None, [], [1.0], [2.0, float("inf")]], "row 3: x[1]: Infinity is no JSON"),
        (pa.map_(pa.string(), pa.float64()), [[], [("a", float("nan"))]], "row 1: x[0]: NaN is no JSON"),
        (pa.struct([("a", pa.list_(pa.float64()))]), [None, {"a": [float("nan")]}], "row 1: x.a[0]: NaN is no JSON"),
        (pa.list_(pa.struct([("a", pa.float64())])), [[None], [{"a": float("nan")}]], "row 1: x[0].a: NaN is no JSON"),
        (pa.date32(), [0, 3_000_000], "row 1: x: its year is none of 1 to 9999"),
        (pa.timestamp("us"), [0, -(2**62)], "row 1: x: its year is none of 1 to 9999"),
        (NOT_NULL, [None, {"a": 1}, {"a": None}], "row 2: x.a: missing, and declared NOT NULL"),
        (pa.list_(pa.field("e", pa.int8(), False)), [[1], [1, None]], "row 1: x[1]: missing, and declared NOT NULL"),
    ],
    ids=str,
)
def test_what_json_cannot_say_is_refused_with_its_row(kind, values, message):
    with pytest.raises(UnwritableError) as error:
        render(column(kind, *values))
    assert str(error.value) == message


def test_a_null_that_is_declared_not_null_is_refused():
    with pytest.raises(UnwritableError, match=r"row 1: x: missing, and declared NOT NULL"):
        render(column(pa.int64(), 1, None, nullable=False))


def test_bytes_that_are_no_text_are_refused():
    wrong = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
    )
    with pytest.raises(UnwritableError, match=r"row 1: x: not UTF-8"):
        render(pa.RecordBatch.from_arrays([wrong], ["x"]))
