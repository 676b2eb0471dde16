"""Framing: what Confluent's serializers put before the data: a byte 0, and the id of its schema, in four bytes."""

from __future__ import annotations

import struct

FRAMING_BYTES = 5
# In the place of an id: the first byte is not 0, or there are too few. No id in four bytes is as small.
NO_ID, SHORT = -(1 << 32), -(1 << 33)
_FRAMING = struct.Struct(">bi")


def id_of(value: bytes) -> int:
    """Return the id that a value bears (negative: none that a registry hands out), or NO_ID, SHORT."""
    if len(value) < FRAMING_BYTES:
        return SHORT if value[:1] in (b"", b"\0") else NO_ID
    magic, schema_id = _FRAMING.unpack_from(value)
    return NO_ID if magic else int(schema_id)
