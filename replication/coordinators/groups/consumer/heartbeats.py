"""Heartbeats: who is a member, what the group is to look like, and what a member may read now."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from replication.coordinators.groups.classic.events import Heartbeat, Join, Joined, Leave, Left, Sync, Synced, Ticked
from replication.coordinators.groups.consumer.assignors import ASSIGNORS
from replication.coordinators.groups.consumer.assignors.wishes import Wish
from replication.coordinators.groups.consumer.classic_members import as_heartbeat, sync
from replication.coordinators.groups.consumer.classic_members import heartbeat as hear_classic
from replication.coordinators.groups.consumer.draft import WorkingGroup
from replication.coordinators.groups.consumer.events import ConsumerHeartbeat, Waiting
from replication.coordinators.groups.consumer.reconciliation import reconciled
from replication.coordinators.groups.consumer.state import (
    LEAVING_FOR_A_WHILE,
    TYPE,
    Current,
    Member,
    Progress,
    chosen_assignor,
    subscribed,
)
from replication.coordinators.groups.messages import Body, Done
from replication.coordinators.groups.parts.draft import ABANDON, with_one, without
from replication.coordinators.groups.parts.events import Heard
from replication.coordinators.groups.parts.state import JOINING, LEAVING
from replication.coordinators.groups.pieces import NO_PIECES, Topics, hash_of
from replication.errors import NONE, ErrorCode, KafkaError

_LEAVES = LEAVING, LEAVING_FOR_A_WHILE


class Staying(NamedTuple):
    """A member that stays, or joins: its heartbeat, what it had, and whether others need other targets with it."""

    event: ConsumerHeartbeat
    former: Current
    is_changed: bool


def hear(draft: WorkingGroup, events: Sequence[Waiting]) -> None:
    """Take in what members say. Targets are made once for all that follow each other without a member that leaves."""
    staying: dict[str, Staying] = {}
    for event in events:
        if (
            isinstance(event, Leave)
            or not _stays(event)
            or {event.member_id, _holder_id(draft, event)} & staying.keys()
        ):
            _lead_all(draft, staying.values())
            staying = {}
        try:
            match event:
                case Join() if event.needs_known_id and not event.member_id and event.instance_id is None:
                    body = Joined(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=event.fresh_id)
                    draft.refuse(event.request, body)
                case Join():
                    heartbeat = as_heartbeat(draft, event)
                    staying[heartbeat.member_id] = _taken_in(draft, heartbeat)
                case Sync():
                    sync(draft, event)
                case Heartbeat():
                    hear_classic(draft, event)
                case Leave():
                    _leave_by_name(draft, event)
                case _ if event.epoch in _LEAVES:
                    _leave(draft, event)
                case _:
                    staying[event.member_id] = _taken_in(draft, event)
        except KafkaError as error:
            draft.refuse(event.request, refusal(event, error))
    _lead_all(draft, staying.values())


def _stays(event: Waiting) -> bool:
    return isinstance(event, Join) or (isinstance(event, ConsumerHeartbeat) and event.epoch not in _LEAVES)


def _holder_id(draft: WorkingGroup, event: Waiting) -> str | None:
    """Return the member that has the instance id of this one, and whose place it may take."""
    if isinstance(event, Leave) or event.instance_id is None:
        return None
    holder = draft.static_member(event.instance_id)
    return holder.id if holder is not None else None


def refusal(event: Waiting, error: KafkaError) -> Body:
    """Return the answer that nothing was done."""
    match event:
        case Join():
            return Joined(error=error.code, member_id=event.member_id)
        case Sync():
            return Synced(error.code)
        case Heartbeat():
            return Done(error.code)
        case Leave():
            return Left(tuple(error.code for _ in event.leaving))
    return Heard(error=error.code, message=error.message)


def _taken_in(draft: WorkingGroup, event: ConsumerHeartbeat) -> Staying:
    """Raises: KafkaError."""
    if event.classic is None:
        before = _member_before(draft, event)
    elif event.instance_id is None:
        before = draft.members.get(event.member_id)
    else:
        before = draft.static_member(event.instance_id)
    former = draft.currents[before.id] if before is not None else Current()
    return Staying(event, former, _subscribe(draft, event, before))


def _lead_all(draft: WorkingGroup, staying: Collection[Staying]) -> None:
    """Make targets if something changed, and lead each member to its own."""
    if not staying:
        return
    latest = list(staying)[-1].event
    topics = _subscribed_topics(draft, latest.known)
    draft.known_at = latest.known_at
    topics_hash = hash_of(topics)
    if any(each.is_changed for each in staying) or draft.topics_hash != topics_hash:
        draft.topics_hash = topics_hash
        draft.epoch += 1
    if draft.epoch > draft.target_epoch:
        _make_targets(draft, topics)
    for event, former, _ in staying:
        _lead(draft, event, former)


def _lead(draft: WorkingGroup, event: ConsumerHeartbeat, former: Current) -> None:
    member_id = event.member_id
    current = reconciled(
        draft.currents[member_id],
        draft.targets.get(member_id, NO_PIECES),
        draft.target_epoch,
        event.owned,
        lambda piece: draft.is_free(piece, member_id),
    )
    member = draft.members[member_id]
    draft.put(member, current)
    session_ms = member.session_timeout_ms(draft.limits.group_consumer_session_timeout_ms)
    draft.deadlines_ms = with_one(draft.deadlines_ms, member_id, draft.now.ms + session_ms)
    if event.classic is not None:
        draft.limit(member_id, anew=True)  # to ask for its assignment
        protocol, _ = event.classic.protocols[0]
        joined = Joined(generation=current.epoch, protocol_type=TYPE, protocol=protocol, member_id=member_id)
        draft.answer(event.request, joined)
        return
    _limit_revocation(draft, member_id, former, current)
    is_behind = event.epoch != former.epoch  # it joins, or has not had the last answer
    is_told = is_behind or says_all(event) or current.assigned != former.assigned
    draft.answer(
        event.request,
        Heard(member_id=member_id, epoch=current.epoch, assigned=current.assigned if is_told else None),
    )


def says_all(event: ConsumerHeartbeat) -> bool:
    """Does the member say all of itself, since it lost an answer?"""
    return event.rebalance_timeout_ms != -1 and event.owned is not None


# ---------------------------------------------------------------- who it is


def _member_before(draft: WorkingGroup, event: ConsumerHeartbeat) -> Member | None:
    """Return the member that this one is, or whose place it takes; None: it is new. Raises: KafkaError."""
    if event.instance_id is not None:
        return _static_before(draft, event, event.instance_id)
    member = draft.members.get(event.member_id)
    if member is None:
        if event.epoch != JOINING:
            raise draft.no_member(event.member_id)
        draft.check_room("consumer", draft.limits.group_consumer_max_size)
        return None
    _check_epoch(draft, event, member)
    return member


def _static_before(draft: WorkingGroup, event: ConsumerHeartbeat, instance_id: str) -> Member | None:
    holder = draft.static_member(instance_id)
    if event.epoch == JOINING:
        if holder is None:
            draft.check_room("consumer", draft.limits.group_consumer_max_size)
            return None
        is_held = holder.classic is None and draft.currents[holder.id].epoch != LEAVING_FOR_A_WHILE
        if holder.id != event.member_id and is_held:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {event.member_id} with instance id {instance_id} cannot join the group because the "
                f"instance id is owned by {holder.id} member.",
            )
        if is_held:
            _check_epoch(draft, event, holder)
        return holder
    if holder is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    _check_instance(event, holder, instance_id)
    _check_epoch(draft, event, holder)
    return holder


def _check_instance(event: ConsumerHeartbeat, holder: Member, instance_id: str) -> None:
    if holder.id != event.member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {event.member_id} with instance id {instance_id} was fenced by member {holder.id}.",
        )


def _check_epoch(draft: WorkingGroup, event: ConsumerHeartbeat, member: Member) -> None:
    """An older epoch is that of a member which may not have had the last answer, if it reads no more than it may."""
    current = draft.currents[member.id]
    if event.epoch == current.epoch:
        return
    if event.epoch > current.epoch:
        known = f"has a greater member epoch ({event.epoch}) than the one known by the group coordinator"
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH, f"The consumer group member {known} ({current.epoch}). {ABANDON}"
        )
    is_retry = event.epoch == current.previous_epoch and event.owned is not None and event.owned <= current.assigned
    if event.epoch != JOINING and not is_retry:
        known = f"has a smaller member epoch ({event.epoch}) than the one known by the group coordinator"
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH, f"The consumer group member {known} ({current.epoch}). {ABANDON}"
        )


# ------------------------------------------------------------- what it wants


def _subscribe(draft: WorkingGroup, event: ConsumerHeartbeat, before: Member | None) -> bool:
    """Take in what the member says of itself; return whether the group needs other targets."""
    member = described(before or Member(id=event.member_id), event)
    current = draft.currents[before.id] if before is not None else Current()
    is_back = before is not None and current.epoch == LEAVING_FOR_A_WHILE
    is_new = before is None
    former = subscribed(draft, before) if before is not None else None
    if before is not None and (before.id != member.id or is_back):
        target = draft.targets.get(before.id, NO_PIECES)
        draft.remove(before.id)
        draft.targets = {**draft.targets, member.id: target}
        current = replace(current, epoch=JOINING, previous_epoch=JOINING, progress=Progress.STABLE, revoking=NO_PIECES)
    if event.epoch == JOINING and not is_new and not is_back:
        # It begins anew, and reads nothing, or as a classic one what it says: what it gave up thereby is free.
        has_owned = event.classic is not None and before is not None and before.id == member.id
        owned = (event.owned or NO_PIECES) & current.held
        current = replace(current, progress=Progress.WAITING, assigned=owned, revoking=NO_PIECES)
        current = current if has_owned else Current(since=current.since)
    draft.put(member, current)
    _see(draft, member, event.matched, before)
    return is_new or subscribed(draft, member) != former


def _see(draft: WorkingGroup, member: Member, matched: tuple[str, ...] | None, before: Member | None) -> None:
    """Take in the topics of its expression that the member may see; None: as before, if the expression is the same."""
    if member.regex and matched is not None:
        draft.visible = with_one(draft.visible, member.id, matched)
    elif before is not None and before.regex != member.regex:
        draft.visible = without(draft.visible, member.id)


def described(member: Member, event: ConsumerHeartbeat) -> Member:
    """Return the member as it says that it is now."""
    return replace(
        member,
        id=event.member_id,
        client_id=event.client_id,
        client_host=event.client_host,
        instance_id=member.instance_id if event.instance_id is None else event.instance_id,
        rack_id=member.rack_id if event.rack_id is None else event.rack_id,
        topics=member.topics if event.topics is None else tuple(sorted(set(event.topics))),
        regex=member.regex if event.regex is None else event.regex or None,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if event.rebalance_timeout_ms == -1 else event.rebalance_timeout_ms
        ),
        assignor=member.assignor if event.assignor is None else event.assignor or None,
        classic=event.classic,
    )


def _subscribed_topics(draft: WorkingGroup, known: Topics) -> Topics:
    return {name: topic for name in draft.subscribed_names() if (topic := known.get(name)) is not None}


# ------------------------------------------------------------- what it gets


def _make_targets(draft: WorkingGroup, topics: Topics) -> None:
    """Assign all partitions of all subscribed topics, by the assignor that most members ask for."""
    name = chosen_assignor(draft.members.values(), draft.limits.group_consumer_assignors.split(",")[0])
    wishes = {
        member.id: Wish(
            frozenset(topics[topic].id for topic in subscribed(draft, member) if topic in topics),
            draft.targets.get(member.id, NO_PIECES),
            member.instance_id,
        )
        for member in draft.members.values()
    }
    made = ASSIGNORS[name](wishes, {topic.id: topic.partitions for topic in topics.values()})
    draft.targets = made
    draft.target_epoch = draft.epoch


def _limit_revocation(draft: WorkingGroup, member_id: str, former: Current, current: Current) -> None:
    """Give the member its rebalance timeout for each time that it must give up partitions."""
    if current.progress is not Progress.REVOKING:
        draft.unlimit(member_id)
    else:
        draft.limit(member_id, anew=current.revoking != former.revoking)


# ---------------------------------------------------------------- who leaves


def _leave(draft: WorkingGroup, event: ConsumerHeartbeat) -> None:
    """Raises: KafkaError."""
    if event.instance_id is None:
        member = draft.members.get(event.member_id)
    else:
        member = draft.static_member(event.instance_id)
        if member is not None:
            _check_instance(event, member, event.instance_id)
    if member is None:
        raise draft.no_member(event.member_id)
    if event.epoch == LEAVING_FOR_A_WHILE:
        current = draft.currents[member.id]
        draft.put(
            member,
            replace(
                current.holding(current.assigned),
                epoch=LEAVING_FOR_A_WHILE,
                previous_epoch=current.epoch,
                progress=Progress.STABLE,
            ),
        )
        draft.unlimit(member.id)
    else:
        draft.expel(member.id)
    draft.answer(event.request, Heard(member_id=event.member_id, epoch=event.epoch))


def _leave_by_name(draft: WorkingGroup, event: Leave) -> None:
    """Remove members as administrators name them, by member or instance ids."""
    errors = []
    for member_id, instance_id in event.leaving:
        member = draft.members.get(member_id) if instance_id is None else draft.static_member(instance_id)
        error = ErrorCode.UNKNOWN_MEMBER_ID if member is None else NONE
        if member is not None and member_id and member_id != member.id:
            error = ErrorCode.FENCED_INSTANCE_ID
        if member is not None and error is NONE:
            draft.expel(member.id)
        errors.append(error)
    draft.answer(event.request, Left(tuple(errors)))


def tick(draft: WorkingGroup, event: Ticked) -> None:
    """Expel members whose session is over, or that did not give up in time what they must."""
    now_ms = draft.now.ms
    for times in (draft.deadlines_ms, draft.revoke_until_ms):
        for member_id in [name for name, until_ms in times.items() if until_ms <= now_ms]:
            if member_id in draft.members:
                draft.expel(member_id)
