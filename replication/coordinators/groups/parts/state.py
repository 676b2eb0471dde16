"""The values of a group that is stored in parts. All are frozen; nothing here decides.

The *target* of a member is what it is to have in the end, its *current* assignment what it may have now. A *member
epoch* says how far a member has come: at the epoch of the targets it has learned the latest one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from replication.coordinators.groups.keys import NO_KEYS, Key, Kind
from replication.coordinators.groups.messages import Body
from replication.coordinators.groups.offsets.state import Offsets
from replication.coordinators.groups.pieces import Pieces

JOINING, LEAVING = 0, -1  # member epochs with a meaning of their own
AnyMember = TypeVar("AnyMember")
AnyCurrent = TypeVar("AnyCurrent")


class Header(NamedTuple):
    """The epoch of a group, and the hash of the topics that its targets are made for."""

    epoch: int
    topics_hash: int


class InFlight(NamedTuple):
    """The write that is in flight, and the requests that are answered with it. `number` counts writes."""

    number: int
    keys: frozenset[Key]
    answers: tuple[tuple[int, Body], ...]


class Kinds(NamedTuple):
    """The types of the records that a group has: two of itself, and three of each member."""

    header: Kind
    target_epoch: Kind
    member: Kind
    target: Kind
    current: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedGroup(Generic[AnyMember, AnyCurrent]):
    """Invariant: members, targets and currents have the same keys, once the targets are made."""

    kinds: ClassVar[Kinds]
    id: str
    epoch: int = 0
    topics_hash: int = 0
    members: Mapping[str, AnyMember] = field(default_factory=dict)
    currents: Mapping[str, AnyCurrent] = field(default_factory=dict)
    target_epoch: int = 0
    targets: Mapping[str, Pieces] = field(default_factory=dict)
    deadlines_ms: Mapping[str, int] = field(default_factory=dict)  # monotonic: when the session of a member ends
    writes: int = 0
    in_flight: InFlight | None = None
    queue: tuple[Any, ...] = ()  # the events that came since that write began, see `Waiting` of the group's events
    unstored: frozenset[Key] = NO_KEYS  # that the log may have otherwise: they go with the next write
    is_dead: bool = False
    offsets: Offsets = field(default_factory=Offsets)

    def single_parts(self) -> tuple[tuple[Kind, Any], ...]:
        """Return the parts that are of no member; None: there is none of this type."""
        header = Header(self.epoch, self.topics_hash) if self.epoch else None
        return (self.kinds.header, header), (self.kinds.target_epoch, self.target_epoch if self.epoch else None)

    def named_parts(self) -> tuple[tuple[Kind, Mapping[str, Any]], ...]:
        """Return the parts that are named by a member or a regular expression."""
        kinds = self.kinds
        return (kinds.member, self.members), (kinds.target, self.targets), (kinds.current, self.currents)


AnyParted = PartedGroup[Any, Any]


def contents(group: AnyParted) -> dict[Key, Any]:
    """Return all that is stored of a group, by its keys."""
    found = {Key(kind): value for kind, value in group.single_parts() if value is not None}
    for kind, values in group.named_parts():
        found.update((Key(kind, name), value) for name, value in values.items())
    return found


def changed(before: AnyParted, after: AnyParted) -> dict[Key, Any]:
    """Return what is stored otherwise of `after` than of `before`; None: its record is deleted."""
    found = {
        Key(kind): new
        for (kind, old), (_, new) in zip(before.single_parts(), after.single_parts(), strict=True)
        if old != new
    }
    for (kind, olds), (_, news) in zip(before.named_parts(), after.named_parts(), strict=True):
        if olds is not news:
            for name, value in news.items():
                if (former := olds.get(name)) is not value and former != value:
                    found[Key(kind, name)] = value
            found.update((Key(kind, name), None) for name in olds if name not in news)
    return found


def fields_of(kinds: Kinds, values: Mapping[Key, Any], blank: Any) -> dict[str, Any]:
    """Return the fields of the group of these values; a member without a current assignment gets the blank one."""
    members, targets, currents = (named(kind, values) for kind in (kinds.member, kinds.target, kinds.current))
    return {
        **values.get(Key(kinds.header), Header(0, 0))._asdict(),
        "members": members,
        "currents": {name: currents.get(name, blank) for name in members},
        "target_epoch": values.get(Key(kinds.target_epoch), 0),
        "targets": {name: pieces for name, pieces in targets.items() if name in members},
    }


def named(kind: Kind, values: Mapping[Key, Any]) -> dict[str, Any]:
    return {key.of: value for key, value in values.items() if key.kind is kind}
