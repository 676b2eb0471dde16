"""Log: one partition, a row of segments in one directory.

::

    <topic>-<partition>/
        00000000000000000000.log .index .timeindex     records 0 …; the file is named after its first offset
        00000000000000368769.log .index .timeindex     …; the last segment is the active one, which grows
        leader-epoch-checkpoint                        which leader epoch began where
        partition.metadata                             the id of the topic
        .lock                                          held by the process that appends

Invariant: offsets are given once, in order; below `point.offset`, the recovery point, everything is on disk.

Several processes may have one partition open. Changes need `lock()`: a thread lock and a file lock. On entry the holder
reads what other processes did, and cuts what a killed one left half written. Readers (`LogReader`) take no lock; they
may see records of an append that fails later, for want of space.

The append path: `append_as_leader` or `append_as_follower` (check) → `_append` → `LogWriter.append` → one write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from logstore.checkpoint import check_mark, marking_failure
from logstore.config import LogConfig
from logstore.env import Env
from logstore.errors import CorruptLogError, InvalidRecordError
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
from logstore.log.segments.segment_reader import NO_SPACE, Space
from logstore.log.validation import AppendInfo, AppendOutcome, Prepared, limits_of, prepare, result_of, valid_batches
from logstore.log.writer import Append, LogWriter
from logstore.records.compression import Buffer
from logstore.records.marker import Marker

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
        self._limits = None if config.bounds_times else limits_of(config, None)  # they do not change with the time
        self.files.is_compacted = config.is_compacted

    def close(self) -> None:
        """Close the files. Nothing is flushed; a later call opens them again."""
        self.files.close()

    @property
    def log_start_offset(self) -> int:
        return self.point.view().start

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record, appends of other processes included."""
        return self.point.view().end

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
                self._writer.has_failed = False
            try:
                yield
            except FileNotFoundError:
                self.files.check_topic()
                raise
            except CorruptLogError as error:
                raise named(self.env, error) from None
            self._is_caught_up = is_outermost and not self._writer.has_failed

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

    def append_as_leader(
        self,
        appends: Sequence[Buffer | Marker],
        *,
        leader_epoch: int = 0,
        guard: Callable[[], None] | None = None,
        is_owner: bool = False,
        may_wait: bool = True,
    ) -> list[AppendOutcome]:
        """Append these one after the other; return what became of each, an AppendInfo or an error.

        An append is whole batches, which get the next offsets in place, all of them or none. They are checked (header,
        CRC-32C, size) and not decoded; with LogAppendTime they get the time of the append. Those of producers follow
        the rules of `logstore.log.producers.state`: what is there already is not written again. A marker ends the open
        transaction of its producer, or is a duplicate and not written; from then on an older epoch is refused.

        Neighbours are one write. After DiskFullError the log is as before. Flushes only if flush.messages or flush.ms
        say so. `guard` is called under the lock before anything is written, and raises to refuse. `is_owner`: of the
        directory, who need not look for what other processes did. An owner who may not wait (`may_wait`) gets outcomes
        of the first ones only, or none, where one write is not all there is to wait for: the others were not tried.

        Raises: as `lock`. Outcomes: InvalidRecordError, RecordTooLargeError, DiskFullError; OutOfOrderSequenceError,
        UnknownProducerError, ProducerFencedError, CoordinatorFencedError, TransactionStateError.
        """
        limits = self._limits or limits_of(self.config, self.env.clock.now_ms())
        return self._append(prepare(appends, limits), leader_epoch, guard, is_owner=is_owner, may_wait=may_wait)

    def append_as_follower(
        self, records: Buffer, *, end: int | None = None, is_owner: bool = False, may_wait: bool = True
    ) -> AppendInfo | None:
        """Append batches of a leader with the offsets and epochs they have: all of them or none.

        Offsets must go up from the log's end; gaps are the leader's business (compaction). The log must end at `end`,
        from where the leader was asked: a gap is nobody else's. `is_owner` and `may_wait` are as for
        `append_as_leader`; None: nothing was done.

        Raises: as `lock`, and the errors that are outcomes of `append_as_leader`; InvalidRecordError: offsets that go
        back; the log ends elsewhere.
        """
        prepared = Prepared(records, valid_batches(records, None))

        def check_end() -> None:
            if end not in (None, self.files.view.end):
                raise InvalidRecordError(f"{self.files.path} ends at {self.files.view.end}, and not at {end}")

        outcomes = self._append([prepared], None, check_end, is_owner=is_owner, may_wait=may_wait)
        return result_of(outcomes) if outcomes else None

    def _append(
        self,
        appends: Sequence[Append],
        leader_epoch: int | None,
        guard: Callable[[], None] | None,
        *,
        is_owner: bool,
        may_wait: bool,
    ) -> list[AppendOutcome]:
        outcomes: list[AppendOutcome] = []
        if is_owner and self.files.try_hold():
            try:
                if self._is_caught_up and self._writer.is_prompt(appends, leader_epoch, self.config):
                    if guard is not None:
                        guard()
                    self._write(appends, leader_epoch, outcomes)
            except FileNotFoundError:
                pass  # whoever has the lock finds out why
            finally:
                self.files.release()
        if not may_wait or len(outcomes) == len(appends):
            return outcomes
        try:
            with self.lock():
                if guard is not None:
                    guard()
                self._write(appends, leader_epoch, outcomes)
        except Exception as error:
            if not outcomes:
                raise
            outcomes += [error] * (len(appends) - len(outcomes))
        self.point.flush_if_due(self.files.view.end, self.config)
        return outcomes

    def _write(self, appends: Sequence[Append], leader_epoch: int | None, outcomes: list[AppendOutcome]) -> None:
        self._is_caught_up = False  # if anything fails
        self._writer.append(appends, leader_epoch, self.config, outcomes)
        self._is_caught_up = not self._writer.has_failed

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

    def read(self, offset: int, *, max_bytes: int, upper: int | None = None, space: Space = NO_SPACE) -> ReadResult:
        """Return whole batches from the one that holds `offset`, as stored, with base offsets below `upper`.

        At most `max_bytes` of one segment, but at least one batch, so that a reader always advances; empty only at
        `upper` or the log's end, or where a gap reaches up to there. The first batch may begin before `offset`. `data`
        lies in `space` if it fits there, until the next use of it. Takes no lock, unless it meets something odd at two
        looks.

        Raises: OffsetOutOfRangeError; CorruptLogError: damage, also while nobody changes the log.
        """
        return self.reader.read(offset, max_bytes=max_bytes, upper=upper, space=space)

    def segments(self) -> tuple[SegmentInfo, ...]:
        return self.point.look_up(lambda view: tuple(lookup.segment_infos(self.files, view)))

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

    def advance_start(self, offset: int) -> int:
        """Move the log start up to `offset` (at most the log's end), for good; return where it is now.

        The log is flushed up to there first, so that no crash leaves a log that ends below its start. Segments below it
        leave the log: readers may finish what they have open.
        """
        with self.lock():
            offset = min(offset, self.files.view.end)
            if offset > self.files.view.start:
                if offset > self.point.offset:
                    self.flush()
                with marking_failure(self.env, self.files.root):
                    offset_checkpoints.write(self.env, self.files.path, offset_checkpoints.LOG_START, offset)
                self.files.reread()
            view = self.files.view
            if below := [base for base, end in pairwise(view.bases) if end <= view.local_start]:
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

    def recover(self, on_damage: OnDamage | None = None) -> RecoveryReport:
        """Check everything above the recovery point, and mend it; see `logstore.log.recovery`.

        Raises: CorruptLogError: damage below the recovery point. Nothing is dropped then. `on_damage` gets the error
        instead, where what follows can be mended.
        """
        with self.files.hold(), marking_failure(self.env, self.files.root):
            self._is_caught_up = False
            end = self.point.offset
            self.point.begin_cut(end)  # it removes files
            try:
                report = Recovery(self.files, self.epochs, self.config, end, on_damage).run()
                end = report.log_end_offset
            finally:
                self.point.end_cut(end)
        return report

    def verify(self) -> Iterator[Damage]:
        """Read everything, and yield what is damaged."""
        return verify(self.files, self.config)
