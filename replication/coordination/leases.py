"""Expired sessions: those that were silent for their whole timeout.

A session shows that it is alive by counting up a number. An observer sees that a session did not count, but not why. So
silence is summed up from one observation to the next, and a long time between two observations counts for little:
then the observer or the store stood still, and other sessions could not have counted either. It follows that

- no session expires before its timeout has passed since it last counted;
- when everybody was held up (a process stopped in the middle of a write), every session gets at least half of its
  timeout to show that it lives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Pulse(NamedTuple):
    session: int
    beat: int
    timeout_ms: int


class Leases:
    """The observations of one observer. Not shared and not stored."""

    __slots__ = ("_last_look_ms", "_seen")

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, float]] = {}  # session -> its beat, and since how many ms
        self._last_look_ms: int | None = None

    def look(self, pulses: Iterable[Pulse], now_ms: int) -> tuple[int, ...]:
        """Return the expired sessions. `pulses` are all that exist, read in a write that succeeded."""
        passed_ms = 0 if self._last_look_ms is None else now_ms - self._last_look_ms
        self._last_look_ms = now_ms
        former, self._seen = self._seen, {}
        over = []
        for session, beat, timeout_ms in pulses:
            known, silent_ms = former.get(session, (None, 0.0))
            silent_ms = silent_ms + min(passed_ms, timeout_ms / 4) if known == beat else 0.0
            self._seen[session] = (beat, silent_ms)
            if silent_ms >= timeout_ms:
                over.append(session)
        return tuple(over)
