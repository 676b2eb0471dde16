"""Log: one partition, a row of segments in one directory.

::

    <topic>-<partition>/
        00000000000000000000.log .index .timeindex     records 0 …; the file is named after its first offset
        00000000000000368769.log .index .timeindex     …; the last segment is the active one, which grows
        leader-epoch-checkpoint                        which leader epoch began where
        partition.metadata                             the id of the topic
        .lock                                          held by the process that appends

Invariant: offsets are given once, in order; below `recovery_point` everything is on disk.

Several processes may have one partition open. Changes need `lock()`: a thread lock and a file lock. On entry the holder
reads what other processes did, and cuts what a killed one left half written. Readers (`LogReader`) take no lock; they
may see records of an append that fails later, for want of space.

The append path: `append_as_leader` (check) → `LogWriter.append` → `Segment.append` → one write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from logstore.checkpoint import check_mark, marking_failure
from logstore.config import INT64_MAX, LogConfig
from logstore.env import Env
from logstore.errors import CorruptLogError, InvalidRecordError, InvalidRequestError, PylogError
from logstore.log.leader_epochs import LeaderEpochs
from logstore.log.producers.tracker import ProducerTracker
from logstore.log.reader import LogProducers, LogReader, ReadResult
from logstore.log.recovery import Damage, OnDamage, Recovery, RecoveryReport, verify
from logstore.log.recovery_point import RecoveryPoint
from logstore.log.segments import lookup, offset_checkpoints
from logstore.log.segments.directory import PartitionDirectory
from logstore.log.segments.formats import named
from logstore.log.segments.lookup import SegmentInfo
from logstore.log.segments.replacement import delete_later
from logstore.log.segments.replacement import finish as finish_swaps
from logstore.log.segments.segment import NO_SPACE, Space
from logstore.log.validation import AppendInfo, count_taken, plain_batch, valid_batches
from logstore.log.writer import LogWriter, Placed, Plain
from logstore.records.batch import BatchHeader
from logstore.records.marker import Marker
from logstore.records.plain import following, placed

logger = logging.getLogger(__name__)


class Log:
    """One partition; see the module. Safe for threads, and for processes of one host.

    `reader` looks things up, `producers` knows producers and transactions, `epochs` the leader epochs, `point` what is
    on disk; `files` is the directory, for maintenance, which changes it under `lock()`.
    """

    def __init__(self, directory: Path, *, topic_id: str, config: LogConfig, env: Env, read_only: bool = False) -> None:
        self.topic_id = topic_id
        self.read_only = read_only
        self.env = env
        self.files = PartitionDirectory(directory, topic_id=topic_id, env=env, read_only=read_only)
        self.reconfigure(config)
        self.epochs = LeaderEpochs(env, self.files.path)
        tracker = ProducerTracker(self.files)
        self.point = RecoveryPoint(self.files, tracker)
        self.reader = LogReader(self.files, self.point)
        self.producers = LogProducers(self.point, tracker)
        self._tracker = tracker
        self._writer = LogWriter(self.files, tracker, self.epochs, self.point)
        self._is_caught_up = False  # nothing failed since the last `lock`

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        topic_id: str,
        config: LogConfig,
        env: Env,
        recovery_point: int = 0,
        read_only: bool = False,
    ) -> Log:
        """Return the log in `directory`. Costs one listing: files are read when they are needed.

        Raises: StaleLogError: the directory holds no partition of this topic.
        """
        log = cls(directory, topic_id=topic_id, config=config, env=env, read_only=read_only)
        log.point.offset = recovery_point
        log.files.read_names()
        return log

    @property
    def directory(self) -> Path:
        return Path(self.files.path)

    def reconfigure(self, config: LogConfig) -> None:
        self.config = config
        self.files.is_compacted = config.is_compacted

    def close(self) -> None:
        """Close the files. Nothing is flushed; a later call opens them again."""
        self.files.close()

    # ----------------------------------------------------------------- offsets

    @property
    def log_start_offset(self) -> int:
        return self.point.view().start

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record, appends of other processes included."""
        return self.point.view().end

    @property
    def recovery_point(self) -> int:
        return self.point.offset

    @recovery_point.setter
    def recovery_point(self, offset: int) -> None:
        self.point.offset = offset

    # -------------------------------------------------------------------- lock

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the partition against other threads and processes; may be nested in one thread.

        On entry the view catches up with other processes, and what a killed one left half written is cut.

        Raises: StaleLogError; FailedStoreError: an fsync failed here; CorruptLogError: the end is damaged.
        """
        with self.files.hold() as is_outermost:
            self._is_caught_up = False
            if is_outermost:
                check_mark(self.env, self.files.root)
                self._catch_up()
            try:
                yield
            except FileNotFoundError:
                self.files.check_topic()
                raise
            except CorruptLogError as error:
                raise named(self.env, error) from None
            self._is_caught_up = is_outermost

    def _catch_up(self) -> None:
        """Read what other processes did, and make the active segment end with a whole batch."""
        view = self.point.view()
        if view.is_swapping:
            self.finish_swaps()
            view = self.point.view()
        if view.active is not None and view.tail.position < view.active.size:
            # Two changes within one time stamp look alike: read the file itself before anything is cut.
            view = self.point.view(reread=True)
        if view.active is None:
            return
        tail, active = view.tail, self.files.segment(view.bases[-1])
        is_torn = tail.position < view.active.size
        if tail.damage:  # no killed writer leaves this: cutting it might drop what was flushed
            raise CorruptLogError(active.path, tail.position, tail.damage, "run `pylog recover`")
        if is_torn:
            torn_bytes = view.active.size - tail.position
            logger.warning("path=%s offset=%d cut torn_bytes=%d", active.path, tail.next_offset, torn_bytes)
            active.truncate(tail.position, tail.next_offset)
        if not tail.index_ok:
            logger.warning("path=%s does not fit its log: rebuilt", active.index.path)
            tail = active.rebuild_indexes(tail.position, self.config.index_interval_bytes)
        if is_torn or tail is not view.tail:
            self.files.publish(view.bases, tail)
        if view.transactional:
            self._tracker.mend(view)

    # ------------------------------------------------------------------ append

    def append_as_leader(
        self, records: bytearray | memoryview, *, leader_epoch: int = 0, guard: Callable[[], None] | None = None
    ) -> AppendInfo:
        """Give the batches in `records` the next offsets, in place, and append them: all of them or none.

        Batches are checked (header, CRC-32C, size) and not decoded. With LogAppendTime they get the time of the append.
        Flushes only if flush.messages or flush.ms say so. After DiskFullError the log is as before. `guard` is called
        under the lock before anything is written, and raises to refuse. Batches of producers follow the rules of
        `logstore.log.producers.state`: what is there already is not written again.

        Raises: InvalidRecordError, RecordTooLargeError, DiskFullError; OutOfOrderSequenceError, ProducerFencedError,
        TransactionStateError; as `lock`.
        """
        checked = valid_batches(records, self.config, dense=True, now_ms=self.env.clock.now_ms())
        with self.lock():
            if guard is not None:
                guard()
            new = self._writer.admit(records, checked, leader_epoch, self.config)
            self._writer.append(new.data, new.batches, self.config)
        if not new.info.is_duplicate:
            self.point.flush_if_due(new.info.next_offset, self.config)
        return new.info

    def try_append_as_leader(self, records: bytearray | memoryview, *, leader_epoch: int) -> AppendInfo | None:
        """As `append_as_leader`, if one write is all there is to wait for; None: it is not, and nothing was done.

        For the owner of the directory: does not look for what other processes did. Waits for no fsync: neither one that
        is due, nor that of a new leader epoch.
        """
        if not self.files.try_hold():
            return None
        try:
            if not self._may_append_at_once(leader_epoch):
                return None
            now_ms = self.env.clock.now_ms()
            plain = plain_batch(records, self.config, now_ms)
            if plain is not None:
                return self._append_at_once([(records, plain)], leader_epoch)[0]
            checked = valid_batches(records, self.config, dense=True, now_ms=now_ms)
            return self._append_checked(records, checked, leader_epoch)
        finally:
            self.files.release()

    def try_append_each(self, batches: Sequence[Plain], *, leader_epoch: int) -> Sequence[AppendInfo | Exception]:
        """Append batches one after the other, as `try_append_as_leader` does; return what became of the first ones.

        `plain_header` has taken them: neighbours are one write. What has no result is not in the log, and is to be
        appended alone: that can wait for a lock or the disk, and say what is wrong.
        """
        done = list[AppendInfo | Exception]()
        if not self.files.try_hold():
            return done
        try:
            count = count_taken([plain for _, plain in batches], self.config, self.env.clock.now_ms())
            while len(done) < count and self._may_append_at_once(leader_epoch):
                rest = batches if count == len(batches) and not done else batches[len(done) : count]
                try:
                    done += self._append_at_once(rest, leader_epoch)
                except OSError as error:
                    return [*done, *[error] * len(rest)] if self._writer.may_remain else done
                except PylogError as error:
                    done.append(error)
            return done
        finally:
            self.files.release()

    def _may_append_at_once(self, leader_epoch: int) -> bool:
        config = self.config
        return (
            self._is_caught_up
            and self.epochs.latest == leader_epoch
            and config.flush_messages >= INT64_MAX
            and not (config.flush_ms < INT64_MAX and self.point.is_time_to_flush(config))
        )

    def _append_at_once(self, batches: Sequence[Plain], leader_epoch: int) -> Sequence[AppendInfo]:
        """Append the first one, and those behind it that go with it."""
        self._is_caught_up = False  # if anything fails
        infos = self._writer.append_plain(batches, leader_epoch, self.config)
        self._is_caught_up = True
        if not infos:
            records, plain = batches[0]
            infos = [self._append_checked(records, [(0, placed(plain, plain[0], plain[2]))], leader_epoch)]
        return infos

    def _append_checked(
        self, records: bytearray | memoryview, checked: Sequence[Placed], leader_epoch: int
    ) -> AppendInfo:
        self._is_caught_up = False
        new = self._writer.admit(records, checked, leader_epoch, self.config)
        self._writer.append(new.data, new.batches, self.config)
        self._is_caught_up = True
        return new.info

    def append_marker(self, producer_id: int, producer_epoch: int, *, commit: bool) -> int | None:
        """As `append_markers`, of one: return the offset of the marker; None, and nothing is written: it ends nothing.

        Raises: ProducerFencedError: a newer epoch is known; as `lock`.
        """
        (found,) = self.append_markers([Marker(producer_id, producer_epoch, commit, 0, is_above=False)])
        if isinstance(found, InvalidRequestError):
            raise found
        return None if found.is_duplicate else found.first_offset

    def append_markers(
        self, markers: Sequence[Marker], *, leader_epoch: int = 0, is_owner: bool = False
    ) -> list[AppendInfo | InvalidRequestError]:
        """End the open transactions of these producers, in one write; return what became of each marker.

        A duplicate ends nothing, and is not written. From then on appends and markers of an older epoch are refused:
        ProducerFencedError, or CoordinatorFencedError. `is_owner`: of the directory, as for `try_append_as_leader`.

        Raises: as `lock`.
        """
        with self._owners_lock(leader_epoch) if is_owner else self.lock():
            done = self._writer.append_markers(markers, leader_epoch, self.config)
        self.point.flush_if_due(self.files.view.end, self.config)
        return done

    @contextmanager
    def _owners_lock(self, leader_epoch: int) -> Iterator[None]:
        """As `lock`, but what other processes did is looked for only where `try_append_as_leader` gives up."""
        if self.files.try_hold():
            try:
                if self._may_append_at_once(leader_epoch):
                    self._is_caught_up = False  # if anything fails
                    yield
                    self._is_caught_up = True
                    return
            finally:
                self.files.release()
        with self.lock():
            yield

    def append_as_follower(self, records: bytes | bytearray | memoryview) -> AppendInfo:
        """Append batches of a leader with the offsets and epochs they have: all of them or none.

        Offsets must go up from the log's end; gaps are the leader's business (compaction).

        Raises: as `append_as_leader`; InvalidRecordError: offsets that go back.
        """
        checked = [batch for _, batch in valid_batches(records, self.config, dense=False)]
        with self.lock():
            info = self._follow(records, checked)
        self.point.flush_if_due(info.next_offset, self.config)
        return info

    def try_append_as_follower(self, records: bytes | bytearray | memoryview) -> AppendInfo | None:
        """As `append_as_follower`, if one write is all there is to wait for; None: as of `try_append_as_leader`."""
        if not self.files.try_hold():
            return None
        try:
            latest = self.epochs.latest
            if not self._may_append_at_once(latest):
                return None
            first = self.files.view.end
            plain = following(records, first, latest)
            checked = valid_batches(records, self.config, dense=False) if plain is None else plain
            if any(batch.leader_epoch != latest for _, batch in checked):
                return None
            self._is_caught_up = False
            if plain and self._writer.append_followed(records, plain, self.config):
                info = AppendInfo(first, self.files.view.end, -1, len(records))
            else:
                info = self._follow(records, [batch for _, batch in checked])
            self._is_caught_up = True
            return info
        finally:
            self.files.release()

    def _follow(self, records: bytes | bytearray | memoryview, checked: Sequence[BatchHeader]) -> AppendInfo:
        end = first = self.files.view.end
        for batch in checked:
            if batch.base_offset < end:
                raise InvalidRecordError(f"{self.directory}: offset {batch.base_offset} after {end - 1}")
            end = batch.next_offset
        self._writer.append(records, checked, self.config)
        return AppendInfo(checked[0].base_offset if checked else first, end, -1, len(records))

    def roll(self) -> None:
        """Close the active segment and begin a new one at the log's end; nothing happens if it is empty."""
        with self.lock():
            self._writer.roll(self.config)

    def flush(self) -> int:
        """Fsync the log up to its end of now; return the new recovery point.

        Takes no lock, so that several processes wait for the disk at once, unless files leave the log at two tries.

        Raises: FailedStoreError: nobody knows what is on disk; a mark in the store says so.
        """
        return self.point.flush()

    # -------------------------------------------------------------------- read

    def read(self, offset: int, *, max_bytes: int, upper: int | None = None, space: Space = NO_SPACE) -> ReadResult:
        """Return whole batches from the one that holds `offset`, as stored, with base offsets below `upper`.

        At most `max_bytes` of one segment, but at least one batch, so that a reader always advances; empty only at
        `upper` or the log's end, or where a gap reaches up to there. The first batch may begin before `offset`. `data`
        lies in `space` if it fits there, until the next use of it. Takes no lock, unless it meets something odd at two
        looks.

        Raises: OffsetOutOfRangeError; CorruptLogError: damage, also while nobody changes the log.
        """
        return self.reader.read(offset, max_bytes=max_bytes, upper=upper, space=space)

    def read_cached(self, offset: int, *, max_bytes: int, upper: int) -> ReadResult | None:
        """As `read`, of the active segment, if that waits for no disk, and is little; None: it may, or is more.

        For the owner of the directory: does not look for what other processes did.
        """
        return self.reader.read_cached(offset, max_bytes=max_bytes, upper=upper)

    def segments(self) -> tuple[SegmentInfo, ...]:
        return self.point.look_up(lambda view: tuple(lookup.segment_infos(self.files, view)))

    # ---------------------------------------------------------------- truncate

    def truncate_to(self, offset: int) -> None:
        """Remove every batch that holds `offset` or a later one, and the leader epochs that began there.

        Below the log's start everything goes: the log begins at `offset` then. Lower the checkpoint of the recovery
        point before.
        """
        with self.lock():
            view = self.files.view
            if offset < view.start:
                self._writer.cut(offset, None)
            elif offset < view.end:
                found = lookup.place_of(self.files, view, offset)
                self._writer.cut(offset, found and lookup.Spot(found.number, found.position, found.batch.base_offset))

    def start_anew(self, offset: int) -> None:
        """Remove everything: the log begins and ends at `offset`, wherever it was. Checkpoints as for `truncate_to`."""
        with self.lock():
            self._writer.cut(offset, None)
            self.epochs.replace(())

    def cut_damage(self, offset: int, place: lookup.Spot | None) -> None:
        """Remove everything from `place` on, where `offset` would be, damaged or not; None: everything.

        Checkpoints as for `truncate_to`. Recover what is left.
        """
        with self.files.hold():
            self._is_caught_up = False
            self._writer.cut(offset, place)
            if place is None:
                self.epochs.replace(())

    @contextmanager
    def changing_files(self) -> Iterator[None]:
        """Hold the partition, whatever is damaged, while files give way to others with the same batches."""
        with self.files.hold(), marking_failure(self.env, self.files.root):
            self._is_caught_up = False
            yield
            self.files.reread()
            self._tracker.forget()

    # ----------------------------------------------------- log start, tiered end

    def advance_start(self, offset: int) -> int:
        """Move the log start up to `offset` (at most the log's end), for good; return where it is now.

        The log is flushed up to there first, so that no crash leaves a log that ends below its start. Segments below it
        leave the log: readers may finish what they have open.
        """
        with self.lock():
            offset = min(offset, self.files.view.end)
            if offset > self.files.view.start:
                if offset > self.recovery_point:
                    self.flush()
                with marking_failure(self.env, self.files.root):
                    offset_checkpoints.write(self.env, self.files.path, offset_checkpoints.LOG_START, offset)
                self.files.reread()
            view = self.files.view
            if below := [base for base, end in pairwise(view.bases) if end <= view.start]:
                for base in below:  # the oldest first: whatever is left is a log
                    delete_later(self.env, self.files.segment(base), self.env.clock.now_ms())
                self.files.reread()
            return self.files.view.start

    def finish_swaps(self) -> None:
        """Under the lock: put rewritten segments in the place of those that they replace."""
        with marking_failure(self.env, self.files.root):
            done = finish_swaps(self.env, self.files.path, self.files.reread().aside, self.env.clock.now_ms())
        for path in done:
            logger.info("path=%s rewritten", path)
        self.files.reread()

    @property
    def tiered_offset(self) -> int:
        """Everything below it is in remote storage, too."""
        return offset_checkpoints.read(self.env, self.files.path, offset_checkpoints.TIERED)

    def advance_tiered_offset(self, offset: int) -> None:
        """Note that everything below `offset` is in remote storage; durable on return. It never goes back."""
        with self.lock():
            if offset > (end := self.files.view.end):
                raise InvalidRequestError(f"{self.files.name}: tiered to {offset}, but the log ends at {end}")
            if offset > self.tiered_offset:
                with marking_failure(self.env, self.files.root):
                    offset_checkpoints.write(self.env, self.files.path, offset_checkpoints.TIERED, offset)

    # ---------------------------------------------------------- recover, verify

    def recover(self, on_damage: OnDamage | None = None) -> RecoveryReport:
        """Check everything above the recovery point, and mend it; see `logstore.log.recovery`.

        Raises: CorruptLogError: damage below the recovery point. Nothing is dropped then. `on_damage` gets the error
        instead, where what follows can be mended.
        """
        with self.files.hold(), marking_failure(self.env, self.files.root):
            self._is_caught_up = False
            report = Recovery(self.files, self.epochs, self.config, self.recovery_point, on_damage).run()
        self.recovery_point = min(self.recovery_point, report.log_end_offset)
        return report

    def verify(self) -> Iterator[Damage]:
        """Read everything, and yield what is damaged."""
        return verify(self.files, self.config)
