"""Membership: who may join, and when a join begins a rebalance."""

from __future__ import annotations

from dataclasses import replace

from replication.coordinators.groups.classic.draft import WorkingState
from replication.coordinators.groups.classic.events import AppendGroup, Join, Joined, NewStaticId
from replication.coordinators.groups.classic.permission import holder_of, who_is
from replication.coordinators.groups.classic.state import Member, Phase, subscribed_topics
from replication.coordinators.groups.messages import Appended
from replication.coordinators.groups.pieces import NO_PIECES
from replication.errors import ErrorCode


def join(draft: WorkingState, event: Join) -> None:
    error = _refusal(draft, event)
    if error is not ErrorCode.NONE:
        draft.answer(event.request, Joined(error=error, member_id=event.member_id))
        if error is ErrorCode.GROUP_MAX_SIZE_REACHED and event.member_id in draft.members:
            draft.remove(event.member_id)  # the limit was lowered, and others came first
            draft.membership_changed()
    elif not event.member_id:
        _join_without_id(draft, event)
    elif event.member_id in draft.pending:
        _add(draft, event, event.member_id)
    else:
        _join_again(draft, event)


def _refusal(draft: WorkingState, event: Join) -> ErrorCode:
    limits = draft.limits
    if not (limits.group_min_session_timeout_ms <= event.session_timeout_ms <= limits.group_max_session_timeout_ms):
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if not _has_room(draft, event):
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    if not event.protocol_type or not event.protocols:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if draft.members:
        names = {name for name, _ in event.protocols}
        if event.protocol_type != draft.protocol_type or names.isdisjoint(draft.common_protocols()):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if event.member_id and (event.member_id not in draft.pending or event.instance_id is not None):
        return who_is(draft, event.member_id, event.instance_id)
    return ErrorCode.NONE


def _has_room(draft: WorkingState, event: Join) -> bool:
    """Does the group's maximum size allow it? While joins are awaited, the members of the next generation count."""
    known = event.member_id
    if not known and event.instance_id is not None:
        known = holder_of(draft, event.instance_id) or ""
    if draft.phase is not Phase.PREPARING:
        return known in draft.members or len(draft.members) < draft.limits.group_max_size
    others = (m for m in draft.members.values() if m.id != known)
    count = sum(m.joining is not None or m.instance_id is not None for m in others)
    return count < draft.limits.group_max_size


def _join_without_id(draft: WorkingState, event: Join) -> None:
    if event.instance_id is not None:
        holder = holder_of(draft, event.instance_id)
        if holder is not None:
            _replace_static(draft, event, holder)
            return
    elif event.needs_known_id:
        draft.pending[event.fresh_id] = draft.now.ms + event.session_timeout_ms
        draft.answer(event.request, Joined(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=event.fresh_id))
        return
    _add(draft, event, event.fresh_id)


def _add(draft: WorkingState, event: Join, member_id: str) -> None:
    draft.pending.pop(member_id, None)
    if not draft.members:
        draft.protocol_type = event.protocol_type
        draft.leader = member_id
    if draft.initial_left_ms is not None:
        draft.has_newcomer = True
    draft.put(
        Member(
            id=member_id,
            instance_id=event.instance_id,
            client_id=event.client_id,
            client_host=event.client_host,
            session_timeout_ms=event.session_timeout_ms,
            rebalance_timeout_ms=event.rebalance_timeout_ms,
            protocols=event.protocols,
            deadline_ms=draft.now.ms + draft.limits.new_member_join_timeout_ms,
            is_new=True,
            joining=event.request,
        )
    )
    _rebalance(draft)


def _rebalance(draft: WorkingState) -> None:
    if draft.phase is Phase.PREPARING:
        draft.maybe_complete_join()
    else:
        draft.prepare_rebalance()


def _join_again(draft: WorkingState, event: Join) -> None:
    """A member joins. If nothing changed it only missed the answer; a join of the leader asks for a rebalance."""
    member = draft.members[event.member_id]
    is_same = member.protocols == event.protocols
    wants_rebalance = draft.phase is Phase.STABLE and member.id == draft.leader
    if draft.phase is not Phase.PREPARING and is_same and not wants_rebalance:
        draft.hear(member.id)
        draft.answer(event.request, draft.joined(member))
        return
    _update(draft, member, event)
    _rebalance(draft)


def _update(draft: WorkingState, member: Member, event: Join) -> None:
    draft.park_join(
        replace(
            member,
            protocols=event.protocols,
            client_id=event.client_id,
            client_host=event.client_host,
            session_timeout_ms=event.session_timeout_ms,
            rebalance_timeout_ms=event.rebalance_timeout_ms,
            held=NO_PIECES,
        ),
        event.request,
    )


def _replace_static(draft: WorkingState, event: Join, old_id: str) -> None:
    """A static member is back under a new id. It causes no rebalance if its subscription is the same."""
    draft.answer_parked(old_id, ErrorCode.FENCED_INSTANCE_ID)
    # A client that cannot be told to skip must not learn that it leads: it would assign anew.
    before, leader = draft.members[old_id], None if event.may_skip else draft.leader
    _rename(draft, before, replace(before, id=event.fresh_id))
    _update(draft, draft.members[event.fresh_id], event)
    if draft.phase is not Phase.STABLE:
        _rebalance(draft)
    elif draft.choose_protocol() != draft.protocol or _subscribes_anew(draft, before, event):
        draft.prepare_rebalance()
    else:
        assignments = {m.id: m.assignment for m in draft.members.values()}
        write = NewStaticId(event.request, draft.generation, before, event.fresh_id, leader)
        draft.effects.append(AppendGroup(write, draft.stored(assignments)))


def _rename(draft: WorkingState, old: Member, new: Member) -> None:
    draft.members = {m.id: m for m in (new if m.id == old.id else m for m in draft.members.values())}
    if draft.leader == old.id:
        draft.leader = new.id
    if old.id in draft.unsynced:
        draft.unsynced = draft.unsynced - {old.id} | {new.id}


def _subscribes_anew(draft: WorkingState, before: Member, event: Join) -> bool:
    old = subscribed_topics(before.metadata(draft.protocol or ""))
    new = subscribed_topics(dict(event.protocols).get(draft.protocol or "", b""))
    return old != new


def static_id_stored(draft: WorkingState, write: NewStaticId, outcome: Appended) -> None:
    """Answer the member that came back; if its new id could not be stored, restore the old one."""
    member = draft.members.get(write.member_id)
    if member is None or member.joining != write.request or draft.generation != write.generation:
        return  # it is gone, or was answered since
    if draft.phase is not Phase.STABLE:
        return  # the rebalance answers it
    if outcome.error is not ErrorCode.NONE:
        draft.answer(write.request, Joined(error=outcome.error))
        _rename(draft, member, write.before)
        draft.hear(write.before.id)
        return
    draft.put(replace(member, joining=None))
    draft.hear(member.id)
    joined = draft.joined(member, leader=write.leader)
    draft.answer(write.request, replace(joined, skips=bool(joined.members)))
