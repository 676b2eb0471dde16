"""Mute: for how long a client is held back: nothing is read, nothing begins, and what is open is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Mute:
    """`begun` is called when such a time begins, `over` when it has passed."""

    is_on = False

    def __init__(self, loop: asyncio.AbstractEventLoop, begun: Callable[[], None], over: Callable[[], None]) -> None:
        self._loop = loop
        self._begun = begun
        self._over = over
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False

    def hold(self, wait_ms: int) -> None:
        """Hold the client back for so long from now on; the longest such time counts."""
        until_s = self._loop.time() + wait_ms / 1000
        if self._has_ended or (self._timer is not None and self._timer.when() >= until_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self.is_on = True
        self._timer = self._loop.call_at(until_s, self._pass)
        self._begun()

    def end(self) -> None:
        """Let go of the timer: the connection begins nothing any more."""
        self._has_ended = True
        self.is_on = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _pass(self) -> None:
        self.is_on, self._timer = False, None
        self._over()
