"""AcquiredRecords: records that brokers have locked for a member, on their way to its program.

Laws: records are handed out while their locks last, and become deliveries then. Each acquired offset that is not handed
out is a gap, or is released. Nothing here is an object for each record.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from logstore.config import INT64_MAX
from logstore.errors import CorruptLogError
from logstore.records import batch as batches
from logstore.records.arrow import decode_pieces, whole_bytes
from replication.client.deliveries import (
    NO_OFFSETS,
    Acknowledgement,
    Acquired,
    Deliveries,
    Delivery,
    Due,
    Kind,
    Lease,
    clipped,
    counts_of,
    gaps_of,
)
from replication.client.reading import named
from replication.model.cluster import TopicPartition

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Answer:
    """Records of a partition, in one answer; others may acquire them from `until_s` on.

    Those below `position` are dealt with; none at or behind `read_end` came.
    """

    tp: TopicPartition
    topic_id: str
    lease: Lease
    pieces: Iterator[pa.RecordBatch]
    acquired: tuple[Acquired, ...]
    read_end: int
    until_s: float
    position: int = 0

    def due(self, said: tuple[Acknowledgement, ...]) -> Due:
        return Due(self.tp, self.topic_id, self.lease, said, self.until_s)


class AcquiredRecords:
    """See the module. `owe` takes what is acknowledged without a word of the program."""

    def __init__(self, where: str, owe: Callable[[Iterable[Due]], None]) -> None:
        self._where, self._owe = where, owe
        self._answers: deque[_Answer] = deque()
        self.deliveries = Deliveries()

    def __bool__(self) -> bool:
        return bool(self._answers)

    @property
    def leases(self) -> set[Lease]:
        """Those of records that are here, or that the program has still to decide about."""
        return {each.lease for each in self._answers} | self.deliveries.leases

    def drop(self, lease: Lease) -> None:
        """Forget the records of this lease, which has ended."""
        self._answers = deque(each for each in self._answers if each.lease != lease)

    def add(self, row: Any, tp: TopicPartition, topic_id: str, *, lease: Lease, until_s: float) -> None:
        """Add what a row of an answer to ShareFetch has acquired."""
        stop, last = whole_bytes(row.records, len(row.records))
        pieces = decode_pieces(row.records[:stop], start=0, end=INT64_MAX, where=(f"{tp} at {self._where}", 0))
        read_end = batches.header_at(row.records, last).next_offset if stop else 0
        ranges = ((each.first_offset, each.last_offset, each.delivery_count) for each in row.acquired_records)
        acquired = tuple(Acquired(*each) for each in sorted(ranges))
        self._answers.append(_Answer(tp, topic_id, lease, pieces, acquired, read_end, until_s))

    def take(self, now_s: float) -> pa.RecordBatch | None:
        """Return the next records, all of one partition.

        Raises: CorruptLogError: these and the following records of the answer are released.
        """
        while self._answers:
            answer = self._answers[0]
            if answer.until_s <= now_s:
                logger.warning("tp=%s records were not polled while they were locked: others get them", answer.tp)
                self._answers.popleft()
                continue
            try:
                piece = next(answer.pieces, None)
            except CorruptLogError:
                answer.read_end = answer.position
                self._finish(self._answers.popleft())
                raise
            if piece is None:
                self._finish(self._answers.popleft())
            elif (rows := self._handed_out(answer, piece)) is not None:
                return rows
        return None

    def _handed_out(self, answer: _Answer, piece: pa.RecordBatch) -> pa.RecordBatch | None:
        offsets = piece.column("offset").to_numpy()
        if not len(offsets):
            return None
        begin, answer.position = answer.position, int(offsets[-1]) + 1
        if answer.position > answer.acquired[-1].last:
            self._answers.popleft()
        acquired = clipped(answer.acquired, begin, answer.position)
        is_acquired, counts = counts_of(offsets, acquired)
        offsets = offsets[is_acquired]
        gaps = gaps_of(offsets, acquired, answer.position)
        if not len(offsets):
            self._owe([answer.due(gaps)] if gaps else ())
            return None
        kinds = np.full(len(offsets), Kind.UNDECIDED, np.int8)
        until_s = np.full(len(offsets), answer.until_s)
        self.deliveries.add(Delivery(answer.tp, answer.topic_id, answer.lease, offsets, kinds, until_s, gaps))
        if len(offsets) < piece.num_rows:
            piece = piece.filter(pa.array(is_acquired))
        return named(piece, answer.tp).append_column("delivery_count", pa.array(counts))

    def _finish(self, answer: _Answer) -> None:
        rest = gaps_of(NO_OFFSETS, clipped(answer.acquired, answer.position, INT64_MAX), answer.read_end)
        self._owe([answer.due(rest)] if rest else ())
