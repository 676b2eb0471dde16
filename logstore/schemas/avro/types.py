"""Avro's types as Arrow's, and Arrow's as Avro's: how a schema looks as columns.

A union of null and a type is that type, with nulls; of int and long, and of float and double, the wider one. Another
union is a struct with a member for each type that is not null, `member0` and so on, of which one is there: Spark's
`from_avro` shows it so. An enum is a string, a fixed is binary. A schema that is no record is one column.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from logstore.errors import InvalidRequestError
from logstore.schemas.avro.schema import PRIMITIVES, Field, Schema, is_name
from logstore.schemas.ddl import type_name

_ARROW = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_WORDS = {_ARROW[word]: (word, "") for word in PRIMITIVES} | {
    pa.date32(): ("int", "date"),
    pa.timestamp("us", tz="UTC"): ("long", "timestamp-micros"),
    pa.timestamp("us"): ("long", "local-timestamp-micros"),
}
_WIDER = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}


class Shape(NamedTuple):
    """A schema as a column: of one type, or, if there are `members`, a struct of these."""

    schema: Schema
    nullable: bool
    members: tuple[Schema, ...] = ()


def shape_of(schema: Schema) -> Shape:
    """Return how a schema is shown."""
    if schema.kind != "union":
        return Shape(schema, schema.kind == "null")
    branches = tuple(branch for branch in schema.items if branch.kind != "null")
    nullable = len(branches) < len(schema.items)
    if not branches:
        return Shape(Schema("null"), True)
    if len(branches) == 1:
        return Shape(branches[0], nullable)
    plain = not any(branch.logical for branch in branches)
    if plain and (wider := _WIDER.get(frozenset(branch.kind for branch in branches))):
        return Shape(Schema(wider), nullable)
    return Shape(schema, nullable, branches)


def fields_of(schema: Schema, column: str = "value") -> tuple[pa.Field, ...]:
    """Return the columns of a schema; one that is no record is a column of this name."""
    if schema.kind == "record":
        return tuple(field_of(f.name, f.schema) for f in schema.fields)
    return (field_of(column, schema),)


def field_of(name: str, schema: Schema) -> pa.Field:
    shape = shape_of(schema)
    return pa.field(name, _type(shape), shape.nullable)


def _type(shape: Shape) -> pa.DataType:
    schema = shape.schema
    if shape.members:
        return pa.struct([pa.field(f"member{i}", _type(shape_of(m))) for i, m in enumerate(shape.members)])
    if schema.kind == "record":
        return pa.struct([field_of(f.name, f.schema) for f in schema.fields])
    if schema.kind == "array":
        return pa.list_(field_of("element", schema.items[0]))
    if schema.kind == "map":
        return pa.map_(pa.field("key", pa.string(), nullable=False), field_of("value", schema.items[0]))
    if schema.logical == "decimal":
        return pa.decimal128(schema.precision, schema.scale)
    return _LOGICAL.get(schema.logical) or _ARROW[schema.kind]


def schema_of(fields: Sequence[pa.Field]) -> Schema:
    """Return the schema of a reader who wants these columns, whatever names the writer gave to types.

    Raises: InvalidRequestError: a type that Avro has not.
    """
    return Schema("record", fields=tuple(Field(f.name, _of_column(f), default=None) for f in fields))


def _of_column(f: pa.Field) -> Schema:
    kind = f.type
    parts = [kind.field(i) for i in range(kind.num_fields)]
    if len(parts) > 1 and [part.name for part in parts] == [f"member{i}" for i in range(len(parts))]:
        branches = tuple(_of_column(part.with_nullable(False)) for part in parts)
        return Schema("union", items=(Schema("null"), *branches) if f.nullable else branches)
    if pa.types.is_struct(kind):
        found = schema_of(parts)
    elif pa.types.is_list(kind):
        found = Schema("array", items=(_of_column(kind.value_field),))
    elif pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        found = Schema("map", items=(_of_column(kind.item_field),))
    elif pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        found = Schema("bytes", logical="decimal", precision=kind.precision, scale=kind.scale, is_column=True)
    else:
        word, logical = _WORDS.get(kind, ("", ""))
        if not word:
            hint = ": declare int" if pa.types.is_signed_integer(kind) else ""
            raise InvalidRequestError(f"column {f.name!r}: Avro has no type {type_name(kind)}{hint}")
        found = Schema(word, logical=logical, is_column=True)
    return Schema("union", items=(Schema("null"), found)) if f.nullable and found.kind != "null" else found


def schema_text(fields: Sequence[pa.Field], name: str = "Record", namespace: str = "") -> str:
    """Return an Avro schema, a record, for these columns.

    Those that may be null are unions with null, which is their default. Structs are records named after the columns
    around them. Raises: InvalidRequestError: a name that Avro does not allow (letters, digits and _, and no digit
    first), a map whose keys are not strings, or a type that Avro has not.
    """
    document = _Names().record([*fields], name)
    if namespace:
        document = {"type": "record", "name": name, "namespace": namespace, "fields": document["fields"]}
    return json.dumps(document)


_AVRO: tuple[tuple[Any, Any], ...] = (
    (pa.types.is_null, "null"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int64, "long"),
    (pa.types.is_uint32, "long"),
    (pa.types.is_uint64, None),
    (pa.types.is_integer, "int"),
    (pa.types.is_float64, "double"),
    (pa.types.is_floating, "float"),
    (pa.types.is_date, {"type": "int", "logicalType": "date"}),
    (pa.types.is_string, "string"),
    (pa.types.is_large_string, "string"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_large_binary, "bytes"),
)


class _Names:
    """The names that records have got."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def record(self, fields: list[pa.Field], name: str) -> dict[str, Any]:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        found = []
        for f in fields:
            if not is_name(f.name):
                raise InvalidRequestError(
                    f"column {f.name!r} cannot be a field of Avro: rename it to letters, digits and _, and no digit "
                    "first"
                )
            kind = self._type(f.type, f"{name}_{f.name}", f.name)
            if pa.types.is_null(f.type):
                found.append({"name": f.name, "type": kind, "default": None})
            elif f.nullable:
                found.append({"name": f.name, "type": ["null", kind], "default": None})
            else:
                found.append({"name": f.name, "type": kind})
        return {"type": "record", "name": name, "fields": found}

    def _type(self, kind: pa.DataType, name: str, where: str) -> Any:
        if pa.types.is_struct(kind):
            return self.record([kind.field(i) for i in range(kind.num_fields)], name)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return {"type": "array", "items": self._item(kind.value_field, name, where)}
        if pa.types.is_map(kind):
            if not pa.types.is_string(kind.key_type):
                raise InvalidRequestError(
                    f"column {where!r}: keys of Avro's maps are strings, not {type_name(kind.key_type)}"
                )
            return {"type": "map", "values": self._item(kind.item_field, name, where)}
        if pa.types.is_timestamp(kind):
            return {"type": "long", "logicalType": f"{'' if kind.tz else 'local-'}timestamp-micros"}
        if pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
            return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        found = next((avro for matches, avro in _AVRO if matches(kind)), None)
        if found is None:
            raise InvalidRequestError(f"column {where!r}: Avro has no type for {type_name(kind)}")
        return found

    def _item(self, f: pa.Field, name: str, where: str) -> Any:
        kind = self._type(f.type, name, where)
        return ["null", kind] if f.nullable and kind != "null" else kind
