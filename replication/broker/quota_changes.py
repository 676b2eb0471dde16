"""QuotaChanges: quotas in the tree, brought to this broker.

At the begin of a session it reads all; from then on, notices in the tree name the settings to read again. Should one be
missing, it reads all again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from replication.broker import quota_nodes
from replication.coordination.tree import Tree, Watch
from replication.coordination.tree_watch import TreeWatch
from replication.network.throttle import Throttle
from replication.security.quotas import Entity, Values

logger = logging.getLogger(__name__)


class QuotaChanges(TreeWatch):
    """Without a session, the quotas that were known last count."""

    def __init__(self, throttle: Throttle) -> None:
        super().__init__(self._read, "quotas")
        self._throttle = throttle
        self._seen = ""  # the last notice that was read
        self._reading = asyncio.Lock()  # what was read first must not come after what was read next

    async def begin(self, tree: Tree) -> None:
        """Read all in this session, and follow the changes. Raises: CoordinationError."""
        self._seen = ""
        await super().begin(tree)

    async def learn(self, tree: Tree) -> None:
        """Know the quotas before requests are served."""
        async with self._reading:
            await self._read_all(tree)

    async def know(self, tree: Tree, entities: Collection[Entity]) -> None:
        """Go by what the tree has of these entities from now on."""
        async with self._reading:
            self._put(await quota_nodes.read(tree, map(quota_nodes.path_of, entities)))

    async def _read(self, tree: Tree, watch: Watch) -> None:
        async with self._reading:
            names = await quota_nodes.notices(tree, watch)
            if self._seen in names:
                paths = await quota_nodes.changed_paths(tree, [name for name in names if name > self._seen])
                self._put(await quota_nodes.read(tree, paths))
            else:
                await self._read_all(tree)
            self._seen = names[-1] if names else ""

    async def _read_all(self, tree: Tree) -> None:
        found = await quota_nodes.read_all(tree)
        gone = set(self._throttle.limits.entities()) - found.keys()
        self._put({**{entity: {} for entity in gone}, **found})

    def _put(self, found: Mapping[Entity, Values]) -> None:
        for entity, values in found.items():
            before = self._throttle.limits.given(entity)
            if values != before:
                self._throttle.put(entity, values)
                said = " ".join(f"{quota}={value:.15g}" for quota, value in values.items())
                logger.info("quotas of %.300r: %s", str(entity), said or "none")
