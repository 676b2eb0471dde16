"""Columns become a JSON Schema that others accept, and come back; a foreign one becomes columns or is refused."""

import json

import jsonschema
import pyarrow as pa
import pytest
from hypothesis import given

from logstore import InvalidRequestError
from logstore.schemas import ddl, json_schema
from tests.support.columns import columns


@given(columns)
def test_columns_come_back_from_their_schema(fields):
    text = json_schema.text_of(fields)
    jsonschema.Draft7Validator.check_schema(json.loads(text))
    assert json_schema.fields_of(text) == tuple(fields)


def test_a_schema_accepts_the_values_that_are_read_as_its_columns():
    fields = ddl.parse("user string NOT NULL, n tinyint, amount decimal(10,2), tags array<string>, m map<string, int>")
    validator = jsonschema.Draft7Validator(json.loads(json_schema.text_of(fields)))
    assert validator.is_valid({"user": "Ada", "n": None, "amount": "1.50", "tags": ["a", None], "m": {"x": 1}})
    assert validator.is_valid({"user": "Ada", "amount": 1.5, "more": 1})
    for wrong in ({}, {"user": None}, {"user": "Ada", "n": 128}, {"user": "Ada", "tags": "a"}, {"user": 5}):
        assert not validator.is_valid(wrong), wrong


FOREIGN = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "user": {"oneOf": [{"type": "null", "title": "Not included"}, {"type": "string", "minLength": 1}]},
        "id": {"type": "integer", "description": "a number"},
        "price": {"type": ["null", "number"]},
        "half": {"type": "number", "connect.type": "float32"},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "mail": {"type": "string", "format": "email"},
        "raw": {"type": "string", "contentEncoding": "base64"},
        "state": {"enum": ["new", "paid", None]},
        "lines": {"type": "array", "items": {"$ref": "#/definitions/Line"}},
        "labels": {"type": "object", "additionalProperties": {"type": "boolean"}},
    },
    "required": ["id", "price", "state"],
    "definitions": {"Line": {"properties": {"sku": {"type": "string"}}, "required": ["sku"]}},
}


def test_a_foreign_schema_becomes_columns_by_its_types():
    assert ddl.text_of(json_schema.fields_of(json.dumps(FOREIGN))) == (
        "user string, id bigint NOT NULL, price double, half float, at timestamp, day date, mail string, raw binary, "
        "state string, lines array<struct<sku string NOT NULL>>, labels map<string, boolean>"
    )


def column(schema):
    return {"type": "object", "properties": {"x": schema}}


DEEP = "#/properties/x"


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("{", "no JSON Schema: Expecting property name"),
        ([], "the whole: anything is allowed"),
        ({"type": "string"}, "it is of string, and columns need an object with properties"),
        ({"type": "object"}, "the whole: an object without properties has no columns"),
        (column(True), "x: anything is allowed; say its type"),
        (column({}), "x: type 'no type' is none of JSON Schema"),
        (column({"type": "any"}), "x: type 'any' is none"),
        (column({"type": "null"}), "x: only null is no one type"),
        (column({"type": ["string", "integer"]}), "x: integer or string is no one type"),
        (column({"type": [{"type": "string"}]}), "x: type .* is none of JSON Schema"),
        (column({"oneOf": [{"type": "string"}, {"type": "integer"}]}), "x: oneOf of 2 schemas is no one type"),
        (column({"patternProperties": {"^x": {}}}), "x: 'patternProperties' makes its columns depend on its values"),
        (column({"type": "array"}), "x: an array needs one schema of its items"),
        (column({"type": "array", "items": [{"type": "string"}]}), "x: an array needs one schema"),
        (column({"type": "string", "contentEncoding": "base32"}), "x: contentEncoding 'base32'; only base64 is read"),
        (column({"$ref": "other.json#/a"}), "x: .ref 'other.json#/a' is in another document"),
        (column({"$ref": "#/definitions/A"}), "x: .ref '#/definitions/A' is not there"),
        (column({"$ref": DEEP}), "x: .ref '#/properties/x' holds itself"),
        (column({"type": "array", "items": {"$ref": DEEP}}), r"x\[\]\[\]: .ref '#/properties/x' holds itself"),
        (column({"type": "string", "x-spark-type": "varchar(3)"}), "x: x-spark-type 'varchar.3.' is no type"),
        (column({"type": "object", "x-spark-type": "map<int, int>"}), "x: x-spark-type .* is none of JSON"),
    ],
)  # fmt: skip
def test_what_is_no_one_column_is_refused_with_the_reason(schema, why):
    with pytest.raises(InvalidRequestError, match=why):
        json_schema.fields_of(schema if isinstance(schema, str) else json.dumps(schema))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"items":' * 5_000 + "{}" + "}" * 5_000])
def test_what_is_nested_ten_thousand_deep_is_refused_in_one_line(text):
    with pytest.raises(InvalidRequestError) as caught:
        json_schema.fields_of(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("ddl_text", ["m map<int, int>", "s struct<>"])
def test_columns_that_json_has_not_have_no_schema(ddl_text):
    with pytest.raises(InvalidRequestError):
        json_schema.text_of(ddl.parse(ddl_text))


def test_decimals_and_local_times_keep_their_types_beside_what_json_says():
    text = json_schema.text_of([pa.field("d", pa.decimal128(10, 2)), pa.field("t", pa.timestamp("us"))])
    assert json.loads(text)["properties"] == {
        "d": {"type": ["string", "number", "null"], "x-spark-type": "decimal(10,2)"},
        "t": {"type": ["string", "null"], "x-spark-type": "timestamp_ntz"},
    }
