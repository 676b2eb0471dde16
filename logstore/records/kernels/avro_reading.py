"""Avro data of any bytes to Arrow's buffers: a program of instructions runs over every row.

A program is made of a writer's and a reader's schema (`logstore.schemas.avro.programs`). An instruction is eight int64:
the operation, then mostly the counter of its level, the buffer to write to, and its bytes of validity. A level is the
rows, or the items of one array: its counter says where all of its columns are written next. A row that does not fit
leaves its code and the number of the instruction, and the counters go back to where they were before it.

A row can make only as much as its bytes allow: items of a block must have room for their least size, and a row has at
most `EMPTY_ITEMS_MAX` items that take no byte. Importing this module compiles, or loads what was compiled.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.records.kernels.avro_values import is_int, is_text, put_decimal, put_double, put_float, widen
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
    u8,
    u32,
)
from logstore.records.kernels.varints import varlong

WORDS = 8  # of an instruction
_STEP = 8 * WORDS
EMPTY_ITEMS_MAX = 1024

# Operations that write one value. Words: 1 counter of the level, 2 buffer or offsets, 3 validity (0: none), or as said.
NULL = 0  # 4 bytes of a value: 0 (it has none), or -1 (offsets; 5 the counter that they follow)
INT32 = 1
INT64 = 2  # 4 factor, 5 most that is multiplied, 6 whether it is a long
INT_FLOAT = 3  # 6 whether it is a long
INT_DOUBLE = 4
BOOLEAN = 5
COPY4 = 6
COPY8 = 7
FLOAT_DOUBLE = 8
BYTES = 9  # 4 bytes, 5 their counter, 6 their room
TEXT = 10
FIXED = 11  # and 7 size
ENUM = 12  # and 7 symbols: how many, then address and size (-1: the reader has none) of each
DECIMAL = 13  # 4 size (-1: before the bytes), 5 and 6 low and high half of the limit
LIST = 14  # 5 counter of the items
VALID = 15
# Operations that go elsewhere.
BRANCH = 16  # 1 how many, 2 where they begin
JUMP = 17  # 1 to where
BLOCK = 18  # 1 items left, 2 least bytes of one, 3 where to go after the last block, 4 counter (0: none), 5 its room
NEXT = 19  # 1 items left, 2 where an item begins, 3 where a block begins, 4 counter
CONSTANT = 20  # 1 address, 2 end
BACK = 21
FAIL = 22
DONE = 23
# Operations that pass over bytes.
SKIP_NUMBER = 24
SKIP_BYTES = 25
SKIP_FIXED = 26  # 1 size
SKIP_BOOLEAN = 27  # 1 size

# Reasons for which a row does not fit.
CUT = 1
BAD_BOOLEAN = 2
BAD_INT = 3
BAD_LENGTH = 4
BAD_BRANCH = 5
BAD_SYMBOL = 6
BAD_TEXT = 7
BAD_DECIMAL = 8
BAD_COUNT = 9
LEFT_OVER = 10
BAD_TIME = 11
MISMATCH = 12
NO_ROOM = 13  # none of the row's: a buffer is to grow, and the row is read again

CODE_BITS = 8
_COUNT_MAX = 1 << 40


class Work(NamedTuple):
    """The program, and that of a null value; counters; values, and a word per row for its error.

    `saved` has room for a copy of the counters, `empty` for a count. `begin`: the row to begin with.
    """

    program: int
    null_program: int
    counters: int
    saved: int
    empty: int
    counters_total: int
    values: int
    sizes: int
    begin: int
    rows: int
    errors: int


class Reached(NamedTuple):
    """The row to go on with; if it is not the end, the counter whose buffer needs so much room."""

    row: int
    counter: int
    needed: int


@inner
def _number(p: int, at: int, end: int, index: int) -> tuple[int, int]:
    """Read an int or a long, and write it as this instruction says; (error, what follows)."""
    op = i64(p)
    number, after = varlong(at, end)
    if after > end:
        return CUT, at
    to = i64(p + 16)
    if op == INT32:
        put32(to + 4 * index, number)
        return 0 if is_int(number) else BAD_INT, after
    if not i64(p + 48) and not is_int(number):
        return BAD_INT, at
    if op == INT64:
        limit = i64(p + 40)
        if number > limit or number < -limit - 1:
            return BAD_TIME, at
        put64(to + 8 * index, number * i64(p + 32))
    elif op == INT_FLOAT:
        put_float(to + 4 * index, number)
    else:
        put_double(to + 8 * index, number)
    return 0, after


@inner
def _plain(p: int, at: int, end: int, index: int) -> tuple[int, int]:
    """Read what has a fixed size, and write it; (error, what follows)."""
    op, to = i64(p), i64(p + 16)
    size = 1 if op == BOOLEAN else 8 if op == COPY8 else 4
    if size > end - at:
        return CUT, at
    if op == BOOLEAN:
        put8(to + index, u8(at))
        return BAD_BOOLEAN if u8(at) > 1 else 0, at + 1
    if op == COPY4:
        put32(to + 4 * index, u32(at))
    elif op == COPY8:
        put64(to + 8 * index, i64(at))
    else:
        widen(to + 8 * index, at)
    return 0, at + size


@inner
def _sized(op: int, size_word: int, at: int, end: int) -> tuple[int, int, int]:
    """(error, where bytes are, their size, which is negative at an error)."""
    if op == FIXED:
        return (0 if size_word <= end - at else CUT), at, size_word
    size, after = varlong(at, end)
    if after > end:
        return CUT, at, -1
    return (BAD_LENGTH if size < 0 or size > end - after else 0), after, size


@inner
def _varied(p: int, at: int, end: int, index: int) -> tuple[int, int, int]:
    """Read bytes of any size, and write them; (error, what follows, the room that is needed)."""
    op = i64(p)
    if op == ENUM:
        number, after = varlong(at, end)
        if after > end:
            return CUT, at, 0
        symbols = i64(p + 56)
        if number < 0 or number >= i64(symbols):
            return BAD_SYMBOL, at, 0
        source, size = i64(symbols + 8 + 16 * number), i64(symbols + 16 + 16 * number)
        if size < 0:
            return MISMATCH, at, 0
    else:
        error, source, size = _sized(op, i64(p + 56), at, end)
        if error:
            return error, at, 0
        after = source + size
        if op == TEXT and not is_text(source, after):
            return BAD_TEXT, at, 0
    counter = i64(p + 40)
    until = i64(counter)
    if until + size > i64(p + 48):
        return NO_ROOM, at, until + size
    copy(i64(p + 32) + until, source, size)
    put64(counter, until + size)
    put32(i64(p + 16) + 4 * index + 4, until + size)
    return 0, after, 0


@inner
def _put_null(p: int, index: int) -> None:
    width, to = i64(p + 32), i64(p + 16)
    if width == -1:
        put32(to + 4 * index + 4, i64(i64(p + 40)))
    elif width == 8:
        put64(to + 8 * index, 0)
    elif width == 4:
        put32(to + 4 * index, 0)
    elif width == 1:
        put8(to + index, 0)
    elif width == 16:
        put64(to + 16 * index, 0)
        put64(to + 16 * index + 8, 0)


@inner
def _skip(p: int, at: int, end: int) -> tuple[int, int]:
    op = i64(p)
    if op >= SKIP_FIXED:
        size = i64(p + 8)
        if size > end - at:
            return CUT, at
        return (BAD_BOOLEAN if op == SKIP_BOOLEAN and u8(at) > 1 else 0), at + size
    number, after = varlong(at, end)
    if after > end:
        return CUT, at
    if op == SKIP_NUMBER:
        return 0, after
    if number < 0 or number > end - after:
        return BAD_LENGTH, at
    return 0, after + number


@inner
def _block(p: int, at: int, end: int) -> tuple[int, int, int]:
    """Read how many items a block has: (error, what follows, the count)."""
    count, after = varlong(at, end)
    if after > end:
        return CUT, at, 0
    if count < 0:
        size, after = varlong(after, end)
        if after > end:
            return CUT, at, 0
        if count < -_COUNT_MAX or size < 0 or size > end - after:
            return BAD_COUNT, at, 0
        count = -count
    least = i64(p + 16)
    if least and count > (end - after) // least:
        return BAD_COUNT, at, 0
    return 0, after, count


@inner
def _open_block(p: int, at: int, end: int, empty: int) -> tuple[int, int, int, int]:
    """(error, what follows, the next instruction, the room that is needed); `empty` is where such items are counted."""
    error, after, count = _block(p, at, end)
    if error:
        return error, at, p, 0
    if count == 0:
        return 0, after, i64(p + 24), 0
    if i64(p + 16) == 0:
        put64(empty, i64(empty) + count)
        if count > EMPTY_ITEMS_MAX or i64(empty) > EMPTY_ITEMS_MAX:
            return BAD_COUNT, at, p, 0
    counter = i64(p + 32)
    if counter and i64(counter) + count > i64(p + 40):
        return NO_ROOM, at, p, i64(counter) + count
    put64(i64(p + 8), count)
    return 0, after, p + _STEP, 0


@inner
def _next_item(p: int) -> int:
    """Count an item; return the next instruction."""
    counter = i64(p + 32)
    if counter:
        put64(counter, i64(counter) + 1)
    left = i64(i64(p + 8)) - 1
    put64(i64(p + 8), left)
    to: int = i64(p + 16) if left else i64(p + 24)
    return to


@inner
def _taken(p: int, at: int, end: int) -> tuple[int, int, int]:
    """(error, what follows, the next instruction)."""
    number, after = varlong(at, end)
    if after > end:
        return CUT, at, p
    if number < 0 or number >= i64(p + 8):
        return BAD_BRANCH, at, p
    return 0, after, i64(i64(p + 16) + 8 * number)


@inner
def _write(op: int, p: int, at: int, end: int) -> tuple[int, int, int]:
    """Read and write one value; (error, what follows, the room that is needed)."""
    index, validity = i64(i64(p + 8)), i64(p + 24)
    if validity:
        put8(validity + index, 0 if op == NULL else 1)
    error = needed = 0
    if op == NULL:
        _put_null(p, index)
    elif op <= INT_DOUBLE:
        error, at = _number(p, at, end, index)
    elif op <= FLOAT_DOUBLE:
        error, at = _plain(p, at, end, index)
    elif op <= ENUM:
        error, at, needed = _varied(p, at, end, index)
    elif op == DECIMAL:
        error, source, size = _sized(FIXED if i64(p + 32) >= 0 else BYTES, i64(p + 32), at, end)
        if error == 0:
            at = source + size
            fits = put_decimal(source, size, i64(p + 40), i64(p + 48), i64(p + 16) + 16 * index)
            error = 0 if fits else BAD_DECIMAL
    elif op == LIST:
        put32(i64(p + 16) + 4 * index + 4, i64(i64(p + 40)))
    return error, at, needed


@inner
def _jumped(op: int, p: int, at: int, end: int, empty: int) -> tuple[int, int, int, int]:
    """(error, what follows, the next instruction, the room that is needed)."""
    if op == BRANCH:
        error, at, p = _taken(p, at, end)
        return error, at, p, 0
    if op == JUMP:
        return 0, at, i64(p + 8), 0
    if op == BLOCK:
        return _open_block(p, at, end, empty)
    return 0, at, _next_item(p), 0


@inner
def _read_row(p: int, at: int, end: int, empty: int) -> tuple[int, int, int]:
    """(error, the instruction that was the last, the room that is needed)."""
    error = needed = back = back_end = 0
    while error == 0:
        op = i64(p)
        if op <= VALID:
            error, at, needed = _write(op, p, at, end)
        elif op <= NEXT:
            error, at, p, needed = _jumped(op, p, at, end, empty)
            continue
        elif op >= SKIP_NUMBER:
            error, at = _skip(p, at, end)
        elif op == CONSTANT:
            back, back_end, at, end = at, end, i64(p + 8), i64(p + 16)
        elif op == BACK:
            at, end = back, back_end
        elif op == FAIL:
            error = MISMATCH
        else:
            error = 0 if at == end else LEFT_OVER
            break
        if error == 0:
            p += _STEP
    return error, p, needed


@kernel(numbers(Reached)(numbers(Work)))
def read_rows(work: Work) -> Reached:
    """Write the columns of all rows that fit, one after the other; stop where a buffer needs more room."""
    for row in range(work.begin, work.rows):
        at, size = i64(work.values + 8 * row), i64(work.sizes + 8 * row)
        copy(work.saved, work.counters, 8 * work.counters_total)
        put64(work.empty, 0)
        begin = work.null_program if size < 0 else work.program
        error, p, needed = _read_row(begin, at, at + max(size, 0), work.empty)
        if error == 0:
            put64(work.errors + 8 * row, 0)
            put64(work.counters, i64(work.counters) + 1)
            continue
        copy(work.counters, work.saved, 8 * work.counters_total)
        if error == NO_ROOM:
            return Reached(row, i64(p + 32) if i64(p) == BLOCK else i64(p + 40), needed)
        put64(work.errors + 8 * row, error | ((p - work.program) // _STEP) << CODE_BITS)
    return Reached(work.rows, 0, 0)


@kernel(VOID(I64, I64, I64, I64))
def wire_ids(values: int, sizes: int, rows: int, to: int) -> None:
    """Write the schema's id of each value in Confluent's framing, an int64: -1 of a null, -2 of none, -3 too short."""
    for row in range(rows):
        at, size = i64(values + 8 * row), i64(sizes + 8 * row)
        found = -1
        if size >= 0:
            if size < 1 or (size < 5 and u8(at) == 0):
                found = -3
            elif u8(at) != 0:
                found = -2
            else:
                found = u8(at + 1) << 24 | u8(at + 2) << 16 | u8(at + 3) << 8 | u8(at + 4)
        put64(to + 8 * row, found)
