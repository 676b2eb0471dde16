"""The values of a share group, beyond those of `parts`. All are frozen; nothing here decides.

A partition that somebody subscribes to gets a *share state* at another coordinator first: it is *initializing*, then
*initialized*, and only then assigned. The states of a topic whose offsets are deleted are *deleting*.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from replication.coordinators.groups.keys import Kind
from replication.coordinators.groups.parts.state import JOINING, Kinds, PartedGroup
from replication.coordinators.groups.pieces import NO_PIECES, Piece, Pieces
from replication.errors import ErrorCode

TYPE = "share"


class Phase(enum.StrEnum):
    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"  # unloaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member as it described itself."""

    id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """The assignment of a member, in its epoch."""

    epoch: int = JOINING
    previous_epoch: int = JOINING
    assigned: Pieces = NO_PIECES


class TopicStates(NamedTuple):
    """The partitions of a topic, by its name, that have a state."""

    name: str
    partitions: frozenset[int]


ByTopic: TypeAlias = Mapping[str, TopicStates]  # by topic id
NO_TOPICS: ByTopic = MappingProxyType({})


class States(NamedTuple):
    """The share states of a group; `deleting` has the names of topics by their ids."""

    initializing: ByTopic = NO_TOPICS
    initialized: ByTopic = NO_TOPICS
    deleting: Mapping[str, str] = MappingProxyType({})

    @property
    def is_empty(self) -> bool:
        return not (self.initializing or self.initialized or self.deleting)

    @property
    def topics(self) -> frozenset[str]:
        """The ids of the topics."""
        return frozenset((*self.initializing, *self.initialized, *self.deleting))

    @property
    def names(self) -> frozenset[str]:
        """The names of the topics."""
        topics = (*self.initializing.values(), *self.initialized.values())
        return frozenset((*self.deleting.values(), *(topic.name for topic in topics)))


NO_STATES = States()


class Purpose(enum.Enum):
    INITIALIZE = enum.auto()  # partitions that somebody subscribes to
    ALTER = enum.auto()
    DELETE = enum.auto()  # the states of topics
    DELETE_GROUP = enum.auto()


class Call(NamedTuple):
    """A question to the share states; it begins once the group is stored that it is for.

    `starts`: where partitions begin; those of a deletion have no start that counts. `request` is answered with its
    outcome; None: nobody waits for it.
    """

    number: int
    purpose: Purpose
    starts: Mapping[Piece, int]
    names: Mapping[str, str]
    request: int | None = None
    refused: Mapping[Piece, ErrorCode] = MappingProxyType({})  # goes with the outcome
    is_begun: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroup(PartedGroup[Member, Current]):
    """One group. There are no `offsets`."""

    kinds = Kinds(Kind.SHARE_HEADER, Kind.SHARE_TARGET_EPOCH, Kind.SHARE_MEMBER, Kind.SHARE_TARGET, Kind.SHARE_CURRENT)
    states: States = NO_STATES
    call: Call | None = None  # one at a time
    calls: int = 0
    call_again_ms: int = 0  # monotonic: when partitions that could not be initialized are tried again

    def single_parts(self) -> tuple[tuple[Kind, Any], ...]:
        states = None if self.states.is_empty else self.states
        return *PartedGroup.single_parts(self), (Kind.SHARE_STATES, states)

    @property
    def phase(self) -> Phase:
        if self.is_dead:
            return Phase.DEAD
        return Phase.STABLE if self.members else Phase.EMPTY

    @property
    def is_blank(self) -> bool:
        is_used = self.members or self.epoch or self.in_flight or self.unstored or self.call
        return not is_used and self.states.is_empty

    @property
    def protocol_type(self) -> str:
        return TYPE


def deadline_ms(group: ShareGroup) -> int | None:
    """Return the (monotonic) time of the next Ticked that the group needs; None for none."""
    return None if group.in_flight is not None else min(group.deadlines_ms.values(), default=None)


def pieces_of(topics: ByTopic) -> Pieces:
    return frozenset(Piece(topic_id, number) for topic_id, found in topics.items() for number in found.partitions)


def with_pieces(topics: ByTopic, names: Mapping[str, str], pieces: Iterable[Piece]) -> ByTopic:
    """Add these partitions of topics with these names (by their ids)."""
    found = dict(topics)
    for topic_id, number in pieces:
        known = found.get(topic_id) or TopicStates(names[topic_id], frozenset())
        found[topic_id] = known._replace(partitions=known.partitions | {number})
    return found


def without_pieces(topics: ByTopic, pieces: Pieces) -> ByTopic:
    left = {
        topic_id: found._replace(partitions=frozenset(n for n in found.partitions if Piece(topic_id, n) not in pieces))
        for topic_id, found in topics.items()
    }
    return {topic_id: found for topic_id, found in left.items() if found.partitions}
