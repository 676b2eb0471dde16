"""TreeWatch: reads something at the begin of a session, and again whenever it may have changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from replication.coordination.tree import ConnectionLossError, CoordinationError, SessionExpiredError, Tree, Watch

logger = logging.getLogger(__name__)

RETRY_S = 0.5


class TreeWatch:
    """`look` reads the tree, and gives every read the watch; `what` names what it reads. Belongs to the event loop."""

    def __init__(self, look: Callable[[Tree, Watch], Awaitable[Any]], what: str) -> None:
        self._look = look
        self._what = what
        self._task: asyncio.Task[None] | None = None
        self._alarm = asyncio.Event()

    async def begin(self, tree: Tree) -> None:
        """Read now, and follow the changes in this session. Raises: CoordinationError: it cannot be read now."""
        await self.end()
        await self.look(tree)
        self._task = asyncio.get_running_loop().create_task(self._watch(tree))

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def look_again(self) -> None:
        """Read again after the store was silent: its watches are gone."""
        self._alarm.set()

    async def look(self, tree: Tree) -> None:
        self._alarm.clear()
        await self._look(tree, lambda path: self._alarm.set())

    async def _watch(self, tree: Tree) -> None:
        while True:
            try:
                await self._alarm.wait()
                await self.look(tree)
            except SessionExpiredError:
                return
            except ConnectionLossError:
                self._alarm.set()
                await asyncio.sleep(RETRY_S)
            except CoordinationError as error:
                logger.warning("%s cannot be read: %s", self._what, error)
