"""JSON values as typed columns: what fits is kept exactly, what does not is refused with a reason."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.schemas.conversion import is_supported
from logstore.schemas.documents import parse

UTC_TIME = pa.timestamp("us", tz="UTC")


def column(kind, *texts, nullable=True):
    """The results of `{"x": TEXT}` each: the column, and the reasons by row. TEXT}` each: the column, and the reasons
    by row.
    """
    values = pa.array([b'{"x": %s}' % text.encode() for text in texts], pa.binary())
    parsed = parse(values, [pa.field("x", kind, nullable=nullable)])
    return parsed.columns[0].to_pylist(), parsed.reasons


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int64(), "9223372036854775807", 2**63 - 1),
        (pa.int8(), "-128", -128),
        (pa.float64(), "1", 1.0),
        (pa.float64(), "1e3", 1000.0),
        (pa.float64(), "1152921504606846977", float(2**60)),
        (pa.string(), '"\\u00e4 \\ud83d\\ude00"', "ä 😀"),
        (pa.bool_(), "true", True),
        (pa.date32(), '"2024-02-29"', date(2024, 2, 29)),
        (UTC_TIME, '"2024-01-01T02:00:00.5+02:00"', datetime(2024, 1, 1, 0, 0, 0, 500_000, UTC)),
        (UTC_TIME, '"2024-01-01 00:00:00"', datetime(2024, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us"), '"2024-01-01T00:00:00"', datetime(2024, 1, 1)),  # noqa: DTZ001
        (pa.decimal128(20, 2), "123456789012345678.25", Decimal("123456789012345678.25")),
        (pa.decimal128(4, 2), '"1.5"', Decimal("1.50")),
        (pa.binary(), '"AAH/"', b"\x00\x01\xff"),
        (pa.list_(pa.int32()), "[1, null, 3]", [1, None, 3]),
        (pa.struct([("a", pa.int64()), ("b", pa.string())]), '{"a": 1, "z": 2}', {"a": 1, "b": None}),
        (pa.map_(pa.string(), pa.int64()), '{"k": 1, "l": null}', [("k", 1), ("l", None)]),
        (pa.int64(), "null", None),
    ],
    ids=str,
)
def test_what_fits_its_type_is_kept_exactly(kind, text, value):
    assert is_supported(kind)
    assert column(kind, text) == ([value], {})


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (pa.int64(), '"12"', 'x: "12" is no bigint'),
        (pa.int64(), "1.0", "x: 1.0 is no bigint"),
        (pa.int64(), "true", "x: true is no bigint"),
        (pa.int64(), "9223372036854775808", "x: 9223372036854775808 does not fit bigint"),
        (pa.int8(), "128", "x: 128 does not fit tinyint"),
        (pa.float64(), '"1"', 'x: "1" is no double'),
        (pa.float64(), "NaN", "NaN is no JSON"),
        (pa.float64(), "1" + "0" * 400, "does not fit double"),
        (pa.string(), "5", "x: 5 is no string"),
        (pa.string(), '"\\ud800"', "does not fit string"),
        (pa.bool_(), "1", "x: 1 is no bool"),
        (pa.date32(), '"2023-02-29"', 'x: "2023-02-29" is no date'),
        (UTC_TIME, "1700000000000", "x: 1700000000000 is no timestamp"),
        (pa.timestamp("us"), '"2024-01-01T00:00:00Z"', "has a zone"),
        (pa.decimal128(4, 2), "1.234", "does not fit decimal(4,2)"),
        (pa.binary(), '"?"', 'x: "?" is no binary'),
        (pa.list_(pa.int32()), '[1, "a"]', 'x[1]: "a" is no int'),
        (pa.struct([("a", pa.int64())]), '{"a": []}', "x.a: [] is no bigint"),
        (pa.map_(pa.string(), pa.int64()), "[]", "x: [] is no object"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_with_a_reason(kind, text, reason):
    values, reasons = column(kind, text)
    assert values == []
    assert reason in reasons[0]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"x": 1} {"x": 2}', "not JSON"),
        (b"[1]", "not an object but [1]"),
        (b"null", "not an object but null"),
        (b'{"x": "\xff"}', "not UTF-8: byte 7"),
        (b'{"x": ' + b"[" * 100_000, "nested too deeply"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_value_that_is_no_json_object_is_refused(raw, reason):
    parsed = parse(pa.array([raw], pa.binary()), [pa.field("x", pa.string())])
    assert not parsed.good.size
    assert reason in parsed.reasons[0]


def test_a_tombstone_is_a_row_of_nulls():
    parsed = parse(pa.array([None], pa.binary()), [pa.field("x", pa.string())])
    assert (parsed.columns[0].to_pylist(), parsed.reasons) == ([None], {})


def test_a_missing_field_is_null_unless_it_is_declared_not_null():
    values = pa.array([b"{}", b'{"x": 1}'], pa.binary())
    assert parse(values, [pa.field("x", pa.int64())]).columns[0].to_pylist() == [None, 1]
    strict = parse(values, [pa.field("x", pa.int64(), nullable=False)])
    assert strict.columns[0].to_pylist() == [1]
    assert strict.reasons == {0: "x: missing, and declared NOT NULL"}


documents = st.fixed_dictionaries(
    {},
    optional={
        "n": st.one_of(st.integers(-(2**70), 2**70), st.text(max_size=3), st.none(), st.floats(allow_nan=False)),
        "s": st.one_of(st.text(max_size=3), st.integers(0, 5), st.none()),
    },
)


@given(st.lists(st.one_of(documents.map(json.dumps), st.sampled_from(["", "{", "[]", "7"])), max_size=30))
def test_every_row_is_either_good_and_right_or_has_a_reason(texts):
    fields = [pa.field("n", pa.int64()), pa.field("s", pa.string())]
    parsed = parse(pa.array([text.encode() for text in texts], pa.binary()), fields)
    assert sorted([*parsed.good, *parsed.reasons]) == list(range(len(texts)))
    for row, n, s in zip(parsed.good, *(c.to_pylist() for c in parsed.columns), strict=True):
        document = json.loads(texts[row])
        assert (n, s) == (document.get("n"), document.get("s"))
        assert type(n) in (int, type(None))
