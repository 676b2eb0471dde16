"""Which sessions were silent for their whole timeout.

A session shows its life by a number that it counts up. Somebody who looks in now and then can tell that it did not
count, but not why. So silence is added up from look to look, and a long time between two looks counts for little:
then it was the looker, or the store, that stood still, and others could not have counted either. It follows that

- no session is called silent before its timeout has passed since it last counted;
- when everybody was held up (a process stopped in the middle of a write), everybody gets at least half of the
  timeout to show itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Pulse(NamedTuple):
    """A session as it stands in the store."""

    session: int
    beat: int
    timeout_ms: int


class Leases:
    """What one looker has seen. Not shared, not stored: who comes new begins with nothing."""

    __slots__ = ("_last_look_ms", "_seen")

    def __init__(self) -> None:
        self._seen: dict[
            int, tuple[int, float]
        ] = {}  # session -> beat, and for how long it has been that (ms)
        self._last_look_ms: int | None = None

    def look(self, pulses: Iterable[Pulse], now_ms: int) -> tuple[int, ...]:
        """Return the sessions that are over. `pulses` are all there are, read in a write that succeeded."""
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
