"""LogReader and LogProducers: read one log, and look things up in it, without a lock (see `RecoveryPoint.look_up`)."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from logstore.config import INT64_MAX
from logstore.errors import CorruptLogError, OffsetOutOfRangeError
from logstore.log.producers.state import OpenTransaction, ProducerState
from logstore.log.producers.tracker import ProducerTracker, Undecided
from logstore.log.recovery_point import RecoveryPoint
from logstore.log.segments import counting, lookup
from logstore.log.segments.directory import DirectoryView, PartitionDirectory
from logstore.log.segments.index import AbortedTransaction
from logstore.log.segments.lookup import OffsetAndTimestamp
from logstore.log.segments.segment_reader import NO_SPACE, NOTHING, READ_BYTES_MIN, Request, SegmentReader, Slice, Space
from logstore.records.batch import header_at
from logstore.records.counting import Range

# Scans in progress whose place is remembered; more of them fall back to the index.
CURSORS_MAX = 32
# More than this is copied by a thread.
CACHED_BYTES_MAX = 128 * 1024


class ReadResult(NamedTuple):
    """Whole batches as stored, where they are, and the offset to read next."""

    data: memoryview
    path: str
    position: int
    next_offset: int


class LogReader:
    """Reads one log; see the module. Safe for threads."""

    def __init__(self, files: PartitionDirectory, point: RecoveryPoint) -> None:
        self._files = files
        self._point = point
        self._cursors: dict[int, tuple[int, int]] = {}  # next offset of a read -> (segment, position)

    def read(self, offset: int, *, max_bytes: int, upper: int | None, space: Space = NO_SPACE) -> ReadResult:
        view = self._files.view
        if upper is None or upper > view.end or offset < view.start:
            view = self._point.view()
        into = space.first(max(max_bytes, READ_BYTES_MIN))
        request = Request(offset, max_bytes, upper=INT64_MAX, space=into, walk=space.walk)
        try:
            return self._read_in(view, request, upper)
        except (CorruptLogError, FileNotFoundError):
            return self._point.look_up(lambda view: self._read_in(view, request, upper), reread=True)

    def read_cached(self, offset: int, *, max_bytes: int, upper: int) -> ReadResult | None:
        view = self._files.view
        bases, tail = view.bases, view.tail
        if not bases or not bases[-1] <= offset < upper <= tail.next_offset or (view.aside and view.is_swapping):
            return None
        base_offset, position = self._cursors.get(offset, (offset, 0))
        if base_offset != bases[-1] or min(max_bytes, tail.position - position) > CACHED_BYTES_MAX:
            return None
        segment = self._files.segment(base_offset)
        found = segment.read_cached(offset, upper, max_bytes, position, tail)
        return None if found is None else self._found(segment, found)

    def _read_in(self, view: DirectoryView, request: Request, upper: int | None) -> ReadResult:
        offset = request.offset
        if not view.start <= offset <= view.end:
            raise OffsetOutOfRangeError(offset, view.start, view.end, self._files.name)
        request = request._replace(upper=view.end if upper is None else min(upper, view.end))
        if offset >= request.upper:
            return ReadResult(NOTHING, self._files.path, 0, offset)
        found = self._read_segment(view, request)
        self._files.check_topic()
        return found

    def _read_segment(self, view: DirectoryView, request: Request) -> ReadResult:
        """Return the batches of one segment; empty if a gap reaches up to `upper`. Gaps in a segment are read over.

        Raises: CorruptLogError: something else is there, or a gap between segments where none may be;
        FileNotFoundError.
        """
        number = lookup.number_of(view, request.offset)
        segment = self._files.segment(view.bases[number])
        found = self._read_on(segment, request, lookup.end_of(view, number))
        if found is None:
            position = segment.floor_position(request.offset)
            found = segment.read(request, position, lookup.end_of(view, number))
        while found is None:  # the segment ends before the offset
            number += 1
            is_last = number == len(view.bases)
            following = view.end if is_last else view.bases[number]
            lookup.check_end(self._files, segment, following, is_last=is_last)
            segment = self._files.segment(view.bases[number])
            found = segment.read(request, 0, lookup.end_of(view, number))
        return self._found(segment, found)

    def _found(self, segment: SegmentReader, found: Slice) -> ReadResult:
        if len(self._cursors) >= CURSORS_MAX:
            self._cursors.clear()
        self._cursors[found.next_offset] = (segment.base_offset, found.position + len(found.data))
        return ReadResult(found.data, segment.path, found.position, found.next_offset)

    def _read_on(self, segment: SegmentReader, request: Request, limit: int) -> Slice | None:
        """Read where another read ended, if the next batch is there: a scan needs no index."""
        base_offset, position = self._cursors.pop(request.offset, (-1, 0))
        if base_offset != segment.base_offset:
            return None
        try:
            found = segment.read(request, position, limit)
        except CorruptLogError:
            return None
        return found if found and found.data and header_at(found.data).base_offset == request.offset else None

    def count(self, wanted: Range) -> int:
        """Return how many records of a range there are, by the headers of their batches; CRCs are not checked."""
        records = 0
        while wanted.start < wanted.end:
            found, start = self._point.look_up(partial(_count_in, self._files, wanted))
            records, wanted = records + found, wanted._replace(start=start)
            self._files.check_topic()
        return records

    def floor_batch(self, offset: int) -> int:
        """Return the base offset of the batch that holds `offset` (in a gap: of the next one), or the end."""
        return self._point.look_up(lambda view: lookup.floor_batch(self._files, view, offset))

    def bytes_between(self, start: int, end: int) -> int:
        """Return the stored bytes from the batch that holds `start` to the one before `end`'s."""
        return self._point.look_up(lambda view: lookup.bytes_between(self._files, view, start, end))

    def offset_after_bytes(self, start: int, max_bytes: int) -> int:
        """Return the largest end where a batch ends and [start, end) has at most `max_bytes` stored bytes.

        At least one batch is inside, unless `start` is the end of the log.
        """
        return self._point.look_up(lambda view: lookup.offset_after_bytes(self._files, view, start, max_bytes))

    def offset_before_bytes(self, end: int, max_bytes: int) -> int:
        """Return a start between two batches, the last one from which [start, end) has `max_bytes` stored bytes.

        The start of the log, if there are fewer.
        """
        return self._point.look_up(lambda view: lookup.offset_before_bytes(self._files, view, end, max_bytes))

    def offset_for_time(self, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """Return the first record whose timestamp is at least `timestamp_ms`; None if there is none."""
        return self._point.look_up(lambda view: lookup.first_since(self._files, view, timestamp_ms))

    def newest(self) -> OffsetAndTimestamp | None:
        """Return the first record with the largest timestamp, or the marker of a transaction; None if there is none."""
        return self._point.look_up(lambda view: lookup.newest(self._files, view))


def _count_in(files: PartitionDirectory, wanted: Range, view: DirectoryView) -> tuple[int, int]:
    return counting.count_in(files, view, wanted)


class LogProducers:
    """The producers of one log and their transactions, as readers ask for them; takes no lock."""

    def __init__(self, point: RecoveryPoint, tracker: ProducerTracker) -> None:
        self._point = point
        self._tracker = tracker

    def states(self) -> tuple[ProducerState, ...]:
        """Every producer known here: epoch, last sequence and offset, open transaction; by id."""
        return self._point.look_up(self._tracker.states, with_names=True)

    def undecided(self) -> Undecided:
        """The end of the log, and the transactions that are open below it."""
        return self._point.look_up(self._tracker.undecided, with_names=True)

    def open_transactions(self) -> tuple[OpenTransaction, ...]:
        """The transactions without a marker, oldest first."""
        return self.undecided().opened

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction; the log's end if none is open."""
        undecided = self.undecided()
        return undecided.opened[0].first_offset if undecided.opened else undecided.end

    def stable_end_known(self, view: DirectoryView) -> int | None:
        """The last stable offset of this view, if it is known without reading the disk; else None."""
        return self._tracker.stable_end_known(view)

    def aborted(self, start: int, end: int) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions that have an offset in [start, end), oldest marker first."""
        return self._point.look_up(lambda view: self._tracker.aborted(view, start, end), with_names=True)
