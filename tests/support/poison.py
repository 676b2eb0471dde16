"""Batches of a right header and CRC whose records nobody can decode, as brokers once took them."""

import struct
from pathlib import Path

from logstore.records.batch import HEADER_BYTES, Record, build, header_at, seal
from logstore.records.compression import Codec


def made(body: bytes, last_delta: int, count: int, attributes: int = 0) -> bytearray:
    """A batch with these bytes for its records, and a header and CRC that say that all is well."""
    data = build([Record(0, 1000, b"k", b"v")])[:HEADER_BYTES] + body
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">hi", data, 21, attributes, last_delta)
    struct.pack_into(">i", data, 57, count)
    seal(data, 0, len(data))
    return data


def record(delta: int, key: bytes, value: bytes) -> bytes:
    body = b"\0\0" + bytes([2 * delta, 2 * len(key)]) + key + bytes([2 * len(value)]) + value + b"\0"
    return bytes([2 * len(body)]) + body


MANY = b"".join(record(min(n, 50), b"k%d" % (n % 4), b"x") for n in range(60))  # keys are noted before it fails
POISON = {
    "garbage": made(b"\xff" * 40, 0, 1),
    "two records of one offset": made(record(0, b"k0", b"a") + record(0, b"k1", b"b"), 1, 2),
    "a late wrong delta": made(MANY, 59, 60),
    "fewer records than it says": made(record(0, b"k0", b"a"), 4, 5),
    "bytes behind the records": made(record(0, b"k0", b"a") + b"more", 0, 1),
    "no gzip": made(b"nothing of the kind", 0, 1, attributes=Codec.GZIP),
}


def put(log, poison: bytearray) -> tuple[int, int]:
    """Write it behind the log, as an earlier version did; return its offsets."""
    data, last = bytearray(poison), log.segments()[-1]
    struct.pack_into(">q", data, 0, log.log_end_offset)
    with Path(last.path).open("ab") as file:
        file.write(data)
    header = header_at(data)
    return header.base_offset, header.next_offset
