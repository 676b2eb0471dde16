"""Documents that are read at once are read as one after the other, and those that are written as most are all read."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.schemas import conversion, flat
from tests.support.repeats import soaked, times

FIELDS = [
    pa.field("n", pa.int64()),
    pa.field("small", pa.int8()),
    pa.field("f", pa.float64()),
    pa.field("s", pa.string()),
    pa.field("b", pa.bool_()),
    pa.field("day", pa.date32()),
    pa.field("at", pa.timestamp("us", tz="UTC")),
    pa.field("local", pa.timestamp("us")),
    pa.field("d", pa.decimal128(10, 2)),
    pa.field("part", pa.decimal128(2, 2)),
]
KINDS = {f.name: f.type for f in FIELDS}


def quoted(values):
    return st.builds('"{}"'.format, values)


digits = st.one_of(
    st.integers(0, 10**20).map(str), st.sampled_from(["0", "127", "128", str(2**63 - 1), str(2**63), "1" + "0" * 310])
)
fractions = st.sampled_from(["", "", ".", ".0", ".5", ".05", ".250", ".12345678901234567890", "." + "0" * 290 + "1"])
exponents = st.sampled_from(["", "", "e2", "E-2", "e+22", "e-23", "e300", "e-300", "e-400", "e", "e1x"])
numbers = st.builds("{}{}{}{}".format, st.sampled_from(["", "", "-", "+", "0"]), digits, fractions, exponents)
days = st.one_of(
    st.dates().map(str),
    st.builds("{:04d}-{:02d}-{:02d}".format, st.integers(0, 9999), st.integers(0, 13), st.integers(0, 32)),
    st.sampled_from(["2023-02-29", "1900-02-29", "2000-02-29", "0002-01-01", "9998-12-31", "10000-01-01", "20240229"]),
)
clocks = st.one_of(
    st.builds("{}{}".format, st.sampled_from("T xt"), st.times().map(str)),
    st.sampled_from(["", "T10", "T10:00", "T24:00:00", "T10:60:00", "T10:00:60", "T10:00:00.", "T10:00:00.1234567"]),
)
zones = st.sampled_from(["", "", "Z", "+02:00", "-11:59", "-0230", "+02", "+24:00", "+00:60", "z", " "])
moments = st.builds("{}{}{}".format, days, clocks, zones).filter(lambda text: text[:4] not in ("0001", "9999"))
texts = st.one_of(
    st.text(max_size=6).map(json.dumps),
    st.text(max_size=6).map(lambda text: json.dumps(text, ensure_ascii=False)),
    quoted(st.one_of(numbers, days, moments)),
    st.sampled_from(
        ['"\\/\\b\\f\\r\\u00e9"', '"\\ud83d\\ude00"', '"\\ud83d\\u0041"', '"\\ud83dx"', '"\\udc00"', '"\\x"', '"\t"']
    ),
    st.sampled_from(['"\\u12', '"\\', '"abc', '"\\u12g4"', '""', '" 1.5"', '"007"']),
)
words = st.sampled_from(["null", "true", "false", "NaN", "Infinity", "nul", "nulll", "truex", "'x'", "-", "", "[", "{"])
brackets = st.builds(lambda a, b: "[" * a + "]" * b, st.sampled_from([1, 60, 61]), st.sampled_from([1, 60, 61]))
scalars = st.one_of(numbers, texts, words)
members = st.deferred(lambda: st.builds("{}{}{}".format, quoted(st.text("abk\\", max_size=2)), colons, anything))
commas, colons = st.sampled_from([",", " ,\n", ", ", ""]), st.sampled_from([":", ": ", " :\t", ""])
anything = st.recursive(
    st.one_of(scalars, brackets),
    lambda inner: st.one_of(
        st.builds(lambda items, comma: f"[{comma.join(items)}]", st.lists(inner, max_size=3), commas),
        st.builds(
            lambda items, comma, colon: "{" + comma.join(f'"k"{colon}{item}' for item in items) + "}",
            st.lists(inner, max_size=3),
            commas,
            colons,
        ),
    ),
    max_leaves=6,
)
FITTING = {
    "n": st.integers(-(2**63), 2**63 - 1).map(str),
    "small": st.integers(-128, 127).map(str),
    "f": st.floats(allow_nan=False, allow_infinity=False).map(repr),
    "s": st.text().map(json.dumps),
    "b": st.sampled_from(["true", "false"]),
    "day": quoted(days),
    "at": quoted(moments),
    "local": quoted(moments),
    "d": st.one_of(numbers, quoted(numbers)),
    "part": st.sampled_from(["0", "0.05", "-0.99", '"0.5"', "1.5", "0.005"]),
}
pairs = st.one_of(
    st.sampled_from(list(FITTING)).flatmap(lambda name: st.tuples(st.just(f'"{name}"'), FITTING[name])),
    st.tuples(st.sampled_from([*map(json.dumps, FITTING), '"more"', '"\\u006e"', '"no']), anything),
)
objects = st.builds(
    lambda found, comma, colon: "{" + comma.join(name + colon + value for name, value in found) + "}",
    st.lists(pairs, max_size=6),
    commas,
    colons,
)
rows = st.one_of(
    objects.map(lambda text: text.encode(errors="surrogatepass")),
    st.builds("{}{}".format, objects, st.sampled_from([" ", "{}", ",", "\0"])).map(str.encode),
    st.builds(lambda text, cut: text.encode(errors="replace")[:cut], objects, st.integers(0, 60)),
    st.binary(max_size=4).map(lambda raw: b'{"s":"' + raw + b'"}'),
    st.none(),
)


def shown(array):
    return list(map(repr, array.to_pylist()))  # to tell -0.0 from 0.0


@pytest.mark.soak
@pytest.mark.timeout(4000)
@settings(max_examples=soaked(times(60, 500), 200_000))
@given(st.lists(rows, min_size=1, max_size=12))
def test_a_row_that_is_read_at_once_is_as_if_it_were_read_alone(found):
    values = pa.array(found, pa.binary())
    columns, is_read = flat.read(values, FIELDS)
    expected = conversion.parse_each(values.filter(pa.array(is_read)), FIELDS)
    assert not expected.reasons
    for column, other in zip(columns, expected.columns, strict=True):
        column.validate(full=True)
        assert shown(column) == shown(other)


PLUS_TWO = timezone(timedelta(hours=2))
USUAL = [
    ("n", "0", 0),
    ("n", "-9223372036854775807", -(2**63) + 1),
    ("n", "9223372036854775807", 2**63 - 1),
    ("small", "-127", -127),
    ("f", "-12.5", -12.5),
    ("f", "3", 3.0),
    ("f", "0.1234567890123456789", 0.1234567890123456789),
    ("f", "6.02e+23", 6.02e23),
    ("s", '""', ""),
    ("s", '"\u20ac"', "\u20ac"),
    ("s", r'"a\"\\\/\n\u00e9\ud83d\ude00"', 'a"\\/\n\u00e9\U0001f600'),
    ("b", "false", False),
    ("day", '"2024-02-29"', date(2024, 2, 29)),
    ("at", '"2024-01-31T10:20:30Z"', datetime(2024, 1, 31, 10, 20, 30, tzinfo=UTC)),
    ("at", '"2024-01-31 10:20:30.5+02:00"', datetime(2024, 1, 31, 10, 20, 30, 500_000, tzinfo=PLUS_TWO)),
    ("at", '"1969-12-31T23:59:59"', datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ("local", '"2024-01-31T10:20:30.000001"', datetime.fromisoformat("2024-01-31T10:20:30.000001")),
    ("d", "-12.3", Decimal("-12.30")),
    ("d", '"99999999.99"', Decimal("99999999.99")),
    ("part", "0.05", Decimal("0.05")),
    ("n", "null", None),
]


@pytest.mark.parametrize(("name", "text", "value"), USUAL)
def test_a_member_that_is_written_as_most_is_read_at_once(name, text, value):
    document = f'{{ "more" : [1.5e3, {{"a":"\\u12ab"}}, null], "{name}": 1e, "{name}" : {text} }}'
    values = pa.array([document.replace(f'"{name}": 1e, ', "").encode(), b"no", document.encode()])
    columns, is_read = flat.read(values, FIELDS)
    assert is_read.tolist() == [True, False, False]
    assert {f.name: column[0].as_py() for f, column in zip(FIELDS, columns, strict=True)} == {
        **dict.fromkeys(KINDS), name: value
    }  # fmt: skip


REFUSED = [
    b'{"s":"\xff"}',
    b'{"s":"\xed\xa0\x80"}',
    b'{"s":"\\ud800"}',
    b'{"s":"\t"}',
    b'{"s":"a}',
    b'{"small":128}',
    b'{"n":9223372036854775808}',
    b'{"n":01}',
    b'{"n":1.0}',
    b'{"n":"1"}',
    b'{"f":1e400}',
    b'{"f":.5}',
    b'{"b":truex}',
    b'{"day":"2023-02-29"}',
    b'{"at":"1900-02-29T10:20:30Z"}',
    b'{"at":"2024-01-31T24:00:00Z"}',
    b'{"local":"2024-01-31T10:20:30Z"}',
    b'{"d":1.234}',
    b'{"d":100000000.00}',
    b'{"d":"1.5}',
    b'{"part":1.5}',
    b'{"more":[1,]}',
    b'{"more":{"a" 1}}',
    b'{"n":1,}',
    b'{"n":1}x',
    b'{"n":1',
    b'[{"n":1}]',
]


@pytest.mark.parametrize("value", REFUSED)
def test_a_document_that_does_not_fit_is_not_read(value):
    columns, is_read = flat.read(pa.array([value, b'{"n":7}']), FIELDS)
    assert is_read.tolist() == [False, True]
    assert [column.to_pylist() for column in columns] == [[7], *[[None]] * (len(FIELDS) - 1)]


def test_many_documents_are_read_in_pieces(monkeypatch):
    values = pa.array([json.dumps({"n": i, "s": "x" * (i % 7)}).encode() if i % 5 else b"" for i in range(500)])
    whole = flat.read(values, FIELDS)
    monkeypatch.setattr(flat, "PIECE_BYTES", 1000)
    pieces = flat.read(values, FIELDS)
    assert pieces.columns == whole.columns
    assert np.array_equal(pieces.is_read, whole.is_read)
    assert pieces.columns[0].to_pylist() == [i for i in range(500) if i % 5]


@pytest.mark.parametrize(
    "field",
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("f", pa.float32()),
        pa.field("t", pa.timestamp("ms")),
        pa.field("s", pa.list_(pa.string())),
        pa.field("b", pa.binary()),
    ],
)
def test_columns_that_it_cannot_read_are_not_taken(field):
    assert flat.is_flat(FIELDS)
    assert not flat.is_flat([*FIELDS, field])
