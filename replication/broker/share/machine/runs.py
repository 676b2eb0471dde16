"""Runs: ranges of offsets that are alike. A share partition is a row of them, without gaps: no object per record."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from replication.coordinators.share_state.machine.batches import DeliveryState

NO_GOAL = -1
TERMINAL = frozenset({DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED})


class Run(NamedTuple):
    """Records from `first` to `last`, included, of one state.

    Only those that are acquired have a member, and a lock until `lock_ms`. `goal`: the state that they are to have once
    the write of this number is stored; until then nobody else gets them, and they cannot be acknowledged again.
    `cause`: why they are about to be ARCHIVING, for their dead letters.
    """

    first: int
    last: int
    state: int = DeliveryState.AVAILABLE
    delivery_count: int = 0
    member: str = ""
    lock_ms: int = 0
    goal: int = NO_GOAL
    write: int = 0
    cause: str = ""

    @property
    def records(self) -> int:
        return self.last - self.first + 1

    @property
    def is_available(self) -> bool:
        return self.state == DeliveryState.AVAILABLE and self.goal == NO_GOAL

    @property
    def is_locked(self) -> bool:
        return self.state == DeliveryState.ACQUIRED and self.goal == NO_GOAL


Runs: TypeAlias = tuple[Run, ...]


def overlapping(runs: Runs, first: int, last: int) -> slice:
    """Return where those are that have one of these offsets."""
    low = bisect_left(runs, first, key=lambda run: run.last)
    return slice(low, bisect_right(runs, last, lo=low, key=lambda run: run.first))


def changed(runs: Runs, parts: Iterable[tuple[int, int, Callable[[Run], Run]]]) -> Runs:
    """Return the runs with the change of each part, first and last offset; parts are in order, and do not overlap."""
    found: list[Run] = []
    rest = iter(runs)
    run = next(rest, None)
    for first, last, change in parts:
        while run is not None and run.last < first:
            found.append(run)
            run = next(rest, None)
        while run is not None and run.first <= last:
            low, high = max(first, run.first), min(last, run.last)
            if run.first < low:
                found.append(run._replace(last=low - 1))
            found.append(change(run._replace(first=low, last=high)))
            run = run._replace(first=high + 1) if high < run.last else next(rest, None)
    return tuple(merged((*found, *(() if run is None else (run,)), *rest)))


def merged(runs: Iterable[Run]) -> list[Run]:
    found: list[Run] = []
    for run in runs:
        if found and found[-1][2:] == run[2:]:
            found[-1] = found[-1]._replace(last=run.last)
        else:
            found.append(run)
    return found
