"""WorkingState: a group while one event is processed, and the resulting effects; the phases of a rebalance.

`done` returns the new state and the effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from replication.coordinators.groups.classic.events import AppendGroup, Effect, EmptyGroup, Joined, Synced
from replication.coordinators.groups.classic.state import Group, Member, Phase
from replication.coordinators.groups.keys import Key
from replication.coordinators.groups.messages import Answer, Body, Now
from replication.coordinators.groups.offsets.state import Offsets
from replication.coordinators.groups.settings import GroupSettings
from replication.errors import ErrorCode
from replication.model.edit import freeze, thaw


class WorkingState:
    id: str
    phase: Phase
    since_ms: int
    protocol_type: str | None
    generation: int
    protocol: str | None
    leader: str | None
    members: dict[str, Member]
    pending: dict[str, int]
    join_until_ms: int | None
    initial_left_ms: int | None
    has_newcomer: bool
    sync_until_ms: int | None
    unsynced: frozenset[str]
    unstored: frozenset[Key]
    offsets: Offsets

    def __init__(self, group: Group, now: Now, limits: GroupSettings) -> None:
        thaw(group, self, shared=("unsynced", "unstored"))
        self.now = now
        self.limits = limits
        self.effects: list[Effect] = []

    def group(self) -> Group:
        return freeze(Group, self)

    def done(self) -> tuple[Group, tuple[Effect, ...]]:
        return self.group(), tuple(self.effects)

    def answer(self, request: int, body: Body) -> None:
        self.effects.append(Answer(request, body))

    def put(self, member: Member) -> None:
        self.members[member.id] = member

    def hear(self, member_id: str) -> None:
        member = self.members[member_id]
        self.put(replace(member, deadline_ms=self.now.ms + member.session_timeout_ms))

    def park_join(self, member: Member, request: int) -> None:
        """Park a join; one of the same member that is parked already is refused."""
        if member.joining is not None:
            self.answer(member.joining, Joined(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.id))
        self.put(replace(member, joining=request))

    def answer_parked(self, member_id: str, error: ErrorCode) -> None:
        member = self.members[member_id]
        if member.joining is not None:
            known = member_id if error is not ErrorCode.UNKNOWN_MEMBER_ID else ""
            self.answer(member.joining, Joined(error=error, member_id=known))
        if member.syncing is not None:
            self.answer(member.syncing, Synced(error))
        self.put(replace(member, joining=None, syncing=None))

    def remove(self, member_id: str) -> None:
        """Remove the member; its parked requests are refused."""
        self.answer_parked(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        del self.members[member_id]
        self.unsynced -= {member_id}
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def membership_changed(self) -> None:
        if self.phase is Phase.PREPARING:
            self.maybe_complete_join()
        elif self.phase in (Phase.STABLE, Phase.COMPLETING):
            self.prepare_rebalance()

    def joined(self, member: Member, *, leader: str | None = None) -> Joined:
        """Return the answer to a join in this generation; the leader also gets the members."""
        members: tuple[tuple[str, str | None, bytes], ...] = ()
        if leader is None and member.id == self.leader:
            protocol = self.protocol or ""
            members = tuple((m.id, m.instance_id, m.metadata(protocol)) for m in self.members.values())
        return Joined(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=leader or self.leader or "",
            member_id=member.id,
            members=members,
        )

    def common_protocols(self) -> frozenset[str]:
        supported = [frozenset(name for name, _ in m.protocols) for m in self.members.values()]
        return frozenset.intersection(*supported) if supported else frozenset()

    def choose_protocol(self) -> str:
        """Return the common protocol that most members prefer; among equals, that of the earliest member."""
        common = self.common_protocols()
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name, _ in member.protocols if name in common)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def enter(self, phase: Phase) -> None:
        self.phase = phase
        self.since_ms = self.now.wall_ms

    def prepare_rebalance(self) -> None:
        """Make everybody join (again). A group that was empty waits a moment for more members."""
        for member in tuple(self.members.values()) if self.phase is Phase.COMPLETING else ():
            if member.syncing is not None:
                self.answer(member.syncing, Synced(ErrorCode.REBALANCE_IN_PROGRESS))
            self.put(replace(member, assignment=b"", syncing=None))
        self.unsynced, self.sync_until_ms = frozenset(), None
        longest_ms = self.rebalance_timeout_ms
        if self.phase is Phase.EMPTY:
            delay_ms = self.limits.group_initial_rebalance_delay_ms
            self.initial_left_ms = max(longest_ms - delay_ms, 0)
            self.join_until_ms = self.now.ms + delay_ms
        else:
            self.join_until_ms = self.now.ms + longest_ms
        self.enter(Phase.PREPARING)
        if self.join_until_ms == self.now.ms:
            self.join_time_is_over()
        else:
            self.maybe_complete_join()

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def maybe_complete_join(self) -> None:
        """Complete the join phase if everybody has joined. A first rebalance lasts its full delay."""
        has_everybody = not self.pending and all(m.joining is not None for m in self.members.values())
        if self.initial_left_ms is None and has_everybody:
            self.complete_join()

    def join_time_is_over(self) -> None:
        """Continue without the members that did not join; delay a first rebalance for newcomers, within its limit."""
        if self.initial_left_ms and self.has_newcomer:
            delay_ms = min(self.limits.group_initial_rebalance_delay_ms, self.initial_left_ms)
            self.has_newcomer = False
            self.initial_left_ms -= delay_ms
            self.join_until_ms = self.now.ms + delay_ms
        else:
            self.complete_join()

    def complete_join(self) -> None:
        """Begin the next generation with those who joined; static members stay even if they did not."""
        for member in tuple(self.members.values()):
            if member.joining is None and member.instance_id is None:
                self.remove(member.id)
        here = [m.id for m in self.members.values() if m.joining is not None]
        if self.members and not here:
            # Wait until sessions end, or a member joins.
            self.join_until_ms = self.now.ms + self.rebalance_timeout_ms
            return
        if here and self.leader not in here:
            self.leader = here[0]
        self.join_until_ms = self.initial_left_ms = None
        self.has_newcomer = False
        self.generation = self.generation % _GENERATION_MAX + 1
        if not self.members:
            self.protocol = self.leader = None
            self.enter(Phase.EMPTY)
            self.effects.append(AppendGroup(EmptyGroup(), self.stored({})))
            return
        self.protocol = self.choose_protocol()
        self.enter(Phase.COMPLETING)
        self.unsynced = frozenset(here)
        self.sync_until_ms = self.now.ms + self.rebalance_timeout_ms
        for member in tuple(self.members.values()):
            if member.joining is not None:
                self.answer(member.joining, self.joined(member))
            self.put(replace(member, joining=None, is_new=False))
            self.hear(member.id)

    def stored(self, assignments: Mapping[str, bytes]) -> Group:
        """Return the group as it is stored with these assignments."""
        members = {m.id: replace(m, assignment=assignments.get(m.id, b"")) for m in self.members.values()}
        return replace(self.group(), members=members)


_GENERATION_MAX = 2**31 - 1
