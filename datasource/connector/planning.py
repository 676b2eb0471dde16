"""Ranges of offsets: bounded by a trigger, narrowed by row filters, packed into Spark tasks.

All functions are pure; lookups in the log (batch boundaries, sizes) come in as functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, TypeVar

from datasource.connector.options import TaskLimits
from datasource.topics.interface import PartitionRange

# A Spark task costs tens of milliseconds however little it reads; 8 MiB of log take about as long to read.
TASK_BYTES = 8 * 1024 * 1024
TASK_RECORDS = 100_000

Key = TypeVar("Key")


def proportional(backlog: Mapping[Key, int], limit: int) -> dict[Key, int]:
    """Split `limit` over the keys by their backlog; the shares sum to min(limit, total) exactly.

    The rest after rounding down goes to the largest fractions, one each, so no share exceeds its backlog.
    """
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    shares = {key: limit * size // total for key, size in backlog.items()}
    left = limit - sum(shares.values())
    by_fraction = sorted(backlog, key=lambda key: limit * backlog[key] % total, reverse=True)
    for key in by_fraction[:left]:
        shares[key] += 1
    return shares


def limited(ranges: Iterable[PartitionRange], max_offsets: int | None) -> list[PartitionRange]:
    """Return the ranges shortened at their ends, so that they hold at most `max_offsets` together."""
    ranges = list(ranges)
    if max_offsets is None:
        return ranges
    shares = proportional({(r.topic, r.partition): r.count for r in ranges}, max_offsets)
    return [replace(r, end=r.start + shares[r.topic, r.partition]) for r in ranges]


def is_worth_a_batch(count: int, min_offsets: int | None, waited_ms: int, max_delay_ms: int) -> bool:
    return min_offsets is None or count >= min_offsets or waited_ms >= max_delay_ms


def tasks(
    ranges: Iterable[PartitionRange],
    limits: TaskLimits,
    *,
    floor_batch: Callable[[PartitionRange, int], int],
    size_bytes: Callable[[PartitionRange], int],
) -> list[tuple[PartitionRange, ...]]:
    """Pack ranges into tasks: long ones cut as `limits` say, short ones of a quiet topic put together.

    `floor_batch(range, offset)` is the base offset of the batch that holds `offset`: a cut there decodes no
    batch twice. Every offset of `ranges` is in exactly one task; within a partition the order is kept.
    """
    pieces = [r for r in sorted(ranges) if r.count]
    if limits.max_records:
        pieces = [piece for r in pieces for piece in _cut_every(r, limits.max_records, floor_batch)]
    if limits.min_partitions and len(pieces) < limits.min_partitions:
        # The wanted number of pieces, if there are as many offsets; each range is cut in proportion to its length.
        spare = proportional({r: r.count - 1 for r in pieces}, limits.min_partitions - len(pieces))
        return [(piece,) for r in pieces for piece in _cut_evenly(r, 1 + spare[r], floor_batch)]
    packed = _pack(pieces, min(limits.max_records or TASK_RECORDS, TASK_RECORDS), size_bytes)
    if limits.min_partitions and len(packed) < limits.min_partitions:
        return [(piece,) for piece in pieces]
    return packed


def _cut_every(
    r: PartitionRange, count: int, floor_batch: Callable[[PartitionRange, int], int]
) -> list[PartitionRange]:
    """Return pieces of at most `count` offsets, cut where a batch begins if one does."""
    pieces = []
    while r.count > count:
        nominal = r.start + count
        cut = floor_batch(r, nominal)
        cut = cut if r.start < cut <= nominal else nominal
        pieces.append(replace(r, end=cut))
        r = replace(r, start=cut)
    return [*pieces, r]


def _cut_evenly(
    r: PartitionRange, parts: int, floor_batch: Callable[[PartitionRange, int], int]
) -> list[PartitionRange]:
    cuts = [r.start]
    for i in range(1, parts):
        nominal = r.start + r.count * i // parts
        cut = floor_batch(r, nominal)
        cuts.append(cut if cuts[-1] < cut <= nominal else nominal)
    return [replace(r, start=start, end=end) for start, end in pairwise([*cuts, r.end])]


def _pack(
    pieces: Iterable[PartitionRange], max_records: int, size_bytes: Callable[[PartitionRange], int]
) -> list[tuple[PartitionRange, ...]]:
    """Put neighbours into one task while they are small together."""
    packed: list[list[PartitionRange]] = []
    records = size = 0
    for piece in pieces:
        piece_bytes = size_bytes(piece)
        records, size = records + piece.count, size + piece_bytes
        if packed and records <= max_records and size <= TASK_BYTES:
            packed[-1].append(piece)
        else:
            packed.append([piece])
            records, size = piece.count, piece_bytes
    return [tuple(pieces) for pieces in packed]


@dataclass(frozen=True, slots=True)
class Filter:
    """One conjunct on a column, named as Spark's classes: EqualTo, In, GreaterThan, ..., StringStartsWith."""

    kind: str
    column: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of the rows that can pass all filters; Spark applies the filters again, row by row."""

    filters: tuple[Filter, ...] = ()

    def allows(self, topic: str, partition: int) -> bool:
        """May this partition hold such rows?"""
        values = {"topic": topic, "partition": partition}
        return all(_passes(f, values[f.column]) for f in self.filters if f.column in values)

    def offsets(self, start: int, end: int) -> tuple[int, int]:
        """Return [start, end) narrowed to the offsets that such rows can have."""
        for f in self.filters:
            if f.column == "offset":
                low, high = _interval(f)
                start = start if low is None else max(start, low)
                end = end if high is None else min(end, high)
        return start, max(start, end)

    @property
    def timestamp_ms(self) -> int | None:
        """The lowest timestamp of such rows; None: unknown.

        There is no highest one: writers set timestamps, and the last record may have an early one.
        """
        lows = []
        for f in self.filters:
            if f.column == "timestamp" and (low := _interval(_in_ms(f))[0]) is not None:
                lows.append(low)
        return max(lows, default=None)


def _passes(f: Filter, value: Any) -> bool:
    match f.kind:
        case "EqualTo" | "EqualNullSafe":
            return bool(value == f.value)
        case "In":
            return value in f.value
        case "StringStartsWith":
            return bool(value.startswith(f.value))
        case "StringEndsWith":
            return bool(value.endswith(f.value))
        case "StringContains":
            return f.value in value
    if not isinstance(value, int):
        return True
    low, high = _interval(f)
    return (low is None or low <= value) and (high is None or value < high)


def _interval(f: Filter) -> tuple[int | None, int | None]:
    """Return the whole numbers [low, high) that can pass; None: unbounded."""
    match f.kind:
        case "EqualTo" | "EqualNullSafe" if f.value is not None:
            return f.value, f.value + 1
        case "In" if values := [v for v in f.value or () if v is not None]:
            return min(values), max(values) + 1
        case "GreaterThan":
            return f.value + 1, None
        case "GreaterThanOrEqual":
            return f.value, None
        case "LessThan":
            return None, f.value
        case "LessThanOrEqual":
            return None, f.value + 1
    return None, None


def _in_ms(f: Filter) -> Filter:
    """Return the filter in whole milliseconds, or one that passes more (Spark's are in microseconds)."""
    try:
        if isinstance(f.value, datetime):
            return replace(f, value=_floor_ms(f.value))
        if f.kind == "In":
            return replace(f, value=[_floor_ms(v) for v in f.value if isinstance(v, datetime)])
    except (ValueError, OverflowError):  # in the first or last year: no offset to UTC is known
        pass
    return Filter("", f.column, None)


def _floor_ms(moment: datetime) -> int:
    return int(moment.replace(microsecond=0).timestamp()) * 1000 + moment.microsecond // 1000
