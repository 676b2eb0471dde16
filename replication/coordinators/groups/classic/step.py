"""The machine of a group: `step(group, event, now, limits) -> (group, effects)`.

Laws:

- A member learns the leader and its assignment only in the generation that it joined. All members of a generation use
  the same protocol, which all of them support.
- Assignments and commits are answered once they are stored, so the next coordinator knows them.
- Nobody waits forever: a rebalance waits for the longest rebalance timeout of its members, then goes on without the
  absent ones. A member that is silent for its session timeout, or never asks for its assignment, is expelled.
- A member of an older generation, and one whose place was taken, commits nothing.
- Every request is answered once.

The rules are those of Kafka's classic protocol. One is stricter: a static member that returns with other topics
begins a rebalance. The caller stores the new state before it performs the effects, in order. A group that `is_blank`
after a step may be forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

from replication.coordinators.groups.classic import commits, events
from replication.coordinators.groups.classic.draft import WorkingState
from replication.coordinators.groups.classic.joining import join, static_id_stored
from replication.coordinators.groups.classic.permission import check_member, holder_of, may_stay, who_is
from replication.coordinators.groups.classic.state import Group, Member, Phase
from replication.coordinators.groups.keys import NO_KEYS
from replication.coordinators.groups.messages import Appended, Done, Now, Write
from replication.coordinators.groups.offsets import events as offset_events
from replication.coordinators.groups.offsets.state import Committed, Offsets
from replication.coordinators.groups.settings import GroupSettings
from replication.errors import ERRORS_OF_APPENDS, ErrorCode
from replication.model.cluster import TopicPartition

Step: TypeAlias = tuple[Group, tuple[events.Effect, ...]]


def resume(
    stored: Group,
    offsets: Mapping[TopicPartition, Committed],
    now: Now,
    limits: GroupSettings,
    uncommitted: Mapping[int, Mapping[TopicPartition, Committed]] = MappingProxyType({}),
) -> Step:
    """Return the group as its new coordinator loaded it. The sessions of its members restart."""
    members = {m.id: replace(m, deadline_ms=now.ms + m.session_timeout_ms) for m in stored.members.values()}
    group = replace(
        stored,
        protocol=stored.protocol if members else None,
        leader=stored.leader if stored.leader in members else next(iter(members), None),
        members=members,
        offsets=Offsets(committed=offsets, uncommitted=uncommitted),
    )
    if len(members) <= limits.group_max_size:
        return group, ()
    draft = WorkingState(group, now, limits)
    draft.prepare_rebalance()  # the limit was lowered: some will not get in again
    return draft.done()


def step(group: Group, event: events.Event, now: Now, limits: GroupSettings) -> Step:
    draft = WorkingState(group, now, limits)
    is_refused = group.phase is Phase.DEAD and not isinstance(event, Appended)
    act = _refuse if is_refused else _ACTS[type(event)]
    act(draft, event)
    return draft.done()


def _refuse(draft: WorkingState, event: events.Event) -> None:
    error = ErrorCode.NOT_COORDINATOR
    match event:
        case events.Join():
            draft.answer(event.request, events.Joined(error=error, member_id=event.member_id))
        case events.Sync():
            draft.answer(event.request, events.Synced(error))
        case events.Leave():
            draft.answer(event.request, events.Left(tuple(error for _ in event.leaving)))
        case events.Heartbeat() | events.DeleteGroup():
            draft.answer(event.request, Done(error))
        case offset_events.Commit() | offset_events.DeleteOffsets():
            draft.answer(event.request, offset_events.OffsetsDone(error))


def _sync(draft: WorkingState, event: events.Sync) -> None:
    error = _sync_refusal(draft, event)
    if error is not ErrorCode.NONE:
        draft.answer(event.request, events.Synced(error))
        return
    member = draft.members[event.member_id]
    draft.unsynced -= {member.id}
    if not draft.unsynced:
        draft.sync_until_ms = None
    if draft.phase is Phase.STABLE:
        draft.hear(member.id)
        draft.answer(event.request, _assignment(draft, member))
        return
    if member.syncing is not None:
        # A newer request replaces it.
        draft.answer(member.syncing, events.Synced(ErrorCode.REBALANCE_IN_PROGRESS))
    draft.put(replace(member, syncing=event.request))
    if member.id == draft.leader:
        assignments = {name: event.assignments.get(name, b"") for name in draft.members}
        write = events.NewAssignment(draft.generation, assignments)
        draft.effects.append(events.AppendGroup(write, draft.stored(assignments)))


def _sync_refusal(draft: WorkingState, event: events.Sync) -> ErrorCode:
    error = check_member(draft, event.member_id, event.generation, event.instance_id)
    if error is not ErrorCode.NONE:
        return error
    if event.protocol_type not in (None, draft.protocol_type) or event.protocol not in (None, draft.protocol):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.REBALANCE_IN_PROGRESS if draft.phase is Phase.PREPARING else ErrorCode.NONE


def _assignment(draft: WorkingState, member: Member) -> events.Synced:
    return events.Synced(ErrorCode.NONE, draft.protocol_type, draft.protocol, member.assignment)


def _assignment_stored(draft: WorkingState, write: events.NewAssignment, outcome: Appended) -> None:
    """Answer all members with their assignment, unless a newer rebalance has begun."""
    if draft.phase is not Phase.COMPLETING or draft.generation != write.generation:
        return
    if outcome.error is not ErrorCode.NONE:
        for member in tuple(draft.members.values()):
            if member.syncing is not None:
                draft.answer(member.syncing, events.Synced(outcome.error))
            draft.put(replace(member, syncing=None))
        draft.prepare_rebalance()
        return
    draft.enter(Phase.STABLE)
    for member in tuple(draft.members.values()):
        assigned = replace(member, assignment=write.assignments.get(member.id, b""), syncing=None)
        draft.put(assigned)
        if member.syncing is not None:
            draft.hear(member.id)
            draft.answer(member.syncing, _assignment(draft, assigned))


def _heartbeat(draft: WorkingState, event: events.Heartbeat) -> None:
    error = may_stay(draft, event.member_id, event.generation, event.instance_id)
    if error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
        draft.hear(event.member_id)
    draft.answer(event.request, Done(error))


def _leave(draft: WorkingState, event: events.Leave) -> None:
    members = len(draft.members)
    errors = tuple(_leave_one(draft, *identity) for identity in event.leaving)
    if len(draft.members) < members:
        draft.membership_changed()
    elif ErrorCode.NONE in errors and draft.phase is Phase.PREPARING:
        draft.maybe_complete_join()  # it may have waited for nobody else
    draft.answer(event.request, events.Left(errors))


def _leave_one(draft: WorkingState, member_id: str, instance_id: str | None) -> ErrorCode:
    if member_id in draft.pending:
        del draft.pending[member_id]
        return ErrorCode.NONE
    if not member_id and instance_id is not None:
        member_id = holder_of(draft, instance_id) or ""
    error = who_is(draft, member_id, instance_id)
    if error is ErrorCode.NONE:
        draft.remove(member_id)
    return error


def _tick(draft: WorkingState, event: events.Ticked) -> None:
    now_ms = draft.now.ms
    late = [m.id for m in draft.members.values() if not m.is_excused and m.deadline_ms <= now_ms]
    forgotten = [member_id for member_id, until_ms in draft.pending.items() if until_ms <= now_ms]
    for member_id in forgotten:
        del draft.pending[member_id]
    for member_id in late:
        draft.remove(member_id)
    if late or forgotten:
        if late:
            draft.membership_changed()
        elif draft.phase is Phase.PREPARING:
            draft.maybe_complete_join()
    if draft.join_until_ms is not None and draft.join_until_ms <= now_ms:
        draft.join_time_is_over()
    if draft.sync_until_ms is not None and draft.sync_until_ms <= now_ms:
        for member_id in [m for m in draft.members if m in draft.unsynced]:
            draft.remove(member_id)
        draft.prepare_rebalance()


def _unload(draft: WorkingState, event: events.Unloaded) -> None:
    for member_id in tuple(draft.members):
        draft.answer_parked(member_id, ErrorCode.NOT_COORDINATOR)
    draft.members, draft.pending = {}, {}
    draft.join_until_ms = draft.sync_until_ms = None
    draft.enter(Phase.DEAD)


def _appended(draft: WorkingState, outcome: Appended) -> None:
    outcome = replace(outcome, error=error_of_append(outcome.error, type(outcome.write)))
    if outcome.error is ErrorCode.NONE and isinstance(outcome.write, _WITH_GROUP):
        draft.unstored = NO_KEYS
    match outcome.write:
        case events.NewAssignment() as write:
            _assignment_stored(draft, write, outcome)
        case events.NewStaticId() as write:
            static_id_stored(draft, write, outcome)
        case offset_events.NewOffsets():
            commits.post(draft, outcome)
        case offset_events.GoneOffsets() as write:
            commits.deleted(draft, write, outcome)


def error_of_append(error: ErrorCode, write: type[Write]) -> ErrorCode:
    """Return the error that makes members try again, here or elsewhere."""
    match error:
        case ErrorCode.REQUEST_TIMED_OUT if write is events.NewAssignment:
            return ErrorCode.REBALANCE_IN_PROGRESS
        case ErrorCode.MESSAGE_TOO_LARGE if write is offset_events.NewOffsets:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return ERRORS_OF_APPENDS.get(error, error)


_WITH_GROUP = events.NewAssignment, events.NewStaticId, events.EmptyGroup  # what an AppendGroup is for

_ACTS: Mapping[type[events.Event], Callable[[WorkingState, Any], None]] = {
    events.Join: join,
    events.Sync: _sync,
    events.Heartbeat: _heartbeat,
    events.Leave: _leave,
    offset_events.Commit: commits.commit,
    offset_events.TransactionEnded: commits.post,
    offset_events.DeleteOffsets: commits.delete_offsets,
    events.DeleteGroup: commits.delete_group,
    offset_events.ForgetTopics: commits.post,
    offset_events.ForgetAgain: commits.post,
    offset_events.ExpireOffsets: commits.expire,
    events.Ticked: _tick,
    events.Unloaded: _unload,
    Appended: _appended,
}
