"""The newest row of each key, in columns of Arrow: note the keys of some rows, then say which rows no other follows."""

from __future__ import annotations

from typing import NamedTuple

from logstore.records.kernels.native import I64, i64, inner, kernel, numbers, put64, put_valid, u8, u32
from logstore.records.kernels.offset_map import (
    NOTE_BYTES,
    STORED,
    WAITING_MAX,
    bit_of,
    first_place,
    has_bit,
    hash_of,
    latest,
    near_place,
    note_gone,
    put_waiting,
)


class KeyRows(NamedTuple):
    """Rows, and where their keys and offsets are: a binary column from its row `first` on, and int64.

    `valid`: the bits of keys that are there (0: all are), and `values` those of values. Only keys whose hash has the
    bits `share` under `mask` are looked at.
    """

    ends: int
    data: int
    valid: int
    first: int
    offsets: int
    values: int
    first_value: int
    rows: int
    mask: int
    share: int


class Collected(NamedTuple):
    """`row`: the one that comes next; `said`: what `offset_map.put` said of the first that was not stored."""

    row: int
    said: int


@inner
def _is_set(bits: int, row: int) -> bool:
    return bits == 0 or (u8(bits + (row >> 3)) >> (row & 7)) & 1 != 0


@inner
def _note(table: int, keys: KeyRows, row: int, note: int) -> bool:
    """Note the row if it has a key of this share; else it counts for nothing."""
    start = u32(keys.ends + 4 * (keys.first + row))
    size = u32(keys.ends + 4 * (keys.first + row + 1)) - start
    h = hash_of(keys.data + start, size)
    if (h >> 56) & keys.mask != keys.share or not _is_set(keys.valid, keys.first + row):
        note_gone(table, i64(keys.offsets + 8 * row))
        return False
    put64(note, h)
    put64(note + 8, first_place(table, h))
    put64(note + 16, keys.data + start)
    put64(note + 24, size)
    put64(note + 32, i64(keys.offsets + 8 * row))
    return True


@kernel(numbers(Collected)(I64, I64, numbers(KeyRows), I64))
def collect_rows(table: int, waiting: int, keys: KeyRows, row: int) -> Collected:
    """Note the keys from `row` on; stops before some rows of which one has no room. `waiting`: `WAITING_BYTES`."""
    begin, count = row, 0
    while row < keys.rows:
        count += _note(table, keys, row, waiting + NOTE_BYTES * count)
        row += 1
        if count == WAITING_MAX or row == keys.rows:
            said, _ = put_waiting(table, waiting, count)
            if said != STORED:
                return Collected(begin, said)
            begin, count = row, 0
    return Collected(row, STORED)


@kernel(I64(I64, I64, numbers(KeyRows), I64))
def newest_rows(table: int, waiting: int, keys: KeyRows, to: int) -> int:
    """Write a bit for each row at `to`: whether it is the newest of a key of this share, and has a value; count them.

    Their keys are in the table.
    """
    kept, begin = 0, 0
    while begin < keys.rows:
        some = min(keys.rows - begin, WAITING_MAX)
        looked_up = 0  # a bit for each row that the bitmap does not tell about
        for i in range(some):
            if not has_bit(table, i64(keys.offsets + 8 * (begin + i))):
                looked_up |= int(_note(table, keys, begin + i, waiting + NOTE_BYTES * i)) << i
        for i in range(some):
            note = waiting + NOTE_BYTES * i
            if looked_up >> i & 1:
                put64(note + 8, near_place(table, i64(note), i64(note + 8)))
        for i in range(some):
            row, note = begin + i, waiting + NOTE_BYTES * i
            offset = i64(keys.offsets + 8 * row)
            if has_bit(table, offset):
                stays = not bit_of(table, offset)
            elif looked_up >> i & 1:
                stays = offset >= latest(table, i64(note), i64(note + 8), i64(note + 16), i64(note + 24))
            else:
                stays = False
            stays = stays and _is_set(keys.values, keys.first_value + row)
            put_valid(to, row, stays)
            kept += stays
        begin += some
    return kept
