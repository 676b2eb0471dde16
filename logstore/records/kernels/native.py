"""How kernels are compiled (what comes of it is kept: `compiled_code`); loads and stores at plain addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from logstore.records.compiled_code import directory, turn

F = TypeVar("F", bound=Callable[..., Any])
I64: Any = types.int64
VOID: Any = types.void
PAIR: Any = types.UniTuple(I64, 2)  # type: ignore[no-untyped-call]

_config: Any = numba.config

CACHE_DIR = directory()


def kernel(signature: Any) -> Callable[[F], F]:
    """Compile now, or load: one of several processes compiles."""

    def compiled(function: F) -> F:
        before, _config.CACHE_DIR = _config.CACHE_DIR, str(CACHE_DIR or "")
        try:
            with turn(CACHE_DIR, f"{function.__module__}.{function.__qualname__}"):
                result = numba.njit(signature, nogil=True, error_model="numpy", cache=CACHE_DIR is not None)(function)
        finally:
            _config.CACHE_DIR = before
        return result  # type: ignore[no-any-return]

    return compiled


def inner(function: F) -> F:
    """Compile into the kernels that call it."""
    compiled: Any = numba.njit(nogil=True, error_model="numpy", forceinline=True)(function)
    return compiled  # type: ignore[no-any-return]


def seldom(function: F) -> F:
    """Compile beside the kernels that call it: what seldom runs keeps out of the way of what does."""
    compiled: Any = numba.njit(nogil=True, error_model="numpy")(function)
    return compiled  # type: ignore[no-any-return]


def numbers(kind: Any) -> Any:
    """The numba type of a NamedTuple of int64."""
    return types.NamedUniTuple(I64, len(kind._fields), kind)  # type: ignore[no-untyped-call]


def _pointer(builder: Any, address: Any, kind: Any) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _load(bits: int, *, swap: bool = False, signed: bool = False) -> Any:
    """An intrinsic: the integer of `bits` at an address of any alignment, as int64."""

    @intrinsic
    def load(context: Any, address: Any) -> Any:
        def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            kind = ir.IntType(bits)
            number = builder.load(_pointer(builder, args[0], kind), align=1)
            if swap:
                number = builder.bswap(number)
            if bits == 64:
                return number
            return (builder.sext if signed else builder.zext)(number, ir.IntType(64))

        return I64(I64), code

    return load


def _store(bits: int) -> Any:
    """An intrinsic: write the low `bits` of an int64 at an address of any alignment."""

    @intrinsic
    def store(context: Any, address: Any, number: Any) -> Any:
        def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            kind = ir.IntType(bits)
            low = args[1] if bits == 64 else builder.trunc(args[1], kind)
            builder.store(low, _pointer(builder, args[0], kind), align=1)
            return context.get_dummy_value()

        return VOID(I64, I64), code

    return store


u8 = _load(8)
u32 = _load(32)
i64 = _load(64)
be16 = _load(16, swap=True, signed=True)
be32 = _load(32, swap=True, signed=True)
be64 = _load(64, swap=True)
put8 = _store(8)
put32 = _store(32)
put64 = _store(64)


def _move(size: int) -> Any:
    """An intrinsic: copy `size` bytes, a power of two, by one load and one store."""

    @intrinsic
    def move(context: Any, to: Any, source: Any) -> Any:
        def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            kind = ir.VectorType(ir.IntType(8), size)
            to, source = (_pointer(builder, address, kind) for address in args)
            builder.store(builder.load(source, align=1), to, align=1)
            return context.get_dummy_value()

        return VOID(I64, I64), code

    return move


_move4, _move8, _move16, _move32 = (_move(size) for size in (4, 8, 16, 32))


@intrinsic
def _copy_call(context: Any, to: Any, source: Any, size: Any) -> Any:
    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        byte = ir.IntType(8)
        pointer = byte.as_pointer()
        function = builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, ir.IntType(64)])
        to, source = (_pointer(builder, address, byte) for address in args[:2])
        builder.call(function, [to, source, args[2], ir.IntType(1)(0)])
        return context.get_dummy_value()

    return VOID(I64, I64, I64), code


_memcpy: Any = _copy_call
_CALL_BYTES = 256  # from here on the C library's own way pays for the call


@inner
def copy(to: int, source: int, size: int) -> None:
    """Copy `size` bytes; short ones without a call. Two moves may overlap in the middle of the bytes."""
    if size > _CALL_BYTES:
        _memcpy(to, source, size)
    elif size >= 32:
        for i in range(0, size - 32, 32):
            _move32(to + i, source + i)
        _move32(to + size - 32, source + size - 32)
    elif size >= 16:
        _move16(to, source)
        _move16(to + size - 16, source + size - 16)
    elif size >= 8:
        _move8(to, source)
        _move8(to + size - 8, source + size - 8)
    elif size >= 4:
        _move4(to, source)
        _move4(to + size - 4, source + size - 4)
    else:
        for i in range(size):
            put8(to + i, u8(source + i))


@intrinsic
def _prefetch_call(context: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        byte, number = ir.IntType(8), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), number, number, number])
        name = "llvm.prefetch.p0"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        builder.call(function, [_pointer(builder, args[0], byte), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return VOID(I64), code


prefetch: Any = _prefetch_call  # bring the cache line of an address nearer: it is needed soon


@inner
def is_among(numbers: int, count: int, number: int) -> bool:
    """Return whether `number` is one of the `count` int64 at `numbers`, which are in order."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if i64(numbers + 8 * middle) < number:
            low = middle + 1
        else:
            high = middle
    return low < count and i64(numbers + 8 * low) == number


@inner
def put_valid(bitmap: int, row: int, valid: bool) -> None:
    """Write the bit of `row` in a validity bitmap; rows come in order."""
    at, bit = bitmap + (row >> 3), row & 7
    if bit == 0:
        put8(at, 0xFF)
    if not valid:
        put8(at, u8(at) & ~(1 << bit))
