"""Verdicts: which transactional and control batches stay in a compaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from logstore.log.log import Log
from logstore.log.segments.index import AbortedTransaction
from logstore.log.segments.lookup import SegmentInfo
from logstore.maintenance.compaction_plan import Plan
from logstore.records.batch import DELETE_HORIZON, BatchHeader

if TYPE_CHECKING:
    from logstore.records.compaction import Fate


class Verdicts:
    """Decides about transactional and control batches of a plan, in the order of the log."""

    def __init__(self, log: Log, planned: Plan, now_ms: int) -> None:
        start, end = planned.segments[0].base_offset, planned.segments[-1].next_offset
        self._aborted = defaultdict[int, list[AbortedTransaction]](list)  # by producer
        for aborted in log.producers.aborted(start, end):
            self._aborted[aborted.producer_id].append(aborted)
        self._now_ms = now_ms
        self._with_batches: set[int] = set()  # producers whose transaction has batches, if empty ones
        self._ended: set[int] = set()  # offsets of the markers that stay
        producers = log.producers.states()
        self.needed = {batch.last_offset for state in producers for batch in state.batches}
        # Only a marker has the epoch of a producer without data in that epoch.
        self._only_markers = {(s.producer_id, s.epoch) for s in producers if not s.batches}

    def has_no_data(self, header: BatchHeader) -> bool:
        """True for control batches, and for data of an aborted transaction."""
        return header.is_control or self._is_aborted(header)

    def _is_aborted(self, header: BatchHeader) -> bool:
        known = self._aborted.get(header.producer_id, ()) if header.is_transactional else ()
        return any(aborted.holds(header) for aborted in known)

    def aborted_in(self, group: Sequence[SegmentInfo]) -> list[AbortedTransaction]:
        """The aborted transactions whose markers are in these segments, and stay."""
        start, end = group[0].base_offset, group[-1].next_offset
        found = (t for known in self._aborted.values() for t in known)
        ended = [t for t in found if start <= t.last_offset < end and t.last_offset in self._ended]
        return sorted(ended, key=lambda transaction: transaction.last_offset)

    def is_dropped(self, header: BatchHeader) -> bool:
        """True for data of an aborted transaction; remembers that the transaction has a batch."""
        if header.is_transactional:
            self._with_batches.add(header.producer_id)
        return self._is_aborted(header)

    def fate(self, header: BatchHeader) -> Fate:
        """A marker goes when it has been the last of its transaction for `delete.retention.ms`.

        A batch that stays empty needs it, too: else its transaction would seem to be open.
        """
        from logstore.records.compaction import Fate

        has_batches = header.producer_id in self._with_batches
        self._with_batches.discard(header.producer_id)
        is_needed = has_batches or (header.producer_id, header.producer_epoch) in self._only_markers
        is_marked = header.attributes & DELETE_HORIZON
        if is_marked and not is_needed and self._now_ms >= header.base_timestamp:
            return Fate.GO
        self._ended.add(header.base_offset)
        return Fate.STAY if is_marked or is_needed or not header.count else Fate.WAIT
