"""Zigzag varints of the record format, read within bounds and written."""

from __future__ import annotations

from logstore.records.kernels.native import copy, inner, put8, u8

BAD = -(2**40)  # stands for a number that is cut off or too long; no length or delta of a record is as small


@inner
def varint(at: int, end: int) -> tuple[int, int]:
    """(number of at most 5 bytes, what follows), or (BAD, at)."""
    if at < end:
        first = u8(at)
        if first < 0x80:
            return (first >> 1) ^ -(first & 1), at + 1
    number = 0
    for i in range(5):
        if at + i >= end:
            break
        byte = u8(at + i)
        number |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            number &= 0xFFFFFFFF
            return (number >> 1) ^ -(number & 1), at + i + 1
    return BAD, at


@inner
def varlong(at: int, end: int) -> tuple[int, int]:
    """(number of at most 10 bytes, what follows), or (0, beyond the end)."""
    number = 0
    for i in range(10):
        if at + i >= end:
            break
        byte = u8(at + i)
        number |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return ((number >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(number & 1), at + i + 1
    return 0, end + 1


@inner
def field(at: int, end: int) -> tuple[int, int]:
    """(size of a field, or -1 for null; where its bytes are), or (BAD, at) if it does not end by `end`."""
    size, at = varint(at, end)
    if size < -1 or size > end - at:
        return BAD, at
    return size, at


@inner
def varint_bytes(number: int) -> int:
    """How many bytes `put_varint` writes."""
    rest = (number << 1) ^ (number >> 63)
    size = 1
    while rest & ~0x7F:
        rest = (rest >> 7) & 0x01FFFFFFFFFFFFFF
        size += 1
    return size


@inner
def put_varint(at: int, number: int) -> int:
    """Write `number` and return what follows."""
    rest = (number << 1) ^ (number >> 63)
    while rest & ~0x7F:
        put8(at, (rest & 0x7F) | 0x80)
        rest = (rest >> 7) & 0x01FFFFFFFFFFFFFF
        at += 1
    put8(at, rest)
    return at + 1


@inner
def field_bytes(size: int) -> int:
    """How many bytes `put_field` writes."""
    return varint_bytes(size) + max(size, 0)


@inner
def put_field(at: int, source: int, size: int) -> int:
    """Write a field of `size` bytes (-1: null) and return what follows."""
    at = put_varint(at, size)
    if size > 0:
        copy(at, source, size)
        at += size
    return at
