"""The plan of a compaction: what of a log may be rewritten.

Made once for a round. The rewritten part ends below the first open transaction, so nothing in the plan can change but
that segments leave the log, which `compaction.replace_segments` notices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from logstore.config import INT32_MAX, INT64_MAX, LogConfig
from logstore.log.log import Log
from logstore.log.segments import lookup, offset_checkpoints
from logstore.log.segments.directory import DirectoryView
from logstore.log.segments.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from logstore.log.segments.lookup import SegmentInfo
from logstore.log.tiering import tiered_offset
from logstore.maintenance.retention import ages_ms


class Plan(NamedTuple):
    """The segments that may be compacted, and offsets: compaction has seen everything below `dirty`."""

    segments: tuple[SegmentInfo, ...]
    dirty: int
    upper: int
    clean_bytes: int
    dirty_bytes: int
    oldest_dirty_ms: int

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def not_due(self, config: LogConfig, now_ms: int) -> str | None:
        """Why there is nothing to do; None if there is."""
        if not config.is_compacted:
            return "cleanup.policy is not compact"
        if not self.dirty_bytes:
            return "nothing is dirty"
        if now_ms - self.oldest_dirty_ms > config.max_compaction_lag_ms:
            return None
        if self.ratio <= config.min_cleanable_dirty_ratio:
            return f"dirty ratio {self.ratio:.2f} is not above {config.min_cleanable_dirty_ratio:g}"
        return None


def plan(log: Log, now_ms: int, upper: int) -> Plan:
    """Plan the compaction of the log below `upper`, from one look at it."""
    stable = min(log.producers.last_stable_offset, upper)
    if log.config.remote_storage_enable:
        stable = min(stable, tiered_offset(log))
    return log.point.look_up(lambda view: _plan(log, view, stable, now_ms))


def groups(log: Log, segments: tuple[SegmentInfo, ...]) -> Iterator[list[SegmentInfo]]:
    """Split into runs that fit into one segment, as they are now."""
    bytes_max, index_bytes_max = log.config.segment_bytes, log.config.segment_index_bytes
    group = list[SegmentInfo]()
    size_bytes = indexed_bytes = 0
    for segment in segments:
        stored = log.files.segment(segment.base_offset)
        more = max(stored.index.count() * OFFSET_ENTRY_BYTES, stored.time_index.count() * TIME_ENTRY_BYTES)
        is_full = group and (
            size_bytes + segment.size_bytes > bytes_max
            or indexed_bytes + more > index_bytes_max
            or segment.next_offset - 1 - group[0].base_offset > INT32_MAX
        )
        if is_full:
            yield group
            group, size_bytes, indexed_bytes = [], 0, 0
        group.append(segment)
        size_bytes, indexed_bytes = size_bytes + segment.size_bytes, indexed_bytes + more
    if group:
        yield group


def _plan(log: Log, view: DirectoryView, stable: int, now_ms: int) -> Plan:
    files, config = log.files, log.config
    segments = tuple(lookup.segment_infos(files, view))
    lag_ms = min(config.min_compaction_lag_ms, config.max_compaction_lag_ms)
    dirty = max(offset_checkpoints.read(log.env, files.path, offset_checkpoints.CLEANED), view.local_start)
    count = 0
    for segment, age_ms in zip(segments[:-1], ages_ms(segments, now_ms), strict=False):
        is_young = lag_ms > 0 and age_ms < lag_ms and segment.next_offset > dirty
        if segment.next_offset > stable or is_young:
            break
        count += 1
    chosen = tuple(s for s in segments[:count] if s.next_offset > view.local_start)
    upper = chosen[-1].next_offset if chosen else dirty
    dirty = min(dirty, upper)
    return Plan(
        chosen,
        dirty,
        upper,
        lookup.bytes_between(files, view, chosen[0].base_offset, dirty) if chosen else 0,
        lookup.bytes_between(files, view, dirty, upper) if dirty < upper else 0,
        min((_first_ms(s) for s in chosen if s.next_offset > dirty), default=INT64_MAX),
    )


def _first_ms(segment: SegmentInfo) -> int:
    """The time of the first batch of a segment, at most that of its last append."""
    first_ms = segment.first_timestamp_ms
    return min(first_ms, segment.appended_ms) if first_ms >= 0 else segment.appended_ms
