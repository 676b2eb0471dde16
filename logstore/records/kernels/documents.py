"""Which values look like one JSON object each, by their brackets and quotes: a parser may take these as lines."""

from __future__ import annotations

from logstore.records.kernels.native import I64, VOID, i64, inner, kernel, put8, u8

_QUOTE, _BACKSLASH = 0x22, 0x5C
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_ARRAY, _CLOSE_ARRAY = 0x7B, 0x7D, 0x5B, 0x5D
_ZERO, _NINE, _I, _N = 0x30, 0x39, 0x49, 0x4E


@inner
def _string_end(at: int, end: int) -> int:
    """Where the string that begins at `at` has its closing quote; `end`: it has none."""
    at += 1
    while at < end:
        byte = u8(at)
        if byte == _QUOTE:
            return at
        at += 2 if byte == _BACKSLASH else 1
    return end


@inner
def _pair_end(at: int, end: int, depth_max: int, digits_max: int) -> int:
    """Where the brace or bracket that is at `at` has its partner; `end`: it has none, or what is inside is not plain.

    NaN and Infinity (N, I) are not.
    """
    depth, digits = 0, 0
    while at < end and depth <= depth_max and digits <= digits_max:
        byte = u8(at)
        digits = digits + 1 if _ZERO <= byte <= _NINE else 0
        if byte == _QUOTE:
            at = _string_end(at, end)
        elif byte in (_OPEN_OBJECT, _OPEN_ARRAY):
            depth += 1
        elif byte in (_CLOSE_OBJECT, _CLOSE_ARRAY):
            depth -= 1
            if depth == 0:
                return at
        elif byte in (_I, _N):
            return end
        at += 1
    return end


@kernel(VOID(I64, I64, I64, I64, I64, I64))
def plain_objects(values: int, sizes: int, rows: int, depth_max: int, digits_max: int, to: int) -> None:
    """Write a byte per value: 1 if it looks like one JSON object; a null (size -1) does not.

    Nothing is before its first brace, nor behind the partner of this; at most `depth_max` brackets are open at once; no
    number has more than `digits_max` digits in a row. It may still be no JSON.
    """
    for row in range(rows):
        at, size = i64(values + 8 * row), i64(sizes + 8 * row)
        is_plain = size >= 2 and u8(at) == _OPEN_OBJECT and u8(at + size - 1) == _CLOSE_OBJECT
        if is_plain:
            is_plain = _pair_end(at, at + size, depth_max, digits_max) == at + size - 1
        put8(to + row, 1 if is_plain else 0)
