"""Worker: a thread that waits for work. `Env` starts it, so that a simulated process has none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue


class Worker:
    """A thread that calls `act` once for each `wake`, and also every `every_s` seconds without one, until `end`."""

    def __init__(self, act: Callable[[], None], name: str, every_s: float | None = None) -> None:
        self._act = act
        self._every_s = every_s
        self._wakes: SimpleQueue[bool] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._wakes.put(True)

    def end(self) -> None:
        """Return when the thread has ended, after all that it was woken for."""
        self._wakes.put(False)
        self._thread.join()

    def _run(self) -> None:
        while self._is_woken():
            self._act()

    def _is_woken(self) -> bool:
        try:
            return self._wakes.get(timeout=self._every_s)
        except Empty:
            return True
