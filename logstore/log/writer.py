"""LogWriter: puts batches behind the end of a log, begins new segments there, and cuts.

The caller holds the lock of the log and has checked the batches. A write that fails is undone.

`append` is the one way in: `_place` finds room for a batch and stamps it, `_write` writes those that were placed.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from typing import TypeAlias

from logstore.checkpoint import fsync_or_mark
from logstore.config import INT32_MAX, INT64_MAX, LogConfig
from logstore.errors import InvalidRecordError, PylogError, StorageError
from logstore.log.leader_epochs import LeaderEpochs, epoch_starts
from logstore.log.producers.state import NOTHING_KNOWN, Admission
from logstore.log.producers.tracker import ProducerTracker
from logstore.log.recovery_point import RecoveryPoint
from logstore.log.segments import offset_checkpoints
from logstore.log.segments.directory import DirectoryView, PartitionDirectory
from logstore.log.segments.end import SegmentEnd, Step
from logstore.log.segments.lookup import Spot
from logstore.log.validation import AppendInfo, AppendOutcome, Prepared, SegmentRoom, must_roll, segment_room
from logstore.records.batch import LENGTH_END, STAMP, TRANSACTIONAL, BatchHeader, header_at, stamp_append_time
from logstore.records.compression import Buffer
from logstore.records.marker import Marker, end_marker

logger = logging.getLogger(__name__)

# Batches of more bytes are several writes: to join them is a copy, and memory.
JOINED_BYTES_MAX = 1024 * 1024

_new = tuple.__new__  # of a value that has all its fields: a third of the time of its class
NO_ROOM = SegmentRoom(0, 0, 0, 0)  # of a log without a segment

# The argument of an append; an error, with which it was refused before, keeps its place.
Append: TypeAlias = Prepared | Marker | PylogError


class _Write:
    """The bytes of one write behind the end of the active segment, at `position` and `offset`."""

    __slots__ = (
        "append_ms",
        "data",
        "epoch",
        "epochs",
        "has_producers",
        "has_transactions",
        "headers",
        "is_asked",
        "left_bytes",
        "offset",
        "position",
        "producers",
        "room",
        "steps",
    )

    def __init__(self, view: DirectoryView, room: SegmentRoom, epoch: int, append_ms: int, left_bytes: int) -> None:
        self.append_ms = append_ms  # -1: batches keep their own times
        self.position, self.offset = view.tail.position, view.tail.next_offset
        self.left_bytes = left_bytes  # but for the first batch
        self.room = room
        self.epoch = epoch  # the latest
        self.epochs: list[tuple[int, int]] = []  # those that begin here, and at which offset
        self.data: list[Buffer] = []
        self.steps: list[Step] = []
        self.has_producers = bool(view.snapshots)
        self.has_transactions = False
        self.is_asked = False  # the states of producers were, so they are those of this end
        self.headers: list[BatchHeader] = []  # as stamped: only if the log has producers
        self.producers: set[int] = set()

    def note(self, batch: BatchHeader) -> None:
        """Have the states of producers know of the batch, which is stamped."""
        self.headers.append(batch)
        if batch.producer_id >= 0:
            self.producers.add(batch.producer_id)
            self.has_transactions |= bool(batch.attributes & TRANSACTIONAL)


class LogWriter:
    def __init__(
        self,
        files: PartitionDirectory,
        producers: ProducerTracker,
        epochs: LeaderEpochs,
        point: RecoveryPoint,
    ) -> None:
        self._files = files
        self._env = files.env
        self._producers = producers
        self._epochs = epochs
        self._point = point
        self.has_failed = False  # a write of the last append
        self.may_remain = False  # batches of an append that failed
        self._room_of: tuple[Sequence[int], LogConfig, int, int] | None = None
        self._known_room = NO_ROOM

    def is_prompt(self, appends: Sequence[Append], leader_epoch: int | None, config: LogConfig) -> bool:
        """Return whether these need no fsync: neither one that is due, nor of a new epoch."""
        latest = self._epochs.latest
        if leader_epoch is None:
            (followed,) = appends
            is_known = type(followed) is Prepared and all(batch.leader_epoch == latest for batch in followed.headers)
        else:
            is_known = leader_epoch == latest
        return (
            is_known
            and config.flush_messages >= INT64_MAX
            and not (config.flush_ms < INT64_MAX and self._point.is_time_to_flush(config))
        )

    def append(
        self, appends: Sequence[Append], leader_epoch: int | None, config: LogConfig, outcomes: list[AppendOutcome]
    ) -> None:
        """Append these one after the other, each all or none, neighbours in one write.

        `outcomes` gets what became of each. With a `leader_epoch` they get the next offsets and this epoch, in place;
        without one they keep those that a leader gave them. Behind a failed write each is tried alone, unless batches
        may remain: then all fail.
        """
        self.has_failed = self.may_remain = False
        at_once = len(appends)
        while (done := len(outcomes)) < len(appends):
            before = self._files.view
            try:
                outcomes += self._append_some(appends[done : done + at_once], leader_epoch, config)
            except StorageError as error:
                self.has_failed = True
                self._undo(before)
                if self.may_remain:
                    outcomes += [error] * (len(appends) - done)
                elif at_once == 1:
                    outcomes.append(error)
                at_once = 1

    def _append_some(
        self, appends: Sequence[Append], leader_epoch: int | None, config: LogConfig
    ) -> Sequence[AppendOutcome]:
        """Append the first of these, and those behind it that go with it; return what became of them."""
        first = appends[0]
        if isinstance(first, Prepared) and len(first.headers) != 1:
            return [self._append_all(first, leader_epoch, config)]
        write = self._new_write(leader_epoch, config)
        done: list[AppendOutcome] = []
        for append in appends:
            try:
                outcome = self._add(write, append, leader_epoch, config)
            except StorageError:
                raise
            except PylogError as error:
                outcome = error
            if outcome is None:
                break
            done.append(outcome)
        if write.steps:
            self._write(write, config)
        return done

    def _add(self, write: _Write, append: Append, leader_epoch: int | None, config: LogConfig) -> AppendOutcome | None:
        """Have this write append one batch more, if it is to be appended. None: not in this write."""
        if not isinstance(append, Prepared):
            return self._add_marker(write, append, leader_epoch, config) if isinstance(append, Marker) else append
        data, headers = append
        if len(headers) != 1:
            return None
        batch = headers[0]
        if batch.producer_id >= 0 and leader_epoch is not None:
            if batch.producer_id in write.producers:
                return None
            known, write.is_asked = self._known(headers, config), True
            if known.duplicates:
                return AppendInfo(known.first_offset, known.next_offset, -1, 0, is_duplicate=True)
        if leader_epoch is None:
            self._check_order(headers, write.offset)
        if not self._place(write, data, 0, batch, leader_epoch, config):
            return None
        write.data.append(data)
        following = write.offset
        return _new(AppendInfo, (following - batch.last_offset_delta - 1, following, write.append_ms, len(data), False))

    def _add_marker(
        self, write: _Write, marker: Marker, leader_epoch: int | None, config: LogConfig
    ) -> AppendInfo | None:
        """Add a marker, as `_add` does. A marker that ends no transaction is a duplicate, and is not written."""
        producer_id, epoch, commits, coordinator_epoch, is_above = marker
        if producer_id in write.producers:  # whether it ends something is known once that is written
            return None
        view = self._files.view
        ends = bool(view.snapshots) and self._producers.ask(
            view, lambda known: known.may_end(producer_id, epoch, coordinator_epoch, is_above=is_above)
        )
        if not ends:
            return AppendInfo(write.offset, write.offset, -1, 0, is_duplicate=True)
        data = end_marker(
            (producer_id, epoch), commit=commits, coordinator_epoch=coordinator_epoch, now_ms=self._env.clock.now_ms()
        )
        if not self._place(write, data, 0, header_at(data), leader_epoch, config):
            return None
        write.data.append(data)
        return AppendInfo(write.offset - 1, write.offset, -1, 0)

    def _append_all(self, append: Prepared, leader_epoch: int | None, config: LogConfig) -> AppendOutcome:
        """Append any number of batches, with one write per segment."""
        data, headers, known = memoryview(append.data), append.headers, NOTHING_KNOWN
        write = self._new_write(leader_epoch, config, INT64_MAX)  # nothing is joined
        try:
            if leader_epoch is None:
                self._check_order(headers, write.offset)
            elif any(batch.producer_id >= 0 for batch in headers):
                known = self._known(headers, config)
        except PylogError as error:
            return error
        first = write.offset
        at = start = position = sum(batch.size_bytes for batch in headers[: known.duplicates])
        for batch in headers[known.duplicates :]:
            while not self._place(write, data, position, batch, leader_epoch, config):
                write.data.append(data[start:position])
                self._write(write, config)
                write, start = self._new_write(leader_epoch, config, INT64_MAX), position
            position += batch.size_bytes
        if write.steps:
            write.data.append(data[start:position])
            self._write(write, config)
        if known.duplicates == len(headers) > 0:
            return AppendInfo(known.first_offset, known.next_offset, -1, 0, is_duplicate=True)
        if known.duplicates:
            first = known.first_offset
        elif leader_epoch is None and headers:
            first = headers[0].base_offset
        return AppendInfo(first, write.offset, write.append_ms, position - at)

    def _check_order(self, headers: Sequence[BatchHeader], end: int) -> None:
        """Raise unless the offsets of a leader's batches go up from the end of the log."""
        for batch in headers:
            if batch.base_offset < end:
                raise InvalidRecordError(f"{self._files.path}: offset {batch.base_offset} after {end - 1}")
            end = batch.next_offset

    def _known(self, headers: Sequence[BatchHeader], config: LogConfig) -> Admission:
        """Return which of the batches are there already, as their producers numbered them."""
        expired_ms = self._env.clock.now_ms() - config.producer_id_expiration_ms
        return self._producers.check(self._files.view, headers, expired_ms=expired_ms)

    def _new_write(self, leader_epoch: int | None, config: LogConfig, left_bytes: int = JOINED_BYTES_MAX) -> _Write:
        view = self._files.view
        is_stamped = leader_epoch is not None and config.message_timestamp_type == "LogAppendTime"
        append_ms = self._env.clock.now_ms() if is_stamped else -1
        return _Write(
            view, self._room(view, config) if view.bases else NO_ROOM, self._epochs.latest, append_ms, left_bytes
        )

    def _place(
        self,
        write: _Write,
        data: Buffer,
        at: int,
        batch: BatchHeader,
        leader_epoch: int | None,
        config: LogConfig,
    ) -> bool:
        """Add the batch that is in `data` `at` there to the write, stamped. False: it needs a write of its own.

        A write whose first batch needs a new segment has that made.
        """
        # Local names: this is most of what a small batch costs among many.
        offset, length, epoch, magic, crc, attributes, delta, base_ms, max_ms, producer_id, _, _, _ = batch
        if leader_epoch is not None:
            offset, epoch = write.offset, leader_epoch
            STAMP.pack_into(data, at, offset, length, epoch)
            if write.append_ms >= 0:
                max_ms = write.append_ms
                stamp_append_time(data, at, max_ms)  # type: ignore[arg-type]
        position, size_bytes, last_offset = write.position, length + LENGTH_END, offset + delta
        rolls = must_roll(write.room, position, size_bytes, last_offset, max_ms, attributes)
        if rolls or size_bytes > write.left_bytes or (producer_id >= 0 and not write.has_producers):
            if write.steps:
                return False
            if rolls:
                position = self._make_room(write, offset, last_offset, config)
            write.has_producers |= producer_id >= 0
        if write.has_producers:
            write.note(BatchHeader(offset, length, epoch, magic, crc, attributes, delta, base_ms, max_ms, *batch[9:]))
        if epoch > write.epoch:
            write.epoch = epoch
            write.epochs.append((epoch, offset))
        write.steps.append((position, position + size_bytes, last_offset, max_ms))
        if not position:
            write.room = self._room_behind(max_ms, config)
        write.position, write.offset = position + size_bytes, last_offset + 1
        write.left_bytes -= size_bytes
        return True

    def _make_room(self, write: _Write, offset: int, last_offset: int, config: LogConfig) -> int:
        """Begin a new segment for a batch of these offsets, if the active one does not take it; return its position."""
        files = self._files
        if files.view.bases:
            self.roll(config)  # named after the end of the log: segments follow each other without a gap
        else:
            self._add_segment(offset)
        base = files.view.bases[-1]
        if last_offset - base > INT32_MAX:
            files.segment(base).remove()
            self._add_segment(offset, instead=True)
        write.room, write.has_producers = self._room(files.view, config), bool(files.view.snapshots)
        return files.view.tail.position

    def _room_behind(self, timestamp_ms: int, config: LogConfig) -> SegmentRoom:
        """Return the room of the active segment behind its first batch, which has this time."""
        view = self._files.view
        first = view.tail._replace(first_timestamp_ms=timestamp_ms)
        return segment_room(config, view.bases[-1], self._files.name, first)

    def _write(self, write: _Write, config: LogConfig) -> None:
        files, producers = self._files, self._producers
        view = files.view
        segment = files.segment(view.bases[-1])
        data = write.data[0] if len(write.data) == 1 else b"".join(write.data)
        for epoch, offset in write.epochs:  # first: a crash may leave it too early, never too late
            self._note_epoch(epoch, offset)
        if write.headers and (write.has_transactions or not write.is_asked or not view.snapshots):
            producers.before_append(segment, write.headers, memoryview(data))
        steps, interval_bytes = write.steps, config.index_interval_bytes
        end, entries, times = view.tail.behind_all(steps, segment.base_offset, interval_bytes)
        files.env.files.write(segment.path, steps[0][0], data)
        if entries:
            end = segment.append_entries(end, entries, times)
        files.publish(view.bases, end)
        if write.headers:
            producers.after_append(write.headers, memoryview(data))

    def _room(self, view: DirectoryView, config: LogConfig) -> SegmentRoom:
        """The room in the active segment; the room in its index may be larger."""
        tail = view.tail
        of = view.bases, config, tail.indexed_entries, tail.first_timestamp_ms
        if of != self._room_of or tail.position >= self._known_room.begin_end:
            self._known_room = segment_room(config, view.bases[-1], self._files.name, tail)
            self._room_of = of
        return self._known_room

    def _undo(self, before: DirectoryView) -> None:
        """Take a failed append back; of what cannot be taken back the next holder of the lock keeps whole batches.

        Until then the log ends where it did: nobody goes on behind batches that may be gone.
        """
        self.may_remain = True
        try:
            self._producers.cut(before.end)
            for base in reversed(self._files.view.bases[len(before.bases) :]):
                self._files.segment(base).remove()
            if before.bases:
                self._files.segment(before.bases[-1]).truncate(before.tail.position, before.tail.next_offset)
            self._files.publish(before.bases, before.tail)
            self.may_remain = False
        except StorageError:
            logger.warning("dir=%s could not undo a failed append", self._files.path, exc_info=True)
            self._files.put_back(before)
        finally:
            self._point.forget_names()  # of what was removed, wherever it ended
            self._producers.forget()

    def _note_epoch(self, epoch: int, offset: int) -> None:
        """Note that a leader epoch begins here."""
        epochs, view = self._epochs, self._files.view
        epochs.load()  # another process may have added it
        if not epochs.starts and view.end > view.local_start:
            epochs.replace(epoch_starts(self._files, view.bases))  # lost or damaged
        epochs.assign(epoch, offset)

    def roll(self, config: LogConfig) -> None:
        view = self._files.view
        if view.bases and view.tail.position:
            self._files.segment(view.bases[-1]).seal(view.tail)
            if view.snapshots:
                expired_ms = self._env.clock.now_ms() - config.producer_id_expiration_ms
                self._producers.write_snapshot(view, expired_ms=expired_ms)
            self._add_segment(view.end)

    def _add_segment(self, base_offset: int, *, instead: bool = False) -> None:
        """Make an empty active segment (`instead` of the empty one that is there)."""
        bases = self._files.view.bases[:-1] if instead else self._files.view.bases
        self._files.segment(base_offset).create()
        self._files.publish(bases + array("q", [base_offset]), SegmentEnd(0, base_offset, timed_entries=0))

    def cut(self, offset: int, place: Spot | None) -> None:
        """Remove everything from `place` on; None: everything, and the log begins at `offset`."""
        files, root = self._files, self._files.path.rpartition("/")[0]
        view = files.view
        end = min(offset, place.offset) if place else offset
        offset_checkpoints.lower(self._env, files.path, end)
        self._point.begin_cut(end)  # first: who looks meanwhile sees no damage
        bases = view.bases[: place.number + 1 if place else 0]
        self._producers.cut(place.offset if place else -1)
        for base in reversed(view.bases[len(bases) :]):
            files.segment(base).remove()
        if place is None:
            self._env.files.unlink(f"{files.path}/{offset_checkpoints.LOG_START}")
            files.reread()
            files.publish(bases, SegmentEnd(0, offset))
            self._add_segment(offset)
        else:
            segment = files.segment(bases[-1])
            segment.truncate(place.position, place.offset)
            files.publish(bases, segment.tail(place.position))
        # Truncated batches must not come back: other records will be at their offsets, of other epochs.
        fsync_or_mark(self._env, files.segment(files.view.bases[-1]).path, root)
        fsync_or_mark(self._env, files.path, root)
        self._producers.forget()
        self._point.end_cut(files.view.end)
        self._epochs.load()
        self._epochs.trim(files.view.end)
