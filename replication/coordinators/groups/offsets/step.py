"""The machine of a group's offsets: commits, transactions, deletions, and offsets that expire.

Laws:

- A commit is answered once it is stored. The later of two offsets for a partition in the log counts.
- An offset in a transaction counts once it is committed, as of its place in the log.
- The offsets of a deleted topic go, wherever they are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from replication.coordinators.groups.messages import Answer, Appended, Body, Done, Now
from replication.coordinators.groups.offsets import events
from replication.coordinators.groups.offsets.state import NO_TIME, Committed, Offsets
from replication.coordinators.groups.settings import GroupSettings
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition
from replication.model.edit import freeze, thaw

NOWHERE = -1  # the position of an offset that is only in flight


class WorkingOffsets:
    """Offsets while one event is processed, and the resulting effects. Mappings are replaced, never changed."""

    committed: Mapping[TopicPartition, Committed]
    in_flight: Mapping[int, tuple[TopicPartition, ...]]
    uncommitted: Mapping[int, Mapping[TopicPartition, Committed]]
    in_transactions: Mapping[int, tuple[int, bool | None]]

    def __init__(self, offsets: Offsets, now: Now, limits: GroupSettings) -> None:
        thaw(offsets, self, shared=("committed", "in_flight", "uncommitted", "in_transactions"))
        self.now = now
        self.limits = limits
        self.effects: list[events.Effect] = []

    def answer(self, request: int, body: Body) -> None:
        self.effects.append(Answer(request, body))


def step(
    offsets: Offsets, event: events.Event, now: Now, limits: GroupSettings
) -> tuple[Offsets, tuple[events.Effect, ...]]:
    draft = WorkingOffsets(offsets, now, limits)
    _ACTS[type(event)](draft, event)
    return freeze(Offsets, draft), tuple(draft.effects)


def _commit(draft: WorkingOffsets, event: events.Commit) -> None:
    """Store the offsets, except those with too long a metadata text."""
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
    draft.in_flight = {**draft.in_flight, event.request: tuple(accepted)}
    if event.producer is not None:
        draft.in_transactions = {**draft.in_transactions, event.request: (event.producer[0], None)}
    write = events.NewOffsets(event.request, accepted, refused, event.producer)
    draft.effects.append(events.AppendOffsets(write, dict(accepted)))


def _offsets_stored(draft: WorkingOffsets, write: events.NewOffsets, outcome: Appended) -> None:
    """Answer a commit. The later of two commits for a partition in the log wins."""
    wanted = draft.in_flight.get(write.request, ())
    draft.in_flight = {request: tps for request, tps in draft.in_flight.items() if request != write.request}
    ended = draft.in_transactions.get(write.request, (0, True))[1]
    draft.in_transactions = {n: tps for n, tps in draft.in_transactions.items() if n != write.request}
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
        draft.committed = take_in(draft.committed, stored)
    _remove_gone(draft, {tp: outcome.position for tp in stored if tp not in wanted})
    draft.answer(write.request, events.OffsetsDone(refused=write.refused))


def _transaction_ended(draft: WorkingOffsets, event: events.TransactionEnded) -> None:
    """Offsets of a committed transaction count from now on, as of their place in the log; others are dropped."""
    left = dict(draft.uncommitted)
    stored = left.pop(event.producer_id, {})
    draft.uncommitted = left
    if event.commits:
        draft.committed = take_in(draft.committed, stored)
    draft.in_transactions = {
        request: (producer_id, event.commits if producer_id == event.producer_id else ended)
        for request, (producer_id, ended) in draft.in_transactions.items()
    }


def _delete(draft: WorkingOffsets, event: events.DeleteOffsets) -> None:
    refused = {tp: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC for tp in event.partitions if tp.topic in event.subscribed}
    gone = tuple(tp for tp in event.partitions if tp not in refused and tp in draft.committed)
    if gone:
        _remove(draft, events.GoneOffsets(gone, request=event.request, refused=refused))
    else:
        draft.answer(event.request, events.OffsetsDone(refused=refused))


def _expire(draft: WorkingOffsets, event: events.ExpireOffsets) -> None:
    """Delete offsets that expired, and an empty group with the last of them."""
    being_written = {tp for tps in draft.in_flight.values() for tp in tps}
    expired = tuple(
        tp
        for tp, stored in draft.committed.items()
        if tp not in being_written and _is_expired(draft, event, tp, stored)
    )
    is_used = draft.in_flight or draft.uncommitted
    if event.empty_generation is not None and not is_used and len(expired) == len(draft.committed):
        _remove_all(draft, event)
    elif expired:
        _remove(draft, events.GoneOffsets(expired))


def _forget(draft: WorkingOffsets, event: events.ForgetTopics) -> None:
    """Delete the offsets of these topics, whether they count, wait for their transaction to end, or are in flight.

    Those in flight are deleted again once they are stored: that may be behind this deletion, or this one fails.
    """
    topics, before = event.topics, event.before
    coming = draft.in_flight.values() if before is None else ()
    known = (tp for tps in (draft.committed, *draft.uncommitted.values(), *coming) for tp in tps)
    gone = {tp: _last_position(draft, tp) for tp in known if tp.topic in topics}
    if before is None:
        draft.in_flight = {
            request: tuple(tp for tp in tps if tp.topic not in topics) for request, tps in draft.in_flight.items()
        }
    _remove_gone(draft, {tp: at for tp, at in gone.items() if before is None or at < before})


def _remove_gone(draft: WorkingOffsets, positions: Mapping[TopicPartition, int]) -> None:
    """Delete offsets of gone topics, but where one was committed since, or is about to be: for a later topic."""
    left = {tp: at for tp, at in positions.items() if _last_position(draft, tp) == at}
    coming = {tp for tps in draft.in_flight.values() for tp in tps}
    if later := {tp: at for tp, at in left.items() if tp in coming}:
        draft.effects.append(events.ForgetLater(later))
    if now := {tp: at for tp, at in left.items() if tp not in coming}:
        _remove(draft, events.GoneOffsets(tuple(now), positions=now))


def _last_position(draft: WorkingOffsets, tp: TopicPartition) -> int:
    stored = (offsets[tp].position for offsets in (draft.committed, *draft.uncommitted.values()) if tp in offsets)
    return max(stored, default=NOWHERE)


def _is_expired(draft: WorkingOffsets, event: events.ExpireOffsets, tp: TopicPartition, stored: Committed) -> bool:
    if event.subscribed is None or tp.topic in event.subscribed:
        return False
    wall_ms = draft.now.wall_ms
    if stored.expire_ms != NO_TIME:
        return wall_ms >= stored.expire_ms
    since_ms = stored.commit_ms if event.since_ms is None else event.since_ms
    return wall_ms - since_ms >= draft.limits.offsets_retention_ms


def _remove(draft: WorkingOffsets, write: events.GoneOffsets) -> None:
    draft.effects.append(events.AppendOffsets(write, dict.fromkeys(write.partitions)))


def _remove_all(draft: WorkingOffsets, event: events.ExpireOffsets | events.DeleteAll) -> None:
    """Delete the offsets, and the group: there is nothing to store of one that was never stored."""
    request = event.request if isinstance(event, events.DeleteAll) else None
    if draft.committed or event.gone_keys:
        write = events.GoneOffsets(tuple(draft.committed), event.empty_generation, event.gone_keys, request)
        draft.effects.append(events.AppendOffsets(write, dict.fromkeys(draft.committed), event.gone_keys))
    elif request is not None:
        draft.answer(request, Done())


def _offsets_gone(draft: WorkingOffsets, write: events.GoneOffsets, outcome: Appended) -> None:
    """Forget deleted offsets that were not committed again.

    Offsets before the deletion in the log are deleted, in an open transaction, too: so will the next coordinator read.
    """
    if outcome.error is ErrorCode.NONE:
        gone, position = frozenset(write.partitions), outcome.position
        draft.committed = _without(draft.committed, gone, position)
        open_ = {number: _without(offsets, gone, position) for number, offsets in draft.uncommitted.items()}
        draft.uncommitted = {number: offsets for number, offsets in open_.items() if offsets}
    elif write.positions:
        draft.effects.append(events.ForgetLater(write.positions))
    if write.request is None:
        return
    if write.empty_generation is not None:
        draft.answer(write.request, Done(outcome.error))
    else:
        draft.answer(write.request, events.OffsetsDone(outcome.error, write.refused))


def _without(
    offsets: Mapping[TopicPartition, Committed], gone: Collection[TopicPartition], position: int
) -> dict[TopicPartition, Committed]:
    return {tp: stored for tp, stored in offsets.items() if tp not in gone or stored.position > position}


def _appended(draft: WorkingOffsets, outcome: Appended) -> None:
    match outcome.write:
        case events.NewOffsets():
            _offsets_stored(draft, outcome.write, outcome)
        case events.GoneOffsets():
            _offsets_gone(draft, outcome.write, outcome)


def take_in(
    offsets: Mapping[TopicPartition, Committed], stored: Mapping[TopicPartition, Committed]
) -> Mapping[TopicPartition, Committed]:
    """Return the offsets with those that are new; of two for a partition, the later one in the log wins."""
    taken = dict(offsets)
    for tp, new in stored.items():
        old = taken.get(tp)
        if old is None or old.position <= new.position:
            taken[tp] = new
    return taken


_ACTS: Mapping[type[events.Event], Callable[[WorkingOffsets, Any], None]] = {
    events.Commit: _commit,
    events.TransactionEnded: _transaction_ended,
    events.DeleteOffsets: _delete,
    events.DeleteAll: _remove_all,
    events.ForgetTopics: _forget,
    events.ForgetAgain: lambda draft, event: _remove_gone(draft, event.positions),
    events.ExpireOffsets: _expire,
    Appended: _appended,
}
