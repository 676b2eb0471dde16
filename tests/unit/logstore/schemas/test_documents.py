"""Many JSON documents at once are read as one after the other, to the row, the value and the reason."""

from __future__ import annotations

import base64
import json
from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.schemas import conversion, documents
from tests.support.repeats import soaked, times

FIELDS = [
    pa.field("n", pa.int64()),
    pa.field("small", pa.int8()),
    pa.field("f", pa.float64()),
    pa.field("half", pa.float32()),
    pa.field("s", pa.string()),
    pa.field("b", pa.bool_()),
    pa.field("day", pa.date32()),
    pa.field("at", pa.timestamp("us", tz="UTC")),
    pa.field("local", pa.timestamp("us")),
    pa.field("d", pa.decimal128(10, 2)),
    pa.field("list", pa.list_(pa.field("element", pa.date32()))),
    pa.field("in", pa.struct([("x", pa.int32()), ("at", pa.timestamp("us")), ("utc", pa.timestamp("us", tz="UTC"))])),
    pa.field("raw", pa.binary()),
    pa.field("map", pa.map_(pa.string(), pa.int64())),
    pa.field("deep", pa.list_(pa.map_(pa.string(), pa.struct([pa.field("x", pa.date32(), nullable=False)])))),
    pa.field("must", pa.struct([pa.field("x", pa.binary(), nullable=False), ("n", pa.decimal128(4, 1))])),
    pa.field("none", pa.struct([])),
]
NAMES = [f.name for f in FIELDS]


def named(key):
    """A key as it stands between quotes."""
    return key if "\\" in key else json.dumps(key)[1:-1]


def as_object(pairs):
    return "{" + ", ".join(f'"{named(key)}": {value}' for key, value in pairs) + "}"


digits = st.sampled_from(["0", "5", "9999", "9007199254740993", "9223372036854775808", "1" + "0" * 400, "1" * 4400])
numbers = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "", "-", "+", "0"]),
        digits,
        st.sampled_from(["", "", ".", ".0", ".25", ".250", ".12345678901234567890"]),
        st.sampled_from(["", "", "e2", "E-2", "e+400", "e-400", "e"]),
    ),
)
days = st.sampled_from(
    [
        "2024-02-29",
        "2023-02-29",
        "1900-02-29",
        "2000-02-29",
        "2024-04-31",
        "2024-08-31",
        "2024-13-01",
        "2024-01-00",
        "0000-01-01",
        "0001-01-01",
        "0099-01-01",
        "9999-12-31",
        "10000-01-01",
        "20240229",
        "2024-W01-1",
        "2024/01/01",
    ]
)
clocks = st.sampled_from(
    [
        "",
        "T00:00",
        " 23:59:59",
        "T23:60",
        "T10:00:00.",
        "T10:00:00.123456",
        "T10:0",
        "t10:00",
        "T1",
        "T10",
        "T24:00:00",
        "T10:00:60",
        "T10:00:00.5",
        "T10:00:00.1234567",
    ]
)
base64s = st.one_of(
    st.binary(max_size=7).map(lambda data: base64.b64encode(data).decode()),
    st.text("AB+/=-_\n", max_size=8),
    st.sampled_from(["A\\/==", "A\\u003d==", "AB==", "AAA\\n"]),
)
zones = st.sampled_from(
    ["", "Z", "+02:00", "-0230", "+02", "+24:00", "z", " ", "+00:00:30", "+23:59", "-23:60", "+2:00", "Z0"]
)
moments = st.builds("{}{}{}".format, days, clocks, zones)
texts = st.one_of(
    st.text(max_size=4).map(json.dumps),
    st.builds('"{}"'.format, st.one_of(moments, numbers, base64s)),
    st.sampled_from(
        ['"\\ud800"', '"\\udc00x"', '"\\ud83d\\ude00"', '"\\x"', '"\t"', '"\n"', '"\\u0000"', '" 1.5"', '"1_0"']
    ),
)
scalars = st.one_of(
    numbers,
    texts,
    st.sampled_from(["null", "true", "false", "NaN", "Infinity", "-Infinity", "nul", "'x'", "//", "{}", "[]"]),
)
keys = st.one_of(st.sampled_from(["a", "a", "b", "x", "n", "\\u0061", "\\ud800", ""]), st.text(max_size=2))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]"),
        st.lists(st.tuples(st.one_of(st.sampled_from([*NAMES, "x"]), keys.map(named)), inner), max_size=3).map(
            lambda pairs: "{" + ", ".join(f'"{key}": {value}' for key, value in pairs) + "}"
        ),
    ),
    max_leaves=4,
)
FITTING = {
    "n": st.integers(-(2**63), 2**63 - 1).map(str),
    "f": st.floats(allow_nan=False, allow_infinity=False).map(repr),
    "half": st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    "s": st.text(max_size=5).map(json.dumps),
    "day": st.one_of(st.dates(), days).map(lambda day: f'"{day}"'),
    "at": st.one_of(st.datetimes(), days).map(lambda at: f'"{at}Z"'),
    "local": st.one_of(st.datetimes(), days).map(lambda at: f'"{at}"'),
    "d": st.decimals(-(10**7), 10**7, places=2).map(str),
    "list": st.lists(st.dates().map(lambda day: f'"{day}"'), max_size=3).map(lambda found: f"[{','.join(found)}]"),
    "in": st.builds(
        '{{"x": {}, "at": "{}", "utc": "{}"}}'.format, st.integers(-(2**31), 2**31 - 1), st.datetimes(), moments
    ),
    "b": st.sampled_from(["true", "false"]),
    "small": st.integers(-128, 127).map(str),
    "raw": base64s.map('"{}"'.format),
    "map": st.lists(st.tuples(keys, st.integers(-(2**63), 2**63 - 1)), max_size=3).map(as_object),
    "deep": st.lists(
        st.lists(st.tuples(keys, st.one_of(st.just("null"), days.map('{{"x": "{}"}}'.format))), max_size=2).map(
            as_object
        ),
        max_size=3,
    ).map(lambda found: f"[{', '.join(found)}]"),
    "must": st.builds('{{"x": "{}", "n": {}}}'.format, base64s, numbers),
    "none": st.sampled_from(["{}", '{"x": 1}', "null"]),
}
members = st.one_of(
    st.sampled_from(NAMES).flatmap(lambda name: FITTING[name].map(lambda text: (name, text))),
    st.tuples(st.sampled_from([*NAMES, "more", "\\u006e"]), values),
)
objects = st.lists(members, max_size=4).map(
    lambda pairs: "{" + ",".join(f'"{name}":{text}' for name, text in pairs) + "}"
)
odd = st.sampled_from(
    ["", " ", "{", "}", "{}{}", "{} {}", "[]", "7", "\ufeff{}", "{}\n", "\n{}", "{,}", '{"n":1,}', "{}x"]
)
rows = st.one_of(
    objects.map(str.encode),
    st.builds(
        lambda text, at, byte: text[:at] + bytes([byte]) + text[at + 1 :],
        objects.map(str.encode),
        st.integers(0, 30),
        st.integers(0, 255),
    ),
    st.builds(lambda text, at: text[:at], objects.map(str.encode), st.integers(0, 30)),
    odd.map(str.encode),
    st.none(),
)


@pytest.fixture
def _small_blocks(monkeypatch):
    monkeypatch.setattr(documents, "FEW", 1)
    monkeypatch.setattr(documents, "BLOCK_ROWS", 5)


def same(found, expected):
    assert found.good.tolist() == expected.good.tolist()
    assert found.reasons == expected.reasons
    for field, ours, theirs in zip(FIELDS, found.columns, expected.columns, strict=True):
        assert ours.type == theirs.type == field.type
        assert ours.equals(theirs), field
        ours.validate(full=True)


@pytest.mark.soak
@pytest.mark.timeout(4000)
@pytest.mark.usefixtures("_small_blocks")
@settings(max_examples=soaked(times(50, 150), 20_000))
@given(st.lists(rows, min_size=1, max_size=20))
def test_every_row_is_read_as_if_it_were_alone(found):
    array = pa.array(found, pa.binary())
    same(documents.parse(array, FIELDS), conversion.parse_each(array, FIELDS))


GOOD = b'{"n": 1, "f": 0.5, "s": "a"}'


@pytest.mark.parametrize(
    "value",
    [
        b'{"f": NaN}',
        b'{"x": [-Infinity]}',
        b'{"x": -Infinity}',
        b'{"f": 1%s}' % (b"0" * 400),
        b'{"half": 1e300}',
        b'{"x": %s}' % (b"1" * 4400),
        b'{"x": %s%s}' % (b"[" * 5000, b"]" * 5000),
        b'{"x": "\xff"}',
        b"\xef\xbb\xbf{}",
        b'{"n": 2}{"n": 3}',
        b"",
        b'{"n": 2}\n{"n": 3}',
        b'{"n": 2',
        b'"n": 2}',
        b'{"day": 5}',
        b'{"day": "0000-01-01"}',
        b'{"at": "0000-12-31T23:00:00Z"}',
        b'{"list": ["0000-01-01"]}',
        b'{"local": "2024-01-01T00:00:00Z"}',
        b'{"in": {"x": 1, "at": "0000-01-01"}}',
        b'{"n": 2, "n": 3}',
        b'{"s": "{\\"}"}',
        b'{"s": "\\\\"}',
    ],
    ids=lambda value: value[:24].decode(errors="replace"),
)
def test_a_value_that_arrow_reads_otherwise_is_read_alone_and_leaves_its_neighbours_alone(value):
    array = pa.array([GOOD] * 70 + [value] + [GOOD] * 70, pa.binary())
    same(documents.parse(array, FIELDS), conversion.parse_each(array, FIELDS))


def test_two_documents_in_one_value_do_not_make_up_for_an_empty_one():
    array = pa.array([b"{}{}", b""] + [b'{"n": 2}'] * 100, pa.binary())
    same(documents.parse(array, FIELDS), conversion.parse_each(array, FIELDS))


@pytest.fixture
def alone(monkeypatch):
    """The counts of the rows that were read one after the other, call by call."""
    found = []

    def counted(values, fields):
        if len(values):
            found.append(len(values))
        return conversion.parse_each(values, fields)

    monkeypatch.setattr(documents, "parse_each", counted)
    return found


def test_documents_that_fit_are_never_read_one_by_one(alone):
    full = b"""{"n": -9223372036854775808, "small": 127, "f": -0.5e-3, "half": 1, "s": "{\\"a\\": [1}", "b":false,
        "day":"2024-02-29", "at": "0001-01-01T00:00:00Z","local":"2024-01-01 00:00:00", "d": "1.5",
        "list": ["2024-01-01"], "in": {"x": 1}, "more": [[{}], null], "\xc3\xa4" : true , "other":null}"""
    nulls = b"{" + b", ".join(b'"%s": null' % name.encode() for name in NAMES) + b"}"
    parsed = documents.parse(pa.array([full, nulls, b"{}", b"{ }", GOOD] * 100, pa.binary()), FIELDS)
    assert len(parsed.good) == 500
    assert not alone


def test_only_rows_that_look_bad_are_read_one_by_one(alone):
    bad = [
        b'{"n": 1',
        b'{"n": "misfit"}',
        b'{"small": 1.5}',
        b'{"small": 1000}',
        b'{"n": true}',
        b'{"b": 1}',
        b'{"s": []}',
        b'{"at": ""}',
        b'{"day": "yesterday"}',
        b'{"list": {}}',
        b'{"in": "x"}',
        b'{"f": "0.5"}',
        None,
    ]
    texts = [GOOD] * 10_000
    texts[:: 10_000 // len(bad) + 1] = bad
    parsed = documents.parse(pa.array(texts, pa.binary()), FIELDS)
    assert (len(parsed.good), len(parsed.reasons)) == (10_000 - len(bad) + 1, len(bad) - 1)
    assert alone == [len(bad)]
    assert np.all(np.diff(parsed.good) > 0)


def test_a_missing_member_that_must_be_there_looks_bad(alone):
    fields = [pa.field("n", pa.int64(), nullable=False), pa.field("s", pa.string())]
    parsed = documents.parse(pa.array([GOOD] * 500 + [b'{"s": "a"}', b'{"n": null}', b"{}"], pa.binary()), fields)
    assert set(parsed.reasons.values()) == {"n: missing, and declared NOT NULL"}
    assert alone == [3]


@pytest.mark.parametrize(
    "value",
    [
        b'{"day": "2023-02-29"}',
        b'{"at": "2024-04-31T00:00:00Z"}',
        b'{"at": "2024-01-01T24:00:00Z"}',
        b'{"at": "2024-01-01T10:00:60Z"}',
        b'{"at": "2024-01-01T10:00:00+24:00"}',
        b'{"at": "0001-01-01T00:00:00+02:00"}',
        b'{"at": "9999-12-31T23:00:00-02:00"}',
        b'{"at": "2024-01-01T10:00:00.1234567Z"}',
        b'{"local": "2024-01-01T00:00:00Z"}',
        b'{"n": 9223372036854775808}',
        b'{"small": -129}',
        b'{"d": 123456789.5}',
        b'{"d": "0.125"}',
        b'{"d": 1e8}',
        b'{"d": 1.25000000000000000}',
        b'{"f": 1e309}',
        b'{"half": 1e39}',
        b'{"raw": "AAE"}',
        b'{"raw": "A-_="}',
        b'{"list": ["2024-01-01", "2023-02-29"]}',
        b'{"in": {"at": "2023-02-29"}}',
        b'{"in": {"utc": "9999-12-31T23:00:00-02:00"}}',
        b'{"ma\\u0070": {"a": 1}}',
        b'{"map": {"a": 1, "b": 1.5}}',
        b'{"deep": [{"a": {"x": "2023-02-29"}}]}',
        b'{"must": {"n": 1}}',
    ],
    ids=bytes.decode,
)
def test_a_value_that_arrow_cannot_convert_is_the_only_one_that_is_read_alone(value, alone):
    array = pa.array([GOOD] * 5000 + [value] + [GOOD] * 5000, pa.binary())
    found = documents.parse(array, FIELDS)
    assert alone[-1] == 1
    assert sum(alone) <= 3  # and those that are made of its items
    [rest] = {*range(10_001)} - {*found.good.tolist()} or {5000}
    assert rest == 5000


def test_maps_and_binary_and_what_must_be_there_are_read_at_once(alone):
    full = b"""{"map" : { "a" :1, "\\"": 2,"":null, "\\u0061": 3}, "raw": "AAE\\/",
        "deep": [{"a": {"x":"2024-01-01"}, "b":null}, {}, null],
        "must": {"x": "AA==", "n": 1.5}, "none": {"x": [{}]}}"""
    found = documents.parse(pa.array([full, b"{}"] * 5000, pa.binary()), FIELDS[-5:])
    day = [[("a", {"x": date(2024, 1, 1)}), ("b", None)], [], None]
    rows = [b"\x00\x01?", [("a", 3), ('"', 2), ("", None)], day, {"x": b"\x00", "n": Decimal("1.5")}, {}]
    assert [column.to_pylist() for column in found.columns] == [[row, None] * 5000 for row in rows]
    assert not alone


def test_slices_and_no_rows_at_all():
    array = pa.array([b"{"] * 3 + [GOOD] * 200 + [b"{"] * 3, pa.binary()).slice(3, 200)
    assert documents.parse(array, FIELDS).columns[0].to_pylist() == [1] * 200
    assert [len(column) for column in documents.parse(array.slice(0, 0), FIELDS).columns] == [0] * len(FIELDS)
