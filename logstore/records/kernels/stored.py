"""Stored batches as they are: whether they are whole, where their records are, and one record after the other.

Errors come back as in `decoding`.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.records.batch import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    COUNT_AT,
    CRC_AT,
    DELETE_HORIZON,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LENGTH_END,
    RECORD_BYTES_MIN,
)
from logstore.records.kernels.crc import crc_of
from logstore.records.kernels.decoding import BAD_CRC, LONG_FIELD, LONG_RECORD, header_error
from logstore.records.kernels.native import I64, be16, be32, be64, inner, kernel, numbers
from logstore.records.kernels.varints import BAD, field, varint, varlong


class InOrder(NamedTuple):
    """Whole batches up to `end`, where `next_offset` follows; `is_odd`: the batch there has other offsets."""

    end: int
    next_offset: int
    is_odd: int


@kernel(numbers(InOrder)(I64, I64, I64, I64))
def in_order(address: int, size: int, next_offset: int, limit: int) -> InOrder:
    """The whole batches in `size` bytes whose offsets go up from `next_offset`, and end at `limit` at most.

    Base offsets are outside the CRC: only its neighbours tell that one is damaged.
    """
    end = 0
    while end <= size - HEADER_BYTES:
        at = address + end
        length, base, delta = be32(at + LENGTH_AT) + LENGTH_END, be64(at), be32(at + LAST_OFFSET_DELTA_AT)
        if length > size - end or length < HEADER_BYTES:
            break
        if base < next_offset or delta < 0 or base > limit - delta - 1:
            return InOrder(end, next_offset, 1)
        end, next_offset = end + length, base + delta + 1
    return InOrder(end, next_offset, 0)


class Section(NamedTuple):
    """The uncompressed records of one batch in [at, end), and what its header says."""

    at: int
    end: int
    base_offset: int
    last_delta: int
    count: int  # type: ignore[assignment]  # hides the method of tuples
    base_timestamp: int
    has_horizon: int


@inner
def section_at(at: int) -> Section:
    """The records of the uncompressed batch at `at`."""
    has_horizon = be16(at + ATTRIBUTES_AT) & DELETE_HORIZON
    size = be32(at + LENGTH_AT) + LENGTH_END
    last_delta, count, base_ms = be32(at + LAST_OFFSET_DELTA_AT), be32(at + COUNT_AT), be64(at + BASE_TIMESTAMP_AT)
    return Section(at + HEADER_BYTES, at + size, be64(at), last_delta, count, base_ms, has_horizon)


@inner
def batch_error(at: int, left: int) -> int:
    """Whether a batch is at `at`, and whole; its CRC is checked if it is uncompressed."""
    error = header_error(at, left)
    if error:
        return error
    size = be32(at + LENGTH_AT) + LENGTH_END
    if crc_of(at + ATTRIBUTES_AT, size - ATTRIBUTES_AT) != be32(at + CRC_AT) & 0xFFFFFFFF:
        return BAD_CRC
    return 0


class Entry(NamedTuple):
    """One record; `rest` is what follows its timestamp delta."""

    error: int
    end: int
    rest: int
    timestamp_delta: int
    offset_delta: int
    key: int
    key_size: int
    value_size: int


@inner
def entry_at(at: int, limit: int) -> Entry:
    size, at = varint(at, limit)
    if size < RECORD_BYTES_MIN - 1 or size > limit - at:
        return Entry(LONG_RECORD, 0, 0, 0, 0, 0, 0, 0)
    end = at + size
    timestamp, rest = varlong(at + 1, end)
    delta, after = varint(rest, end)
    key_size, key = field(after, end)
    value_size, _ = field(key + max(key_size, 0), end)
    error = 0
    if key_size == BAD or value_size == BAD:  # noqa: PLR1714 - numba compiles this to two compares
        error = LONG_FIELD
    return Entry(error, end, rest, timestamp, delta, key, key_size, value_size)
