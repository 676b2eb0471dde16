"""Avro's schemas from their texts: names, references and logical types; how they look as columns."""

import json
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidRequestError
from logstore.schemas.avro.schema import parse
from logstore.schemas.avro.types import field_of, fields_of, schema_text
from tests.support import avro


def text(*types, **more):
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": f"f{i}", "type": t} for i, t in enumerate(types)], **more}
    )


class Reference(NamedTuple):
    name: str
    subject: str
    version: int = 1


class Written(NamedTuple):
    text: str
    references: tuple[Reference, ...] = ()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON: nested too deeply"),
        ("7", "7 is no type"),
        ('"lon"', "'lon' is no type of Avro, and none that is defined before"),
        ('{"kind": "int"}', "has no 'type'"),
        ('{"type": "array"}', "array without 'items'"),
        ("[]", "a union of nothing"),
        ('["int", "int"]', "a union of int, int: each type once"),
        ('["null", ["int"]]', "a union within a union"),
        (text("int", name="1R"), '"1R" is no name'),
        (text("int", namespace="a..b"), '"a..b" is no namespace'),
        ('{"type": "record", "name": "R"}', "R: 'fields' is no list"),
        (text({"type": "enum", "name": "R", "symbols": ["A"]}), "f0: R is defined twice"),
        (text("R"), "f0: R contains itself: columns cannot hold such a type"),
        (text(["null", {"type": "array", "items": "R"}]), "f0: R contains itself"),
        (text({"type": "enum", "name": "E", "symbols": ["A", "A"]}), "f0: enum E: symbol 'A' is there twice"),
        (text({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}), 'the default "B" is none'),
        (text({"type": "fixed", "name": "F", "size": -1}), "fixed F: 'size' is -1"),
        (text({"type": "bytes", "logicalType": "decimal", "precision": 39}), "decimal(39,0) has more than 38 digits"),
        ('{"type": "array", "items": ' * 70 + '"int"' + "}" * 70, "types are nested deeper than 64"),
    ],
    ids=lambda value: value[:40],
)
def test_a_text_that_is_no_schema_is_refused_in_one_line(given, reason):
    with pytest.raises(InvalidRequestError) as caught:
        parse(given)
    assert str(caught.value).startswith("Avro schema: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_schema_that_grows_with_each_use_of_a_name_is_refused():
    fields, kinds = [], "int"
    for i in range(20):
        kinds = {"type": "record", "name": f"N{i}", "fields": [{"name": "a", "type": kinds}]}
        kinds["fields"].append({"name": "b", "type": f"N{i - 1}" if i else "int"})
        fields.append(kinds)
    with pytest.raises(InvalidRequestError, match="more than 10,000 types in one"):
        parse(json.dumps(kinds))


def test_a_double_name_of_a_field_is_refused():
    twice = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}
    with pytest.raises(InvalidRequestError, match="record R: field 'a' is defined twice"):
        parse(json.dumps(twice))


def test_names_are_found_in_their_namespace():
    inner = {"type": "enum", "name": "E", "symbols": ["A"]}
    schema = parse(text(inner, "E", "x.y.E", ["null", "E"], namespace="x.y"))
    assert schema.name == "x.y.R"
    assert {f.schema.items[1] if f.schema.items else f.schema for f in schema.fields} == {schema.fields[0].schema}
    with pytest.raises(InvalidRequestError, match=r"'z\.E' is no type"):
        parse(text(inner, "z.E", namespace="x.y"))


def test_logical_types_that_do_not_fit_are_passed_over():
    given = [
        {"type": "string", "logicalType": "date"},
        {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3},
        {"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 3},
        {"type": "long", "logicalType": "timestamp-nanos"},
        {"type": "int", "logicalType": "time-millis"},
    ]
    types = [f.type for f in fields_of(parse(text(*given)))]
    assert types == [pa.string(), pa.binary(), pa.binary(), pa.int64(), pa.int32()]


def test_references_are_followed_once_each_and_cycles_are_refused():
    money = '{"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]}'
    line = '{"type": "record", "name": "shop.Line", "fields": [{"name": "price", "type": "shop.Money"}]}'
    registry = {
        "money": Written(money),
        "line": Written(line, (Reference("shop.Money", "money"),)),
        "a": Written(line, (Reference("shop.Money", "b"),)),
        "b": Written(money, (Reference("shop.Line", "a"),)),
    }
    of = lambda reference: registry[reference.subject]  # noqa: E731
    both = (Reference("shop.Line", "line"), Reference("shop.Money", "money"))
    schema = parse(text("shop.Line", "shop.Money"), both, of)
    assert [str(f) for f in fields_of(schema)] == [str(field_of(f.name, f.schema)) for f in schema.fields]
    assert fields_of(schema)[0].type == pa.struct([pa.field("price", fields_of(schema)[1].type, False)])
    with pytest.raises(InvalidRequestError, match="a version 1 refers to itself"):
        parse(text("shop.Line"), (Reference("shop.Line", "a"),), of)
    with pytest.raises(InvalidRequestError, match=r"money version 1 does not define 'shop\.Coin'"):
        parse(text("shop.Coin"), (Reference("shop.Coin", "money"),), of)
    with pytest.raises(InvalidRequestError, match="money version 1, which it refers to, is not known"):
        parse(text("shop.Money"), (Reference("shop.Money", "money"),))


def test_unions_and_schemas_that_are_no_records_are_columns():
    found = fields_of(
        parse(text(["null", "int"], ["int", "null"], ["int", "long"], ["float", "null", "double"], ["null"]))
    )
    assert [(f.type, f.nullable) for f in found] == [
        (pa.int32(), True),
        (pa.int32(), True),
        (pa.int64(), False),
        (pa.float64(), True),
        (pa.null(), True),
    ]
    members = pa.struct([pa.field("member0", pa.string()), pa.field("member1", pa.int32())])
    assert fields_of(parse('["string", "null", "int"]'), "key") == (pa.field("key", members),)


LEAVES = st.sampled_from(
    [
        *(pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32()),
        *(pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.decimal128(10, 2), pa.decimal128(38, 0)),
    ]
)


def columns(kinds):
    return st.lists(
        st.builds(pa.field, st.sampled_from(["a", "b", "a_b", "_c", "d1"]), kinds, st.booleans()),
        min_size=1,
        unique_by=lambda f: f.name,
    )


TYPES = st.recursive(
    LEAVES,
    lambda kinds: (
        columns(kinds).map(pa.struct)
        | st.builds(lambda k, n: pa.list_(pa.field("element", k, n)), kinds, st.booleans())
        | st.builds(
            lambda k, n: pa.map_(pa.field("key", pa.string(), False), pa.field("value", k, n)), kinds, st.booleans()
        )
    ),
    max_leaves=6,
)


@given(columns(TYPES))
def test_columns_are_the_columns_of_their_avro_schema(fields):
    written = schema_text(fields, "Order", "shop")
    assert list(fields_of(parse(written))) == fields
    avro.parsed(written)  # fastavro takes it, too


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (pa.field("total amount", pa.int64()), "column 'total amount' cannot be a field of Avro: rename it"),
        (pa.field("m", pa.map_(pa.int32(), pa.int32())), "column 'm': keys of Avro's maps are strings, not int"),
        (pa.field("u", pa.uint64()), "column 'u': Avro has no type for uint64"),
        (pa.field("t", pa.time64("us")), "column 't': Avro has no type for time64"),
    ],
    ids=str,
)
def test_columns_that_avro_has_not_are_refused(field, reason):
    with pytest.raises(InvalidRequestError, match=reason.replace("[", r"\[")):
        schema_text([field])
