"""Isolation: what a reader may see of a log with open or aborted transactions.

A transaction counts when its COMMIT marker is in the log. A stand-alone store decides before it writes markers:
`Outcomes` has its decisions, for transactions that have no marker yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from logstore.config import INT64_MAX, Isolation
from logstore.errors import CorruptLogError, InvalidRequestError, PylogError
from logstore.log.log import Log
from logstore.log.producers.tracker import Undecided
from logstore.log.reader import ReadResult
from logstore.log.segments.index import AbortedTransaction
from logstore.records.batch import InvalidBatchError, batches, check

Outcome = Literal["committed", "aborted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """The decisions at one moment about transactions (producer id, epoch) whose markers may be missing.

    Take them before looking at a log: a transaction that is not here has its marker there, or is open.
    """

    known: Mapping[tuple[int, int], Outcome] = field(default_factory=dict)
    damage: PylogError | None = None

    def outcome(self, producer_id: int, producer_epoch: int) -> Outcome | None:
        """Return "committed" or "aborted"; None: open.

        Raises: CorruptLogError: the journal is damaged.
        """
        if self.damage is not None:
            raise self.damage
        return self.known.get((producer_id, producer_epoch))


ONLY_MARKERS = Outcomes()


def checked(isolation: str) -> Isolation:
    """Return `isolation`, typed. Raises: InvalidRequestError."""
    for known in get_args(Isolation):
        if known == isolation:
            return known  # type: ignore[no-any-return]
    raise InvalidRequestError(f"isolation={isolation!r}: one of {', '.join(get_args(Isolation))}")


def committed_end(log: Log, outcomes: Outcomes = ONLY_MARKERS) -> int:
    """Return the offset below which everything is decided: the last stable offset, or behind it."""
    return _decided_end(log.producers.undecided(), outcomes)


def end_of(log: Log, isolation: Isolation, outcomes: Outcomes = ONLY_MARKERS) -> int:
    """Return the offset up to which a reader of this isolation reads."""
    return committed_end(log, outcomes) if isolation == "read_committed" else log.log_end_offset


def skipped(log: Log, start: int, end: int, outcomes: Outcomes = ONLY_MARKERS) -> tuple[AbortedTransaction, ...]:
    """Return the aborted transactions that have data in [start, end); `end` is at most `committed_end`."""
    # The open ones first: one that gets its marker meanwhile is then found by the second look.
    decided = tuple(
        AbortedTransaction(transaction.producer_id, transaction.first_offset, INT64_MAX, INT64_MAX)
        for transaction in log.producers.open_transactions()
        if transaction.first_offset < end
        and outcomes.outcome(transaction.producer_id, transaction.producer_epoch) == "aborted"
    )
    return (*log.producers.aborted(start, end), *decided)


def committed(
    log: Log, start: int, end: int, outcomes: Outcomes = ONLY_MARKERS
) -> tuple[int, tuple[AbortedTransaction, ...]]:
    """Return the end of what to read of [start, end), and the aborted transactions to leave out."""
    undecided = log.producers.undecided()
    end = min(end, _decided_end(undecided, outcomes))
    return end, skipped(log, start, end, outcomes) if undecided.has_transactions and start < end else ()


def _decided_end(undecided: Undecided, outcomes: Outcomes) -> int:
    for transaction in undecided.opened:
        if outcomes.outcome(transaction.producer_id, transaction.producer_epoch) is None:
            return transaction.first_offset
    return undecided.end


def kept(result: ReadResult, aborted: Sequence[AbortedTransaction]) -> Iterator[ReadResult]:
    """Yield what was read without the batches of aborted transactions: runs of batches, unchanged.

    Raises: CorruptLogError: a header is damaged, or a batch that would be left out.
    """
    begin = 0
    try:
        for position, batch in batches(result.data):
            if not any(transaction.holds(batch) for transaction in aborted):
                continue
            check(result.data, position, batch)
            if position > begin:
                yield _part(result, begin, position)
            begin = position + batch.size_bytes
    except InvalidBatchError as error:
        raise CorruptLogError(result.path, result.position + error.position, error.reason) from error
    if begin < len(result.data):
        yield _part(result, begin, len(result.data))


def _part(result: ReadResult, begin: int, end: int) -> ReadResult:
    return ReadResult(result.data[begin:end], result.path, result.position + begin, result.next_offset)
