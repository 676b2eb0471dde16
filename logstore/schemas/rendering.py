"""Columns to JSON objects, in bulk: what `documents` reads, written. There is no Python object per row.

A null member is left out, a null in an array or a map is written. Times are ISO 8601 with microseconds (and Z, where
they have a zone), decimals numbers with all their digits, binary is base64.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.schemas.misfits import UnwritableError
from logstore.schemas.parsed import are_utf8

_DAYS = tuple((day - date(1970, 1, 1)).days for day in (date.min, date.max))
_MOMENTS = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_SPECIAL = np.array([byte < 0x20 or chr(byte) in '"\\' for byte in range(256)])


class _Text(NamedTuple):
    """The JSON of each value, null for null: parts (arrays, or one for all rows) that are yet to be joined."""

    parts: tuple[Any, ...]

    def whole(self) -> pa.Array:
        return self.parts[0] if len(self.parts) == 1 else _join(*self.parts)


def render(columns: pa.RecordBatch) -> pa.Array:
    """Return an object for each row (binary, UTF-8), without members for nulls.

    The types are those of `conversion.is_supported`.

    Raises: UnwritableError: NaN or Infinity, a year beyond 1 to 9999, text that is not UTF-8, or a null that is
        declared NOT NULL.
    """
    return _objects(list(zip(columns.schema, columns.columns, strict=True)), columns.num_rows).cast(pa.binary())


def _objects(members: Sequence[tuple[pa.Field, pa.Array]], count: int, where: str = "") -> pa.Array:
    """Return an object a row. Members without nulls are joined all at once: this is where the time goes."""
    parts: list[Any] = ["{"]
    for field, array in members:
        name = where + field.name
        _check_nulls(array, field, name)
        text = _text(array, name)
        start = ("," if len(parts) > 1 else "") + json.dumps(field.name, ensure_ascii=False) + ":"
        member = [start, *text.parts]
        parts += [_join(*member)] if array.null_count else member
    if len(parts) == 1:
        return pa.array(["{}"] * count, pa.string())
    objects = _join(*parts, "}", null_handling="replace")
    if not members[0][1].null_count:
        return objects
    has_comma = pc.starts_with(objects, "{,")  # the first member is missing, another is not
    return pc.if_else(has_comma, pc.binary_replace_slice(objects, 1, 2, ""), objects)


def _join(*parts: Any, null_handling: str = "emit_null") -> pa.Array:
    """Return these texts (arrays, or one for all rows) one after the other."""
    merged: list[Any] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif not isinstance(part, str) or part:
            merged.append(part)
    return pc.binary_join_element_wise(*merged, "", null_handling=null_handling)


def _text(array: pa.Array, name: str) -> _Text:
    for matches, text in _TEXTS:
        if matches(array.type):
            return text(array, name)
    raise AssertionError(array.type)  # `is_supported` refuses such types before


def _plain(array: pa.Array, name: str) -> _Text:
    return _Text((array.cast(pa.string()),))


def _float(array: pa.Array, name: str) -> _Text:
    is_finite = pc.is_finite(array)
    if pc.any(pc.invert(is_finite)).as_py():
        row = _first(pc.invert(is_finite))
        raise UnwritableError(row, f"{name}: {'NaN' if pc.is_nan(array[row]).as_py() else 'Infinity'} is no JSON")
    text = (array.cast(pa.float32()) if pa.types.is_float16(array.type) else array).cast(pa.string())
    if pc.any(pc.equal(array, pa.scalar(0, array.type))).as_py():  # -0 is an integer, which has no sign
        text = pc.if_else(pc.equal(text, "-0"), "-0.0", text)
    return _Text((text,))


def _string(array: pa.Array, name: str) -> _Text:
    is_fitting = are_utf8(array.cast(pa.binary()))
    if not is_fitting.all():
        raise UnwritableError(int(np.argmin(is_fitting)), f"{name}: not UTF-8")
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return _Text(('"', array, '"'))
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    text = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    is_special = _SPECIAL[text]
    if not is_special.any():
        return _Text(('"', array, '"'))
    mask = np.zeros(len(array), np.bool_)
    mask[np.searchsorted(ends, np.flatnonzero(is_special) + ends[0], side="right") - 1] = True
    special = sorted(map(chr, np.unique(text[is_special])), key=lambda character: character != "\\")
    found = array.filter(pa.array(mask))
    for character in special:  # the backslash comes first: the others bring more of them
        found = pc.replace_substring(found, character, _escaped(character))
    return _Text(('"', pc.replace_with_mask(array, pa.array(mask), found), '"'))


def _escaped(character: str) -> str:
    return _SHORT.get(character) or f"\\u{ord(character):04x}"


def _date(array: pa.Array, name: str) -> _Text:
    _check_years(array.cast(pa.int32()), _DAYS, name)
    return _Text(('"', array.cast(pa.string()), '"'))


def _timestamp(array: pa.Array, name: str) -> _Text:
    # To text at once, Arrow takes a microsecond each: it looks the zone up.
    moments = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.timestamp("us"))
    _check_years(moments.cast(pa.int64()), _MOMENTS, name)
    days, clocks = moments.cast(pa.date32()).cast(pa.string()), moments.cast(pa.time64("us")).cast(pa.string())
    return _Text(('"', days, "T", clocks, 'Z"' if array.type.tz else '"'))


def _check_years(numbers: pa.Array, bounds: tuple[int, ...], name: str) -> None:
    found = pc.min_max(numbers).as_py()
    if found["min"] is not None and (found["min"] < bounds[0] or found["max"] > bounds[1]):
        beyond = pc.or_(pc.less(numbers, bounds[0]), pc.greater(numbers, bounds[1]))
        raise UnwritableError(_first(beyond), f"{name}: its year is none of 1 to 9999")


def _binary(array: pa.Array, name: str) -> _Text:
    """Return base64. Each value is filled up to three bytes, so that all are one text; then `=` says how many."""
    sizes = pc.binary_length(array).fill_null(0).to_numpy().astype(np.int64)
    filled = -sizes % 3
    fillers = pa.array([b"", b"\0", b"\0\0"], pa.binary()).take(pa.array(filled))
    whole = pc.binary_join_element_wise(array.fill_null(b""), fillers, pa.scalar(b"", pa.binary()))
    data = pc.binary_join(pa.ListArray.from_arrays([0, len(whole)], whole), b"")[0].as_buffer()
    text = np.frombuffer(binascii.b2a_base64(data, newline=False), np.uint8).copy()
    ends = np.concatenate([[0], np.cumsum((sizes + filled) // 3 * 4)])
    for missing in (1, 2):
        text[ends[1:][filled >= missing] - missing] = ord("=")
    found = pa.Array.from_buffers(
        pa.string(), len(array), [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(text)]
    )
    return _Text(('"', pc.if_else(array.is_valid(), found, None), '"'))


def _struct(array: pa.Array, name: str) -> _Text:
    present = array.drop_null()
    members = list(zip(array.type, present.flatten(), strict=True))
    with _inside(array, name):
        return _Text((_scattered(_objects(members, len(present), f"{name}."), array),))


def _list(array: pa.Array, name: str) -> _Text:
    present = array.drop_null()
    ends, values = _items(present, present.values)
    with _inside(array, name, ends):
        texts = _joined(ends, _items_text(values, array.type.value_field))
    return _Text((_scattered(_join("[", texts, "]"), array),))


def _map(array: pa.Array, name: str) -> _Text:
    present = array.drop_null()
    ends, keys = _items(present, present.keys)
    with _inside(array, name, ends):
        values = _items_text(_items(present, present.items)[1], array.type.item_field)
        texts = _join(_text(keys, " key").whole(), ":", values)
    return _Text((_scattered(_join("{", _joined(ends, texts), "}"), array),))


def _items_text(items: pa.Array, field: pa.Field) -> pa.Array:
    _check_nulls(items, field, "")
    return _text(items, "").whole().fill_null("null")


def _items(lists: pa.Array, items: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Return where each of these lists, none of them null, ends among their items, behind a 0; and these."""
    ends = lists.offsets.to_numpy()
    return ends - ends[0], items.slice(ends[0], ends[-1] - ends[0])


def _joined(ends: np.ndarray, texts: pa.Array) -> pa.Array:
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(ends, pa.int32()), texts), ",")


def _scattered(texts: pa.Array, array: pa.Array) -> pa.Array:
    """Return the texts of the values that are there, with null for each of the others."""
    if not array.null_count:
        return texts
    is_there = array.is_valid().to_numpy(zero_copy_only=False)
    return texts.take(pa.array(np.cumsum(is_there) - 1, mask=~is_there))


@contextmanager
def _inside(array: pa.Array, name: str, ends: np.ndarray | None = None) -> Iterator[None]:
    """Errors of what is inside of an array name its row: of a struct the same, of a list the one that has the item."""
    try:
        yield
    except UnwritableError as error:
        row, reason = error.row, error.reason
        if ends is not None:
            row = int(np.searchsorted(ends, error.row, side="right")) - 1
            reason = f"{name}[{error.row - ends[row]}]{reason}"
        rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
        raise UnwritableError(int(rows[row]), reason) from None


def _check_nulls(array: pa.Array, field: pa.Field, name: str) -> None:
    if array.null_count and not field.nullable:
        raise UnwritableError(_first(array.is_null()), f"{name}: missing, and declared NOT NULL")


def _first(mask: pa.Array) -> int:
    return int(pc.index(mask, True).as_py())


_TEXTS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, str], _Text]], ...] = (
    (pa.types.is_integer, _plain),
    (pa.types.is_floating, _float),
    (pa.types.is_string, _string),
    (pa.types.is_boolean, _plain),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_date32, _date),
    (pa.types.is_decimal, _plain),
    (pa.types.is_binary, _binary),
    (pa.types.is_map, _map),
    (pa.types.is_list, _list),
    (pa.types.is_struct, _struct),
)
