"""Turns: a session is kept alive only while the event loop of its owner turns, since a stuck broker serves nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Turns:
    """Asked by the thread that keeps a session alive. `excuse` tells whether the loop stands for a good reason."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.excuse: Callable[[], bool] = lambda: False  # called in that thread
        self._loop = loop
        self._has_turned = True

    def has_turned(self) -> bool:
        """Return whether the loop has turned since the last call that returned true, or is excused."""
        if not self._has_turned:
            return self.excuse()
        self._has_turned = False
        self.post(self._note)
        return True

    def post(self, act: Callable[..., None], *args: Any) -> None:
        """Call it in the event loop, after all that was posted before."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(act, *args)

    def _note(self) -> None:
        self._has_turned = True
