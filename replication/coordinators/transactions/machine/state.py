"""The values of a transactional id. All are frozen; nothing here decides.

A *transactional id* is a name that a program keeps over its restarts. Its *producer id and epoch* go with every batch:
a higher epoch fences the lower ones. All times are wall times in milliseconds, since they are stored.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from replication.model.cluster import TopicPartition

NO_ID = NO_EPOCH = NO_TIME = -1
EPOCH_MAX = 2**15 - 1
EPOCH_GIVEN_MAX = EPOCH_MAX - 1  # a producer gets no higher one, so that it can still be fenced
NO_TIMEOUT_MS = 2**31 - 1  # as in Kafka: the transactions of a two-phase commit are never aborted for their age


class Phase(enum.StrEnum):
    """The states of a transaction, by Kafka's names."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"  # decided; some partitions have no marker yet
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"  # every partition has its marker
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"  # unloaded, or forgotten
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"  # never stored here: the epoch goes up with the abort


DECIDED = {
    Phase.PREPARE_COMMIT: Phase.COMPLETE_COMMIT,
    Phase.PREPARE_ABORT: Phase.COMPLETE_ABORT,
}
COMPLETED = frozenset(DECIDED.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Names and defaults as in BrokerConfig."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_two_phase_commit_enable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id and its last transaction.

    Invariants: only ONGOING and a decided one have partitions; `unmarked` is a part of them, and empty while nothing is
    decided; the epoch of a producer id never goes down.
    """

    id: str
    phase: Phase = Phase.EMPTY
    producer_id: int = NO_ID
    producer_epoch: int = NO_EPOCH
    timeout_ms: int = NO_TIME
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    # The id before this one, if the last transaction used up its epochs: for a repeated EndTxn.
    previous_producer_id: int = NO_ID
    # The id and epoch of the producer's next transaction, if these differ from those of its batches.
    next_producer_id: int = NO_ID
    next_producer_epoch: int = NO_EPOCH
    # The epoch of a prepared transaction that a later instance ended: for a repeated EndTxn.
    ended_producer_epoch: int = NO_EPOCH
    version: int = 0  # 2: it ended with a higher epoch than its batches have (KIP-890)
    unknown_tags: tuple[tuple[int, bytes], ...] = ()  # fields that a later release wrote
    # ---- not stored
    previous_producer_epoch: int = NO_EPOCH  # for a repeated InitProducerId
    unmarked: frozenset[TopicPartition] = frozenset()
    storing: Transaction | None = None  # what this becomes once it is stored; DEAD: forgotten

    @property
    def is_blank(self) -> bool:
        """Return whether there is nothing to remember."""
        return self.producer_id == NO_ID and self.storing is None

    @property
    def is_kept(self) -> bool:
        """Return whether a new instance took over a prepared transaction, which it can only end."""
        return self.phase is Phase.ONGOING and self.next_producer_epoch != NO_EPOCH
