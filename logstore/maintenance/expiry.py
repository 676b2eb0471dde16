"""Keeping house in a partition: retention, deleted records, and the files that have been left behind.

There is no thread: an append keeps house when it begins a new segment, a store when it is opened and closed,
and jobs do it all. Whoever does it holds the partition for a few renames; two at once do no harm.
"""

from __future__ import annotations

from dataclasses import dataclass

from logstore.config import INT64_MAX
from logstore.errors import InvalidRequestError, OffsetOutOfRangeError
from logstore.log.log import Log
from logstore.maintenance import partition as partition_maintenance
from logstore.maintenance import retention_clock
from logstore.maintenance.retention import Expired, SegmentFacts, expired


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionReport:
    """What retention did to one partition, or (`dry_run`) would have done."""

    topic: str
    partition: int
    dry_run: bool
    removed: tuple[Expired, ...]
    log_start_before: int
    log_start_after: int

    @property
    def removed_bytes(self) -> int:
        """Size of the removed segments' logs; their files go after `file.delete.delay.ms`."""
        return sum(segment.size_bytes for segment in self.removed)


def expire(
    log: Log, *, dry_run: bool = False, is_append: bool = False, upper: int = INT64_MAX
) -> RetentionReport:
    """Let go of what the topic's retention allows, now. See `logstore.maintenance.retention` for the rule.

    Nothing goes that reaches above `upper` (a replica's high watermark). `is_append`: an append waits for this, so only
    what costs it no more than renames: nothing is flushed.
    """
    now_ms = retention_clock.now_ms(log.env, log.directory.parent, read_only=dry_run)
    before = log.log_start_offset
    # Who appends meanwhile makes nothing older; who keeps house as well goes by the same rule.
    gone = [segment for segment in _expired(log, now_ms) if segment.next_offset <= upper]
    if is_append:
        gone = [segment for segment in gone if segment.next_offset <= log.recovery_point]
    after = max([before, *(segment.next_offset for segment in gone)])
    if gone and not dry_run:
        with log.lock():
            if after == log.log_end_offset:  # even the active segment goes
                log.roll()
            after = log.advance_start(after)
    if not dry_run:
        partition_maintenance.remove_retired(log)
    topic, _, partition = log.directory.name.rpartition("-")
    return RetentionReport(
        topic=topic,
        partition=int(partition),
        dry_run=dry_run,
        removed=tuple(gone),
        log_start_before=before,
        log_start_after=after,
    )


def _expired(log: Log, now_ms: int) -> list[Expired]:
    """The segments that may go."""
    facts = [
        SegmentFacts(
            info.base_offset, info.next_offset, info.size_bytes, info.max_timestamp_ms, info.appended_ms
        )
        for info in log.segments()
    ]
    tiered = log.tiered_offset if log.config.remote_storage_enable else 0
    return expired(facts, log.config, start=log.log_start_offset, tiered=tiered, now_ms=now_ms)


def deletable_to(log: Log, offset: int) -> int:
    """Return where `offset` (-1: the log's end) would move the log start.

    Raises: OffsetOutOfRangeError: behind the log's end; InvalidRequestError: the topic is only compacted.
    """
    if "delete" not in log.config.cleanup_policy:
        raise InvalidRequestError(
            f"{log.directory.name}: records of a compacted topic are deleted by tombstones (a null value); "
            "to delete by offset, set cleanup.policy=compact,delete"
        )
    end = log.log_end_offset
    if offset == -1:
        return end
    if not 0 <= offset <= end:
        raise OffsetOutOfRangeError(offset, log.log_start_offset, end, log.directory.name)
    return max(offset, log.log_start_offset)
