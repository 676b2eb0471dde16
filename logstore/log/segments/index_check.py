"""IndexCheck: whether the two indexes of a segment fit its batches."""

from __future__ import annotations

from itertools import pairwise

from logstore.config import LogConfig
from logstore.log.segments.index import Entry
from logstore.log.segments.segment_reader import SegmentReader
from logstore.records.batch import NO_TIMESTAMP, BatchHeader


class IndexCheck:
    """Compares every batch of a segment with its indexes, from the start or from an indexed batch on.

    Entries of batches before that one count as right.
    """

    def __init__(
        self, segment: SegmentReader, *, is_sealed: bool, position: int = 0, offset: int | None = None
    ) -> None:
        self._base_offset = segment.base_offset
        first = 0 if offset is None else offset - segment.base_offset
        offsets, times = segment.index.entries(), segment.time_index.entries()
        self._is_sorted = _increases(offsets) and _increases(times) and not any(p <= 0 for _, p in offsets)
        self._positions = {at: relative for relative, at in offsets if at >= position}
        self._times = {relative: timestamp for timestamp, relative in times if relative >= first}
        self._newest_entry_ms = times[-1][0] if times else NO_TIMESTAMP - 1
        self._last_position = offsets[-1][1] if offsets else 0
        earlier = [timestamp for timestamp, relative in times if relative < first]
        self._newest_ms = self._needed_ms = earlier[-1] if earlier else NO_TIMESTAMP - 1
        self._is_sealed = is_sealed

    def apply(self, position: int, batch: BatchHeader) -> None:
        relative = batch.last_offset - self._base_offset
        self._newest_ms = max(self._newest_ms, batch.max_timestamp)
        if position in self._positions:
            if self._positions[position] == relative:
                del self._positions[position]
            self._needed_ms = self._newest_ms
        if self._times.get(relative) == self._newest_ms == batch.max_timestamp:
            del self._times[relative]

    def fit(self, size_bytes: int, config: LogConfig) -> bool:
        """True if every entry had its batch, and the entries reach the end of the log file."""
        needed_ms = self._newest_ms if self._is_sealed and size_bytes else self._needed_ms
        is_whole = self._newest_entry_ms >= needed_ms and not is_short(self._last_position, size_bytes, config)
        return self._is_sorted and is_whole and not self._positions and not self._times


def is_short(indexed_position: int, size_bytes: int, config: LogConfig) -> bool:
    """True if an index ends too far before its log: an interval and two batches may follow the last entry."""
    return size_bytes - indexed_position > 2 * config.batch_bytes_max + config.index_interval_bytes


def _increases(entries: list[Entry]) -> bool:
    return all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
