"""Texts, numbers and times of JSON as values, where they are written strictly; -1 in place of an end: they are not.

Nothing is read at or behind `end`, whatever is there. A form that few documents have may be refused, too (see
`json_columns`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from logstore.records.kernels.json_values import BACKSLASH, COLON, COMMA, MINUS, QUOTE, SPACE, byte_at, is_digit
from logstore.records.kernels.native import inner, put8, seldom, u8, u32

OPEN, CLOSE, _OPEN_ARRAY, _CLOSE_ARRAY = 0x7B, 0x7D, 0x5B, 0x5D
SMALL_N, SMALL_T = 0x6E, 0x74
_B, _E, _F, _R, _U = (ord(letter) for letter in "befru")
_ZERO, _DOT, _SLASH, _PLUS, _UPPER_T, _UPPER_Z, _LOWER = 0x30, 0x2E, 0x2F, 0x2B, 0x54, 0x5A, 0x20
_TRUE, _ALSE, NULL_WORD = (int.from_bytes(word, "little") for word in (b"true", b"alse", b"null"))

DIGITS = 18  # that an int64 holds, whatever they are
_DIGITS_MAX = 300  # of a number; Python has no limit below 4,300
_EXPONENT_MAX = 300
_DEPTH_MAX = 60
DAY_SIZE = 10  # 2024-01-31
_CLOCK_SIZE = 9  # T10:20:30
_ZONE_SIZE = 6  # +02:00
_FRACTION_MAX = 6
NO_DAY = -1 << 40
TENS = np.array([10**power for power in range(DIGITS + 1)], np.int64)


class Number(NamedTuple):
    """`stop`: where it ends. `size` digits without leading zeros, `digits` are the first 18 of them.

    `fraction`: how many there are behind the point.
    """

    stop: int
    digits: int
    size: int
    fraction: int
    exponent: int
    is_whole: int


@inner
def no_space(at: int, end: int) -> int:
    while at < end and u8(at) in (SPACE, 9, 10, 13):
        at += 1
    return at


@inner
def plain_end(at: int, end: int) -> int:
    """Where the text that is here has its first quote, backslash or control character; or `end`."""
    while at < end:
        byte = u8(at)
        if byte < SPACE or byte in (QUOTE, BACKSLASH):
            return at
        at += 1
    return at


@inner
def _hex(at: int) -> int:
    """The number of four hexadecimal digits; -1: they are none."""
    number = 0
    for i in range(4):
        byte = u8(at + i)
        if is_digit(byte):
            number = number << 4 | (byte - _ZERO)
        elif 0x61 <= byte | _LOWER <= 0x66:
            number = number << 4 | ((byte | _LOWER) - 0x57)
        else:
            return -1
    return number


@inner
def _put_character(to: int, point: int) -> int:
    """Write a character in UTF-8; return where it ends."""
    if point < 0x80:
        put8(to, point)
        return to + 1
    if point < 0x800:
        put8(to, 0xC0 | point >> 6)
    else:
        if point < 0x10000:
            put8(to, 0xE0 | point >> 12)
        else:
            put8(to, 0xF0 | point >> 18)
            to += 1
            put8(to, 0x80 | (point >> 12 & 0x3F))
        to += 1
        put8(to, 0x80 | (point >> 6 & 0x3F))
    put8(to + 1, 0x80 | (point & 0x3F))
    return to + 2


@inner
def _surrogates(at: int, end: int) -> tuple[int, int]:
    """The character of the four digits that begin at `at`, and what follows; -1: half of one, or none."""
    if end - at < 4:
        return -1, at
    point = _hex(at)
    at += 4
    if not 0xD800 <= point < 0xE000:
        return point, at
    if point >= 0xDC00 or end - at < 6 or u8(at) != BACKSLASH or u8(at + 1) != _U:
        return -1, at
    low = _hex(at + 2)
    return (0x10000 + ((point - 0xD800) << 10) + low - 0xDC00 if 0xDC00 <= low < 0xE000 else -1), at + 6


@seldom
def _escape(at: int, end: int) -> tuple[int, int]:
    """The character of the escape that begins at `at`, and what follows; -1: it is none."""
    byte = byte_at(at + 1, end)
    at += 2
    if byte == _U:
        return _surrogates(at, end)
    if byte == SMALL_N:
        return 10, at
    if byte == SMALL_T:
        return 9, at
    if byte == _R:
        return 13, at
    if byte == _B:
        return 8, at
    if byte == _F:
        return 12, at
    return (byte if byte in (QUOTE, BACKSLASH, _SLASH) else -1), at


@seldom
def put_escaped(at: int, end: int, to: int) -> tuple[int, int]:
    """Write the text from `at` on, up to its quote, in UTF-8; (where that is, where what was written ends)."""
    while at < end:
        byte = u8(at)
        if byte == QUOTE:
            return at, to
        if byte < SPACE:
            break
        if byte == BACKSLASH:
            point, at = _escape(at, end)
            if point < 0:
                break
            to = _put_character(to, point)
        else:
            put8(to, byte)
            at, to = at + 1, to + 1
    return -1, to


@seldom
def _text_end(at: int, end: int) -> int:
    """Where the text ends that begins with the quote at `at`."""
    at = plain_end(at + 1, end)
    while byte_at(at, end) == BACKSLASH:
        point, at = _escape(at, end)
        if point < 0:
            return -1
        at = plain_end(at, end)
    return at + 1 if byte_at(at, end) == QUOTE else -1


@inner
def _digits(at: int, end: int, digits: int, count: int) -> tuple[int, int, int]:
    """(where they end, the first of them, how many they are), with those that were before."""
    while at < end and is_digit(u8(at)):
        if count < DIGITS:
            digits = 10 * digits + u8(at) - _ZERO
        if count or u8(at) != _ZERO:
            count += 1
        at += 1
    return at, digits, count


@inner
def _exponent(at: int, end: int) -> tuple[int, int]:
    """(where the exponent ends that begins at `at`, what it is)."""
    sign = byte_at(at, end)
    if sign in (MINUS, _PLUS):
        at += 1
    stop, exponent, _ = _digits(at, end, 0, 0)
    if stop == at or stop - at > 4 or exponent > _EXPONENT_MAX:
        return -1, 0
    return stop, -exponent if sign == MINUS else exponent


@seldom
def number(at: int, end: int) -> Number:
    """Read the number that begins at `at`, without its sign."""
    start, fraction, exponent, is_whole = at, 0, 0, 1
    at, digits, count = _digits(at, end, 0, 0)
    is_one = at == start + 1 or (at > start and u8(start) != _ZERO)
    if byte_at(at, end) == _DOT:
        start = at + 1
        at, digits, count = _digits(start, end, digits, count)
        fraction, is_whole = at - start, 0
        is_one = is_one and 0 < fraction <= _DIGITS_MAX
    if byte_at(at, end) | _LOWER == _E:
        at, exponent = _exponent(at + 1, end)
        is_whole = 0
    return Number(at if is_one and count <= _DIGITS_MAX else -1, digits, count, fraction, exponent, is_whole)


@inner
def signed(at: int, end: int) -> tuple[Number, bool]:
    """(the number that begins at `at`, whether there is a minus before it)."""
    is_negative = byte_at(at, end) == MINUS
    return number(at + 1 if is_negative else at, end), is_negative


@inner
def word_end(at: int, end: int) -> int:
    """Where true, false or null ends."""
    if end - at < 5:  # a bracket follows in any case
        return -1
    word = u32(at)
    if word in (_TRUE, NULL_WORD):
        return at + 4
    return at + 5 if u8(at) == _F and u32(at + 1) == _ALSE else -1


@inner
def two(at: int) -> int:
    """The number of two digits; negative: they are none."""
    high, low = u8(at), u8(at + 1)
    return 10 * (high - _ZERO) + low - _ZERO if is_digit(high) and is_digit(low) else -1000


@inner
def days(at: int) -> int:
    """The days since 1970 of the 10 bytes from `at` on; NO_DAY: they are no day of the years 2 to 9998."""
    century, short, month, day = two(at), two(at + 2), two(at + 5), two(at + 8)
    if century < 0 or short < 0 or u8(at + 4) != MINUS or u8(at + 7) != MINUS or not 1 <= month <= 12 or day < 1:
        return NO_DAY
    year = 100 * century + short
    is_leap = (short if short else century) & 3 == 0
    last = (29 if is_leap else 28) if month == 2 else 30 + ((month ^ month >> 3) & 1)
    if day > last or not 1 < year < 9999:
        return NO_DAY
    if month <= 2:  # years that begin in March have their odd day at the end
        year -= 1
        month += 12
    in_year = (153 * (month - 3) + 2) // 5 + day - 1
    return 365 * year + year // 4 - year // 100 + year // 400 + in_year - 719468


@inner
def clock(at: int, end: int) -> tuple[int, int]:
    """(where the time that begins with its T ends, its microseconds): to the second, and up to six digits more."""
    if end - at < _CLOCK_SIZE or u8(at) not in (_UPPER_T, SPACE) or u8(at + 3) != COLON or u8(at + 6) != COLON:
        return -1, 0
    hour, minute, second = two(at + 1), two(at + 4), two(at + 7)
    if not (0 <= hour <= 23 and 0 <= minute <= 59 and 0 <= second <= 59):
        return -1, 0
    at += _CLOCK_SIZE
    micros = 0
    if byte_at(at, end) == _DOT:
        start = at + 1
        at, micros, _ = _digits(start, end, 0, 0)
        size = at - start
        if not 1 <= size <= _FRACTION_MAX:
            return -1, 0
        micros *= TENS[_FRACTION_MAX - size]
    return at, 1_000_000 * (3600 * hour + 60 * minute + second) + micros


@inner
def zone(at: int, end: int) -> tuple[int, int]:
    """(where Z or an offset as +02:00 ends, the minutes that it is ahead)."""
    byte = byte_at(at, end)
    if byte == _UPPER_Z:
        return at + 1, 0
    if byte not in (_PLUS, MINUS) or end - at < _ZONE_SIZE or u8(at + 3) != COLON:
        return -1, 0
    hours, minutes = two(at + 1), two(at + 4)
    if not (0 <= hours <= 23 and 0 <= minutes <= 59):
        return -1, 0
    ahead = 60 * hours + minutes
    return at + _ZONE_SIZE, -ahead if byte == MINUS else ahead


@inner
def _scalar_end(at: int, end: int) -> int:
    byte = byte_at(at, end)
    if byte == QUOTE:
        return _text_end(at, end)
    if byte == MINUS or is_digit(byte):
        return signed(at, end)[0].stop
    return word_end(at, end)


@inner
def _value_start(at: int, end: int) -> int:
    """Where the value begins of the member whose name begins at `at`."""
    if byte_at(at, end) != QUOTE:
        return -1
    at = _text_end(at, end)
    if at < 0:
        return -1
    at = no_space(at, end)
    return no_space(at + 1, end) if byte_at(at, end) == COLON else -1


@inner
def _after(at: int, end: int, depth: int, objects: int) -> tuple[int, int, int]:
    """(where the next value begins, `depth` and `objects` there) behind a value; depth 0: it was the last one."""
    while depth:
        at = no_space(at, end)
        byte = byte_at(at, end)
        if byte == COMMA:
            at = no_space(at + 1, end)
            if objects & 1:
                at = _value_start(at, end)
            return at, depth if at >= 0 else 0, objects
        if byte != (CLOSE if objects & 1 else _CLOSE_ARRAY):
            return -1, 0, 0
        depth, objects, at = depth - 1, objects >> 1, at + 1
    return at, 0, 0


@seldom
def any_end(at: int, end: int) -> int:
    """Where the value that begins at `at` ends, whatever it is; -1: it is no JSON, or nested deeply."""
    depth = objects = 0  # open brackets; a bit for each, whether it is a brace
    while True:
        byte = byte_at(at, end)
        if byte in (OPEN, _OPEN_ARRAY):
            at = no_space(at + 1, end)
            if byte_at(at, end) != (CLOSE if byte == OPEN else _CLOSE_ARRAY):
                depth, objects = depth + 1, objects << 1 | (byte == OPEN)
                if byte == OPEN:
                    at = _value_start(at, end)
                if at < 0 or depth > _DEPTH_MAX:
                    return -1
                continue
            at += 1
        else:
            at = _scalar_end(at, end)
            if at < 0:
                return -1
        at, depth, objects = _after(at, end, depth, objects)
        if depth == 0:
            return at
