"""A member of a group whose coordinator assigns partitions (KIP-848) as a pure machine, as `membership` is.

Laws: it takes partitions, and gives them up, only while its program polls. The heartbeat that lacks a partition is sent
after the program has finished with it; so another member gets it only after the offsets of this one were committed. A
heartbeat names all that the member may still hand out. An answer about an earlier epoch is ignored. When the group
no longer knows its epoch, it has lost its partitions, and joins again with the same id.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import NamedTuple, assert_never

from replication.client.membership import Assign, Closed, Effect, Fail, Leave, Lose, Polled, PollLate, Revoke, Tps
from replication.errors import ErrorCode

JOINING_EPOCH = 0
_NOTHING: Tps = frozenset()
_EXPELLED = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})


class Phase(enum.Enum):
    """OUT: joins at the next poll. JOINING: no heartbeat was answered yet. IN: it has an epoch."""

    OUT = enum.auto()
    JOINING = enum.auto()
    IN = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMembership:
    """`target` was assigned last; `owned` is read. `moving`: the target that the due effects lead to; None: none are.

    `told` is what the coordinator was told of; None: nothing, so it is told all. Invariant: out, it has no partitions.
    """

    id: str
    is_static: bool = False
    phase: Phase = Phase.OUT
    epoch: int = JOINING_EPOCH
    target: Tps = _NOTHING
    owned: Tps = _NOTHING
    moving: Tps | None = None
    told: Tps | None = None

    @property
    def held(self) -> Tps:
        """All that its program may still be given."""
        return self.owned | (self.moving or _NOTHING)

    @property
    def has_news(self) -> bool:
        """Its next heartbeat should not wait."""
        return self.phase is Phase.JOINING or (self.phase is Phase.IN and self.told not in (None, self.held))

    @property
    def needs_poll(self) -> bool:
        """There is something to do that only a poll does."""
        return self.phase is Phase.IN and self.moving is None and self.target != self.owned


class Heartbeat(NamedTuple):
    """A heartbeat to send. `owned` None: as told before. `is_whole`: with all that a join has."""

    epoch: int
    owned: Tps | None
    is_whole: bool


class Answered(NamedTuple):
    """The answer to a heartbeat; `assigned` None: as before."""

    asked: Heartbeat
    error: ErrorCode
    epoch: int = JOINING_EPOCH
    assigned: Tps | None = None
    message: str = ""


class Unanswered(NamedTuple):
    """A heartbeat was not answered: the coordinator may have heard it, or be another one now."""


class Refused(NamedTuple):
    """A commit, or a look for offsets, of this epoch was refused."""

    epoch: int
    error: ErrorCode


Event = Polled | Answered | Unanswered | Refused | PollLate | Closed
Stepped = tuple[ConsumerMembership, tuple[Effect, ...]]


def step(m: ConsumerMembership, event: Event) -> Stepped:
    """The member after the event, and what has to be done, in this order, before it is told `Polled` again."""
    match event:
        case Polled():
            return _polled(m)
        case Answered(asked, error):
            if m.phase is Phase.OUT or asked.epoch != m.epoch:
                return m, ()
            return _heard(m, event) if error is ErrorCode.NONE else _refused(m, error, event.message)
        case Unanswered():
            return replace(m, told=None), ()
        case Refused(epoch, error):
            is_expelled = error in _EXPELLED and m.phase is Phase.IN and epoch == m.epoch
            return _refused(m, error) if is_expelled else (m, ())
        case PollLate():
            return _out(m), _losing(m)  # it has left, or does so at once: the program is not there to do it
        case Closed():
            revoke = (Revoke(m.held),) if m.held else ()
            leave = (Leave(m.id),) if m.phase is not Phase.OUT else ()
            return m, (*revoke, *leave)
        case _:
            assert_never(event)


def heartbeat_of(m: ConsumerMembership) -> Heartbeat | None:
    """The next heartbeat; None: it is out."""
    match m.phase:
        case Phase.OUT:
            return None
        case Phase.JOINING:
            return Heartbeat(JOINING_EPOCH, _NOTHING, is_whole=True)
        case Phase.IN:
            return Heartbeat(m.epoch, None if m.told == m.held else m.held, is_whole=m.told is None)


def _polled(m: ConsumerMembership) -> Stepped:
    if m.phase is Phase.OUT:
        return replace(m, phase=Phase.JOINING), ()
    if m.moving is not None:
        m = replace(m, owned=m.moving, moving=None)
    if not m.needs_poll:
        return m, ()
    gone, new = m.owned - m.target, m.target - m.owned
    revoke, assign = (Revoke(gone),) if gone else (), (Assign(new),) if new else ()
    return replace(m, moving=m.target), (*revoke, *assign)


def _heard(m: ConsumerMembership, answer: Answered) -> Stepped:
    told = m.told if answer.asked.owned is None else answer.asked.owned
    target = m.target if answer.assigned is None else answer.assigned
    return replace(m, phase=Phase.IN, epoch=answer.epoch, target=target, told=told), ()


def _refused(m: ConsumerMembership, error: ErrorCode, message: str = "") -> Stepped:
    if error in _EXPELLED:
        return _out(m), _losing(m)
    return _out(m), (*_losing(m), Fail(error, message))


def _out(m: ConsumerMembership) -> ConsumerMembership:
    return ConsumerMembership(id=m.id, is_static=m.is_static)


def _losing(m: ConsumerMembership) -> tuple[Effect, ...]:
    return (Lose(m.held),) if m.held else ()
