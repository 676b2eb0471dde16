"""Acquiring: the records that a member gets, of those that were read.

A batch of the log is given whole where that is allowed, since the client decodes all of it. Records that were
delivered in vain several times are given in ever smaller numbers, and for the last time alone, as in Kafka: one record
that kills its consumers does not take others along.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from replication.broker.share.machine.events import Acquire, AcquiredRange, Range
from replication.broker.share.machine.runs import Run, Runs, changed, overlapping
from replication.broker.share.machine.state import SharePartitionState, ShareTerms
from replication.coordinators.share_state.machine.batches import DeliveryState

THROTTLED_FROM = 2  # deliveries, at the least, before fewer records are given


class Taken(NamedTuple):
    runs: Runs
    ranges: tuple[AcquiredRange, ...]


def acquired(state: SharePartitionState, event: Acquire, now_ms: int, terms: ShareTerms) -> Taken:
    """Return the runs with what the member gets, and its ranges; what is in no batch and aborted is given up."""
    runs = _with_new(state, event, terms)
    end = runs[-1].last if runs else state.start - 1
    runs = changed(runs, ((gap.first, gap.last, _given_up_if_available) for gap in _given_up(event, end)))
    first, last = event.offset, min(event.batches[-1].last, end)
    lock_ms = now_ms + terms.record_lock_duration_ms
    ranges: list[AcquiredRange] = []
    parts: list[tuple[int, int, Callable[[Run], Run]]] = []
    left = event.records_max
    for run in runs[overlapping(runs, first, last)]:
        if left <= 0:
            break
        if not run.is_available:
            continue
        low, high = max(first, run.first), min(last, run.last)
        is_throttled = run.delivery_count >= _throttled_from(terms)
        if is_throttled and ranges:
            break
        limit = min(left, _throttled(high - low + 1, run.delivery_count, terms)) if is_throttled else left
        high = _cut(event, low, high, limit, is_exact=event.is_exact or is_throttled)
        parts.append((low, high, lambda each: _taken(each, event.member, lock_ms)))
        ranges += _ranges(event, low, high, run.delivery_count + 1)
        left -= high - low + 1
        if is_throttled:
            break
    return Taken(changed(runs, parts), tuple(ranges))


def _with_new(state: SharePartitionState, event: Acquire, terms: ShareTerms) -> Runs:
    """Append a run of what was read and nobody has had, as far as more records may be locked."""
    last, end = event.batches[-1].last, state.end
    room = terms.partition_max_record_locks - (end - state.start)
    if last < end or room <= 0:
        return state.runs
    begin = max(end, event.batches[0].first)  # compaction may have left nothing before it
    high = _cut(event, begin, last, min(room, event.records_max), is_exact=event.is_exact)
    return (*state.runs, Run(end, high))


def _given_up(event: Acquire, end: int) -> list[Range]:
    """Return the ranges before the first batch, and those of aborted transactions."""
    begin = event.batches[0].first
    gap = [Range(event.offset, min(begin - 1, end))] if event.offset < begin else []
    return [*gap, *(Range(max(each.first, event.offset), min(each.last, end)) for each in event.aborted)]


def _given_up_if_available(run: Run) -> Run:
    return run._replace(state=DeliveryState.ARCHIVED) if run.is_available else run


def _taken(run: Run, member: str, lock_ms: int) -> Run:
    return Run(run.first, run.last, DeliveryState.ACQUIRED, run.delivery_count + 1, member, lock_ms)


def _cut(event: Acquire, first: int, last: int, limit: int, *, is_exact: bool) -> int:
    """Return the last offset that is given from `first` on; the end of its batch, unless the limit is exact."""
    if last - first < limit:
        return last
    cut = first + limit - 1
    return cut if is_exact else min(last, _end_of_batch(event.batches, cut))


def _end_of_batch(batches: Sequence[Range], offset: int) -> int:
    place = bisect_left(batches, offset, key=lambda batch: batch.last)
    has_it = place < len(batches) and batches[place].first <= offset
    return batches[place].last if has_it else offset


def _ranges(event: Acquire, first: int, last: int, delivery_count: int) -> list[AcquiredRange]:
    """Cut what is given at ends of batches, so that each range has about as many records as the member wants."""
    found, begin = [], first
    if last - first + 1 > event.batch_records and not event.is_exact:
        low = bisect_left(event.batches, first, key=lambda batch: batch.last)
        for batch in event.batches[low:]:
            if begin < batch.first <= last and batch.first - begin >= event.batch_records:
                found.append(AcquiredRange(begin, batch.first - 1, delivery_count))
                begin = batch.first
    return [*found, AcquiredRange(begin, last, delivery_count)]


def _throttled_from(terms: ShareTerms) -> int:
    return max(THROTTLED_FROM, -(-terms.delivery_count_limit // 2))


def _throttled(count: int, delivery_count: int, terms: ShareTerms) -> int:
    """Return how many of these records are given at once."""
    if terms.delivery_count_limit > THROTTLED_FROM and delivery_count >= terms.delivery_count_limit - 1:
        return 1
    return max(1, count >> (delivery_count - _throttled_from(terms) + 1))
