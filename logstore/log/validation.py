"""Which batches may be appended, and when a log begins a new segment. Decides, touches nothing."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from logstore import errors
from logstore.config import INT32_MAX, INT64_MAX, LogConfig
from logstore.log.segments.end import SegmentEnd
from logstore.log.segments.index import TIME_ENTRY_BYTES
from logstore.records.batch import (
    ATTRIBUTES_AT,
    CONTROL,
    EMPTY_LENGTH,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    InvalidBatchError,
    WrongChecksumError,
    check,
    header_at,
)
from logstore.records.compression import Buffer, Codec
from logstore.records.marker import Marker

USUAL_ATTRIBUTES = frozenset(int(codec) for codec in Codec)  # attributes of most batches
_OFFSET_MAX = 2**62
_new = tuple.__new__  # of what is known to have the fields: a third of the time of `_make`


class AppendInfo(NamedTuple):
    """The outcome of an append: offsets [first_offset, next_offset); append_time_ms is -1 unless LogAppendTime.

    `is_duplicate`: all of it was there already, at these offsets, and nothing was written.
    """

    first_offset: int
    next_offset: int
    append_time_ms: int
    bytes: int
    is_duplicate: bool = False


class Prepared(NamedTuple):
    """Batches that are appended all or none, and their headers, one behind the other. Offsets are not given yet."""

    data: Buffer
    headers: Sequence[BatchHeader]


AppendOutcome: TypeAlias = AppendInfo | Exception  # of an append


def result_of(outcomes: Sequence[AppendOutcome]) -> AppendInfo:
    """Return the outcome of the only append. Raises: the error that it is."""
    (outcome,) = outcomes
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class Limits(NamedTuple):
    """The limits for a writer's batches: their length, and their timestamps."""

    length_max: int
    oldest_ms: int = -INT64_MAX - 1
    newest_ms: int = INT64_MAX


NO_LIMITS = Limits(INT64_MAX)


def limits_of(config: LogConfig, now_ms: int | None) -> Limits:
    """Return the limits of a log of this config; without a time, timestamps have none."""
    length_max = config.batch_bytes_max - LENGTH_END
    allowed = None if now_ms is None else config.timestamps_at(now_ms)
    return Limits(length_max) if allowed is None else Limits(length_max, allowed.start, allowed.stop - 1)


def prepare(appends: Sequence[Buffer | Marker], limits: Limits) -> list[Prepared | Marker | errors.PylogError]:
    """Return of each what may be appended, or the error with which it is refused: see `valid_batches`."""
    found: list[Prepared | Marker | errors.PylogError] = []
    for append in appends:
        try:
            found.append(
                append if isinstance(append, Marker) else _new(Prepared, (append, valid_batches(append, limits)))
            )
        except errors.PylogError as error:
            found.append(error)
    return found


def valid_batches(data: Buffer, limits: Limits | None) -> list[BatchHeader]:
    """Return the headers of the batches that `data` consists of, if header, CRC and size are good.

    `limits`: of a log that gets them from a writer, so every offset must have its record. None: they are a leader's,
    and may have gaps (compaction), and be of a time when larger ones were allowed.

    Raises: InvalidRecordError, DamagedBatchError, RecordTooLargeError, InvalidTimestampError.
    """
    found: list[BatchHeader] = []
    position, size_bytes = 0, len(data)
    view = data if type(data) is memoryview else memoryview(data)
    length_max, from_ms, to_ms = limits or NO_LIMITS
    try:
        while position + HEADER_BYTES <= size_bytes:
            fields = HEADER.unpack_from(data, position)
            header = _new(BatchHeader, fields)
            offset, length, _, magic, crc, attributes, delta, oldest_ms, newest_ms, producer, epoch, sequence, count = (
                fields
            )
            end = position + LENGTH_END + length
            # Most batches are only compressed, and all is in range: one look at local names finds them good.
            if not (
                magic == MAGIC
                and attributes in USUAL_ATTRIBUTES
                and EMPTY_LENGTH <= length <= length_max
                and end <= size_bytes
                and 0 <= offset <= _OFFSET_MAX
                and count > 0
                and (count == delta + 1 or (limits is None and count <= delta))
                and (producer < 0 or (epoch >= 0 and sequence >= 0))
                and from_ms <= oldest_ms <= newest_ms <= to_ms
                and crc32c(view[position + ATTRIBUTES_AT : end]) == crc
            ):
                header_at(data, position)  # raises if it is wrong
                if end > size_bytes:
                    break
                check(data, position, header)  # raises
                if limits is not None:
                    check_written(position, header, limits)
            found.append(header)
            position = end
    except WrongChecksumError as error:
        raise errors.DamagedBatchError(f"nothing was appended: {error}") from error
    except InvalidBatchError as error:
        raise errors.InvalidRecordError(f"nothing was appended: {error}") from error
    if position < size_bytes:
        raise errors.DamagedBatchError(f"nothing was appended: half a batch at byte {position} of {size_bytes}")
    return found


def check_written(position: int, batch: BatchHeader, limits: Limits) -> None:
    """Raise unless a good batch may come from a writer."""
    if batch.length > limits.length_max:
        raise errors.RecordTooLargeError(batch.size_bytes, limits.length_max + LENGTH_END, "batch")
    if batch.count != batch.last_offset_delta + 1:
        raise InvalidBatchError(position, f"{batch.count} records, {batch.last_offset_delta + 1} offsets")
    if reason := _wrong_producer(batch):
        raise InvalidBatchError(position, reason)
    check_times(batch, limits)


def _wrong_producer(batch: BatchHeader) -> str | None:
    """The error in the producer fields of a writer's batch; None if they are right."""
    if batch.is_control:
        return "a control batch: markers are the coordinator's"
    if batch.producer_id < 0:
        return "a transactional batch without a producer id" if batch.is_transactional else None
    has_sequence = batch.base_sequence >= 0 or (batch.is_transactional and batch.base_sequence == -1)
    if batch.producer_epoch < 0 or not has_sequence:
        return f"producer {batch.producer_id} with epoch {batch.producer_epoch}, sequence {batch.base_sequence}"
    return None


def check_times(batch: BatchHeader, limits: Limits) -> None:
    """Raise unless the times in this header are allowed: the first record's (if it has one), and the largest.

    Raises: InvalidTimestampError.
    """
    is_too_old = batch.base_timestamp < limits.oldest_ms and batch.base_timestamp != NO_TIMESTAMP
    if is_too_old or batch.max_timestamp > limits.newest_ms:
        raise errors.InvalidTimestampError(
            f"nothing was appended: timestamps {batch.base_timestamp} to {batch.max_timestamp} are further "
            "from now than message.timestamp.before.max.ms and message.timestamp.after.max.ms allow"
        )


class SegmentRoom(NamedTuple):
    """The room in a segment: a batch must begin below `begin_end`, and exceed none of the three other bounds.

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


def must_roll(
    room: SegmentRoom, position: int, size_bytes: int, last_offset: int, max_timestamp_ms: int, attributes: int
) -> bool:
    """Return whether a new segment must begin before a batch, which would be at `position`, up to `last_offset`."""
    begin_end, last_offset_max, position_max, timestamp_max_ms = room
    if position >= begin_end or last_offset > last_offset_max:
        return True
    if not position:
        return False
    # A marker's time says nothing of the records'.
    is_too_new = max_timestamp_ms > timestamp_max_ms and not attributes & CONTROL
    return position + size_bytes > position_max or is_too_new


def _jitter_ms(config: LogConfig, partition: str, base_offset: int) -> int:
    """The part of segment.jitter.ms that this segment takes off segment.ms: the same in every process."""
    limit_ms = min(config.segment_jitter_ms, config.segment_ms_max)
    return zlib.crc32(f"{partition}@{base_offset}".encode()) % limit_ms
