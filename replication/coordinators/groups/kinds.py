"""A group of any type: `step` for all, and when a group of one protocol becomes one of the other.

Laws: a group is of one type at a time, and keeps its committed offsets. `migration` converts one with members. A share
group is never converted, and has no committed offsets: only a name that nothing is stored of becomes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from replication.coordinators.groups import migration
from replication.coordinators.groups.classic import events as classic_events
from replication.coordinators.groups.classic import permission
from replication.coordinators.groups.classic import step as classic
from replication.coordinators.groups.classic.state import Group, Phase
from replication.coordinators.groups.classic.state import deadline_ms as classic_deadline_ms
from replication.coordinators.groups.consumer import commits, state
from replication.coordinators.groups.consumer import step as consumer
from replication.coordinators.groups.consumer.events import ConsumerHeartbeat
from replication.coordinators.groups.consumer.state import ConsumerGroup
from replication.coordinators.groups.messages import Answer, Append, Now
from replication.coordinators.groups.offsets import events as offset_events
from replication.coordinators.groups.offsets.state import Committed
from replication.coordinators.groups.parts.events import Heard
from replication.coordinators.groups.parts.state import JOINING
from replication.coordinators.groups.settings import GroupSettings
from replication.coordinators.groups.share import state as share_state
from replication.coordinators.groups.share import step as share
from replication.coordinators.groups.share.events import (
    AlterShareOffsets,
    AskStates,
    DeleteShareOffsets,
    ShareHeartbeat,
    SharesDone,
    StatesAnswered,
)
from replication.coordinators.groups.share.state import ShareGroup
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition

AnyGroup: TypeAlias = Group | ConsumerGroup | ShareGroup
_OfShare: TypeAlias = ShareHeartbeat | AlterShareOffsets | DeleteShareOffsets
Event: TypeAlias = classic_events.Event | ConsumerHeartbeat | _OfShare | StatesAnswered
Effects: TypeAlias = tuple[Append | Answer | offset_events.ForgetLater | AskStates, ...]
Step: TypeAlias = tuple[AnyGroup, Effects]


def step(group: AnyGroup, event: Event, now: Now, limits: GroupSettings) -> Step:
    if isinstance(group, ShareGroup):
        return share.step(group, event, now, limits)
    if isinstance(event, _OfShare):
        return _first_of_share(group, event, now, limits)
    if isinstance(event, ConsumerHeartbeat) and isinstance(group, Group):
        return _heartbeat_of_classic(group, event, now, limits)
    if isinstance(group, Group):
        assert not isinstance(event, ConsumerHeartbeat | StatesAnswered), "it was answered"
        return classic.step(group, event, now, limits)
    if isinstance(event, classic_events.Join) and not group.members and not group.is_dead:
        return _join_to_empty(group, event, now, limits)
    return _settled(*consumer.step(group, event, now, limits), now, limits)


def _settled(group: ConsumerGroup, effects: consumer.Effects, now: Now, limits: GroupSettings) -> Step:
    """Make a group whose members are all classic ones a classic group, if it may be."""
    if not migration.can_downgrade(group, limits):
        return group, effects
    after, more = migration.downgraded(group, now, limits)
    return after, (*effects, *more)


def _first_of_share(group: Group | ConsumerGroup, event: _OfShare, now: Now, limits: GroupSettings) -> Step:
    """Make a group of which nothing is stored a share group, if a member joins or offsets are set."""
    is_joining = isinstance(event, AlterShareOffsets) or (isinstance(event, ShareHeartbeat) and event.epoch == JOINING)
    if group.phase in (Phase.DEAD, state.Phase.DEAD):
        error, said = ErrorCode.NOT_COORDINATOR, None
    elif not group.is_blank:
        error, said = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.id} is not a share group."
    elif is_joining:
        after, effects = share.step(ShareGroup(id=group.id), event, now, limits)
        return (group if after.is_blank else after), effects
    else:
        is_staying = isinstance(event, ShareHeartbeat) and event.epoch > JOINING
        error, said = ErrorCode.GROUP_ID_NOT_FOUND, f"{'Share group' if is_staying else 'Group'} {group.id} not found."
    if isinstance(event, ShareHeartbeat):
        return group, (Answer(event.request, Heard(error=error, message=said)),)
    return group, (Answer(event.request, SharesDone(error, said)),)


def _heartbeat_of_classic(group: Group, event: ConsumerHeartbeat, now: Now, limits: GroupSettings) -> Step:
    """Make the group one of the consumer protocol, if the heartbeat is that of a member that joins, and may.

    A member that stays was expelled, and the group has become a classic one since: it is told to join again. A Kafka
    4.4 tells it that there is no such group, on which librdkafka gives up.
    """
    if group.phase is Phase.DEAD:
        return group, (Answer(event.request, Heard(error=ErrorCode.NOT_COORDINATOR)),)
    is_empty = group.phase is Phase.EMPTY and not group.members
    message = None if is_empty else migration.upgrade_refusal(group, limits)
    if message is None and event.epoch > JOINING and not group.is_blank:
        said = f"Member {event.member_id} is not a member of group {group.id}."
        return group, (Answer(event.request, Heard(error=ErrorCode.UNKNOWN_MEMBER_ID, message=said)),)
    if event.epoch != JOINING:
        message = f"Group {group.id} is not a consumer group."
        if group.is_blank:
            message = f"{'Consumer group' if event.epoch > 0 else 'Group'} {group.id} not found."
    if message is not None:
        return group, (Answer(event.request, Heard(error=ErrorCode.GROUP_ID_NOT_FOUND, message=message)),)
    if is_empty:
        made = ConsumerGroup(id=group.id, offsets=group.offsets, unstored=group.keys)
    else:
        made = migration.upgraded(group, event.known, now)
    after, effects = consumer.step(made, event, now, limits)
    if after.in_flight is None:  # the member is refused
        return group, effects
    return after, (*migration.parked(group), *effects)


def _join_to_empty(group: ConsumerGroup, event: classic_events.Join, now: Now, limits: GroupSettings) -> Step:
    """Make a group that nobody is in a classic one, once nothing of it is in flight; not for a join that is refused."""
    if group.in_flight:
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return group, (Answer(event.request, classic_events.Joined(error=error, member_id=event.member_id)),)
    made = Group(id=group.id, offsets=group.offsets, unstored=group.keys)
    after, effects = classic.step(made, event, now, limits)
    return (group if after == made else after), effects


def resume(
    stored: AnyGroup,
    offsets: Mapping[TopicPartition, Committed],
    now: Now,
    limits: GroupSettings,
    uncommitted: Mapping[int, Mapping[TopicPartition, Committed]] = MappingProxyType({}),
) -> Step:
    """Return the group as its new coordinator loaded it. The sessions of its members restart."""
    if isinstance(stored, ShareGroup):
        return share.resume(stored, now, limits), ()
    if isinstance(stored, ConsumerGroup):
        return _settled(consumer.resume(stored, offsets, now, limits, uncommitted), (), now, limits)
    return classic.resume(stored, offsets, now, limits, uncommitted)


def deadline_ms(group: AnyGroup) -> int | None:
    """Return the (monotonic) time of the next Ticked that the group needs; None for none."""
    if isinstance(group, ShareGroup):
        return share_state.deadline_ms(group)
    return state.deadline_ms(group) if isinstance(group, ConsumerGroup) else classic_deadline_ms(group)


def type_of(group: AnyGroup) -> str:
    """Return Kafka's name of the type of a group."""
    if isinstance(group, Group):
        return "classic"
    return share_state.TYPE if isinstance(group, ShareGroup) else state.TYPE


def may_commit(group: AnyGroup, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
    """Return the answer to a commit outside of a transaction."""
    if isinstance(group, ShareGroup):
        return ErrorCode.GROUP_ID_NOT_FOUND
    if isinstance(group, ConsumerGroup):
        return commits.may_commit(group, member_id, generation, is_anonymous_allowed=False)
    return permission.may_commit(group, member_id, generation, instance_id, in_transaction=False, has_offsets=True)
