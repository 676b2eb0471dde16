"""Members and the offsets of their group: who may commit and delete, and which offsets are in use."""

from __future__ import annotations

from dataclasses import replace

from replication.coordinators.groups.classic import events
from replication.coordinators.groups.classic.draft import WorkingState
from replication.coordinators.groups.classic.permission import may_commit
from replication.coordinators.groups.classic.state import Phase
from replication.coordinators.groups.messages import Appended, Done
from replication.coordinators.groups.offsets import events as offset_events
from replication.coordinators.groups.offsets.state import NO_TIME
from replication.coordinators.groups.offsets.step import step
from replication.errors import ErrorCode


def post(draft: WorkingState, event: offset_events.Event) -> None:
    draft.offsets, effects = step(draft.offsets, event, draft.now, draft.limits)
    draft.effects += effects


def commit(draft: WorkingState, event: offset_events.Commit) -> None:
    """Allow a commit, or refuse it. It counts as a heartbeat of its member."""
    error = may_commit(
        draft,
        event.member_id,
        event.generation,
        event.instance_id,
        in_transaction=event.producer is not None,
        has_offsets=not draft.offsets.is_empty,
    )
    if error is not ErrorCode.NONE:
        draft.answer(event.request, offset_events.OffsetsDone(error))
        return
    if event.member_id in draft.members:
        draft.hear(event.member_id)
    post(draft, event)


def delete_offsets(draft: WorkingState, event: offset_events.DeleteOffsets) -> None:
    group = draft.group()
    if group.is_blank:
        draft.answer(event.request, offset_events.OffsetsDone(ErrorCode.GROUP_ID_NOT_FOUND))
    elif group.phase is Phase.EMPTY:
        post(draft, event)
    elif (topics := group.topics) is None:
        draft.answer(event.request, offset_events.OffsetsDone(ErrorCode.NON_EMPTY_GROUP))
    else:
        post(draft, replace(event, subscribed=topics))


def delete_group(draft: WorkingState, event: events.DeleteGroup) -> None:
    group = draft.group()
    if group.is_blank:
        draft.answer(event.request, Done(ErrorCode.GROUP_ID_NOT_FOUND))
    elif draft.phase is not Phase.EMPTY:
        draft.answer(event.request, Done(ErrorCode.NON_EMPTY_GROUP))
    else:
        if not draft.offsets.committed and not draft.generation:
            draft.pending = {}
        post(draft, offset_events.DeleteAll(event.request, draft.generation, group.keys))


def expire(draft: WorkingState, event: offset_events.ExpireOffsets) -> None:
    """An empty group's offsets expire counted from its end, others from their commit; subscribed ones do not expire."""
    is_empty = draft.phase is Phase.EMPTY
    since_ms: int | None = None
    subscribed: frozenset[str] | None = frozenset()
    if draft.protocol_type is not None:
        if not is_empty:
            subscribed = draft.group().topics if draft.phase is Phase.STABLE else None
        elif draft.since_ms != NO_TIME:
            since_ms = draft.since_ms
    empty_generation = draft.generation if is_empty and not draft.pending else None
    post(draft, offset_events.ExpireOffsets(since_ms, subscribed, empty_generation, draft.group().keys))


def deleted(draft: WorkingState, write: offset_events.GoneOffsets, outcome: Appended) -> None:
    """Forget the group if it did not change since it was to be deleted."""
    is_stored = outcome.error is ErrorCode.NONE
    if is_stored and draft.phase is Phase.EMPTY and draft.generation == write.empty_generation:
        draft.generation, draft.protocol_type, draft.since_ms = 0, None, NO_TIME
        draft.unstored -= write.gone_keys
    post(draft, outcome)
