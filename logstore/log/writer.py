"""LogWriter: puts batches behind the end of a log, begins new segments there, and cuts.

The caller holds the lock of the log and has checked the batches. A write that fails is undone.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from logstore.checkpoint import fsync_or_mark
from logstore.config import INT32_MAX, LogConfig
from logstore.errors import InvalidRequestError, StorageError
from logstore.log.leader_epochs import LeaderEpochs, epoch_starts
from logstore.log.producers.tracker import ProducerTracker
from logstore.log.recovery_point import RecoveryPoint
from logstore.log.segments import offset_checkpoints
from logstore.log.segments.directory import DirectoryView, PartitionDirectory
from logstore.log.segments.end import SegmentEnd, Step, step
from logstore.log.segments.lookup import Spot
from logstore.log.segments.segment import NOTHING, Segment
from logstore.log.validation import AppendInfo, SegmentRoom, must_roll, segment_room
from logstore.records.batch import LENGTH_END, BatchHeader, header_at, stamp, stamp_append_time
from logstore.records.marker import Marker, end_marker
from logstore.records.plain import PlainHeader, placed, stamp_plain

logger = logging.getLogger(__name__)

Placed = tuple[int, BatchHeader]  # a batch, and where it is in the data
Plain = tuple[bytearray | memoryview, PlainHeader]  # a whole batch, and what `plain_header` says of it


class Stamped(NamedTuple):
    """Batches with their offsets, to append; and what is to be known of that append."""

    info: AppendInfo
    data: memoryview
    batches: list[BatchHeader]


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
        self.may_remain = False  # batches of an append that failed
        self._room_of: tuple[Sequence[int], LogConfig, int, int] | None = None
        self._known_room = SegmentRoom(0, 0, 0, 0)

    def admit(
        self, records: bytearray | memoryview, batches: Sequence[Placed], leader_epoch: int, config: LogConfig
    ) -> Stamped:
        """Stamp the batches that are not there already, as their producers numbered them."""
        if all(batch.producer_id < 0 for _, batch in batches):
            return self.stamp(records, batches, leader_epoch, config)
        expired_ms = self._env.clock.now_ms() - config.producer_id_expiration_ms
        headers = [batch for _, batch in batches]
        known = self._producers.check(self._files.view, headers, expired_ms=expired_ms)
        if not (rest := batches[known.duplicates :]):
            return Stamped(AppendInfo(known.first_offset, known.next_offset, -1, 0, is_duplicate=True), NOTHING, [])
        at = rest[0][0]
        rest = [(place - at, batch) for place, batch in rest]
        new = self.stamp(memoryview(records)[at:], rest, leader_epoch, config)
        first = known.first_offset if known.duplicates else new.info.first_offset
        return new._replace(info=new.info._replace(first_offset=first))

    def stamp(
        self, records: bytearray | memoryview, batches: Sequence[Placed], leader_epoch: int, config: LogConfig
    ) -> Stamped:
        """Stamp the batches, in place, with the next offsets and this epoch."""
        log_append_time = config.message_timestamp_type == "LogAppendTime"
        now_ms = self._env.clock.now_ms() if log_append_time else -1
        first = offset = self._files.view.end
        stamped = []
        for position, batch in batches:
            stamp(records, position, offset, leader_epoch)
            behind = batch._replace(base_offset=offset, leader_epoch=leader_epoch)
            if log_append_time:
                stamp_append_time(records, position, now_ms)
                behind = behind._replace(max_timestamp=now_ms)
            stamped.append(behind)
            offset = behind.next_offset
        return Stamped(AppendInfo(first, offset, now_ms, len(records)), memoryview(records), stamped)

    def append_plain(self, batches: Sequence[Plain], leader_epoch: int, config: LogConfig) -> list[AppendInfo]:
        """Stamp the first of these batches, as many as the active segment takes, and append them in one write.

        The short way of most appends to a broker: the leader epoch is known, and the batches are checked. Empty, and
        nothing is done, where the first one needs more: it gets the time of the append, begins a segment, is the log's
        first of a producer or one of a transaction, or is there already.

        Raises: as `admit`.
        """
        view, self.may_remain = self._files.view, False
        if not view.bases or config.message_timestamp_type != "CreateTime":
            return []
        steps, headers = self._place(view, batches, leader_epoch, config)
        if not steps:
            return []
        data = batches[0][0] if len(steps) == 1 else b"".join([data for data, _ in batches[: len(steps)]])
        self._write(view, steps, headers, data, config.index_interval_bytes)
        infos, offset = list[AppendInfo](), view.tail.next_offset
        for position, end, last_offset, _ in steps:
            infos.append(AppendInfo(offset, last_offset + 1, -1, end - position))
            offset = last_offset + 1
        return infos

    def append_followed(
        self, data: bytes | bytearray | memoryview, batches: Sequence[Placed], config: LogConfig
    ) -> bool:
        """Append the plain batches that `data` is, at the log's end, in one write; False: they need more than that."""
        view = self._files.view
        if not view.bases or not view.tail.position:
            return False
        room, begin, steps = self._room(view, config), view.tail.position, list[Step]()
        for at, batch in batches:
            if must_roll(room, begin + at, batch) or (batch[9] >= 0 and not view.snapshots):
                return False
            steps.append(step(batch, begin + at))
        headers = [batch for _, batch in batches] if view.snapshots else []
        self._write(view, steps, headers, data, config.index_interval_bytes)
        return True

    def _write(
        self,
        view: DirectoryView,
        steps: Sequence[Step],
        headers: Sequence[BatchHeader],
        data: bytes | bytearray | memoryview,
        interval_bytes: int,
    ) -> None:
        """Write these batches behind the end of the active segment, which has room for them.

        `headers` are for the states of producers, if the log has any.
        """
        files = self._files
        segment = files.segment(view.bases[-1])
        end, entries, times = view.tail.behind_all(steps, segment.base_offset, interval_bytes)
        try:
            files.env.files.write(segment.path, steps[0][0], data)
            if entries:
                end = segment.append_entries(end, entries, times)
            files.publish(view.bases, end)
            if view.snapshots:
                self._producers.after_append(headers, memoryview(data))
        except StorageError:
            self._undo(view)
            raise

    def _place(
        self, view: DirectoryView, batches: Sequence[Plain], leader_epoch: int, config: LogConfig
    ) -> tuple[list[Step], list[BatchHeader]]:
        """Stamp the batches that `append_plain` may append; their headers are made only for the states of producers."""
        begin_end, offset_max, position_max, timestamp_max_ms = self._room(view, config)
        position, offset = view.tail.position, view.tail.next_offset
        steps, headers, producers = list[Step](), list[BatchHeader](), set[int]()
        for data, plain in batches:
            length, timestamp_ms = plain[1], plain[8]
            last_offset, end = offset + plain[6], position + length + LENGTH_END
            # As `must_roll`; and what room the first batch of a segment leaves is known behind it.
            if position >= begin_end or last_offset > offset_max or (steps and not steps[0][0]):
                break
            if position and (end > position_max or timestamp_ms > timestamp_max_ms):
                break
            if view.snapshots or plain[9] >= 0:
                batch = placed(plain, offset, leader_epoch)
                if batch[9] >= 0:
                    if batch[9] in producers or not self._may_follow(view, batch, config, headers):
                        break
                    producers.add(batch[9])
                headers.append(batch)
            stamp_plain(data, offset, length, leader_epoch)
            steps.append((position, end, last_offset, timestamp_ms))
            position, offset = end, last_offset + 1
        return steps, headers

    def _may_follow(
        self, view: DirectoryView, batch: BatchHeader, config: LogConfig, before: Sequence[BatchHeader]
    ) -> bool:
        """Is it the next batch of its producer, and of no transaction? One that is refused waits for those `before`."""
        if batch.is_transactional or not view.snapshots:
            return False
        expired_ms = self._env.clock.now_ms() - config.producer_id_expiration_ms
        try:
            return self._producers.ask(view, lambda known: known.may_follow(batch, expired_ms=expired_ms))
        except InvalidRequestError:
            if before:
                return False
            raise

    def append_markers(
        self, markers: Sequence[Marker], leader_epoch: int, config: LogConfig
    ) -> list[AppendInfo | InvalidRequestError]:
        """End these transactions, see `Log.append_markers`."""
        done = list[AppendInfo | InvalidRequestError]()
        while len(done) < len(markers):
            data, placed = bytearray(), dict[int, Placed]()  # by producer
            for marker in markers[len(done) :]:
                if marker.producer_id in placed:  # whether it ends something is known once that is written
                    break
                offset = self._files.view.end + len(placed)
                try:
                    ends = self._ends(marker)
                except InvalidRequestError as error:
                    done.append(error)
                    continue
                if ends:
                    id, epoch, commits, coordinator_epoch, _ = marker
                    now_ms = self._env.clock.now_ms()
                    written = end_marker(
                        (id, epoch), commit=commits, coordinator_epoch=coordinator_epoch, now_ms=now_ms
                    )
                    placed[marker.producer_id] = len(data), header_at(written)
                    data += written
                done.append(AppendInfo(offset, offset + ends, -1, 0, is_duplicate=not ends))
            if placed:
                new = self.stamp(data, list(placed.values()), leader_epoch, config)
                self.append(new.data, new.batches, config)
        return done

    def _ends(self, marker: Marker) -> bool:
        view, (producer_id, epoch, _, coordinator_epoch, is_above) = self._files.view, marker
        if not view.snapshots:
            return False
        return self._producers.ask(
            view, lambda known: known.may_end(producer_id, epoch, coordinator_epoch, is_above=is_above)
        )

    def append(self, data: bytes | bytearray | memoryview, batches: Sequence[BatchHeader], config: LogConfig) -> None:
        """Append the batches as they are, with one write per segment: all of them or none."""
        before, rest = self._files.view, memoryview(data)
        has_producers = bool(before.snapshots) or any(batch.producer_id >= 0 for batch in batches)
        try:
            while batches:
                active, count = self._active_for(batches, config)
                size_bytes = sum(batch.size_bytes for batch in batches[:count])
                self._note_epochs(batches[:count])  # first: a crash may leave it too early, never too late
                if has_producers:
                    self._producers.before_append(active, batches[:count], rest[:size_bytes])
                tail = active.append(
                    rest[:size_bytes], batches[:count], self._files.view.tail, config.index_interval_bytes
                )
                self._files.publish(self._files.view.bases, tail)
                if has_producers:
                    self._producers.after_append(batches[:count], rest[:size_bytes])
                rest, batches = rest[size_bytes:], batches[count:]
        except StorageError:
            self._undo(before)
            raise

    def _active_for(self, batches: Sequence[BatchHeader], config: LogConfig) -> tuple[Segment, int]:
        """The segment for the next batches, new if need be, and how many of them it takes in one write."""
        first, view = batches[0], self._files.view
        if not view.bases:
            self._add_segment(first.base_offset)
        elif must_roll(self._room(view, config), view.tail.position, first):
            self.roll(config)  # named after the end of the log: segments follow each other without a gap
        base, tail = self._files.view.bases[-1], self._files.view.tail
        if first.last_offset - base > INT32_MAX:
            self._files.segment(base).remove()
            self._add_segment(first.base_offset, instead=True)
            base, tail = first.base_offset, self._files.view.tail
        position, count = tail.position, 0
        room = segment_room(config, base, self._files.name, tail)
        for batch in batches:
            if count and must_roll(room, position, batch):
                break
            if position == 0:
                first_ms = batch.max_timestamp
                room = segment_room(config, base, self._files.name, tail._replace(first_timestamp_ms=first_ms))
            position += batch.size_bytes
            count += 1
        return self._files.segment(base), count

    def _room(self, view: DirectoryView, config: LogConfig) -> SegmentRoom:
        """What the active segment takes. Most appends leave it as it is; then the index has room for more, at least."""
        tail = view.tail
        of = view.bases, config, tail.indexed_entries, tail.first_timestamp_ms
        if of != self._room_of or tail.position >= self._known_room.begin_end:
            self._known_room = segment_room(config, view.bases[-1], self._files.name, tail)
            self._room_of = of
        return self._known_room

    def _undo(self, before: DirectoryView) -> None:
        """Take a failed append back; of what cannot be taken back the next holder of the lock keeps whole batches."""
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
        finally:
            self._producers.forget()

    def _note_epochs(self, batches: Sequence[BatchHeader]) -> None:
        """Note a leader epoch that begins here; rare, so this is one comparison."""
        epochs = self._epochs
        for batch in batches:
            if batch.leader_epoch > epochs.latest:
                epochs.load()  # another process may have noted it
                if not epochs.starts and self._files.view.end > self._files.view.start:
                    epochs.replace(epoch_starts(self._files, self._files.view.bases))  # lost or damaged
                epochs.assign(batch.leader_epoch, batch.base_offset)

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
        # What was cut must not come back: other records will be at its offsets, of other epochs.
        fsync_or_mark(self._env, files.segment(files.view.bases[-1]).path, root)
        fsync_or_mark(self._env, files.path, root)
        self._producers.forget()
        self._point.end_cut(files.view.end)
        self._epochs.load()
        self._epochs.trim(files.view.end)
