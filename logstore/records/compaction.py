"""Compaction of stored batches: the last offset of every key, and the records that are left of a log.

`OffsetMap.collect` takes note of keys, `Cleaner.clean` copies what stays. Both take whole batches as they are stored
and check every CRC; no record becomes a Python object, and only compressed, transactional and control batches are
looked at one by one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from logstore.errors import CorruptLogError, UnreadableBatchError
from logstore.records import batch as batches
from logstore.records.arrow import undecoded
from logstore.records.batch import (
    DECOMPRESSED_BYTES_MAX,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchHeader,
    InvalidBatchError,
)
from logstore.records.compression import Buffer, Codec, CompressionError, compress, decompress
from logstore.records.kernels import REASONS, compacting, offset_map, stored
from logstore.records.key_map import KeyMap

# Room for the growth of small batches.
_OUT_BYTES = 4 * 1024 * 1024

Where = tuple[object, int]  # path and position of the data, for errors


def whole_in_order(data: Buffer, next_offset: int, limit: int, where: Where) -> tuple[int, int]:
    """(end of the whole batches in `data`, the offset behind them).

    Raises: CorruptLogError: their offsets do not go up from `next_offset`, or end above `limit`.
    """
    found = stored.in_order(np.frombuffer(data, dtype=np.uint8).ctypes.data, len(data), next_offset, limit)
    if found.is_odd:
        header = batches.header_at(data, found.end)
        reason = f"offsets {header.base_offset} to {header.last_offset} where {found.next_offset} or more must follow"
        if header.base_offset >= found.next_offset:
            reason = f"offsets up to {header.last_offset}, and the next segment begins at {limit}"
        raise CorruptLogError(where[0], where[1] + found.end, reason)
    return found.end, found.next_offset


class OffsetMap(KeyMap):
    """The keys of stored batches."""

    def collect(self, data: Buffer, *, start: int, skipped: Callable[[BatchHeader], bool], where: Where) -> int | None:
        """Collect the keys of the records from `start` on; return the first offset without room, if any.

        `skipped` tells which batches hold no data: control batches, and those of aborted transactions.
        """
        source = np.frombuffer(data, dtype=np.uint8)
        at = 0
        while at < len(source):
            found = compacting.collect(self.table, self.waiting, source.ctypes.data + at, len(source) - at, start)
            at += found.position
            if not found.error and not found.full and at < len(source):
                header = batches.header_at(data, at)
                if not skipped(header):
                    section = _uncompressed(data, at, header, where)
                    found = compacting.collect_section(self.table, self.waiting, _section(section, header), start)
                if not found.error and not found.full:
                    at += header.size_bytes
            if found.error:
                raise undecoded(data, batches.InvalidBatchError(at, REASONS[found.error]), where)
            if found.full == offset_map.NO_ROOM or (found.full == offset_map.NO_SLOT and not self.grow()):
                return found.offset
        return None


class Fate(enum.Enum):
    """Whether a control batch stays; WAIT: until its delete horizon, which it gets now."""

    STAY = enum.auto()
    WAIT = enum.auto()
    GO = enum.auto()


class Verdicts(Protocol):
    """Decides about transactional and control batches."""

    def is_dropped(self, header: BatchHeader) -> bool:
        """True for data of an aborted transaction. Asked for every batch that is not plain, in order."""

    def fate(self, header: BatchHeader) -> Fate:
        """Whether a control batch stays."""


class Cleaned(NamedTuple):
    """Batches that stay, how many records there were and are, and whether all of it is as it was stored."""

    data: memoryview
    before: int
    after: int
    is_same: bool


class Cleaner:
    """One pass over a log with the keys of `key_map`."""

    def __init__(
        self, key_map: OffsetMap, *, now_ms: int, horizon_ms: int, needed: Collection[int], verdicts: Verdicts
    ) -> None:
        self._rules = compacting.Rules(key_map.table, key_map.waiting, now_ms, horizon_ms)
        self._key_map = key_map  # whose memory the rules point to
        self._needed = np.array(sorted(needed), dtype=np.int64)
        self._verdicts = verdicts
        self._out = np.empty(_OUT_BYTES, dtype=np.uint8)

    def clean(self, data: Buffer, where: Where) -> Iterator[Cleaned]:
        """Yield what stays of these batches; each piece is good until the next one is asked for."""
        source, at = np.frombuffer(data, dtype=np.uint8), 0
        while at < len(source):
            work = compacting.Kernel(
                source.ctypes.data + at,
                len(source) - at,
                self._out.ctypes.data,
                len(self._out),
                self._needed.ctypes.data,
                len(self._needed),
            )
            done = compacting.retain(self._rules, work)
            start, at = at, at + done.position
            if done.position:
                stays = memoryview(data)[start:at] if done.is_same else self._out[: done.size].data
                yield Cleaned(stays, done.before, done.after, bool(done.is_same))
            if done.error:
                header = _unreadable(data, at, done.error, where)
                yield Cleaned(memoryview(data)[at : at + header.size_bytes], header.count, header.count, True)
                at += header.size_bytes
            elif done.is_special:
                header = batches.header_at(data, at)
                whole = memoryview(data)[at : at + header.size_bytes]
                stays, before, after = self._special(data, at, header, where)
                yield Cleaned(stays, before, after, stays == whole)
                at += header.size_bytes
            elif not done.position:
                self._make_room(batches.header_at(data, at))

    def _make_room(self, header: BatchHeader) -> None:
        needed = header.size_bytes + compacting.GROWTH_BYTES * header.count
        if len(self._out) < needed:
            self._out = np.empty(needed, dtype=np.uint8)

    def _special(self, data: Buffer, at: int, header: BatchHeader, where: Where) -> tuple[memoryview, int, int]:
        """The kept bytes of a compressed or transactional batch, or a marker; its records before and after."""
        whole = memoryview(data)[at : at + header.size_bytes]
        if header.is_control:
            _check(data, at, header, where)
            return self._marker(whole, header), 0, 0
        if self._verdicts.is_dropped(header):
            _check(data, at, header, where)
            return self._empty(header), header.count, 0
        try:
            section = np.frombuffer(_uncompressed(data, at, header, where), dtype=np.uint8)
            kept, records = self._keep(section, header, where, at)
        except UnreadableBatchError:
            return whole, header.count, header.count
        if not kept.count:
            return self._empty(header), header.count, 0
        if kept.count == header.count and (not kept.tombstones or header.attributes & DELETE_HORIZON):
            return whole, header.count, header.count
        return self._rewritten(header, kept, records), header.count, kept.count

    def _keep(self, section: Any, header: BatchHeader, where: Where, at: int) -> tuple[compacting.Kept, memoryview]:
        out = np.empty(len(section) + compacting.GROWTH_BYTES * header.count + 1, dtype=np.uint8)
        source = _section(section, header)
        kept = compacting.keep_section(self._rules, source, out.ctypes.data, 0)
        if kept.tombstones and not header.attributes & DELETE_HORIZON:
            kept = compacting.keep_section(self._rules, source, out.ctypes.data, 1)
        if kept.error:
            raise _undecoded(header, REASONS[kept.error], where, at)
        return kept, out[: kept.size].data

    def _rewritten(self, header: BatchHeader, kept: compacting.Kept, records: memoryview) -> memoryview:
        """The batch with these records, in its own codec if that helps."""
        packed = compress(header.codec, records)
        attributes = header.attributes
        if len(packed) >= len(records):
            packed, attributes = records, attributes & ~batches.CODEC_MASK | Codec.NONE
        base_timestamp = header.base_timestamp
        if kept.tombstones and not attributes & DELETE_HORIZON:
            attributes, base_timestamp = attributes | DELETE_HORIZON, self._rules.horizon_ms
        is_append_time = attributes & LOG_APPEND_TIME
        new = header._replace(
            length=batches.EMPTY_LENGTH + len(packed),
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=header.max_timestamp if is_append_time else kept.max_timestamp,
            count=kept.count,
        )
        batch = bytearray(new.size_bytes)
        batch[HEADER_BYTES:] = packed
        batches.write_header(batch, 0, new)
        return memoryview(batch)

    def _empty(self, header: BatchHeader) -> memoryview:
        """The header of a batch without records, if it is needed."""
        return empty_batch(header) if header.last_offset in self._needed else memoryview(b"")

    def _marker(self, whole: memoryview, header: BatchHeader) -> memoryview:
        fate = self._verdicts.fate(header)
        if fate is Fate.GO:
            return self._empty(header)
        if fate is Fate.STAY:
            return whole
        batch = batches.build(
            batches.records(whole),
            attributes=header.attributes | DELETE_HORIZON,
            leader_epoch=header.leader_epoch,
            producer=(header.producer_id, header.producer_epoch, header.base_sequence),
            base_timestamp=self._rules.horizon_ms,
        )
        return memoryview(batch)


def empty_batch(header: BatchHeader) -> memoryview:
    """A batch without records that keeps its offsets, producer, sequences and largest time, as in Kafka."""
    new = header._replace(
        length=batches.EMPTY_LENGTH,
        attributes=header.attributes & ~(batches.CODEC_MASK | DELETE_HORIZON),
        base_timestamp=header.max_timestamp,
        count=0,
    )
    batch = bytearray(HEADER_BYTES)
    batches.write_header(batch, 0, new)
    return memoryview(batch)


def _check(data: Buffer, at: int, header: BatchHeader, where: Where) -> None:
    try:
        batches.check(data, at, header)
    except InvalidBatchError as error:
        raise CorruptLogError(where[0], where[1] + at, error.reason) from None


def _uncompressed(data: Buffer, at: int, header: BatchHeader, where: Where) -> Buffer:
    """The records of a batch, after its CRC was checked."""
    _check(data, at, header, where)
    stored = memoryview(data)[at + HEADER_BYTES : at + header.size_bytes]
    try:
        return decompress(header.codec, stored, limit_bytes=DECOMPRESSED_BYTES_MAX)
    except CompressionError as error:
        raise _undecoded(header, str(error), where, at) from None


def _undecoded(header: BatchHeader, reason: str, where: Where, at: int) -> UnreadableBatchError:
    """The error of a batch whose CRC was checked."""
    return UnreadableBatchError(where[0], where[1] + at, reason, header.base_offset, header.next_offset)


def _unreadable(data: Buffer, at: int, error: int, where: Where) -> BatchHeader:
    """The header of a batch that only its records make unreadable. Raises: CorruptLogError: it is damaged."""
    alone = memoryview(data)[at:]  # the order of `data` is known
    found = undecoded(alone, batches.InvalidBatchError(0, REASONS[error]), (where[0], where[1] + at))
    if not isinstance(found, UnreadableBatchError):
        raise found
    return batches.header_at(data, at)


def _section(data: Any, header: BatchHeader) -> stored.Section:
    """Where the records of a batch are; `data` must be kept."""
    source = np.frombuffer(data, dtype=np.uint8) if len(data) else np.empty(1, dtype=np.uint8)
    address = source.ctypes.data
    return stored.Section(
        address,
        address + len(data),
        header.base_offset,
        header.last_offset_delta,
        header.count,
        header.base_timestamp,
        header.attributes & DELETE_HORIZON,
    )
