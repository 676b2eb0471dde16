"""WorkingGroup: a group while one event is processed, and the resulting effects. Mappings are replaced, never changed.

`done` adds the write of all that changed. One write at a time is in flight, and nothing changes meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from replication.coordinators.groups.consumer.events import AppendConsumer, ConsumerChange
from replication.coordinators.groups.consumer.state import (
    ConsumerGroup,
    Current,
    InFlight,
    Key,
    Matched,
    Member,
    Piece,
    Pieces,
    changed,
    contents,
    subscribed,
)
from replication.coordinators.groups.messages import Answer, Append, Body, Now
from replication.coordinators.groups.offsets.events import ForgetLater
from replication.coordinators.groups.offsets.state import Offsets
from replication.coordinators.groups.settings import GroupSettings
from replication.model.edit import freeze, thaw

Value = TypeVar("Value")
_MAPPINGS = (*("members", "currents", "targets", "regexes", "deadlines_ms", "revoke_until_ms", "unstored", "names"),)


class WorkingGroup:
    id: str
    epoch: int
    topics_hash: int
    members: Mapping[str, Member]
    currents: Mapping[str, Current]
    target_epoch: int
    targets: Mapping[str, Pieces]
    regexes: Mapping[str, Matched]
    names: frozenset[str] | None
    deadlines_ms: Mapping[str, int]
    revoke_until_ms: Mapping[str, int]
    writes: int
    in_flight: InFlight | None
    queue: tuple[Any, ...]
    unstored: frozenset[Key]
    is_dead: bool
    offsets: Offsets

    def __init__(self, group: ConsumerGroup, now: Now, limits: GroupSettings) -> None:
        thaw(group, self, shared=_MAPPINGS)
        self.before = group
        self.now = now
        self.limits = limits
        self.effects: list[Append | Answer | ForgetLater] = []
        self._answers: list[tuple[int, Body]] = []
        self._counted = group.members, group.regexes  # the ones that `names` is of

    def answer(self, request: int, body: Body) -> None:
        """Answer once all that this event changes is stored."""
        self._answers.append((request, body))

    def refuse(self, request: int, body: Body) -> None:
        """Answer at once."""
        self.effects.append(Answer(request, body))

    def group(self) -> ConsumerGroup:
        if not self._is_counted():
            self.names = None
        return freeze(ConsumerGroup, self)

    def done(self) -> tuple[ConsumerGroup, tuple[Append | Answer | ForgetLater, ...]]:
        after = self.group()
        values = changed(self.before, after)
        assert self.in_flight is None or not (values or self._answers), "it waits in the queue"
        if not values and not (self.unstored and self._answers):
            self.effects += [Answer(request, body) for request, body in self._answers]
            return after, tuple(self.effects)
        if self.unstored:
            present = contents(after)
            values = {**{key: present.get(key) for key in self.unstored}, **values}
            self.unstored = frozenset()
        self.writes += 1
        self.in_flight = InFlight(self.writes, frozenset(values), tuple(self._answers))
        self.effects.append(AppendConsumer(ConsumerChange(self.writes), values))
        return self.group(), tuple(self.effects)

    def put(self, member: Member, current: Current) -> None:
        """Replace what is known of a member."""
        if self.members.get(member.id) != member:
            self.members = {**self.members, member.id: member}
        if self.currents.get(member.id) != current:
            self.currents = {**self.currents, member.id: current}

    def remove(self, member_id: str) -> None:
        """Forget a member: what it held is free."""
        self.members = without(self.members, member_id)
        self.currents = without(self.currents, member_id)
        self.targets = without(self.targets, member_id)
        self.deadlines_ms = without(self.deadlines_ms, member_id)
        self.revoke_until_ms = without(self.revoke_until_ms, member_id)
        used = {member.regex for member in self.members.values()}
        if not self.regexes.keys() <= used:
            self.regexes = {regex: found for regex, found in self.regexes.items() if regex in used}

    def subscribed_names(self) -> frozenset[str]:
        """Return the topics that somebody subscribes to: counted anew if a member or an expression has changed."""
        if self.names is None or not self._is_counted():
            self.names = frozenset().union(*(subscribed(each, self.regexes) for each in self.members.values()))
            self._counted = self.members, self.regexes
        return self.names

    def _is_counted(self) -> bool:
        members, regexes = self._counted
        return self.members is members and self.regexes is regexes

    def static_member(self, instance_id: str) -> Member | None:
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def is_free(self, piece: Piece, member_id: str) -> bool:
        """Does nobody else hold the piece?"""
        return not any(
            piece in other.assigned or piece in other.revoking
            for other_id, other in self.currents.items()
            if other_id != member_id
        )


def without(values: Mapping[str, Value], name: str) -> Mapping[str, Value]:
    return {key: value for key, value in values.items() if key != name} if name in values else values


def with_one(values: Mapping[Any, Value], name: Any, value: Value) -> Mapping[Any, Value]:
    return values if values.get(name) == value else {**values, name: value}
