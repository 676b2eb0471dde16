"""Columns are inferred from JSON values so that all of these values are read by them."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from logstore import InvalidRequestError
from logstore.schemas import ddl, documents
from logstore.schemas.inference import inferred


def columns(*values):
    return ddl.text_of(inferred(value if isinstance(value, bytes) else json.dumps(value).encode() for value in values))


def test_the_narrowest_type_of_all_values_of_a_member_is_taken():
    assert columns({"a": 1, "b": True, "c": "x", "d": 1.5}) == "a bigint, b boolean, c string, d double"
    assert columns({"a": 1}, {"a": 2.5}, {"b": None}, {"b": "2024-01-31"}) == "a double, b date"
    assert columns({"a": 2**63}, {"a": 1}) == "a decimal(38,0)"
    assert columns({"a": "2024-01-31T10:00:00Z"}, {"a": "2024-01-31 10:00"}) == "a timestamp"
    assert columns({"a": "2024-01-31"}, {"a": "2024-02-30"}) == "a string"
    assert columns({"a": []}, {"a": [{"x": 1}, {"y": "z"}]}) == "a array<struct<x bigint, y string>>"
    assert columns({"a": {}, "b": None, "c": []}) == "a map<string, string>, b string, c array<string>"
    assert columns(b'\0\0\0\0\7{"of a serializer": 1}') == "`of a serializer` bigint"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([], "no value has a member"),
        ([{}], "no value has a member"),
        ([b"{"], "value 1: no JSON: Expecting"),
        ([{"a": 1}, [1]], "value 2: no JSON object"),
        ([{"a": {"b": [1]}}, {"a": {"b": ["x"]}}], r"value 2: a.b\[\] is string here, and bigint before: no one type"),
        ([{"a": {"b": 1}}, {"a": [1]}], "value 2: a is an array here, and an object before"),
        ([{"a": 10**38}], "value 1: a: an integer of 39 digits; 38 are the most"),
        ([b'{"a":' + b"[" * 100_000], "value 1: nested too deeply"),
        ([b"\xff"], "value 1: no JSON: 'utf-8' codec"),
    ],
)
def test_values_without_one_type_are_named(values, why):
    with pytest.raises(InvalidRequestError, match=why):
        columns(*values)


numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(codec="utf-8"), max_size=3) | st.dates().map(str) | st.datetimes().map(str)
names = st.sampled_from("abc")


def objects(inner):
    """Strategies of objects, which have some of up to three members."""
    return st.dictionaries(names, inner, min_size=1, max_size=3).map(
        lambda members: st.fixed_dictionaries({}, optional=members)
    )


# Strategies of values that may stand in one member of all documents: others have no one type, and are refused.
kinds = st.recursive(
    st.sampled_from([kind | st.none() for kind in (st.booleans(), numbers, texts)]),
    lambda inner: inner.map(lambda kind: st.lists(kind, max_size=3)) | objects(inner),
    max_leaves=6,
)


@given(objects(kinds).flatmap(lambda kind: st.lists(kind, min_size=1, max_size=4).filter(any)))
def test_all_values_are_read_by_the_columns_that_they_have(values):
    raw = [json.dumps(value).encode() for value in values]
    try:
        fields = inferred(raw)
    except InvalidRequestError:
        assume(False)
    parsed = documents.parse(pa.array(raw, pa.binary()), fields)
    assert parsed.reasons == {}
    assert np.array_equal(parsed.good, np.arange(len(raw)))
