"""LogWriter: puts batches behind the end of a log, and begins new segments there.

Whoever calls holds the log's lock and has checked and stamped the batches. What cannot be written whole is undone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from logstore.config import INT32_MAX, LogConfig
from logstore.errors import StorageError
from logstore.log.leader_epochs import LeaderEpochs
from logstore.log.producers.tracker import ProducerTracker
from logstore.log.recovery import epoch_starts
from logstore.log.segments.directory import DirectoryView, PartitionDirectory
from logstore.log.segments.segment import Segment, SegmentEnd
from logstore.log.validation import AppendInfo, must_roll
from logstore.records.batch import BatchHeader, stamp

logger = logging.getLogger(__name__)


class LogWriter:
    """Writes to one partition; see the module. `has_rolled`: a segment began since it was last set to false."""

    def __init__(
        self, files: PartitionDirectory, producers: ProducerTracker, epochs: Callable[[], LeaderEpochs]
    ) -> None:
        self._files = files
        self._producers = producers
        self._epochs = epochs
        self.has_rolled = False

    def append_one(
        self,
        data: bytearray | memoryview,
        checked: Sequence[tuple[int, BatchHeader]],
        leader_epoch: int,
        config: LogConfig,
    ) -> AppendInfo | None:
        """Stamp a checked batch, and append it to the segment that is there: the short way of most appends to a broker.

        None, and nothing is done, for what needs more than that: several batches, one of a producer, or one that gets
        the time of the append or begins a leader epoch or a segment, and a log that knows of producers.
        """
        if len(checked) != 1:
            return None
        view, files, batch = self._files.view, self._files, checked[0][1]
        if (
            batch.producer_id >= 0
            or view.snapshots
            or not view.bases
            or leader_epoch != self._epochs().latest
            or config.message_timestamp_type != "CreateTime"
        ):
            return None
        tail, first = view.tail, view.tail.next_offset
        _, size_bytes, _, *rest = batch  # `_replace` costs three times as much
        batch = BatchHeader(first, size_bytes, leader_epoch, *rest)
        if must_roll(config, view.bases[-1], files.name, tail, tail.position, batch):
            return None
        stamp(data, 0, first, leader_epoch)
        segment = files.segment(view.bases[-1])
        end, entries, times = segment.following(tail, ((tail.position, batch),), config.index_interval_bytes)
        try:
            files.env.files.write(segment.path, tail.position, data)
            if entries:
                end = segment.append_entries(end, entries, times)
        except StorageError:
            self._undo(view)
            raise
        files.publish(view.bases, end)
        return AppendInfo(first, end.next_offset, -1, len(data))

    def append(
        self, data: bytes | bytearray | memoryview, batches: Sequence[BatchHeader], config: LogConfig
    ) -> None:
        """Write the batches behind the end, one write per segment; what cannot be written whole is undone."""
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
                    rest[:size_bytes],
                    batches[:count],
                    self._files.view.tail,
                    config.index_interval_bytes,
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
            self.add_segment(first.base_offset)
        elif must_roll(config, view.bases[-1], self._files.name, view.tail, view.tail.position, first):
            self.roll(config)  # named after the end of the log: segments follow each other without a gap
        base, tail = self._files.view.bases[-1], self._files.view.tail
        if first.last_offset - base > INT32_MAX:
            self._files.segment(base).remove()
            self.add_segment(first.base_offset, instead=True)
            base, tail = first.base_offset, self._files.view.tail
        position, count = tail.position, 0
        for batch in batches:
            if count and must_roll(config, base, self._files.name, tail, position, batch):
                break
            if position == 0:
                tail = tail._replace(first_timestamp_ms=batch.max_timestamp)
            position += batch.size_bytes
            count += 1
        return self._files.segment(base), count

    def _undo(self, before: DirectoryView) -> None:
        """Take back what a failed append wrote; what cannot be is torn, and the next holder cuts it."""
        try:
            self._producers.cut(before.end)
            for base in reversed(self._files.view.bases[len(before.bases) :]):
                self._files.segment(base).remove()
            if before.bases:
                self._files.segment(before.bases[-1]).truncate(before.tail.position, before.tail.next_offset)
            self._files.publish(before.bases, before.tail)
        except StorageError:
            logger.warning("dir=%s could not undo a failed append", self._files.path, exc_info=True)
        finally:
            self._producers.forget()

    def _note_epochs(self, batches: Sequence[BatchHeader]) -> None:
        """Keep `leader-epoch-checkpoint` in step; the epoch changes rarely, so this is one comparison."""
        epochs = self._epochs()
        for batch in batches:
            if batch.leader_epoch > epochs.latest:
                epochs.load()  # another process may have noted it
                if not epochs.starts and self._files.view.end > self._files.view.start:
                    epochs.replace(epoch_starts(self._files, self._files.view.bases))  # lost or damaged
                epochs.assign(batch.leader_epoch, batch.base_offset)

    def roll(self, config: LogConfig) -> None:
        """Close the active segment and begin a new one at the log's end; nothing happens if it is empty."""
        view = self._files.view
        if view.bases and view.tail.position:
            self._files.segment(view.bases[-1]).seal(view.tail)
            if view.snapshots:
                expired_ms = self._files.env.clock.now_ms() - config.producer_id_expiration_ms
                self._producers.write_snapshot(view, expired_ms=expired_ms)
            self.add_segment(view.end)
            self.has_rolled = True

    def add_segment(self, base_offset: int, *, instead: bool = False) -> None:
        """Make an empty active segment (`instead` of the empty one that is there)."""
        bases = self._files.view.bases[:-1] if instead else self._files.view.bases
        self._files.segment(base_offset).create()
        self._files.publish((*bases, base_offset), SegmentEnd(0, base_offset, timed_entries=0))
