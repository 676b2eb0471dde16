"""What a controller watches in the tree, and what its machine is told of each: one method per kind of news.

Every look sets its watch first and reads then, so that no change is missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from replication.controller.machine import events
from replication.coordination import cluster, nodes
from replication.coordination.offline import read_offline
from replication.coordination.tree import Change, NoNodeError, Tree, Watch
from replication.model.cluster import TopicPartition

# Reads something with a watch on it; what the machine is to know of it, in order.
Look: TypeAlias = Callable[[Watch], Awaitable[tuple[events.Event, ...]]]


class Watches:
    """The looks of one term. `unclean_default`: as `cluster.read_topics` has it."""

    def __init__(self, tree: Tree, *, unclean_default: bool) -> None:
        self._tree = tree
        self._unclean_default = unclean_default
        self._watched_topics: set[str] = set()
        self._reading_offline = asyncio.Lock()  # what is read later is told later

    def looks(self) -> tuple[Look, ...]:
        """All that is to be watched."""
        return (
            self.brokers,
            self.offline,
            self.topics,
            self.configs,
            self.deletions,
            self.election,
            self.reassignments,
            self.isrs,
        )

    def forget(self) -> None:
        """After a silence of the store nothing is watched any more."""
        self._watched_topics.clear()

    async def brokers(self, watch: Watch) -> tuple[events.Event, ...]:
        """Who is registered, and what of them is offline: read after that, so as not to miss what they begin with."""
        await self._tree.children(nodes.BROKER_IDS, watch)
        async with self._reading_offline:
            found = await cluster.read_brokers(self._tree)
            offline = await read_offline(self._tree)
            return (events.BrokersChanged(tuple(found[broker] for broker in sorted(found)), offline),)

    async def offline(self, watch: Watch) -> tuple[events.Event, ...]:
        """Which replicas their brokers cannot serve or write."""
        async with self._reading_offline:
            return (events.OfflineReplicasChanged(await read_offline(self._tree, watch)),)

    async def topics(self, watch: Watch) -> tuple[events.Event, ...]:
        """Which topics there are, and their partitions."""

        def changed(change: Change) -> None:
            self._watched_topics.discard(change.path.rpartition("/")[2])
            watch(change)

        for name in await self._tree.children(nodes.TOPICS, watch):
            if name not in self._watched_topics:
                self._watched_topics.add(name)
                await self._tree.get(nodes.topic_path(name), changed)
        return (await self.read_topics(),)

    async def configs(self, watch: Watch) -> tuple[events.Event, ...]:
        """The settings of topics."""
        await self._tree.children(nodes.CONFIG_CHANGES, watch)
        return (await self.read_topics(),)

    async def read_topics(self) -> events.TopicsChanged:
        """The topics as they are now."""
        found = await cluster.read_topics(self._tree, unclean_default=self._unclean_default)
        return events.TopicsChanged(found)

    async def deletions(self, watch: Watch) -> tuple[events.Event, ...]:
        """Which topics are to be deleted."""
        names = await self._tree.children(nodes.DELETED_TOPICS, watch)
        return (events.DeleteRequested(names),) if names else ()

    async def election(self, watch: Watch) -> tuple[events.Event, ...]:
        """Which preferred replicas are to lead; with the ISRs of now, since notices of them come a moment later."""
        found = await self._tree.get(nodes.PREFERRED_ELECTION, watch)
        if found is None:
            return ()
        tps = nodes.decode_partitions(nodes.PREFERRED_ELECTION, found.data)
        return await self._isrs_of(tps), events.PreferredElectionRequested(tps)

    async def reassignments(self, watch: Watch) -> tuple[events.Event, ...]:
        """Which partitions are to have other replicas; with the topics of now, since one may be new."""
        plans = await self.read_reassignments(watch)
        return await self.read_topics(), plans

    async def read_reassignments(self, watch: Watch | None = None) -> events.ReassignmentsRequested:
        """What is wanted now."""
        return events.ReassignmentsRequested(await cluster.read_reassignments(self._tree, watch))

    async def isrs(self, watch: Watch) -> tuple[events.Event, ...]:
        """What leaders have told of their ISRs; each notice is taken away once it was read."""
        names = await self._tree.children(nodes.ISR_CHANGES, watch)
        paths = [f"{nodes.ISR_CHANGES}/{name}" for name in names]
        found = await self._tree.read_batch(paths)
        tps: dict[TopicPartition, None] = {}
        for path, node in zip(paths, found, strict=True):
            if node is not None:
                with cluster.said_if_malformed():
                    tps.update(dict.fromkeys(nodes.decode_partitions(path, node.data)))
        changed = await self._isrs_of(tuple(tps))
        for path in paths:
            await delete_if_there(self._tree, path)
        return (changed,) if changed.partitions else ()

    async def _isrs_of(self, partitions: tuple[TopicPartition, ...]) -> events.IsrChanged:
        found = await cluster.read_states(self._tree, partitions)
        return events.IsrChanged(tuple((tp, state) for tp, state in found.items() if state is not None))


async def delete_if_there(tree: Tree, path: str) -> None:
    """Remove a node that somebody else may have removed."""
    try:
        await tree.delete(path)
    except NoNodeError:
        return
