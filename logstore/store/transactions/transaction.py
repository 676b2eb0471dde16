"""Transaction: one writer's part of a batch, as `store.append(..., transaction=...)` uses it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from logstore.errors import PylogError, TransactionAbortedError
from logstore.records.batch import ProducerStamp, sequence_after
from logstore.store.description import TopicDescription
from logstore.store.transactions.state import Content, Partition, Producer, TransactionAttempt

if TYPE_CHECKING:
    from logstore.records.rows import Rows

Part = tuple[int, Any]  # a partition, and the numbers of its rows


class Coordinator(Protocol):
    """The part of `Transactions` that a transaction calls; `Transactions` documents the methods."""

    def register(self, attempt: TransactionAttempt, partitions: tuple[Partition, ...]) -> TransactionAttempt: ...
    def extend(self, attempt: TransactionAttempt, more: tuple[Partition, ...]) -> TransactionAttempt: ...
    def check_open(self, producer: Producer) -> None: ...
    def note_prepared(self, attempt: TransactionAttempt) -> None: ...
    def commit(self, prepared: Iterable[Prepared]) -> Content: ...
    def abort_attempt(self, producer: Producer, *, reason: str) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """One writer's part of a batch, on disk and ready to be committed. `producer` None: it wrote nothing."""

    name: str
    batch_id: int
    run: str
    kept: bool
    producer: Producer | None
    content: Content


class Transaction:
    """One writer's part of a batch. In a `with` block it is committed at the end, or aborted by an exception.

    It registers itself with the first rows. After a failed append it can only be aborted. For one thread at a time.

    `is_replay`: the batch is committed already. Appends write nothing then: their content is compared at the end.
    """

    def __init__(self, owner: Coordinator, attempt: TransactionAttempt, *, kept: bool, is_replay: bool) -> None:
        self._transactions = owner
        self._attempt = attempt
        self._sequences: dict[Partition, int] = {}
        self._topic_ids: dict[str, str] = {}
        self._kept = kept
        self._content = Content()
        self._broken = ""
        self.is_replay = is_replay

    def __repr__(self) -> str:
        broken = f", can only be aborted: {self._broken}" if self._broken else ""
        return f"Transaction({self.name!r}, batch_id={self.batch_id}{', is_replay=True' * self.is_replay}{broken})"

    @property
    def name(self) -> str:
        return self._attempt.name

    @property
    def batch_id(self) -> int:
        return self._attempt.batch_id

    @property
    def run(self) -> str:
        return self._attempt.run

    @property
    def producer(self) -> Producer | None:
        """Producer id and epoch; None before the first append."""
        return self._attempt.producer if self._attempt.producer_id >= 0 else None

    def enlist(self, info: TopicDescription, parts: Sequence[Part]) -> Sequence[Part]:
        """Register these partitions durably before rows are appended there; return those to write, none in a replay.

        `wrote` follows: an append that fails between leaves a transaction that can only be aborted.
        """
        self._check_usable()
        self._topic_ids[info.name] = info.topic_id
        if not self.is_replay:
            self._enlist([(info.name, info.topic_id, partition) for partition, _ in parts])
        self._broken = "an append of it failed"
        return () if self.is_replay else parts

    def wrote(self, info: TopicDescription, rows: Rows) -> None:
        self._broken = ""
        digest = rows.digest(info.name) if self._kept else 0  # a batch that nobody can repeat needs none
        self._content += Content(rows=rows.count, digest=digest)

    def _enlist(self, partitions: Iterable[Partition]) -> None:
        more = tuple(p for p in partitions if p not in self._sequences)
        if more:
            act = self._transactions.register if self.producer is None else self._transactions.extend
            self._attempt = act(self._attempt, more)
            self._sequences.update(dict.fromkeys(more, 0))

    def stamp(self, topic: str, partition: int, rows: int) -> ProducerStamp:
        key = topic, self._topic_ids[topic], partition
        sequence = self._sequences[key]
        self._sequences[key] = sequence_after(sequence, rows)
        return ProducerStamp(*self._attempt.producer, sequence, is_transactional=True)

    def guard(self) -> None:
        """Raise TransactionAbortedError unless it may still write: called under the partition's lock."""
        self._transactions.check_open(self._attempt.producer)

    def _check_usable(self) -> None:
        if self._broken:
            raise TransactionAbortedError(*self._attempt.producer, self._broken)

    def prepare(self) -> Prepared:
        """Flush what it wrote; return what commits it, here or in another process."""
        self._check_usable()
        if self.producer is not None:
            self._transactions.note_prepared(self._attempt)
        return Prepared(
            name=self.name,
            batch_id=self.batch_id,
            run=self.run,
            kept=self._kept,
            producer=self.producer,
            content=self._content,
        )

    def commit(self) -> None:
        """Commit a batch that is this part alone. Raises as `Transactions.commit`."""
        prepared = self.prepare()
        self._broken = "it is over"
        self._transactions.commit([prepared])

    def abort(self, reason: str = "its writer gave it up") -> None:
        self._broken = self._broken or reason
        if self.producer is not None:
            self._transactions.abort_attempt(self.producer, reason=reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort(f"its writer failed: {kind.__name__}")
            return
        try:
            self.commit()
        except BaseException as failure:
            with suppress(PylogError):  # the failure is what matters
                self.abort(f"its commit failed: {type(failure).__name__}")
            raise
