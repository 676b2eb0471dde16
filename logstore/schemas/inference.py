"""Inference: columns that JSON values have, by looking at some of them.

A type is the narrowest that all values of a member have: bigint, double, decimal for integers that are larger, date and
timestamp for texts that are all such, else string; array, struct. A member that is missing, null or empty tells no
type. Values of two types have none: JSON is read strictly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any

import pyarrow as pa

from logstore.errors import InvalidRequestError
from logstore.schemas.ddl import type_name

_ID_BYTES = 5  # of Confluent's serializers: 0, and the schema's id

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*")
_TIMESTAMP, _DECIMAL = pa.timestamp("us", tz="UTC"), pa.decimal128(38, 0)
_INT64_MAX, _DECIMAL_MAX = 2**63 - 1, 10**38
# Two types of these are one of a wider type.
_WIDER: Mapping[frozenset[pa.DataType], pa.DataType] = {
    frozenset({pa.int64(), pa.float64()}): pa.float64(),
    frozenset({pa.int64(), _DECIMAL}): _DECIMAL,
    frozenset({pa.date32(), _TIMESTAMP}): pa.string(),
    frozenset({pa.date32(), pa.string()}): pa.string(),
    frozenset({_TIMESTAMP, pa.string()}): pa.string(),
}


def inferred(values: Iterable[bytes | None]) -> tuple[pa.Field, ...]:
    """Return the columns of JSON objects; tombstones are passed over.

    Raises: InvalidRequestError: there are none; a value is no JSON object, or members have two types: which one.
    """
    found: pa.DataType = pa.null()
    for number, value in enumerate(values, 1):
        if value is None:
            continue
        try:
            found = _joined(found, _type_of(_document(value), ""), "")
        except (ValueError, RecursionError) as error:
            said = "nested too deeply" if isinstance(error, RecursionError) else error
            raise InvalidRequestError(f"value {number}: {said}") from None
    if not pa.types.is_struct(found) or not found.num_fields:
        raise InvalidRequestError("no value has a member: nothing tells the columns")
    return tuple(_settled(found.field(i)) for i in range(found.num_fields))


def _document(value: bytes) -> dict[str, Any]:
    raw = value[_ID_BYTES:] if value[:1] == b"\0" else value
    try:
        document = json.loads(raw)
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError("no JSON object")
    return document


def _type_of(value: Any, where: str) -> pa.DataType:
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int():
            if abs(value) >= _DECIMAL_MAX:
                raise ValueError(f"{where}: an integer of {len(str(value))} digits; 38 are the most")
            return pa.int64() if -_INT64_MAX <= value <= _INT64_MAX else _DECIMAL
        case float():
            return pa.float64()
        case str():
            return _type_of_text(value)
        case list():
            element: pa.DataType = pa.null()
            for each in value:
                element = _joined(element, _type_of(each, f"{where}[]"), f"{where}[]")
            return pa.list_(pa.field("element", element))
        case _:
            return pa.struct([pa.field(name, _type_of(each, _path(where, name))) for name, each in value.items()])


def _type_of_text(text: str) -> pa.DataType:
    try:
        if _DATE.fullmatch(text):
            date.fromisoformat(text)
            return pa.date32()
        if _TIME.fullmatch(text):
            datetime.fromisoformat(text)
            return _TIMESTAMP
    except ValueError:
        pass
    return pa.string()


def _joined(one: pa.DataType, other: pa.DataType, where: str) -> pa.DataType:
    """Return the type that has the values of both. Raises: ValueError: there is none."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field for kind in (other, one) for field in kind}
        order = [field.name for field in one] + [f.name for f in other if one.get_field_index(f.name) < 0]
        both = {name for name in order if one.get_field_index(name) >= 0 and other.get_field_index(name) >= 0}
        return pa.struct(
            pa.field(name, _joined(one.field(name).type, other.field(name).type, _path(where, name)))
            if name in both
            else fields[name]
            for name in order
        )
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(pa.field("element", _joined(one.value_type, other.value_type, f"{where}[]")))
    if (wider := _WIDER.get(frozenset({one, other}))) is not None:
        return wider
    raise ValueError(f"{where} is {_name(other)} here, and {_name(one)} before: no one type")


def _settled(field: pa.Field) -> pa.Field:
    """Return the column, with a text where no value told the type; an object without members is a map."""
    return pa.field(field.name, _settled_type(field.type))


def _settled_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_settled(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_settled(field) for field in kind]) if kind.num_fields else pa.map_(pa.string(), pa.string())
    return kind


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _name(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return "an object"
    return "an array" if pa.types.is_list(kind) else type_name(kind)
