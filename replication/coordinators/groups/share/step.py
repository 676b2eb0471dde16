"""The machine of a share group: `step(group, event, now, limits) -> (group, effects)`.

Laws:

- Once all is initialized, every partition of a subscribed topic has members, and every member partitions.
- A partition is assigned only while it has a share state, and its state does not begin anew meanwhile.
- An answer tells only of what is stored, so that the next coordinator knows it. While something is being stored,
  nothing else changes: events wait, and are taken together then.
- One question to the share states is under way at a time; others wait for its answer.
- A member that is silent for its session timeout is expelled.
- Every request is answered once.

The caller stores the new state before it performs the effects, in order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from replication.coordinators.groups.classic import events as classic
from replication.coordinators.groups.classic.step import error_of_append
from replication.coordinators.groups.consumer.events import ConsumerHeartbeat
from replication.coordinators.groups.messages import Appended, Body, Done, Now
from replication.coordinators.groups.offsets import events as offset_events
from replication.coordinators.groups.parts.events import Heard
from replication.coordinators.groups.settings import GroupSettings
from replication.coordinators.groups.share import partitions
from replication.coordinators.groups.share.draft import Effect, WorkingShare
from replication.coordinators.groups.share.events import (
    AlterShareOffsets,
    DeleteShareOffsets,
    ShareHeartbeat,
    SharesDone,
    StatesAnswered,
    Waiting,
)
from replication.coordinators.groups.share.heartbeats import hear, tick
from replication.coordinators.groups.share.state import Purpose, ShareGroup
from replication.errors import NONE, ErrorCode

_ASKING = AlterShareOffsets | DeleteShareOffsets | classic.DeleteGroup  # they wait for an answer of the share states


def resume(stored: ShareGroup, now: Now, limits: GroupSettings) -> ShareGroup:
    """Return the group as its new coordinator loaded it. The sessions of its members restart."""
    return replace(stored, deadlines_ms=dict.fromkeys(stored.members, now.ms + limits.group_share_session_timeout_ms))


def step(group: ShareGroup, event: Any, now: Now, limits: GroupSettings) -> tuple[ShareGroup, tuple[Effect, ...]]:
    draft = WorkingShare(group, now, limits)
    if isinstance(event, Appended):
        _appended(draft, replace(event, error=error_of_append(event.error, type(event.write))))
    elif group.is_dead:
        _refuse(draft, event, ErrorCode.NOT_COORDINATOR)
    elif isinstance(event, Waiting):
        draft.queue += (event,)
        _take_queue(draft)
    elif isinstance(event, classic.Ticked):
        if draft.in_flight is None:
            tick(draft, event)
    elif isinstance(event, classic.Unloaded):
        _unload(draft)
    else:
        _refuse(draft, event, None)
    return draft.done()


def _refuse(draft: WorkingShare, event: Any, error: ErrorCode | None) -> None:
    """None: members of other protocols are none of a share group, and it has no committed offsets."""
    match event:
        case ShareHeartbeat():
            draft.refuse(event.request, Heard(error=error or NONE))
        case AlterShareOffsets() | DeleteShareOffsets():
            draft.refuse(event.request, SharesDone(error or NONE))
        case classic.DeleteGroup():
            draft.refuse(event.request, Done(error or NONE))
        case ConsumerHeartbeat():
            message = f"Group {draft.id} is not a consumer group."
            draft.refuse(event.request, Heard(error=error or ErrorCode.GROUP_ID_NOT_FOUND, message=message))
        case classic.Join():
            code = error or ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            draft.refuse(event.request, classic.Joined(error=code, member_id=event.member_id))
        case classic.Sync():
            draft.refuse(event.request, classic.Synced(error or ErrorCode.UNKNOWN_MEMBER_ID))
        case classic.Leave():
            code = error or ErrorCode.UNKNOWN_MEMBER_ID
            draft.refuse(event.request, classic.Left(tuple(code for _ in event.leaving)))
        case classic.Heartbeat():
            draft.refuse(event.request, Done(error or ErrorCode.UNKNOWN_MEMBER_ID))
        case offset_events.Commit() | offset_events.DeleteOffsets():
            draft.refuse(event.request, offset_events.OffsetsDone(error or ErrorCode.GROUP_ID_NOT_FOUND))


def _unload(draft: WorkingShare) -> None:
    """Answer whoever waits; writes and questions in flight end without a word."""
    draft.end_write(ErrorCode.NOT_COORDINATOR, _failed)
    for waiting in draft.queue:
        _refuse(draft, waiting, ErrorCode.NOT_COORDINATOR)
    _end_call(draft, ErrorCode.NOT_COORDINATOR)
    draft.end()


def _end_call(draft: WorkingShare, error: ErrorCode) -> None:
    call, draft.call = draft.call, None
    if call is not None and call.request is not None:
        body = Done(error) if call.purpose is Purpose.DELETE_GROUP else SharesDone(error)
        draft.refuse(call.request, body)


def _appended(draft: WorkingShare, outcome: Appended) -> None:
    if not draft.is_under_way(outcome.write):
        return
    draft.end_write(outcome.error, _failed)
    if outcome.error is NONE:
        draft.begin_call()
    elif draft.call is not None and not draft.call.is_begun:
        _end_call(draft, outcome.error)
    _take_queue(draft)


def _failed(body: Body, error: ErrorCode) -> Body:
    if isinstance(body, Heard):
        return Heard(error=error)
    return Done(error) if isinstance(body, Done) else SharesDone(error)


def _take_queue(draft: WorkingShare) -> None:
    """Take in what waits; heartbeats that follow each other together."""
    if draft.in_flight is not None:
        return
    # An answer first: others wait for it.
    waiting, draft.queue = sorted(draft.queue, key=lambda event: not isinstance(event, StatesAnswered)), ()
    heard: list[ShareHeartbeat] = []
    for event in waiting:
        if isinstance(event, ShareHeartbeat):
            heard.append(event)
            continue
        hear(draft, heard)
        heard = []
        if isinstance(event, _ASKING) and draft.call is not None:
            draft.queue += (event,)
            continue
        match event:
            case StatesAnswered():
                partitions.answered(draft, event)
            case AlterShareOffsets():
                partitions.alter(draft, event)
            case DeleteShareOffsets():
                partitions.delete(draft, event)
            case classic.DeleteGroup():
                partitions.delete_group(draft, event)
            case offset_events.ForgetTopics():
                partitions.forget(draft, event)
    hear(draft, heard)
