"""Mute: for how long a client is held back: nothing of it begins, little more is read, what is open is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Mute:
    """`over` is called when such a time has passed."""

    is_on = False

    def __init__(self, loop: asyncio.AbstractEventLoop, over: Callable[[], None]) -> None:
        self._loop = loop
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
