"""Columns that a caller gives, in the types that a topic has: what loses nothing is converted, the rest refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from logstore.errors import InvalidRecordError
from logstore.records.tables import Tabular, as_arrow
from logstore.records.times import ZONE_MISSING
from logstore.schemas.ddl import type_name
from logstore.schemas.misfits import UnwritableError

_types = pa.types
_INTEGERS = pa.decimal128(20, 0)
_NOT_MADE = (pa.ArrowException, TypeError, ValueError, OverflowError)
_Test = Callable[[pa.DataType], bool]


def as_columns(data: Tabular, fields: Sequence[pa.Field]) -> pa.Table | pa.RecordBatch:
    """Return the rows of a caller as a table; a dict is one row, unless its values are columns.

    Python's values become those of the fields of their names; a datetime needs a time zone where its column has one.

    Raises: InvalidRecordError: they are no rows; UnwritableError: a value that does not fit.
    """
    if not isinstance(data, Mapping | list | tuple):
        return as_arrow(data)
    kinds = {field.name: field for field in fields}
    if isinstance(data, Mapping):
        if not any(_is_column(value, kinds.get(name)) for name, value in data.items()):
            data = [data]
        elif len({len(column) for column in data.values()}) > 1:
            raise InvalidRecordError("columns of different lengths")
    if isinstance(data, Mapping):
        found = dict(data)
    elif all(isinstance(row, Mapping) for row in data):
        names = dict.fromkeys(name for row in data for name in row)
        found = {name: [row.get(name) for row in data] for name in names}
        if not names:
            return pa.table({fields[0].name: pa.nulls(len(data), fields[0].type)})
    else:
        return as_arrow(data)
    return pa.table({name: _column(values, kinds.get(name)) for name, values in found.items()})


def _is_column(value: object, field: pa.Field | None) -> bool:
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return True
    is_list = field is not None and (_types.is_nested(field.type))
    return isinstance(value, list | tuple) and not is_list


def _column(values: Any, field: pa.Field | None) -> pa.Array | pa.ChunkedArray:
    if field is None or isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    kind = field.type
    for row, value in enumerate(values):
        if isinstance(value, datetime) and value.tzinfo is None and _types.is_timestamp(kind) and kind.tz:
            raise UnwritableError(row, f"{field.name}: {ZONE_MISSING}")
    try:  # told the type, Arrow would make an integer of 1.5
        return pa.array(values, kind) if _needs_type(kind) else pa.array(values)
    except _NOT_MADE:
        row = next((i for i, value in enumerate(values) if not _is_fitting(value, kind)), 0)
        raise UnwritableError(row, f"{field.name}: {str(values[row])[:40]!r} is no {type_name(kind)}") from None


def _is_fitting(value: object, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except _NOT_MADE:
        return False
    return True


def _needs_type(kind: pa.DataType) -> bool:
    """Whether Python has no value that is plainly of this type."""
    parts = [kind.field(i).type for i in range(kind.num_fields)]
    return pa.types.is_decimal(kind) or pa.types.is_map(kind) or any(map(_needs_type, parts))


def fitted(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return the column in the type of the field.

    Numbers change their size, and integers become decimals; a time without a zone is of UTC; any kind of string array
    is a string. Nothing is rounded or cut.

    Raises: InvalidRecordError: a column of another kind; UnwritableError: a value that does not fit, with its row.
    """
    if column.type == field.type:
        return column
    if not _is_akin(column.type, field.type):
        raise InvalidRecordError(
            f"column {field.name!r} is {type_name(column.type)}, and the topic has {type_name(field.type)}"
        )
    try:
        return _cast(column, field.type)
    except pa.ArrowException:
        pass
    row = _first_misfit(column, field.type)
    raise UnwritableError(row, f"{field.name}: {str(column[row].as_py())[:40]} does not fit {type_name(field.type)}")


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if _types.is_integer(column.type) and _types.is_decimal(kind):
        column = column.cast(_INTEGERS)  # Arrow takes no decimals in which some integer has no place
    return column.cast(kind)


def _first_misfit(column: pa.Array, kind: pa.DataType) -> int:
    start, stop = 0, len(column)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            _cast(column.take(pa.array(range(start, middle))), kind)  # of a slice, Arrow would look at all items
            start = middle
        except pa.ArrowException:
            stop = middle
    return start


def _is_akin(given: pa.DataType, wanted: pa.DataType) -> bool:
    if given == wanted or _types.is_null(given):
        return True
    if _types.is_dictionary(given):
        return _is_akin(given.value_type, wanted)
    if _types.is_timestamp(given) and _types.is_timestamp(wanted):
        return given.tz is None or wanted.tz is not None
    if _types.is_map(given) and _types.is_map(wanted):
        return _is_akin(given.key_type, wanted.key_type) and _is_akin(given.item_type, wanted.item_type)
    if _is_list(given) and _types.is_list(wanted):
        return _is_akin(given.value_type, wanted.value_type)
    if _types.is_struct(given) and _types.is_struct(wanted):
        return _are_parts_akin(given, wanted)
    return any(of(given) and to(wanted) for of, to in _AKIN)


def _are_parts_akin(given: pa.DataType, wanted: pa.DataType) -> bool:
    names = {part.name: part.type for part in wanted}
    return all(part.name in names and _is_akin(part.type, names[part.name]) for part in given)


def _is_one(kind: pa.DataType, *tests: _Test) -> bool:
    return any(test(kind) for test in tests)


def _is_list(kind: pa.DataType) -> bool:
    return _is_one(kind, _types.is_list, _types.is_large_list, _types.is_fixed_size_list)


def _is_number(kind: pa.DataType) -> bool:
    return _is_one(kind, _types.is_integer, _types.is_floating)


def _is_string(kind: pa.DataType) -> bool:
    return _is_one(kind, _types.is_string, _types.is_large_string, _types.is_string_view)


def _is_binary(kind: pa.DataType) -> bool:
    return _is_one(kind, _types.is_binary, _types.is_large_binary, _types.is_binary_view, _types.is_fixed_size_binary)


_AKIN: tuple[tuple[_Test, _Test], ...] = (
    (_is_number, _is_number),
    (_types.is_integer, _types.is_decimal),
    (_types.is_decimal, _types.is_decimal),
    (_is_string, _is_string),
    (_is_binary, _types.is_binary),
    (_types.is_date, _types.is_date),
)
