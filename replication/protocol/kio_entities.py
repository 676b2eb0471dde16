"""kio's entities from plain values, whatever the version: a handler gives all that it knows, once for all versions.

Nested structs are mappings, arrays any iterables; a field that the version lacks is left out, one that is not given
has kio's default. Times are in milliseconds, error codes ints.
"""

from __future__ import annotations

import datetime
import io
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, get_args, get_origin

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer


def build(cls: Any, values: Mapping[str, Any]) -> Any:
    """Return an entity of `cls`. Raises: TypeError: a required field is not given."""
    made = {}
    for name, (convert, default) in converters(cls).items():
        if name in values:
            made[name] = convert(values[name])
        elif default is not MISSING:
            made[name] = default
    return cls(**made)


@cache
def converters(cls: Any) -> Mapping[str, tuple[Callable[[Any], Any], Any]]:
    """Return per field name the conversion of a plain value, and the default."""
    found = {}
    for field in fields(cls):
        default = datetime.timedelta(0) if field.name == "throttle_time" else field.default
        found[field.name] = _conversion(field.type, field.metadata.get("kafka_type")), default
    return found


def _conversion(kind: Any, kafka_type: str | None) -> Callable[[Any], Any]:
    if get_origin(kind) is not tuple and type(None) in get_args(kind):
        inner = _conversion(next(a for a in get_args(kind) if a is not type(None)), kafka_type)
        return lambda value: None if value is None else inner(value)
    if get_origin(kind) is tuple:
        item = _conversion(get_args(kind)[0], kafka_type)
        return lambda values: tuple(map(item, values))
    if kafka_type is None:
        return lambda value: build(kind, value) if isinstance(value, Mapping) else value
    return _CONVERSIONS.get(kafka_type, lambda value: value)


def _time(value: Any) -> Any:
    return value if isinstance(value, datetime.timedelta) else datetime.timedelta(milliseconds=value)


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "timedelta_i32": _time,
    "timedelta_i64": _time,
    "error_code": ErrorCode,
    "string": str,
    "bytes": bytes,
}


def encode_entity(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()
