"""Batches to columns. Errors come back as an index into `REASONS`, for the batch at `position`."""

from __future__ import annotations

from typing import NamedTuple

from logstore.records.batch import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    CONTROL,
    COUNT_AT,
    CRC_AT,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    RECORD_BYTES_MIN,
)
from logstore.records.compression import Codec
from logstore.records.kernels.crc import crc_of
from logstore.records.kernels.headers import headers_at
from logstore.records.kernels.native import (
    I64,
    PAIR,
    be16,
    be32,
    be64,
    copy,
    i64,
    inner,
    kernel,
    numbers,
    put32,
    put64,
    put_valid,
    u8,
)
from logstore.records.kernels.varints import BAD, field, varint, varlong

REASONS = (
    "",
    "a partial batch",
    "a length shorter than a header",
    "a magic other than 2",
    "offsets out of range",
    "more records than its offsets or bytes allow",
    "an unknown codec",
    "the CRC-32C is wrong",
    "its base offset is not above the offsets before it",
    "a record is longer than what is left of the batch",
    "an offset delta does not grow, or is above the batch's last",
    "a key or value is longer than its record",
    "the headers do not fit their record",
    "a record does not end where it says",
    "bytes follow the last record",
)
_CODEC_MAX = int(Codec.ZSTD)
_PARTIAL, _SHORT_LENGTH, _BAD_MAGIC, _BAD_OFFSETS, _BAD_COUNT, _BAD_CODEC, BAD_CRC = range(1, 8)
_BACKWARDS, LONG_RECORD, BAD_DELTA, LONG_FIELD, BAD_HEADERS, BAD_END, LEFT_OVER = range(8, 15)


class Source(NamedTuple):
    """Batches at `address`, `size` bytes; records in [start, end) are wanted.

    `sections` holds (address, size) of the uncompressed records of every compressed batch, in order.
    """

    address: int
    size: int
    sections: int
    start: int
    end: int


class Columns(NamedTuple):
    """Where the columns go, as Arrow lays them out; 0: not wanted.

    `header_spots` is int64 per row: where `decode_headers` finds the row's headers.
    """

    key_offsets: int
    key_bytes: int
    key_validity: int
    value_offsets: int
    value_bytes: int
    value_validity: int
    offsets: int
    timestamps: int
    timestamp_types: int
    header_spots: int


class Scanned(NamedTuple):
    """The content of [0, end): `rows` and `bytes` of uncompressed batches are upper bounds for `decode`."""

    error: int
    end: int
    compressed: int
    rows: int
    bytes: int


class Decoded(NamedTuple):
    """The numbers of rows and bytes written; or `error`, and the `position` of its batch."""

    error: int
    position: int
    rows: int
    key_bytes: int
    value_bytes: int
    key_nulls: int
    value_nulls: int
    headers: int
    header_key_bytes: int
    header_value_bytes: int


class _Binary(NamedTuple):
    offsets: int
    bytes: int
    validity: int


class _Batch(NamedTuple):
    """The records of one batch are in [at, end)."""

    at: int
    end: int
    base_offset: int
    last_delta: int
    base_timestamp: int
    append_time: int
    timestamp_type: int


class _Record(NamedTuple):
    """One record, its fields as address and size (-1: null)."""

    error: int
    end: int
    offset_delta: int
    timestamp_delta: int
    key: int
    key_size: int
    value: int
    value_size: int
    header_spot: int
    headers: int
    header_key_bytes: int
    header_value_bytes: int


@inner
def header_error(at: int, left: int) -> int:
    """Whether a batch header is at `at`, `left` bytes before the end of the data, whatever its CRC."""
    if left < HEADER_BYTES:
        return _PARTIAL
    size = be32(at + LENGTH_AT) + LENGTH_END
    if size < HEADER_BYTES:
        return _SHORT_LENGTH
    if u8(at + MAGIC_AT) != MAGIC:
        return _BAD_MAGIC
    if size > left:
        return _PARTIAL
    return _fields_error(at, size)


@inner
def _fields_error(at: int, size: int) -> int:
    base, delta, count = be64(at), be32(at + LAST_OFFSET_DELTA_AT), be32(at + COUNT_AT)
    if base < 0 or delta < 0 or base > 0x7FFFFFFFFFFFFFFF - delta - 1:
        return _BAD_OFFSETS
    codec = be16(at + ATTRIBUTES_AT) & CODEC_MASK
    if codec > _CODEC_MAX:
        return _BAD_CODEC
    if count < 0 or count > delta + 1 or (codec == 0 and count * RECORD_BYTES_MIN > size - HEADER_BYTES):
        return _BAD_COUNT
    return 0


@kernel(PAIR(I64, I64, I64, I64))
def walk(address: int, size: int, start: int, upper: int) -> tuple[int, int]:
    """Compute `batch.whole_bytes` of the `size` bytes at `address`."""
    end = position = start
    while end <= size - HEADER_BYTES:
        length = be32(address + end + LENGTH_AT) + LENGTH_END
        if length > size - end or length < HEADER_BYTES or be64(address + end) >= upper:
            break
        position, end = end, end + length
    return end, position


@kernel(numbers(Scanned)(I64, I64, I64, I64, I64))
def scan(address: int, size: int, limit: int, end_offset: int, compressed: int) -> Scanned:
    """Walk the headers of at most `limit` bytes or one batch, up to `end_offset`; list the compressed ones.

    `compressed` has room for the position of a batch, int64, per 61 bytes.
    """
    at, stop = address, address + size
    packed = rows = total = 0
    while at < stop:
        error = header_error(at, stop - at)
        if error:
            return Scanned(error, at - address, packed, rows, total)
        length = be32(at + LENGTH_AT) + LENGTH_END
        if be64(at) >= end_offset or (at > address and at + length - address > limit):
            break
        if be16(at + ATTRIBUTES_AT) & CODEC_MASK:
            put64(compressed + 8 * packed, at - address)
            packed += 1
        else:
            rows += be32(at + COUNT_AT)
            total += length - HEADER_BYTES
        at += length
    return Scanned(0, at - address, packed, rows, total)


@inner
def _record(at: int, limit: int) -> _Record:
    """The record at `at`, which ends before `limit`."""
    size, at = varint(at, limit)
    if size < RECORD_BYTES_MIN - 1 or size > limit - at:
        return _Record(LONG_RECORD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    end = at + size
    timestamp, at = varlong(at + 1, end)
    delta, at = varint(at, end)
    key_size, key = field(at, end)
    value_size, value = field(key + max(key_size, 0), end)
    spot = value + max(value_size, 0)
    at, count, key_bytes, value_bytes = headers_at(spot, end)
    error = 0
    if at != end:
        error = BAD_END
    if count == BAD:
        error = BAD_HEADERS
    if key_size == BAD or value_size == BAD:  # noqa: PLR1714 - numba compiles this to two compares
        error = LONG_FIELD
    return _Record(error, end, delta, timestamp, key, key_size, value, value_size, spot, count, key_bytes, value_bytes)


@inner
def _put_binary(into: _Binary, row: int, total: int, source: int, size: int) -> int:
    """Write one cell of a binary column after `total` bytes and return the new total."""
    put_valid(into.validity, row, size >= 0)
    if size > 0:
        copy(into.bytes + total, source, size)
        total += size
    put32(into.offsets + 4 * row + 4, total)
    return total


@inner
def _put_numbers(into: Columns, row: int, batch: _Batch, record: _Record) -> None:
    if into.offsets:
        put64(into.offsets + 8 * row, batch.base_offset + record.offset_delta)
    if into.timestamps:
        timestamp = batch.append_time if batch.timestamp_type else batch.base_timestamp + record.timestamp_delta
        put64(into.timestamps + 8 * row, timestamp)
    if into.timestamp_types:
        put32(into.timestamp_types + 4 * row, batch.timestamp_type)


@inner
def _records(batch: _Batch, count: int, source: Source, into: Columns, done: Decoded) -> Decoded:
    """`done` and the wanted records of this batch."""
    at, before = batch.at, -1
    key_column = _Binary(into.key_offsets, into.key_bytes, into.key_validity)
    value_column = _Binary(into.value_offsets, into.value_bytes, into.value_validity)
    _, position, row, keys, values, key_nulls, value_nulls, headers, header_keys, header_values = done
    for _ in range(count):
        record = _record(at, batch.end)
        if record.error:
            return _failed(record.error, position)
        if record.offset_delta <= before or record.offset_delta > batch.last_delta:
            return _failed(BAD_DELTA, position)
        at, before = record.end, record.offset_delta
        offset = batch.base_offset + record.offset_delta
        if offset < source.start or offset >= source.end:
            continue
        _put_numbers(into, row, batch, record)
        if into.key_offsets:
            size = record.key_size
            keys = _put_binary(key_column, row, keys, record.key, size)
            key_nulls += size < 0
        if into.value_offsets:
            size = record.value_size
            values = _put_binary(value_column, row, values, record.value, size)
            value_nulls += size < 0
        if into.header_spots:
            put64(into.header_spots + 8 * row, record.header_spot)
            headers += record.headers
            header_keys += record.header_key_bytes
            header_values += record.header_value_bytes
        row += 1
    error = LEFT_OVER if at != batch.end else 0
    return Decoded(error, position, row, keys, values, key_nulls, value_nulls, headers, header_keys, header_values)


@inner
def _failed(error: int, position: int) -> Decoded:
    return Decoded(error, position, 0, 0, 0, 0, 0, 0, 0, 0)


@inner
def _moved(done: Decoded, position: int) -> Decoded:
    return Decoded(0, position, *done[2:])


@kernel(numbers(Decoded)(numbers(Source), numbers(Columns)))
def decode(source: Source, into: Columns) -> Decoded:
    """Write every wanted record of the batches into the columns; control batches are passed over.

    The CRC of every uncompressed batch is checked here; those of compressed ones by whoever made `sections`.
    """
    at, stop = source.address, source.address + source.size
    sections, next_offset = source.sections, 0
    done = _failed(0, 0)
    for offsets in (into.key_offsets, into.value_offsets):
        if offsets:
            put32(offsets, 0)
    while at < stop:
        position = at - source.address
        error = header_error(at, stop - at)
        if error:
            return _failed(error, position)
        size, base = be32(at + LENGTH_AT) + LENGTH_END, be64(at)
        attributes, last_delta = be16(at + ATTRIBUTES_AT), be32(at + LAST_OFFSET_DELTA_AT)
        if base < next_offset:
            return _failed(_BACKWARDS, position)
        next_offset = base + last_delta + 1
        if attributes & CODEC_MASK:
            first = i64(sections)
            end = first + i64(sections + 8)
            sections += 16
        else:
            first, end = at + HEADER_BYTES, at + size
            if crc_of(at + ATTRIBUTES_AT, size - ATTRIBUTES_AT) != be32(at + CRC_AT) & 0xFFFFFFFF:
                return _failed(BAD_CRC, position)
        if not attributes & CONTROL and next_offset > source.start:
            timestamp_type = 1 if attributes & LOG_APPEND_TIME else 0
            base_ms, max_ms = be64(at + BASE_TIMESTAMP_AT), be64(at + MAX_TIMESTAMP_AT)
            batch = _Batch(first, end, base, last_delta, base_ms, max_ms, timestamp_type)
            done = _records(batch, be32(at + COUNT_AT), source, into, _moved(done, position))
            if done.error:
                return done
        at += size
    return done
