"""Ranges of offsets of a share partition, each with one delivery state and count."""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

NO_OFFSET = -1


class DeliveryState(enum.IntEnum):
    """Kafka's numbers. ACQUIRED is never stored; ARCHIVING is, before a dead letter is written."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class StateBatch(NamedTuple):
    """`last` is included."""

    first: int
    last: int
    state: int
    delivery_count: int


Batches: TypeAlias = tuple[StateBatch, ...]


def combined(stored: Batches, newer: Sequence[StateBatch], start_offset: int) -> Batches:
    """Return what holds from `start_offset` on: ordered, disjoint, and neighbours that are alike made one.

    `stored` is such a value. Where batches overlap, the higher delivery count counts, then the higher state: so a write
    that is repeated, or comes late, undoes nothing.
    """
    kept = _clipped(stored, start_offset)
    fresh = _clipped(newer, start_offset)
    if not fresh:
        return tuple(kept)
    first, last = min(one.first for one in fresh), max(one.last for one in fresh)
    low = bisect_left(kept, first - 1, key=lambda one: one.last)
    high = bisect_left(kept, last + 2, key=lambda one: one.first)
    return (*kept[:low], *_swept([*kept[low:high], *fresh]), *kept[high:])


def _clipped(batches: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    return [
        one if one.first >= start_offset else one._replace(first=start_offset)
        for one in batches
        if one.last >= start_offset
    ]


def _swept(batches: Iterable[StateBatch]) -> list[StateBatch]:
    """Go through the ends of all batches in order, with those that are open there."""
    ends: list[tuple[int, int, tuple[int, int]]] = []
    for first, last, state, count in batches:
        ends += [(first, 1, (count, state)), (last + 1, -1, (count, state))]
    ends.sort()
    found: list[StateBatch] = []
    opened: Counter[tuple[int, int]] = Counter()
    begin, best = NO_OFFSET, None
    for offset, change, rank in ends:
        if best is not None and offset > begin:
            _add(found, StateBatch(begin, offset - 1, best[1], best[0]))
        opened[rank] += change
        if not opened[rank]:
            del opened[rank]
        begin, best = offset, max(opened, default=None)
    return found


def _add(found: list[StateBatch], batch: StateBatch) -> None:
    if found and found[-1].last + 1 == batch.first and found[-1][2:] == batch[2:]:
        batch = found.pop()._replace(last=batch.last)
    found.append(batch)
