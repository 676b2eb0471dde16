"""SegmentEnd: how far a segment is known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from logstore.config import INT64_MAX
from logstore.log.segments.index import Entry
from logstore.records.batch import NO_TIMESTAMP, BatchHeader

# A batch in a segment: where it begins and ends, its last offset, and its largest timestamp in ms.
Step: TypeAlias = tuple[int, int, int, int]

_new = tuple.__new__  # of a value that has all its fields: a third of the time of its class
NO_TIME = NO_TIMESTAMP - 1  # before all, so that no time index of a segment with batches stays empty


def step(batch: BatchHeader, position: int) -> Step:
    return position, position + batch.size_bytes, batch.last_offset, batch.max_timestamp


class SegmentEnd(NamedTuple):
    """How far a segment is known: everything below `position` is whole batches.

    `damage`: why the walk ended before the end of the file, unless half a batch is there. `index_ok`: the offset index
    fits the log. `timed_entries` counts the time index, whose last entry has `timed_ms`; -1: other processes may have
    added to both indexes, and `indexed_entries` is the least that the offset index has.
    """

    position: int
    next_offset: int
    indexed_position: int = 0
    indexed_entries: int = 0
    first_timestamp_ms: int = -1
    max_timestamp_ms: int = -1
    max_timestamp_offset: int = 0
    index_ok: bool = True
    damage: str | None = None
    timed_entries: int = -1
    timed_ms: int = NO_TIME

    def behind(self, batch: BatchHeader, position: int) -> SegmentEnd:
        """The end behind this batch at `position`, index entries aside."""
        return self.behind_all((step(batch, position),), 0, INT64_MAX)[0]

    def behind_all(
        self, steps: Iterable[Step], segment_base: int, interval_bytes: int
    ) -> tuple[SegmentEnd, list[Entry], list[Entry]]:
        """The end behind these batches, and the entries for both indexes."""
        entries: list[Entry] = []
        times: list[Entry] = []
        # Local names, and one end for all: half of an append of small batches would be spent here.
        end, next_offset, indexed_position, indexed_entries, first_ms, newest_ms, newest_offset = self[:7]
        damage = self.damage
        for position, behind, last_offset, timestamp_ms in steps:
            end, next_offset, damage = behind, last_offset + 1, None
            if not position:
                first_ms = timestamp_ms
            if timestamp_ms > newest_ms:
                newest_ms, newest_offset = timestamp_ms, last_offset
            if position - indexed_position > interval_bytes:
                entries.append((last_offset - segment_base, position))
                times.append((newest_ms, newest_offset - segment_base))
                indexed_position, indexed_entries = position, indexed_entries + 1
        known = (end, next_offset, indexed_position, indexed_entries, first_ms, newest_ms, newest_offset)
        made: SegmentEnd = _new(SegmentEnd, (*known, self.index_ok, damage, self.timed_entries, self.timed_ms))
        return made, entries, times
