"""Log: one partition, a row of segments in one directory.

::

    <topic>-<partition>/
        00000000000000000000.log .index .timeindex     records 0 …; the file is named after its first offset
        00000000000000368769.log .index .timeindex     …; the last segment is the active one, which grows
        leader-epoch-checkpoint                        which leader epoch began where
        partition.metadata                             the topic's id
        .lock                                          held by whoever appends

Invariant: every offset is given once, in order; below `recovery_point` everything is on disk.

Many processes may have one partition open. Who changes it holds `lock()`: a thread lock and a file lock. On entry the
holder catches up with what other processes did, and cuts what a killed one left half written. Readers hold nothing:
they work on a `DirectoryView`, which two stats confirm; a read that meets something odd plans once more from the
disk before it reports damage. They may thus see records of an append that fails later, for want of space.

The append path: `append_as_leader` (check, stamp) → `LogWriter.append` (roll where needed) → `Segment.append` → one
write.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from logstore.checkpoint import check_mark, fsync_or_mark, marking_failure
from logstore.config import INT64_MAX, LogConfig
from logstore.env import Env
from logstore.errors import (
    CorruptLogError,
    InvalidRecordError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    ReadOnlyStoreError,
)
from logstore.log.leader_epochs import LeaderEpochs
from logstore.log.producers.state import NOTHING_KNOWN, Admission, OpenTransaction, ProducerState
from logstore.log.producers.tracker import ProducerTracker, Undecided
from logstore.log.recovery import Damage, OnDamage, RecoveryReport, cut_short, recover, verify
from logstore.log.segments import lookup, offset_checkpoints
from logstore.log.segments.deleted_files import delete_later
from logstore.log.segments.directory import DirectoryView, PartitionDirectory, create, topic_id_of
from logstore.log.segments.index import AbortedTransaction
from logstore.log.segments.lookup import OffsetAndTimestamp, SegmentInfo
from logstore.log.segments.reader import ReadResult, SegmentReader
from logstore.log.segments.replacement import finish as finish_swaps
from logstore.log.segments.segment import NO_SPACE, NOTHING, READ_BYTES_MIN, Request, SegmentEnd, Space
from logstore.log.validation import AppendInfo, check_times, valid_batches
from logstore.log.writer import LogWriter
from logstore.records.batch import (
    BatchHeader,
    end_marker,
    header_at,
    stamp,
    stamp_append_time,
)

__all__ = [
    "AppendInfo",
    "Log",
    "OffsetAndTimestamp",
    "ReadResult",
    "SegmentInfo",
    "create",
    "topic_id_of",
]

logger = logging.getLogger(__name__)

Found = TypeVar("Found")


class Log:
    """One partition; see the module. Safe for threads, and for processes of one host."""

    def __init__(
        self, directory: Path, *, topic_id: str, config: LogConfig, env: Env, read_only: bool = False
    ) -> None:
        self.directory = directory
        self.topic_id = topic_id
        self.config = config
        self.read_only = read_only
        self.recovery_point = 0
        self.env = self._env = env
        self._root = str(directory.parent)
        self._files = PartitionDirectory(directory, topic_id=topic_id, env=env)
        self._files.may_have_gaps = config.may_have_gaps
        self._epochs: LeaderEpochs | None = None
        self._producers = ProducerTracker(self._files)
        self._writer = LogWriter(self._files, self._producers, lambda: self.epochs)
        self._scanner = SegmentReader(self._files)
        self.last_flush_ms = env.clock.monotonic_ms()
        # Cuts so far, and where one is at work: what was flushed before may be gone.
        self._cuts, self._cut_at, self._cuts_mutex = 0, INT64_MAX, threading.Lock()
        self._durable_names: object = None  # of files whose directory entries are known to be on disk
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
        """Return the log in `directory`. Costs one listing: files are looked at when they are needed.

        Raises: StaleLogError: there is no partition of this topic.
        """
        log = cls(directory, topic_id=topic_id, config=config, env=env, read_only=read_only)
        log.recovery_point = recovery_point
        log._files.list_segments()
        return log

    def reconfigure(self, config: LogConfig) -> None:
        """Use these settings from the next append on."""
        self.config = config
        self._files.may_have_gaps = config.may_have_gaps

    def close(self) -> None:
        """Let go of the files. Nothing is flushed; a later call opens them again."""
        self._files.close()

    @property
    def files(self) -> PartitionDirectory:
        """What is in the directory: for `maintenance.partition`, which changes it under `lock()`."""
        return self._files

    # ----------------------------------------------------------------- offsets

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self._seen().start

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record, appends of other processes included. Two stats if there are none."""
        return self._seen().end

    def _seen(self, *, anew: bool = False) -> DirectoryView:
        """The log as it is now. What was flushed is in it, or it is an error: damage is not the end."""
        flushed = self.recovery_point  # before the look: other threads append and flush meanwhile, or cut
        view = self._files.relist() if anew else self._files.refresh()
        if view.end < min(flushed, self.recovery_point):
            raise CorruptLogError(*cut_short(self._files, view.bases, view.tail, flushed))
        return view

    @property
    def epochs(self) -> LeaderEpochs:
        """The leader epochs, read at first use."""
        if self._epochs is None:
            self._epochs = LeaderEpochs(self._env, self._files.path)
        return self._epochs

    # -------------------------------------------------------------------- lock

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the partition against other threads and processes; may be nested in one thread.

        On entry the log is caught up with other processes, and what a killed one left half written is cut.

        Raises: StaleLogError; FailedStoreError: an fsync failed here; CorruptLogError: the end is damaged.
        """
        self._check_writable()
        with self._files.hold() as is_outermost:
            self._is_caught_up = False
            if is_outermost:
                check_mark(self._env, self._root)
                self._catch_up()
            with self._files.confirmed():
                yield
            self._is_caught_up = is_outermost

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnlyStoreError(f"{self.directory} is open for reading only")

    def _catch_up(self) -> None:
        """Under the lock: know what is on disk, and make the active segment end with a whole batch."""
        view = self._seen()
        if view.is_swapping:
            self.finish_swaps()
            view = self._seen()
        if view.active is not None and view.tail.position < view.active.size:
            # Two changes within one time stamp may look alike: before anything is cut, look at the file itself.
            self._files.relist()
            view = self._seen()
        if view.active is None:
            return
        tail, active = view.tail, self._files.segment(view.bases[-1])
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
            self._files.publish(view.bases, tail)
        if view.transactional:
            self._producers.mend(view)

    # ------------------------------------------------------------------ append

    def append_as_leader(
        self,
        records: bytearray | memoryview,
        *,
        leader_epoch: int = 0,
        guard: Callable[[], None] | None = None,
    ) -> AppendInfo:
        """Give the batches in `records` the next offsets, in place, and append them: all of them or none.

        Batches are checked (header, CRC-32C, size) and not decoded. With LogAppendTime they are stamped with the time
        of the append. Not flushed, unless flush.messages or flush.ms say so. After DiskFullError the log is as it was
        before. `guard` is called under the partition's lock before anything is written, and raises to refuse.

        Batches of producers follow the rules of `logstore.log.producers.state`: what is there already is not
        written again.

        Raises: InvalidRecordError, RecordTooLargeError, DiskFullError; OutOfOrderSequenceError, ProducerFencedError,
        TransactionStateError; as `lock`.
        """
        checked = self._checked(records)
        with self.lock():
            if guard is not None:
                guard()
            done = self._append_admitted(records, checked, leader_epoch)
        if not done.is_duplicate:
            self._maybe_flush(done.next_offset)
        return done

    def try_append_as_leader(
        self, records: bytearray | memoryview, *, leader_epoch: int
    ) -> AppendInfo | None:
        """As `append_as_leader`, if all that it has to wait for is one write; None: it is not, and nothing was done.

        For the owner of the directory: it does not look for what other processes did. No fsync: neither one that is
        due, nor that of a leader epoch which begins.
        """
        if not self._files.try_hold():
            return None
        try:
            if not self._is_caught_up or self._may_sync(leader_epoch):
                return None
            checked = self._checked(records)
            self._is_caught_up = False
            done = self._writer.append_one(records, checked, leader_epoch, self.config)
            done = done or self._append_admitted(records, checked, leader_epoch)
            self._is_caught_up = True
            return done
        finally:
            self._files.let_go()

    def _may_sync(self, leader_epoch: int) -> bool:
        """May an append have to wait for an fsync?"""
        if self.epochs.latest != leader_epoch or self.config.flush_messages < INT64_MAX:
            return True
        return self._env.clock.monotonic_ms() - self.last_flush_ms >= self.config.flush_ms

    def _checked(self, records: bytearray | memoryview) -> list[tuple[int, BatchHeader]]:
        """The batches, if their contents may be appended."""
        checked = valid_batches(records, self.config, dense=True)
        if allowed := self.config.timestamps_at(self._env.clock.now_ms()):
            check_times(checked, allowed)
        return checked

    def _append_admitted(
        self, records: bytearray | memoryview, checked: list[tuple[int, BatchHeader]], leader_epoch: int
    ) -> AppendInfo:
        """Under the lock: append what is not there already."""
        admitted = self._admit(checked)
        if not admitted.duplicates:
            return self._append_stamped(records, checked, leader_epoch)
        at = sum(batch.size_bytes for _, batch in checked[: admitted.duplicates])
        if not (rest := checked[admitted.duplicates :]):
            return AppendInfo(admitted.first_offset, admitted.next_offset, -1, 0, is_duplicate=True)
        done = self._append_stamped(memoryview(records)[at:], rest, leader_epoch)
        return done._replace(first_offset=admitted.first_offset)

    def _admit(self, checked: Sequence[tuple[int, BatchHeader]]) -> Admission:
        """Which of these batches are there already; the others may be appended, or it raises."""
        if all(batch.producer_id < 0 for _, batch in checked):
            return NOTHING_KNOWN
        expired_ms = self._env.clock.now_ms() - self.config.producer_id_expiration_ms
        batches = [batch for _, batch in checked]
        return self._producers.check(self._files.view, batches, expired_ms=expired_ms)

    def _append_stamped(
        self, records: bytearray | memoryview, batches: Sequence[tuple[int, BatchHeader]], leader_epoch: int
    ) -> AppendInfo:
        """Under the lock: stamp the batches with the next offsets, and write them."""
        log_append_time = self.config.message_timestamp_type == "LogAppendTime"
        now_ms = self._env.clock.now_ms() if log_append_time else -1
        first = offset = self._files.view.end
        skipped = batches[0][0] if batches else 0
        stamped = []
        for place, batch in batches:
            position = place - skipped
            stamp(records, position, offset, leader_epoch)
            placed = batch._replace(base_offset=offset, leader_epoch=leader_epoch)
            if log_append_time:
                stamp_append_time(records, position, now_ms)
                placed = placed._replace(max_timestamp=now_ms)
            stamped.append(placed)
            offset = placed.next_offset
        self._writer.append(records, stamped, self.config)
        return AppendInfo(first, offset, now_ms, len(records))

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        leader_epoch: int = 0,
        coordinator_epoch: int = 0,
    ) -> int | None:
        """End the open transaction of this producer here, with a control batch; return the offset of that marker.

        None, and nothing is written, if there is none. From then on appends and markers of an older epoch are refused.

        Raises: ProducerFencedError: a newer epoch of the producer, or of its coordinator, is known; as `lock`.
        """
        with self.lock():
            if not self._files.view.snapshots or not self._producers.ask(
                self._files.view, lambda known: known.may_end(producer_id, producer_epoch, coordinator_epoch)
            ):
                return None
            marker = end_marker(
                (producer_id, producer_epoch),
                commit=commit,
                coordinator_epoch=coordinator_epoch,
                now_ms=self._env.clock.now_ms(),
            )
            done = self._append_stamped(marker, [(0, header_at(marker))], leader_epoch)
        self._maybe_flush(done.next_offset)
        return done.first_offset

    def append_as_follower(self, records: bytes | bytearray | memoryview) -> AppendInfo:
        """Append batches of a leader with the offsets and epochs they have: all of them or none.

        Offsets must go up from the log's end; gaps are the leader's business (compaction).

        Raises: as `append_as_leader`; InvalidRecordError: offsets that go back.
        """
        checked = [batch for _, batch in valid_batches(records, self.config, dense=False)]
        with self.lock():
            end = first = self._files.view.end
            for batch in checked:
                if batch.base_offset < end:
                    raise InvalidRecordError(f"{self.directory}: offset {batch.base_offset} after {end - 1}")
                end = batch.next_offset
            self._writer.append(records, checked, self.config)
        self._maybe_flush(end)
        return AppendInfo(checked[0].base_offset if checked else first, end, -1, len(records))

    # -------------------------------------------------------------------- roll

    def roll(self) -> None:
        """Close the active segment and begin a new one at the log's end; nothing happens if it is empty."""
        with self.lock():
            self._writer.roll(self.config)

    def take_rolled(self) -> bool:
        """Did a segment begin here since the last call? Then there may be one that can go."""
        rolled, self._writer.has_rolled = self._writer.has_rolled, False
        return rolled

    # ------------------------------------------------------------------- flush

    def flush(self) -> int:
        """Make everything durable up to the log's end of now (fsync); return the new recovery point: that end.

        Takes no lock, so that writers of several processes can wait for the disk at the same time; a log that is cut
        meanwhile keeps the point of the cut. Raises: FailedStoreError: what is on disk is unknown; a mark says so.
        """
        cuts, view = self._cuts, self._look_up_current(self._sync)
        if view.end > self.recovery_point:
            # A disk that failed once says that all is well at the next try, to other processes, too.
            check_mark(self._env, self._root)
            with self._cuts_mutex:
                if cuts == self._cuts:
                    self.recovery_point = max(self.recovery_point, min(view.end, self._cut_at))
        self.last_flush_ms = self._env.clock.monotonic_ms()
        return min(view.end, self.recovery_point)

    def _sync(self, view: DirectoryView) -> DirectoryView:
        """Make the view durable from the segment of the last durable record on: its indexes may be finished since."""
        if view.end <= self.recovery_point:
            return view
        for base in view.bases[lookup.number_of(view, self.recovery_point - 1) :]:
            segment = self._files.segment(base)
            files = [segment.path] if base == view.bases[-1] else [*segment.paths]
            if base in view.transactional:
                files += segment.transactions.paths
            for path in files:
                with suppress(FileNotFoundError) if path != segment.path else nullcontext():
                    fsync_or_mark(self._env, path, self._root)
        for offset in view.snapshots:
            if offset >= self.recovery_point:
                with suppress(FileNotFoundError):  # replaced by a newer one
                    fsync_or_mark(self._env, self._producers.snapshot_path(offset), self._root)
        names = (view.bases[-1:], view.snapshots, view.transactional)
        if view.bases and names != self._durable_names:
            fsync_or_mark(self._env, self._files.path, self._root)
            self._durable_names = names
        return view

    def _maybe_flush(self, end: int) -> None:
        waited_ms = self._env.clock.monotonic_ms() - self.last_flush_ms
        if end - self.recovery_point >= self.config.flush_messages or waited_ms >= self.config.flush_ms:
            self.flush()

    # ------------------------------------------------- producers, transactions

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction; the log's end if none is open."""
        undecided = self.undecided()
        return undecided.opened[0].first_offset if undecided.opened else undecided.end

    def open_transactions(self) -> tuple[OpenTransaction, ...]:
        """The transactions without a marker, the oldest first."""
        return self.undecided().opened

    def undecided(self) -> Undecided:
        """The end of the log, and the transactions that are open below it; takes no lock."""
        return self._look_up_current(self._producers.undecided)

    def aborted_transactions(self, start: int, end: int) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions that have an offset in [start, end), oldest marker first; takes no lock."""
        return self._look_up_current(lambda view: self._producers.aborted(view, start, end))

    def producers(self) -> tuple[ProducerState, ...]:
        """Every producer that is known here: epoch, last sequence and offset, open transaction; by id."""
        return self._look_up_current(self._producers.states)

    def _look_up_current(self, find: Callable[[DirectoryView], Found]) -> Found:
        """As `_look_up`, with a view that knows of every transaction in it."""
        return self._look_up(lambda view: find(self._files.current(view)))

    # -------------------------------------------------------------------- read

    def read(
        self, offset: int, *, max_bytes: int, upper: int | None = None, space: Space = NO_SPACE
    ) -> ReadResult:
        """Return whole batches from the one that holds `offset`, as stored, with base offsets below `upper`.

        At most `max_bytes` of one segment, but at least one batch, so that a reader always advances; empty only at
        `upper` or the log's end, or where a gap reaches up to there. The first batch may begin before `offset`.
        `data` lies in `space` if it fits there, and is good until the next use of it. Takes no lock, unless it meets
        something odd at two looks.

        Raises: OffsetOutOfRangeError; CorruptLogError: damage, also while nobody changes the log.
        """
        view = self._files.view
        if upper is None or upper > view.end or offset < view.start:
            view = self._seen()
        into = space.first(max(max_bytes, READ_BYTES_MIN))
        request = Request(offset, max_bytes, upper=INT64_MAX, space=into, walk=space.walk)
        try:
            return self._read_in(view, request, upper)
        except (CorruptLogError, FileNotFoundError):
            return self._look_up(lambda view: self._read_in(view, request, upper), anew=True)

    def _read_in(self, view: DirectoryView, request: Request, upper: int | None) -> ReadResult:
        """As `read`, at one look."""
        offset = request.offset
        if not view.start <= offset <= view.end:
            raise OffsetOutOfRangeError(offset, view.start, view.end, self.directory.name)
        request = request._replace(upper=view.end if upper is None else min(upper, view.end))
        if offset >= request.upper:
            return ReadResult(NOTHING, self._files.path, 0, offset)
        found = self._scanner.read(view, request, self.config)
        self._files.confirm()
        return found

    # ---------------------------------------------------------------- look-ups

    def floor_batch(self, offset: int) -> int:
        """Return the base offset of the batch that holds `offset`, in a gap of the next; or the end."""
        return self._look_up(lambda view: lookup.floor_batch(self._files, view, offset))

    def bytes_between(self, start: int, end: int) -> int:
        """Return the stored bytes from the batch that holds `start` to the one before `end`'s."""
        return self._look_up(lambda view: lookup.bytes_between(self._files, view, start, end))

    def offset_after_bytes(self, start: int, max_bytes: int) -> int:
        """Return the largest end where a batch ends and [start, end) has at most `max_bytes` stored bytes.

        At least one batch is inside, unless `start` is the end of the log.
        """
        return self._look_up(lambda view: lookup.offset_after_bytes(self._files, view, start, max_bytes))

    def offset_for_time(self, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """Return the first record whose timestamp is at least `timestamp_ms`; None if there is none."""
        return self._look_up(lambda view: lookup.first_since(self._files, view, timestamp_ms))

    def segments(self) -> tuple[SegmentInfo, ...]:
        """Every segment as it is now, oldest first."""
        return self._look_up(lambda view: tuple(lookup.segment_infos(self._files, view)))

    def _look_up(self, find: Callable[[DirectoryView], Found], *, anew: bool = False) -> Found:
        """What is found; at a second look at the disk, and then under the lock, if files went meanwhile."""
        for is_second in (False, True)[anew:]:
            with suppress(CorruptLogError, FileNotFoundError):
                return find(self._seen(anew=is_second))
        with self._files.hold_still():
            return find(self._seen(anew=True))

    # ---------------------------------------------------------------- truncate

    def truncate_to(self, offset: int) -> None:
        """Remove every batch that holds `offset` or a later one, and the leader epochs that began there.

        Below the log's start all goes: it begins anew at `offset`. Lower the checkpoint of the recovery point before.
        """
        with self.lock():
            view = self._files.view
            if offset < view.start:
                self._cut(offset, None)
            elif offset < view.end:
                found = lookup.place_of(self._files, view, offset)
                self._cut(
                    offset, found and lookup.Spot(found.number, found.position, found.batch.base_offset)
                )

    def start_anew(self, offset: int) -> None:
        """Remove everything: the log begins and ends at `offset`, wherever it was. Checkpoints as for `truncate_to`."""
        with self.lock():
            self._cut(offset, None)
            self.epochs.replace(())

    def cut_damage(self, offset: int, place: lookup.Spot | None) -> None:
        """Remove what is at `place`, where `offset` would be, and all behind it, damaged or not; None: everything.

        Checkpoints as for `truncate_to`. What is left is to be recovered.
        """
        self._check_writable()
        with self._files.hold():
            self._is_caught_up = False
            self._cut(offset, place)
            if place is None:
                self.epochs.replace(())

    @contextmanager
    def changing_files(self) -> Iterator[None]:
        """Hold the partition, whatever is damaged, while files give way to others with the same batches."""
        self._check_writable()
        with self._files.hold(), marking_failure(self._env, self._root):
            self._is_caught_up = False
            yield
            self._files.relist()
            self._producers.forget()

    def _cut(self, offset: int, place: lookup.Spot | None) -> None:
        """Under the lock: remove what is at `place` and all behind it; None: everything, to begin at `offset`."""
        view = self._files.view
        end = min(offset, place.offset) if place else offset
        offset_checkpoints.lower(self._env, self._files.path, end)
        with self._cuts_mutex:  # first, and for flushes, too: who looks meanwhile sees no damage
            self._cut_at, self.recovery_point = end, min(self.recovery_point, end)
        bases = view.bases[: place.number + 1] if place else ()
        self._producers.cut(place.offset if place else -1)
        for base in reversed(view.bases[len(bases) :]):
            self._files.segment(base).remove()
        if place is None:
            self._env.files.unlink(f"{self._files.path}/{offset_checkpoints.LOG_START}")
            self._files.relist()
            self._files.publish((), SegmentEnd(0, offset))
            self._writer.add_segment(offset)
        else:
            segment = self._files.segment(bases[-1])
            segment.truncate(place.position, place.offset)
            self._files.publish(bases, segment.tail(place.position))
        # What was cut must not come back: other records will be at its offsets, of other epochs.
        fsync_or_mark(self._env, self._files.segment(self._files.view.bases[-1]).path, self._root)
        fsync_or_mark(self._env, self._files.path, self._root)
        self._producers.forget()
        with self._cuts_mutex:  # again: a gap may lie before the cut
            self._cuts, self._cut_at = self._cuts + 1, INT64_MAX
            self.recovery_point = min(self.recovery_point, self._files.view.end)
        self.epochs.load()
        self.epochs.trim(self._files.view.end)

    # ----------------------------------------------------- log start, tiered end

    def advance_start(self, offset: int) -> int:
        """Move the log start up to `offset` (at most the log's end), for good; return where it is now.

        What the offset rests on is flushed first, so that no crash leaves a log that ends below its start.
        Segments that lie below it leave the log: readers may finish what they have open.
        """
        with self.lock():
            offset = min(offset, self._files.view.end)
            if offset > self._files.view.start:
                if offset > self.recovery_point:
                    self.flush()
                with marking_failure(self._env, self._root):
                    offset_checkpoints.write(
                        self._env, self._files.path, offset_checkpoints.LOG_START, offset
                    )
                self._files.relist()
            view = self._files.view
            below = [base for base, end in pairwise(view.bases) if end <= view.start]
            for base in below:  # the oldest first: whatever is left is a log
                delete_later(self._env, self._files.segment(base), self._env.clock.now_ms())
            if below:
                self._files.relist()
            return self._files.view.start

    def finish_swaps(self) -> None:
        """Under the lock: put rewritten segments in the place of those that they stand for."""
        with marking_failure(self._env, self._root):
            names = self._files.relist().aside
            done = finish_swaps(self._env, self._files.path, names, self._env.clock.now_ms())
        for path in done:
            logger.info("path=%s rewritten", path)
        self._files.relist()

    @property
    def tiered_offset(self) -> int:
        """Everything below it is in remote storage, too."""
        return offset_checkpoints.read(self._env, self._files.path, offset_checkpoints.TIERED)

    def advance_tiered_offset(self, offset: int) -> None:
        """Note that everything below `offset` is in remote storage; durable on return. It never goes back."""
        with self.lock():
            if offset > self._files.view.end:
                name, end = self.directory.name, self._files.view.end
                raise InvalidRequestError(f"{name}: tiered to {offset}, but the log ends at {end}")
            if offset > self.tiered_offset:
                with marking_failure(self._env, self._root):
                    offset_checkpoints.write(self._env, self._files.path, offset_checkpoints.TIERED, offset)

    # ---------------------------------------------------------- recover, verify

    def recover(self, on_damage: OnDamage | None = None) -> RecoveryReport:
        """Check everything above the recovery point, and mend it; see `logstore.log.recovery`.

        Raises: CorruptLogError: damage below the recovery point. Nothing is dropped then. `on_damage` is told instead
        of what can be passed over, so that what follows is mended, too.
        """
        self._check_writable()
        with self._files.hold(), marking_failure(self._env, self._root):
            self._is_caught_up = False
            report = recover(self._files, self.epochs, self.config, self.recovery_point, on_damage)
            self._files.relist()
        self.recovery_point = min(self.recovery_point, report.log_end_offset)
        return report

    def verify(self) -> Iterator[Damage]:
        """Read everything, and yield what is damaged."""
        return verify(self._files, self.config)
