"""The events of a transactional id, and its effects.

`request` is a number that the driver chose for a request; it is answered once, with Answer. The driver performs an
Append and posts its outcome as Stored; it writes the markers of WriteMarkers, however long that takes, and posts Marked
for those that are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from replication.coordinators.transactions.machine.state import NO_EPOCH, NO_ID, Transaction
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialize:
    """A producer begins to use the transactional id: InitProducerId. `fresh_id`: a producer id that nobody has.

    `producer_id` and `producer_epoch`: what it had before, if it goes on.
    """

    request: int
    fresh_id: int
    timeout_ms: int
    producer_id: int = NO_ID
    producer_epoch: int = NO_EPOCH
    is_two_phase: bool = False
    keeps_prepared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """Partitions are to be in the transaction; `is_question`: are they?"""

    request: int
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    is_question: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """`bumps_epoch`: the next transaction has another epoch (KIP-890); then `fresh_id` is there if epochs run out."""

    request: int
    producer_id: int
    producer_epoch: int
    commits: bool
    bumps_epoch: bool = False
    fresh_id: int = NO_ID


@dataclass(frozen=True, slots=True)
class Stored:
    """The outcome of the Append, whose request, if there is one, is answered now."""

    append: Append
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class Marked:
    """Partitions have their markers, or are gone."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed: a transaction may be too old, or what could not be stored may be stored now."""


@dataclass(frozen=True, slots=True)
class Expire:
    """Forget the id if nobody has used it for long."""


@dataclass(frozen=True, slots=True)
class Unloaded:
    """This broker is no longer the coordinator of the id."""


Event: TypeAlias = Initialize | Add | End | Stored | Marked | Ticked | Expire | Unloaded

# ------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Append:
    """Store the transaction; if it is DEAD, delete it. `answer` is given once that is done."""

    stored: Transaction
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    producer_id: int
    producer_epoch: int
    commits: bool
    version: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Answer:
    request: int
    body: Body


@dataclass(frozen=True, slots=True)
class Initialized:
    """Answers Initialize. The last two are of the kept transaction."""

    error: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_ID
    producer_epoch: int = NO_EPOCH
    ongoing_producer_id: int = NO_ID
    ongoing_producer_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class Added:
    """Answers Add: `error` for all, or else `refused`."""

    error: ErrorCode = ErrorCode.NONE
    refused: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ended:
    """Answers End, with what the producer goes on with."""

    error: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_ID
    producer_epoch: int = NO_EPOCH


Body: TypeAlias = Initialized | Added | Ended
Effect: TypeAlias = Append | WriteMarkers | Answer
