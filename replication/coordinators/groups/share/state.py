"""The values of a share group. All are frozen; nothing here decides.

A partition that somebody subscribes to gets a *share state* at another coordinator first: it is *initializing*, then
*initialized*, and only then assigned. The states of a topic whose offsets are deleted are *deleting*.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from replication.coordinators.groups.consumer.state import JOINING, Header, InFlight
from replication.coordinators.groups.keys import NO_KEYS, Key, Kind
from replication.coordinators.groups.offsets.state import Offsets
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
class ShareGroup:
    """One group. Invariant: members, targets and currents have the same keys, once the targets are made."""

    id: str
    epoch: int = 0
    topics_hash: int = 0
    members: Mapping[str, Member] = field(default_factory=dict)
    currents: Mapping[str, Current] = field(default_factory=dict)
    target_epoch: int = 0
    targets: Mapping[str, Pieces] = field(default_factory=dict)
    states: States = NO_STATES
    deadlines_ms: Mapping[str, int] = field(default_factory=dict)  # monotonic: when the session of a member ends
    call: Call | None = None  # one at a time
    calls: int = 0
    call_again_ms: int = 0  # monotonic: when partitions that could not be initialized are tried again
    writes: int = 0
    in_flight: InFlight | None = None
    queue: tuple[Any, ...] = ()  # the events that came since that write began, see `events.Waiting`
    unstored: frozenset[Key] = NO_KEYS  # that the log may have otherwise: they go with the next write
    is_dead: bool = False
    offsets: Offsets = field(default_factory=Offsets)  # there are none

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

    @property
    def keys(self) -> frozenset[Key]:
        """The records that the log may have of the group."""
        return self.unstored | contents(self).keys()


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


def contents(group: ShareGroup) -> dict[Key, Any]:
    """Return all that is stored of a group, by its keys."""
    found: dict[Key, Any] = {}
    if group.epoch:
        found[Key(Kind.SHARE_HEADER)] = Header(group.epoch, group.topics_hash)
        found[Key(Kind.SHARE_TARGET_EPOCH)] = group.target_epoch
    if not group.states.is_empty:
        found[Key(Kind.SHARE_STATES)] = group.states
    for kind, values in _mappings(group):
        found.update((Key(kind, name), value) for name, value in values.items())
    return found


def _mappings(group: ShareGroup) -> Iterable[tuple[Kind, Mapping[str, Any]]]:
    yield Kind.SHARE_MEMBER, group.members
    yield Kind.SHARE_TARGET, group.targets
    yield Kind.SHARE_CURRENT, group.currents


def changed(before: ShareGroup, after: ShareGroup) -> dict[Key, Any]:
    """Return what is stored otherwise of `after` than of `before`; None: its record is deleted."""
    old, new = contents(before), contents(after)
    found = {key: value for key, value in new.items() if old.get(key) != value}
    return {**found, **dict.fromkeys(old.keys() - new.keys())}
