"""Step: what becomes of a share partition's stored state. Fencing is Kafka's.

A request with an older state epoch than the stored one is refused, so is a read or a write with an older leader epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from replication.coordinators.share_state.machine import events
from replication.coordinators.share_state.machine.batches import NO_OFFSET, DeliveryState, combined
from replication.coordinators.share_state.machine.state import (
    NO_COUNT,
    Record,
    ShareStateSettings,
    Snapshot,
    Update,
)
from replication.errors import ErrorCode

Decided: TypeAlias = "tuple[ShareState, tuple[events.Effect, ...]]"

# The errors of appends after which the record may be committed all the same.
_UNCERTAIN = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
_ERRORS_OF_APPENDS: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_REQUEST,
}
_STORABLE = frozenset(DeliveryState) - {DeliveryState.ACQUIRED}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareState:
    """The state of one share partition at its coordinator.

    Invariant: one record is on its way at a time (`storing`); requests that come meanwhile wait, in their order.
    """

    stored: Snapshot | None = None
    updates: int = 0  # stored since the snapshot
    # ---- not stored
    is_doubtful: bool = False  # a record may be in the log though it counts as failed: the next one is a snapshot
    storing: events.Append | None = None
    waiting: tuple[events.Request, ...] = ()

    @property
    def is_blank(self) -> bool:
        """Return whether there is nothing to remember."""
        return self.stored is None and self.storing is None and not self.is_doubtful


def applied(record: Record, stored: Snapshot | None, updates: int) -> tuple[Snapshot | None, int]:
    """Return the stored state, and how many updates it has, once the record is committed."""
    if record is None:
        return None, 0
    if isinstance(record, Snapshot):
        leader_epoch = max(record.leader_epoch, stored.leader_epoch if stored is not None else 0)
        return replace(record, leader_epoch=leader_epoch), 0
    before = stored or Snapshot(snapshot_epoch=record.snapshot_epoch)
    start_offset = before.start_offset if record.start_offset == NO_OFFSET else record.start_offset
    after = replace(
        before,
        leader_epoch=max(record.leader_epoch, before.leader_epoch),
        start_offset=start_offset,
        delivery_complete_count=record.delivery_complete_count,
        batches=combined(before.batches, record.batches, start_offset),
    )
    return after, updates + 1


def step(state: ShareState, event: events.Event, now_ms: int, settings: ShareStateSettings) -> Decided:
    match event:
        case events.Stored():
            return _stored(state, event, now_ms, settings)
        case events.Unloaded():
            return _unload(state)
    if state.storing is not None:
        return replace(state, waiting=(*state.waiting, event)), ()
    return _decide(state, event, now_ms, settings)


def _stored(state: ShareState, event: events.Stored, now_ms: int, settings: ShareStateSettings) -> Decided:
    """Answer the request of the record; go on with those that waited for it, until another one is on its way."""
    answer = event.append.answer
    if event.append is not state.storing:
        return state, ()  # it is unloaded, and answered
    waiting, effects = state.waiting, list[events.Effect]()
    if event.error:
        is_doubtful = state.is_doubtful or event.error in _UNCERTAIN
        state = replace(state, storing=None, waiting=(), is_doubtful=is_doubtful)
        if answer is not None:
            effects.append(events.Answer(answer.request, error_of_append(event.error)))
    else:
        stored, updates = applied(event.append.record, state.stored, state.updates)
        state = ShareState(stored=stored, updates=updates)
        if answer is not None:
            effects.append(answer)
    for place, request in enumerate(waiting):
        state, more = _decide(state, request, now_ms, settings)
        effects += more
        if state.storing is not None:
            return replace(state, waiting=waiting[place + 1 :]), tuple(effects)
    return state, tuple(effects)


def error_of_append(error: ErrorCode) -> ErrorCode:
    """Return the error that makes the caller try again, here or elsewhere."""
    return _ERRORS_OF_APPENDS.get(error, ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _unload(state: ShareState) -> Decided:
    asked = [state.storing.answer] if state.storing is not None and state.storing.answer is not None else []
    numbers = [answer.request for answer in asked]
    numbers += [one.request for one in state.waiting if not isinstance(one, events.Refresh | events.Forget)]
    return ShareState(), tuple(events.Answer(number, ErrorCode.NOT_COORDINATOR) for number in numbers)


def _decide(state: ShareState, event: events.Request, now_ms: int, settings: ShareStateSettings) -> Decided:
    match event:
        case events.Initialize():
            return _initialize(state, event, now_ms)
        case events.Read():
            return _read(state, event, now_ms, settings)
        case events.Write():
            return _write(state, event, now_ms, settings)
        case events.Delete():
            answer = events.Answer(event.request)
            return _append(state, None, answer) if state.stored or state.is_doubtful else (state, (answer,))
        case events.Forget():
            return _append(state, None) if state.stored or state.is_doubtful else (state, ())
        case events.Refresh():
            return _refresh(state, now_ms, settings)


def _append(state: ShareState, record: Record, answer: events.Answer | None = None) -> Decided:
    append = events.Append(record, answer)
    return replace(state, storing=append), (append,)


def _refuse(state: ShareState, request: int, error: ErrorCode, message: str) -> Decided:
    return state, (events.Answer(request, error, message),)


def _initialize(state: ShareState, event: events.Initialize, now_ms: int) -> Decided:
    stored = state.stored
    if event.state_epoch < 0:
        return _refuse(state, event.request, ErrorCode.INVALID_REQUEST, "a state epoch is not negative")
    if stored is not None and stored.state_epoch > event.state_epoch:
        return _refuse(state, event.request, ErrorCode.FENCED_STATE_EPOCH, f"the state epoch is {stored.state_epoch}")
    snapshot = Snapshot(
        snapshot_epoch=stored.snapshot_epoch + 1 if stored is not None else 0,
        state_epoch=event.state_epoch,
        leader_epoch=stored.leader_epoch if stored is not None else 0,
        start_offset=event.start_offset,
        delivery_complete_count=NO_COUNT if event.start_offset == NO_OFFSET else 0,
        created_ms=now_ms,
        written_ms=now_ms,
    )
    return _append(state, snapshot, events.Answer(event.request))


def _read(state: ShareState, event: events.Read, now_ms: int, settings: ShareStateSettings) -> Decided:
    stored = state.stored
    if (refused := _fence(stored, event.leader_epoch)) is not None:
        return _refuse(state, event.request, *refused)
    assert stored is not None, "else it is refused"
    answer = events.Answer(event.request, found=stored)
    if event.leader_epoch == stored.leader_epoch and not state.is_doubtful:
        return state, (answer,)
    update = Update(
        leader_epoch=event.leader_epoch,
        start_offset=stored.start_offset,
        delivery_complete_count=stored.delivery_complete_count,
    )
    return _append(state, _record(state, stored, update, now_ms, settings), answer)


def _write(state: ShareState, event: events.Write, now_ms: int, settings: ShareStateSettings) -> Decided:
    stored = state.stored
    if event.state_epoch < 0:
        return _refuse(state, event.request, ErrorCode.INVALID_REQUEST, "a state epoch is not negative")
    if not all(0 <= one.first <= one.last and one.state in _STORABLE for one in event.batches):
        return _refuse(state, event.request, ErrorCode.INVALID_REQUEST, "such a batch is never stored")
    if (refused := _fence(stored, event.leader_epoch)) is not None:
        return _refuse(state, event.request, *refused)
    assert stored is not None, "else it is refused"
    if stored.state_epoch > event.state_epoch:
        return _refuse(state, event.request, ErrorCode.FENCED_STATE_EPOCH, f"the state epoch is {stored.state_epoch}")
    count = event.delivery_complete_count
    if event.start_offset == stored.start_offset:
        count = max(count, stored.delivery_complete_count)
    elif event.start_offset < stored.start_offset:
        count = stored.delivery_complete_count
    start_offset = max(event.start_offset, stored.start_offset)
    update = Update(
        leader_epoch=event.leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=count,
        batches=combined((), event.batches, start_offset),
    )
    return _append(state, _record(state, stored, update, now_ms, settings), events.Answer(event.request))


def _fence(stored: Snapshot | None, leader_epoch: int) -> tuple[ErrorCode, str] | None:
    """Return why the leader of this epoch may not read or write; None: it may."""
    if leader_epoch < 0:
        return ErrorCode.INVALID_REQUEST, "a leader epoch is not negative"
    if stored is None:
        return ErrorCode.INVALID_REQUEST, "the share partition is not initialized"
    if stored.leader_epoch > leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH, f"the leader epoch is {stored.leader_epoch}"
    return None


def _record(
    state: ShareState, stored: Snapshot, update: Update, now_ms: int, settings: ShareStateSettings
) -> Snapshot | Update:
    """Return the update, or in its place a snapshot, if it is time for one."""
    limit = settings.share_coordinator_snapshot_update_records_per_snapshot
    if state.updates < limit and not state.is_doubtful:
        return replace(update, snapshot_epoch=stored.snapshot_epoch)
    after, _ = applied(update, stored, 0)
    assert after is not None, "only a deletion leaves nothing"
    return replace(after, snapshot_epoch=stored.snapshot_epoch + 1, created_ms=now_ms, written_ms=now_ms)


def _refresh(state: ShareState, now_ms: int, settings: ShareStateSettings) -> Decided:
    stored = state.stored
    pause_ms = settings.share_coordinator_cold_partition_snapshot_interval_ms
    if stored is None or now_ms - stored.written_ms < pause_ms:
        return state, ()
    return _append(state, replace(stored, snapshot_epoch=stored.snapshot_epoch + 1, written_ms=now_ms))
