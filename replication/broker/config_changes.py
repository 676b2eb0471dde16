"""ConfigChanges: changes of topics' settings in the tree, reported to this broker.

At the begin of a session it reads all settings; from then on, notices in the tree name the topics to read again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from logstore.errors import InvalidConfigError
from replication.coordination import cluster, nodes, topics
from replication.coordination.tree import ConnectionLossError, CoordinationError, SessionExpiredError, Tree

logger = logging.getLogger(__name__)

RETRY_S = 0.5
NOTICES_KEPT = 100


class ConfigChanges:
    """`changed` takes a topic and its settings; it may raise InvalidConfigError."""

    def __init__(self, changed: Callable[[str, Mapping[str, str]], None]) -> None:
        self._changed = changed
        self._seen = ""  # the last notice that was read
        self._task: asyncio.Task[None] | None = None
        self._alarm = asyncio.Event()

    async def begin(self, tree: Tree) -> None:
        """Read all settings in this session, and watch for changes."""
        await self.end()
        self._seen = ""
        await self._look(tree)
        self._task = asyncio.get_running_loop().create_task(self._watch(tree))

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def look_again(self) -> None:
        """Read again after the store was silent: its watches are gone."""
        self._alarm.set()

    async def _watch(self, tree: Tree) -> None:
        while True:
            try:
                await self._alarm.wait()
                await self._look(tree)
            except SessionExpiredError:
                return
            except ConnectionLossError:
                self._alarm.set()
                await asyncio.sleep(RETRY_S)
            except CoordinationError as error:
                logger.warning("settings of topics cannot be read: %s", error)

    async def _look(self, tree: Tree) -> None:
        """Read the changes since the last notice; the first time, everything."""
        self._alarm.clear()
        names = await tree.children(nodes.CONFIG_CHANGES, lambda path: self._alarm.set())
        if not self._seen:
            await self._tell(tree, await tree.children(nodes.TOPICS))
        else:
            paths = [f"{nodes.CONFIG_CHANGES}/{name}" for name in names if name > self._seen]
            found = await tree.read_batch(paths)
            changed: set[str | None] = set()
            for path, node in zip(paths, found, strict=True):
                if node is not None:
                    with cluster.log_if_malformed():
                        changed.add(nodes.decode_config_change(path, node.data))
            await self._tell(tree, sorted(topic for topic in changed if topic is not None))
        self._seen = names[-1] if names else self._seen or "-"
        if len(names) > 2 * NOTICES_KEPT:
            await topics.forget_old_notices(tree, NOTICES_KEPT)

    async def _tell(self, tree: Tree, names: Sequence[str]) -> None:
        found = await tree.read_batch([nodes.topic_config_path(name) for name in names])
        for name, node in zip(names, found, strict=True):
            try:
                self._changed(name, nodes.settings_of(name, node))
            except (InvalidConfigError, nodes.MalformedNodeError) as error:
                logger.error("topic=%s keeps its former settings: %s", name, error)
