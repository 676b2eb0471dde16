"""The events of a share partition, and its effects.

`request` is a number that the driver chose for a request; it is answered once. The driver performs a Store and posts
its outcome as Stored; it has dead letters written for a SendLetters, and posts LettersSent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from replication.coordinators.share_state.machine.batches import Batches
from replication.errors import ErrorCode

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)  # Kafka's types of acknowledgements
# Causes of dead letters, as Kafka 4.4 writes them.
REJECTED, DELIVERED_TOO_OFTEN = "Offset rejected by client.", "Offset delivery count exceeded the threshold."


class Range(NamedTuple):
    """Offsets; `last` is included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquire:
    """A member asks for records; the log was read from `offset` on. Answered at once, with Acquired.

    `batches` are those that were read, in their order, and `aborted` the ranges of aborted transactions among them,
    which nobody gets. `is_exact`: no more than `records_max`, else the last batch is given whole.
    `batch_records`: acquired ranges end where a batch does, and have about so many.
    """

    member: str
    offset: int
    batches: Sequence[Range]
    aborted: Sequence[Range] = ()
    records_max: int
    batch_records: int
    is_exact: bool = False


class Acknowledgement(NamedTuple):
    """`types` has one type for all records, or one for each."""

    first: int
    last: int
    types: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """A member has done with records, as far as all of `acknowledgements` may be; else with none."""

    request: int
    member: str
    acknowledgements: Sequence[Acknowledgement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The member's session is over: others may have its records."""

    request: int
    member: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed: locks may be over."""


@dataclass(frozen=True, slots=True)
class LogStarts:
    """Nothing before this offset is in the log any more."""

    offset: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The outcome of the Store."""

    write: int
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class LettersSent:
    """The dead letters of these records are written, or cannot be. The ranges are in order."""

    ranges: Sequence[Range]


Event: TypeAlias = Acquire | Acknowledge | Release | Ticked | LogStarts | Stored | LettersSent

# ------------------------------------------------------------------- effects


class AcquiredRange(NamedTuple):
    first: int
    last: int
    delivery_count: int


@dataclass(frozen=True, slots=True)
class Acquired:
    ranges: tuple[AcquiredRange, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    request: int
    error: ErrorCode = ErrorCode.NONE
    message: str = ""


@dataclass(frozen=True, slots=True)
class Store:
    """Store what becomes of the partition with this write."""

    write: int
    start_offset: int
    delivery_complete_count: int
    batches: Batches


class SendLetters(NamedTuple):
    """Write dead letters of these records, which are stored as ARCHIVING."""

    first: int
    last: int
    delivery_count: int
    cause: str


Effect: TypeAlias = Acquired | Answer | Store | SendLetters
