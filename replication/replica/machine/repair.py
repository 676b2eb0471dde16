"""The repair of a damaged replica: it leaves the ISR, is cut, and copied from the leader; or it is filled.

`step(damaged, event) -> (damaged, effects)`; None stands for an intact replica. Laws:

- The damage is noted durably before anything else is done, and until the cut is durable: the broker's next incarnation
  begins where this one ended.
- Nothing is cut unless a controller has said, in a leader epoch in which this replica has not fetched, that it follows
  and is not in the ISR: leaving is committed then, and the members have the records that are cut. A leader is never
  cut.
- Nothing is cut that the leader has not sent before, in that same leader epoch: every whole batch from the place of the
  cut on. Batches that the leader cannot send may be intact only in the part that would be cut here.
- Batches that the leader cannot send are filled in place, range by range, from any replica that has them intact. That
  changes no intact batch, so a leader may do it, too, once no other replica has taken over from it in time.
- A damaged replica follows no leader. It is offline until it was cut, or all of it is filled; then LeaderAndIsr says
  that it is intact, and only after that it fetches.

::

    Found ──Note──> Noted ──MarkOffline──> (waits) ──out of ISR─> ReadLeader ──shown──> Cut ──> Forget, then it follows
                                             ^ │                      │ not shown       │ failed     ^
                                             │ └─leads, Ticked──> Fill <                │            │
                                             └────────Ticked────────┴─── not all ───────┘     all ───┘
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from replication.model.cluster import NO_LEADER, BrokerId, LeaderAndIsr


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A damaged replica. `offset`: everything below is sound, as far as is known; None: not known yet.

    `is_noted`: the next life knows of it. `known_epoch` is the leader epoch that a controller spoke of in this session,
    `out_epoch` the same if it follows there and is not in the ISR; None: it leads, or is a member, or nobody has said.
    `is_busy`: the leader is read, or the log is being cut or filled.
    """

    offset: int | None
    reason: str
    is_noted: bool = False
    known_epoch: int | None = None
    out_epoch: int | None = None
    leader: BrokerId = NO_LEADER
    is_busy: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """There is damage, at this offset or (None) somewhere. `stored`: what a controller has said in this session."""

    offset: int | None
    reason: str
    stored: LeaderAndIsr | None = None


@dataclass(frozen=True, slots=True)
class Noted:
    """The note of the damage is on disk."""


@dataclass(frozen=True, slots=True)
class LeaderKnown:
    stored: LeaderAndIsr


@dataclass(frozen=True, slots=True)
class LeaderUnknown:
    """The session is over: nothing is known of epochs."""


@dataclass(frozen=True, slots=True)
class LeaderRead:
    """In this leader epoch the leader has shown all that is from `sound_from` on, where the cut would be; None: not."""

    leader_epoch: int
    sound_from: int | None


@dataclass(frozen=True, slots=True)
class WasCut:
    """The damage is no longer in the log, and the cut is on disk."""


@dataclass(frozen=True, slots=True)
class NotCut:
    """The cut failed, and nobody knows how far it came."""


@dataclass(frozen=True, slots=True)
class Filled:
    """Ranges were filled from other replicas in this leader epoch; `is_sound`: nothing is damaged any more."""

    leader_epoch: int
    is_sound: bool


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed: what failed is done again."""


Event: TypeAlias = Found | Noted | LeaderKnown | LeaderUnknown | LeaderRead | WasCut | NotCut | Filled | Ticked


@dataclass(frozen=True, slots=True)
class Note:
    """Stop following, and store that it is damaged. Answer: Noted."""

    offset: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class MarkOffline:
    """Tell the controller that this replica can be neither elected nor in the ISR."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReadLeader:
    """Read from the leader all that would be cut, and check it. Answer: LeaderRead.

    `offset`: the lowest damage that is known of.
    """

    leader: BrokerId
    leader_epoch: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class Cut:
    """Keep the damaged file, and cut the log at this offset, never below. Answer: WasCut or NotCut."""

    offset: int


@dataclass(frozen=True, slots=True)
class Fill:
    """Fill each damaged range with what a replica has there, soundly, in this leader epoch. The leader is asked first.

    Answer: Filled; if not all is sound then, Ticked later.
    """

    leader: BrokerId
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Answer with Ticked, once another replica has had time to take over."""


@dataclass(frozen=True, slots=True)
class Forget:
    """The replica is sound: remove the note, tell the controller, then follow if this epoch is still the newest."""

    leader_epoch: int | None


Effect: TypeAlias = Note | MarkOffline | ReadLeader | Cut | Fill | Wait | Forget
Step: TypeAlias = tuple[Damaged | None, tuple[Effect, ...]]


def begin(offset: int | None, reason: str) -> tuple[Damaged, tuple[Effect, ...]]:
    return Damaged(offset=offset, reason=reason, is_noted=True), (MarkOffline(reason),)


def step(me: BrokerId, state: Damaged | None, event: Event) -> Step:
    if isinstance(event, Found):
        return _found(state, event)
    return (None, ()) if state is None else _go_on(me, state, event)


def _go_on(me: BrokerId, state: Damaged, event: Event) -> Step:
    match event:
        case Noted():
            return _next(replace(state, is_noted=True), MarkOffline(state.reason))
        case LeaderKnown(stored):
            epoch, is_out = stored.leader_epoch, stored.leader not in (me, NO_LEADER) and me not in stored.isr
            return _next(replace(state, known_epoch=epoch, out_epoch=epoch if is_out else None, leader=stored.leader))
        case LeaderRead():
            return _leader_read(state, event)
        case WasCut():
            return None, (Forget(state.out_epoch),)
        case Filled():
            return _filled(me, state, event)
        case Ticked():
            return _next(state, is_late=True)
        case LeaderUnknown():
            return replace(state, known_epoch=None, out_epoch=None), ()
        case NotCut():
            return replace(state, is_busy=False), ()
        case _:
            raise AssertionError(f"{event} was dealt with")


def _leader_read(state: Damaged, event: LeaderRead) -> Step:
    if event.leader_epoch != state.out_epoch:
        return _next(replace(state, is_busy=False))
    if event.sound_from is None:
        return state, (Fill(state.leader, state.out_epoch),)
    return state, (Cut(event.sound_from),)


def _filled(me: BrokerId, state: Damaged, event: Filled) -> Step:
    if event.is_sound:
        return None, (Forget(None if state.leader in (me, NO_LEADER) else state.known_epoch),)
    state = replace(state, is_busy=False)
    return (state, ()) if event.leader_epoch == state.known_epoch else _next(state)


def _found(state: Damaged | None, event: Found) -> Step:
    """More damage in the same replica: the lowest counts. A log that is being cut is read from its start first."""
    if state is None:
        state, stored = Damaged(offset=event.offset, reason=event.reason), event.stored
        if stored is not None:  # not whether it is out: it may have fetched since, and be a member
            state = replace(state, known_epoch=stored.leader_epoch, leader=stored.leader)
        return state, (Note(event.offset, event.reason),)
    if event.offset is None or state.is_busy or (state.offset is not None and state.offset <= event.offset):
        return state, ()
    state = replace(state, offset=event.offset, reason=event.reason, is_noted=False)
    return state, (Note(event.offset, event.reason),)


def _next(state: Damaged, *before: Effect, is_late: bool = False) -> Step:
    """The next effect. A leader, or a member of the ISR, first waits for another replica to take over."""
    if not state.is_noted or state.known_epoch is None or state.is_busy:
        return state, before
    if state.out_epoch is not None:
        return replace(state, is_busy=True), (*before, ReadLeader(state.leader, state.out_epoch, state.offset))
    if not is_late:
        return state, (*before, Wait())
    return replace(state, is_busy=True), (Fill(state.leader, state.known_epoch),)
