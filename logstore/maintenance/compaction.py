"""Compaction: the last record of every key stays, with its offset; everything before it goes.

A pass over one partition::

    log start          first dirty             upper            active segment
        |--- clean ---------|------ dirty --------|---- not yet -------|

1. The upper end is where compaction may go: below the active segment (which is closed if it is due), below the first
   open transaction, below the first segment younger than `min.compaction.lag.ms`, and, with `remote.storage.enable`,
   below what is not tiered.
2. A pass is due when the dirty part of what may be compacted is more than `min.cleanable.dirty.ratio`, or the oldest
   dirty segment waits longer than `max.compaction.lag.ms`.
3. The last offset of every key in the dirty part goes into a map of bounded memory. If the keys do not fit, the pass
   takes as much of the dirty part as fits, and does another round for the rest.
4. From the log start on, segments are copied without the records that have a later one in the map, small ones together
   into one, and each group takes the place of its segments (`logstore.log.segments.replacement`).
5. The dirty part is clean now: the mark `cleaner-offset` says so.

Batches of a right CRC whose records cannot be decoded stay as they are, are named once, and supersede nothing: a round
that meets one finds all of them, and begins anew without them.

These stay: tombstones (null values) for `delete.retention.ms` after the first pass that saw them; transaction markers
likewise, once nothing of their transaction is left; the last batch of a group and the last batches of every known
producer, empty if need be. So a segment always ends where the next one begins, and no producer is forgotten. Records
without a key go: they have no last one.

Writers and readers go on. The partition is locked for the renames only; a second compaction of it gives up. A round
flushes the records that it reads first: a record may not go before the later one is on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from logstore.checkpoint import marking_failure
from logstore.config import INT64_MAX
from logstore.errors import CorruptLogError, InvalidRequestError, UnreadableBatchError
from logstore.log.log import Log
from logstore.log.segments import offset_checkpoints
from logstore.log.segments.lookup import SegmentInfo, discontinuity
from logstore.log.segments.names import CLEANED_SUFFIX, CLEANER_LOCK
from logstore.log.segments.replacement import commit, make_durable, new_segment
from logstore.log.segments.segment import Segment
from logstore.log.segments.segment_reader import TORN
from logstore.maintenance import retention_clock
from logstore.maintenance.compaction_plan import Plan, groups, plan
from logstore.maintenance.verdicts import Verdicts
from logstore.progress import Progress, no_progress
from logstore.records.batch import batches, header_at

if TYPE_CHECKING:
    from logstore.records.compaction import Cleaner, OffsetMap

logger = logging.getLogger(__name__)

KEY_MAP_BYTES = 128 * 1024 * 1024
KEY_MAP_BYTES_MIN = 16 * 1024
# Small enough to be looked at, and copied, out of the second-level cache.
READ_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """The outcome of a compaction of one partition, or of its dry run. `skipped`: why nothing was compacted.

    Bytes are those of the segments that may be compacted; records are None where none were read.
    """

    topic: str
    partition: int
    skipped: str | None
    dirty_ratio_before: float
    dirty_ratio_after: float
    bytes_before: int
    bytes_after: int
    records_before: int | None = None
    records_after: int | None = None
    rounds: int = 0


def compact(
    log: Log,
    *,
    dry_run: bool = False,
    key_map_bytes: int = KEY_MAP_BYTES,
    progress: Progress = no_progress,
    upper: int = INT64_MAX,
) -> CompactionReport:
    """Compact one partition if that is due; `dry_run`: only report whether it is.

    Segments that reach above `upper` (a replica's high watermark) are not changed.

    Raises: CorruptLogError: a batch is damaged, or a key map of this size cannot hold one key; nothing is lost then.
    """
    if key_map_bytes < KEY_MAP_BYTES_MIN:
        raise InvalidRequestError(f"key_map_bytes={key_map_bytes}: at least {KEY_MAP_BYTES_MIN:,}")
    now_ms = retention_clock.now_ms(log.env, log.directory.parent, read_only=dry_run)
    if log.config.is_compacted and not dry_run:
        _roll_if_due(log, now_ms)
    planned = plan(log, now_ms, upper)
    topic, _, partition = log.directory.name.rpartition("-")
    report = CompactionReport(
        topic=topic,
        partition=int(partition),
        skipped=planned.not_due(log.config, now_ms),
        dirty_ratio_before=planned.ratio,
        dirty_ratio_after=planned.ratio,
        bytes_before=planned.size_bytes,
        bytes_after=planned.size_bytes,
    )
    if dry_run or report.skipped:
        return report
    from logstore.records.compaction import OffsetMap

    with _cleaning(log) as is_mine:
        if not is_mine:
            return replace(report, skipped="it is being compacted by another process")
        done = _Pass(log, now_ms, upper, OffsetMap(key_map_bytes), progress).run()
    after = plan(log, now_ms, upper)
    return replace(
        report,
        dirty_ratio_after=after.ratio,
        bytes_after=after.size_bytes,
        records_before=done.before,
        records_after=done.after,
        rounds=done.rounds,
    )


class _ChangedError(Exception):
    """Segments left the log, by retention or a truncation, while they were compacted."""


class _Counts(NamedTuple):
    before: int
    after: int
    rounds: int


class _Pass:
    def __init__(self, log: Log, now_ms: int, upper: int, keys: OffsetMap, progress: Progress) -> None:
        self._log = log
        self._now_ms = now_ms
        self._progress = progress
        self._upper = upper
        self._keys = keys
        self._space = bytearray(READ_BYTES)
        self._unreadable: set[int] = set()  # base offsets

    def run(self) -> _Counts:
        """Round after round, until nothing is dirty: plan, rewrite aside, replace."""
        log = self._log
        self._upper = min(self._upper, log.flush())  # what comes meanwhile is not on disk
        _remove_leftovers(log)
        planned = plan(log, self._now_ms, self._upper)
        self._upper = planned.upper  # in all rounds: the segments that end meanwhile are for the next pass
        # The mark is there before the first gap is.
        _advance_cleaned_offset(log, planned.dirty)
        gone, after, rounds = 0, 0, 0
        while planned.dirty < planned.upper:
            try:
                verdicts = Verdicts(log, planned, self._now_ms)
                seen = self._collect(planned, verdicts)
                counts = self._clean(planned, verdicts, seen)
            except (FileNotFoundError, _ChangedError):
                logger.info("dir=%s segments left the log while they were compacted", log.directory)
                break  # what is done is done
            gone, after, rounds = gone + counts[0] - counts[1], counts[1], rounds + 1
            _advance_cleaned_offset(log, seen)
            planned = plan(log, self._now_ms, self._upper)
        return _Counts(after + gone, after, rounds)

    def _collect(self, planned: Plan, verdicts: Verdicts) -> int:
        """Put the keys from the first dirty offset on into the map; return up to where they fit."""
        try:
            return self._collect_readable(planned, verdicts)
        except UnreadableBatchError as error:
            self._find_unreadable(planned, verdicts, error)
        return self._collect_readable(planned, verdicts)  # anew: keys of the first records of one may be in the map

    def _collect_readable(self, planned: Plan, verdicts: Verdicts) -> int:
        self._keys.clear(planned.dirty, planned.upper)
        for where, run in self._runs(planned, planned.dirty):
            full = self._keys.collect(run, start=planned.dirty, skipped=verdicts.has_no_data, where=where)
            if full is not None:
                self._check_readable(run, verdicts, where)  # keys of the first records of this batch are in the map
                return self._checked(full, planned.dirty)
        return planned.upper

    def _find_unreadable(self, planned: Plan, verdicts: Verdicts, first: UnreadableBatchError) -> None:
        """Take note of all batches from this one on that cannot be decoded, and name them in one line."""
        known = len(self._unreadable)
        for (path, position), run in self._runs(planned, first.base_offset):
            at = 0
            while at < len(run):
                try:
                    self._check_readable(run[at:], verdicts, (path, position + at))
                    break
                except UnreadableBatchError as error:
                    self._unreadable.add(error.base_offset)
                    at = error.position - position
                    at += header_at(run, at).size_bytes
        count = len(self._unreadable) - known
        logger.warning("%s; such batches (%d) stay as they are, and their keys count for nothing", first, count)

    def _check_readable(self, run: memoryview, verdicts: Verdicts, where: tuple[str, int]) -> None:
        """Raise UnreadableBatchError at the first batch that cannot be decoded. No key is stored."""
        self._keys.collect(run, start=INT64_MAX, skipped=verdicts.has_no_data, where=where)

    def _runs(self, planned: Plan, start: int) -> Iterator[tuple[tuple[str, int], memoryview]]:
        """Yield (path and position, batches) of the segments that reach `start`, without what cannot be decoded."""
        for segment in planned.segments:
            if segment.next_offset > start:
                for position, data in self._read(segment):
                    for at, run in self._readable(data):
                        yield (segment.path, position + at), run

    def _readable(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Yield (position, run) of the batches in `data`, without those that are known to be unreadable."""
        begin = 0
        for at, batch in batches(data) if self._unreadable else ():
            if batch.base_offset in self._unreadable:
                if at > begin:
                    yield begin, data[begin:at]
                begin = at + batch.size_bytes
        if begin < len(data):
            yield begin, data[begin:]

    def _checked(self, full: int, dirty: int) -> int:
        if full <= dirty:
            raise InvalidRequestError(
                f"{self._log.directory.name}: the key at offset {full} does not fit into the key map; "
                "give it more memory (key_map_bytes)"
            )
        return full

    def _read(self, segment: SegmentInfo) -> Iterator[tuple[int, memoryview]]:
        """Yield (position, whole batches) of a closed segment; each piece is good until the next.

        Raises: CorruptLogError: the offsets do not go up, or do not end where the next segment begins.
        """
        from logstore.records.compaction import whole_in_order

        source = self._log.files.segment(segment.base_offset).source
        position, next_offset = 0, segment.base_offset
        while position < segment.size_bytes:
            space = memoryview(self._space)
            count = source.read_into(position, space)
            end, next_offset = whole_in_order(
                space[: min(count, segment.size_bytes - position)],
                next_offset,
                segment.next_offset,
                (segment.path, position),
            )
            if end:
                yield position, space[:end]
                position += end
                continue
            size = int.from_bytes(space[8:12], "big") + 12
            if size <= len(space) or position + size > segment.size_bytes:
                raise self._wrong(segment, position, TORN)
            self._space = bytearray(size)
        if reason := discontinuity(self._log.files, next_offset, segment.next_offset):
            raise self._wrong(segment, position, reason)

    def _wrong(self, segment: SegmentInfo, position: int, reason: str) -> CorruptLogError | _ChangedError:
        """Why a segment cannot be read to its end: damage, unless it was cut meanwhile."""
        if self._log.files.segment(segment.base_offset).size_bytes() != segment.size_bytes:
            return _ChangedError()
        return CorruptLogError(segment.path, position, reason)

    def _clean(self, planned: Plan, verdicts: Verdicts, seen: int) -> tuple[int, int]:
        """Rewrite the segments that begin below `seen`; return the records before and after."""
        from logstore.records.compaction import Cleaner

        log, config = self._log, self._log.config
        chosen = tuple(segment for segment in planned.segments if segment.base_offset < seen)
        runs = list(groups(log, chosen))
        cleaner = Cleaner(
            self._keys,
            now_ms=self._now_ms,
            horizon_ms=self._now_ms + config.delete_retention_ms,
            needed=verdicts.needed | {group[-1].next_offset - 1 for group in runs},
            verdicts=verdicts,
        )
        before = after = done_bytes = 0
        total_bytes = sum(segment.size_bytes for segment in chosen)
        for group in runs:
            self._progress(done_bytes, total_bytes)
            counts = self._compact(group, cleaner, verdicts)
            before, after = before + counts[0], after + counts[1]
            done_bytes += sum(segment.size_bytes for segment in group)
        self._progress(total_bytes, total_bytes)
        return before, after

    def _compact(self, group: Sequence[SegmentInfo], cleaner: Cleaner, verdicts: Verdicts) -> tuple[int, int]:
        """Rewrite the group, and replace it unless it is the same; return the records before and after."""
        cleaned = new_segment(self._log.env, str(self._log.directory), group[0].base_offset)
        try:
            before, after, is_same = self._rewrite(group, cleaned, cleaner)
            if not is_same:
                self._finish(group, cleaned, verdicts)
        except Exception:
            cleaned.remove()
            raise
        if is_same:
            cleaned.remove()
        elif not replace_segments(self._log, group, cleaned):
            raise _ChangedError
        return before, after

    def _rewrite(self, group: Sequence[SegmentInfo], cleaned: Segment, cleaner: Cleaner) -> tuple[int, int, bool]:
        """Write what stays of the group into `cleaned`; return the records before and after.

        True: it is one segment, all of it stays, and nothing was written.
        """
        before = after = at = 0
        is_same = len(group) == 1
        for segment in group:
            for position, data in self._read(segment):
                for piece in cleaner.clean(data, (segment.path, position)):
                    if is_same and not piece.is_same:
                        is_same = False
                        self._copy(segment, at, cleaned)
                    if piece.data and not is_same:
                        self._log.env.files.write(cleaned.path, at, piece.data)
                    at += len(piece.data)
                    before, after = before + piece.before, after + piece.after
        return before, after, is_same

    def _copy(self, segment: SegmentInfo, size: int, cleaned: Segment) -> None:
        """Write the first `size` bytes of a segment, all of which stay."""
        source, position = self._log.files.segment(segment.base_offset).source, 0
        while position < size:
            data = source.read(position, min(READ_BYTES, size - position))
            if not data:
                raise self._wrong(segment, position, "the file ends before bytes that were read earlier")
            self._log.env.files.write(cleaned.path, position, data)
            position += len(data)

    def _finish(self, group: Sequence[SegmentInfo], cleaned: Segment, verdicts: Verdicts) -> None:
        log = self._log
        tail = cleaned.rebuild_indexes(cleaned.size_bytes(), log.config.index_interval_bytes)
        cleaned.seal(tail)
        if not {info.base_offset for info in group}.isdisjoint(log.files.view.transactional):
            cleaned.transactions.rewrite(verdicts.aborted_in(group))
        log.env.files.set_time(cleaned.path, max(segment.appended_ms for segment in group) * 1_000_000)
        with marking_failure(log.env, log.directory.parent):
            make_durable(log.env, str(log.directory), cleaned)


@contextmanager
def _cleaning(log: Log) -> Iterator[bool]:
    """Keep other compactions of the log out; yields false if one is at work. Readers and writers go on."""
    lock = log.env.files.lock(log.directory / CLEANER_LOCK, wait=False)
    if lock is None:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _remove_leftovers(log: Log) -> None:
    """Remove what a killed compaction left. Only inside `_cleaning`."""
    with log.lock():  # swaps that were decided are finished on entry
        for name in log.files.reread().aside:
            if name.endswith(CLEANED_SUFFIX):
                log.env.files.unlink(log.directory / name)


def _advance_cleaned_offset(log: Log, offset: int) -> None:
    """Note that compaction has seen everything below `offset`."""
    with log.lock(), marking_failure(log.env, log.directory.parent):
        offset_checkpoints.write(log.env, str(log.directory), offset_checkpoints.CLEANED, offset)


def _roll_if_due(log: Log, now_ms: int) -> None:
    """Close the active segment if it is too old for another append: there may be none that does it."""
    with log.lock():
        view = log.files.view
        if view.active is None or not view.tail.position:
            return
        appended_ms = view.active.mtime_ns // 1_000_000
        first_ms = view.tail.first_timestamp_ms
        since_ms = min(first_ms, appended_ms) if first_ms >= 0 else appended_ms
        if now_ms - since_ms > log.config.segment_ms_max:
            log.roll()


def replace_segments(log: Log, group: Sequence[SegmentInfo], cleaned: Segment) -> bool:
    """Put `cleaned`, which is durable, in the place of the group; false if the group has changed."""
    with log.lock():
        if not _is_there(log, group):
            cleaned.remove()
            return False
        with marking_failure(log.env, log.directory.parent):
            commit(log.env, str(log.directory), cleaned, [info.base_offset for info in group])
        log.finish_swaps()
        return True


def _is_there(log: Log, group: Sequence[SegmentInfo]) -> bool:
    """True if the group is unchanged: no retention and no cut since it was read."""
    bases = log.files.view.bases
    if group[0].base_offset not in bases:
        return False
    first = bases.index(group[0].base_offset)
    now = (*bases, -1)[first : first + len(group) + 1]
    return now == (*(info.base_offset for info in group), group[-1].next_offset) and all(
        log.files.segment(info.base_offset).size_bytes() == info.size_bytes for info in group
    )
