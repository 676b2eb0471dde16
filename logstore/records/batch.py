"""Record batch v2: the header as a view over bytes, the checks, and the two stamps of an append.

Needs `struct` and `crc32c` only, so that batches pass through a broker without numpy, numba or pyarrow.
Layout, all big-endian::

    at  type   field                                at  type   field
     0  int64  base offset                          23  int32  last offset delta
     8  int32  length of what follows               27  int64  base timestamp, ms
    12  int32  partition leader epoch               35  int64  max timestamp, ms
    16  int8   magic = 2                            43  int64  producer id
    17  uint32 CRC-32C of everything from 21 on     51  int16  producer epoch
    21  int16  attributes: bits 0-2 codec,          53  int32  base sequence
               3 LogAppendTime, 4 transactional,    57  int32  count of records
               5 control, 6 delete horizon          61         records, compressed as one piece

The first 21 bytes are outside the CRC: an append stamps base offset and leader epoch and leaves the rest. `records` and
`build` are plain Python, for tools, tests and a few records; bulk work is in `records.arrow`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from logstore.records.compression import Buffer, Codec, CompressionError, compress, decompress
from logstore.records.varints import BadRecordError, Cursor, sized, varint

HEADER_BYTES = 61
LENGTH_END = 12  # base offset and length: what the stored length does not count
EMPTY_LENGTH = HEADER_BYTES - LENGTH_END  # the length of a batch without records
MAGIC = 2
NO_LEADER_EPOCH = -1
NO_PRODUCER = -1
NO_TIMESTAMP = -1

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40  # the base timestamp says until when compaction keeps tombstones (KIP-534)

RECORD_BYTES_MIN = 7  # length, attributes, two deltas, key length, value length, header count
# By its format a batch may hold 2 GB. This is far above what writers send, and small enough to allocate.
DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024

KEYLESS_MAX = 1000  # records that an error names
HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET_LENGTH = struct.Struct(">qi")
_ORDER = struct.Struct(">qi11xi")  # base offset, length, last offset delta
STAMP = struct.Struct(">qii")  # base offset, length, leader epoch: where an append stamps a batch
_BASE_OFFSET, _LEADER_EPOCH = struct.Struct(">q"), struct.Struct(">i")
# Where fields begin, for who does not unpack the header.
LENGTH_AT, _LEADER_EPOCH_AT, MAGIC_AT, CRC_AT, ATTRIBUTES_AT, LAST_OFFSET_DELTA_AT = 8, 12, 16, 17, 21, 23
BASE_TIMESTAMP_AT, MAX_TIMESTAMP_AT, COUNT_AT = 27, 35, 57
_INT64_MAX = 2**63 - 1
_SEQUENCES = 2**31  # sequence numbers run from 0 to one below, and on to 0


class InvalidBatchError(ValueError):
    """The bytes at `position` are no batch; `reason` is one phrase. The caller adds the file."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"no valid batch at byte {position}: {reason}")
        self.position = position
        self.reason = reason


class WrongChecksumError(InvalidBatchError):
    """The records are not those that the header was made for."""


class BatchHeader(NamedTuple):
    """The header of one batch, as it is stored. `length` counts the bytes behind that field."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # (hides tuple.count, which nobody needs here)

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, from the base offset to the last record."""
        return self.length + LENGTH_END

    @property
    def last_offset(self) -> int:
        """Offset of the last record, even if compaction removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Base offset of the batch that follows."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, even if compaction removed it; -1 if there are none."""
        return sequence_after(self.base_sequence, self.last_offset_delta) if self.base_sequence >= 0 else -1

    @property
    def codec(self) -> Codec:
        return Codec(self.attributes & CODEC_MASK)

    @property
    def timestamp_type(self) -> int:
        """0: CreateTime, 1: LogAppendTime."""
        return 1 if self.attributes & LOG_APPEND_TIME else 0

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """The batch holds a COMMIT or ABORT marker, not data."""
        return bool(self.attributes & CONTROL)


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class ProducerStamp(NamedTuple):
    """The producer of some batches; the first record has `first_sequence`."""

    producer_id: int
    producer_epoch: int
    first_sequence: int
    is_transactional: bool = False


def sequence_after(sequence: int, count: int = 1) -> int:
    """The sequence number that comes `count` after this one; behind 2^31 - 1 comes 0."""
    return (sequence + count) % _SEQUENCES


def header_at(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header at `position`; its 61 bytes must be in `buffer`, its records need not be.

    Raises: InvalidBatchError: too few bytes, or fields that no batch has. `check` does the CRC.
    """
    if position < 0 or position + HEADER_BYTES > len(buffer):
        raise InvalidBatchError(position, f"{len(buffer) - position} bytes where a header has {HEADER_BYTES}")
    header = BatchHeader._make(HEADER.unpack_from(buffer, position))
    if reason := _wrong(header):
        raise InvalidBatchError(position, reason)
    return header


def batches(buffer: Buffer, start: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of the whole batches from `start`; a partial batch at the end is left out.

    Raises: InvalidBatchError: a header that no batch has.
    """
    position = start
    while position + HEADER_BYTES <= len(buffer):
        header = header_at(buffer, position)
        if position + header.size_bytes > len(buffer):
            return
        yield position, header
        position += header.size_bytes


def whole_bytes(buffer: Buffer, n: int, *, start: int = 0, upper: int | None = None) -> tuple[int, int]:
    """Return (end, position) of the last whole batch in `buffer[start:n]` with base offset below `upper`.

    Both are `start` if there is none. Reads base offsets and lengths only (about 0.1 µs per batch) and stops at a
    length that no batch has: `header_at(buffer, end)` then says why.
    """
    end = position = start
    limit = _INT64_MAX if upper is None else upper
    # Local names: half the time of reading a log with a batch per record is spent in this loop.
    unpack, framing, shortest = _OFFSET_LENGTH.unpack_from, LENGTH_END, HEADER_BYTES - LENGTH_END
    last = n - HEADER_BYTES
    while end <= last:
        base_offset, length = unpack(buffer, end)
        following = end + framing + length
        if following > n or base_offset >= limit or length < shortest:
            break
        position, end = end, following
    return end, position


def out_of_order(buffer: Buffer, n: int) -> int | None:
    """Return where the first whole batch in `buffer[:n]` begins that overlaps the one before; None if none does.

    Base offsets are outside the CRC: only its neighbours tell that one is damaged. About 0.2 µs per batch.
    """
    unpack, framing, position, next_offset = _ORDER.unpack_from, LENGTH_END, 0, 0
    last = n - HEADER_BYTES
    while position <= last:
        base_offset, length, last_offset_delta = unpack(buffer, position)
        if base_offset < next_offset:
            return position
        next_offset = base_offset + last_offset_delta + 1
        position += framing + max(length, 0)
    return None


def check(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Return if the batch of this header is whole in `buffer` and its CRC-32C is right.

    Raises: InvalidBatchError: it is not; WrongChecksumError: it is, but for its CRC.
    """
    end = position + header.size_bytes
    if end > len(buffer):
        raise InvalidBatchError(position, f"{len(buffer) - position} bytes of a batch of {header.size_bytes}")
    crc = crc32c(memoryview(buffer)[position + ATTRIBUTES_AT : end])
    if crc != header.crc:
        raise WrongChecksumError(position, f"CRC-32C is {crc:#010x}, the header says {header.crc:#010x}")


def is_transactional(buffer: Buffer) -> bool:
    """Return what the header of the batch that begins `buffer` says, unchecked."""
    return bool(buffer[ATTRIBUTES_AT + 1] & TRANSACTIONAL)


def stamp(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Set base offset and leader epoch of the batch at `position`; both are outside the CRC."""
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _LEADER_EPOCH.pack_into(buffer, position + _LEADER_EPOCH_AT, leader_epoch)


def stamp_append_time(buffer: bytearray | memoryview, position: int, now_ms: int) -> None:
    """Make the batch at `position` a LogAppendTime batch of `now_ms`, with a new CRC."""
    header = header_at(buffer, position)
    struct.pack_into(">h", buffer, position + ATTRIBUTES_AT, header.attributes | LOG_APPEND_TIME)
    struct.pack_into(">q", buffer, position + MAX_TIMESTAMP_AT, now_ms)
    seal(buffer, position, header.size_bytes)


def stamp_max_timestamp(buffer: bytearray | memoryview, position: int, max_ms: int) -> None:
    """Set the largest timestamp in the header of the batch at `position`, with a new CRC."""
    struct.pack_into(">q", buffer, position + MAX_TIMESTAMP_AT, max_ms)
    seal(buffer, position, header_at(buffer, position).size_bytes)


def seal(buffer: bytearray | memoryview, position: int, size_bytes: int) -> None:
    crc = crc32c(memoryview(buffer)[position + ATTRIBUTES_AT : position + size_bytes])
    struct.pack_into(">I", buffer, position + CRC_AT, crc)


def write_header(buffer: bytearray | memoryview, position: int, header: BatchHeader) -> None:
    """Write `header` in front of its records, with the right CRC (`header.crc` is ignored)."""
    HEADER.pack_into(buffer, position, *header)
    seal(buffer, position, header.size_bytes)


def records(buffer: Buffer, position: int = 0, *, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """Yield the records of the whole batch at `position`, after its CRC was checked.

    Raises: InvalidBatchError: damage of any kind, or more than `limit_bytes` of records.
    """
    try:
        header = header_at(buffer, position)
        yield from _decoded(_cursor(buffer, position, header, limit_bytes), header)
    except (CompressionError, BadRecordError) as exc:
        raise InvalidBatchError(position, str(exc)) from None


def keyless_rows(buffer: Buffer, position: int, *, limit_bytes: int) -> tuple[int, ...]:
    """Return which records of the batch at `position` have no key, KEYLESS_MAX of them at most; no record is made.

    Raises: InvalidBatchError: damage of any kind, or more than `limit_bytes` of records.
    """
    try:
        header = header_at(buffer, position)
        return tuple(_keyless(_cursor(buffer, position, header, limit_bytes), header.count))
    except (CompressionError, BadRecordError) as exc:
        raise InvalidBatchError(position, str(exc)) from None


def _cursor(buffer: Buffer, position: int, header: BatchHeader, limit_bytes: int) -> Cursor:
    """Return a cursor at the first record of the batch, after its CRC was checked."""
    check(buffer, position, header)
    stored = memoryview(buffer)[position + HEADER_BYTES : position + header.size_bytes]
    return Cursor(memoryview(decompress(header.codec, stored, limit_bytes=limit_bytes)))


def build(
    items: Iterable[Record],
    *,
    codec: Codec = Codec.NONE,
    attributes: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer: tuple[int, int, int] = (NO_PRODUCER, -1, -1),
    base_timestamp: int | None = None,
) -> bytearray:
    """Return one batch that holds these records (at least one, offsets increasing); slow.

    `attributes` are added to the codec's bits; `producer` is (id, epoch, base sequence); `base_timestamp` is by default
    that of the first record.
    """
    rows = list(items)
    first, body = rows[0], bytearray()
    base_timestamp = first.timestamp if base_timestamp is None else base_timestamp
    for row in rows:
        record = _record(row, row.offset - first.offset, row.timestamp - base_timestamp)
        body += varint(len(record)) + record
    stored = compress(codec, body)
    header = BatchHeader(
        base_offset=first.offset,
        length=EMPTY_LENGTH + len(stored),
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes | codec,
        last_offset_delta=rows[-1].offset - first.offset,
        base_timestamp=base_timestamp,
        max_timestamp=max(row.timestamp for row in rows),
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        count=len(rows),
    )
    batch = bytearray(HEADER_BYTES) + stored
    write_header(batch, 0, header)
    return batch


def _wrong(header: BatchHeader) -> str | None:
    if header.length < EMPTY_LENGTH:
        return f"length {header.length} is shorter than a header"
    if header.magic != MAGIC:
        return f"magic {header.magic} where 2 is known"
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.next_offset > _INT64_MAX:
        return f"offsets {header.base_offset} + {header.last_offset_delta} are out of range"
    if not 0 <= header.count <= header.last_offset_delta + 1:
        return f"{header.count} records in {header.last_offset_delta + 1} offsets"
    if header.attributes & CODEC_MASK > Codec.ZSTD:
        return f"unknown codec {header.attributes & CODEC_MASK}"
    return None


def _decoded(at: Cursor, header: BatchHeader) -> Iterator[Record]:
    last_delta = -1
    for _ in range(header.count):
        size = at.varint()
        end = at.position + size
        if size < RECORD_BYTES_MIN - 1 or end > at.end:
            raise BadRecordError(f"a record of {size} bytes where {at.end - at.position} are left")
        at.position += 1  # attributes: unused
        timestamp, delta = _wrapped(header.base_timestamp + at.varint(64)), at.varint()
        if not last_delta < delta <= header.last_offset_delta:
            raise BadRecordError(f"offset delta {delta} after {last_delta}, of {header.last_offset_delta}")
        last_delta = delta
        key, value = at.sized(), at.sized()
        headers = tuple([_header(at) for _ in range(at.pairs())])
        if at.position != end:
            raise _wrong_end(at.position, end)
        if header.timestamp_type:
            timestamp = header.max_timestamp
        yield Record(header.base_offset + delta, timestamp, key, value, headers)
    at.check_end()


def _wrong_end(position: int, end: int) -> BadRecordError:
    return BadRecordError(f"a record ends at byte {position} and not where it says, {end}")


def _header(at: Cursor) -> tuple[str, bytes | None]:
    key = at.sized()
    if key is None:
        raise BadRecordError("a header without a key")
    return key.decode("utf-8", "replace"), at.sized()


def _keyless(at: Cursor, count: int) -> list[int]:
    """Walk all records as `_decoded` does, and read only the lengths of their keys."""
    found: list[int] = []
    for row in range(count):
        end = at.varint() + at.position
        if not at.position + RECORD_BYTES_MIN - 1 <= end <= at.end:
            raise BadRecordError(f"a record to byte {end} of {at.end}")
        at.position += 1
        at.varint(64)
        at.varint()
        if at.skip() == -1 and len(found) < KEYLESS_MAX:
            found.append(row)
        at.skip()
        for _ in range(2 * at.pairs()):
            at.skip()
        if at.position != end:
            raise _wrong_end(at.position, end)
    at.check_end()
    return found


def _wrapped(number: int) -> int:
    """`number` as an int64 that wraps around, as timestamps do in Java."""
    return (number + 2**63) % 2**64 - 2**63


def _record(row: Record, offset_delta: int, timestamp_delta: int) -> bytes:
    parts = [
        b"\x00",
        varint(_wrapped(timestamp_delta)),
        varint(offset_delta),
        sized(row.key),
        sized(row.value),
    ]
    parts.append(varint(len(row.headers)))
    for key, value in row.headers:
        parts += (sized(key.encode()), sized(value))
    return b"".join(parts)
