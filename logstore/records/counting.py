"""How many records batches hold, by their headers: no record is decoded, but in a batch that a range cuts."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from logstore.records.batch import (
    CONTROL,
    EMPTY_LENGTH,
    HEADER_BYTES,
    LENGTH_END,
    TRANSACTIONAL,
    BatchHeader,
    InvalidBatchError,
    header_at,
)
from logstore.records.compression import Buffer

# Base offset, length, magic, attributes, last offset delta, count: a third of the time of a whole header.
_COUNTED = struct.Struct(">qi4xb4xhi30xi")
_MAGIC = 2


class Range(NamedTuple):
    """The offsets [start, end) to count. `is_left_out`: of a batch of a transaction; None: none is left out."""

    start: int
    end: int
    is_left_out: Callable[[BatchHeader], bool] | None = None


class Counted(NamedTuple):
    """The records, where the batch behind the last one begins (in a window: maybe beyond it), and its least offset."""

    records: int
    position: int
    next_offset: int


def count(
    data: Buffer, wanted: Range, decoded: Callable[[int, int], int], *, at: int = 0, next_offset: int = 0
) -> Counted:
    """Count the records of the batches from `at` on whose headers are in `data`, up to `wanted.end`.

    `next_offset` is that behind the batch before. `decoded(position, size)` counts the wanted records of one batch
    that the range cuts, and that has gaps. CRCs are not checked.

    Raises: InvalidBatchError: a header that no batch has, or offsets that go back.
    """
    start, end, is_left_out = wanted
    records, last, unpack = 0, len(data) - HEADER_BYTES, _COUNTED.unpack_from
    while at <= last:
        base, length, magic, attributes, delta, found = unpack(data, at)
        if base < next_offset or magic != _MAGIC or length < EMPTY_LENGTH or not 0 <= found <= delta + 1:
            header_at(data, at)  # says what else is wrong
            raise InvalidBatchError(at, f"offset {base} where {next_offset} or more must follow")
        if base >= end:
            return Counted(records, at, end)
        next_offset = base + delta + 1
        size = length + LENGTH_END
        is_hidden = attributes & CONTROL or next_offset <= start
        if attributes & TRANSACTIONAL and not is_hidden and is_left_out is not None:
            is_hidden = is_left_out(header_at(data, at))
        if is_hidden:
            pass
        elif start <= base and next_offset <= end:
            records += found
        elif found == delta + 1:
            records += min(next_offset, end) - max(base, start)
        elif found:
            records += decoded(at, size)
        at += size
    return Counted(records, at, next_offset)


def offsets_in(batch: Buffer, wanted: Range, where: tuple[object, int]) -> int:
    """How many records of one batch are in the range, by decoding their offsets. Raises: as `arrow.decode`."""
    from logstore.records.arrow import decode_pieces

    pieces = decode_pieces(batch, start=wanted.start, end=wanted.end, columns=["offset"], where=where)
    return sum(piece.num_rows for piece in pieces)
