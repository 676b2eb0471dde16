"""Committed offsets: who may commit, and when offsets are deleted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from replication.coordinators.groups.machine import events
from replication.coordinators.groups.machine.draft import WorkingState
from replication.coordinators.groups.machine.permission import may_commit
from replication.coordinators.groups.machine.standing import take_in
from replication.coordinators.groups.machine.state import NO_TIME, Committed, Phase
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition

NOWHERE = -1  # the position of an offset that is only in flight


def commit(draft: WorkingState, event: events.Commit) -> None:
    """Store the offsets, except those with too long a metadata text. A commit counts as a heartbeat of its member."""
    error = may_commit(
        draft,
        event.member_id,
        event.generation,
        event.instance_id,
        in_transaction=event.producer is not None,
        has_offsets=bool(draft.offsets or draft.commits or draft.uncommitted),
    )
    if error is not ErrorCode.NONE:
        draft.answer(event.request, events.OffsetsDone(error))
        return
    if event.member_id in draft.members:
        draft.hear(event.member_id)
    text_bytes_max = draft.limits.offset_metadata_max_bytes
    refused = {
        tp: ErrorCode.OFFSET_METADATA_TOO_LARGE
        for tp, wanted in event.offsets.items()
        if len(wanted.metadata.encode()) > text_bytes_max
    }
    accepted = {tp: wanted for tp, wanted in event.offsets.items() if tp not in refused}
    if not accepted:
        draft.answer(event.request, events.OffsetsDone(refused=refused))
        return
    draft.commits = {**draft.commits, event.request: tuple(accepted)}
    if event.producer is not None:
        draft.in_transactions = {**draft.in_transactions, event.request: (event.producer[0], None)}
    write = events.NewOffsets(event.request, accepted, refused, event.producer)
    draft.effects.append(events.Append(write, offsets=dict(accepted)))


def offsets_stored(draft: WorkingState, write: events.NewOffsets, outcome: events.Appended) -> None:
    """Answer a commit. Of two commits for a partition, the later one in the log wins."""
    wanted = draft.commits.get(write.request, ())
    draft.commits = {request: tps for request, tps in draft.commits.items() if request != write.request}
    ended = draft.in_transactions.get(write.request, (0, True))[1]
    draft.in_transactions = {n: told for n, told in draft.in_transactions.items() if n != write.request}
    if outcome.error is not ErrorCode.NONE:
        draft.answer(write.request, events.OffsetsDone(outcome.error))
        return
    stored = {tp: replace(new, position=outcome.position) for tp, new in write.offsets.items()}
    if ended is None:
        assert write.producer is not None, "only a transaction can be open"
        producer_id = write.producer[0]
        before = draft.uncommitted.get(producer_id, {})
        draft.uncommitted = {**draft.uncommitted, producer_id: {**before, **stored}}
    elif ended:
        draft.offsets = take_in(draft.offsets, stored)
    _remove_gone(draft, {tp: outcome.position for tp in stored if tp not in wanted})
    draft.answer(write.request, events.OffsetsDone(refused=write.refused))


def transaction_ended(draft: WorkingState, event: events.TransactionEnded) -> None:
    """Offsets of a committed transaction count from now on, as of their place in the log; others are dropped."""
    left = dict(draft.uncommitted)
    stored = left.pop(event.producer_id, {})
    draft.uncommitted = left
    if event.commits:
        draft.offsets = take_in(draft.offsets, stored)
    draft.in_transactions = {
        request: (producer_id, event.commits if producer_id == event.producer_id else ended)
        for request, (producer_id, ended) in draft.in_transactions.items()
    }


def delete_offsets(draft: WorkingState, event: events.DeleteOffsets) -> None:
    topics: Collection[str] = ()
    if draft.group().is_blank:
        draft.answer(event.request, events.OffsetsDone(ErrorCode.GROUP_ID_NOT_FOUND))
        return
    if draft.phase is not Phase.EMPTY:
        known = draft.group().topics
        if known is None:
            draft.answer(event.request, events.OffsetsDone(ErrorCode.NON_EMPTY_GROUP))
            return
        topics = known
    refused = {tp: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC for tp in event.partitions if tp.topic in topics}
    gone = tuple(tp for tp in event.partitions if tp not in refused and tp in draft.offsets)
    if gone:
        _remove(draft, events.GoneOffsets(gone, request=event.request, refused=refused))
    else:
        draft.answer(event.request, events.OffsetsDone(refused=refused))


def delete_group(draft: WorkingState, event: events.DeleteGroup) -> None:
    if draft.group().is_blank:
        draft.answer(event.request, events.Done(ErrorCode.GROUP_ID_NOT_FOUND))
    elif draft.phase is not Phase.EMPTY:
        draft.answer(event.request, events.Done(ErrorCode.NON_EMPTY_GROUP))
    else:
        _remove_group(draft, event.request)


def clean(draft: WorkingState, event: events.ForgetTopics | events.ExpireOffsets) -> None:
    """Delete offsets that expired or whose topics are gone, and an empty group with the last of them."""
    if isinstance(event, events.ForgetTopics):
        _forget(draft, event.topics, event.before)
        return
    being_written = {tp for tps in draft.commits.values() for tp in tps}
    expired = tuple(
        tp for tp, stored in draft.offsets.items() if tp not in being_written and _is_expired(draft, tp, stored)
    )
    is_used = draft.commits or draft.pending or draft.uncommitted
    is_abandoned = draft.phase is Phase.EMPTY and not is_used
    if is_abandoned and len(expired) == len(draft.offsets):
        _remove_group(draft, None)
    elif expired:
        _remove(draft, events.GoneOffsets(expired))


def _forget(draft: WorkingState, topics: Collection[str], before: int | None) -> None:
    """Delete the offsets of these topics, whether they count, wait for their transaction to end, or are in flight.

    Those in flight are deleted again once they are stored: that may be behind this deletion, or this one fails.
    """
    coming = draft.commits.values() if before is None else ()
    known = (tp for tps in (draft.offsets, *draft.uncommitted.values(), *coming) for tp in tps)
    gone = {tp: _last_position(draft, tp) for tp in known if tp.topic in topics}
    if before is None:
        draft.commits = {
            request: tuple(tp for tp in tps if tp.topic not in topics) for request, tps in draft.commits.items()
        }
    _remove_gone(draft, {tp: at for tp, at in gone.items() if before is None or at < before})


def forget_again(draft: WorkingState, event: events.ForgetAgain) -> None:
    _remove_gone(draft, event.positions)


def _remove_gone(draft: WorkingState, positions: Mapping[TopicPartition, int]) -> None:
    """Delete offsets of gone topics, but where one was committed since, or is about to be: for a later topic."""
    left = {tp: at for tp, at in positions.items() if _last_position(draft, tp) == at}
    coming = {tp for tps in draft.commits.values() for tp in tps}
    if later := {tp: at for tp, at in left.items() if tp in coming}:
        draft.effects.append(events.ForgetLater(later))
    if now := {tp: at for tp, at in left.items() if tp not in coming}:
        _remove(draft, events.GoneOffsets(tuple(now), positions=now))


def _last_position(draft: WorkingState, tp: TopicPartition) -> int:
    stored = (offsets[tp].position for offsets in (draft.offsets, *draft.uncommitted.values()) if tp in offsets)
    return max(stored, default=NOWHERE)


def _is_expired(draft: WorkingState, tp: TopicPartition, stored: Committed) -> bool:
    """An empty group's offsets expire counted from its end, others from their commit; subscribed ones do not expire."""
    wall_ms = draft.now.wall_ms
    since_ms = stored.commit_ms
    if draft.protocol_type is not None:
        if draft.phase is Phase.EMPTY:
            since_ms = draft.since_ms if draft.since_ms != NO_TIME else stored.commit_ms
        else:
            topics = draft.group().topics if draft.phase is Phase.STABLE else None
            if topics is None or tp.topic in topics:
                return False
    if stored.expire_ms != NO_TIME:
        return wall_ms >= stored.expire_ms
    return wall_ms - since_ms >= draft.limits.offsets_retention_ms


def _remove(draft: WorkingState, write: events.GoneOffsets) -> None:
    draft.effects.append(events.Append(write, offsets=dict.fromkeys(write.partitions)))


def _remove_group(draft: WorkingState, request: int | None) -> None:
    """Delete offsets and group; a group that was never stored and has no offsets is just forgotten."""
    write = events.GoneOffsets(tuple(draft.offsets), draft.generation, request, is_whole_group=True)
    if draft.offsets or draft.generation:
        draft.effects.append(
            events.Append(write, offsets=dict.fromkeys(draft.offsets), deletes_group=draft.generation > 0)
        )
        return
    draft.pending = {}
    if request is not None:
        draft.answer(request, events.Done())


def offsets_gone(draft: WorkingState, write: events.GoneOffsets, outcome: events.Appended) -> None:
    """Forget deleted offsets that were not committed again, and the group if it did not change.

    What lies before the deletion in the log is deleted, in an open transaction, too: so will the next coordinator read.
    """
    if outcome.error is ErrorCode.NONE:
        gone, position = frozenset(write.partitions), outcome.position
        draft.offsets = _without(draft.offsets, gone, position)
        open_ = {number: _without(offsets, gone, position) for number, offsets in draft.uncommitted.items()}
        draft.uncommitted = {number: offsets for number, offsets in open_.items() if offsets}
        if draft.phase is Phase.EMPTY and draft.generation == write.group_generation:
            draft.generation, draft.protocol_type, draft.since_ms = 0, None, NO_TIME
    elif write.positions:
        draft.effects.append(events.ForgetLater(write.positions))
    if write.request is None:
        return
    if write.is_whole_group:
        draft.answer(write.request, events.Done(outcome.error))
    else:
        draft.answer(write.request, events.OffsetsDone(outcome.error, write.refused))


def _without(
    offsets: Mapping[TopicPartition, Committed], gone: Collection[TopicPartition], position: int
) -> dict[TopicPartition, Committed]:
    return {tp: stored for tp, stored in offsets.items() if tp not in gone or stored.position > position}
