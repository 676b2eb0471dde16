"""Upkeep: what compaction and retention do to the files of a log, each step under its lock for a moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager

from logstore.checkpoint import marking_failure
from logstore.log.log import Log, SegmentInfo
from logstore.log.segments import offset_checkpoints, replacement
from logstore.log.segments.deleted_files import remove_overdue
from logstore.log.segments.directory import CLEANER_LOCK
from logstore.log.segments.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from logstore.log.segments.segment import Segment


def remove_retired(log: Log) -> int:
    """Remove the files that left the log `file.delete.delay.ms` ago; return how many."""
    return remove_overdue(
        log.env,
        str(log.directory),
        log.files.refresh().aside,
        now_ms=log.env.clock.now_ms(),
        delay_ms=log.config.file_delete_delay_ms,
    )


@contextmanager
def cleaning(log: Log) -> Iterator[bool]:
    """Be the only one that compacts the log; false if another process is at it. Readers and writers go on."""
    lock = log.env.files.lock(log.directory / CLEANER_LOCK, wait=False)
    if lock is None:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def remove_leftovers(log: Log) -> None:
    """Remove what a compaction that was killed has left. By the only one that compacts the log."""
    with log.lock():  # swaps that were decided are finished on entry
        for name in log.files.relist().aside:
            if name.endswith(replacement.CLEANED_SUFFIX):
                log.env.files.unlink(log.directory / name)


def cleaned_offset(log: Log) -> int:
    """Compaction has seen everything below it."""
    return offset_checkpoints.read(log.env, str(log.directory), offset_checkpoints.CLEANED)


def advance_cleaned_offset(log: Log, offset: int) -> None:
    """Note that compaction has seen everything below `offset`."""
    with log.lock(), marking_failure(log.env, log.directory.parent):
        offset_checkpoints.write(log.env, str(log.directory), offset_checkpoints.CLEANED, offset)


def roll_if_due(log: Log, now_ms: int) -> None:
    """Close the active segment if it is as old as an append would let it become: nobody may append any more."""
    with log.lock():
        view = log.files.view
        if view.active is None or not view.tail.position:
            return
        appended_ms = view.active.mtime_ns // 1_000_000
        first_ms = view.tail.first_timestamp_ms
        since_ms = min(first_ms, appended_ms) if first_ms >= 0 else appended_ms
        if now_ms - since_ms > log.config.segment_ms_max:
            log.roll()


def index_bytes(log: Log, info: SegmentInfo) -> int:
    """What the larger of both indexes takes."""
    segment = log.files.segment(info.base_offset)
    return max(segment.index.count() * OFFSET_ENTRY_BYTES, segment.time_index.count() * TIME_ENTRY_BYTES)


def copy_transactions(log: Log, group: Sequence[SegmentInfo], cleaned: Segment, ended: Set[int]) -> None:
    """Give `cleaned` a transaction index if one of the group has one, with the entries whose markers stay."""
    bases = {info.base_offset for info in group}
    if not bases.isdisjoint(log.files.view.transactional):
        aborted = log.aborted_transactions(group[0].base_offset, group[-1].next_offset)
        cleaned.transactions.rewrite(t for t in aborted if t.last_offset in ended)


def replace_segments(log: Log, group: Sequence[SegmentInfo], cleaned: Segment) -> bool:
    """Put `cleaned`, which is durable, in the place of the group; false if the group is not there any more."""
    with log.lock():
        if not _is_there(log, group):
            cleaned.remove()
            return False
        with marking_failure(log.env, log.directory.parent):
            replacement.commit(log.env, str(log.directory), cleaned, [info.base_offset for info in group])
        log.finish_swaps()
        return True


def _is_there(log: Log, group: Sequence[SegmentInfo]) -> bool:
    """Is the group as it was read: retention took nothing of it, and nobody cut the log there?"""
    bases = log.files.view.bases
    if group[0].base_offset not in bases:
        return False
    first = bases.index(group[0].base_offset)
    now = (*bases, -1)[first : first + len(group) + 1]
    return now == (*(info.base_offset for info in group), group[-1].next_offset) and all(
        log.files.segment(info.base_offset).size_bytes() == info.size_bytes for info in group
    )
