"""LoopWatch: notices when the event loop of a broker stalls, so that nobody is served.

A thread logs a stall of more than STALL_MS while it lasts; it is also counted. Call `look` before something is
acknowledged: after a stall, the loop's knowledge of the cluster may be old, and newer events may wait behind the
present one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from logstore.env import Env
from logstore.worker import Worker

logger = logging.getLogger(__name__)

TICK_MS = 100
STALL_MS = 1000  # far above the longest step; far below a session timeout
LOOK_S = 0.25
LAGS = 100  # ticks that `lag_ms` looks back on: 10 s


class LoopWatch:
    """Belongs to the loop, except for the thread, which only reads."""

    def __init__(self, env: Env, running: Callable[[], str], stood_still: Callable[[int], None]) -> None:
        self.stalls = 0
        self.last_ms = self.longest_ms = 0
        self._lags_ms = deque([0], maxlen=LAGS)
        self._clock = env.clock
        self._start_worker = env.worker
        self._running = running  # describes what the loop is doing; called in the thread
        self._stood_still = stood_still
        self._turned_ms = self._ticked_ms = self._clock.monotonic_ms()
        self._logged_ms = -1  # when the stall began that was logged last
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: Worker | None = None

    def begin(self) -> None:
        self._turned_ms = self._ticked_ms = self._clock.monotonic_ms()
        self._tick()
        self._watcher = self._start_worker(self._watch, "loop watch", LOOK_S)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.end()

    @property
    def lag_ms(self) -> int:
        """How late the loop was for a tick, at most, of the last LAGS."""
        return max(self._lags_ms)

    def look(self) -> None:
        """Check whether the loop has just stalled, and then call `stood_still` before anything else."""
        now_ms = self._clock.monotonic_ms()
        stood_ms, self._turned_ms = now_ms - self._turned_ms - TICK_MS, now_ms
        if stood_ms >= STALL_MS:
            self.stalls += 1
            self.last_ms, self.longest_ms = stood_ms, max(stood_ms, self.longest_ms)
            logger.warning("the event loop turns again after a stall of %d ms", stood_ms)
            self._stood_still(stood_ms)

    def _tick(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._lags_ms.append(max(0, now_ms - self._ticked_ms - TICK_MS))
        self._ticked_ms = now_ms
        self.look()
        self._timer = asyncio.get_running_loop().call_later(TICK_MS / 1000, self._tick)

    def _watch(self) -> None:
        """In the thread: log a stall while it lasts, once."""
        turned_ms = self._turned_ms
        stands_ms = self._clock.monotonic_ms() - turned_ms
        if stands_ms >= STALL_MS and turned_ms != self._logged_ms:
            self._logged_ms = turned_ms
            logger.warning(
                "the event loop has been stalled for %d ms, and serves no request: %s", stands_ms, self._running()
            )
