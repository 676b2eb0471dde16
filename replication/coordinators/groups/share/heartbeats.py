"""Heartbeats: who is a member, what the group is to look like, and what a member may read now."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from replication.coordinators.groups.classic.events import Ticked
from replication.coordinators.groups.parts.draft import ABANDON, with_one
from replication.coordinators.groups.parts.events import Heard
from replication.coordinators.groups.parts.state import JOINING, LEAVING
from replication.coordinators.groups.pieces import NO_PIECES, hash_of
from replication.coordinators.groups.share.assignor import assign
from replication.coordinators.groups.share.draft import WorkingShare
from replication.coordinators.groups.share.events import ShareHeartbeat
from replication.coordinators.groups.share.partitions import assignable, initialize
from replication.coordinators.groups.share.state import Current, Member
from replication.errors import ErrorCode, KafkaError


class Staying(NamedTuple):
    """A member that stays, or joins: its heartbeat, what it had, and whether others need other targets with it."""

    event: ShareHeartbeat
    former: Current
    is_changed: bool


def hear(draft: WorkingShare, events: Sequence[ShareHeartbeat]) -> None:
    """Take in what members say. Targets are made once for all that follow each other without a member that leaves."""
    staying: dict[str, Staying] = {}
    for event in events:
        if event.epoch == LEAVING or event.member_id in staying:
            _lead_all(draft, staying.values())
            staying = {}
        try:
            if event.epoch == LEAVING:
                _leave(draft, event)
            else:
                staying[event.member_id] = _taken_in(draft, event)
        except KafkaError as error:
            draft.refuse(event.request, Heard(error=error.code, message=error.message))
    _lead_all(draft, staying.values())


def _taken_in(draft: WorkingShare, event: ShareHeartbeat) -> Staying:
    """Raises: KafkaError."""
    before = draft.members.get(event.member_id)
    if before is None:
        draft.check_room("share", draft.limits.group_share_max_size)
        if event.epoch != JOINING:
            raise draft.no_member(event.member_id)
    former = draft.currents.get(event.member_id, Current())
    _check_epoch(event, former)
    member = before or Member(id=event.member_id)
    member = replace(
        member,
        rack_id=member.rack_id if event.rack_id is None else event.rack_id,
        client_id=event.client_id,
        client_host=event.client_host,
        topics=member.topics if event.topics is None else tuple(sorted(set(event.topics))),
    )
    if member != before:
        draft.put(member, former)
    return Staying(event, former, before is None or member.topics != before.topics)


def _check_epoch(event: ShareHeartbeat, current: Current) -> None:
    """The epoch before is that of a member which may not have had the last answer."""
    epoch, known = event.epoch, current.epoch
    if epoch in (JOINING, known, current.previous_epoch):
        return
    if epoch > known:
        said = f"has a greater member epoch ({epoch}) than the one known by the group coordinator ({known})"
    else:
        said = (
            f"has a smaller member epoch ({epoch}) than the one known by the group coordinator ({known}), and it does "
            f"not match the previous member epoch ({current.previous_epoch})"
        )
    raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, f"The share group member {said}. {ABANDON}")


def _leave(draft: WorkingShare, event: ShareHeartbeat) -> None:
    """Raises: KafkaError."""
    if event.member_id not in draft.members:
        raise draft.no_member(event.member_id)
    draft.expel(event.member_id)
    draft.answer(event.request, Heard(member_id=event.member_id, epoch=event.epoch))


def _lead_all(draft: WorkingShare, staying: Collection[Staying]) -> None:
    """Make targets if something changed, and lead each member to its own."""
    if not staying:
        return
    known = list(staying)[-1].event.known
    names = frozenset().union(*(member.topics for member in draft.members.values()))
    topics = {name: topic for name in names if (topic := known.get(name)) is not None}
    initialize(draft, topics, known)
    pieces, topics_hash = assignable(draft, topics), hash_of(topics)
    is_changed = any(each.is_changed for each in staying) or draft.topics_hash != topics_hash
    if is_changed or (draft.epoch <= draft.target_epoch and pieces != NO_PIECES.union(*draft.targets.values())):
        draft.topics_hash = topics_hash
        draft.epoch += 1
    if draft.epoch > draft.target_epoch:
        wanted = {m.id: frozenset(topics[t].id for t in m.topics if t in topics) for m in draft.members.values()}
        draft.targets = assign(wanted, draft.targets, pieces)
        draft.target_epoch = draft.epoch
    for each in staying:
        _lead(draft, each)


def _lead(draft: WorkingShare, staying: Staying) -> None:
    event, former = staying.event, staying.former
    current = draft.currents[event.member_id]
    if current.epoch != draft.target_epoch:
        assigned = draft.targets.get(event.member_id, NO_PIECES)
        current = Current(epoch=draft.target_epoch, previous_epoch=current.epoch, assigned=assigned)
        draft.currents = {**draft.currents, event.member_id: current}
    until_ms = draft.now.ms + draft.limits.group_share_session_timeout_ms
    draft.deadlines_ms = with_one(draft.deadlines_ms, event.member_id, until_ms)
    is_behind = event.epoch != former.epoch  # it joins, or has not had the last answer
    is_told = is_behind or event.epoch == JOINING or event.topics is not None or current.assigned != former.assigned
    draft.answer(
        event.request,
        Heard(member_id=event.member_id, epoch=current.epoch, assigned=current.assigned if is_told else None),
    )


def tick(draft: WorkingShare, event: Ticked) -> None:
    """Expel members whose session is over."""
    for member_id in [name for name, until_ms in draft.deadlines_ms.items() if until_ms <= draft.now.ms]:
        draft.expel(member_id)
