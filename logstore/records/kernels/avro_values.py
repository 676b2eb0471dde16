"""Single values of Avro as Arrow has them: numbers of other widths, UTF-8, decimals."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.extending import intrinsic

from logstore.records.kernels.native import I64, VOID, i64, inner, put64, seldom, u8

_LEAST = -(1 << 63)
_HIGH_BITS = -9187201950435737472  # 0x80 in each of eight bytes


def _converted(kind: str, source: str) -> Any:
    """An intrinsic: store at an address what an int64, or a float at another address, is as a float or double."""

    @intrinsic
    def convert(context: Any, to: Any, number: Any) -> Any:
        def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            wide = ir.DoubleType() if kind == "double" else ir.FloatType()
            if source == "float":
                pointer = builder.inttoptr(args[1], ir.FloatType().as_pointer())
                value = builder.fpext(builder.load(pointer, align=1), wide)
            else:
                value = builder.sitofp(args[1], wide)
            builder.store(value, builder.inttoptr(args[0], wide.as_pointer()), align=1)
            return context.get_dummy_value()

        return VOID(I64, I64), code

    return convert


put_float = _converted("float", "int")
put_double = _converted("double", "int")
widen = _converted("double", "float")


@inner
def is_int(number: int) -> bool:
    return -(1 << 31) <= number < (1 << 31)


@inner
def _text_size(first: int) -> int:
    """Bytes of a character by its first one; 0: none begins so."""
    if first < 0x80:
        return 1
    if 0xC2 <= first <= 0xDF:
        return 2
    if 0xE0 <= first <= 0xEF:
        return 3
    return 4 if 0xF0 <= first <= 0xF4 else 0


@seldom
def _is_text_rest(at: int, end: int) -> bool:
    """Whether the bytes are UTF-8, which has neither surrogates nor longer forms than need be."""
    while at < end:
        size = _text_size(u8(at))
        if size == 0 or size > end - at:
            return False
        point = u8(at) & (0x7F >> (size - 1))
        for i in range(1, size):
            if u8(at + i) & 0xC0 != 0x80:
                return False
            point = point << 6 | (u8(at + i) & 0x3F)
        if size == 3 and (point < 0x800 or 0xD800 <= point <= 0xDFFF):
            return False
        if size == 4 and (point < 0x10000 or point > 0x10FFFF):
            return False
        at += size
    return True


@inner
def is_text(at: int, end: int) -> bool:
    while end - at >= 8 and i64(at) & _HIGH_BITS == 0:
        at += 8
    while at < end and u8(at) < 0x80:
        at += 1
    return at == end or _is_text_rest(at, end)


@inner
def is_within(low: int, high: int, low_limit: int, high_limit: int) -> bool:
    """Whether a number of 128 bits is below the limit, whatever its sign."""
    if high == _LEAST:  # it has no other sign, and is below any limit of a decimal
        return False
    if high < 0:
        low = -low
        high = ~high + (1 if low == 0 else 0)
    return high < high_limit or (high == high_limit and (low ^ _LEAST) < (low_limit ^ _LEAST))


@seldom
def put_decimal(at: int, size: int, low_limit: int, high_limit: int, to: int) -> bool:
    """Write 16 bytes of a number of `size` bytes, the highest first; whether it is below the limit."""
    sign = 0xFF if size > 0 and u8(at) & 0x80 else 0
    for i in range(size - 16):
        if u8(at + i) != sign:
            return False
    high = low = -1 if sign else 0
    for i in range(max(0, size - 16), size):
        high = (high << 8) | ((low >> 56) & 0xFF)
        low = (low << 8) | u8(at + i)
    if size >= 16 and ((high < 0) != (sign != 0)):
        return False
    put64(to, low)
    put64(to + 8, high)
    return is_within(low, high, low_limit, high_limit)
