"""How many records a segment holds, by the headers of its batches: a read per large one, or per 16 KiB."""

from __future__ import annotations

from logstore.errors import CorruptLogError, OffsetOutOfRangeError
from logstore.log.segments import lookup
from logstore.log.segments.directory import DirectoryView, PartitionDirectory
from logstore.log.segments.segment_reader import TORN, WINDOW_BYTES, SegmentReader
from logstore.records.batch import HEADER_BYTES, InvalidBatchError
from logstore.records.counting import Counted, Range, count, offsets_in


def count_in(files: PartitionDirectory, view: DirectoryView, wanted: Range) -> tuple[int, int]:
    """Return (records, offset to go on from) of a range, as far as the segment that holds its first batch.

    Raises: OffsetOutOfRangeError; CorruptLogError: a damaged header, or batches that are missing; FileNotFoundError.
    """
    start, end = wanted.start, min(wanted.end, view.end)
    if not view.start <= start <= view.end:
        raise OffsetOutOfRangeError(start, view.start, view.end, files.name)
    if start >= end:
        return 0, wanted.end
    number = lookup.number_of(view, start)
    segment = files.segment(view.bases[number])
    position = segment.floor_position(start)
    while True:
        is_active = number == len(view.bases) - 1
        size_bytes = view.tail.position if is_active else segment.size_bytes()
        found = _count(segment, position, size_bytes, wanted._replace(end=end))
        if found.next_offset > (limit := lookup.end_of(view, number)):
            reason = f"offsets up to {found.next_offset - 1} where {limit} follows"
            raise CorruptLogError(segment.path, found.position, reason)
        if found.next_offset > start:
            return found.records, found.next_offset
        following = view.end if is_active else view.bases[number + 1]
        lookup.check_end(files, segment, following, is_last=is_active)
        number, position = number + 1, 0
        segment = files.segment(view.bases[number])


def _count(segment: SegmentReader, position: int, size_bytes: int, wanted: Range) -> Counted:
    """Count from the batch at `position` on. Raises: CorruptLogError, FileNotFoundError."""
    records, next_offset = 0, segment.base_offset
    while position + HEADER_BYTES <= size_bytes and next_offset < wanted.end:
        window_at = position
        window = segment.source.read(window_at, min(WINDOW_BYTES, size_bytes - window_at))

        def decoded(at: int, size: int, window_at: int = window_at) -> int:
            batch = segment.source.read(window_at + at, size)
            return offsets_in(batch, wanted, (segment.path, window_at + at))

        try:
            found = count(window, wanted, decoded, next_offset=next_offset)
        except InvalidBatchError as error:
            raise CorruptLogError(segment.path, window_at + error.position, error.reason) from error
        if (found.position, found.next_offset) == (0, next_offset):
            break  # the file is shorter than it was
        records, position, next_offset = records + found.records, window_at + found.position, found.next_offset
        if position > size_bytes:
            raise CorruptLogError(segment.path, window_at, TORN)
    return Counted(records, position, next_offset)
