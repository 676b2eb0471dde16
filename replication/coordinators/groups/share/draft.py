"""WorkingShare: a share group while one event is processed, and the effects. Mappings are replaced, never changed.

`done` adds the write of all that changed. One write at a time is in flight, and nothing changes meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from replication.coordinators.groups.consumer.draft import without
from replication.coordinators.groups.consumer.state import InFlight
from replication.coordinators.groups.keys import NO_KEYS, Key
from replication.coordinators.groups.messages import Answer, Append, Body, Now
from replication.coordinators.groups.offsets.state import Offsets
from replication.coordinators.groups.pieces import Piece, Pieces
from replication.coordinators.groups.settings import GroupSettings
from replication.coordinators.groups.share.events import AppendShare, AskStates, ShareChange
from replication.coordinators.groups.share.state import (
    Call,
    Current,
    Member,
    Purpose,
    ShareGroup,
    States,
    changed,
    contents,
)
from replication.model.edit import freeze, thaw

Effect: TypeAlias = Append | Answer | AskStates
_DELETIONS = Purpose.DELETE, Purpose.DELETE_GROUP
_MAPPINGS = "members", "currents", "targets", "deadlines_ms", "unstored"


class WorkingShare:
    id: str
    epoch: int
    topics_hash: int
    members: Mapping[str, Member]
    currents: Mapping[str, Current]
    target_epoch: int
    targets: Mapping[str, Pieces]
    states: States
    deadlines_ms: Mapping[str, int]
    call: Call | None
    calls: int
    call_again_ms: int
    writes: int
    in_flight: InFlight | None
    queue: tuple[Any, ...]
    unstored: frozenset[Key]
    is_dead: bool
    offsets: Offsets

    def __init__(self, group: ShareGroup, now: Now, limits: GroupSettings) -> None:
        thaw(group, self, shared=_MAPPINGS)
        self.before = group
        self.now = now
        self.limits = limits
        self.effects: list[Effect] = []
        self._answers: list[tuple[int, Body]] = []

    def answer(self, request: int, body: Body) -> None:
        """Answer once all that this event changes is stored."""
        self._answers.append((request, body))

    def refuse(self, request: int, body: Body) -> None:
        """Answer at once."""
        self.effects.append(Answer(request, body))

    def group(self) -> ShareGroup:
        return freeze(ShareGroup, self)

    def done(self) -> tuple[ShareGroup, tuple[Effect, ...]]:
        after = self.group()
        values = changed(self.before, after)
        assert self.in_flight is None or not (values or self._answers), "it waits in the queue"
        is_needed = self._answers or (self.call is not None and not self.call.is_begun)
        if not values and not (self.unstored and is_needed):
            self.effects += [Answer(request, body) for request, body in self._answers]
            self.begin_call()
            return self.group(), tuple(self.effects)
        if self.unstored:
            present = contents(after)
            values = {**{key: present.get(key) for key in self.unstored}, **values}
            self.unstored = NO_KEYS
        self.writes += 1
        self.in_flight = InFlight(self.writes, frozenset(values), tuple(self._answers))
        self.effects.append(AppendShare(ShareChange(self.writes), values))
        return self.group(), tuple(self.effects)

    def ask_states(
        self, purpose: Purpose, starts: Mapping[Piece, int], names: Mapping[str, str], request: int | None = None
    ) -> None:
        """Ask the share states once all that this event changes is stored."""
        assert self.call is None, "one question at a time"
        self.calls += 1
        self.call = Call(self.calls, purpose, starts, names, request)

    def begin_call(self) -> None:
        call = self.call
        if call is None or call.is_begun or self.in_flight is not None or self.is_dead:
            return
        self.call = call._replace(is_begun=True)
        topics = self.states.topics  # others have gone meanwhile
        starts = {piece: start for piece, start in call.starts.items() if piece.topic_id in topics}
        self.effects.append(AskStates(call.number, starts, self.epoch, call.purpose in _DELETIONS))

    def put(self, member: Member, current: Current) -> None:
        """Replace what is known of a member."""
        self.members = {**self.members, member.id: member}
        self.currents = {**self.currents, member.id: current}

    def remove(self, member_id: str) -> None:
        """Forget a member; the next heartbeat of another one makes new targets."""
        self.members = without(self.members, member_id)
        self.currents = without(self.currents, member_id)
        self.targets = without(self.targets, member_id)
        self.deadlines_ms = without(self.deadlines_ms, member_id)
        self.epoch += 1
        if not self.members:
            self.target_epoch = self.epoch  # nobody is there to be assigned anything
