"""Which batches may be appended, and when a log begins a new segment. Decides, touches nothing."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple

from logstore.config import INT32_MAX, INT64_MAX, LogConfig
from logstore.errors import DamagedBatchError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from logstore.log.segments.end import SegmentEnd
from logstore.log.segments.index import TIME_ENTRY_BYTES
from logstore.records.batch import (
    LENGTH_END,
    NO_TIMESTAMP,
    BatchHeader,
    InvalidBatchError,
    WrongChecksumError,
    batches,
    check,
)
from logstore.records.plain import PlainHeader, plain_header


class AppendInfo(NamedTuple):
    """What an append did: offsets [first_offset, next_offset); append_time_ms is -1 unless LogAppendTime.

    `is_duplicate`: all of it was there already, at these offsets, and nothing was written.
    """

    first_offset: int
    next_offset: int
    append_time_ms: int
    bytes: int
    is_duplicate: bool = False


def valid_batches(
    data: bytes | bytearray | memoryview, config: LogConfig, *, dense: bool, now_ms: int | None = None
) -> list[tuple[int, BatchHeader]]:
    """Return (position, header) of the batches that `data` consists of, if header, CRC and size are good.

    `dense`: from a writer, so every offset must have its record, and no batch may be too large. Batches of a leader may
    have gaps (compaction), and be of a time when larger ones were allowed. `now_ms`: check the times against it.

    Raises: InvalidRecordError, DamagedBatchError, RecordTooLargeError, InvalidTimestampError.
    """
    found, end, limit = [], 0, config.batch_bytes_max
    try:
        for position, batch in batches(data):
            check(data, position, batch)
            if dense and batch.size_bytes > limit:
                raise RecordTooLargeError(batch.size_bytes, limit, "batch")
            if dense and batch.count != batch.last_offset_delta + 1:
                raise InvalidBatchError(position, f"{batch.count} records, {batch.last_offset_delta + 1} offsets")
            if dense and (reason := _wrong_producer(batch)):
                raise InvalidBatchError(position, reason)
            found.append((position, batch))
            end = position + batch.size_bytes
    except WrongChecksumError as error:
        raise DamagedBatchError(f"nothing was appended: {error}") from error
    except InvalidBatchError as error:
        raise InvalidRecordError(f"nothing was appended: {error}") from error
    if end < len(data):
        raise DamagedBatchError(f"nothing was appended: half a batch at byte {end} of {len(data)}")
    if now_ms is not None and (allowed := config.timestamps_at(now_ms)):
        check_times(found, allowed)
    return found


def plain_batch(data: bytearray | memoryview, config: LogConfig, now_ms: int) -> PlainHeader | None:
    """Return the header of the one batch that `data` is, from a writer; None: only `valid_batches` can tell.

    It has none for a batch of a transaction, or that `valid_batches` refuses.
    """
    plain = plain_header(data)
    return plain if plain is not None and count_taken((plain,), config, now_ms) else None


def count_taken(batches: Iterable[PlainHeader], config: LogConfig, now_ms: int) -> int:
    """Return how many of these a log of this config takes before the first that has a wrong size, or wrong times."""
    length_max, oldest_ms, newest_ms = config.batch_bytes_max - LENGTH_END, -INT64_MAX - 1, INT64_MAX
    if config.message_timestamp_type == "CreateTime":
        oldest_ms = now_ms - config.message_timestamp_before_max_ms
        newest_ms = now_ms + config.message_timestamp_after_max_ms
    count = 0
    for plain in batches:
        if plain[1] > length_max or not oldest_ms <= plain[7] <= plain[8] <= newest_ms:
            break
        count += 1
    return count


def _wrong_producer(batch: BatchHeader) -> str | None:
    """What is wrong with the producer fields of a writer's batch; None: nothing."""
    if batch.is_control:
        return "a control batch: markers are the coordinator's"
    if batch.producer_id < 0:
        return "a transactional batch without a producer id" if batch.is_transactional else None
    has_sequence = batch.base_sequence >= 0 or (batch.is_transactional and batch.base_sequence == -1)
    if batch.producer_epoch < 0 or not has_sequence:
        return f"producer {batch.producer_id} with epoch {batch.producer_epoch}, sequence {batch.base_sequence}"
    return None


def check_times(batches: Iterable[tuple[int, BatchHeader]], allowed: range) -> None:
    """Raise unless the times in these headers are allowed: the first record's (if it has one), and the largest.

    Raises: InvalidTimestampError.
    """
    for _, batch in batches:
        is_too_old = batch.base_timestamp < allowed.start and batch.base_timestamp != NO_TIMESTAMP
        if is_too_old or batch.max_timestamp >= allowed.stop:
            raise InvalidTimestampError(
                f"nothing was appended: timestamps {batch.base_timestamp} to {batch.max_timestamp} are further "
                "from now than message.timestamp.before.max.ms and message.timestamp.after.max.ms allow"
            )


class SegmentRoom(NamedTuple):
    """What a segment takes: batches that begin below `begin_end`, and are not above the three others.

    The first batch of a segment may have any size and time. Age is in record time, as in Kafka, so that retention by
    time works on whole segments.
    """

    begin_end: int  # behind it, the index would be full
    last_offset_max: int  # offsets in an index are relative, in 32 bits
    position_max: int
    timestamp_max_ms: int


def segment_room(config: LogConfig, base_offset: int, partition: str, tail: SegmentEnd) -> SegmentRoom:
    entries_left = config.segment_index_bytes // TIME_ENTRY_BYTES - tail.indexed_entries
    limit_ms = config.segment_ms_max
    if config.segment_jitter_ms:
        limit_ms -= _jitter_ms(config, partition, base_offset)
    return SegmentRoom(
        tail.position + entries_left * max(1, config.index_interval_bytes),
        base_offset + INT32_MAX,
        config.segment_bytes,
        tail.first_timestamp_ms + limit_ms if tail.first_timestamp_ms >= 0 else INT64_MAX,
    )


def must_roll(room: SegmentRoom, position: int, batch: BatchHeader) -> bool:
    """True if a new segment must begin before this batch, which would begin at `position`."""
    if position >= room.begin_end or batch.last_offset > room.last_offset_max:
        return True
    if position == 0:
        return False
    # A marker's time says nothing of the records'.
    is_too_new = batch.max_timestamp > room.timestamp_max_ms and not batch.is_control
    return position + batch.size_bytes > room.position_max or is_too_new


def _jitter_ms(config: LogConfig, partition: str, base_offset: int) -> int:
    """The part of segment.jitter.ms that this segment takes off segment.ms: the same in every process."""
    limit_ms = min(config.segment_jitter_ms, config.segment_ms_max)
    return zlib.crc32(f"{partition}@{base_offset}".encode()) % limit_ms
