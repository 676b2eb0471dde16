"""The machine of a follower: truncate what the leader does not have, then fetch; pause after a failed write.

`step(state, event) -> (state, effects)`. Laws:

- Every leader epoch begins with a reconciliation, even under the same leader: the follower asks where its newest
  epoch ends in the leader's log (OffsetsForLeaderEpoch), and truncates there; if the leader does not know that epoch,
  it asks again with the next older one. It never truncates to a high watermark.
- One request is open at a time. An answer counts only for the open request: of this leader epoch, and for a fetch of
  this offset. So every append begins at the log's end. A request without an answer stays open: the driver repeats it.
- The HW is at most the leader's and at most the log's end. It moves after an append, and goes back before a
  truncation.
- A truncation below the HW is reported, with its extent, before it is done.

::

    AskEpochEnd ──> Truncating ──TruncateTo──> Fetching ──Append──┐
        ^               │ asked epoch unknown     │  ^────────────┘
        └───────────────┘                         │
        └──────── the leader's log ends before ours
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, assert_never

from logstore.log.leader_epochs import end_offset
from logstore.records.compression import Buffer
from replication.model.cluster import NO_EPOCH, BrokerId

EpochStarts: TypeAlias = tuple[tuple[int, int], ...]  # (epoch, offset of its first record), both increasing


class Phase(enum.StrEnum):
    TRUNCATING = "Truncating"
    FETCHING = "Fetching"


class FollowerState(NamedTuple):
    """One leader epoch of a partition, seen by a follower.

    Invariant: high_watermark <= log_end_offset. `asked` is the epoch in question while truncating.
    """

    leader: BrokerId
    leader_epoch: int
    phase: Phase
    log_start_offset: int
    log_end_offset: int
    epochs: EpochStarts
    high_watermark: int
    asked: int = NO_EPOCH
    is_asking: bool = False  # a request is open
    is_paused: bool = False  # after a failed write


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
    """The log was truncated (or was as short already); its extent now."""

    log_start_offset: int
    log_end_offset: int
    epochs: EpochStarts


class RecordsFetched(NamedTuple):
    """An answer to the fetch from `offset` in `leader_epoch`: whole batches, perhaps none."""

    leader_epoch: int
    offset: int
    records: Buffer
    leader_high_watermark: int
    leader_log_start_offset: int


class Appended(NamedTuple):
    log_end_offset: int
    epochs: EpochStarts
    leader_high_watermark: int


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """An append or a truncation failed part of the way; the extent of the log now."""

    log_start_offset: int
    log_end_offset: int
    epochs: EpochStarts


@dataclass(frozen=True, slots=True)
class LogStartMoved:
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """The leader does not have `offset`: its log is [start, end)."""

    leader_epoch: int
    offset: int
    leader_log_start_offset: int
    leader_log_end_offset: int


@dataclass(frozen=True, slots=True)
class PauseOver: ...


Event: TypeAlias = (
    EpochEndAnswered | Truncated | RecordsFetched | Appended | WriteFailed | LogStartMoved | OutOfRange | PauseOver
)


# ------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class AskEpochEnd:
    """Ask the leader where this epoch ends. Answer: EpochEndAnswered."""

    leader: BrokerId
    leader_epoch: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ReportLostRecords:
    """Records below the HW are about to be truncated: [start, end) of this replica. Log an error and count them."""

    leader_epoch: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Remove every record from `offset` on; lower checkpoints first. Answer: Truncated or WriteFailed."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartAnew:
    """Remove everything: the log, HW, recovery point, epochs and producer state start at `offset`.

    Answer: Truncated or WriteFailed.
    """

    offset: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetch records from `offset` on. Answer: RecordsFetched or OutOfRange."""

    leader: BrokerId
    leader_epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class Append:
    """Append the fetched records. Answer: Appended or WriteFailed."""

    records: Buffer
    leader_high_watermark: int


@dataclass(frozen=True, slots=True)
class MoveLogStart:
    """The leader has removed everything below; so may this replica. Answer: LogStartMoved."""

    log_start_offset: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing can be written now. Answer: PauseOver, after a while."""


Effect: TypeAlias = AskEpochEnd | ReportLostRecords | TruncateTo | StartAnew | Fetch | Append | MoveLogStart | Pause
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
    """Begin to follow in a leader epoch. `high_watermark`: the last known one, from memory or the checkpoint."""
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


def step(state: FollowerState, event: Event) -> Step:
    match event:
        case RecordsFetched():
            return _fetched(state, event)
        case Appended():
            return _appended(state, event)
        case LogStartMoved(log_start_offset):
            return state._replace(log_start_offset=log_start_offset), ()
        case EpochEndAnswered():
            return _answered(state, event)
        case Truncated():
            return _truncated(state, event)
        case OutOfRange():
            return _out_of_range(state, event)
        case WriteFailed():
            return _write_failed(state, event)
        case PauseOver():
            return _ask(state) if state.is_paused else (state, ())
        case _:
            assert_never(event)


def is_no_news(state: FollowerState, question: Fetch, leader_high_watermark: int, leader_log_start_offset: int) -> bool:
    """Return whether `step` asks the same again, and changes nothing, after an answer without records.

    Most answers are such ones: a driver lets the question stand at the leader, and makes no event.
    """
    return (
        state.is_asking
        and state.phase is Phase.FETCHING
        and (question.leader_epoch, question.offset) == (state.leader_epoch, state.log_end_offset)
        and min(leader_high_watermark, state.log_end_offset) <= state.high_watermark
        and leader_log_start_offset <= state.log_start_offset
    )


# -------------------------------------------------------------------- parts


def _reconcile(state: FollowerState) -> Step:
    """Ask where the newest epoch ends; a log without epochs has nothing to truncate."""
    return _ask(_from_newest(state))


def _from_newest(state: FollowerState) -> FollowerState:
    latest = state.epochs[-1][0] if state.epochs else NO_EPOCH
    return state._replace(phase=Phase.TRUNCATING if state.epochs else Phase.FETCHING, asked=latest)


def _ask(state: FollowerState) -> Step:
    question: Effect
    if state.phase is Phase.TRUNCATING:
        question = AskEpochEnd(state.leader, state.leader_epoch, state.asked)
    else:
        question = Fetch(state.leader, state.leader_epoch, state.log_end_offset)
    return state._replace(is_asking=True, is_paused=False), (question,)


def _write_failed(state: FollowerState, event: WriteFailed) -> Step:
    """Continue with the present log. A truncation that failed is found again by asking."""
    state = _with_log(state, event)
    if state.phase is Phase.TRUNCATING:
        state = _from_newest(state)
    return state._replace(is_asking=False, is_paused=True), (Pause(),)


def _with_log(state: FollowerState, event: Truncated | WriteFailed) -> FollowerState:
    return state._replace(
        log_start_offset=event.log_start_offset,
        log_end_offset=event.log_end_offset,
        epochs=event.epochs,
        high_watermark=min(state.high_watermark, event.log_end_offset),
    )


def _answered(state: FollowerState, event: EpochEndAnswered) -> Step:
    """Truncate where both logs end that epoch. Records that only the leader has come by fetching."""
    if not (state.is_asking and state.phase is Phase.TRUNCATING) or (event.leader_epoch, event.asked) != (
        state.leader_epoch,
        state.asked,
    ):
        return state, ()
    state = state._replace(is_asking=False)
    if event.epoch == NO_EPOCH:  # the leader's log begins in a newer epoch than this one ends with
        return _cut(state._replace(asked=NO_EPOCH), event.end_offset)
    own = end_offset(state.epochs, event.epoch, state.log_end_offset)
    if own is None:  # the leader knows none of the epochs here
        return _cut(state._replace(asked=NO_EPOCH), state.log_start_offset)
    own_epoch, own_end = own
    if own_epoch == event.epoch:
        return _cut(state._replace(asked=NO_EPOCH), min(own_end, event.end_offset))
    # The leader's epoch is unknown here: truncate to our next older epoch, and ask for that.
    return _cut(state._replace(asked=own_epoch), own_end)


def _cut(state: FollowerState, offset: int) -> Step:
    offset = max(min(offset, state.log_end_offset), state.log_start_offset)
    state, effects = _lower(state, offset)
    return state, (*effects, TruncateTo(offset))


def _lower(state: FollowerState, offset: int) -> Step:
    if offset >= state.high_watermark:
        return state, ()
    lost = ReportLostRecords(state.leader_epoch, offset, state.high_watermark)
    return state._replace(high_watermark=offset), (lost,)


def _truncated(state: FollowerState, event: Truncated) -> Step:
    phase = Phase.FETCHING if state.asked == NO_EPOCH else Phase.TRUNCATING
    return _ask(_with_log(state, event)._replace(phase=phase))


def _is_answer(state: FollowerState, event: RecordsFetched | OutOfRange) -> bool:
    return (
        state.is_asking
        and state.phase is Phase.FETCHING
        and (event.leader_epoch, event.offset) == (state.leader_epoch, state.log_end_offset)
    )


def _fetched(state: FollowerState, event: RecordsFetched) -> Step:
    if not _is_answer(state, event):
        return state, ()
    is_behind = event.leader_log_start_offset > state.log_start_offset
    start_moved = (MoveLogStart(event.leader_log_start_offset),) if is_behind else ()
    if event.records:
        append = Append(event.records, event.leader_high_watermark)
        return state._replace(is_asking=False), (append, *start_moved)
    state, question = _ask(_advance(state, event.leader_high_watermark))
    return state, (*start_moved, *question)


def _appended(state: FollowerState, event: Appended) -> Step:
    state = state._replace(log_end_offset=event.log_end_offset, epochs=event.epochs)
    return _ask(_advance(state, event.leader_high_watermark))


def _advance(state: FollowerState, leader_high_watermark: int) -> FollowerState:
    high_watermark = min(leader_high_watermark, state.log_end_offset)
    return state if high_watermark <= state.high_watermark else state._replace(high_watermark=high_watermark)


def _out_of_range(state: FollowerState, event: OutOfRange) -> Step:
    """Start anew if the logs have nothing in common; reconcile if ours is only longer."""
    if not _is_answer(state, event):
        return state, ()
    start, end = event.leader_log_start_offset, event.leader_log_end_offset
    state = state._replace(is_asking=False)
    if state.log_end_offset < start or state.log_start_offset > end:
        state, lost = _lower(state, start)
        state = state._replace(phase=Phase.TRUNCATING, asked=NO_EPOCH, high_watermark=start)
        return state, (*lost, StartAnew(start))
    if state.epochs:
        return _reconcile(state)
    return _cut(state._replace(phase=Phase.TRUNCATING, asked=NO_EPOCH), end)
