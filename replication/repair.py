"""What becomes of a replica that is damaged: it leaves the ISR, is cut, and copied from the leader.

`step(damaged, event) -> (damaged, effects)`; None stands for a replica that is well. Laws:

- What was found is noted durably before anything else is done, and until the cut is durable: the next life of the
  broker begins where this one ended.
- Nothing is cut unless a controller has said, in a leader epoch in which this replica has not fetched, that it follows
  and is not in the ISR: leaving is committed then, and what is cut is at the members. A leader is never cut.
- A damaged replica follows nobody. It is offline until it was cut; then it is told that it is well, and only after
  that it fetches.

::

    Found ──Note──> Noted ──MarkOffline──> (waits) ──Told: follows, not in the ISR──> Cut ──> Forget, Follow
                                              ^                                        │ failed: again, later
                                              └────────────────────────────────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from replication.model import BrokerId, LeaderAndIsr


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A damaged replica. `offset`: everything below is sound, as far as is known; None: not known yet.

    `is_noted`: the next life knows of it. `out_in` is the leader epoch in which it follows and is not in the ISR;
    None: it leads, or is a member, or nobody has said. `is_cutting`: the log is being cut.
    """

    offset: int | None
    reason: str
    is_noted: bool = False
    out_in: int | None = None
    is_cutting: bool = False


# -------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Found:
    """There is damage, at this offset or (None) somewhere."""

    offset: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Noted:
    """That is durable."""


@dataclass(frozen=True, slots=True)
class Told:
    """A controller has said who leads and who is in the ISR."""

    stored: LeaderAndIsr


@dataclass(frozen=True, slots=True)
class Untold:
    """The session is over: nothing is known of epochs."""


@dataclass(frozen=True, slots=True)
class WasCut:
    """The damage is not of the log any more, durably."""


@dataclass(frozen=True, slots=True)
class NotCut:
    """That failed, and nobody knows how far it came."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed: what failed is done again."""


Event: TypeAlias = Found | Noted | Told | Untold | WasCut | NotCut | Ticked


# ------------------------------------------------------------------- effects


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
class Cut:
    """Keep the damaged file, and cut the log before it. Answer: WasCut or NotCut."""

    offset: int | None


@dataclass(frozen=True, slots=True)
class Forget:
    """It is well again: remove the note, then tell the controller, then follow if this epoch is still the newest."""

    leader_epoch: int | None


Effect: TypeAlias = Note | MarkOffline | Cut | Forget
Step: TypeAlias = tuple[Damaged | None, tuple[Effect, ...]]


def begin(offset: int | None, reason: str) -> tuple[Damaged, tuple[Effect, ...]]:
    """Begin with what a former life has noted."""
    return Damaged(offset=offset, reason=reason, is_noted=True), (MarkOffline(reason),)


def step(me: BrokerId, state: Damaged | None, event: Event) -> Step:
    """Return the state after the event, and what has to be done, in order."""
    if isinstance(event, Found):
        return _found(state, event)
    if state is None:
        return None, ()
    match event:
        case Noted():
            state = replace(state, is_noted=True)
            return _maybe_cut(state, MarkOffline(state.reason))
        case Told(stored):
            is_out = stored.leader not in (me, -1) and me not in stored.isr
            return _maybe_cut(replace(state, out_in=stored.leader_epoch if is_out else None))
        case Untold():
            return replace(state, out_in=None), ()
        case WasCut():
            return None, (Forget(state.out_in),)
        case NotCut():
            return replace(state, is_cutting=False), ()
        case Ticked():
            return _maybe_cut(state)
        case _:
            assert_never(event)


def _found(state: Damaged | None, event: Found) -> Step:
    """More damage in the same replica: the lowest counts. What is being cut is read from its start first."""
    if state is None:
        return Damaged(offset=event.offset, reason=event.reason), (Note(event.offset, event.reason),)
    if (
        event.offset is None
        or state.is_cutting
        or (state.offset is not None and state.offset <= event.offset)
    ):
        return state, ()
    state = replace(state, offset=event.offset, reason=event.reason, is_noted=False)
    return state, (Note(event.offset, event.reason),)


def _maybe_cut(state: Damaged, *before: Effect) -> Step:
    if not state.is_noted or state.out_in is None or state.is_cutting:
        return state, before
    return replace(state, is_cutting=True), (*before, Cut(state.offset))
