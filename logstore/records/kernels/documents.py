"""Which values look like one JSON object each whose members have the declared types: Arrow's parser takes all or none.

A value is plain if it begins and ends with its braces, nests little, and has short numbers, no NaN and no Infinity; if
its members of a declared name have a value that fits the declared type; and if no declared one is missing that must be
there. It may still be no JSON; nor is it looked into objects and arrays. A value that fits in an unusual way, such as a
decimal in a text that begins with a plus, is not plain.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.records.kernels.json_values import (
    BACKSLASH,
    COLON,
    COMMA,
    MINUS,
    QUOTE,
    SPACE,
    byte_at,
    is_base64,
    is_day,
    is_digit,
    is_fraction,
    is_integer,
    is_moment,
)
from logstore.records.kernels.native import I64, VOID, i64, inner, kernel, numbers, put8, seldom, u8

# The kinds of a value, by its first byte.
TEXT, NUMBER, BOOLEAN, NULL, OBJECT, ARRAY = (1 << bit for bit in range(6))
# The rules of a text or a number.
ANY, DAY, MOMENT, LOCAL_MOMENT, BASE64, INTEGER, FRACTION = range(7)

PLAIN, MORE = 1, 2

_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_ARRAY, _CLOSE_ARRAY = 0x7B, 0x7D, 0x5B, 0x5D
_F, _I, _N, _T, _SMALL_N = 0x66, 0x49, 0x4E, 0x74, 0x6E


class Members(NamedTuple):
    """The declared members, int64 each: the `kinds` that fit, the `rules` of their texts and numbers, `required`.

    `digits`: the most that are before the point, `scales`: after it, `limits`: the largest integer. At most `depth_max`
    brackets may be open inside of any member, and no number may be longer than `digits_max`.
    """

    names: int
    name_sizes: int
    kinds: int
    rules: int
    digits: int
    scales: int
    limits: int
    total: int
    required: int
    required_total: int
    depth_max: int
    digits_max: int


@inner
def no_space(at: int, end: int) -> int:
    while at < end and u8(at) <= SPACE:  # a parser refuses the other ones below it
        at += 1
    return at


@inner
def string_end(at: int, end: int) -> int:
    """Where the string that begins at `at` has its closing quote; `end`: it has none."""
    at += 1
    while at < end:
        byte = u8(at)
        if byte == QUOTE:
            return at
        at += 2 if byte == BACKSLASH else 1
    return end


@seldom
def _pair_end(at: int, end: int, depth_max: int, digits_max: int) -> int:
    """Where the brace or bracket at `at` has its partner; `end`: it has none, or what is inside is not plain."""
    depth, digits = 0, 0
    while at < end and depth <= depth_max and digits <= digits_max:
        byte = u8(at)
        digits = digits + 1 if is_digit(byte) else 0
        if byte == QUOTE:
            at = string_end(at, end)
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
        if byte <= SPACE or byte in (COMMA, _CLOSE_OBJECT, _CLOSE_ARRAY):
            return at
        at += 1
    return end


@inner
def _kind(byte: int) -> int:
    if byte == QUOTE:
        return TEXT
    if byte == MINUS or is_digit(byte):
        return NUMBER
    if byte in (_T, _F):
        return BOOLEAN
    if byte == _OPEN_OBJECT:
        return OBJECT
    if byte == _OPEN_ARRAY:
        return ARRAY
    return NULL if byte == _SMALL_N else 0


@inner
def value_end(at: int, end: int, depth_max: int, digits_max: int) -> int:
    """Where the value that begins at `at` ends; `end`: nowhere, or it is not plain."""
    kind = _kind(byte_at(at, end))
    if kind == TEXT:
        return min(string_end(at, end) + 1, end)
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
def member_of(members: Members, at: int, size: int) -> int:
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
    kind = _kind(u8(at))
    if kinds & kind == 0:
        return False
    rule = i64(members.rules + 8 * number)
    if rule == ANY or kind & (TEXT | NUMBER) == 0:
        return True
    if kind == TEXT:
        at, stop = at + 1, stop - 1
    if rule == INTEGER:
        return is_integer(at, stop, i64(members.digits + 8 * number), i64(members.limits + 8 * number))
    if rule == FRACTION:
        return is_fraction(at, stop, i64(members.digits + 8 * number), i64(members.scales + 8 * number))
    if rule == DAY:
        return is_day(at, stop)
    if rule == BASE64:
        return is_base64(at, stop)
    return is_moment(at, stop, rule == MOMENT)


@inner
def _object_end(members: Members, at: int, end: int) -> int:
    """Where the object that begins at `at` has its closing brace; `end`: it has none, or is not plain.

    Negative: one of its members is not declared.
    """
    at, missing, sign = no_space(at + 1, end), members.required_total, 1
    if byte_at(at, end) == _CLOSE_OBJECT:
        return end if missing else at
    while byte_at(at, end) == QUOTE:
        name, at = at + 1, string_end(at, end)
        number = member_of(members, name, at - name)
        if number < 0:
            sign = -1
        at = no_space(at + 1, end)
        if byte_at(at, end) != COLON:
            return end
        at = no_space(at + 1, end)
        stop = value_end(at, end, members.depth_max, members.digits_max)
        if stop == end or (number >= 0 and not _fits(members, number, at, stop)):
            return end
        if number >= 0 and i64(members.required + 8 * number):
            missing -= 1
        at = no_space(stop, end)
        if byte_at(at, end) != COMMA:
            return sign * at if byte_at(at, end) == _CLOSE_OBJECT and missing == 0 else end
        at = no_space(at + 1, end)
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
