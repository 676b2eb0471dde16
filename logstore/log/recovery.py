"""Recovery: makes a log of what a crash left of a partition.

Below the recovery point everything was fsynced: damage there is corruption, which is reported, and nothing is dropped.
Above it anything may be missing or garbage after a loss of power: the log is cut at the first thing that is not the
next valid batch, even if good batches follow, since a hole would be worse. Later segments are put aside. Indexes and
leader epochs that do not fit are rebuilt from the batches.

Every step may be repeated: recovery after a crash in a recovery ends the same, and a second one changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from logstore.checkpoint import TEMPORARY_SUFFIX
from logstore.config import LogConfig
from logstore.env import Env
from logstore.errors import CorruptLogError
from logstore.log.leader_epochs import FILE_NAME as EPOCHS
from logstore.log.leader_epochs import EpochCheck, EpochStart, LeaderEpochs, epoch_starts, see_epoch
from logstore.log.producers import recovery
from logstore.log.segments import offset_checkpoints
from logstore.log.segments.directory import DirectoryView, PartitionDirectory
from logstore.log.segments.end import SegmentEnd
from logstore.log.segments.formats import foreign_at, named
from logstore.log.segments.index_check import IndexCheck, is_short
from logstore.log.segments.lookup import discontinuity, place_of
from logstore.log.segments.names import (
    CLEANED_SUFFIX,
    CLEANER_LOCK,
    DAMAGED_LOG_FILE,
    DELETED_SUFFIX,
    INDEX_FILE,
    LOCK,
    METADATA,
    SEGMENT_FILE,
    SWAP_SUFFIX,
    damaged_file,
)
from logstore.log.segments.replacement import finish as finish_swaps
from logstore.log.segments.segment import Segment
from logstore.log.segments.segment_reader import TORN, SegmentReader
from logstore.records.batch import HEADER_BYTES, NO_TIMESTAMP, BatchHeader, InvalidBatchError, check, header_at

logger = logging.getLogger(__name__)

# Large enough to amortise a read, small enough to stay in the cache between the walk and the CRC.
CHUNK_BYTES = 1024 * 1024

# Leftovers of an interrupted change.
LEFTOVER_SUFFIXES = (TEMPORARY_SUFFIX, CLEANED_SUFFIX, DELETED_SUFFIX)
PASSING_SUFFIXES = (*LEFTOVER_SUFFIXES, SWAP_SUFFIX)
_REMEDY = "nothing was cut; restore the file from a copy, or read around the place, from a later offset on"


class Damage(NamedTuple):
    path: str
    position: int
    reason: str


OnDamage = Callable[[CorruptLogError], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """The outcome of a recovery: `removed` and `rebuilt` are paths, `ignored` names of files that are not pylog's."""

    path: str
    log_end_offset: int
    cut_bytes: int
    removed: tuple[str, ...]
    rebuilt: tuple[str, ...]
    ignored: tuple[str, ...]


def verify(files: PartitionDirectory, config: LogConfig) -> Iterator[Damage]:
    """Read everything, change nothing, and yield what is damaged: at most one place per segment and index."""
    view, has_producers = files.reread(), False
    epochs = EpochCheck(files)
    for number, base in enumerate(view.bases):
        segment = files.segment(base)
        is_active = number == len(view.bases) - 1
        next_offset, indexes = base, IndexCheck(segment, is_sealed=not is_active)
        try:
            size_bytes = view.tail.position if is_active else segment.size_bytes()
            for position, batch in checked_batches(segment, size_bytes):
                indexes.apply(position, batch)
                epochs.apply(batch)
                has_producers |= batch.producer_id >= 0
                next_offset = batch.next_offset
        except CorruptLogError as error:
            yield Damage(error.path, error.position, named(files.env, error).reason)
            continue
        except FileNotFoundError:
            continue  # it left the log meanwhile
        if is_active and (reason := end_reason(files.env, segment, view.tail)):
            yield Damage(segment.path, size_bytes, reason)
        if not is_active and (reason := discontinuity(files, next_offset, view.bases[number + 1])):
            yield Damage(segment.path, size_bytes, reason)
        if not files.is_kafkas and not indexes.fit(size_bytes, config):
            yield Damage(segment.index.path, 0, "does not fit its log: reads are slow, and right")
    # Files that a Kafka has beside the batches follow its own rules, and some are made at its next start.
    for path, reason in () if files.is_kafkas else _wrong_beside(files, view, epochs, has_producers=has_producers):
        yield Damage(path, 0, reason)


def _wrong_beside(
    files: PartitionDirectory, view: DirectoryView, epochs: EpochCheck, *, has_producers: bool
) -> Iterator[tuple[str, str]]:
    """Yield (path, reason) of the files of epochs and producers that are not what the batches say."""
    if reason := epochs.wrong(lambda: files.reread().end):
        yield epochs.path, f"{reason}; run `pylog recover`"
    yield from recovery.wrong_files(files, view, has_producers=has_producers)


def end_reason(env: Env, segment: Segment, tail: SegmentEnd) -> str | None:
    """Why the active segment goes on behind its last batch, and not with half a batch; None: it does not."""
    foreign = foreign_at(env, segment.path, tail.position)
    return foreign.reason if foreign is not None else tail.damage


def checked_batches(
    segment: SegmentReader, size_bytes: int, *, position: int = 0, next_offset: int = 0
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each batch from `position` to `size_bytes`, CRCs checked, offsets going up.

    Raises: CorruptLogError: where something else is found, half a batch at the end included.
    """
    next_offset, space = max(next_offset, segment.base_offset), memoryview(bytearray(CHUNK_BYTES))
    while position < size_bytes:
        count = segment.source.read_into(position, space[: size_bytes - position])
        chunk, at, needed = space[:count], 0, HEADER_BYTES
        try:
            while at + HEADER_BYTES <= count:
                batch = header_at(chunk, at)
                needed = batch.size_bytes
                if at + needed > count:
                    break
                check(chunk, at, batch)
                if batch.base_offset < next_offset:
                    raise InvalidBatchError(at, f"offset {batch.base_offset} after {next_offset - 1}")
                segment.check_reach(position + at, batch)
                yield position + at, batch
                at, next_offset = at + needed, batch.next_offset
                needed = HEADER_BYTES
        except InvalidBatchError as error:
            raise CorruptLogError(segment.path, position + error.position, error.reason) from error
        position += at
        if position + needed > size_bytes and position < size_bytes:
            raise CorruptLogError(segment.path, position, TORN)
        if needed > len(space):
            space = memoryview(bytearray(needed))


class Recovery:
    """One recovery of a partition; the caller holds its lock.

    Reads what lies above the recovery point, and a few headers of each segment below it. Lists the directory once, and
    again if names have changed since.
    """

    def __init__(
        self,
        files: PartitionDirectory,
        epochs: LeaderEpochs,
        config: LogConfig,
        recovery_point: int,
        on_damage: OnDamage | None,
    ) -> None:
        self._files = files
        self._on_damage = on_damage
        self._env = files.env
        self._epochs = epochs
        self._config = config
        self._recovery_point = recovery_point
        self._bases: list[int] = []
        self._epoch_starts: list[EpochStart] = []  # as the batches say that were read whole
        self._has_producers = False  # above the recovery point
        self._asides: list[int] = []  # base offsets of segments that were put aside earlier
        self._cut_bytes = 0
        self._removed: list[str] = []
        self._rebuilt: list[str] = []

    def run(self) -> RecoveryReport:
        """Mend the partition; its directory's view is that of the log as it is then.

        Raises: CorruptLogError: damage below the recovery point; with `on_damage`, only such as hides what follows.
        This damage is also raised where the bytes to be cut are whole and their CRC is right.
        """
        names = self._sweep()
        self._asides = [int(found[1]) for name in names if (found := DAMAGED_LOG_FILE.fullmatch(name))]
        view = self._files.refresh()
        # Bytes below the log's end were flushed before the mark of its start was set.
        self._recovery_point = max(self._recovery_point, view.start_mark)
        self._bases = self._without_deleted(list(view.bases), view.start_mark)
        end = self._recover_segments()
        if end < self._recovery_point:
            raise CorruptLogError(
                *cut_short(self._files, self._bases, SegmentEnd(0, end), self._recovery_point), _REMEDY
            )
        self._remove_orphans(names)
        self._recover_epochs(end)
        mended = self._mend_producers()
        self._removed += mended.removed
        self._rebuilt += mended.rebuilt
        if self._cut_bytes or self._removed or self._rebuilt:
            self._files.reread()
        else:
            self._files.refresh()
        return RecoveryReport(
            path=self._files.path,
            log_end_offset=end,
            cut_bytes=self._cut_bytes,
            removed=tuple(self._removed),
            rebuilt=tuple(self._rebuilt),
            ignored=self._ignored(names),
        )

    def _sweep(self) -> set[str]:
        """Finish replacements, remove leftovers; return the names that are left."""
        names = self._files.read_names()
        if any(name.endswith(PASSING_SUFFIXES) for name in names):
            finish_swaps(self._env, self._files.path, names, self._env.clock.now_ms())
            for name in sorted(self._files.read_names()):
                if name.endswith(LEFTOVER_SUFFIXES):
                    self._remove(f"{self._files.path}/{name}")
            names = self._files.read_names()
        return set(names)

    def _ignored(self, names: set[str]) -> tuple[str, ...]:
        others = names - {METADATA, LOCK, CLEANER_LOCK, EPOCHS} - offset_checkpoints.NAMES
        ignored = tuple(sorted(name for name in others if not SEGMENT_FILE.fullmatch(name)))
        if ignored:
            logger.warning("dir=%s ignoring files that are not ours: %s", self._files.path, ", ".join(ignored))
        return ignored

    def _remove_orphans(self, names: set[str]) -> None:
        """Remove indexes without a log. Only after the end was found: they tell of a missing log file."""
        for name in sorted(names):
            if (match := INDEX_FILE.fullmatch(name)) and f"{match[1]}.log" not in names:
                self._remove(f"{self._files.path}/{name}")

    def _remove(self, path: str) -> None:
        logger.warning("path=%s removed: left over from an interrupted change", path)
        self._env.files.unlink(path)
        self._removed.append(path)

    def _without_deleted(self, bases: list[int], start: int) -> list[int]:
        """Remove the segments below the log start that a crash left; return the others."""
        kept = [base for base, end in pairwise([*bases, start + 1]) if end > start]
        for base in bases:
            if base not in kept:
                self._files.segment(base).remove()
                self._removed.append(self._files.segment(base).path)
        return kept

    def _recover_segments(self) -> int:
        """Check every segment, oldest first; cut at the first gap or bad batch. Returns the end."""
        end, number = self._files.view.start_mark, 0
        while number < len(self._bases):
            segment = self._files.segment(self._bases[number])
            if number and (reason := discontinuity(self._files, end, segment.base_offset)):
                if min(end, segment.base_offset) >= self._recovery_point:
                    self._refuse_foreign(segment, 0, number)
                    self._take_out_from(number, reason, keep=True)
                    break
                self._pass_over(CorruptLogError(segment.path, 0, reason, "restore it from a copy"))
            is_flushed = number + 1 < len(self._bases) and self._bases[number + 1] < self._recovery_point
            end = self._glance_at(segment) if is_flushed else self._recover_segment(segment, number)
            number += 1
        return end

    def _pass_over(self, error: CorruptLogError) -> None:
        """Report damage below the recovery point: raise it, or go on behind it."""
        error = named(self._env, error)
        if self._on_damage is None:
            raise error
        self._on_damage(error)

    def _glance_at(self, segment: Segment) -> int:
        """Check the end of a segment that was flushed whole, and of its indexes, by its last headers."""
        size_bytes = segment.size_bytes()
        tail = segment.tail(size_bytes)
        if tail.position < size_bytes:
            self._pass_over(CorruptLogError(segment.path, tail.position, tail.damage or TORN))
            return self._bases[self._bases.index(segment.base_offset) + 1]
        newest = segment.time_index.last() or (NO_TIMESTAMP - 1, 0)
        is_sealed = newest[0] == tail.max_timestamp_ms
        if not (tail.index_ok and is_sealed) or is_short(tail.indexed_position, size_bytes, self._config):
            self._rebuild(segment, size_bytes)
        return tail.next_offset

    def _recover_segment(self, segment: Segment, number: int) -> int:
        """Read a segment from the recovery point on; cut at the first bad batch."""
        self._env.files.drop_cache(segment.path)  # after a failed fsync the cache has what the disk has not
        size_bytes = segment.size_bytes()
        position, end = segment.indexed_batch_before(self._recovery_point)
        indexes = IndexCheck(segment, is_sealed=number + 1 < len(self._bases), position=position, offset=end)
        is_damaged = False
        while True:
            try:
                for at, batch in checked_batches(segment, size_bytes, position=position, next_offset=end):
                    position, end = at + batch.size_bytes, batch.next_offset
                    indexes.apply(at, batch)
                    see_epoch(self._epoch_starts, batch)
                    self._has_producers |= batch.producer_id >= 0
            except CorruptLogError as error:
                if end < self._recovery_point:
                    position, end = self._resume(segment, position, size_bytes, end, error)
                    is_damaged = True
                    continue
                self._refuse_foreign(segment, position, number)
                # Crashes do this again and again: the first rest is kept. Data below it belongs to a recovery that was
                # cut short.
                keep = all(base > self._bases[-1] for base in self._asides)
                self._take_out_from(number + 1, error.reason, keep=keep)
                self._cut(segment, position, end, size_bytes, error.reason)
            break
        if not is_damaged and not indexes.fit(position, self._config):
            self._rebuild(segment, position)
        return end

    def _resume(
        self, segment: Segment, position: int, size_bytes: int, end: int, error: CorruptLogError
    ) -> tuple[int, int]:
        """(position, offset) behind damage below the recovery point. Raises: CorruptLogError: it cannot be found."""
        found = CorruptLogError(segment.path, error.position, f"{error.reason}; {_unchecked(end)}", _REMEDY)
        behind = segment.resume_behind(position, size_bytes, self._recovery_point)
        if behind is None:
            raise found from error
        self._pass_over(found)
        return behind

    def _refuse_foreign(self, segment: Segment, position: int, number: int) -> None:
        """Raise CorruptLogError if a whole message of a right CRC would go that another program wrote."""
        later = [(self._files.segment(base), 0) for base in self._bases[number + 1 :]]
        for each, at in ((segment, position), *later):
            foreign = foreign_at(self._env, each.path, at)
            if foreign is not None:
                raise foreign

    def _cut(self, segment: Segment, position: int, end: int, size_bytes: int, reason: str) -> None:
        logger.warning("path=%s offset=%d cut torn_bytes=%d: %s", segment.path, end, size_bytes - position, reason)
        segment.truncate(position, end)
        self._cut_bytes += size_bytes - position

    def _take_out_from(self, number: int, reason: str, *, keep: bool) -> None:
        """Take what is behind a hole out of the log, the last segment first: a crash here leaves no other hole.

        `keep`: under names that readers do not see, since nothing in it need be wrong.
        """
        for base in reversed(self._bases[number:]):
            segment = self._files.segment(base)
            size_bytes = segment.size_bytes()
            if keep and size_bytes:
                aside = damaged_file(segment.path, self._env.clock.now_ms())
                logger.warning("path=%s put aside as %s: it follows a hole (%s)", segment.path, aside, reason)
                self._env.files.rename(segment.path, aside)
            else:
                logger.warning("path=%s removed: it follows a hole (%s)", segment.path, reason)
            self._cut_bytes += size_bytes
            segment.remove()
            self._removed.append(segment.path)
        del self._bases[number:]

    def _rebuild(self, segment: Segment, size_bytes: int) -> None:
        logger.warning("path=%s does not fit its log: rebuilt", segment.index.path)
        tail = segment.rebuild_indexes(size_bytes, self._config.index_interval_bytes)
        if segment.base_offset != self._bases[-1]:
            segment.seal(tail)
        self._rebuilt.append(segment.index.path)

    def _recover_epochs(self, end: int) -> None:
        self._epochs.load()
        starts = [s for s in self._epochs.starts if s.start_offset < end]
        starts += [s for s in self._epoch_starts if s.epoch > self._epochs.latest]
        if not self._fit(starts):
            starts = epoch_starts(self._files, self._bases)
        if self._epochs.is_damaged or tuple(starts) != self._epochs.starts:
            self._epochs.replace(starts)

    def _mend_producers(self) -> recovery.Mended:
        """Mend nothing where a batch below the recovery point cannot be read: it says what producers did before."""
        try:
            return recovery.mend(self._files, self._recovery_point, has_producers=self._has_producers)
        except CorruptLogError as error:
            self._pass_over(error)
            return recovery.Mended((), ())

    def _fit(self, starts: Sequence[EpochStart]) -> bool:
        """True if the first batch, and those around the start of each epoch, have its epoch.

        The last batch was read. An epoch may have none any more. Below the recovery point only these are read.
        """
        view, begins = self._files.refresh(), {s.start_offset for s in (*starts, *self._epoch_starts)}
        for offset in {view.local_start, *begins, *(begin - 1 for begin in begins)}:
            try:
                found = place_of(self._files, view, offset)
            except CorruptLogError:
                continue  # below the recovery point: readers report it
            if found is None:
                continue
            before = [s for s in starts if s.start_offset < found.batch.next_offset]
            is_inside = before and before[-1].start_offset > found.batch.base_offset
            if is_inside or (before[-1].epoch if before else -1) != found.batch.leader_epoch:
                return False
        return True


def cut_short(
    files: PartitionDirectory, bases: Sequence[int], tail: SegmentEnd, recovery_point: int
) -> tuple[str, int, str]:
    """(file, position, reason) of the end of a log that lacks flushed records.

    Indexes without a log file tell that the file is missing.
    """
    gone = f"records {tail.next_offset} to {recovery_point} were flushed and cannot be read"
    following = files.segment(tail.next_offset)
    indexes = following.index.path, following.time_index.path
    if not tail.damage and any(files.env.files.stat(path) is not None for path in indexes):
        return following.path, 0, f"the file is missing; {gone}"
    if not bases:
        return files.path, 0, f"there is no .log file; {gone}"
    last = files.segment(bases[-1])
    if tail.damage:
        return last.path, tail.position, f"{tail.damage}; {_unchecked(tail.next_offset)}"
    return last.path, last.size_bytes(), f"the log ends there; {gone}"


def _unchecked(end: int) -> str:
    return f"records from {end} on were flushed, and what follows the damage was not checked"
