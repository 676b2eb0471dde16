"""A member of a consumer group as a pure machine: `step(membership, event) -> membership, effects`.

Laws: a member joins only while its program polls. With a cooperative assignor it keeps its partitions while the group
is divided again, and gives up only those that its new assignment lacks; then it joins once more, so that another one
gets them. With an eager one it gives up all before it joins. A broker's answer about an earlier generation is ignored.
Effects are performed in their order: partitions are given up before the join that says so is sent.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, assert_never

from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition

Tps = frozenset[TopicPartition]
NO_GENERATION = -1


class Phase(enum.Enum):
    """OUT: joins at the next poll. JOINING, SYNCING: a request is on its way. STABLE: it has its partitions."""

    OUT = enum.auto()
    JOINING = enum.auto()
    SYNCING = enum.auto()
    STABLE = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Invariant: `must_rejoin` only in STABLE; with an eager assignor `owned` is empty but in STABLE."""

    is_cooperative: bool
    is_static: bool = False
    phase: Phase = Phase.OUT
    id: str = ""
    generation: int = NO_GENERATION
    is_leader: bool = False
    must_rejoin: bool = False
    owned: Tps = frozenset()


class Polled(NamedTuple):
    """The program polls: its listener may be called."""


class Joined(NamedTuple):
    """The answer to a join; `members` are there for the leader: (id, instance, metadata)."""

    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()


class Divided(NamedTuple):
    """The leader has decided who gets what."""

    assignments: Mapping[str, bytes]


class Synced(NamedTuple):
    """The answer to a sync."""

    error: ErrorCode
    given: Tps = frozenset()


class Unanswered(NamedTuple):
    """A join or sync was not answered in time."""


class HeartbeatAnswered(NamedTuple):
    """The answer to a heartbeat or commit of this generation."""

    generation: int
    error: ErrorCode


class PollLate(NamedTuple):
    """The program has not polled for max.poll.interval.ms."""


class TopicsChanged(NamedTuple):
    """A topic has got more partitions."""


class Closed(NamedTuple):
    """The program is done."""


Event = Polled | Joined | Divided | Synced | Unanswered | HeartbeatAnswered | PollLate | TopicsChanged | Closed


class Join(NamedTuple):
    """Send a join."""


class Divide(NamedTuple):
    """Decide who gets what; the event `Divided` has the result."""

    members: tuple[tuple[str, str | None, bytes], ...]


class Sync(NamedTuple):
    """Send a sync with these assignments."""

    assignments: Mapping[str, bytes]


class Revoke(NamedTuple):
    """Commit what the program has had of these, call its listener, and forget them."""

    tps: Tps


class Lose(NamedTuple):
    """Others may have these by now: call the listener, and forget them."""

    tps: Tps


class Assign(NamedTuple):
    """Begin to read these."""

    tps: Tps


class Leave(NamedTuple):
    """Tell the group that this member is gone."""

    member_id: str


class Fail(NamedTuple):
    """Tell the program that it cannot be a member."""

    error: ErrorCode
    message: str = ""


Effect = Join | Divide | Sync | Revoke | Lose | Assign | Leave | Fail
Stepped = tuple[Membership, tuple[Effect, ...]]


def step(m: Membership, event: Event) -> Stepped:  # noqa: PLR0911  a line for each event
    """The member after the event, and what has to be done, in this order."""
    match event:
        case Polled():
            return _polled(m)
        case Joined():
            return _joined(m, event)
        case Divided(assignments):
            return m, (Sync(assignments),)
        case Synced(error, given):
            return _refused(m, error) if error else _synced(m, given)
        case Unanswered():
            return replace(m, phase=Phase.OUT), ()
        case HeartbeatAnswered(generation, error):
            return _refused(m, error) if error and generation == m.generation else (m, ())
        case PollLate():
            return _out(m), _losing(m)  # it has left, or does so at once: the program is not there to do it
        case TopicsChanged():
            return replace(m, must_rejoin=m.phase is Phase.STABLE), ()
        case Closed():
            revoke = (Revoke(m.owned),) if m.owned else ()
            return m, (*revoke, *_leaving(m))
        case _:
            assert_never(event)


def _polled(m: Membership) -> Stepped:
    if m.phase is not Phase.OUT and not m.must_rejoin:
        return m, ()
    if m.is_cooperative or not m.owned:
        return replace(m, phase=Phase.JOINING, must_rejoin=False), (Join(),)
    return replace(m, phase=Phase.JOINING, must_rejoin=False, owned=frozenset()), (Revoke(m.owned), Join())


def _joined(m: Membership, answer: Joined) -> Stepped:
    if answer.error is ErrorCode.MEMBER_ID_REQUIRED:  # the same join again, as somebody whom the group knows
        return replace(m, id=answer.member_id), (Join(),)
    if answer.error is not ErrorCode.NONE:
        return _refused(m, answer.error)
    is_leader = answer.leader == answer.member_id
    m = replace(m, phase=Phase.SYNCING, id=answer.member_id, generation=answer.generation, is_leader=is_leader)
    return m, (Divide(answer.members) if is_leader else Sync({}),)


def _synced(m: Membership, given: Tps) -> Stepped:
    gone, new = m.owned - given, given - m.owned
    effects: tuple[Effect, ...] = (Revoke(gone),) if gone else ()
    m = replace(m, phase=Phase.STABLE, owned=given, must_rejoin=bool(gone))
    return m, (*effects, Assign(new))


def _refused(m: Membership, error: ErrorCode) -> Stepped:
    match error:
        case ErrorCode.REBALANCE_IN_PROGRESS if m.phase is Phase.STABLE:
            return replace(m, must_rejoin=True), ()
        case ErrorCode.REBALANCE_IN_PROGRESS:
            return replace(m, phase=m.phase if m.phase is Phase.JOINING else Phase.OUT), ()
        case ErrorCode.ILLEGAL_GENERATION:
            return replace(_out(m), id=m.id), _losing(m)
        case ErrorCode.UNKNOWN_MEMBER_ID:
            return _out(m), _losing(m)
        case _:
            return _out(m), (*_losing(m), Fail(error))


def _out(m: Membership) -> Membership:
    return Membership(is_cooperative=m.is_cooperative, is_static=m.is_static)


def _losing(m: Membership) -> tuple[Effect, ...]:
    return (Lose(m.owned),) if m.owned else ()


def _leaving(m: Membership) -> tuple[Effect, ...]:
    """A static member stays until its session ends: it may come back."""
    return (Leave(m.id),) if m.id and not m.is_static else ()
