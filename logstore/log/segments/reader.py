"""SegmentReader: finds and reads whole batches of one log, and remembers where scans are that go on.

Takes no lock: it works on a `DirectoryView`, and who calls looks anew when what is read does not agree with it.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.config import LogConfig
from logstore.errors import CorruptLogError
from logstore.log.segments import lookup
from logstore.log.segments.directory import DirectoryView, PartitionDirectory
from logstore.log.segments.segment import Request, Segment, Slice
from logstore.records.batch import header_at

# Scans in progress whose place is remembered; more of them fall back to the index.
CURSORS_MAX = 32


class ReadResult(NamedTuple):
    """Whole batches as stored, where they are, and the offset to read next."""

    data: memoryview
    path: str
    position: int
    next_offset: int


class SegmentReader:
    """Reads one partition; see the module. Safe for threads."""

    def __init__(self, files: PartitionDirectory) -> None:
        self._files = files
        self._cursors: dict[int, tuple[int, int]] = {}  # next offset of a read -> (segment, position)

    def read(self, view: DirectoryView, request: Request, config: LogConfig) -> ReadResult:
        """Return the batches that are asked for, of one segment; empty if a gap reaches up to `upper`.

        Raises: CorruptLogError: something else is there, or a gap where none may be; FileNotFoundError.
        """
        may_have_gaps = config.may_have_gaps or view.was_compacted
        number = lookup.number_of(view, request.offset)
        segment = self._files.segment(view.bases[number])
        found = self._read_on(segment, request, lookup.end_of(view, number))
        if found is None:
            position = segment.floor_position(request.offset)
            found = segment.read(request, position, lookup.end_of(view, number))
        first = number
        while found is None:  # the segment ends before the offset
            number += 1
            is_last = number == len(view.bases)
            following = view.end if is_last else view.bases[number]
            lookup.check_ends(segment, following, may_have_gaps=may_have_gaps and not is_last)
            segment = self._files.segment(view.bases[number])
            found = segment.read(request, 0, lookup.end_of(view, number))
        if not may_have_gaps:
            lookup.check_no_gap(self._files.segment(view.bases[first]).path, request.offset, found)
        if len(self._cursors) >= CURSORS_MAX:
            self._cursors.clear()
        self._cursors[found.next_offset] = (segment.base_offset, found.position + len(found.data))
        return ReadResult(found.data, segment.path, found.position, found.next_offset)

    def _read_on(self, segment: Segment, request: Request, limit: int) -> Slice | None:
        """Read where another read ended, if the next batch is there: a scan needs no index."""
        base_offset, position = self._cursors.pop(request.offset, (-1, 0))
        if base_offset != segment.base_offset:
            return None
        try:
            found = segment.read(request, position, limit)
        except CorruptLogError:
            return None
        return found if found and found.data and header_at(found.data).base_offset == request.offset else None
