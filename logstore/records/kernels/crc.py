"""CRC-32C inside kernels: by the CPU's own instruction in three lanes, or by table."""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from logstore.records.kernels.native import I64, i64, inner, kernel, u8

_POLYNOMIAL = 0x82F63B78  # reflected
# Three lanes hide the latency of the instruction; their results are joined by a shift through zero bytes.
_LONG, _SHORT = 2048, 128


def _byte_table() -> Any:
    table = np.arange(256)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ _POLYNOMIAL, table >> 1)
    return table


def _shift_tables(table: Any, zeros: int) -> Any:
    """Four tables: each byte of a CRC carried through `zeros` zero bytes."""
    shifted = np.concatenate([np.arange(256) << (8 * i) for i in range(4)])
    for _ in range(zeros):
        shifted = (shifted >> 8) ^ table[shifted & 0xFF]
    return shifted


_TABLE = _byte_table()
_LONG_SHIFT = _shift_tables(_TABLE, _LONG)
_SHORT_SHIFT = _shift_tables(_TABLE, _SHORT)


def crc_instruction() -> tuple[str, int] | None:
    """The LLVM name of this CPU's CRC-32C step and its width, unless numba is set to another CPU."""
    config: Any = numba.config
    if config.CPU_NAME or config.CPU_FEATURES:
        return None
    features = llvmlite.binding.get_host_cpu_features()
    if features.get("sse4.2"):
        return "llvm.x86.sse42.crc32.64.64", 64
    if features.get("crc") and platform.machine() in ("aarch64", "arm64"):
        return "llvm.aarch64.crc32cx", 32
    return None


_INSTRUCTION = crc_instruction()


@intrinsic
def _hardware_step(context: Any, crc: Any, word: Any) -> Any:
    """Eight bytes further by the CPU's instruction."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        assert _INSTRUCTION is not None
        name, bits = _INSTRUCTION
        state = ir.IntType(bits)
        kind = ir.FunctionType(state, [state, ir.IntType(64)])
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        crc = args[0] if bits == 64 else builder.trunc(args[0], state)
        result = builder.call(function, [crc, args[1]])
        return result if bits == 64 else builder.zext(result, ir.IntType(64))

    return I64(I64, I64), code


@inner
def table_step(crc: int, word: int) -> int:
    """Eight bytes further by table look-ups."""
    for i in range(8):
        crc = (crc >> 8) ^ _TABLE[(crc ^ (word >> (8 * i))) & 0xFF]
    return crc


_step: Any = _hardware_step if _INSTRUCTION else table_step


@inner
def _shift(tables: Any, crc: int) -> Any:
    low = tables[crc & 0xFF] ^ tables[256 + ((crc >> 8) & 0xFF)]
    return low ^ tables[512 + ((crc >> 16) & 0xFF)] ^ tables[768 + ((crc >> 24) & 0xFF)]


@inner
def _lanes(tables: Any, lane: int, crc: int, at: int) -> Any:
    """The CRC after the 3 * `lane` bytes at `at`."""
    second = third = 0
    for word in range(at, at + lane, 8):
        crc = _step(crc, i64(word))
        second = _step(second, i64(word + lane))
        third = _step(third, i64(word + 2 * lane))
    return _shift(tables, _shift(tables, crc) ^ second) ^ third


@inner
def crc_of(at: int, size: int) -> int:
    """The CRC-32C of `size` bytes, for other kernels."""
    end = at + size
    crc: int = 0xFFFFFFFF
    while end - at >= 3 * _LONG:
        crc = _lanes(_LONG_SHIFT, _LONG, crc, at)
        at += 3 * _LONG
    while end - at >= 3 * _SHORT:
        crc = _lanes(_SHORT_SHIFT, _SHORT, crc, at)
        at += 3 * _SHORT
    while end - at >= 8:
        crc = _step(crc, i64(at))
        at += 8
    while at < end:
        crc = (crc >> 8) ^ _TABLE[(crc ^ u8(at)) & 0xFF]
        at += 1
    return crc ^ 0xFFFFFFFF


@kernel(I64(I64, I64))
def crc32c(address: int, size: int) -> int:
    return crc_of(address, size)
