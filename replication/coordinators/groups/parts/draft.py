"""WorkingParts: a group that is stored in parts, while one event is processed, and the resulting effects.

Mappings are replaced, never changed. `done` adds the write of all that changed: one at a time is in flight, and nothing
changes meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, TypeVar

from replication.coordinators.groups.keys import NO_KEYS, Key
from replication.coordinators.groups.messages import Answer, Append, Body, Now, Write
from replication.coordinators.groups.offsets.state import Offsets
from replication.coordinators.groups.parts.events import AppendParts, PartsChange
from replication.coordinators.groups.parts.state import AnyParted, InFlight, changed, contents
from replication.coordinators.groups.pieces import Pieces
from replication.coordinators.groups.settings import GroupSettings
from replication.errors import NONE, ErrorCode, KafkaError
from replication.model.edit import freeze, thaw

Group = TypeVar("Group", bound=AnyParted)
Own = TypeVar("Own")  # the effects that only this type of groups has
Value = TypeVar("Value")
ABANDON = "The member must abandon all its partitions and rejoin."
_MAPPINGS = "members", "currents", "targets", "deadlines_ms", "unstored"


class WorkingParts(Generic[Group, Own]):
    id: str
    epoch: int
    topics_hash: int
    members: Mapping[str, Any]
    currents: Mapping[str, Any]
    target_epoch: int
    targets: Mapping[str, Pieces]
    deadlines_ms: Mapping[str, int]
    writes: int
    in_flight: InFlight | None
    queue: tuple[Any, ...]
    unstored: frozenset[Key]
    is_dead: bool
    offsets: Offsets

    def __init__(self, group: Group, now: Now, limits: GroupSettings, mappings: Collection[str] = ()) -> None:
        """Mappings beyond those that all such groups have are named by `mappings`."""
        thaw(group, self, shared=(*_MAPPINGS, *mappings))
        self.before = group
        self.now = now
        self.limits = limits
        self.effects: list[Append | Answer | Own] = []
        self._answers: list[tuple[int, Body]] = []

    def answer(self, request: int, body: Body) -> None:
        """Answer once all that this event changes is stored."""
        self._answers.append((request, body))

    def refuse(self, request: int, body: Body) -> None:
        """Answer at once."""
        self.effects.append(Answer(request, body))

    def group(self) -> Group:
        return freeze(type(self.before), self)

    def done(self) -> tuple[Group, tuple[Append | Answer | Own, ...]]:
        after = self.group()
        values = changed(self.before, after)
        assert self.in_flight is None or not (values or self._answers), "it waits in the queue"
        if not values and not (self.unstored and self.is_waited_for()):
            self.effects += [Answer(request, body) for request, body in self._answers]
            return after, tuple(self.effects)
        if self.unstored:
            present = contents(after)
            values = {**{key: present.get(key) for key in self.unstored}, **values}
            self.unstored = NO_KEYS
        self.writes += 1
        self.in_flight = InFlight(self.writes, frozenset(values), tuple(self._answers))
        self.effects.append(AppendParts(PartsChange(self.writes), values))
        return self.group(), tuple(self.effects)

    def is_waited_for(self) -> bool:
        """Does somebody wait until the group is stored?"""
        return bool(self._answers)

    def is_under_way(self, write: Write) -> bool:
        """False: the group was unloaded meanwhile, or the write is another one."""
        return self.in_flight is not None and write == PartsChange(self.in_flight.number)

    def end_write(self, error: ErrorCode, failed: Callable[[Body, ErrorCode], Body]) -> None:
        """Answer whoever waits for the write in flight: that it `failed`, if there is an error."""
        written, self.in_flight = self.in_flight, None
        if written is None:
            return
        if error is not NONE:
            self.unstored |= written.keys
        for request, body in written.answers:
            self.refuse(request, body if error is NONE else failed(body, error))

    def end(self) -> None:
        """Unload the group; whoever waits has been answered."""
        self.queue, self.unstored, self.deadlines_ms, self.is_dead = (), NO_KEYS, {}, True

    def put(self, member: Any, current: Any) -> None:
        """Replace what is known of a member."""
        self.members = with_one(self.members, member.id, member)
        self.currents = with_one(self.currents, member.id, current)

    def remove(self, member_id: str) -> None:
        """Forget a member: what it held is free."""
        self.members = without(self.members, member_id)
        self.currents = without(self.currents, member_id)
        self.targets = without(self.targets, member_id)
        self.deadlines_ms = without(self.deadlines_ms, member_id)

    def expel(self, member_id: str) -> None:
        """Remove a member; the next heartbeat of another one makes new targets."""
        self.remove(member_id)
        self.epoch += 1
        if not self.members:
            self.target_epoch = self.epoch  # nobody is there to be assigned anything

    def no_member(self, member_id: str) -> KafkaError:
        message = f"Member {member_id} is not a member of group {self.id}."
        return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)

    def check_room(self, kind: str, size_max: int) -> None:
        """Raises: KafkaError: no other member gets in."""
        if len(self.members) >= size_max:
            message = f"The {kind} group has reached its maximum capacity of {size_max} members."
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)


def without(values: Mapping[str, Value], name: str) -> Mapping[str, Value]:
    return {key: value for key, value in values.items() if key != name} if name in values else values


def with_one(values: Mapping[str, Value], name: str, value: Value) -> Mapping[str, Value]:
    return values if values.get(name) == value else {**values, name: value}
