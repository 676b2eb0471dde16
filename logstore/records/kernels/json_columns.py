"""JSON objects of plain members straight to Arrow's buffers: what is read here is what Python would read.

A value is read if it is one strict JSON object, in UTF-8, and each declared member in it is null or has the text that
is usual for its type: integers of up to 64 bits, numbers, text with escapes, true and false, times as
2024-01-31T10:00:00Z. All else is left for somebody who takes more: the row is passed over, as if it had not been there.
Members that are not declared are checked and passed over. The last one of several members of one name counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from logstore.records.kernels.json_parts import (
    CLOSE,
    DAY_SIZE,
    DIGITS,
    NO_DAY,
    NULL_WORD,
    OPEN,
    SMALL_N,
    SMALL_T,
    TENS,
    any_end,
    clock,
    days,
    no_space,
    plain_end,
    put_escaped,
    signed,
    word_end,
    zone,
)
from logstore.records.kernels.json_values import BACKSLASH, COLON, COMMA, QUOTE, byte_at
from logstore.records.kernels.native import (
    I64,
    VOID,
    copy,
    i64,
    inner,
    kernel,
    numbers,
    put8,
    put32,
    put64,
    seldom,
    u8,
    u32,
)

WORDS = 9  # of a column, int64 each
_STEP = 8 * WORDS
# Words: address and size of the name, kind, where values go, where it is noted whether one is there (a byte a row),
# offsets and data of texts, and two numbers.
_NAME, _NAME_SIZE, _KIND, _TO, _VALID, _ENDS, _DATA, _FIRST, _SECOND = range(0, _STEP, 8)

TEXT = 0  # offsets and data
INTEGER = 1  # 8 bytes; first: the largest one
DOUBLE = 2  # 8 bytes; one that needs more than a division is left as text, in offsets and data
BOOLEAN = 3  # 1 byte
MOMENT = 4  # 8 bytes, microseconds; first: whether there may be a zone
DAY = 5  # 8 bytes, days
DECIMAL = 6  # 16 bytes; first: digits in all, second: digits after the point

_ZERO = 0x30
_EXACT_DIGITS, _EXACT_POWER = 15, 22  # a double of these, and a power of ten up to this, are divided without an error
_SHORT = 300  # digits and exponent, so that a double becomes neither infinite nor nothing
_LARGEST_TENTH = ((1 << 63) - 1) // 10
_DAY_MICROS, _MINUTE_MICROS = 86_400_000_000, 60_000_000
_POWERS = np.array([float(f"1e{power}") for power in range(_EXACT_POWER + 1)])


class Objects(NamedTuple):
    """Values to read as columns; `is_read` has room for a byte a value."""

    values: int
    sizes: int
    rows: int
    columns: int
    total: int
    is_read: int


@intrinsic
def _double_store(context: Any, to: Any, number: Any) -> Any:
    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], ir.DoubleType().as_pointer()), align=1)
        return context.get_dummy_value()

    return VOID(I64, types.float64), code


_put_double: Any = _double_store


@inner
def _put_no_text(column: int, row: int) -> None:
    ends = i64(column + _ENDS)
    if ends:
        put32(ends + 4 * row + 4, u32(ends + 4 * row))


@inner
def _put_text(column: int, at: int, stop: int, row: int) -> None:
    ends = i64(column + _ENDS) + 4 * row
    start = u32(ends)
    copy(i64(column + _DATA) + start, at, stop - at)
    put32(ends + 4, start + stop - at)


@inner
def _text(column: int, at: int, end: int, row: int) -> int:
    if u8(at) != QUOTE:
        return -1
    stop = plain_end(at + 1, end)
    byte = byte_at(stop, end)
    if byte == QUOTE:
        _put_text(column, at + 1, stop, row)
        return stop + 1
    if byte != BACKSLASH:
        return -1
    ends, start = i64(column + _ENDS) + 4 * row, i64(column + _DATA)
    stop, to = put_escaped(at + 1, end, start + u32(ends))
    put32(ends + 4, to - start)
    return stop + 1 if stop >= 0 else -1


@inner
def _integer(column: int, at: int, end: int, row: int) -> int:
    found, is_negative = signed(at, end)
    if found.stop < 0 or not found.is_whole or found.size > DIGITS + 1:
        return -1
    number = found.digits
    if found.size > DIGITS:  # one digit more: what does not fit for sure is for others
        last = u8(found.stop - 1) - _ZERO
        if number > _LARGEST_TENTH or (number == _LARGEST_TENTH and last > 7):
            return -1
        number = 10 * number + last
    if number > i64(column + _FIRST):
        return -1
    put64(i64(column + _TO) + 8 * row, -number if is_negative else number)
    return found.stop


@seldom
def _double(column: int, at: int, end: int, row: int) -> int:
    found, is_negative = signed(at, end)
    if found.stop < 0 or (is_negative and found.size == 0):  # Python has -0.0 and 0
        return -1
    to = i64(column + _TO) + 8 * row
    power = found.exponent - found.fraction
    if found.size <= _EXACT_DIGITS and -_EXACT_POWER <= power <= _EXACT_POWER:
        number = float(-found.digits if is_negative else found.digits)
        _put_double(to, number * _POWERS[power] if power >= 0 else number / _POWERS[-power])
    elif found.size == 0:
        _put_double(to, 0.0)
    elif found.size + found.fraction + abs(found.exponent) > _SHORT:
        return -1
    else:
        _put_text(column, at, found.stop, row)
    return found.stop


@seldom
def _decimal(column: int, at: int, end: int, row: int) -> int:
    """The same of a number or a text; without an exponent, and with no more digits after the point than declared."""
    is_text = u8(at) == QUOTE
    found, is_negative = signed(at + 1 if is_text else at, end)
    scale = i64(column + _SECOND)
    if found.stop < 0 or found.exponent or found.fraction > scale or (is_text and byte_at(found.stop, end) != QUOTE):
        return -1
    added = scale - found.fraction
    if max(found.size, found.fraction, 1) + added > min(i64(column + _FIRST), DIGITS):
        return -1
    number = found.digits * TENS[added]
    number = -number if is_negative else number
    to = i64(column + _TO) + 16 * row
    put64(to, number)
    put64(to + 8, number >> 63)
    return found.stop + 1 if is_text else found.stop


@seldom
def _day(column: int, at: int, end: int, row: int) -> int:
    stop = at + 1 + DAY_SIZE
    if u8(at) != QUOTE or byte_at(stop, end) != QUOTE:
        return -1
    found = days(at + 1)
    put64(i64(column + _TO) + 8 * row, found)
    return stop + 1 if found != NO_DAY else -1


@seldom
def _moment(column: int, at: int, end: int, row: int) -> int:
    if u8(at) != QUOTE or end - at <= DAY_SIZE:
        return -1
    found = days(at + 1)
    at, micros = clock(at + 1 + DAY_SIZE, end)
    ahead = 0
    if at >= 0 and byte_at(at, end) != QUOTE and i64(column + _FIRST):
        at, ahead = zone(at, end)
    if found == NO_DAY or at < 0 or byte_at(at, end) != QUOTE:
        return -1
    put64(i64(column + _TO) + 8 * row, _DAY_MICROS * found - _MINUTE_MICROS * ahead + micros)
    return at + 1


@inner
def _member(column: int, at: int, end: int, row: int) -> int:
    """Read the value of a declared member; where it ends, or -1."""
    if at >= end:
        return -1
    kind = i64(column + _KIND)
    is_null = u8(at) == SMALL_N
    put8(i64(column + _VALID) + row, not is_null)
    _put_no_text(column, row)  # there may be another one of this name
    if is_null:
        return at + 4 if end - at > 4 and u32(at) == NULL_WORD else -1
    if kind == TEXT:
        return _text(column, at, end, row)
    if kind == INTEGER:
        return _integer(column, at, end, row)
    if kind == DOUBLE:
        return _double(column, at, end, row)
    return _other(column, kind, at, end, row)


@inner
def _other(column: int, kind: int, at: int, end: int, row: int) -> int:
    if kind == DECIMAL:
        return _decimal(column, at, end, row)
    if kind == MOMENT:
        return _moment(column, at, end, row)
    if kind == DAY:
        return _day(column, at, end, row)
    put8(i64(column + _TO) + row, u8(at) == SMALL_T)
    return word_end(at, end)


@inner
def _column_of(objects: Objects, at: int, size: int, expected: int) -> int:
    """The number of the column of this name, looked for from the expected one on; -1: none is declared."""
    number = expected
    for _ in range(objects.total):
        if number >= objects.total:
            number = 0
        column = objects.columns + _STEP * number
        if i64(column + _NAME_SIZE) == size:
            name, same = i64(column + _NAME), 0
            while same < size and u8(name + same) == u8(at + same):
                same += 1
            if same == size:
                return number
        number += 1
    return -1


@inner
def _begin(objects: Objects, row: int) -> None:
    """Say that the row has no values yet."""
    for number in range(objects.total):
        column = objects.columns + _STEP * number
        put8(i64(column + _VALID) + row, 0)
        _put_no_text(column, row)


@inner
def _is_read(objects: Objects, at: int, end: int, row: int) -> bool:
    """Read the object that begins at `at` as this row; whether it is one, up to `end`."""
    _begin(objects, row)
    at, number = no_space(at + 1, end), -1
    if byte_at(at, end) == CLOSE:
        return at + 1 == end
    while byte_at(at, end) == QUOTE:
        name, at = at + 1, plain_end(at + 1, end)
        if byte_at(at, end) != QUOTE:
            return False
        number = _column_of(objects, name, at - name, number + 1)
        at = no_space(at + 1, end)
        if byte_at(at, end) != COLON:
            return False
        at = no_space(at + 1, end)
        at = any_end(at, end) if number < 0 else _member(objects.columns + _STEP * number, at, end, row)
        if at < 0:
            return False
        at = no_space(at, end)
        if byte_at(at, end) != COMMA:
            return byte_at(at, end) == CLOSE and at + 1 == end
        at = no_space(at + 1, end)
    return False


@kernel(I64(numbers(Objects)))
def read_objects(objects: Objects) -> int:
    """Read values as rows, one after the other; return how many rows there are. A null (size -1) is not read."""
    row = 0
    for i in range(objects.rows):
        at, size = i64(objects.values + 8 * i), i64(objects.sizes + 8 * i)
        is_one = size >= 2 and u8(at) == OPEN and _is_read(objects, at, at + size, row)
        put8(objects.is_read + i, is_one)
        row += is_one
    return row
