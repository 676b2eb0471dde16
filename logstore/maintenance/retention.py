"""Retention: which segments a partition loses, by age, by size, below the log start; and the removal itself.

No thread does this: an append applies retention when it begins a new segment, a store when it is opened and closed, and
jobs do it all. It holds the partition for a few renames; two at once do no harm. The rule, oldest segment first, until
one must stay:

1. A segment below the log start goes, whatever the policy (`delete_records` moved it).
2. With `cleanup.policy=delete` a segment goes when it is older than `retention.ms`, or when the partition without it
   still has `retention.bytes`. The active segment goes by age only, after a roll.
3. With `remote.storage.enable` only what is tiered goes.

The age of a segment is that of its newest record, but a record counts as no newer than its append: dated into the
future it keeps nothing for ever. When a segment was last appended to is the time stamp of its file, which is from a
clock, too: appends follow each other, so a segment is as late as any before it, and a time stamp from the future says
nothing. A wrong time stamp from the past thus makes nothing older than its neighbours. The present time comes from
`maintenance.retention_clock`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise, tee
from typing import NamedTuple

from logstore.config import INT64_MAX, LogConfig
from logstore.errors import InvalidRequestError, OffsetOutOfRangeError
from logstore.log.log import Log
from logstore.log.segments import lookup
from logstore.log.segments.lookup import SegmentInfo
from logstore.log.segments.names import DELETED_FILE
from logstore.log.tiering import tiered_offset
from logstore.maintenance import retention_clock


class Expired(NamedTuple):
    """A segment that goes, and the reason: 'log start', 'retention.ms' or 'retention.bytes'."""

    base_offset: int
    next_offset: int
    size_bytes: int
    reason: str


def ages_ms(segments: Iterable[SegmentInfo], now_ms: int) -> Iterator[int]:
    """The age of every segment, by the rule above; negative for none."""
    appended_ms = -1
    for segment in segments:
        if segment.appended_ms <= now_ms:
            appended_ms = max(appended_ms, segment.appended_ms)
        known_ms = appended_ms if appended_ms >= 0 else now_ms
        newest_ms = segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else known_ms
        yield now_ms - min(newest_ms, known_ms)


def expired(
    segments: Iterable[SegmentInfo], config: LogConfig, *, size_bytes: int, start: int, tiered: int, now_ms: int
) -> list[Expired]:
    """The segments that go, oldest first; the last of `segments` is the active one, and all have `size_bytes`.

    Looks at no more of them than must be.
    """
    found, over_bytes = list[Expired](), size_bytes - config.retention_bytes
    these, those = tee(segments)
    for (segment, following), age_ms in zip(pairwise(chain(these, (None,))), ages_ms(those, now_ms), strict=False):
        assert segment is not None
        reason = _reason(segment, config, start, age_ms, over_bytes, is_active=following is None)
        if reason is None or (config.remote_storage_enable and segment.next_offset > tiered):
            break
        found.append(Expired(segment.base_offset, segment.next_offset, segment.size_bytes, reason))
        over_bytes -= segment.size_bytes
    return found


def _reason(
    segment: SegmentInfo, config: LogConfig, start: int, age_ms: int, over_bytes: int, *, is_active: bool
) -> str | None:
    if segment.next_offset <= start and not is_active:
        return "log start"
    if "delete" not in config.cleanup_policy or segment.size_bytes == 0:
        return None
    if 0 <= config.retention_ms < age_ms:
        return "retention.ms"
    if config.retention_bytes >= 0 and over_bytes >= segment.size_bytes and not is_active:
        return "retention.bytes"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionReport:
    """The segments that retention removed from one partition, or would have removed in a dry run."""

    topic: str
    partition: int
    removed: tuple[Expired, ...]
    log_start_before: int
    log_start_after: int

    @property
    def removed_bytes(self) -> int:
        """Size of the removed segments' logs; their files go after `file.delete.delay.ms`."""
        return sum(segment.size_bytes for segment in self.removed)


def expire(log: Log, *, dry_run: bool = False, is_append: bool = False, upper: int = INT64_MAX) -> RetentionReport:
    """Apply the topic's retention now: see the module for the rule.

    Segments that reach above `upper` (a replica's high watermark) stay. `is_append`: an append waits for this, so it
    costs renames and no flush.
    """
    now_ms = retention_clock.now_ms(log.env, log.directory.parent, read_only=dry_run)
    before = log.log_start_offset
    tiered = tiered_offset(log) if log.config.remote_storage_enable else 0
    # Appends meanwhile make nothing older, and another process that applies retention goes by the same rule.
    found = log.point.look_up(
        lambda view: expired(
            lookup.segment_infos(log.files, view),
            log.config,
            size_bytes=lookup.log_bytes(log.files, view),
            start=before,
            tiered=tiered,
            now_ms=now_ms,
        )
    )
    gone = [segment for segment in found if segment.next_offset <= upper]
    if is_append:
        gone = [segment for segment in gone if segment.next_offset <= log.point.offset]
    after = max([before, *(segment.next_offset for segment in gone)])
    if gone and not dry_run:
        with log.lock():
            if after == log.log_end_offset:  # even the active segment goes
                log.roll()
            after = log.advance_start(after)
    if not dry_run:
        remove_deleted(log)
    topic, _, partition = log.directory.name.rpartition("-")
    return RetentionReport(
        topic=topic,
        partition=int(partition),
        removed=tuple(gone),
        log_start_before=before,
        log_start_after=after,
    )


def deletable_to(log: Log, offset: int) -> int:
    """Return where `offset` (-1: the log's end) would move the log start.

    Raises: OffsetOutOfRangeError: behind the log's end; InvalidRequestError: the topic deletes nothing.
    """
    if "delete" not in log.config.cleanup_policy:
        raise InvalidRequestError(
            f"{log.directory.name}: nothing is deleted by offset, unless cleanup.policy has delete; "
            "in a compacted topic a tombstone (a null value) deletes a key"
        )
    end = log.log_end_offset
    if offset == -1:
        return end
    if not 0 <= offset <= end:
        raise OffsetOutOfRangeError(offset, log.log_start_offset, end, log.directory.name)
    return max(offset, log.log_start_offset)


def remove_deleted(log: Log) -> None:
    """Remove the files that left the log `file.delete.delay.ms` ago, or will have, by a clock that was wrong."""
    now_ms = log.env.clock.now_ms()
    for name in log.files.refresh().aside:
        match = DELETED_FILE.fullmatch(name)
        if match and abs(now_ms - int(match[1])) >= log.config.file_delete_delay_ms:
            log.env.files.unlink(log.directory / name)
