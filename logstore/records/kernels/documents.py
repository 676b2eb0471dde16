"""Which values look like one JSON object each whose members have the declared types: Arrow's parser takes all or none.

A value is plain if it begins and ends with its braces, nests little, and has short numbers, no NaN and no Infinity; if
its members of a declared name have a value of the declared kind; and if no declared one is missing that must be there.
It may still be no JSON, or not fit: only what is cheap is looked at.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.records.kernels.native import I64, VOID, i64, inner, kernel, numbers, put8, seldom, u8

# The kinds of a value, by its first byte; a day is text that begins with one.
TEXT, NUMBER, BOOLEAN, NULL, OBJECT, ARRAY, DAY = (1 << bit for bit in range(7))

PLAIN, MORE = 1, 2

_QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS = 0x22, 0x5C, 0x2C, 0x3A, 0x2D
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_ARRAY, _CLOSE_ARRAY = 0x7B, 0x7D, 0x5B, 0x5D
_ZERO, _NINE, _SPACE, _F, _I, _N, _T, _SMALL_N = 0x30, 0x39, 0x20, 0x66, 0x49, 0x4E, 0x74, 0x6E
_DAY_SIZE = 10  # 2024-01-31


class Members(NamedTuple):
    """The declared members, int64 each: `kinds` that fit, the most `digits` of an integer (0: it is none), `required`.

    At most `depth_max` brackets may be open inside of any member, and no number may be longer than `digits_max`.
    """

    names: int
    name_sizes: int
    kinds: int
    digits: int
    total: int
    required: int
    required_total: int
    depth_max: int
    digits_max: int


@inner
def _byte(at: int, end: int) -> int:
    return u8(at) if at < end else 0


@inner
def _no_space(at: int, end: int) -> int:
    while at < end and u8(at) <= _SPACE:  # a parser refuses the other ones below it
        at += 1
    return at


@inner
def _is_digit(byte: int) -> bool:
    return _ZERO <= byte <= _NINE


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


@seldom
def _pair_end(at: int, end: int, depth_max: int, digits_max: int) -> int:
    """Where the brace or bracket at `at` has its partner; `end`: it has none, or what is inside is not plain."""
    depth, digits = 0, 0
    while at < end and depth <= depth_max and digits <= digits_max:
        byte = u8(at)
        digits = digits + 1 if _is_digit(byte) else 0
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


@inner
def _word_end(at: int, end: int) -> int:
    """Where the number or the word that begins at `at` ends."""
    while at < end:
        byte = u8(at)
        if byte <= _SPACE or byte in (_COMMA, _CLOSE_OBJECT, _CLOSE_ARRAY):
            return at
        at += 1
    return end


@inner
def _kind(byte: int) -> int:
    if byte == _QUOTE:
        return TEXT
    if byte == _MINUS or _is_digit(byte):
        return NUMBER
    if byte in (_T, _F):
        return BOOLEAN
    if byte == _OPEN_OBJECT:
        return OBJECT
    if byte == _OPEN_ARRAY:
        return ARRAY
    return NULL if byte == _SMALL_N else 0


@inner
def _value_end(at: int, end: int, depth_max: int, digits_max: int) -> int:
    """Where the value that begins at `at` ends; `end`: nowhere, or it is not plain."""
    kind = _kind(_byte(at, end))
    if kind == TEXT:
        return min(_string_end(at, end) + 1, end)
    if kind in (OBJECT, ARRAY):
        return min(_pair_end(at, end, depth_max, digits_max) + 1, end)
    stop = _word_end(at, end)
    if kind == 0 or stop - at > digits_max:
        return end
    if kind == NUMBER:
        for i in range(at, stop):
            if u8(i) in (_I, _N):
                return end
    return stop


@inner
def _is_integer(at: int, stop: int, digits: int) -> bool:
    """Whether this number has neither fraction nor exponent, and at most so many digits."""
    start = at + 1 if u8(at) == _MINUS else at
    at = start
    while at < stop and _is_digit(u8(at)):
        at += 1
    return at == stop and stop - start <= digits


@inner
def _is_day(at: int, stop: int) -> bool:
    """Whether the text begins with a day of four, two and two digits."""
    if stop - at < _DAY_SIZE:
        return False
    for i in range(_DAY_SIZE):
        byte = u8(at + i)
        if (byte != _MINUS) if i in (4, 7) else not _is_digit(byte):
            return False
    return True


@inner
def _member(members: Members, at: int, size: int) -> int:
    """The number of the member of this name; -1: none is declared."""
    for number in range(members.total):
        if i64(members.name_sizes + 8 * number) == size:
            name, same = i64(members.names + 8 * number), 0
            while same < size and u8(name + same) == u8(at + same):
                same += 1
            if same == size:
                return number
    return -1


@inner
def _fits(members: Members, number: int, at: int, stop: int) -> bool:
    kinds: int = i64(members.kinds + 8 * number)
    digits: int = i64(members.digits + 8 * number)
    kind = _kind(u8(at))
    if kind == TEXT and kinds & DAY:
        return _is_day(at + 1, stop - 1)
    if kind == NUMBER and digits:
        return _is_integer(at, stop, digits)
    return kinds & kind != 0


@inner
def _object_end(members: Members, at: int, end: int) -> int:
    """Where the object that begins at `at` has its closing brace; `end`: it has none, or is not plain.

    Negative: one of its members is not declared.
    """
    at, missing, sign = _no_space(at + 1, end), members.required_total, 1
    if _byte(at, end) == _CLOSE_OBJECT:
        return end if missing else at
    while _byte(at, end) == _QUOTE:
        name, at = at + 1, _string_end(at, end)
        number = _member(members, name, at - name)
        if number < 0:
            sign = -1
        at = _no_space(at + 1, end)
        if _byte(at, end) != _COLON:
            return end
        at = _no_space(at + 1, end)
        stop = _value_end(at, end, members.depth_max, members.digits_max)
        if stop == end or (number >= 0 and not _fits(members, number, at, stop)):
            return end
        if number >= 0 and i64(members.required + 8 * number):
            missing -= 1
        at = _no_space(stop, end)
        if _byte(at, end) != _COMMA:
            return sign * at if _byte(at, end) == _CLOSE_OBJECT and missing == 0 else end
        at = _no_space(at + 1, end)
    return end


@kernel(VOID(I64, I64, I64, numbers(Members), I64))
def plain_objects(values: int, sizes: int, rows: int, members: Members, to: int) -> None:
    """Write a byte per value: PLAIN if it is plain, with MORE if it has undeclared members; a null (size -1) is not."""
    for row in range(rows):
        at, size = i64(values + 8 * row), i64(sizes + 8 * row)
        found = 0
        if size >= 2 and u8(at) == _OPEN_OBJECT:
            end = _object_end(members, at, at + size)
            if abs(end) == at + size - 1:
                found = PLAIN if end > 0 else PLAIN | MORE
        put8(to + row, found)
