"""Batches as no producer should send them, each with the right CRC unless its name says otherwise.

`CASES` has for each what our brokers answer, and what a Kafka 4.4 answers if that is something else (docs/protocol.md
says why). `kind` names the topic: plain, compact, or one with LogAppendTime.
"""

import gzip
import struct
import zlib
from typing import NamedTuple

import cramjam

from logstore.records.batch import EMPTY_LENGTH, HEADER_BYTES, BatchHeader, seal, write_header
from logstore.records.compression import Codec, compress
from logstore.records.varints import varint
from replication.errors import ErrorCode

OK, WRONG, DAMAGED = ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE
SILENT = None  # a Kafka 4.4 closes the connection, or says nothing
BOMB_BYTES = 128 * 1024 * 1024
T_MS = 1_700_000_000_000


def record(delta=0, value=b"v", key=None, *, time_delta=0, headers=b"\0", attributes=b"\0"):
    """One record as bytes; `headers` are raw: their count, and what follows."""

    def field(data):
        return varint(-1) if data is None else varint(len(data)) + data

    body = attributes + varint(time_delta) + varint(delta) + field(key) + field(value) + headers
    return varint(len(body)) + body


def raw_batch(content, count=1, *, last_delta=None, attributes=0, producer=(-1, -1, -1), times=(T_MS, None), base=0):
    """A batch with these bytes behind a header that may lie about them."""
    base_ms, max_ms = times
    header = BatchHeader(
        base, EMPTY_LENGTH + len(content), -1, 2, 0, attributes, count - 1 if last_delta is None else last_delta,
        base_ms, base_ms if max_ms is None else max_ms, *producer, count,
    )  # fmt: skip
    data = bytearray(HEADER_BYTES) + content
    write_header(data, 0, header)
    return data


def _changed(data, at, kind, value, *, sealed=True):
    struct.pack_into(kind, data, at, value)
    if sealed:
        seal(data, 0, len(data))
    return data


def _old(magic):
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", T_MS) if magic else b"") + struct.pack(">ii", -1, 1) + b"v"
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


class Case(NamedTuple):
    data: bytes | None
    code: ErrorCode
    kafka: ErrorCode | int | str | None = "same"
    kind: str = "plain"
    rows: tuple[int, ...] | None = None  # those that record_errors name, as far as the test says


ONE, TWO = record(), record() + record(1)
FIELD = bytes([0, 0, 0])  # attributes, time delta, offset delta of a record


def _sized(body):
    return varint(len(body)) + body


CASES = {
    "good": Case(raw_batch(ONE), OK),
    "garbage, all ones": Case(raw_batch(b"\xff" * 40), WRONG, -1, rows=(0,)),
    "garbage, counting": Case(raw_batch(bytes(range(40))), WRONG, rows=(0,)),
    "no records, count 1": Case(raw_batch(b""), WRONG),
    "no records, count 0, last delta 0": Case(raw_batch(b"", 0, last_delta=0), WRONG),
    "no records, count 0, last delta -1": Case(raw_batch(b"", 0), WRONG),
    "five records said, one there": Case(raw_batch(ONE, 5), WRONG, rows=(1,)),
    "one record said, two there": Case(raw_batch(TWO), WRONG),
    "very many records said": Case(raw_batch(TWO, 2**31 - 1), WRONG),
    "a gap in the offsets": Case(raw_batch(TWO, 2, last_delta=5), WRONG),
    "two records, one offset": Case(raw_batch(TWO, 2, last_delta=0), WRONG),
    "negative count": Case(raw_batch(TWO, -1, last_delta=1), WRONG),
    "offset deltas 0, 0": Case(raw_batch(record() + record(), 2), WRONG, OK, rows=(1,)),
    "offset deltas 1, 0": Case(raw_batch(record(1) + record(0), 2), WRONG, OK, rows=(0,)),
    "offset deltas 5, 9": Case(raw_batch(record(5) + record(9), 2), WRONG, OK, rows=(0,)),
    "negative offset delta": Case(raw_batch(record(-1) + record(0), 2), WRONG, OK, rows=(0,)),
    "bytes behind the records": Case(raw_batch(TWO + b"\0\0\0", 2), WRONG),
    "key of -5 bytes": Case(raw_batch(_sized(FIELD + varint(-5) + varint(1) + b"v\0")), WRONG, OK),
    "value beyond the record": Case(raw_batch(_sized(FIELD + varint(-1) + varint(90) + b"v\0")), WRONG, rows=(0,)),
    "a header without a key": Case(
        raw_batch(record(headers=varint(1) + varint(-1) + varint(1) + b"z")), WRONG, rows=(0,)
    ),
    "-1 headers": Case(raw_batch(record(headers=varint(-1))), WRONG, rows=(0,)),
    "1000 headers said, none there": Case(raw_batch(record(headers=varint(1000))), WRONG, rows=(0,)),
    "a record longer than the batch": Case(raw_batch(varint(500) + ONE[1:]), WRONG, rows=(0,)),
    "record attributes": Case(raw_batch(record(attributes=b"\xff")), OK),
    "base offset 1000": Case(raw_batch(ONE, base=1000), WRONG),
    "base offset -7": Case(_changed(raw_batch(ONE), 0, ">q", -7), WRONG),
    "leader epoch 77": Case(_changed(raw_batch(ONE), 12, ">i", 77, sealed=False), OK),
    "wrong CRC": Case(_changed(raw_batch(ONE), 17, ">I", 1, sealed=False), DAMAGED),
    "garbage and a wrong CRC": Case(_changed(raw_batch(b"\xff" * 40), 17, ">I", 1, sealed=False), DAMAGED),
    "message format 3": Case(_changed(raw_batch(ONE), 16, ">b", 3), DAMAGED),
    "message format -1": Case(_changed(raw_batch(ONE), 16, ">b", -1), DAMAGED),
    "message format 0": Case(_old(0), WRONG),
    "message format 1": Case(_old(1), WRONG),
    "half a batch": Case(raw_batch(ONE)[:30], WRONG),
    "length beyond the end": Case(_changed(raw_batch(ONE), 8, ">i", 100_000, sealed=False), WRONG),
    "half a second batch": Case(raw_batch(ONE) + raw_batch(ONE)[:30], WRONG, OK),
    "two batches": Case(raw_batch(ONE) + raw_batch(ONE), WRONG),
    "no bytes": Case(b"", WRONG),
    "null": Case(None, WRONG, SILENT),
    "a control batch": Case(raw_batch(ONE, attributes=0x20), WRONG),
    "a marker": Case(raw_batch(record(0, b"\0" * 6, b"\0\0\0\1"), attributes=0x20), WRONG),
    "transactional without a transactional id": Case(
        raw_batch(ONE, attributes=0x10, producer=(5, 0, 0)), ErrorCode.INVALID_TXN_STATE, 53
    ),
    "transactional without a producer": Case(raw_batch(ONE, attributes=0x10), ErrorCode.INVALID_TXN_STATE, 53),
    "a control batch of a transaction": Case(raw_batch(ONE, attributes=0x30, producer=(5, 0, 0)), WRONG, 53),
    "a producer without an epoch": Case(raw_batch(ONE, producer=(992, -1, 0)), WRONG, OK),
    "an unknown producer, from 5 on": Case(raw_batch(ONE, producer=(993, 0, 5)), ErrorCode.UNKNOWN_PRODUCER_ID, OK),
    "codec 5": Case(raw_batch(ONE, attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, -1),
    "codec 7": Case(raw_batch(ONE, attributes=7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, -1),
    "gzip, not compressed": Case(raw_batch(ONE, attributes=1), WRONG, -1),
    "snappy, garbage": Case(raw_batch(b"\xff" * 30, attributes=2), WRONG, -1),
    "lz4, garbage": Case(raw_batch(b"\xff" * 30, attributes=3), WRONG, -1),
    "zstd, garbage": Case(raw_batch(b"\xff" * 30, attributes=4), WRONG, -1),
    "gzip, cut": Case(raw_batch(gzip.compress(TWO)[:-9], 2, attributes=1), WRONG, -1),
    "gzip, good": Case(raw_batch(gzip.compress(TWO), 2, attributes=1), OK),
    "lz4, garbage inside": Case(raw_batch(bytes(compress(Codec.LZ4, b"\xff" * 40)), attributes=3), WRONG),
    "gzip, garbage inside": Case(raw_batch(gzip.compress(b"\xff" * 40), attributes=1), WRONG, rows=(0,)),
    "gzip, five records said": Case(raw_batch(gzip.compress(TWO), 5, attributes=1), WRONG, rows=(2,)),
    "gzip, one record said": Case(raw_batch(gzip.compress(TWO), attributes=1), WRONG),
    "gzip, empty inside": Case(raw_batch(gzip.compress(b""), attributes=1), WRONG),
    "a delete horizon": Case(raw_batch(ONE, attributes=0x40), WRONG, OK),
    "LogAppendTime": Case(raw_batch(ONE, attributes=8), ErrorCode.INVALID_TIMESTAMP, OK),
    "LogAppendTime to a topic that has it": Case(
        raw_batch(ONE, attributes=8), ErrorCode.INVALID_TIMESTAMP, kind="append time"
    ),
    "no timestamp": Case(raw_batch(ONE, times=(-1, None)), OK),
    "largest timestamp below the records'": Case(raw_batch(ONE, times=(T_MS, T_MS - 5)), OK),
    "largest timestamp above the records'": Case(raw_batch(ONE, times=(T_MS, T_MS + 5000)), OK),
    "largest timestamp wrong, lz4": Case(
        raw_batch(bytes(compress(Codec.LZ4, ONE)), attributes=3, times=(T_MS, T_MS - 5)), OK
    ),
    "compact, no key": Case(raw_batch(ONE), WRONG, kind="compact", rows=(0,)),
    "compact, one of two without a key": Case(
        raw_batch(record(key=b"k") + record(1), 2), WRONG, kind="compact", rows=(1,)
    ),
    "compact, no key, gzip": Case(raw_batch(gzip.compress(TWO), 2, attributes=1), WRONG, kind="compact", rows=(0, 1)),
    "compact, key": Case(raw_batch(record(key=b"k")), OK, kind="compact"),
    "compact, garbage": Case(raw_batch(b"\xff" * 40), WRONG, -1, kind="compact"),
    "compact, deltas 0, 0": Case(
        raw_batch(record(key=b"k") + record(key=b"k"), 2), WRONG, OK, kind="compact", rows=(1,)
    ),
}


def bomb():
    """A small batch of one record whose value takes far more than it."""
    return raw_batch(bytes(cramjam.zstd.compress(record(value=bytes(BOMB_BYTES)))), attributes=4)
