"""A group of either protocol: `step` for both, and how an empty group of one becomes one of the other.

Laws: a group with members is not converted; a group is of one protocol at a time, and keeps its committed offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from replication.coordinators.groups.classic import events as classic_events
from replication.coordinators.groups.classic import permission
from replication.coordinators.groups.classic import step as classic
from replication.coordinators.groups.classic.state import Group, Phase
from replication.coordinators.groups.classic.state import deadline_ms as classic_deadline_ms
from replication.coordinators.groups.consumer import commits, state
from replication.coordinators.groups.consumer import step as consumer
from replication.coordinators.groups.consumer.events import ConsumerHeartbeat, Heard
from replication.coordinators.groups.consumer.state import JOINING, ConsumerGroup
from replication.coordinators.groups.messages import Answer, Now
from replication.coordinators.groups.offsets.state import Committed
from replication.coordinators.groups.settings import GroupSettings
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition

AnyGroup: TypeAlias = Group | ConsumerGroup
Event: TypeAlias = classic_events.Event | ConsumerHeartbeat
Step: TypeAlias = tuple[AnyGroup, consumer.Effects]


def step(group: AnyGroup, event: Event, now: Now, limits: GroupSettings) -> Step:
    if isinstance(event, ConsumerHeartbeat) and isinstance(group, Group):
        return _heartbeat_of_classic(group, event, now, limits)
    if isinstance(group, Group):
        assert not isinstance(event, ConsumerHeartbeat), "it was answered"
        return classic.step(group, event, now, limits)
    if isinstance(event, classic_events.Join) and not group.members and not group.is_dead:
        return _join_to_empty(group, event, now, limits)
    return consumer.step(group, event, now, limits)


def _heartbeat_of_classic(group: Group, event: ConsumerHeartbeat, now: Now, limits: GroupSettings) -> Step:
    """Make an empty group one of the consumer protocol; one with members stays as it is."""
    if group.phase is Phase.DEAD:
        return group, (Answer(event.request, Heard(error=ErrorCode.NOT_COORDINATOR)),)
    is_empty = group.phase is Phase.EMPTY and not group.members
    if event.epoch != JOINING or not is_empty:
        message = f"Group {group.id} is not a consumer group."
        if event.epoch == JOINING:
            message = f"Cannot upgrade classic group {group.id} to consumer group because online upgrade is disabled."
        elif group.is_blank:
            message = f"{'Consumer group' if event.epoch > 0 else 'Group'} {group.id} not found."
        return group, (Answer(event.request, Heard(error=ErrorCode.GROUP_ID_NOT_FOUND, message=message)),)
    made = ConsumerGroup(id=group.id, offsets=group.offsets, unstored=group.keys)
    after, effects = consumer.step(made, event, now, limits)
    return (group if not after.members else after), effects


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
    if isinstance(stored, ConsumerGroup):
        return consumer.resume(stored, offsets, now, limits, uncommitted), ()
    return classic.resume(stored, offsets, now, limits, uncommitted)


def deadline_ms(group: AnyGroup) -> int | None:
    """Return the (monotonic) time of the next Ticked that the group needs; None for none."""
    return state.deadline_ms(group) if isinstance(group, ConsumerGroup) else classic_deadline_ms(group)


def may_commit(group: AnyGroup, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
    """Return the answer to a commit outside of a transaction."""
    if isinstance(group, ConsumerGroup):
        return commits.may_commit(group, member_id, generation, is_anonymous_allowed=False)
    return permission.may_commit(group, member_id, generation, instance_id, in_transaction=False, has_offsets=True)
