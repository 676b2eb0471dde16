"""AclChanges: ACLs in the tree, brought to the authorizer of this broker.

At the begin of a session it reads all; from then on, notices in the tree name the patterns to read again. Should one be
missing, it reads all again: a denial must not be overlooked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from replication.broker import acl_nodes
from replication.coordination.tree import Tree, Watch
from replication.coordination.tree_watch import TreeWatch
from replication.security.acl import Pattern
from replication.security.acl_authorizer import AclAuthorizer

logger = logging.getLogger(__name__)

NOTICES_KEPT = 1000


class AclChanges(TreeWatch):
    """Without a session, the authorizer goes by the ACLs that were known last."""

    def __init__(self, authorizer: AclAuthorizer) -> None:
        super().__init__(self._read, "ACLs")
        self._authorizer = authorizer
        self._seen: dict[str, str] = {}  # the last notice that was read, by its folder
        self._reading = asyncio.Lock()  # what was read first must not come after what was read next

    async def begin(self, tree: Tree) -> None:
        """Read all in this session, and follow the changes. Raises: CoordinationError."""
        self._seen.clear()
        await super().begin(tree)

    async def learn(self, tree: Tree) -> None:
        """Know the ACLs before requests are served."""
        await acl_nodes.prepare(tree)
        async with self._reading:
            await self._read_all(tree)
        logger.info("ACLs=%d", len(self._authorizer.rules))

    async def know(self, tree: Tree, patterns: Collection[Pattern]) -> None:
        """Go by what the tree has of these patterns from now on."""
        async with self._reading:
            await self._read_patterns(tree, patterns)

    async def _read_patterns(self, tree: Tree, patterns: Collection[Pattern]) -> None:
        if any(map(acl_nodes.is_ambiguous, patterns)):
            await self._read_all(tree)
            return
        for pattern, node in (await acl_nodes.read(tree, patterns)).items():
            self._authorizer.put(pattern, node.entries)

    async def _read(self, tree: Tree, watch: Watch) -> None:
        async with self._reading:
            await self._read_changes(tree, watch)

    async def _read_changes(self, tree: Tree, watch: Watch) -> None:
        names = {folder: await acl_nodes.notices(tree, folder, watch) for folder in acl_nodes.CHANGES}
        changed: set[Pattern] | None = set()
        for folder, known in names.items():
            found = await self._changed(tree, folder, known)
            changed = None if changed is None or found is None else changed | found
        if changed is None:
            await self._read_all(tree)
        else:
            await self._read_patterns(tree, changed)
        for folder, known in names.items():
            self._seen[folder] = known[-1] if known else ""
            if len(known) > 2 * NOTICES_KEPT:
                await acl_nodes.forget_old_notices(tree, folder, known, NOTICES_KEPT)

    async def _changed(self, tree: Tree, folder: str, names: tuple[str, ...]) -> set[Pattern] | None:
        """Return the patterns that have changed since the last look; None: any may have."""
        seen = self._seen.get(folder)
        if seen is None or seen not in (*names, ""):
            return None
        if not seen and names and int(names[0].rpartition("_")[2]) > 0:
            return None  # notices may have come and gone
        return await acl_nodes.read_notices(tree, folder, [name for name in names if name > seen])

    async def _read_all(self, tree: Tree) -> None:
        found = await acl_nodes.read_all(tree)
        self._authorizer.keep(found.keys())
        for pattern, node in found.items():
            self._authorizer.put(pattern, node.entries)
