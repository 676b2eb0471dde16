"""ProducerTracker: what the producers of one log did, as of a `DirectoryView`, and the files that keep it.

::

    00000000000000000000.snapshot   the producers when the log ended at this offset (see `state`)
    00000000000000000000.txnindex   the transactions that ended in this segment with an ABORT marker

The batches are the truth. States are brought up to date from the newest snapshot, or from where they were known, by a
walk over headers. Three promises make that cheap:

- Before the first batch of a producer there is a snapshot: a log without one never saw a producer, and is not walked.
- Before the first transactional batch of a segment there is its transaction index: where no segment has one, nothing is
  open and nothing was aborted. An entry is there before its marker; one behind the end of the log does not count.
- A snapshot follows after `SNAPSHOT_BATCHES`, and at every roll. It holds a checksum and is not waited for: `Log.flush`
  makes it durable.

Safe for threads. Writers hold the log's lock; readers hold nothing, and bring a view of their own.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, takewhile
from typing import NamedTuple, TypeVar

from logstore.env import Env, FileStat, reset_after_fork
from logstore.errors import CorruptLogError
from logstore.log.producers.snapshots import Snapshots
from logstore.log.producers.state import Admission, OpenTransaction, ProducerState, ProducerStates
from logstore.log.segments import lookup
from logstore.log.segments.directory import DirectoryView, PartitionDirectory
from logstore.log.segments.index import AbortedTransaction
from logstore.log.segments.segment import Segment
from logstore.records.batch import TRANSACTIONAL, BatchHeader, InvalidBatchError
from logstore.records.marker import ControlMarker, marker_of

logger = logging.getLogger(__name__)

# A walk of so many headers takes some 5 ms: every process that appends or commits does one, in each partition.
SNAPSHOT_BATCHES = 200
SNAPSHOTS_LOOKED_AT = 4

Found = TypeVar("Found")


class Undecided(NamedTuple):
    """A log's end, and the transactions that are open below it.

    `has_transactions`: there may be others, and each has its marker.
    """

    end: int
    opened: tuple[OpenTransaction, ...]
    has_transactions: bool


class _Place(NamedTuple):
    """The batch that the known states end with (None: nothing was walked), and its position in a segment."""

    base: int
    position: int
    batch: BatchHeader | None
    active: FileStat | None  # of the view that they were brought up to


class ProducerTracker:
    def __init__(self, files: PartitionDirectory) -> None:
        self._files = files
        self._env: Env = files.env
        self.snapshots = Snapshots(files.env, files.path)
        self._states: ProducerStates | None = None
        self._place = _Place(0, 0, None, None)
        self._batches_since_snapshot = 0
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        self._mutex = threading.RLock()

    def ask(self, view: DirectoryView, question: Callable[[ProducerStates], Found]) -> Found:
        """Return the answer of the states at the end of this view, or later.

        Raises: CorruptLogError: a header that no batch has.
        """
        with self._mutex:
            return question(self._at(view))

    def states(self, view: DirectoryView) -> tuple[ProducerState, ...]:
        return self.ask(view, ProducerStates.states)

    def undecided(self, view: DirectoryView) -> Undecided:
        """The open transactions; `view` must have every transaction index below its end."""
        if not view.transactional:
            return Undecided(view.end, (), has_transactions=False)
        opened = self.ask(view, ProducerStates.open_transactions)
        return Undecided(view.end, opened, has_transactions=True)

    def stable_end_known(self, view: DirectoryView) -> int | None:
        """The first offset of the oldest open transaction, or the end of the view; None: only the disk tells it now.

        Waits for nobody.
        """
        if not view.transactional:
            return view.end
        if not self._mutex.acquire(blocking=False):
            return None
        try:
            states, place = self._states, self._place
            if states is None or states.end != view.end or place.active is None or place.active != view.active:
                return None
            return states.last_stable_offset if place.base == view.bases[-1] else None
        finally:
            self._mutex.release()

    def check(self, view: DirectoryView, batches: Sequence[BatchHeader], *, expired_ms: int) -> Admission:
        """Call `ProducerStates.check` at the end of this view."""

        def is_stored(offset: int, wanted: Sequence[BatchHeader]) -> bool:
            found = self._walk(view, offset)
            return offset >= view.local_start and all(
                is_same(wanted_batch, next(found, None), at)
                for wanted_batch, at in zip(wanted, _offsets(wanted, offset), strict=True)
            )

        return self.ask(view, lambda states: states.check(batches, is_stored, expired_ms=expired_ms))

    def aborted(self, view: DirectoryView, start: int, end: int) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions that have an offset in [start, end), by the offset of their marker."""
        first, found = view.bases[lookup.number_of(view, start)] if view.bases else 0, []
        for base in view.transactional:
            if base < first or base not in view.bases:
                continue
            for entry in self._aborted_in(view, base):
                if entry.last_offset >= start and entry.first_offset < end:
                    found.append(entry)
                if entry.last_stable_offset >= end:
                    return tuple(found)
        return tuple(found)

    def before_append(self, segment: Segment, batches: Sequence[BatchHeader], data: memoryview) -> None:
        """Under the log's lock, before these batches are written: make the snapshot and index that they need."""
        view = self._files.view
        snapshots, transactional = view.snapshots, view.transactional
        if not snapshots and any(batch.producer_id >= 0 for batch in batches):
            self.snapshots.write_empty(view.end)
            snapshots = (view.end,)
        with self._mutex:
            self._at(view)  # so that they can go on with these batches
        base = segment.base_offset
        if any(batch.attributes & TRANSACTIONAL for batch in batches):
            if base not in transactional:
                segment.transactions.create()
                transactional = (*transactional, base)
            entries = self._aborted_by(view, batches, data)
            if entries:
                segment.transactions.append(entries)
        if (snapshots, transactional) != (view.snapshots, view.transactional):
            self._files.publish_names(snapshots=snapshots, transactional=transactional)

    def after_append(self, batches: Sequence[BatchHeader], data: memoryview) -> None:
        """Under the log's lock, after these batches were written and published."""
        view = self._files.view
        with self._mutex:
            states = self._states
            if states is not None and states.end <= batches[0].base_offset:
                now_ms, at = self._env.clock.now_ms(), 0
                for batch in batches:
                    states.apply(batch, _marker_in(data, at, batch), now_ms)
                    at += batch.size_bytes
                self._batches_since_snapshot += len(batches)
                position = view.tail.position - batches[-1].size_bytes
                self._place = _Place(view.bases[-1], position, batches[-1], view.active)
            else:
                states = self._at(view)
            # A snapshot has an entry for every producer: with many of them one follows later.
            if self._batches_since_snapshot >= max(SNAPSHOT_BATCHES, len(states)):
                self.write_snapshot(view)

    def forget(self) -> None:
        with self._mutex:
            self._states = None

    def cut(self, end: int) -> None:
        """Under the log's lock, before it is cut at `end`: remove the snapshots behind it."""
        view = self._files.view
        gone = [offset for offset in view.snapshots if offset > end]
        for offset in gone:
            self._env.files.unlink(self.snapshots.path(offset))
        if gone:
            kept = (offset for offset in view.snapshots if offset <= end)
            self._files.publish_names(snapshots=kept, transactional=view.transactional)

    def mend(self, view: DirectoryView) -> None:
        """Under the log's lock: remove the index entry of a killed process that had not written its marker."""
        if view.bases and view.bases[-1] in view.transactional:
            index = self._files.segment(view.bases[-1]).transactions
            if index.last_marker() >= view.end:
                index.truncate(view.end)

    def write_snapshot(self, view: DirectoryView, *, expired_ms: int = -1) -> None:
        """Under the log's lock: write a snapshot of the end of this view, and remove superfluous ones.

        Needed are the first, those at the start of a segment, and the newest but one.
        """
        with self._mutex:
            states = self._at(view)
            states.forget_expired(expired_ms)
            data = states.to_snapshot()
            self._batches_since_snapshot = 0
        self.snapshots.write(view.end, data)
        offsets = [*view.snapshots]
        at = bisect_left(offsets, view.end)
        if offsets[at : at + 1] != [view.end]:
            offsets.insert(at, view.end)
        for offset in offsets[1:-2][-SNAPSHOTS_LOOKED_AT:]:  # those before were looked at when they became so old
            if offset != view.bases[lookup.number_of(view, offset)]:
                self._env.files.unlink(self.snapshots.path(offset))
                offsets.remove(offset)
        self._files.publish_names(snapshots=offsets, transactional=view.transactional)

    def _at(self, view: DirectoryView) -> ProducerStates:
        """The states at the end of `view` (or later, if this process has appended since)."""
        states = self._states
        if states is not None and not self._is_current(view):
            states = None
        if states is None:
            states = self._loaded(view)
        if states.end < view.end:
            self._follow(states, view)
        if self._place.batch is None and view.bases:
            self._place = _Place(view.bases[-1], 0, None, view.active)
        self._states = states
        return states

    def _is_current(self, view: DirectoryView) -> bool:
        """True if the last batch that was seen is still there, and so everything before it."""
        place = self._place
        if place.active is not None and place.active == view.active and place.base == view.bases[-1]:
            return True
        if place.batch is None or place.base not in view.bases:
            return False
        return self._files.segment(place.base).header(place.position) == place.batch

    def _loaded(self, view: DirectoryView) -> ProducerStates:
        """States to walk on from: of the newest snapshot below the end of the view, or empty ones."""
        self._place, self._batches_since_snapshot = _Place(0, 0, None, None), 0
        if not view.snapshots and not view.transactional:
            return ProducerStates(view.end)
        for offset in reversed(view.snapshots):
            states = self.snapshots.load(offset) if view.local_start <= offset <= view.end else None
            if states is not None:
                return states
        return ProducerStates(view.local_start)

    def _follow(self, states: ProducerStates, view: DirectoryView) -> None:
        """Walk on from where the states end, to the end of the view."""
        batch = segment = None
        position = seen_ms = 0
        for following, position, batch in self._walk(view, states.end, self._place):
            if following is not segment:
                segment, seen_ms = following, _changed_ms(self._env, following)
            states.apply(batch, self._marker_at(following, position, batch), seen_ms)
            self._batches_since_snapshot += 1
        states.end = view.end
        if segment is not None:
            self._place = _Place(segment.base_offset, position, batch, view.active)

    def _walk(
        self, view: DirectoryView, offset: int, place: _Place | None = None
    ) -> Iterator[tuple[Segment, int, BatchHeader]]:
        """(segment, position, header) of the batches from the one that begins at or behind `offset`.

        That is the one behind `place`, if it is given.
        """
        for number in range(lookup.number_of(view, offset), len(view.bases)):
            segment, position = self._files.segment(view.bases[number]), 0
            is_active = number == len(view.bases) - 1
            size_bytes = view.tail.position if is_active else segment.size_bytes()
            if place and place.batch and place.base == segment.base_offset:
                position = place.position + place.batch.size_bytes
            elif offset >= view.end:
                return
            elif offset > segment.base_offset:
                position = segment.floor_position(offset)
            for at, batch in segment.headers(position, size_bytes):
                if batch.base_offset >= offset:
                    yield segment, at, batch

    def _marker_at(self, segment: Segment, position: int, batch: BatchHeader) -> ControlMarker | None:
        if not batch.is_control:
            return None
        try:
            return marker_of(segment.source.read(position, batch.size_bytes))
        except InvalidBatchError as error:
            raise CorruptLogError(segment.path, position, error.reason) from error

    def _aborted_by(
        self, view: DirectoryView, batches: Sequence[BatchHeader], data: memoryview
    ) -> list[AbortedTransaction]:
        if not any(batch.is_control for batch in batches):
            return []
        at = 0
        markers: list[ControlMarker | None] = []
        for batch in batches:
            markers.append(_marker_in(data, at, batch))
            at += batch.size_bytes
        if not any(marker is not None and marker.kind == "ABORT" for marker in markers):
            return []
        states = self.ask(view, ProducerStates.copy)
        found = [states.apply(batch, marker, 0) for batch, marker in zip(batches, markers, strict=True)]
        return [entry for entry in found if entry is not None]

    def _aborted_in(self, view: DirectoryView, base: int) -> Iterable[AbortedTransaction]:
        """The aborted transactions by the index of a segment; if that is damaged, by its batches."""
        segment = self._files.segment(base)
        found = segment.source.aborted()
        if found is None:
            if self._files.is_kafkas:
                return self.aborted_of(view, base)
            logger.warning("path=%s is damaged: not used", segment.transactions.paths[0])
            return self.aborted_of(view, base)
        return (transaction for transaction in found if transaction.last_offset < view.end)

    def aborted_of(self, view: DirectoryView, base: int) -> list[AbortedTransaction]:
        """The transactions that the markers in a segment aborted."""
        end = next(chain((other for other in view.bases if other > base), (view.end,)))
        steps = takewhile(lambda step: step[1].base_offset < end, self.history(view, base))
        return [ended for segment, _, ended in steps if ended is not None and segment.base_offset == base]

    def history(
        self, view: DirectoryView, base: int
    ) -> Iterator[tuple[Segment, BatchHeader, AbortedTransaction | None]]:
        """Yield (segment, batch, what it aborts) from the newest snapshot at or below `base` on, or from the start."""
        known = (
            self.snapshots.load(offset) for offset in reversed(view.snapshots) if view.local_start <= offset <= base
        )
        states = next((states for states in known if states is not None), ProducerStates(view.local_start))
        for segment, position, batch in self._walk(view, states.end):
            yield segment, batch, states.apply(batch, self._marker_at(segment, position, batch), 0)


def is_same(wanted: BatchHeader, found: tuple[Segment, int, BatchHeader] | None, offset: int) -> bool:
    if found is None:
        return False
    stored = found[2]
    return stored.base_offset == offset and stored[9:] == wanted[9:]


def _offsets(batches: Sequence[BatchHeader], offset: int) -> Iterator[int]:
    for batch in batches:
        yield offset
        offset += batch.last_offset_delta + 1


def _marker_in(data: memoryview, position: int, batch: BatchHeader) -> ControlMarker | None:
    return marker_of(data, position) if batch.is_control else None


def _changed_ms(env: Env, segment: Segment) -> int:
    """When the segment was last written: no batch in it is younger."""
    stat = env.files.stat(segment.path)
    return 0 if stat is None else stat.mtime_ns // 1_000_000
