"""Members of the consumer protocol and the offsets of their group: who may commit, read and delete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from replication.coordinators.groups.classic.events import DeleteGroup
from replication.coordinators.groups.consumer.draft import WorkingGroup
from replication.coordinators.groups.consumer.state import Current, Member
from replication.coordinators.groups.messages import Appended, Done
from replication.coordinators.groups.offsets import events as offset_events
from replication.coordinators.groups.offsets.step import step
from replication.coordinators.groups.pieces import Piece
from replication.errors import NONE, ErrorCode


class Membership(Protocol):
    """A group, or its working state."""

    @property
    def members(self) -> Mapping[str, Member]: ...
    @property
    def currents(self) -> Mapping[str, Current]: ...
    @property
    def is_dead(self) -> bool: ...


def may_commit(group: Membership, member_id: str, epoch: int, *, is_anonymous_allowed: bool) -> ErrorCode:
    """Allow commits without a member while the group is empty, and those by a member in its epoch: see also `has_held`.

    `is_anonymous_allowed`: in a transaction, a commit may name no member.
    """
    if group.is_dead:
        return ErrorCode.NOT_COORDINATOR
    if epoch < 0 and (not group.currents or (is_anonymous_allowed and not member_id)):
        return NONE
    current = group.currents.get(member_id)
    if current is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if current.epoch == epoch:
        return NONE
    is_classic = group.members[member_id].classic is not None
    return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH


def has_held(current: Current, epoch: int, pieces: Iterable[Piece]) -> bool:
    """Has the member held all of these since that earlier epoch, and nobody else?"""
    return epoch < current.epoch and all(current.since.get(piece, current.epoch) <= epoch for piece in pieces)


def may_fetch(group: Membership, member_id: str | None, epoch: int) -> ErrorCode:
    """Allow to read committed offsets without naming a member, and by a member in its epoch."""
    if member_id is None and epoch < 0:
        return NONE
    current = group.currents.get(member_id or "")
    if current is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return NONE if current.epoch == epoch else ErrorCode.STALE_MEMBER_EPOCH


def post(draft: WorkingGroup, event: offset_events.Event) -> None:
    draft.offsets, effects = step(draft.offsets, event, draft.now, draft.limits)
    draft.effects += effects


def commit(draft: WorkingGroup, event: offset_events.Commit) -> None:
    """Store offsets of a member in its epoch, and in an earlier one if it has held all the partitions since then."""
    error = may_commit(draft, event.member_id, event.generation, is_anonymous_allowed=event.producer is not None)
    current = draft.currents.get(event.member_id)
    pieces = (Piece(event.topic_ids.get(tp.topic, ""), tp.partition) for tp in event.offsets)
    if error is NONE or (current is not None and has_held(current, event.generation, pieces)):
        post(draft, event)
    else:
        draft.refuse(event.request, offset_events.OffsetsDone(error))


def delete_offsets(draft: WorkingGroup, event: offset_events.DeleteOffsets) -> None:
    post(draft, replace(event, subscribed=draft.subscribed_names()))


def delete_group(draft: WorkingGroup, event: DeleteGroup) -> None:
    if draft.members:
        draft.refuse(event.request, Done(ErrorCode.NON_EMPTY_GROUP))
    else:
        post(draft, offset_events.DeleteAll(event.request, draft.epoch, draft.group().keys))


def expire(draft: WorkingGroup, event: offset_events.ExpireOffsets) -> None:
    """Offsets expire counted from their commit; those of subscribed topics do not."""
    empty_epoch = None if draft.members else draft.epoch
    post(draft, offset_events.ExpireOffsets(None, draft.subscribed_names(), empty_epoch, draft.group().keys))


def deleted(draft: WorkingGroup, write: offset_events.GoneOffsets, outcome: Appended) -> None:
    """Forget the group if it did not change since it was to be deleted."""
    is_stored = outcome.error is NONE and write.empty_generation is not None
    if is_stored and not draft.members and draft.epoch == write.empty_generation:
        # The next write stores it anew, if there is one; this step stores nothing.
        draft.epoch = draft.target_epoch = draft.topics_hash = 0
        draft.before = replace(draft.before, epoch=0, target_epoch=0, topics_hash=0)
        draft.unstored -= write.gone_keys
    post(draft, outcome)
