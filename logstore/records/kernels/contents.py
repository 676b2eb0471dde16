"""A checksum of rows that ignores their order: the sum of a hash per row."""

from __future__ import annotations

from logstore.records.addresses import Rows
from logstore.records.kernels.native import I64, i64, inner, kernel, numbers, u8

# Odd, with bits all over: those of the golden ratio and of the square root of 3.
_MIX, _STEP = 0x9E3779B97F4A7C15 - 2**64, 0xBB67AE8584CAA73B - 2**64


@inner
def _mixed(h: int) -> int:
    h = (h ^ (h >> 29)) * _MIX
    h = (h ^ (h >> 32)) * _STEP
    return h ^ (h >> 31)


@inner
def _with_field(h: int, at: int, size: int) -> int:
    """The hash with one more field; null (size -1) differs from empty."""
    h = _mixed(h + size)
    words_end = at + (size & ~7) if size > 0 else at
    for word in range(at, words_end, 8):
        h = (h ^ i64(word)) * _MIX
        h ^= h >> 32
    tail = 0
    for i in range(size & 7 if size > 0 else 0):
        tail |= u8(words_end + i) << (8 * i)
    return (h ^ tail) * _STEP


@inner
def _with_headers(h: int, rows: Rows, row: int) -> int:
    first, count = i64(rows.headers + 8 * row), i64(rows.header_counts + 8 * row)
    h = _mixed(h + count)
    for i in range(first, first + count):
        h = _with_field(h, i64(rows.header_key + 8 * i), i64(rows.header_key_sizes + 8 * i))
        h = _with_field(h, i64(rows.header_value + 8 * i), i64(rows.header_value_sizes + 8 * i))
    return h


@kernel(I64(numbers(Rows), I64, I64, I64, I64))
def digest(rows: Rows, count: int, seed: int, timestamps: int, partitions: int) -> int:
    """Return the sum (modulo 2^64) of the hashes of all rows.

    `timestamps` and `partitions` are int64 per row, 0: they do not count.
    """
    total = 0
    for row in range(count):
        h = seed
        if rows.key_sizes:
            h = _with_field(h, i64(rows.key + 8 * row), i64(rows.key_sizes + 8 * row))
        h = _with_field(h, i64(rows.value + 8 * row), i64(rows.value_sizes + 8 * row))
        if rows.headers:
            h = _with_headers(h, rows, row)
        if timestamps:
            h = _mixed(h ^ i64(timestamps + 8 * row))
        if partitions:
            h = _mixed(h + i64(partitions + 8 * row))
        total += _mixed(h)
    return total
