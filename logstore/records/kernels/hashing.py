"""Partitions of whole key columns."""

from __future__ import annotations

from logstore.records.kernels.native import I64, VOID, i64, inner, kernel, put32, u8, u32


@inner
def _rotated(number: int, by: int) -> int:
    return ((number << by) | (number >> (32 - by))) & 0xFFFFFFFF


@inner
def _times(number: int, factor: int) -> int:
    return (number * factor) & 0xFFFFFFFF


@inner
def _murmur3(at: int, size: int) -> int:
    """MurmurHash3_x86_32, seed 0."""
    h = 0
    words_end = at + (size & ~3)
    for word in range(at, words_end, 4):
        h ^= _times(_rotated(_times(u32(word), 0xCC9E2D51), 15), 0x1B873593)
        h = (_rotated(h, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    tail = 0
    for i in range(size & 3):
        tail |= u8(words_end + i) << (8 * i)
    h ^= _times(_rotated(_times(tail, 0xCC9E2D51), 15), 0x1B873593)
    h ^= size
    h = _times(h ^ (h >> 16), 0x85EBCA6B)
    h = _times(h ^ (h >> 13), 0xC2B2AE35)
    return h ^ (h >> 16)


@inner
def _murmur2(at: int, size: int) -> int:
    """MurmurHash2 with the seed of Kafka's Java clients."""
    m = 0x5BD1E995
    h = 0x9747B28C ^ size
    words_end = at + (size & ~3)
    for word in range(at, words_end, 4):
        k = _times(u32(word), m)
        h = _times(h, m) ^ _times(k ^ (k >> 24), m)
    if size & 3:
        for i in range(size & 3):
            h ^= u8(words_end + i) << (8 * i)
        h = _times(h, m)
    h = _times(h ^ (h >> 13), m)
    return h ^ (h >> 15)


@kernel(VOID(I64, I64, I64, I64, I64, I64))
def partitions_of(keys: int, sizes: int, rows: int, partitions: int, java: int, to: int) -> None:
    """Write the int32 partition of every key that is not null (size -1): murmur2 if `java`, else murmur3."""
    for row in range(rows):
        size = i64(sizes + 8 * row)
        if size >= 0:
            at = i64(keys + 8 * row)
            hashed = _murmur2(at, size) if java else _murmur3(at, size)
            put32(to + 4 * row, (hashed & 0x7FFFFFFF) % partitions)
