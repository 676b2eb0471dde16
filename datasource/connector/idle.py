"""How a stream without new records waits for them, in Spark's place.

By default Spark asks an idle source again after 10 ms, which costs the JVM more than the look for records costs here.
So a source that is asked again at once looks by itself for a while before it answers that there is nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from logstore.env import Clock

WAIT_MS = 100  # at most: another source of the query, query.stop() and processAllAvailable() wait for it
AT_ONCE_MS = 50  # a longer trigger interval is Spark's to wait for
SHARE = 15  # a question takes at most a fifteenth of the time, which is about the delay of a record
PAUSE_MS_MAX = 30

Answer = TypeVar("Answer")


class Idle:
    """Remembers when Spark was told that there is nothing."""

    def __init__(self) -> None:
        self._told_ms: int | None = None

    def wait(
        self, look: Callable[[], Answer], has_grown: Callable[[], bool], *, nothing: Answer, clock: Clock
    ) -> Answer:
        """Return what a look gives that is not `nothing`, or `nothing` after WAIT_MS.

        There is one look, and no wait, unless `nothing` was the last answer, and has just been given. `has_grown` costs
        less than a look, and is asked whether to look again.
        """
        begun_ms = clock.monotonic_ms()
        waits = self._told_ms is not None and begun_ms - self._told_ms <= AT_ONCE_MS
        found, asked_ms = look(), 0
        while waits and found == nothing and (left_ms := begun_ms + WAIT_MS - clock.monotonic_ms()) > 0:
            clock.sleep_ms(min(pause_ms(asked_ms), left_ms))
            before_ms = clock.monotonic_ms()
            if has_grown():
                found = look()
            asked_ms = clock.monotonic_ms() - before_ms
        self._told_ms = clock.monotonic_ms() if found == nothing else None
        return found


def pause_ms(asked_ms: float) -> float:
    """Return the pause after a question that took so long; clocks tell whole milliseconds."""
    return min(SHARE * (asked_ms + 1), PAUSE_MS_MAX)
