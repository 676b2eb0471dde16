"""CRC-32C by carry-less multiplication: twice as fast as the CRC instruction, where wide vectors multiply so.

Sixteen bytes L·x^64 + H (reflected: L comes first) are moved D bytes further through the message when they are
replaced by L·(x^(8D+64) mod P) + H·(x^(8D) mod P), a sum of 128 bits again: it is added to the bytes that are there,
and the CRC stays the same. A product of reflected numbers is x times too large, so the constants are x times smaller.
What is left in the end is as long as one step and goes through the CRC instruction.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from logstore.records.kernels.native import I64

STEP_BYTES = 256  # four vectors: enough products under way to hide how long one takes
_VECTOR_BYTES = 64
_WORD, _VECTOR = ir.IntType(64), ir.VectorType(ir.IntType(64), _VECTOR_BYTES // 8)


def is_possible() -> bool:
    """Whether this CPU has the instructions."""
    features = llvmlite.binding.get_host_cpu_features()
    return all(features.get(name) for name in ("sse4.2", "avx512f", "vpclmulqdq"))


def _power(exponent: int, polynomial: int) -> int:
    """x^exponent mod P, as a reflected number of 64 bits."""
    power = 1 << 31
    for _ in range(exponent):
        power = (power >> 1) ^ (polynomial if power & 1 else 0)
    return power << 32


def _function(module: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, arguments), name)


def _vectors(builder: Any, address: Any) -> list[Any]:
    """The STEP_BYTES at `address`."""
    start = builder.inttoptr(address, _VECTOR.as_pointer())
    places = [builder.gep(start, [_WORD(i)]) for i in range(STEP_BYTES // _VECTOR_BYTES)]
    return [builder.load(place, align=1) for place in places]


def _moved(builder: Any, vector: Any, factors: Any) -> Any:
    """A vector, moved STEP_BYTES further."""
    byte = ir.IntType(8)
    multiply = _function(builder.module, "llvm.x86.pclmulqdq.512", _VECTOR, [_VECTOR, _VECTOR, byte])
    first, second = (builder.call(multiply, [vector, factors, byte(halves)]) for halves in (0x00, 0x11))
    return builder.xor(first, second)


def _crc_of_vectors(builder: Any, vectors: list[Any]) -> Any:
    step = _function(builder.module, "llvm.x86.sse42.crc32.64.64", _WORD, [_WORD, _WORD])
    crc = _WORD(0)
    for vector in vectors:
        for i in range(_VECTOR.count):
            crc = builder.call(step, [crc, builder.extract_element(vector, ir.IntType(32)(i))])
    return crc


def folded(polynomial: int) -> Any:
    """An intrinsic: (crc, address, end) to the CRC after these bytes, one or more whole steps."""
    pair = [_power(8 * STEP_BYTES + 63, polynomial), _power(8 * STEP_BYTES - 1, polynomial)]
    factors = ir.Constant(_VECTOR, [_WORD(factor) for factor in pair * (_VECTOR.count // 2)])

    @intrinsic
    def fold(context: Any, crc: Any, address: Any, end: Any) -> Any:
        def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            crc, address, end = args
            vectors = _vectors(builder, address)
            started = builder.insert_element(ir.Constant(_VECTOR, None), crc, ir.IntType(32)(0))
            vectors[0] = builder.xor(vectors[0], started)
            before = builder.block
            test, body, after = (builder.append_basic_block(name) for name in ("test", "fold", "folded"))
            builder.branch(test)
            builder.position_at_end(test)
            at = builder.phi(_WORD)
            states = [builder.phi(_VECTOR) for _ in vectors]
            following = builder.add(at, _WORD(STEP_BYTES))
            builder.cbranch(builder.icmp_signed("<", following, end), body, after)
            builder.position_at_end(body)
            added = _vectors(builder, following)
            moved = [builder.xor(_moved(builder, s, factors), a) for s, a in zip(states, added, strict=True)]
            builder.branch(test)
            for phi, first, next_ in zip(
                [at, *states], [address, *vectors], [following, *moved], strict=True
            ):
                phi.add_incoming(first, before)
                phi.add_incoming(next_, body)
            builder.position_at_end(after)
            return _crc_of_vectors(builder, states)

        return types.int64(I64, I64, I64), code

    return fold
