"""A share session of a member with one broker as a pure machine (KIP-932).

Laws: the first request of a session has epoch 0, and names all partitions; each later one has the next epoch, and names
those that have come or gone. An answer that was lost, or any refusal, ends the session: the next request opens another
one, and what was acquired in the old one cannot be acknowledged any more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, assert_never

from replication.errors import ErrorCode

OPENING, CLOSING = 0, -1  # epochs
_EPOCH_MAX = 2**31 - 1


class SharePartition(NamedTuple):
    """A partition as requests of share groups name it."""

    topic_id: str
    partition: int


Partitions = frozenset[SharePartition]


@dataclass(frozen=True, slots=True)
class ShareSession:
    """`epoch` is that of the next request, `number` distinguishes it from earlier sessions; `told` are its partitions.

    Invariant: before it is open, nothing is told.
    """

    number: int = 0
    epoch: int = OPENING
    told: Partitions = frozenset()

    @property
    def is_open(self) -> bool:
        return self.epoch != OPENING


class Asked(NamedTuple):
    """A request of the session, with what it adds and forgets."""

    epoch: int
    added: Partitions = frozenset()
    forgotten: Partitions = frozenset()


class Answered(NamedTuple):
    """The answer to it; `error` is that of the whole request."""

    asked: Asked
    error: ErrorCode


class Lost(NamedTuple):
    """The request was not answered: the broker may have acted on it, or be gone."""


def fetch_of(session: ShareSession, wanted: Partitions) -> Asked:
    """Return the next request that fetches; afterwards the session has the wanted partitions."""
    return Asked(session.epoch, wanted - session.told, session.told - wanted)


def acknowledgement_of(session: ShareSession) -> Asked:
    """Return the next request that only acknowledges."""
    assert session.is_open, "what is acknowledged was acquired in it"
    return Asked(session.epoch)


def closing_of(session: ShareSession) -> Asked:
    """Return the last request of the session: the broker releases what it does not acknowledge."""
    assert session.is_open, "there is something to close"
    return Asked(CLOSING)


def step(session: ShareSession, event: Answered | Lost) -> ShareSession:
    match event:
        case Answered(asked, ErrorCode.NONE) if asked.epoch != CLOSING:
            epoch = 1 if asked.epoch == _EPOCH_MAX else asked.epoch + 1
            return replace(session, epoch=epoch, told=(session.told | asked.added) - asked.forgotten)
        case Answered() | Lost():
            return ShareSession(session.number + 1)
        case _:
            assert_never(event)
