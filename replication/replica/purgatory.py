"""Purgatory: who waits until something is committed, or until time is over.

`CommitWaits` are the appends of one partition, in the order of their offsets: the first ones are done first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol


class Waiting(Protocol):
    """Someone who waits until everything below `end_offset` is committed."""

    end_offset: int
    is_over: bool  # it was answered, or nobody listens any more


class CommitWaits:
    """See the module."""

    def __init__(self) -> None:
        self._waits: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, wait: Waiting) -> None:
        """Wait. Offsets only grow from one to the next."""
        self._waits.append(wait)

    def reached(self, offset: int) -> list[Waiting]:
        """Take out, in order, those that wait for nothing above `offset`."""
        done = []
        while self._waits and self._waits[0].end_offset <= offset:
            wait = self._waits.popleft()
            if not wait.is_over:
                done.append(wait)
        return done

    def all(self) -> list[Waiting]:
        """Take out everybody."""
        left, self._waits = self._waits, deque()
        return [wait for wait in left if not wait.is_over]

    def sweep(self) -> None:
        """Forget those whose time was over."""
        if any(wait.is_over for wait in self._waits):
            self._waits = deque(wait for wait in self._waits if not wait.is_over)


class Countdown:
    """Calls `then` once, when `count` things have happened."""

    __slots__ = ("_count", "_then")

    def __init__(self, count: int, then: Callable[[], None]) -> None:
        self._count = count
        self._then = then

    def one_less(self) -> None:
        """One of them has happened."""
        self._count -= 1
        if self._count == 0:
            self._then()
