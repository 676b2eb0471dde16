"""A follower's view of one partition: first cut what the leader does not have, then fetch, and wait after errors.

`step(state, event, limits) -> (state, effects)`. Laws:

- Every leader epoch begins with a reconciliation, also under the same leader: the follower asks where its newest
  epoch ends in the leader's log (OffsetsForLeaderEpoch), and cuts its log there; if the leader does not know that
  epoch, it asks again with the next older one. It never cuts at a high watermark.
- One question is open at a time, and an answer counts only if it is to that question: of this leader epoch, and
  for a fetch of this offset. So whatever is appended begins at the log's end.
- The HW is at most the leader's and at most the log's end; it follows an append, and it is lowered by a cut before
  anything else.
- A cut below the HW is reported with what it takes away, before it is done.

::

    AskEpochEnd ──> Truncating ──TruncateTo──> Fetching ──Append──┐
        ^               │ asked epoch unknown     │  ^────────────┘
        └───────────────┘                         │ error, no answer
        ^                                         v
        └── the leader's log ends before ours     wait, then ask the same again
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from logstore.records.compression import Buffer
from replication.model.cluster import NO_EPOCH, BrokerId

EpochStarts: TypeAlias = tuple[tuple[int, int], ...]  # (epoch, offset of its first record), both increasing


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    """How long to wait after an error."""

    replica_fetch_backoff_ms: int = 1_000


class Phase(enum.StrEnum):
    """What the follower is doing."""

    TRUNCATING = "Truncating"
    FETCHING = "Fetching"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerState:
    """One leader epoch of a partition, seen by a follower.

    Invariant: high_watermark <= log_end_offset. `asked` is the epoch in question while truncating, `is_asking`
    says that the question of this phase is open; `resume_ms` is when it is asked again after an error.
    """

    leader: BrokerId
    leader_epoch: int
    phase: Phase
    log_start_offset: int
    log_end_offset: int
    epochs: EpochStarts
    high_watermark: int
    asked: int = NO_EPOCH
    is_asking: bool = False
    resume_ms: int | None = None


# -------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class EpochEndAnswered:
    """The leader's largest epoch that is not above `asked`, and where it ends in its log.

    `epoch` is NO_EPOCH if all its epochs are newer: `end_offset` is then the start of its log.
    """

    leader_epoch: int
    asked: int
    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Truncated:
    """The log was cut (or it was as short already), and is this now."""

    log_start_offset: int
    log_end_offset: int
    epochs: EpochStarts


@dataclass(frozen=True, slots=True)
class RecordsFetched:
    """An answer to the fetch from `offset` in `leader_epoch`: whole batches, perhaps none."""

    leader_epoch: int
    offset: int
    records: Buffer
    leader_high_watermark: int
    leader_log_start_offset: int


@dataclass(frozen=True, slots=True)
class Appended:
    """The records are in the log, which ends here now."""

    log_end_offset: int
    epochs: EpochStarts
    leader_high_watermark: int


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """An append or a cut failed, and nobody knows how far it came: the log is this now."""

    log_start_offset: int
    log_end_offset: int
    epochs: EpochStarts
    now_ms: int


@dataclass(frozen=True, slots=True)
class LogStartMoved:
    """The log begins here now."""

    log_start_offset: int


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The leader does not have `offset`: its log is [start, end)."""

    leader_epoch: int
    offset: int
    leader_log_start_offset: int
    leader_log_end_offset: int


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer, or an error that time or a newer leader epoch cures (not leader, fenced, unknown epoch)."""

    leader_epoch: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""

    now_ms: int


Event: TypeAlias = (
    EpochEndAnswered
    | Truncated
    | RecordsFetched
    | Appended
    | WriteFailed
    | LogStartMoved
    | OutOfRange
    | Failed
    | Ticked
)


# ------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class AskEpochEnd:
    """Ask the leader where this epoch ends. Answer: EpochEndAnswered or Failed."""

    leader: BrokerId
    leader_epoch: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ReportLostRecords:
    """Records below the HW are about to be cut: [start, end) as this replica had them. Log an error, count them."""

    leader_epoch: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Remove every record from `offset` on; lower checkpoints first. Answer: Truncated or WriteFailed."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartAnew:
    """Remove everything: the log begins and ends at `offset`, as do HW, recovery point, epochs and producer state.

    Answer: Truncated or WriteFailed.
    """

    offset: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask the leader for records from `offset` on. Answer: RecordsFetched, OutOfRange or Failed."""

    leader: BrokerId
    leader_epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class Append:
    """Append what was fetched. Answer: Appended or WriteFailed."""

    records: Buffer
    leader_high_watermark: int


@dataclass(frozen=True, slots=True)
class HighWatermarkMoved:
    """Everything below is committed, as far as this replica knows."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class MoveLogStart:
    """The leader has removed what is below; so may this replica. Answer: LogStartMoved, when it has."""

    log_start_offset: int


Effect: TypeAlias = (
    AskEpochEnd
    | ReportLostRecords
    | TruncateTo
    | StartAnew
    | Fetch
    | Append
    | HighWatermarkMoved
    | MoveLogStart
)
Step: TypeAlias = tuple[FollowerState, tuple[Effect, ...]]


# ------------------------------------------------------------------ decisions


def follow(
    leader: BrokerId,
    leader_epoch: int,
    *,
    log_start_offset: int,
    log_end_offset: int,
    epochs: Sequence[tuple[int, int]],
    high_watermark: int,
) -> Step:
    """Begin to follow in a leader epoch. `high_watermark`: what is known, from memory or from the checkpoint."""
    state = FollowerState(
        leader=leader,
        leader_epoch=leader_epoch,
        phase=Phase.TRUNCATING,
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
        epochs=tuple((epoch, start) for epoch, start in epochs),
        high_watermark=min(high_watermark, log_end_offset),
    )
    return _reconcile(state)


def step(state: FollowerState, event: Event, limits: FollowerSettings) -> Step:
    """Return the state after the event, and what has to be done, in order."""
    match event:
        case RecordsFetched():
            return _fetched(state, event)
        case Appended():
            return _appended(state, event)
        case LogStartMoved(log_start_offset):
            return replace(state, log_start_offset=log_start_offset), ()
        case EpochEndAnswered():
            return _answered(state, event)
        case Truncated():
            return _truncated(state, event)
        case OutOfRange():
            return _out_of_range(state, event)
        case Failed() | WriteFailed():
            return _failed(state, event, limits)
        case Ticked(now_ms):
            is_due = state.resume_ms is not None and now_ms >= state.resume_ms
            return _ask(state) if is_due else (state, ())
        case _:
            assert_never(event)


def end_of_epoch(epochs: EpochStarts, epoch: int, log_end_offset: int) -> tuple[int, int] | None:
    """The largest known epoch that is not above `epoch`, and where it ends; None if all are newer."""
    after = bisect.bisect_right(epochs, epoch, key=lambda start: start[0])
    if after == 0:
        return None
    return epochs[after - 1][0], epochs[after][1] if after < len(epochs) else log_end_offset


# -------------------------------------------------------------------- parts


def _reconcile(state: FollowerState) -> Step:
    """Ask where the newest epoch ends; a log without epochs has nothing that could differ."""
    return _ask(_from_newest(state))


def _from_newest(state: FollowerState) -> FollowerState:
    latest = state.epochs[-1][0] if state.epochs else NO_EPOCH
    return replace(state, phase=Phase.TRUNCATING if state.epochs else Phase.FETCHING, asked=latest)


def _ask(state: FollowerState) -> Step:
    """Ask the question of this phase."""
    question: Effect
    if state.phase is Phase.TRUNCATING:
        question = AskEpochEnd(state.leader, state.leader_epoch, state.asked)
    else:
        question = Fetch(state.leader, state.leader_epoch, state.log_end_offset)
    return replace(state, is_asking=True, resume_ms=None), (question,)


def _failed(state: FollowerState, event: Failed | WriteFailed, limits: FollowerSettings) -> Step:
    if isinstance(event, WriteFailed):
        return _write_failed(state, event, limits)
    if event.leader_epoch != state.leader_epoch or not state.is_asking:  # a late one
        return state, ()
    return _pause(state, event.now_ms, limits)


def _write_failed(state: FollowerState, event: WriteFailed, limits: FollowerSettings) -> Step:
    """Go on from the log as it is. A cut that was not made is found again: what was asked for it is answered."""
    state = _with_log(state, event)
    if state.phase is Phase.TRUNCATING:
        state = _from_newest(state)
    return _pause(state, event.now_ms, limits)


def _with_log(state: FollowerState, event: Truncated | WriteFailed) -> FollowerState:
    return replace(
        state,
        log_start_offset=event.log_start_offset,
        log_end_offset=event.log_end_offset,
        epochs=event.epochs,
        high_watermark=min(state.high_watermark, event.log_end_offset),
    )


def _pause(state: FollowerState, now_ms: int, limits: FollowerSettings) -> Step:
    return replace(state, is_asking=False, resume_ms=now_ms + limits.replica_fetch_backoff_ms), ()


def _answered(state: FollowerState, event: EpochEndAnswered) -> Step:
    """Cut where both logs end that epoch. What the leader has of it and this log has not, comes by fetching."""
    if not (state.is_asking and state.phase is Phase.TRUNCATING) or (event.leader_epoch, event.asked) != (
        state.leader_epoch,
        state.asked,
    ):
        return state, ()
    state = replace(state, is_asking=False)
    if event.epoch == NO_EPOCH:  # its log begins in a newer epoch than this one ends with
        return _cut(replace(state, asked=NO_EPOCH), event.end_offset)
    own = end_of_epoch(state.epochs, event.epoch, state.log_end_offset)
    if own is None:  # it knows none of the epochs that are here
        return _cut(replace(state, asked=NO_EPOCH), state.log_start_offset)
    own_epoch, own_end = own
    if own_epoch == event.epoch:
        return _cut(replace(state, asked=NO_EPOCH), min(own_end, event.end_offset))
    # The leader's epoch is unknown here: what is newer than our next older one is not the leader's; ask for that.
    return _cut(replace(state, asked=own_epoch), own_end)


def _cut(state: FollowerState, offset: int) -> Step:
    offset = max(min(offset, state.log_end_offset), state.log_start_offset)
    state, effects = _lower(state, offset)
    return state, (*effects, TruncateTo(offset))


def _lower(state: FollowerState, offset: int) -> Step:
    """The HW goes first, and what it loses is said."""
    if offset >= state.high_watermark:
        return state, ()
    lost = ReportLostRecords(state.leader_epoch, offset, state.high_watermark)
    return replace(state, high_watermark=offset), (lost,)


def _truncated(state: FollowerState, event: Truncated) -> Step:
    phase = Phase.FETCHING if state.asked == NO_EPOCH else Phase.TRUNCATING
    return _ask(replace(_with_log(state, event), phase=phase))


def _is_answer(state: FollowerState, event: RecordsFetched | OutOfRange) -> bool:
    """Is this the answer to the open fetch, and not a late one of an older?"""
    return (
        state.is_asking
        and state.phase is Phase.FETCHING
        and (event.leader_epoch, event.offset) == (state.leader_epoch, state.log_end_offset)
    )


def _fetched(state: FollowerState, event: RecordsFetched) -> Step:
    if not _is_answer(state, event):
        return state, ()
    start_moved = _log_start(state, event.leader_log_start_offset)
    if event.records:
        append = Append(event.records, event.leader_high_watermark)
        return replace(state, is_asking=False), (append, *start_moved)
    state, moved = _advance(state, event.leader_high_watermark)
    state, question = _ask(state)
    return state, (*moved, *start_moved, *question)


def _log_start(state: FollowerState, leader_log_start_offset: int) -> tuple[Effect, ...]:
    is_behind = leader_log_start_offset > state.log_start_offset
    return (MoveLogStart(leader_log_start_offset),) if is_behind else ()


def _appended(state: FollowerState, event: Appended) -> Step:
    state = replace(state, log_end_offset=event.log_end_offset, epochs=event.epochs)
    state, moved = _advance(state, event.leader_high_watermark)
    state, question = _ask(state)
    return state, (*moved, *question)


def _advance(state: FollowerState, leader_high_watermark: int) -> Step:
    high_watermark = min(leader_high_watermark, state.log_end_offset)
    if high_watermark <= state.high_watermark:
        return state, ()
    return replace(state, high_watermark=high_watermark), (HighWatermarkMoved(high_watermark),)


def _out_of_range(state: FollowerState, event: OutOfRange) -> Step:
    """Nothing in common with the leader's log: begin anew. Beyond its end only: reconcile, it has other records."""
    if not _is_answer(state, event):
        return state, ()
    start, end = event.leader_log_start_offset, event.leader_log_end_offset
    state = replace(state, is_asking=False)
    if state.log_end_offset < start or state.log_start_offset > end:
        state, lost = _lower(state, start)
        state = replace(state, phase=Phase.TRUNCATING, asked=NO_EPOCH, high_watermark=start)
        return state, (*lost, StartAnew(start))
    if state.epochs:
        return _reconcile(state)
    return _cut(replace(state, phase=Phase.TRUNCATING, asked=NO_EPOCH), end)
