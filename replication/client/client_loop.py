"""ClientLoop: an event loop in a thread of its own, for the calls of code that has none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, TypeAlias, TypeVar

from logstore.errors import InvalidRequestError
from replication.network.loops import new_event_loop

Found = TypeVar("Found")
End: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class ClientLoop:
    """Used from any thread; begins at once. `where` is named in the error of a call that comes after `close`."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._loop = new_event_loop()
        self._ended = self._loop.create_future()
        run = partial(self._loop.run_until_complete, self._ended)
        self._thread = threading.Thread(target=run, name="pylog-client", daemon=True)
        self._thread.start()
        self._endings: set[End] = set()
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self, act: Callable[[], None]) -> None:
        """End what was to be ended, call `act`, and end the loop. Calls that wait raise InvalidRequestError."""
        if not self._is_closed:
            self._is_closed = True
            stopping = asyncio.run_coroutine_threadsafe(self._stop(act), self._loop)
            self._thread.join()
            self._loop.close()
            stopping.result()

    async def _stop(self, act: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            for end in tuple(self._endings):
                await end()
            act()
            waiting = asyncio.all_tasks() - {asyncio.current_task()}  # calls of other threads
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await loop.shutdown_default_executor()
        finally:
            loop.call_soon(self._ended.set_result, None)  # the loop ends by itself, once `close` has the outcome

    def ending(self, close: End) -> End:
        """Return `close`, which is called before the loop ends unless it was called before."""

        async def end() -> None:
            self._endings.discard(end)
            await close()

        self._endings.add(end)
        return end

    def submit(self, act: Coroutine[Any, Any, Found]) -> Future[Found]:
        """Begin it. Raises: InvalidRequestError: the client is closed."""
        if self._is_closed:
            act.close()
            raise self._closed()
        return asyncio.run_coroutine_threadsafe(act, self._loop)

    def run(self, act: Coroutine[Any, Any, Found]) -> Found:
        """Have it done, and return the result. Raises: InvalidRequestError: the client is closed, or meanwhile."""
        return self.result(self.submit(act))

    def result(self, future: Future[Found]) -> Found:
        """Wait for what `submit` has begun. Raises: as `run`."""
        try:
            return future.result()
        except CancelledError:
            raise self._closed() from None

    def _closed(self) -> InvalidRequestError:
        return InvalidRequestError(f"the client of {self._where} is closed")
