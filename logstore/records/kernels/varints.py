"""Zigzag varints of the record format, read within bounds and written."""

from __future__ import annotations

from logstore.records.kernels.native import copy, inner, put8, seldom, u8

BAD = -(2**40)  # stands for a number that is cut off or too long; no length or delta of a record is as small


@inner
def _zigzag(number: int) -> int:
    return ((number >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(number & 1)


@inner
def _short(at: int, end: int) -> tuple[int, int]:
    """(number, what follows) of one or two bytes, nearly all there are in records; or (0, at)."""
    if at + 1 < end:
        first, second = u8(at), u8(at + 1)
        if first < 0x80:
            return _zigzag(first), at + 1
        if second < 0x80:
            return _zigzag((first & 0x7F) | (second << 7)), at + 2
    return 0, at


@seldom
def _unsigned(at: int, end: int, bytes_max: int) -> tuple[int, int]:
    """(number, still as zigzag, of at most so many bytes; what follows), or (0, at)."""
    number = 0
    for i in range(min(bytes_max, end - at)):
        byte = u8(at + i)
        number |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return number, at + i + 1
    return 0, at


@inner
def varint(at: int, end: int) -> tuple[int, int]:
    """(number of at most 5 bytes, what follows), or (BAD, at)."""
    number, after = _short(at, end)
    if after == at:
        number, after = _unsigned(at, end, 5)
        number = _zigzag(number & 0xFFFFFFFF) if after > at else BAD
    return number, after


@inner
def varlong(at: int, end: int) -> tuple[int, int]:
    """(number of at most 10 bytes, what follows), or (0, beyond the end)."""
    number, after = _short(at, end)
    if after == at:
        number, after = _unsigned(at, end, 10)
        number, after = _zigzag(number), after if after > at else end + 1
    return number, after


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
