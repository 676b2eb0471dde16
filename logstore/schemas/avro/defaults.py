"""The default of a field, as JSON has it, to the bytes of Avro: one value, made once for a schema."""

from __future__ import annotations

import math
import struct
from typing import Any

from logstore.schemas.avro.schema import MISSING, Schema

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def datum(schema: Schema, value: Any) -> bytes:
    """Return the value in Avro's encoding; bytes are text of the characters 0 to 255.

    A union takes the first branch that fits. Raises: ValueError: it is no value of this schema.
    """
    if schema.kind == "union":
        for number, branch in enumerate(schema.items):
            try:
                return varlong(number) + datum(branch, value)
            except ValueError:
                continue
        raise ValueError(f"{value!r} is none of its types")
    if schema.kind == "record":
        return b"".join(_member(schema, value))
    if schema.kind == "array":
        return _blocks([datum(schema.items[0], item) for item in _of(list, value)])
    if schema.kind == "map":
        found = _of(dict, value)
        return _blocks([_text(key) + datum(schema.items[0], item) for key, item in found.items()])
    return _leaf(schema, value)


def varlong(number: int) -> bytes:
    """Return a zigzag varint."""
    rest = (number << 1) ^ (number >> 63)
    found = bytearray()
    while rest & ~0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def _member(schema: Schema, value: Any) -> list[bytes]:
    given = _of(dict, value)
    found = []
    for f in schema.fields:
        if (member := given.get(f.name, f.default)) is MISSING:
            raise ValueError(f"{f.name} is missing")
        found.append(datum(f.schema, member))
    return found


def _leaf(schema: Schema, value: Any) -> bytes:
    kind = schema.kind
    if kind == "null" and value is None:
        return b""
    if kind == "boolean":
        return b"\x01" if _of(bool, value) else b"\x00"
    if kind in ("int", "long"):
        return _number(kind, value)
    if kind in ("float", "double"):
        return _float(kind, value)
    if kind == "enum" and value in schema.symbols:
        return varlong(schema.symbols.index(value))
    if kind == "string":
        return _text(value)
    if kind in ("bytes", "fixed"):
        return _bytes(schema, value)
    raise ValueError(f"{value!r} is no {schema}")


def _number(kind: str, value: Any) -> bytes:
    limit = 1 << (31 if kind == "int" else 63)
    if not -limit <= _of(int, value) < limit:
        raise ValueError(f"{value} does not fit {kind}")
    return varlong(value)


def _bytes(schema: Schema, value: Any) -> bytes:
    data: bytes = _of(str, value).encode("latin-1")  # its error is a ValueError
    if schema.kind == "bytes":
        return varlong(len(data)) + data
    if len(data) != schema.size:
        raise ValueError(f"{value!r} has not {schema.size} bytes")
    return data


def _float(kind: str, value: Any) -> bytes:
    number = _NON_FINITE.get(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"{value!r} is no {kind}")
    try:
        return struct.pack("<f" if kind == "float" else "<d", number)
    except (OverflowError, struct.error):
        raise ValueError(f"{value!r} does not fit {kind}") from None


def _text(value: Any) -> bytes:
    data: bytes = _of(str, value).encode()
    return varlong(len(data)) + data


def _blocks(items: list[bytes]) -> bytes:
    return (varlong(len(items)) + b"".join(items) if items else b"") + b"\x00"


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{value!r} is no {kind.__name__}")
    return value
