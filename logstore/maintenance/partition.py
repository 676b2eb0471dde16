"""What compaction does to the files of a log, each step under its lock for a moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from logstore.checkpoint import marking_failure
from logstore.log.log import Log
from logstore.log.segments import offset_checkpoints, replacement
from logstore.log.segments.lookup import SegmentInfo
from logstore.log.segments.names import CLEANED_SUFFIX, CLEANER_LOCK
from logstore.log.segments.segment import Segment


@contextmanager
def cleaning(log: Log) -> Iterator[bool]:
    """Keep other compactions of the log out; yields false if one is at work. Readers and writers go on."""
    lock = log.env.files.lock(log.directory / CLEANER_LOCK, wait=False)
    if lock is None:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def remove_leftovers(log: Log) -> None:
    """Remove what a killed compaction left. Only inside `cleaning`."""
    with log.lock():  # swaps that were decided are finished on entry
        for name in log.files.relist().aside:
            if name.endswith(CLEANED_SUFFIX):
                log.env.files.unlink(log.directory / name)


def cleaned_offset(log: Log) -> int:
    """Compaction has seen everything below it."""
    return offset_checkpoints.read(log.env, str(log.directory), offset_checkpoints.CLEANED)


def advance_cleaned_offset(log: Log, offset: int) -> None:
    """Note that compaction has seen everything below `offset`."""
    with log.lock(), marking_failure(log.env, log.directory.parent):
        offset_checkpoints.write(log.env, str(log.directory), offset_checkpoints.CLEANED, offset)


def roll_if_due(log: Log, now_ms: int) -> None:
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
            replacement.commit(log.env, str(log.directory), cleaned, [info.base_offset for info in group])
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
