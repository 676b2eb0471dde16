"""The headers of records: checked while records are decoded, written to columns by a second pass."""

from __future__ import annotations

from typing import NamedTuple

from logstore.records.kernels.native import I64, PAIR, copy, i64, inner, kernel, numbers, put32, put_valid, seldom, u8
from logstore.records.kernels.varints import BAD, field, varint

_UNBOUNDED = 2**63 - 1


class HeaderColumns(NamedTuple):
    list_offsets: int
    list_validity: int
    key_offsets: int
    key_bytes: int
    value_offsets: int
    value_bytes: int
    value_validity: int


@inner
def headers_at(at: int, end: int) -> tuple[int, int, int, int]:
    """(what follows, count or BAD, bytes of keys, bytes of values) of the headers at `at`."""
    if at < end and u8(at) == 0:
        return at + 1, 0, 0, 0
    return _some_headers(at, end)


@seldom
def _some_headers(at: int, end: int) -> tuple[int, int, int, int]:
    count, at = varint(at, end)
    keys = values = 0
    if count < 0 or count > (end - at) >> 1:
        return at, BAD, keys, values
    for _ in range(count):
        size, at = field(at, end)
        if size < 0:
            return at, BAD, keys, values
        at += size
        keys += size
        size, at = field(at, end)
        if size == BAD:
            return at, BAD, keys, values
        at += max(size, 0)
        values += max(size, 0)
    return at, count, keys, values


@kernel(PAIR(I64, I64, numbers(HeaderColumns)))
def decode_headers(spots: int, rows: int, into: HeaderColumns) -> tuple[int, int]:
    """Write the headers at `spots`, which `decode` checked, and return (rows without any, null values)."""
    total = keys = values = without = nulls = 0
    for offsets in (into.list_offsets, into.key_offsets, into.value_offsets):
        put32(offsets, 0)
    for row in range(rows):
        count, at = varint(i64(spots + 8 * row), _UNBOUNDED)
        put_valid(into.list_validity, row, count > 0)
        without += count == 0
        for _ in range(count):
            size, at = varint(at, _UNBOUNDED)
            copy(into.key_bytes + keys, at, size)
            keys += size
            put32(into.key_offsets + 4 * total + 4, keys)
            size, at = varint(at + size, _UNBOUNDED)
            put_valid(into.value_validity, total, size >= 0)
            if size < 0:
                nulls += 1
            else:
                copy(into.value_bytes + values, at, size)
                values += size
                at += size
            put32(into.value_offsets + 4 * total + 4, values)
            total += 1
        put32(into.list_offsets + 4 * row + 4, total)
    return without, nulls
