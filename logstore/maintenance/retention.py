"""Which segments a partition may let go of: by age, by size, below the log start. Decides, touches nothing.

The rule, oldest segment first, until one must stay:

1. What lies below the log start goes, whatever the policy (`delete_records` moved it).
2. With `cleanup.policy=delete` a segment goes when it is older than `retention.ms`, or when the partition
   without it still has `retention.bytes`. The active segment goes by age only, after a roll.
3. With `remote.storage.enable` only what is tiered goes.

The age of a segment is that of its newest record, but a record counts as no newer than its append: dated into
the future it keeps nothing for ever. When a segment was last appended to is the time stamp of its file, which
is from a clock, too: appends follow each other, so a segment is as late as any before it, and a time stamp
from the future says nothing. A wrong time stamp from the past thus makes nothing older than its neighbours.
What time it is now is `maintenance.retention_clock`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from logstore.config import LogConfig


class SegmentFacts(NamedTuple):
    """One segment: offsets [base_offset, next_offset); `max_timestamp_ms` is -1 without records of any time."""

    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp_ms: int
    appended_ms: int


class Expired(NamedTuple):
    """A segment that goes, and why: 'log start', 'retention.ms' or 'retention.bytes'."""

    base_offset: int
    next_offset: int
    size_bytes: int
    reason: str


def ages_ms(segments: Sequence[SegmentFacts], now_ms: int) -> list[int]:
    """The age of every segment, by the rule above; negative for none."""
    ages, appended_ms = list[int](), -1
    for segment in segments:
        if segment.appended_ms <= now_ms:
            appended_ms = max(appended_ms, segment.appended_ms)
        known_ms = appended_ms if appended_ms >= 0 else now_ms
        newest_ms = segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else known_ms
        ages.append(now_ms - min(newest_ms, known_ms))
    return ages


def expired(
    segments: Sequence[SegmentFacts], config: LogConfig, *, start: int, tiered: int, now_ms: int
) -> list[Expired]:
    """The segments to let go of, oldest first; the last of `segments` is the active one."""
    found = list[Expired]()
    over_bytes = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    for segment, age_ms in zip(segments, ages_ms(segments, now_ms), strict=True):
        is_active = segment is segments[-1]
        reason = _reason(segment, config, start, age_ms, over_bytes, is_active=is_active)
        if reason is None or (config.remote_storage_enable and segment.next_offset > tiered):
            break
        found.append(Expired(*segment[:3], reason))
        over_bytes -= segment.size_bytes
    return found


def _reason(
    segment: SegmentFacts, config: LogConfig, start: int, age_ms: int, over_bytes: int, *, is_active: bool
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
