"""The machine of a group of the consumer protocol: `step(group, event, now, limits) -> (group, effects)`.

Laws:

- No partition is held by two members: one gets it once the other has said that it gave it up, has left, or is expelled.
- Once all members have said so, every partition of a subscribed topic is assigned.
- An answer tells only of what is stored, so that the next coordinator knows it.
- While something is being stored, nothing else changes: events wait, and are taken together then. So no write in the
  log tells of an earlier one that was lost.
- A member that is silent for its session timeout, or does not give up partitions in time, is expelled.
- A commit of an older epoch is stored only if its member has held all the partitions since then, and nobody else has.
- Every request is answered once.

The caller stores the new state before it performs the effects, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from replication.coordinators.groups.classic import events as classic
from replication.coordinators.groups.classic.step import error_of_append
from replication.coordinators.groups.consumer import commits
from replication.coordinators.groups.consumer.draft import WorkingGroup
from replication.coordinators.groups.consumer.events import Waiting
from replication.coordinators.groups.consumer.heartbeats import hear, refusal, tick
from replication.coordinators.groups.consumer.state import ConsumerGroup, Progress
from replication.coordinators.groups.messages import Answer, Append, Appended, Body, Done, Now
from replication.coordinators.groups.offsets import events as offset_events
from replication.coordinators.groups.offsets.state import Committed, Offsets
from replication.coordinators.groups.parts.events import Heard
from replication.coordinators.groups.settings import GroupSettings
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TopicPartition

Effects = tuple[Append | Answer | offset_events.ForgetLater, ...]


def resume(
    stored: ConsumerGroup,
    offsets: Mapping[TopicPartition, Committed],
    now: Now,
    limits: GroupSettings,
    uncommitted: Mapping[int, Mapping[TopicPartition, Committed]],
) -> ConsumerGroup:
    """Return the group as its new coordinator loaded it. The sessions of its members restart."""
    session_ms = limits.group_consumer_session_timeout_ms
    return replace(
        stored,
        deadlines_ms={name: now.ms + each.session_timeout_ms(session_ms) for name, each in stored.members.items()},
        revoke_until_ms={
            name: now.ms + stored.members[name].rebalance_timeout_ms
            for name, current in stored.currents.items()
            if current.progress is Progress.REVOKING
        },
        offsets=Offsets(committed=offsets, uncommitted=uncommitted),
    )


def step(group: ConsumerGroup, event: Any, now: Now, limits: GroupSettings) -> tuple[ConsumerGroup, Effects]:
    draft = WorkingGroup(group, now, limits)
    if isinstance(event, Appended):
        _appended(draft, replace(event, error=error_of_append(event.error, type(event.write))))
    elif group.is_dead:
        _refuse(draft, event, ErrorCode.NOT_COORDINATOR)
    elif isinstance(event, Waiting):
        draft.queue += (event,)
        _take_queue(draft)
    else:
        _ACTS.get(type(event), commits.post)(draft, event)
    return draft.done()


def _refuse(draft: WorkingGroup, event: Any, error: ErrorCode) -> None:
    match event:
        case _ if isinstance(event, Waiting):
            draft.refuse(event.request, refusal(event, KafkaError(error)))
        case classic.DeleteGroup():
            draft.refuse(event.request, Done(error))
        case offset_events.Commit() | offset_events.DeleteOffsets():
            draft.refuse(event.request, offset_events.OffsetsDone(error))


def _unload(draft: WorkingGroup, event: classic.Unloaded) -> None:
    """Answer whoever waits; writes in flight end without a word."""
    draft.end_write(ErrorCode.NOT_COORDINATOR, _failed)
    for waiting in draft.queue:
        _refuse(draft, waiting, ErrorCode.NOT_COORDINATOR)
    draft.end()
    draft.revoke_until_ms = {}


def _appended(draft: WorkingGroup, outcome: Appended) -> None:
    match outcome.write:
        case write if draft.is_under_way(write):
            draft.end_write(outcome.error, _failed)
            _take_queue(draft)
        case offset_events.NewOffsets():
            commits.post(draft, outcome)
        case offset_events.GoneOffsets() as write:
            commits.deleted(draft, write, outcome)


def _take_queue(draft: WorkingGroup) -> None:
    if draft.in_flight is None:
        waiting, draft.queue = draft.queue, ()
        hear(draft, waiting)


def _failed(body: Body, error: ErrorCode) -> Body:
    match body:
        case classic.Left():
            return classic.Left(tuple(error for _ in body.errors))
        case classic.Joined():
            return classic.Joined(error=error, member_id=body.member_id)
        case classic.Synced():
            return classic.Synced(error)
        case Done():
            return Done(error)
    return Heard(error=error)


_ACTS: Mapping[type[Any], Callable[[WorkingGroup, Any], None]] = {
    classic.Ticked: tick,
    classic.DeleteGroup: commits.delete_group,
    classic.Unloaded: _unload,
    offset_events.Commit: commits.commit,
    offset_events.DeleteOffsets: commits.delete_offsets,
    offset_events.ExpireOffsets: commits.expire,
}
