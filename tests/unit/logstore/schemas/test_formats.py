"""A column is the bytes that Kafka's serializers make of it, and comes back from them; columns are JSON objects."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidConfigError
from logstore.schemas import documents
from logstore.schemas.formats import JsonFormat, RawFormat
from logstore.schemas.misfits import UnwritableError

RAW = {
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
}


def raw(kind, nullable=True):
    return RawFormat((pa.field("x", kind, nullable),))


def batch(kind, *values):
    return pa.RecordBatch.from_arrays([pa.array(values, kind)], ["x"])


@given(st.sampled_from(list(RAW)).flatmap(lambda kind: st.tuples(st.just(kind), st.lists(RAW[kind], max_size=5))))
def test_a_raw_column_comes_back_from_its_bytes(drawn):
    kind, values = drawn
    found = raw(kind).decode(raw(kind).encode(batch(kind, *values)))
    assert found.columns[0].equals(pa.array(values, kind))
    assert found.good.tolist() == list(range(len(values)))


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (pa.string(), "é", b"\xc3\xa9"),
        (pa.binary(), b"\xff", b"\xff"),
        (pa.bool_(), True, b"\x01"),
        (pa.int16(), -2, b"\xff\xfe"),
        (pa.int32(), 1, b"\0\0\0\x01"),
        (pa.int64(), 2**40, b"\0\0\x01\0\0\0\0\0"),
        (pa.float32(), 1.5, b"\x3f\xc0\0\0"),
        (pa.float64(), 1.5, b"\x3f\xf8\0\0\0\0\0\0"),
    ],
    ids=str,
)
def test_raw_bytes_are_those_of_kafkas_serializers(kind, value, stored):
    assert raw(kind).encode(batch(kind, value, None, value).slice(1)).to_pylist() == [None, stored]


def test_bytes_of_another_size_or_no_text_are_misfits():
    found = raw(pa.int32()).decode(pa.array([b"\0\0\0\x07", b"", b"\0" * 5], pa.binary()))
    assert found.columns[0].to_pylist() == [7]
    assert found.reasons == {1: "x: no int of 4 bytes", 2: "x: no int of 4 bytes"}
    found = raw(pa.string()).decode(pa.array([b"a", b"\xff"], pa.binary()))
    assert (found.columns[0].to_pylist(), found.reasons) == (["a"], {1: "x: not UTF-8"})


def test_raw_is_one_column_of_a_plain_type():
    fields = [pa.field("a", pa.int8()), pa.field("b", pa.int8())]
    for wrong in ((), tuple(fields), (pa.field("d", pa.decimal128(4, 2)),), (pa.field("t", pa.timestamp("us")),)):
        with pytest.raises(InvalidConfigError, match="format raw is one column"):
            RawFormat(wrong)


def test_a_raw_null_that_is_declared_not_null_is_refused():
    with pytest.raises(UnwritableError, match="row 1: x: missing"):
        raw(pa.int8(), nullable=False).encode(batch(pa.int8(), 1, None))


def test_json_goes_both_ways_and_passes_over_the_id_of_confluents_serializer():
    json = JsonFormat((pa.field("a", pa.int64()), pa.field("b", pa.string())))
    rows = pa.RecordBatch.from_pydict({"a": [1, None], "b": ["x", "y"]})
    values = json.encode(rows)
    assert values.to_pylist() == [b'{"a":1,"b":"x"}', b'{"b":"y"}']
    with_ids = pa.array([b"\0\0\0\0\x07" + values[0].as_py(), values[1].as_py()], pa.binary())
    assert [column.to_pylist() for column in json.decode(with_ids).columns] == [[1, None], ["x", "y"]]


def test_json_refuses_types_that_it_has_not():
    with pytest.raises(InvalidConfigError, match=r"format json has no type time64\[us\], of column 't'"):
        JsonFormat((pa.field("t", pa.time64("us")),))


RESCUING = JsonFormat((pa.field("a", pa.int64()), pa.field("_rescued", pa.string()), pa.field("s", pa.string())))
MORE = {
    b'{"a":1,"s":"x"}': None,
    b"{}": None,
    b'{"a":2,"z":1.10, "\\u0079":{"q":[1, 2]}, "z" : null }': '{"z":null,"y":{"q":[1, 2]}}',
    b' { "k" :"\\u00e9\\n"} ': '{"k":"\\u00e9\\n"}',
    b'{"a":1,"a b":{"a":"}"}}': '{"a b":{"a":"}"}}',
    b'{"a":1,"big":%s}' % (b"1" * 5000): None,  # a number too long for Python is a misfit
    b'{"a":"x","z":1}': None,  # a misfit
}


@pytest.mark.parametrize("times", [1, 40])
def test_undeclared_members_are_rescued_as_they_came(times):
    found = RESCUING.decode(pa.array([*MORE] * times, pa.binary()))
    good = [text for value, text in MORE.items() if value[:7] != b'{"a":"x' and len(value) < 5000]
    assert found.columns[1].to_pylist() == good * times
    rows = pa.RecordBatch.from_arrays(found.columns, schema=pa.schema(RESCUING.fields))
    again = RESCUING.decode(RESCUING.encode(rows))
    assert [ours.equals(theirs) for ours, theirs in zip(found.columns, again.columns, strict=True)] == [True] * 3


def test_only_rows_with_undeclared_members_are_looked_into(monkeypatch):
    values = pa.array([b'{"a":1, "s":"x"}'] * 500 + [b'{"z":1}', b'{"a":1, "s":{}}'], pa.binary())
    looked = []
    monkeypatch.setattr(documents, "scan_members", lambda text: looked.append(text) or {})
    documents.undeclared(values, RESCUING.fields)
    assert looked == ['{"z":1}', '{"a":1, "s":{}}']


def test_what_was_rescued_must_be_an_object():
    rows = pa.RecordBatch.from_pydict({"a": [1, 2], "_rescued": [None, "[1]"], "s": ["", ""]})
    with pytest.raises(UnwritableError, match="row 1: _rescued: not an object"):
        RESCUING.encode(rows)
    with pytest.raises(InvalidConfigError, match="column '_rescued' has the members"):
        JsonFormat((pa.field("_rescued", pa.int64()),))
