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
    Matched,
    Member,
    changed,
    contents,
    matched,
    subscribed_by_any,
)
from replication.coordinators.groups.keys import NO_KEYS, Key
from replication.coordinators.groups.messages import Answer, Append, Body, Now
from replication.coordinators.groups.offsets.events import ForgetLater
from replication.coordinators.groups.offsets.state import Offsets
from replication.coordinators.groups.pieces import Piece, Pieces
from replication.coordinators.groups.settings import GroupSettings
from replication.model.edit import freeze, thaw

Value = TypeVar("Value")
_TIMES = "deadlines_ms", "revoke_until_ms"
_MAPPINGS = (*("members", "currents", "targets", "regexes", "visible", "unstored", "names"), *_TIMES)


class WorkingGroup:
    id: str
    epoch: int
    topics_hash: int
    members: Mapping[str, Member]
    currents: Mapping[str, Current]
    target_epoch: int
    targets: Mapping[str, Pieces]
    regexes: Mapping[str, Matched]
    visible: Mapping[str, tuple[str, ...]]
    names: frozenset[str] | None
    known_at: int | None
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
        self._matched = group.members, group.visible  # the ones that `regexes` is of
        self._counted = group.members, group.regexes, group.visible  # the ones that `names` is of

    def answer(self, request: int, body: Body) -> None:
        """Answer once all that this event changes is stored."""
        self._answers.append((request, body))

    def refuse(self, request: int, body: Body) -> None:
        """Answer at once."""
        self.effects.append(Answer(request, body))

    def group(self) -> ConsumerGroup:
        self._match()
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
            self.unstored = NO_KEYS
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
        if member_id in self.visible:
            self.visible = without(self.visible, member_id)

    def _match(self) -> None:
        """Have every expression of a member, and no other one, with the topics that any of its members may see."""
        if self._matched[0] is self.members and self._matched[1] is self.visible:
            return
        self._matched = self.members, self.visible
        if not self.regexes and not self.visible:
            return
        found: dict[str, set[str]] = {}
        for member in self.members.values():
            if member.regex:
                found.setdefault(member.regex, set()).update(matched(self, member))
        self.regexes = {
            regex: known
            if (known := self.regexes.get(regex)) is not None and known.topics == topics
            else Matched(topics, self.now.wall_ms)
            for regex, topics in ((regex, tuple(sorted(names))) for regex, names in found.items())
        }

    def subscribed_names(self) -> frozenset[str]:
        """Return the topics that somebody subscribes to: counted anew if a member or an expression has changed."""
        self._match()
        if self.names is None or not self._is_counted():
            self.names = subscribed_by_any(self)
            self._counted = self.members, self.regexes, self.visible
        return self.names

    def _is_counted(self) -> bool:
        members, regexes, visible = self._counted
        return self.members is members and self.regexes is regexes and self.visible is visible

    def limit(self, member_id: str, *, anew: bool) -> None:
        """Give the member its rebalance timeout to do what it must; unless `anew`, it may have begun already."""
        if anew or member_id not in self.revoke_until_ms:
            until_ms = self.now.ms + self.members[member_id].rebalance_timeout_ms
            self.revoke_until_ms = with_one(self.revoke_until_ms, member_id, until_ms)

    def unlimit(self, member_id: str) -> None:
        self.revoke_until_ms = without(self.revoke_until_ms, member_id)

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
