"""Members of the classic protocol in a group of the consumer protocol: they are led to their targets by its requests.

A JoinGroup says all of a member, as a heartbeat does that joins, and that it reads what its subscription owns, and no
more; the SyncGroup behind it has what it may read by then. A heartbeat sends a member to join again while there is
something for it to learn.
"""

from __future__ import annotations

from collections.abc import Iterable

from replication.coordinators.groups.classic import events as classic
from replication.coordinators.groups.classic.embedded import encode_assignment, read_subscription
from replication.coordinators.groups.consumer.draft import WorkingGroup
from replication.coordinators.groups.consumer.events import ConsumerHeartbeat
from replication.coordinators.groups.consumer.state import TYPE, ClassicMember, Member, Progress
from replication.coordinators.groups.messages import Done
from replication.coordinators.groups.parts.state import JOINING
from replication.coordinators.groups.pieces import NO_PIECES, Piece, Pieces, Topics
from replication.errors import NONE, ErrorCode, KafkaError
from replication.model.cluster import TopicPartition


def as_heartbeat(draft: WorkingGroup, event: classic.Join) -> ConsumerHeartbeat:
    """Return all that a JoinGroup says. Raises: KafkaError."""
    member = _joining(draft, event)
    limits = draft.limits
    if not limits.group_min_session_timeout_ms <= event.session_timeout_ms <= limits.group_max_session_timeout_ms:
        raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
    if member is None and len(draft.members) >= limits.group_consumer_max_size:
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
    others = [each for each in draft.members.values() if member is None or each.id != member.id]
    subscription = read_subscription(event.protocols[0][1]) if event.protocols else None
    is_common = bool(common_protocols([*others, _with_protocols(event)]))
    if event.protocol_type != TYPE or subscription is None or not is_common:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return ConsumerHeartbeat(
        request=event.request,
        member_id=event.member_id or event.fresh_id,
        epoch=JOINING,
        instance_id=event.instance_id,
        rack_id=subscription.rack_id,
        client_id=event.client_id,
        client_host=event.client_host,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        topics=subscription.topics,
        regex="",
        assignor="",
        owned=pieces_of(subscription.owned, event.known),
        known=event.known,
        known_at=event.known_at,
        classic=ClassicMember(event.session_timeout_ms, event.protocols),
    )


def _joining(draft: WorkingGroup, event: classic.Join) -> Member | None:
    """Return the member that joins again, or whose place is taken. Raises: KafkaError."""
    if event.instance_id is None:
        return draft.members.get(event.member_id)
    holder = draft.static_member(event.instance_id)
    if event.member_id and holder is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if event.member_id and holder is not None and holder.id != event.member_id:
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
    return holder


def _with_protocols(event: classic.Join) -> Member:
    return Member(id=event.member_id, classic=ClassicMember(event.session_timeout_ms, event.protocols))


def common_protocols(members: Iterable[Member]) -> frozenset[str]:
    """Return the protocols that all classic ones of these members support."""
    supported = [frozenset(name for name, _ in m.classic.protocols) for m in members if m.classic is not None]
    return frozenset.intersection(*supported) if supported else frozenset()


def pieces_of(tps: Iterable[TopicPartition], known: Topics) -> Pieces:
    """Return these partitions, but for those that there are not."""
    found = ((known.get(tp.topic), tp.partition) for tp in tps)
    return frozenset(
        Piece(topic.id, number) for topic, number in found if topic is not None and 0 <= number < topic.partitions
    )


def sync(draft: WorkingGroup, event: classic.Sync) -> None:
    """Tell a member what it may read. Raises: KafkaError."""
    member, side = _member(draft, event)
    protocol, metadata = side.protocols[0]
    if event.protocol_type not in (None, TYPE) or event.protocol not in (None, protocol):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    current = draft.currents[member.id]
    if draft.epoch > current.epoch and current.progress is not Progress.REVOKING:
        draft.limit(member.id, anew=False)
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    names = {topic.id: name for name in draft.subscribed_names() if (topic := event.known.get(name)) is not None}
    tps = [TopicPartition(names[each.topic_id], each.partition) for each in current.assigned if each.topic_id in names]
    subscription = read_subscription(metadata)
    assignment = encode_assignment(tps, subscription.version if subscription is not None else 0)
    _heard(draft, member, side)
    if current.progress is not Progress.REVOKING:
        draft.unlimit(member.id)
    draft.answer(event.request, classic.Synced(NONE, TYPE, protocol, assignment))


def heartbeat(draft: WorkingGroup, event: classic.Heartbeat) -> None:
    """Raises: KafkaError."""
    member, side = _member(draft, event)
    _heard(draft, member, side)
    if _has_to_join(draft, member):
        draft.limit(member.id, anew=False)
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    draft.answer(event.request, Done())


def _has_to_join(draft: WorkingGroup, member: Member) -> bool:
    current = draft.currents[member.id]
    if current.epoch < draft.epoch:  # so is that of a member that must give up partitions
        return True
    wanted = draft.targets.get(member.id, NO_PIECES) - current.assigned
    return current.progress is Progress.WAITING and all(draft.is_free(piece, member.id) for piece in wanted)


def _heard(draft: WorkingGroup, member: Member, side: ClassicMember) -> None:
    draft.deadlines_ms = {**draft.deadlines_ms, member.id: draft.now.ms + side.session_timeout_ms}


def _member(draft: WorkingGroup, event: classic.Sync | classic.Heartbeat) -> tuple[Member, ClassicMember]:
    """Raises: KafkaError."""
    member = draft.members.get(event.member_id)
    if event.instance_id is not None:
        member = draft.static_member(event.instance_id)
        if member is not None and member.id != event.member_id:
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
    if member is None or member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if draft.currents[member.id].epoch != event.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    return member, member.classic
