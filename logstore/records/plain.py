"""Plain batches, as most clients send them: their headers as tuples, and their stamp, in few steps."""

from __future__ import annotations

import struct
from typing import TypeAlias

from crc32c import crc32c

from logstore.records.batch import ATTRIBUTES_AT, HEADER, HEADER_BYTES, LENGTH_END, MAGIC, BatchHeader
from logstore.records.compression import Buffer, Codec

_STAMP = struct.Struct(">qii")  # base offset, length, leader epoch
_PLAIN = frozenset(int(codec) for codec in Codec)  # attributes of a batch that is only compressed
_OFFSET_MAX = 2**62

# Of a plain batch, as stored: base offset, *length*, and so on as in BatchHeader.
PlainHeader: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]


def plain_header(buffer: Buffer) -> PlainHeader | None:
    """Return the header of the one batch that `buffer` is, as clients send most; None: look at it more closely.

    It is good, and so is the CRC; there is a record for every offset, no transaction, and no marker. `placed` makes it
    a BatchHeader.
    """
    size_bytes = len(buffer)
    if size_bytes < HEADER_BYTES:
        return None
    header: PlainHeader = HEADER.unpack_from(buffer)
    base_offset, length, _, magic, crc, attributes, last_offset_delta, _, _, producer_id, *of_producer, count = header
    if (
        length + LENGTH_END != size_bytes
        or magic != MAGIC
        or attributes not in _PLAIN
        or not 0 <= base_offset <= _OFFSET_MAX
        or not 0 < count == last_offset_delta + 1
        or (producer_id >= 0 and min(of_producer) < 0)
        or crc32c(memoryview(buffer)[ATTRIBUTES_AT:]) != crc
    ):
        return None
    return header


def placed(plain: PlainHeader, base_offset: int, leader_epoch: int) -> BatchHeader:
    """Return the header of a plain batch with this offset and epoch."""
    return BatchHeader(base_offset, plain[1] + LENGTH_END, leader_epoch, *plain[3:])


def stamp_plain(buffer: bytearray | memoryview, base_offset: int, length: int, leader_epoch: int) -> None:
    """`stamp` the batch that `buffer` is, whose length is known, in one step."""
    _STAMP.pack_into(buffer, 0, base_offset, length, leader_epoch)


def following(buffer: Buffer, offset: int, leader_epoch: int) -> list[tuple[int, BatchHeader]] | None:
    """Return (position, header) of the plain batches that `buffer` is, of this epoch, from this offset on without gaps.

    None: look at them more closely. Their CRCs are good.
    """
    found, position, size_bytes, view = list[tuple[int, BatchHeader]](), 0, len(buffer), memoryview(buffer)
    while position + HEADER_BYTES <= size_bytes:
        fields = HEADER.unpack_from(buffer, position)
        base_offset, length, epoch, magic, crc, attributes, last_offset_delta, *_, count = fields
        end = position + LENGTH_END + length
        if (
            (base_offset, epoch, magic) != (offset, leader_epoch, MAGIC)
            or attributes not in _PLAIN
            or not 0 < count <= last_offset_delta + 1
            or not position + HEADER_BYTES <= end <= size_bytes
            or crc32c(view[position + ATTRIBUTES_AT : end]) != crc
        ):
            return None
        found.append((position, BatchHeader(base_offset, length + LENGTH_END, *fields[2:])))
        position, offset = end, offset + last_offset_delta + 1
    return found if position == size_bytes else None
