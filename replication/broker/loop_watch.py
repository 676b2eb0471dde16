"""LoopWatch: sees when the event loop of a broker stands still: nobody is served then.

A loop that did not turn for STALL_MS is one line in the log, written while it stands, by a thread; and it counts. Who
is about to acknowledge something asks `look` first: after a standstill, what the loop knows of the cluster may be old,
and the news stands behind what it does first.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from logstore.env import Clock

logger = logging.getLogger(__name__)

TICK_MS = 100
STALL_MS = 1000  # far above the longest step; far below a session timeout
LOOK_S = 0.25


class LoopWatch:
    """Belongs to the loop, but for the thread, which only reads. `begin` and `end` are its life."""

    def __init__(self, clock: Clock, running: Callable[[], str], stood_still: Callable[[int], None]) -> None:
        self.stalls = 0
        self.last_ms = self.longest_ms = 0
        self._clock = clock
        self._running = running  # what the loop is doing, as far as that is known; called in the thread
        self._stood_still = stood_still
        self._turned_ms = clock.monotonic_ms()
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = threading.Event()

    def begin(self) -> None:
        """Watch the running loop."""
        self._turned_ms = self._clock.monotonic_ms()
        self._tick()
        threading.Thread(target=self._watch, name="loop watch", daemon=True).start()

    def end(self) -> None:
        """Watch no more."""
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """See whether the loop has just stood still; if so, draw the conclusions before anything else."""
        now_ms = self._clock.monotonic_ms()
        stood_ms, self._turned_ms = now_ms - self._turned_ms - TICK_MS, now_ms
        if stood_ms >= STALL_MS:
            self.stalls += 1
            self.last_ms, self.longest_ms = stood_ms, max(stood_ms, self.longest_ms)
            logger.warning("the event loop turns again: it stood still for %d ms", stood_ms)
            self._stood_still(stood_ms)

    def _tick(self) -> None:
        self.look()
        self._timer = asyncio.get_running_loop().call_later(TICK_MS / 1000, self._tick)

    def _watch(self) -> None:
        """In the thread: tell of a standstill while it lasts, once."""
        told_ms = -1
        while not self._is_over.wait(LOOK_S):
            turned_ms = self._turned_ms
            stands_ms = self._clock.monotonic_ms() - turned_ms
            if stands_ms >= STALL_MS and turned_ms != told_ms:
                told_ms = turned_ms
                logger.warning(
                    "the event loop stands still since %d ms, nobody is served: %s",
                    stands_ms,
                    self._running(),
                )
