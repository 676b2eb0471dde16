"""JSON documents to values of their declared types, one after the other: the rule of `documents`, with the reasons.

Parsing is strict: a number is no string and 1.5 no integer. A missing field is null, an undeclared one is dropped.
Dates (2024-01-31), times (ISO 8601; without a zone: UTC), decimals and binary (base64) are written as text. A record
without a value (a tombstone) is a row of nulls.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

from logstore.schemas.ddl import type_name
from logstore.schemas.parsed import Parsed

_REASON_MAX = 200
Convert = Callable[[Any, pa.DataType, str], Any]


def parse_each(values: pa.Array, fields: Sequence[pa.Field]) -> Parsed:
    """Return the values (binary, JSON objects) as columns of these fields."""
    decode = _decoder(fields)
    documents: list[dict[str, Any]] = []
    good: list[int] = []
    reasons: dict[int, str] = {}
    for row, raw in enumerate(values.to_pylist()):
        try:
            documents.append(_document(raw, decode))
            good.append(row)
        except (ValueError, RecursionError) as error:
            reasons[row] = _reason(error)
    while True:
        bad: dict[int, str] = {}
        columns = [_column([d.get(f.name) for d in documents], f, bad) for f in fields]
        if not bad:
            lines = {row: _line(reason) for row, reason in reasons.items()}
            return Parsed(columns, np.array(good, np.int64), lines)
        reasons |= {good[i]: reason for i, reason in bad.items()}
        documents = [d for i, d in enumerate(documents) if i not in bad]
        good = [row for i, row in enumerate(good) if i not in bad]


def _decoder(fields: Sequence[pa.Field]) -> Callable[[str], Any]:
    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    exact = any(_has_decimal(field.type) for field in fields)  # a float would round them
    return json.JSONDecoder(parse_constant=refuse, parse_float=Decimal if exact else None).decode


def _has_decimal(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or any(_has_decimal(kind.field(i).type) for i in range(kind.num_fields))


def _document(raw: bytes | None, decode: Callable[[str], Any]) -> dict[str, Any]:
    if raw is None:
        return {}
    document = decode(raw.decode())
    if not isinstance(document, dict):
        raise ValueError(f"not an object but {_shown(document)}")
    return document


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: byte {error.start}"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _line(reason: str) -> str:
    """Return it as one short line that is UTF-8, whatever a document has put into it."""
    short = reason if len(reason) <= _REASON_MAX else reason[: _REASON_MAX - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in short)


_FLOATS = frozenset({float, int, Decimal, type(None)})


def _column(values: list[Any], field: pa.Field, bad: dict[int, str]) -> pa.Array:
    """Return the values as an array; one that does not fit is null, and its reason goes into `bad`."""
    kinds = set(map(type, values))
    if kinds <= _plain(field.type) and (field.nullable or type(None) not in kinds):
        try:
            return pa.array(values, field.type)
        except (pa.ArrowException, OverflowError, UnicodeError):
            pass  # find out below which one does not fit
    converted = []
    for i, value in enumerate(values):
        try:
            converted.append(_fitting(value, field))
        except ValueError as error:
            bad.setdefault(i, str(error))
            converted.append(None)
    return pa.array(converted, field.type)


def _plain(kind: pa.DataType) -> frozenset[type]:
    """Return the Python types that need no conversion to `kind`."""
    if pa.types.is_integer(kind):
        return frozenset({int, type(None)})
    if pa.types.is_float64(kind):
        return frozenset({float, type(None)})
    if pa.types.is_string(kind):
        return frozenset({str, type(None)})
    return frozenset({bool, type(None)}) if pa.types.is_boolean(kind) else frozenset({type(None)})


def _fitting(value: Any, field: pa.Field) -> Any:
    converted = _converted(value, field, field.name)
    try:
        pa.scalar(converted, field.type)
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise ValueError(f"{field.name}: {_shown(value)} does not fit {type_name(field.type)}") from error
    return converted


def _converted(value: Any, field: pa.Field, where: str) -> Any:
    if value is None:
        if not field.nullable:
            raise ValueError(f"{where}: missing, and declared NOT NULL")
        return None
    return _converter(field.type)(value, field.type, where)


def _converter(kind: pa.DataType) -> Convert:
    for matches, convert in _CONVERTERS:
        if matches(kind):
            return convert
    raise AssertionError(kind)  # `is_supported` refuses such types before any task runs


def is_supported(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return pa.types.is_string(kind.key_type) and is_supported(kind.item_type)
    return any(matches(kind) for matches, _ in _CONVERTERS) and all(
        is_supported(kind.field(i).type) for i in range(kind.num_fields)
    )


def _exact(*types: type) -> Convert:
    def convert(value: Any, kind: pa.DataType, where: str) -> Any:
        if type(value) not in types:
            raise ValueError(f"{where}: {_shown(value)} is no {type_name(kind)}")
        return value

    return convert


def _float(value: Any, kind: pa.DataType, where: str) -> float:
    if type(value) not in _FLOATS:
        raise ValueError(f"{where}: {_shown(value)} is no {type_name(kind)}")
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"{where}: {_shown(value)} does not fit {type_name(kind)}") from error


def _parsed(read: Callable[[str], Any]) -> Convert:
    def convert(value: Any, kind: pa.DataType, where: str) -> Any:
        try:
            if isinstance(value, str):
                return read(value)
        except (ValueError, InvalidOperation):
            pass
        raise ValueError(f"{where}: {_shown(value)} is no {type_name(kind)}")

    return convert


def _timestamp(value: Any, kind: pa.DataType, where: str) -> Any:
    moment = _parsed(datetime.fromisoformat)(value, kind, where)
    if kind.tz is None:
        if moment.tzinfo is not None:
            raise ValueError(f"{where}: {_shown(value)} has a zone, and is declared without")
        return moment
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{where}: {_shown(value)} is out of range in UTC") from None


def _decimal(value: Any, kind: pa.DataType, where: str) -> Any:
    if type(value) in (int, Decimal):
        return Decimal(value)
    return _parsed(Decimal)(value, kind, where)


def _list(value: Any, kind: pa.DataType, where: str) -> Any:
    if not isinstance(value, list):
        raise ValueError(f"{where}: {_shown(value)} is no array")
    return [_converted(item, kind.value_field, f"{where}[{i}]") for i, item in enumerate(value)]


def _struct(value: Any, kind: pa.DataType, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {_shown(value)} is no object")
    fields = [kind.field(i) for i in range(kind.num_fields)]
    return {f.name: _converted(value.get(f.name), f, f"{where}.{f.name}") for f in fields}


def _map(value: Any, kind: pa.DataType, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {_shown(value)} is no object")
    return [(key, _converted(item, kind.item_field, f"{where}.{key}")) for key, item in value.items()]


_CONVERTERS: tuple[tuple[Callable[[pa.DataType], bool], Convert], ...] = (
    (pa.types.is_integer, _exact(int)),
    (pa.types.is_floating, _float),
    (pa.types.is_string, _exact(str)),
    (pa.types.is_boolean, _exact(bool)),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_date32, _parsed(date.fromisoformat)),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_binary, _parsed(lambda text: base64.b64decode(text, validate=True))),
    (pa.types.is_list, _list),
    (pa.types.is_struct, _struct),
    (pa.types.is_map, _map),
)


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
