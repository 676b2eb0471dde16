"""The values of a group of the consumer protocol, beyond those of `parts`. All are frozen; nothing here decides.

The *current* assignment of a member is what it may have now, or must give up first.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from replication.coordinators.groups.keys import NO_KEYS, Key, Kind
from replication.coordinators.groups.parts.state import JOINING, Kinds, PartedGroup, contents
from replication.coordinators.groups.pieces import NO_PIECES, Piece, Pieces

LEAVING_FOR_A_WHILE = -2  # a member epoch, beside JOINING and LEAVING
TYPE = "consumer"


class Progress(enum.IntEnum):
    """How far a member is on the way to its target; the numbers are those of Kafka's records."""

    STABLE = 0
    REVOKING = 1  # it must give up partitions first
    WAITING = 2  # others must give up partitions for it


class Phase(enum.StrEnum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"  # the targets are older than the group
    RECONCILING = "Reconciling"  # some member has not reached its target
    STABLE = "Stable"
    DEAD = "Dead"  # unloaded


class ClassicMember(NamedTuple):
    """The part of a member that speaks the classic protocol: the protocols that it supports, with their metadata."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member as it described itself; `regex` is None without one, and `classic` of the consumer protocol."""

    id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMember | None = None

    def session_timeout_ms(self, default_ms: int) -> int:
        return default_ms if self.classic is None else self.classic.session_timeout_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """The assignment of a member: it may read `assigned`, and must give up `revoking`.

    `since`: the assignment epoch of each piece that it holds, which is that of the targets by which it got the piece.
    Nobody else has held the piece since then.
    """

    epoch: int = JOINING
    previous_epoch: int = JOINING
    progress: Progress = Progress.STABLE
    assigned: Pieces = NO_PIECES
    revoking: Pieces = NO_PIECES
    since: Mapping[Piece, int] = field(default_factory=dict)

    @property
    def held(self) -> Pieces:
        return self.assigned | self.revoking

    def holding(self, assigned: Pieces, revoking: Pieces = NO_PIECES) -> Current:
        """Return the same with these of the pieces that it holds."""
        since = {piece: self.since[piece] for piece in assigned | revoking}
        return replace(self, assigned=assigned, revoking=revoking, since=since)


class Matched(NamedTuple):
    """The topics that a regular expression matched for any of its members, sorted; and when (wall time) it did."""

    topics: tuple[str, ...]
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroup(PartedGroup[Member, Current]):
    """One group.

    Invariants: no piece is held by two currents; a current has an assignment epoch for each piece that it holds, and no
    other one; a member REVOKING has a time in `revoke_until_ms`.
    """

    kinds = Kinds(Kind.HEADER, Kind.TARGET_EPOCH, Kind.MEMBER, Kind.TARGET, Kind.CURRENT)
    regexes: Mapping[str, Matched] = field(default_factory=dict)
    # A member sees these topics of its expression, as it was found for its last heartbeats.
    # `regexes` has what any of its members may see; so may all that were not heard since the group was loaded.
    visible: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    names: frozenset[str] | None = None  # the topics that somebody subscribes to; None: not counted yet
    known_at: int | None = None  # `known_at` of the event whose topics the targets were last compared with
    # Monotonic times until when a member must have given up partitions, or, as a classic one, joined again and asked
    # for its assignment.
    revoke_until_ms: Mapping[str, int] = field(default_factory=dict)

    def named_parts(self) -> tuple[tuple[Kind, Mapping[str, Any]], ...]:
        return *PartedGroup.named_parts(self), (Kind.REGEX, self.regexes)

    @property
    def phase(self) -> Phase:
        if self.is_dead:
            return Phase.DEAD
        if not self.members:
            return Phase.EMPTY
        if self.epoch > self.target_epoch:
            return Phase.ASSIGNING
        is_done = all(c.progress is Progress.STABLE and c.epoch == self.target_epoch for c in self.currents.values())
        return Phase.STABLE if is_done else Phase.RECONCILING

    @property
    def keys(self) -> frozenset[Key]:
        """The records that the log may have of the group."""
        coming = self.in_flight.keys if self.in_flight is not None else NO_KEYS
        return self.unstored | coming | contents(self).keys()

    @property
    def is_blank(self) -> bool:
        return not (self.members or self.epoch or self.in_flight or self.unstored) and self.offsets.is_empty

    @property
    def protocol_type(self) -> str:
        return TYPE

    def assignor(self, default: str) -> str:
        return chosen_assignor(self.members.values(), default)


class Subscriptions(Protocol):
    """A group, or its working state."""

    @property
    def members(self) -> Mapping[str, Member]: ...
    @property
    def regexes(self) -> Mapping[str, Matched]: ...
    @property
    def visible(self) -> Mapping[str, tuple[str, ...]]: ...


def matched(group: Subscriptions, member: Member) -> tuple[str, ...]:
    """Return the topics of the member's expression that it may see."""
    if not member.regex:
        return ()
    if (found := group.visible.get(member.id)) is not None:
        return found
    return group.regexes[member.regex].topics if member.regex in group.regexes else ()


def subscribed(group: Subscriptions, member: Member) -> frozenset[str]:
    return frozenset((*member.topics, *matched(group, member)))


def subscribed_by_any(group: Subscriptions) -> frozenset[str]:
    return frozenset().union(*(subscribed(group, member) for member in group.members.values()))


def chosen_assignor(members: Iterable[Member], default: str) -> str:
    """Return the assignor that most members ask for; the default if none does."""
    votes = Counter(member.assignor for member in members if member.assignor)
    return max(sorted(votes), key=votes.__getitem__) if votes else default


def deadline_ms(group: ConsumerGroup) -> int | None:
    """Return the (monotonic) time of the next Ticked that the group needs; None for none.

    While a write is in flight nobody is expelled: whoever waits in the queue has been heard.
    """
    if group.in_flight is not None:
        return None
    return min((*group.deadlines_ms.values(), *group.revoke_until_ms.values()), default=None)
