"""The words that the machines of a group share: the time of an event, the outcome of an append, and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from replication.errors import ErrorCode


class Now(NamedTuple):
    """The time of an event: `ms` is monotonic and measures waits; `wall_ms` is stored."""

    ms: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class Write:
    """The purpose of an Append."""


@dataclass(frozen=True, slots=True)
class Append:
    """Store records, all or none."""

    write: Write


@dataclass(frozen=True, slots=True)
class Appended:
    """The outcome of an Append: the offset of its first record in the log, or an error."""

    write: Write
    error: ErrorCode = ErrorCode.NONE
    position: int = -1


@dataclass(frozen=True, slots=True)
class Body:
    """The answer to one kind of request."""


@dataclass(frozen=True, slots=True)
class Answer:
    request: int
    body: Body


@dataclass(frozen=True, slots=True)
class Done(Body):
    error: ErrorCode = ErrorCode.NONE
