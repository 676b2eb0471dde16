"""The machine of a leader: the followers' progress, the ISR, and the high watermark of one partition.

`step(state, event, limits) -> (state, effects)`. Laws:

- The high watermark (HW) is the smallest log end offset over the *maximal* ISR: the stored ISR and the proposed one.
  Whichever of the two a controller elects from, the new leader has everything below the HW. The HW never goes back,
  and never passes the log's end.
- An ISR change counts when its conditional write was accepted; at most one is in flight. A refused write means that
  another broker decided: the leader changes nothing more until it has read the stored state.
- A follower joins by a fetch in this leader epoch, from an offset that has reached the HW *and* the start of this
  leadership; the write names the joining life, and is valid only while that lasts.
- A leadership may last for several leader epochs. With each of them all followers are unknown again, and the HW stays:
  nobody else has committed anything, since each epoch was led by this broker, or counted on it in vain.
- A follower leaves when no fetch has reached the leader's log end for `replica.lag.time.max.ms`, or when it came back
  with less than the HW.

Events carry their time, which only has to be monotonic. The caller stores the new state before it performs the
effects, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, assert_never

from replication.errors import ErrorCode
from replication.model.cluster import NO_EPOCH, Assignment, BrokerId, LeaderAndIsr

UNKNOWN_OFFSET = -1


@dataclass(frozen=True, slots=True)
class IsrSettings:
    """When a follower is too far behind. `replica_lag_max_messages` -1: never by a number of records."""

    replica_lag_time_max_ms: int = 10_000
    replica_lag_max_messages: int = -1


class FollowerProgress(NamedTuple):
    """A follower in this leader epoch; its log end is UNKNOWN_OFFSET until it fetches."""

    caught_up_ms: int
    log_end_offset: int = UNKNOWN_OFFSET
    broker_epoch: int = NO_EPOCH
    fetched_ms: int = 0
    leader_end_at_fetch: int = 0


_new = tuple.__new__  # of a value that has all its fields: a tenth of the time of `_replace`


class Leading(NamedTuple):
    """One leader epoch of a partition, seen by its leader. The leadership began when it was not a leader before.

    Invariant: high_watermark <= log_end_offset; broker in isr; isr and proposed are within replicas.
    """

    broker: BrokerId
    leader_epoch: int
    leadership_start_offset: int
    replicas: Assignment
    isr: tuple[BrokerId, ...]
    version: int
    followers: Mapping[BrokerId, FollowerProgress]
    log_end_offset: int
    high_watermark: int
    proposed: tuple[BrokerId, ...] | None = None
    is_stale: bool = False  # a write was refused: the stored state must be read first
    is_suspended: bool = False  # the coordination store cannot be reached: propose nothing

    @property
    def maximal_isr(self) -> tuple[BrokerId, ...]:
        """The replicas that must have a record before it is committed."""
        if self.proposed is None:
            return self.isr
        return self.isr + tuple(broker for broker in self.proposed if broker not in self.isr)

    @property
    def is_alone(self) -> bool:
        """Is whatever this broker has committed by that: is nobody else in the maximal ISR?"""
        return len(self.isr) == 1 and self.proposed is None

    @property
    def is_settled(self) -> bool:
        """Return whether the HW has reached this leadership: it is the true one, and may be sent as the log's end."""
        return self.high_watermark >= self.leadership_start_offset


# -------------------------------------------------------------------- events


class Appended(NamedTuple):
    log_end_offset: int


class Fetched(NamedTuple):
    """A follower fetched from `offset`, so it has everything before; `judge_fetch` allowed it."""

    replica: BrokerId
    offset: int
    now_ms: int
    broker_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class Ticked:
    now_ms: int


@dataclass(frozen=True, slots=True)
class IsrWritten:
    """The ISR proposed in this leader epoch is stored, as this version of the node."""

    leader_epoch: int
    version: int


@dataclass(frozen=True, slots=True)
class IsrRefused:
    """The ISR proposed in this leader epoch is certainly not stored: other version, or a joining life has ended."""

    leader_epoch: int


@dataclass(frozen=True, slots=True)
class LeadershipRefreshed:
    """The content of the state node, read after a refusal."""

    stored: LeaderAndIsr


@dataclass(frozen=True, slots=True)
class Suspended:
    """The coordination store cannot be reached; or it can be again, in the same session."""

    is_suspended: bool = True


Event: TypeAlias = Appended | Fetched | Ticked | IsrWritten | IsrRefused | LeadershipRefreshed | Suspended


# ------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class HighWatermarkMoved:
    """Everything below is committed: complete waiting requests, and show it to consumers."""

    high_watermark: int


@dataclass(frozen=True, slots=True)
class WriteIsr:
    """Write this ISR in one step, if the node has `version` and the incarnations live.

    Answer: IsrWritten or IsrRefused. After a lost connection, the outcome is read from the node.
    """

    isr: tuple[BrokerId, ...]
    version: int
    incarnations: tuple[tuple[BrokerId, int], ...]


@dataclass(frozen=True, slots=True)
class IsrChanged:
    """The stored ISR has changed: count it, and notify the controller."""

    before: tuple[BrokerId, ...]
    after: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class RefreshLeadership:
    """Read the state node. Answer: LeadershipRefreshed."""


Effect: TypeAlias = HighWatermarkMoved | WriteIsr | IsrChanged | RefreshLeadership
Step: TypeAlias = tuple[Leading, tuple[Effect, ...]]


# ------------------------------------------------------------------ decisions


def lead(
    broker: BrokerId,
    stored: LeaderAndIsr,
    replicas: Assignment,
    *,
    log_end_offset: int,
    high_watermark: int,
    now_ms: int,
) -> Step:
    """Begin a leader epoch. Nothing is known of the followers yet; each has the full lag time.

    `high_watermark` is what this replica knew. It may be below the true one, and is not shown before it has reached
    the present log end.
    """
    state = Leading(
        broker=broker,
        leader_epoch=stored.leader_epoch,
        leadership_start_offset=log_end_offset,
        replicas=replicas,
        isr=stored.isr,
        version=stored.version,
        followers={other: FollowerProgress(now_ms) for other in replicas if other != broker},
        log_end_offset=log_end_offset,
        high_watermark=min(high_watermark, log_end_offset),
    )
    return _advance(state)


def lead_on(state: Leading, stored: LeaderAndIsr, replicas: Assignment, *, log_end_offset: int, now_ms: int) -> Step:
    """Begin another leader epoch in the same leadership: this replica has not followed since `state`."""
    after, moved = lead(
        state.broker,
        stored,
        replicas,
        log_end_offset=max(log_end_offset, state.log_end_offset),
        high_watermark=state.high_watermark,
        now_ms=now_ms,
    )
    start = state.leadership_start_offset
    return after._replace(leadership_start_offset=start, is_suspended=state.is_suspended), moved


def step(state: Leading, event: Event, limits: IsrSettings) -> Step:
    match event:
        case Fetched():
            return _fetched(state, event)
        case Appended(log_end_offset):
            return _advance(state._replace(log_end_offset=log_end_offset))
        case Ticked(now_ms):
            return _maybe_shrink(state, _too_slow(state, now_ms, limits))
        case IsrWritten() | IsrRefused():
            return _decided(state, event)
        case LeadershipRefreshed(stored):
            return _refreshed(state, stored)
        case Suspended(is_suspended):
            return state._replace(is_suspended=is_suspended), ()
        case _:
            assert_never(event)


class Asking(Protocol):
    """A follower's request for what comes behind the log's end, repeated without a word about this partition.

    It was admitted since the last append, so the follower has the whole log.
    """

    @property
    def asked_ms(self) -> int:
        """When it was repeated last."""

    @property
    def event(self) -> Fetched:
        """The last fetch as an event, at the time when it was repeated."""


def are_all_asking(state: Leading, asking: Mapping[BrokerId, Asking], since_ms: int) -> bool:
    """Return whether these are all other members of the ISR, and nobody else, and each has asked since then.

    If that is no longer ago than `replica_lag_time_max_ms`, `Ticked` changes nothing, and needs not be said.
    """
    isr = state.isr
    for follower, asked in asking.items():
        if follower not in isr or asked.asked_ms < since_ms:
            return False
    return len(asking) == len(isr) - 1


def asked_on(state: Leading, asking: Mapping[BrokerId, Asking]) -> tuple[list[Fetched], list[BrokerId]]:
    """Return the events of those in sync, which must be known before an append or a tick; and who is out of sync.

    The latter joins by a request that is admitted: it may have died after the last one.
    """
    events, outside = [], []
    for follower, asked in asking.items():
        if follower in state.isr:
            events.append(asked.event)
        else:
            outside.append(follower)
    return events, outside


def append_alone(state: Leading, log_end_offset: int) -> Leading:
    """Return the state of `step` after Appended, for a leader that `is_alone`; the effect is HighWatermarkMoved there.

    The end must not go back. Most produce requests of a single broker take this way: no event and no effect is made.
    """
    made: Leading = _new(Leading, (*state[:7], log_end_offset, log_end_offset, *state[9:]))
    return made


def judge_epoch(current: int, asked: int) -> ErrorCode:
    """Refuse a fetcher with an older leader epoch, which missed a change, or a newer one, which knows more."""
    if asked in (NO_EPOCH, current):
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if asked < current else ErrorCode.UNKNOWN_LEADER_EPOCH


def judge_fetch(state: Leading, replica: BrokerId, *, leader_epoch: int, broker_epoch: int) -> ErrorCode:
    """Check a follower's fetch: it must have our leader epoch, and the newest known broker epoch."""
    known = state.followers.get(replica)
    if error := judge_epoch(state.leader_epoch, leader_epoch):
        return error
    if known is None:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return ErrorCode.STALE_BROKER_EPOCH if broker_epoch < known.broker_epoch else ErrorCode.NONE


def has_enough_replicas(state: Leading, min_insync_replicas: int) -> bool:
    """Return whether both the stored and the proposed ISR are large enough for acks=all.

    It is asked before an append and again when the records are committed; they stay in the log in any case.
    """
    proposed = state.isr if state.proposed is None else state.proposed
    return min(len(state.isr), len(proposed)) >= min_insync_replicas


# -------------------------------------------------------------------- parts


def _advance(state: Leading) -> Step:
    """Move the HW to the smallest log end of the maximal ISR; an unknown end holds it."""
    known = [state.log_end_offset if broker == state.broker else _end_of(state, broker) for broker in state.maximal_isr]
    high_watermark = min(known, default=UNKNOWN_OFFSET)
    if high_watermark <= state.high_watermark:
        return state, ()
    return state._replace(high_watermark=high_watermark), (HighWatermarkMoved(high_watermark),)


def _end_of(state: Leading, broker: BrokerId) -> int:
    follower = state.followers.get(broker)
    return UNKNOWN_OFFSET if follower is None else min(follower.log_end_offset, state.log_end_offset)


def _fetched(state: Leading, event: Fetched) -> Step:
    known = state.followers.get(event.replica)
    if known is None or event.broker_epoch < known.broker_epoch:
        return state, ()  # not a replica, or a late request of a former life
    has_returned = known.broker_epoch not in (NO_EPOCH, event.broker_epoch)
    observed = _observe(state, event, FollowerProgress(event.now_ms) if has_returned else known)
    state = state._replace(followers={**state.followers, event.replica: observed})
    state, moved = _advance(state)
    if event.replica in state.isr:
        if event.offset < state.high_watermark and known.log_end_offset > event.offset:
            state, asked = _maybe_shrink(state, (event.replica,))  # it has lost committed records
            return state, moved + asked
        return state, moved
    state, asked = _maybe_expand(state, event.replica)
    return state, moved + asked


def _observe(state: Leading, event: Fetched, known: FollowerProgress) -> FollowerProgress:
    """A follower is caught up now if it has the leader's end, or since its last fetch if it has the end of then."""
    caught_up_ms = known.caught_up_ms
    if event.offset >= state.log_end_offset:
        caught_up_ms = event.now_ms
    elif known.log_end_offset != UNKNOWN_OFFSET and event.offset >= known.leader_end_at_fetch:
        caught_up_ms = known.fetched_ms
    return FollowerProgress(caught_up_ms, event.offset, event.broker_epoch, event.now_ms, state.log_end_offset)


def _maybe_expand(state: Leading, replica: BrokerId) -> Step:
    offset = state.followers[replica].log_end_offset
    if not _may_change(state) or offset < max(state.high_watermark, state.leadership_start_offset):
        return state, ()
    return _propose(state, (*state.isr, replica))


def _too_slow(state: Leading, now_ms: int, limits: IsrSettings) -> tuple[BrokerId, ...]:
    def is_too_slow(follower: FollowerProgress) -> bool:
        lag_messages = state.log_end_offset - follower.log_end_offset
        return now_ms - follower.caught_up_ms > limits.replica_lag_time_max_ms or (
            0 <= limits.replica_lag_max_messages < lag_messages and follower.log_end_offset != UNKNOWN_OFFSET
        )

    return tuple(broker for broker in state.isr if broker in state.followers and is_too_slow(state.followers[broker]))


def _maybe_shrink(state: Leading, leaving: Iterable[BrokerId]) -> Step:
    gone = frozenset(leaving)
    if not gone or not _may_change(state):
        return state, ()
    return _propose(state, tuple(broker for broker in state.isr if broker not in gone))


def _may_change(state: Leading) -> bool:
    return state.proposed is None and not state.is_stale and not state.is_suspended


def _propose(state: Leading, isr: tuple[BrokerId, ...]) -> Step:
    """Propose another ISR. The HW counts both from now on, so the proposal cannot move it."""
    incarnations = tuple(
        (broker, state.followers[broker].broker_epoch)
        for broker in isr
        if broker not in state.isr and broker in state.followers
    )
    return state._replace(proposed=isr), (WriteIsr(isr, state.version, incarnations),)


def _decided(state: Leading, event: IsrWritten | IsrRefused) -> Step:
    if state.proposed is None or event.leader_epoch != state.leader_epoch:
        return state, ()  # it concerns a former epoch
    if isinstance(event, IsrRefused):
        return state._replace(proposed=None, is_stale=True), (RefreshLeadership(),)
    before, after = state.isr, state.proposed
    state, moved = _advance(state._replace(isr=after, version=event.version, proposed=None))
    return state, (IsrChanged(before, after), *moved)


def _refreshed(state: Leading, stored: LeaderAndIsr) -> Step:
    """Continue with the stored state if it is still of this epoch; otherwise wait for the controller."""
    if (
        stored.leader != state.broker
        or stored.leader_epoch != state.leader_epoch
        or stored.version < state.version  # read before our last write
        or state.proposed is not None
    ):
        return state, ()
    return _advance(state._replace(isr=stored.isr, version=stored.version, is_stale=False))
