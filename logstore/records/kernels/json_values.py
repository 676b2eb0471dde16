"""Whether a text or a number of a JSON document fits a type; one that fits in an unusual way is not seen to."""

from __future__ import annotations

from logstore.records.kernels.native import inner, u8

QUOTE, BACKSLASH, COMMA, COLON, MINUS, SPACE = 0x22, 0x5C, 0x2C, 0x3A, 0x2D, 0x20
_ZERO, _NINE = 0x30, 0x39
_DOT, _SLASH, _PLUS, _EQUALS, _E, _T, _Z, _LARGE_A, _A = 0x2E, 0x2F, 0x2B, 0x3D, 0x65, 0x54, 0x5A, 0x41, 0x61
_LOWER = 0x20  # the bit of a letter that makes it a small one
_LETTERS = 26
_DAY_SIZE = 10  # 2024-01-31
_MICROS_DIGITS = 6
_EXPONENT_DIGITS = 3


@inner
def byte_at(at: int, end: int) -> int:
    return u8(at) if at < end else 0


@inner
def is_digit(byte: int) -> bool:
    return _ZERO <= byte <= _NINE


@inner
def is_integer(at: int, stop: int, digits: int, limit: int) -> bool:
    """Whether this number has neither fraction nor exponent, and is not beyond the limit, which has so many digits."""
    is_negative = u8(at) == MINUS
    if is_negative:
        at += 1
    size = stop - at
    if size < 1 or size > digits:
        return False
    number = 0
    for i in range(size - 1):
        if not is_digit(u8(at + i)):
            return False
        number = 10 * number + u8(at + i) - _ZERO
    last = u8(stop - 1)
    if not is_digit(last):
        return False
    if size < digits or number < limit // 10:
        return True
    return number == limit // 10 and last - _ZERO <= limit % 10 + is_negative


@inner
def _exponent(at: int, stop: int) -> tuple[int, bool]:
    """(the number between here and the end, whether it is one)."""
    is_negative = at < stop and u8(at) == MINUS
    if is_negative or (at < stop and u8(at) == _PLUS):
        at += 1
    if at >= stop or stop - at > _EXPONENT_DIGITS:
        return 0, False
    number = 0
    while at < stop:
        if not is_digit(u8(at)):
            return 0, False
        number = 10 * number + u8(at) - _ZERO
        at += 1
    return -number if is_negative else number, True


@inner
def is_fraction(at: int, stop: int, digits: int, scale: int) -> bool:
    """Whether this number has at most so many digits before its point, and after it, when its exponent is heeded."""
    if at < stop and u8(at) == MINUS:
        at += 1
    start, whole = at, 0
    while at < stop and is_digit(u8(at)):
        if whole or u8(at) != _ZERO:
            whole += 1
        at += 1
    if at == start:
        return False
    last = size = 0
    if at < stop and u8(at) == _DOT:
        at += 1
        start = at
        while at < stop and is_digit(u8(at)):
            if u8(at) != _ZERO:
                last = at - start + 1
            at += 1
        size = at - start
        if size == 0:
            return False
    exponent, is_one = 0, at == stop
    if at < stop and u8(at) | _LOWER == _E:
        exponent, is_one = _exponent(at + 1, stop)
    return is_one and whole + exponent <= digits and last - exponent <= scale and whole + size <= digits + scale


@inner
def _two(at: int) -> int:
    """The number of two digits; negative: they are none."""
    high, low = u8(at), u8(at + 1)
    return 10 * (high - _ZERO) + low - _ZERO if is_digit(high) and is_digit(low) else -1


@inner
def _begins_with_day(at: int, stop: int) -> bool:
    """Whether here is a day, since the year 1."""
    if stop - at < _DAY_SIZE:
        return False
    century, year, month, day = _two(at), _two(at + 2), _two(at + 5), _two(at + 8)
    if century < 0 or year < 0 or century + year == 0 or u8(at + 4) != MINUS or u8(at + 7) != MINUS:
        return False
    february = 29 if (year or century) & 3 == 0 else 28
    last = february if month == 2 else 30 + ((month ^ month >> 3) & 1)
    return 1 <= month <= 12 and 1 <= day <= last


@inner
def is_day(at: int, stop: int) -> bool:
    """Whether this is a day, since the year 1."""
    return stop - at == _DAY_SIZE and _begins_with_day(at, stop)


@inner
def _is_zone(at: int, stop: int) -> bool:
    if u8(at) == _Z:
        return at + 1 == stop
    if u8(at) not in (_PLUS, MINUS) or stop - at not in (3, 5, 6) or not 0 <= _two(at + 1) <= 23:
        return False
    if stop - at == 3:
        return True
    return 0 <= _two(stop - 2) <= 59 and (stop - at == 5 or u8(at + 3) == COLON)


@inner
def _clock_end(at: int, stop: int) -> int:
    """Where the time that begins at `at` ends, to the microsecond at most; -1: it is none."""
    if stop - at < 2 or not 0 <= _two(at) <= 23:
        return -1
    at += 2
    for _ in range(2):
        if byte_at(at, stop) != COLON:
            return at
        if stop - at < 3 or not 0 <= _two(at + 1) <= 59:
            return -1
        at += 3
    if byte_at(at, stop) != _DOT:
        return at
    at += 1
    start = at
    while at < stop and is_digit(u8(at)):
        at += 1
    return at if 1 <= at - start <= _MICROS_DIGITS else -1


@inner
def is_moment(at: int, stop: int, has_zone: bool) -> bool:
    """Whether this is a day, or a day and a time, with a zone only if it may have one."""
    if not _begins_with_day(at, stop):
        return False
    if stop - at == _DAY_SIZE:
        return True
    if u8(at + _DAY_SIZE) not in (_T, SPACE):
        return False
    end = _clock_end(at + _DAY_SIZE + 1, stop)
    if end < 0 or end == stop:
        return end == stop
    if not has_zone or not _is_zone(end, stop):
        return False
    # An offset may move the first and the last day out of the years that Python has.
    return u8(end) == _Z or not (_two(at) in (0, 99) and _two(at + 2) in (1, 99))


@inner
def _is_letter(byte: int) -> bool:
    return byte >= _LARGE_A and _A <= byte | _LOWER < _A + _LETTERS


@inner
def is_base64(at: int, stop: int) -> bool:
    """Whether this is base64 with its padding."""
    count = padding = 0
    while at < stop:
        byte = u8(at)
        if byte == BACKSLASH:  # some write a slash so
            at += 1
            if byte_at(at, stop) != _SLASH:
                return False
            byte = _SLASH
        if byte == _EQUALS:
            padding += 1
        elif padding or not (_is_letter(byte) or is_digit(byte) or byte in (_PLUS, _SLASH)):
            return False
        count += 1
        at += 1
    return padding <= 2 and count & 3 == 0
