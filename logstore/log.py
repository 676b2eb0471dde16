"""Log: one partition, a row of segments in one directory.

::

    <topic>-<partition>/
        00000000000000000000.log .index .timeindex     records 0 …; the file is named after its first offset
        00000000000000368769.log .index .timeindex     …; the last segment is the active one, which grows
        leader-epoch-checkpoint                        which leader epoch began where
        partition.metadata                             the topic's id
        .lock                                          held by whoever appends

Invariant: `log_start_offset <= recovery_point <= log_end_offset` once a log is recovered; every offset is given once.

Many processes may have one partition open. Who changes it holds `lock()`: a thread lock and a file lock. On entry the
holder catches up with what other processes did, and cuts what a killed one left half written. Readers hold nothing:
what they know of the log (`_View`) is a value that is checked against the directory and the active file by two stats
before it is used, and a read that meets something odd plans once more from the disk before it reports damage.

The append path: `append_as_leader` (check, stamp) → `_append` (roll where needed) → `Segment.append` → one write.
"""

from __future__ import annotations

import bisect
import logging
import re
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from logstore.checkpoint import check_mark, fsync_or_mark, write_atomic
from logstore.config import INT32_MAX, LogConfig
from logstore.env import Env, FileStat, reset_after_fork
from logstore.epochs import LeaderEpochs
from logstore.errors import (
    CorruptLogError,
    InvalidRecordError,
    OffsetOutOfRangeError,
    ReadOnlyStoreError,
    RecordTooLargeError,
    StaleLogError,
    StorageError,
    StoreError,
)
from logstore.index import TIME_ENTRY_BYTES
from logstore.records.batch import (
    LOG_APPEND_TIME,
    BatchHeader,
    InvalidBatchError,
    batches,
    check,
    header_at,
    stamp,
    stamp_append_time,
)
from logstore.segment import LOG_SUFFIX, Segment, Slice, Tail

if TYPE_CHECKING:
    from logstore.recovery import Damage, RecoveryReport

logger = logging.getLogger(__name__)

METADATA = "partition.metadata"
LOCK = ".lock"

# The least that is worth one read call.
READ_BYTES_MIN = 16 * 1024
# Scans in progress whose place is remembered; more of them fall back to the index.
CURSORS_MAX = 32
# How often a listing may be overtaken by other processes before that is an error.
LOOKS_MAX = 5

_LOG_NAME = re.compile(r"\d{20}\.log")


class AppendInfo(NamedTuple):
    """What an append did: offsets [first_offset, next_offset); append_time_ms is -1 unless LogAppendTime."""

    first_offset: int
    next_offset: int
    append_time_ms: int
    bytes: int


class ReadResult(NamedTuple):
    """Whole batches as stored, where they are, and the offset to read next."""

    data: memoryview
    path: str
    position: int
    next_offset: int


class OffsetAndTimestamp(NamedTuple):
    """A record's place and time."""

    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """One segment as it is now; `next_offset` is the base offset of the next one, or the end of the log."""

    base_offset: int
    next_offset: int
    size_bytes: int
    path: str
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class _View:
    """What one look at the directory showed. `directory` and `active` are the stats it rests on."""

    directory: FileStat | None
    bases: tuple[int, ...]
    active: FileStat | None
    tail: Tail


def create(directory: Path, *, topic_id: str, env: Env) -> None:
    """Make the directory of an empty partition, durably but for the entry in its parent."""
    env.files.mkdir(directory)
    write_atomic(env, directory / METADATA, f"version: 0\ntopic_id: {topic_id}\n".encode())


def topic_id_of(directory: Path | str, env: Env) -> str | None:
    """Return the id of the topic that this partition belongs to; None if the directory is no partition."""
    try:
        text = env.files.read_all(f"{directory}/{METADATA}").decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    return fields.get("topic_id")


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
        self._env = env
        self._path = str(directory)
        self._root = str(directory.parent)
        self._view = _View(None, (), None, Tail(0, 0))
        self._segments: dict[int, Segment] = {}
        self._cursors: dict[int, tuple[int, int]] = {}  # next offset of a read -> (segment, position)
        self._epochs: LeaderEpochs | None = None
        self._last_flush_ms = env.clock.monotonic_ms()
        self._durable_base = -1  # the newest segment whose directory entry is known to be on disk
        self.after_fork()
        reset_after_fork(self)

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
        log._view = log._look(log._view, check_end=False)
        return log

    def after_fork(self) -> None:
        """Forget the locks of the parent process."""
        self._mutex = threading.RLock()
        self._view_mutex = threading.Lock()
        self._is_locked = False

    def reconfigure(self, config: LogConfig) -> None:
        """Use these settings from the next append on."""
        self.config = config

    def close(self) -> None:
        """Let go of the files. Nothing is flushed; a later call opens them again."""
        self._env.files.forget(self._path + "/")

    # ----------------------------------------------------------------- offsets

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        view = self._refresh()
        return view.bases[0] if view.bases else view.tail.next_offset

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get, appends of other processes included. Two stats if none."""
        return self._refresh().tail.next_offset

    @property
    def epochs(self) -> LeaderEpochs:
        """The leader epochs, read at first use."""
        if self._epochs is None:
            self._epochs = LeaderEpochs(self._env, self._path)
        return self._epochs

    # -------------------------------------------------------------------- lock

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the partition against other threads and processes; may be nested in one thread.

        On entry the log is caught up with other processes, and what a killed one left half written is cut.

        Raises: StaleLogError; FailedStoreError: an fsync failed here; CorruptLogError: the end is damaged.
        """
        with self._hold() as is_first:
            if is_first:
                check_mark(self._env, self._root)
                self._catch_up()
            yield

    @contextmanager
    def _hold(self) -> Iterator[bool]:
        """Hold both locks; yields whether this is the outermost hold. The lock file is opened at each of them.

        So a forked child never shares a lock, and a partition that was created anew is locked as it is now.
        """
        if self.read_only:
            raise ReadOnlyStoreError(f"{self.directory} is open for reading only")
        with self._mutex:
            if self._is_locked:
                yield False
                return
            try:
                lock = self._env.files.lock(f"{self._path}/{LOCK}")
            except FileNotFoundError:
                raise self._stale() from None
            assert lock is not None, "a lock that is waited for is granted"
            self._is_locked = True
            try:
                yield True
            finally:
                self._is_locked = False
                lock.release()

    def _catch_up(self) -> None:
        """Under the lock: what is on disk is what is known, and the active segment ends with a whole batch."""
        view = self._refresh()
        if view.active is None:
            return
        tail, active = view.tail, self._segment(view.bases[-1])
        if tail.damage or (tail.position < view.active.size and tail.next_offset < self.recovery_point):
            reason = (
                tail.damage
                or f"records {tail.next_offset} to {self.recovery_point} were flushed and are gone"
            )
            raise CorruptLogError(active.path, tail.position, reason, "run `pylog recover`")
        if not tail.index_ok:
            logger.warning("path=%s does not fit its log: rebuilding it", active.index.path)
            tail = active.rebuild_indexes(view.active.size, self.config.index_interval_bytes)
        if tail.position < view.active.size:
            # A process was killed while it wrote: nobody was told that this append succeeded.
            torn_bytes = view.active.size - tail.position
            logger.warning(
                "path=%s cutting torn_bytes=%d at offset=%d", active.path, torn_bytes, tail.next_offset
            )
            active.truncate(tail.position, tail.next_offset)
        if tail is not view.tail or tail.position < view.active.size:
            self._know(view.bases, tail)

    # ------------------------------------------------------------------ append

    def append_as_leader(self, records: bytearray, *, leader_epoch: int = 0) -> AppendInfo:
        """Give the batches in `records` the next offsets, in place, and append them: all of them or none.

        Batches are checked (header, CRC-32C, size) and not decoded. With LogAppendTime they are stamped with the
        time of the append. Not flushed, unless flush.messages or flush.ms say so. After DiskFullError the log is as
        it was before.

        Raises: InvalidRecordError, RecordTooLargeError, DiskFullError; as `lock`.
        """
        checked = self._checked(records, dense=True)
        log_append_time = self.config.message_timestamp_type == "LogAppendTime"
        with self.lock():
            now_ms = self._env.clock.now_ms() if log_append_time else -1
            first = offset = self._view.tail.next_offset
            stamped = []
            for position, batch in checked:
                stamp(records, position, offset, leader_epoch)
                if log_append_time:
                    stamp_append_time(records, position, now_ms)
                    batch = batch._replace(
                        max_timestamp=now_ms, attributes=batch.attributes | LOG_APPEND_TIME
                    )
                stamped.append(batch._replace(base_offset=offset, leader_epoch=leader_epoch))
                offset += batch.last_offset_delta + 1
            self._append(records, stamped)
        self._maybe_flush(offset)
        return AppendInfo(first, offset, now_ms, len(records))

    def append_as_follower(self, records: bytes | bytearray | memoryview) -> AppendInfo:
        """Append batches of a leader with the offsets and epochs they have: all of them or none.

        Offsets must go up from the log's end; gaps are the leader's business (compaction).

        Raises: as `append_as_leader`; InvalidRecordError: offsets that go back.
        """
        checked = [batch for _, batch in self._checked(records, dense=False)]
        with self.lock():
            end = first = self._view.tail.next_offset
            for batch in checked:
                if batch.base_offset < end:
                    raise InvalidRecordError(f"{self.directory}: offset {batch.base_offset} after {end - 1}")
                end = batch.next_offset
            self._append(records, checked)
        self._maybe_flush(end)
        return AppendInfo(checked[0].base_offset if checked else first, end, -1, len(records))

    def _checked(self, data: bytes | bytearray | memoryview, *, dense: bool) -> list[tuple[int, BatchHeader]]:
        """The batches that `data` consists of, each one valid. `dense`: a record for every offset, as writers send."""
        found, end, limit = [], 0, self.config.batch_bytes_max
        try:
            for position, batch in batches(data):
                check(data, position, batch)
                if batch.size_bytes > limit:
                    raise RecordTooLargeError(batch.size_bytes, limit, "batch")
                if dense and batch.count != batch.last_offset_delta + 1:
                    raise InvalidBatchError(
                        position, f"{batch.count} records in {batch.last_offset_delta + 1} offsets"
                    )
                found.append((position, batch))
                end = position + batch.size_bytes
        except InvalidBatchError as error:
            raise InvalidRecordError(f"{self.directory}: not appended: {error}") from error
        if end < len(data):
            raise InvalidRecordError(
                f"{self.directory}: not appended: half a batch at byte {end} of {len(data)}"
            )
        return found

    def _append(self, data: bytes | bytearray | memoryview, batches: Sequence[BatchHeader]) -> None:
        """Write the batches behind the end, one write per segment; what cannot be written whole is undone."""
        before, rest = self._view, memoryview(data)
        try:
            while batches:
                active, count = self._active_for(batches)
                size_bytes = sum(batch.size_bytes for batch in batches[:count])
                tail = active.append(
                    rest[:size_bytes], batches[:count], self._view.tail, self.config.index_interval_bytes
                )
                self._know(self._view.bases, tail)
                self._note_epochs(batches[:count])
                rest, batches = rest[size_bytes:], batches[count:]
        except StorageError:
            self._undo(before)
            raise

    def _active_for(self, batches: Sequence[BatchHeader]) -> tuple[Segment, int]:
        """The segment that takes the next batches, new if need be, and how many of them it takes in one write."""
        first, view = batches[0], self._view
        if not view.bases:
            self._add_segment(first.base_offset)
        elif self._is_full(view.bases[-1], view.tail.position, view.tail, first):
            self.roll()  # named after the end of the log: segments follow each other without a gap
        base, tail = self._view.bases[-1], self._view.tail
        if first.last_offset - base > INT32_MAX:
            self._segment(base).remove()
            self._add_segment(first.base_offset, instead=True)
            base, tail = first.base_offset, self._view.tail
        position, count = tail.position, 0
        for batch in batches:
            if count and self._is_full(base, position, tail, batch):
                break
            if position == 0:
                tail = tail._replace(first_timestamp_ms=batch.max_timestamp)
            position += batch.size_bytes
            count += 1
        return self._segment(base), count

    def _is_full(self, base: int, position: int, tail: Tail, batch: BatchHeader) -> bool:
        """Must the log roll before this batch (segment.bytes, segment.ms, segment.index.bytes, relative offsets)?

        `position` is where the batch would begin; `tail` is from before the append that it belongs to.
        """
        config = self.config
        entries = tail.indexed_entries + (position - tail.position) // max(1, config.index_interval_bytes)
        if (
            batch.last_offset - base > INT32_MAX
            or (entries + 1) * TIME_ENTRY_BYTES > config.segment_index_bytes
        ):
            return True
        age_ms = batch.max_timestamp - tail.first_timestamp_ms if tail.first_timestamp_ms >= 0 else 0
        return position > 0 and (
            position + batch.size_bytes > config.segment_bytes
            or age_ms > config.segment_ms - self._jitter_ms(base)
        )

    def _jitter_ms(self, base_offset: int) -> int:
        """At random per segment, but the same in every process."""
        return zlib.crc32(f"{self._path}@{base_offset}".encode()) % (self.config.segment_jitter_ms + 1)

    def _undo(self, before: _View) -> None:
        """Take back what a failed append wrote. What cannot be taken back is torn, and the next holder cuts it."""
        try:
            for base in reversed(self._view.bases[len(before.bases) :]):
                self._segment(base).remove()
            if before.bases:
                self._segment(before.bases[-1]).truncate(before.tail.position, before.tail.next_offset)
            self._know(before.bases, before.tail)
        except StorageError:
            logger.warning("dir=%s could not undo a failed append", self._path, exc_info=True)

    def _note_epochs(self, batches: Sequence[BatchHeader]) -> None:
        """Keep `leader-epoch-checkpoint` in step; the epoch changes rarely, so this is one comparison."""
        for batch in batches:
            if batch.leader_epoch > self.epochs.latest:
                self.epochs.load()  # another process may have noted it
                self.epochs.assign(batch.leader_epoch, batch.base_offset)

    # -------------------------------------------------------------------- roll

    def roll(self) -> None:
        """Close the active segment and begin a new one at the end of the log; nothing happens if it is empty."""
        with self.lock():
            view = self._view
            if view.bases and view.tail.position:
                self._segment(view.bases[-1]).seal(view.tail)
                self._add_segment(view.tail.next_offset)

    def _add_segment(self, base_offset: int, *, instead: bool = False) -> None:
        """Make an empty active segment (`instead` of the empty one that is there)."""
        bases = self._view.bases[:-1] if instead else self._view.bases
        self._segment(base_offset).create()
        self._know((*bases, base_offset), Tail(0, base_offset))

    # ------------------------------------------------------------------- flush

    def flush(self) -> int:
        """fsync everything up to the log's end as it is now; return it: the new recovery point.

        Takes no lock, so that writers of several processes can wait for the disk at the same time.

        Raises: FailedStoreError: what is on disk is unknown; a mark keeps every process from writing.
        """
        view = self._refresh()
        end = view.tail.next_offset
        if end > self.recovery_point or self._durable_base < 0:
            first = max(0, bisect.bisect_right(view.bases, self.recovery_point) - 1)
            for base in view.bases[first:]:
                segment = self._segment(base)
                files = [segment.path] if base == view.bases[-1] else segment.paths
                for path in files:
                    fsync_or_mark(self._env, path, self._root)
            if view.bases and view.bases[-1] > self._durable_base:
                fsync_or_mark(self._env, self._path, self._root)
                self._durable_base = view.bases[-1]
            with self._view_mutex:
                self.recovery_point = max(self.recovery_point, end)
        self._last_flush_ms = self._env.clock.monotonic_ms()
        return end

    def _maybe_flush(self, end: int) -> None:
        config = self.config
        waited_ms = self._env.clock.monotonic_ms() - self._last_flush_ms
        if end - self.recovery_point >= config.flush_messages or waited_ms >= config.flush_ms:
            self.flush()

    # -------------------------------------------------------------------- read

    def read(
        self, offset: int, *, max_bytes: int, upper: int | None = None, buffer: bytearray | None = None
    ) -> ReadResult:
        """Return whole batches from the one that holds `offset`, as stored, with base offsets below `upper`.

        About `max_bytes` of one segment, at least one batch however large, so that a reader always advances; empty
        only at `upper` or the log's end, or where a gap reaches up to there. The first batch may begin before
        `offset`. `data` lies in `buffer` if it fits there. Takes no lock.

        Raises: OffsetOutOfRangeError; CorruptLogError: damage, also at a second look at the disk.
        """
        view = self._view
        if upper is None or upper > view.tail.next_offset or not view.bases or offset < view.bases[0]:
            view = self._refresh()
        size_bytes = max(max_bytes, READ_BYTES_MIN)
        space = memoryview(
            buffer if buffer is not None and len(buffer) >= size_bytes else bytearray(size_bytes)
        )
        space = space[:size_bytes]
        for is_last_look in (False, True):
            end = view.tail.next_offset
            self._check_range(offset, view)
            limit = end if upper is None else min(upper, end)
            if offset >= limit:
                return ReadResult(space[:0], self._path, 0, offset)
            try:
                return self._read(view, offset, limit, space)
            except (CorruptLogError, FileNotFoundError):
                if is_last_look:
                    raise
            view = self._look_anew()
        raise AssertionError("unreachable: the second look returns or raises")

    def _read(self, view: _View, offset: int, upper: int, space: memoryview) -> ReadResult:
        number = bisect.bisect_right(view.bases, offset) - 1
        segment, found = self._segment(view.bases[number]), None
        cursor = self._cursors.pop(offset, None)
        if cursor and cursor[0] == segment.base_offset:
            found = self._read_at_cursor(segment, offset, cursor[1], upper, space)
        if found is None:
            found = segment.read(offset, segment.floor_position(offset), upper, space)
        while found is None:  # the segment ends in a gap
            number += 1
            if number == len(view.bases) or view.bases[number] >= upper:
                return ReadResult(space[:0], segment.path, 0, upper)
            segment = self._segment(view.bases[number])
            found = segment.read(offset, 0, upper, space)
        if len(self._cursors) >= CURSORS_MAX:
            self._cursors.clear()
        self._cursors[found.next_offset] = (segment.base_offset, found.position + len(found.data))
        return ReadResult(found.data, segment.path, found.position, found.next_offset)

    def _read_at_cursor(
        self, segment: Segment, offset: int, position: int, upper: int, space: memoryview
    ) -> Slice | None:
        """Read on where the last read ended, if the batch there is still the next one."""
        try:
            found = segment.read(offset, position, upper, space)
        except CorruptLogError:
            return None
        return found if found and found.data and header_at(found.data).base_offset == offset else None

    def _check_range(self, offset: int, view: _View) -> None:
        start, end = (view.bases[0] if view.bases else view.tail.next_offset), view.tail.next_offset
        if not start <= offset <= end:
            raise OffsetOutOfRangeError(offset, start, end, self.directory.name)

    # ---------------------------------------------------------------- look-ups

    def floor_batch(self, offset: int) -> int:
        """Return the base offset of the batch that holds `offset`; in a gap of the next one; at the end, the end."""
        view = self._refresh()
        self._check_range(offset, view)
        place = self._place(view, offset)
        return place[2].base_offset if place else view.tail.next_offset

    def _place(self, view: _View, offset: int) -> tuple[int, int, BatchHeader] | None:
        """(number of the segment, position, header) of the batch that holds `offset` or follows it."""
        if offset >= view.tail.next_offset:
            return None
        for number in range(max(0, bisect.bisect_right(view.bases, offset) - 1), len(view.bases)):
            if found := self._segment(view.bases[number]).batch_at(offset):
                return number, *found
        return None

    def bytes_between(self, start: int, end: int) -> int:
        """Return the stored bytes of the batches from the one that holds `start` to the one before `end`."""
        view = self._refresh()
        low, high = self._place(view, start), self._place(view, end)
        if low is None:
            return 0
        last = len(view.bases) - 1
        number, position = high[:2] if high else (last, view.tail.position)
        between = sum(self._segment(base).size_bytes() for base in view.bases[low[0] : number])
        return max(0, between + position - low[1])

    def offset_after_bytes(self, start: int, max_bytes: int) -> int:
        """Return the largest end where a batch ends and [start, end) has at most `max_bytes` stored bytes.

        At least one batch is inside, unless `start` is the end of the log.
        """
        view = self._refresh()
        place = self._place(view, start)
        if place is None:
            return view.tail.next_offset
        number, position, batch = place
        end, budget_bytes = batch.next_offset, max_bytes + position
        while number < len(view.bases):
            segment = self._segment(view.bases[number])
            is_active = number == len(view.bases) - 1
            size_bytes = view.tail.position if is_active else segment.size_bytes()
            if budget_bytes < size_bytes:
                return max(end, segment.offset_at(budget_bytes))
            end = max(end, view.tail.next_offset if is_active else view.bases[number + 1])
            budget_bytes -= size_bytes
            number += 1
        return end

    def offset_for_time(self, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """Return the first record whose timestamp is at least `timestamp_ms`; None if there is none."""
        view = self._refresh()
        for info in self._infos(view):
            if info.max_timestamp_ms < timestamp_ms:
                continue
            if found := self._segment(info.base_offset).first_since(timestamp_ms, info.size_bytes):
                return OffsetAndTimestamp(*found)
        return None

    def segments(self) -> tuple[SegmentInfo, ...]:
        """Every segment as it is now, oldest first."""
        return tuple(self._infos(self._refresh()))

    def _infos(self, view: _View) -> Iterator[SegmentInfo]:
        for base, following in zip(view.bases, (*view.bases[1:], view.tail.next_offset), strict=True):
            segment, is_active = self._segment(base), base == view.bases[-1]
            size_bytes = view.tail.position if is_active else segment.size_bytes()
            tail = view.tail if is_active else segment.tail(size_bytes)
            yield SegmentInfo(
                base_offset=base,
                next_offset=following,
                size_bytes=size_bytes,
                path=segment.path,
                max_timestamp_ms=tail.max_timestamp_ms,
            )

    # ---------------------------------------------------------------- truncate

    def truncate_to(self, offset: int) -> None:
        """Remove every batch that holds `offset` or a later one, and the leader epochs that began there.

        Below the log's start everything goes, and the log begins anew at `offset`. The caller lowers its checkpoint
        of the recovery point first: what is flushed and missing counts as damage.
        """
        with self.lock():
            view = self._view
            if offset >= view.tail.next_offset:
                return
            self.recovery_point = min(self.recovery_point, offset)
            place = self._place(view, offset) if offset >= view.bases[0] else None
            keep = place[0] + 1 if place else 0
            for base in reversed(view.bases[keep:]):
                self._segment(base).remove()
            if place is None:
                self._know((), Tail(0, offset))
                self._add_segment(offset)
            else:
                self._cut(view.bases[:keep], place[1], place[2].base_offset)
            self.epochs.load()
            self.epochs.trim(self._view.tail.next_offset)

    def _cut(self, bases: tuple[int, ...], position: int, next_offset: int) -> None:
        """Make `position` the end of the last of these segments."""
        segment = self._segment(bases[-1])
        segment.truncate(position, next_offset)
        self._know(bases, segment.tail(position))

    # ---------------------------------------------------------- recover, verify

    def recover(self) -> RecoveryReport:
        """Check everything above the recovery point, and mend it; see `logstore.recovery`.

        Raises: CorruptLogError: damage below the recovery point. Nothing is dropped then.
        """
        from logstore.recovery import recover

        return recover(self)

    def verify(self) -> Iterator[Damage]:
        """Read everything, and yield what is damaged."""
        from logstore.recovery import verify

        return verify(self)

    # -------------------------------------------------------------------- look

    def _segment(self, base_offset: int) -> Segment:
        segment = self._segments.get(base_offset)
        if segment is None:
            segment = self._segments[base_offset] = Segment(self._env, self._path, base_offset)
        return segment

    def _refresh(self) -> _View:
        """What is known of the log, after two stats that show whether it is still so."""
        known = self._view
        return self._publish(known, self._look(known))

    def _look_anew(self) -> _View:
        """What the disk shows, nothing remembered."""
        self._env.files.forget(self._path + "/")
        self._cursors.clear()
        known = self._view
        return self._publish(known, self._look(_View(None, known.bases, None, known.tail)))

    def _publish(self, known: _View, seen: _View) -> _View:
        """Remember what was seen, unless another thread was faster: it may be the writer, who knows better."""
        if seen is not known:
            with self._view_mutex:
                if self._view is known:
                    self._view = seen
        return seen

    def _know(self, bases: tuple[int, ...], tail: Tail) -> None:
        """Under the lock: this is the log now, because this thread has made it so."""
        view = self._view
        active = self._env.files.stat(self._segment(bases[-1]).path) if bases else None
        with self._view_mutex:
            self._view = _View(view.directory if bases == view.bases else None, bases, active, tail)

    def _look(self, known: _View, *, check_end: bool = True) -> _View:
        """Return `known` if it still holds, else what is true now."""
        for _ in range(LOOKS_MAX):
            directory, bases = known.directory, known.bases
            if directory is None or self._env.files.stat(self._path) != directory:
                directory, bases = self._list()
            if not bases or not check_end:
                same = bases == known.bases and directory == known.directory
                return known if same else _View(directory, bases, None, Tail(0, 0))
            active = self._segment(bases[-1])
            stat = self._env.files.stat(active.path)
            if stat is not None:
                return self._look_at_end(known, _View(directory, bases, stat, known.tail))
            known = _View(None, (), None, Tail(0, 0))  # it went between listing and looking
        raise StorageError(f"{self._path}: segments come and go faster than they can be listed")

    def _look_at_end(self, known: _View, now: _View) -> _View:
        """`now` with the right tail: walk on from what is known if the active file has only grown."""
        assert now.active is not None
        is_same_file = (
            known.active is not None and known.bases == now.bases and known.active.inode == now.active.inode
        )
        if is_same_file and known.active == now.active:
            return known if known.directory == now.directory else now
        segment, tail = self._segment(now.bases[-1]), None
        if is_same_file and known.active is not None and known.active.size < now.active.size:
            tail = segment.tail(now.active.size, known.tail)
            if tail.damage:  # perhaps it was cut and has grown again
                tail = None
        return _View(now.directory, now.bases, now.active, tail or segment.tail(now.active.size))

    def _list(self) -> tuple[FileStat | None, tuple[int, ...]]:
        """The directory's stat (None: do not rely on it yet) and the segments there, if it is still this partition."""
        try:
            listing = self._env.files.list(self._path)
        except FileNotFoundError:
            raise self._stale() from None
        if topic_id_of(self._path, self._env) != self.topic_id:
            raise self._stale()
        self._env.files.forget(self._path + "/")  # a name may stand for another file now
        bases = sorted(
            int(name.removesuffix(LOG_SUFFIX)) for name in listing.names if _LOG_NAME.fullmatch(name)
        )
        return (listing.stat if listing.settled else None), tuple(bases)

    def _stale(self) -> StoreError:
        return StaleLogError(
            f"{self.directory.name} was deleted, or created anew, since it was opened; look the topic up again",
            path=self._path,
        )
