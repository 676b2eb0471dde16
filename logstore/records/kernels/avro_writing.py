"""Arrow's buffers to Avro data: a program of instructions runs over every row, as in `avro_reading`.

An instruction is eight int64: the operation, then mostly the counter of its level, which says which item is written
next, the values or offsets, and the bytes of validity (0: all are there). Importing this module compiles, or loads what
was compiled.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.records.kernels.avro_values import is_within
from logstore.records.kernels.native import (
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
from logstore.records.kernels.varints import put_varint

WORDS = 8  # of an instruction
_STEP = 8 * WORDS
_NUMBER_BYTES = 10  # a varint takes at most

# Operations that write one value. Words: 1 counter of the level, 2 values or offsets, 3 validity, or as said.
INT32 = 0
INT64 = 1  # 4 divisor
BOOLEAN = 2
COPY4 = 3
COPY8 = 4
BYTES = 5  # 4 bytes
FIXED = 6  # 4 bytes, 5 size
DECIMAL = 7  # 4 size (-1: before the bytes), 5 and 6 low and high half of the limit
REQUIRED = 8  # nothing, of a value that must be there
# Operations that go elsewhere.
NULLABLE = 9  # 4 number of the branch (-1: comes later), 5 that of null, 6 where to go after a null
MEMBER = 10  # 4 number of the branch, 6 where to go if it is not this one
BLOCK = 11  # 4 counter of the items, 5 items end, 6 where to go if there are none
NEXT = 12  # 4 counter of the items, 5 items end, 6 where an item begins
JUMP = 13  # 6 to where
FAIL = 14
DONE = 15

# Reasons for which a row cannot be written.
MISSING = 1
BAD_SYMBOL = 2
BAD_SIZE = 3
BAD_DECIMAL = 4
NO_MEMBER = 5
NO_ROOM = 6  # none of the row's: there is to be more


class Output(NamedTuple):
    """The program, the counter of the rows, and of the values that are written their offsets, bytes and room.

    `before` are bytes that each value begins with.
    """

    program: int
    row: int
    begin: int
    rows: int
    offsets: int
    data: int
    room: int
    before: int
    before_bytes: int


class Written(NamedTuple):
    """The row to go on with; if it is not the end, why, and the number of the instruction."""

    row: int
    error: int
    at: int


@inner
def _signed32(number: int) -> int:
    return (number ^ 0x80000000) - 0x80000000


@seldom
def _decimal_bytes(low: int, high: int) -> int:
    """The fewest bytes that hold a number of 128 bits with its sign."""
    sign, size = -1 if high < 0 else 0, 16
    while size > 1:
        top = (high >> (8 * (size - 9))) if size > 8 else (low >> (8 * (size - 1)))
        after = (high >> (8 * (size - 10))) if size > 9 else (low >> (8 * (size - 2)))
        if (top & 0xFF) != (sign & 0xFF) or ((after >> 7) & 1) != (sign & 1):
            return size
        size -= 1
    return size


@inner
def _put_decimal(low: int, high: int, out: int, size: int) -> None:
    """Write the number in so many bytes, the highest first."""
    sign = -1 if high < 0 else 0
    for i in range(size):
        at = size - 1 - i
        byte = sign if at > 15 else (high >> (8 * (at - 8))) if at > 7 else (low >> (8 * at))
        put8(out + i, byte)


@inner
def _decimal(p: int, index: int, out: int, end: int) -> tuple[int, int]:
    low, high = i64(i64(p + 16) + 16 * index), i64(i64(p + 16) + 16 * index + 8)
    if not is_within(low, high, i64(p + 40), i64(p + 48)):
        return BAD_DECIMAL, out
    size = i64(p + 32)
    fixed = size >= 0
    if not fixed:
        size = _decimal_bytes(low, high)
    if size + _NUMBER_BYTES > end - out:
        return NO_ROOM, out
    if not fixed:
        out = put_varint(out, size)
    _put_decimal(low, high, out, size)
    return 0, out + size


@inner
def _bytes(op: int, p: int, index: int, out: int, end: int) -> tuple[int, int]:
    offsets = i64(p + 16) + 4 * index
    begin = u32(offsets)
    size = u32(offsets + 4) - begin
    if op == FIXED and size != i64(p + 40):
        return BAD_SIZE, out
    if size + _NUMBER_BYTES > end - out:
        return NO_ROOM, out
    if op == BYTES:
        out = put_varint(out, size)
    copy(out, i64(p + 32) + begin, size)
    return 0, out + size


@inner
def _value(op: int, p: int, out: int, end: int) -> tuple[int, int]:
    """(error, where the next value is written)."""
    index, validity, values = i64(i64(p + 8)), i64(p + 24), i64(p + 16)
    if validity and not u8(validity + index):
        return MISSING, out
    if BYTES <= op <= FIXED:
        return _bytes(op, p, index, out, end)
    if op == DECIMAL:
        return _decimal(p, index, out, end)
    if end - out < _NUMBER_BYTES:
        return NO_ROOM, out
    if op == INT32:
        number = _signed32(u32(values + 4 * index))
        out = put_varint(out, number)
        return (BAD_SYMBOL if i64(p + 32) and number < 0 else 0), out
    if op == INT64:
        number, divisor = i64(values + 8 * index), i64(p + 32)
        out = put_varint(out, number if divisor == 1 else number // divisor)
    elif op == BOOLEAN:
        put8(out, u8(values + index))
        out += 1
    elif op == COPY4:
        put32(out, u32(values + 4 * index))
        out += 4
    elif op == COPY8:
        put64(out, i64(values + 8 * index))
        out += 8
    return 0, out


@inner
def _branched(op: int, p: int, out: int) -> tuple[int, int, int]:
    """(error, where the next value is written, the next instruction)."""
    index, validity = i64(i64(p + 8)), i64(p + 24)
    is_there = validity == 0 or u8(validity + index) != 0
    if is_there:
        if i64(p + 32) >= 0:
            out = put_varint(out, i64(p + 32))
        return 0, out, p + _STEP
    if op == NULLABLE:
        if i64(p + 40) < 0:
            return MISSING, out, p
        out = put_varint(out, i64(p + 40))
    return 0, out, i64(p + 48)


@inner
def _jumped(op: int, p: int, out: int, end: int) -> tuple[int, int, int]:
    if op == JUMP:
        return 0, out, i64(p + 48)
    if end - out < _NUMBER_BYTES:
        return NO_ROOM, out, p
    if op <= MEMBER:
        return _branched(op, p, out)
    items = i64(p + 32)
    if op == NEXT:
        number = i64(items) + 1
        put64(items, number)
        if number < i64(i64(p + 40)):
            return 0, out, i64(p + 48)
        put8(out, 0)
        return 0, out + 1, p + _STEP
    index, validity = i64(i64(p + 8)), i64(p + 24)
    if validity and not u8(validity + index):
        return MISSING, out, p
    begin, stop = u32(i64(p + 16) + 4 * index), u32(i64(p + 16) + 4 * index + 4)
    if begin == stop:
        put8(out, 0)
        return 0, out + 1, i64(p + 48)
    put64(items, begin)
    put64(i64(p + 40), stop)
    return 0, put_varint(out, stop - begin), p + _STEP


@inner
def _write_row(p: int, out: int, end: int) -> tuple[int, int, int]:
    """(error, where the next value is written, the instruction that was the last)."""
    error = 0
    while error == 0:
        op = i64(p)
        if op <= REQUIRED:
            error, out = _value(op, p, out, end)
            if error == 0:
                p += _STEP
        elif op <= JUMP:
            error, out, p = _jumped(op, p, out, end)
        elif op == FAIL:
            error = NO_MEMBER
        else:
            break
    return error, out, p


@kernel(numbers(Written)(numbers(Output)))
def write_rows(work: Output) -> Written:
    """Write the rows, one after the other; stop at one that cannot be written, or where more room is needed."""
    end = work.data + work.room
    for row in range(work.begin, work.rows):
        put64(work.row, row)
        out = work.data + u32(work.offsets + 4 * row)
        if work.before_bytes > end - out:
            return Written(row, NO_ROOM, 0)
        copy(out, work.before, work.before_bytes)
        error, out, p = _write_row(work.program, out + work.before_bytes, end)
        if error:
            return Written(row, error, (p - work.program) // _STEP)
        put32(work.offsets + 4 * row + 4, out - work.data)
    return Written(work.rows, 0, 0)
