"""Foreign formats: whole messages that pylog does not read, as opposed to damage.

Kafka before 0.11 wrote messages of format 0 and 1, big-endian::

    at  type   field                                at  type   field
     0  int64  offset                               16  int8   magic: 0 or 1
     8  int32  length of what follows               17  int8   attributes: bits 0-2 codec
    12  uint32 CRC-32 of everything from 16 on      18         format 1: int64 timestamp; then key and value

A batch of format 2 and later has its CRC-32C at 17, of everything from 21 on.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

from crc32c import crc32c

from logstore.records.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CRC_AT,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    InvalidBatchError,
    header_at,
)
from logstore.records.compression import Buffer, Codec

_HEAD, _UINT32 = struct.Struct(">qi4xb"), struct.Struct(">I")
_OLD_CRC_AT, _OLD_CRC_FROM, _OLD_ATTRIBUTES_AT = 12, 16, 17
OLD_BYTES_MIN: Final = 26  # of format 0, without key and value


class MessageHead(NamedTuple):
    """The fields with which all formats begin."""

    offset: int
    size_bytes: int
    magic: int

    @property
    def is_old(self) -> bool:
        return 0 <= self.magic < MAGIC

    @property
    def is_possible(self) -> bool:
        return self.size_bytes >= (OLD_BYTES_MIN if self.is_old else HEADER_BYTES)


class ForeignMessage(NamedTuple):
    """A whole message of a right CRC that pylog does not read, and why."""

    head: MessageHead
    codec: int  # of a later format, by the place that 2 has for it
    crc: int
    reason: str

    @property
    def is_later(self) -> bool:
        return self.head.magic > MAGIC or (self.head.magic == MAGIC and self.codec > Codec.ZSTD)


def message_head(data: Buffer) -> MessageHead | None:
    """The first bytes of a message of any format; None: there are too few."""
    if len(data) < OLD_BYTES_MIN:
        return None
    offset, length, magic = _HEAD.unpack_from(data)
    return MessageHead(offset, length + LENGTH_END, magic)


def foreign_message(message: Buffer) -> ForeignMessage | None:
    """Name the format of this whole message, if its CRC is right; None: pylog reads it, or its CRC is wrong."""
    view, head = memoryview(message).cast("B"), message_head(message)
    if head is None or not head.is_possible or head.size_bytes != len(view):
        return None
    if head.is_old:
        crc = _UINT32.unpack_from(view, _OLD_CRC_AT)[0]
        reason = f"message format {head.magic}, of a Kafka before 0.11, where 2 is known"
        found = ForeignMessage(head, view[_OLD_ATTRIBUTES_AT] & CODEC_MASK, crc, reason)
        return found if zlib.crc32(view[_OLD_CRC_FROM:]) == crc else None
    crc = _UINT32.unpack_from(view, CRC_AT)[0]
    if crc32c(view[ATTRIBUTES_AT:]) != crc:
        return None
    try:
        header_at(view)
    except InvalidBatchError as error:
        found = ForeignMessage(head, view[ATTRIBUTES_AT + 1] & CODEC_MASK, crc, f"{error.reason}, and the CRC is right")
        return found._replace(reason=f"{found.reason}: a newer pylog may read it") if found.is_later else found
    return None
