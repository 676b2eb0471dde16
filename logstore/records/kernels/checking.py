"""Whether the records of a batch are what its header says, as a writer must send them. Nothing is copied."""

from __future__ import annotations

from logstore.records.batch import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    COUNT_AT,
    HEADER_BYTES,
    LENGTH_AT,
    LENGTH_END,
    MAX_TIMESTAMP_AT,
    NO_TIMESTAMP,
    RECORD_BYTES_MIN,
)
from logstore.records.framing import FRAMING_BYTES, NO_ID, SHORT
from logstore.records.kernels.decoding import BAD_DELTA, BAD_END, BAD_HEADERS, LEFT_OVER, LONG_FIELD, LONG_RECORD
from logstore.records.kernels.headers import headers_at
from logstore.records.kernels.native import I64, be16, be32, be64, i64, inner, is_among, kernel, put64, u8
from logstore.records.kernels.varints import BAD, field, varint, varlong

# Further reasons, behind those of `decoding.REASONS`.
NO_KEY, BAD_TIME, OTHER_MAX = 32, 33, 34
ROW_SHIFT = 8


@inner
def _found(reason: int, row: int) -> int:
    return reason | row << ROW_SHIFT


@kernel(I64(I64, I64, I64, I64, I64, I64))
def check_records(header: int, at: int, size: int, needs_keys: int, oldest_ms: int, newest_ms: int) -> int:
    """Check the `size` bytes of uncompressed records at `at` against the batch header at `header`.

    Every offset has its record, records and fields end where they say, headers have keys, nothing is left over, and the
    largest timestamp is the header's. Each timestamp is -1 or in [oldest_ms, newest_ms]; with `needs_keys` each record
    has a key. Returns 0, or the reason in the low eight bits and the number of the record above them.
    """
    end = at + size
    count, base_ms, max_ms = be32(header + COUNT_AT), be64(header + BASE_TIMESTAMP_AT), NO_TIMESTAMP
    for row in range(count):
        length, at = varint(at, end)
        if length < RECORD_BYTES_MIN - 1 or length > end - at:
            return _found(LONG_RECORD, row)
        record_end = at + length
        delta_ms, at = varlong(at + 1, record_end)
        delta, at = varint(at, record_end)
        key_size, at = field(at, record_end)
        value_size, at = field(at + max(key_size, 0), record_end)
        at, headers, _, _ = headers_at(at + max(value_size, 0), record_end)
        time_ms = base_ms + delta_ms
        reason = BAD_DELTA if delta != row else 0
        if key_size == BAD or value_size == BAD:  # noqa: PLR1714 - numba compiles this to two compares
            reason = LONG_FIELD
        elif headers == BAD:
            reason = BAD_HEADERS
        elif at != record_end:
            reason = BAD_END
        elif needs_keys and key_size < 0:
            reason = NO_KEY
        elif time_ms != NO_TIMESTAMP and (time_ms < oldest_ms or time_ms > newest_ms):
            reason = BAD_TIME
        if reason:
            return _found(reason, row)
        max_ms = max(max_ms, time_ms)
    if at != end:
        return _found(LEFT_OVER, count - 1)
    return 0 if max_ms == be64(header + MAX_TIMESTAMP_AT) else OTHER_MAX


@kernel(I64(I64, I64, I64, I64, I64))
def good_batches(at: int, size: int, needs_keys: int, oldest_ms: int, newest_ms: int) -> int:
    """Return how many batches of these bytes, from the first on, are uncompressed and pass `check_records`."""
    count, end = 0, at + size
    while at + HEADER_BYTES <= end:
        records, following = at + HEADER_BYTES, at + LENGTH_END + be32(at + LENGTH_AT)
        if following < records or following > end or be16(at + ATTRIBUTES_AT) & CODEC_MASK:
            break
        if check_records(at, records, following - records, needs_keys, oldest_ms, newest_ms):
            break
        count, at = count + 1, following
    return count


@kernel(I64(I64, I64, I64))
def max_timestamp(header: int, at: int, size: int) -> int:
    """Return the largest timestamp of records that `check_records` has taken."""
    end, base_ms, max_ms = at + size, be64(header + BASE_TIMESTAMP_AT), NO_TIMESTAMP
    while at < end:
        length, at = varint(at, end)
        delta_ms, _ = varlong(at + 1, end)
        max_ms = max(max_ms, base_ms + delta_ms)
        at += length
    return max_ms


@inner
def _id_of(at: int, size: int) -> int:
    """Return what `framing.id_of` does."""
    if size >= FRAMING_BYTES:
        return be32(at + 1) if u8(at) == 0 else NO_ID
    return NO_ID if size and u8(at) else SHORT


@kernel(I64(I64, I64, I64, I64, I64))
def strange_row(values: int, sizes: int, rows: int, ids: int, count: int) -> int:
    """Return the first of `rows` values that bears no id of `ids`, as `strange_ids` does; -1: all do, or are null."""
    for row in range(rows):
        size = i64(sizes + 8 * row)
        if size >= 0:
            schema_id = _id_of(i64(values + 8 * row), size)
            if schema_id < 0 or not is_among(ids, count, schema_id):
                return row
    return -1


@kernel(I64(I64, I64, I64, I64, I64, I64, I64))
def strange_ids(  # noqa: PLR0913, PLR0917  addresses, and how much is there
    at: int, size: int, of_keys: int, ids: int, count: int, found: int, found_max: int
) -> int:
    """Find the values (or keys) that bear no schema id of `ids`, in records that `check_records` has taken.

    `ids` is the address of `count` int64 in order. A null value bears none. Writes to `found`, for each of them and up
    to `found_max`, two int64: the number of the record, and `framing.id_of` it. Returns how many there are.
    """
    end, row, strange, last = at + size, 0, 0, SHORT - 1
    while at < end and strange < found_max:
        length, at = varint(at, end)
        record_end = at + length
        _, place = varlong(at + 1, record_end)
        _, place = varint(place, record_end)
        field_size, place = field(place, record_end)
        if not of_keys:
            field_size, place = field(place + max(field_size, 0), record_end)
        if field_size >= 0:
            schema_id = _id_of(place, field_size)
            if schema_id != last:
                if schema_id >= 0 and is_among(ids, count, schema_id):
                    last = schema_id
                else:
                    put64(found + 16 * strange, row)
                    put64(found + 16 * strange + 8, schema_id)
                    strange += 1
        at, row = record_end, row + 1
    return strange
