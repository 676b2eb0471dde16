"""Look-ups in a view of a log: where a batch is, how many bytes lie between two offsets, which record is of a time.

Each costs a few small reads: indexes are bisected, not loaded, and at most one batch is decoded; more only where the
headers with the largest time are of no record that can be read.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from logstore.config import INT32_MAX, INT64_MAX
from logstore.errors import CorruptLogError
from logstore.log.segments.closed import Table
from logstore.log.segments.directory import DirectoryView, PartitionDirectory
from logstore.log.segments.end import NO_TIME
from logstore.log.segments.segment_reader import TORN, SegmentReader
from logstore.log.segments.source import LOG_SUFFIX
from logstore.records.batch import DECOMPRESSED_BYTES_MAX, BatchHeader, InvalidBatchError, records

# Offsets in a segment reach so far, whatever the size of the batch behind a gap.
WIDE_GAP = INT32_MAX - DECOMPRESSED_BYTES_MAX
# A segment may have millions of batches, and the first few tell its largest time.
HEADERS_KEPT = 1024


class Place(NamedTuple):
    """A batch: the number of its segment in the view, and its position."""

    number: int
    position: int
    batch: BatchHeader


class Spot(NamedTuple):
    """Where a log is cut: the number of the segment in the view, the position in it, the offset there."""

    number: int
    position: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """One segment as it is now; `next_offset` is the base offset of the next one, or the end of the log.

    `appended_ms` is the time of the last append, by the clock of then. A time is -1 where no batch has one.
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    path: str
    first_timestamp_ms: int
    max_timestamp_ms: int
    appended_ms: int


class OffsetAndTimestamp(NamedTuple):
    offset: int
    timestamp_ms: int


def number_of(view: DirectoryView, offset: int) -> int:
    return max(0, bisect.bisect_right(view.bases, offset) - 1)


def end_of(view: DirectoryView, number: int) -> int:
    """The end of the segment of this number: the base of the next one, or the end of the log."""
    if view.is_swapping:
        return view.end
    return view.bases[number + 1] if number + 1 < len(view.bases) else view.end


def discontinuity(files: PartitionDirectory, next_offset: int, following_base: int) -> str | None:
    """Why a segment of this base cannot follow one that ends at `next_offset`; None: it can.

    Each begins where the one before it ends, after compaction, too, which leaves an empty batch at the end of a segment
    if need be. Only a gap in a leader's compacted log may be too wide for one segment; Kafka leaves any.
    """
    if following_base < next_offset:
        return f"the next segment begins at {following_base}, inside this one, which ends at {next_offset}"
    is_wide = files.may_have_gaps and following_base - next_offset > WIDE_GAP
    return (
        None if following_base == next_offset or is_wide or files.is_kafkas else _missing(next_offset, following_base)
    )


def _missing(start: int, end: int) -> str:
    return f"offsets {start} to {end} are missing behind this segment"


def check_end(files: PartitionDirectory, segment: SegmentReader, following: int, *, is_last: bool) -> None:
    """Raise CorruptLogError unless this segment, in which an offset below `following` was not found, may end there."""
    size_bytes = segment.size_bytes()
    end = segment.tail(size_bytes).next_offset
    if reason := _missing(end, following) if is_last else discontinuity(files, end, following):
        raise CorruptLogError(segment.path, size_bytes, reason)


def place_of(files: PartitionDirectory, view: DirectoryView, offset: int) -> Place | None:
    """The batch that holds `offset`, in a gap the next one; None at the end of the log."""
    if offset >= view.end:
        return None
    for number in range(number_of(view, offset), len(view.bases)):
        if found := files.segment(view.bases[number]).batch_at(offset):
            return Place(number, *found)
    return None


def floor_batch(files: PartitionDirectory, view: DirectoryView, offset: int) -> int:
    place = place_of(files, view, offset)
    return place.batch.base_offset if place else view.end


def bytes_between(files: PartitionDirectory, view: DirectoryView, start: int, end: int) -> int:
    low, high = place_of(files, view, start), place_of(files, view, end)
    if low is None:
        return 0
    number, position = (high.number, high.position) if high else (len(view.bases) - 1, view.tail.position)
    between = sum(files.segment(base).size_bytes() for base in view.bases[low.number : number])
    return max(0, between + position - low.position)


def offset_after_bytes(files: PartitionDirectory, view: DirectoryView, start: int, max_bytes: int) -> int:
    place = place_of(files, view, start)
    if place is None:
        return view.end
    end, budget_bytes = place.batch.next_offset, max_bytes + place.position
    for number in range(place.number, len(view.bases)):
        segment = files.segment(view.bases[number])
        is_active = number == len(view.bases) - 1
        size_bytes = view.tail.position if is_active else segment.size_bytes()
        if budget_bytes < size_bytes:
            return max(end, segment.offset_at(budget_bytes))
        end = max(end, view.end if is_active else view.bases[number + 1])
        budget_bytes -= size_bytes
    return end


def offset_before_bytes(files: PartitionDirectory, view: DirectoryView, end: int, max_bytes: int) -> int:
    place = place_of(files, view, end)
    number, position = (place.number, place.position) if place else (len(view.bases) - 1, view.tail.position)
    while number >= 0:
        segment = files.segment(view.bases[number])
        if max_bytes <= position:
            return max(view.start, segment.offset_at(position - max_bytes))
        max_bytes -= position
        number -= 1
        position = files.segment(view.bases[number]).size_bytes() if number >= 0 else 0
    return view.start


def newest(files: PartitionDirectory, view: DirectoryView) -> OffsetAndTimestamp | None:
    """Return the first record or marker that has the largest timestamp of the log. Raises: as `first_since`."""
    closed, count = closed_in(files, view)
    _check_sound(files, view, closed, count)
    newest_ms = max((view.tail.max_timestamp_ms, *(closed[number].newest_ms for number in range(count))))
    if found := first_since(files, view, newest_ms, or_marker=True):
        return found
    newest_ms = _newest_readable_ms(files, view)
    return None if newest_ms == NO_TIME else first_since(files, view, newest_ms, or_marker=True)


def _newest_readable_ms(files: PartitionDirectory, view: DirectoryView) -> int:
    """The largest time of a record that is there and can be decoded: headers may say more. NO_TIME: there is none."""
    closed, count = closed_in(files, view)
    said = [(closed[number].newest_ms, closed[number].size_bytes, number) for number in range(count)]
    said.append((view.tail.max_timestamp_ms, view.tail.position, count))
    newest_ms = NO_TIME
    for segment_ms, size_bytes, number in sorted(said[number_of(view, view.start) :], reverse=True):
        if segment_ms <= newest_ms or not view.bases:
            break
        segment = files.segment(view.bases[number])
        for batch_ms, position, batch_bytes in _newest_first(segment, size_bytes, view.start):
            if batch_ms <= newest_ms:
                break
            found = records(segment.source.read(position, batch_bytes))
            with suppress(InvalidBatchError):
                times = (record.timestamp for record in found if record.offset >= view.start)
                newest_ms = max(newest_ms, max(times, default=NO_TIME))
    return newest_ms


def _newest_first(segment: SegmentReader, size_bytes: int, start: int) -> Iterator[tuple[int, int, int]]:
    """(largest time in the header, position, bytes) of the batches that reach `start`, the largest time first."""
    bound = INT64_MAX, size_bytes
    while True:
        places = (
            (batch.max_timestamp, position, batch.size_bytes)
            for position, batch in segment.headers(0, size_bytes)
            if batch.last_offset >= start and (batch.max_timestamp, position) < bound
        )
        found = heapq.nlargest(HEADERS_KEPT, places)
        yield from found
        if len(found) < HEADERS_KEPT:
            return
        bound = found[-1][:2]


def first_since(
    files: PartitionDirectory, view: DirectoryView, timestamp_ms: int, *, or_marker: bool = False
) -> OffsetAndTimestamp | None:
    """Return the first record that is not older.

    Raises: CorruptLogError: before it is something that cannot be read, and may hold an earlier one; FileNotFoundError.
    """
    closed, count = closed_in(files, view)
    for number in range(max(closed.first_reaching(timestamp_ms, count), number_of(view, view.start)), len(view.bases)):
        if number < count:
            known, limit = closed[number], view.bases[number + 1]
            newest_ms, size_bytes = known.newest_ms, known.size_bytes
        else:
            newest_ms, size_bytes, limit = view.tail.max_timestamp_ms, view.tail.position, view.end
        if newest_ms >= timestamp_ms:
            _check_sound(files, view, closed, number)
            segment = files.segment(view.bases[number])
            if found := segment.first_since(timestamp_ms, size_bytes, limit, start=view.start, or_marker=or_marker):
                return OffsetAndTimestamp(*found)
    _check_sound(files, view, closed, count)
    return None


def _check_sound(files: PartitionDirectory, view: DirectoryView, closed: Table, count: int) -> None:
    """Raise CorruptLogError if one of the first so many segments, from the log start on, cannot be read to its end."""
    first = number_of(view, view.start)
    for number in closed.unsound:
        if first <= number < count:
            segment = files.segment(view.bases[number])
            tail = segment.tail(segment.size_bytes())
            raise CorruptLogError(segment.path, tail.position, tail.damage or TORN)


def closed_in(files: PartitionDirectory, view: DirectoryView) -> tuple[Table, int]:
    """The known facts about the segments that are not active, and the number of these segments.

    Raises: FileNotFoundError: one of them is gone.
    """
    return view.closed.table(view.bases, files.segment), max(0, len(view.bases) - 1)


def log_bytes(files: PartitionDirectory, view: DirectoryView) -> int:
    closed, count = closed_in(files, view)
    return closed.size_bytes(count) + view.tail.position


def segment_infos(files: PartitionDirectory, view: DirectoryView) -> Iterator[SegmentInfo]:
    """Every segment, oldest first. Raises: FileNotFoundError: one of them is gone."""
    closed, count = closed_in(files, view)
    path_of = f"{files.path}/{{:020d}}{LOG_SUFFIX}".format
    if count:
        files.segment(view.bases[0]).source.extent()  # the oldest leaves first: a time stamp may not tell
    for number in range(count):
        known, base_offset = closed[number], view.bases[number]
        yield SegmentInfo(
            base_offset=base_offset,
            next_offset=view.bases[number + 1],
            size_bytes=known.size_bytes,
            path=path_of(base_offset),
            first_timestamp_ms=known.first_ms,
            max_timestamp_ms=known.newest_ms,
            appended_ms=known.mtime_ns // 1_000_000,
        )
    if view.bases:
        segment, tail = files.segment(view.bases[-1]), view.tail
        yield SegmentInfo(
            base_offset=segment.base_offset,
            next_offset=view.end,
            size_bytes=tail.position,
            path=segment.path,
            first_timestamp_ms=tail.first_timestamp_ms,
            max_timestamp_ms=tail.max_timestamp_ms,
            appended_ms=segment.source.extent().mtime_ns // 1_000_000,
        )
