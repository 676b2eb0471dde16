"""Columns to the records of one batch."""

from __future__ import annotations

from typing import NamedTuple

from logstore.records.addresses import Encoded, Rows
from logstore.records.batch import HEADER_BYTES
from logstore.records.kernels.native import I64, i64, inner, kernel, numbers, put8
from logstore.records.kernels.varints import field_bytes, put_field, put_varint, varint_bytes


class _Row(NamedTuple):
    row: int
    key_size: int
    value_size: int
    header: int
    headers: int
    timestamp: int


@inner
def _row(rows: Rows, i: int) -> _Row:
    row = i64(rows.order + 8 * i) if rows.order else i
    key_size = i64(rows.key_sizes + 8 * row) if rows.key_sizes else -1
    value_size = i64(rows.value_sizes + 8 * row) if rows.value_sizes else -1
    header = headers = 0
    if rows.headers:
        header, headers = i64(rows.headers + 8 * row), i64(rows.header_counts + 8 * row)
    return _Row(row, key_size, value_size, header, headers, i64(rows.timestamps + 8 * row))


@inner
def _body_bytes(rows: Rows, row: _Row, offset_delta: int, timestamp_delta: int) -> int:
    size = 1 + varint_bytes(timestamp_delta) + varint_bytes(offset_delta)
    size += field_bytes(row.key_size) + field_bytes(row.value_size) + varint_bytes(row.headers)
    for i in range(row.header, row.header + row.headers):
        size += field_bytes(i64(rows.header_key_sizes + 8 * i))
        size += field_bytes(i64(rows.header_value_sizes + 8 * i))
    return size


@inner
def _put_record(at: int, rows: Rows, row: _Row, offset_delta: int, timestamp_delta: int) -> int:
    put8(at, 0)
    at = put_varint(put_varint(at + 1, timestamp_delta), offset_delta)
    at = put_field(at, i64(rows.key + 8 * row.row) if row.key_size > 0 else 0, row.key_size)
    at = put_field(at, i64(rows.value + 8 * row.row) if row.value_size > 0 else 0, row.value_size)
    at = put_varint(at, row.headers)
    for i in range(row.header, row.header + row.headers):
        at = put_field(at, i64(rows.header_key + 8 * i), i64(rows.header_key_sizes + 8 * i))
        at = put_field(at, i64(rows.header_value + 8 * i), i64(rows.header_value_sizes + 8 * i))
    return at


@kernel(numbers(Encoded)(numbers(Rows), I64, I64, I64, I64))
def encode(rows: Rows, first: int, end: int, to: int, limit: int) -> Encoded:
    """Write the records of one batch from row `first` on at `to`; header included, `limit` bytes at most."""
    at, i = to, first
    base = newest = 0
    while i < end:
        row = _row(rows, i)
        if i == first:
            base = newest = row.timestamp
        body = _body_bytes(rows, row, i - first, row.timestamp - base)
        needed = at - to + HEADER_BYTES + varint_bytes(body) + body
        if needed > limit:
            if i == first:
                return Encoded(i, 0, 0, 0, needed)
            break
        newest = max(newest, row.timestamp)
        at = _put_record(put_varint(at, body), rows, row, i - first, row.timestamp - base)
        i += 1
    return Encoded(i, at - to, base, newest, 0)
