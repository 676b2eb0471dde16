"""Watches: the changes of the tree that a controller reports to its machine, one method per kind.

Every method sets its watch before it reads, so that no change is missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from replication.controller.machine import events
from replication.controller.machine.state import Controller
from replication.coordination import cluster, features, nodes
from replication.coordination.offline import read_offline
from replication.coordination.tree import NoNodeError, Tree, Watch
from replication.model.cluster import BrokerId, BrokerInfo, TopicPartition
from replication.model.features import Finalized, refusal_to_join

logger = logging.getLogger(__name__)

# Reads something and watches it; returns the events for the machine, in order.
Look: TypeAlias = Callable[[Watch], Awaitable[tuple[events.Event, ...]]]


class Watches:
    """The watches of one term. `known` returns the machine's state."""

    def __init__(self, tree: Tree, known: Callable[[], Controller]) -> None:
        self._tree = tree
        self._known = known
        self._watched_topics: set[str] = set()
        self._reading: list[set[str]] = []  # per read of topics that goes on: the ids that were deleted meanwhile
        self._reading_offline = asyncio.Lock()  # a later read is posted later
        self._left_out: frozenset[tuple[BrokerId, int]] = frozenset()  # registrations that do not support the level

    def looks(self) -> tuple[Look, ...]:
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
        """Note that the store was silent, and dropped all watches."""
        self._watched_topics.clear()

    async def brokers(self, watch: Watch) -> tuple[events.Event, ...]:
        """The registered brokers; then their offline replicas, and the ISRs of those that lost writes.

        So both are known with a new broker.
        """
        await self._tree.children(nodes.BROKER_IDS, watch)
        async with self._reading_offline:
            found = self._supporting(*await features.read_registered(self._tree))
            offline = await read_offline(self._tree)
            live = tuple(found[broker] for broker in sorted(found))
            states = await self._isrs_of(tuple(self._known().partitions_in_doubt(live)))
            return (events.BrokersChanged(live, offline, states.partitions),)

    def _supporting(self, registered: features.Registered, finalized: Finalized) -> dict[BrokerId, BrokerInfo]:
        """Return the brokers that support the level; each of the others is named once."""
        reasons = {b: refusal_to_join(b, info.levels, finalized.level) for b, info in registered.items()}
        left_out = {(b, registered[b].epoch): reason for b, reason in reasons.items() if reason is not None}
        for life, reason in sorted(left_out.items()):
            if life not in self._left_out:
                logger.warning("%s; it is left out: it leads nothing, and is in no ISR", reason)
        self._left_out = frozenset(left_out)
        return {broker: info for broker, info in registered.items() if reasons[broker] is None}

    async def offline(self, watch: Watch) -> tuple[events.Event, ...]:
        async with self._reading_offline:
            return (events.OfflineReplicasChanged(await read_offline(self._tree, watch)),)

    async def topics(self, watch: Watch) -> tuple[events.Event, ...]:

        def changed(path: str) -> None:
            self._watched_topics.discard(path.rpartition("/")[2])
            watch(path)

        for name in await self._tree.children(nodes.TOPICS, watch):
            if name not in self._watched_topics:
                self._watched_topics.add(name)
                await self._tree.get(nodes.topic_path(name), changed)
        return (await self.read_topics(),)

    async def configs(self, watch: Watch) -> tuple[events.Event, ...]:
        await self._tree.children(nodes.CONFIG_CHANGES, watch)
        return (await self.read_topics(),)

    async def read_topics(self) -> events.TopicsChanged:
        """The topics, without those that this controller has deleted since the read began: they do not come back."""
        deleted: set[str] = set()
        self._reading.append(deleted)
        try:
            found = await cluster.read_topics(self._tree)
        finally:
            self._reading = [each for each in self._reading if each is not deleted]
        return events.TopicsChanged({name: topic for name, topic in found.items() if topic.topic_id not in deleted})

    def note_deleted(self, topic_id: str) -> None:
        """Note that this controller has deleted the topic of this id."""
        for deleted in self._reading:
            deleted.add(topic_id)

    async def deletions(self, watch: Watch | None = None) -> tuple[events.Event, ...]:
        """Requested deletions, after the present topics, one of which may be new.

        The marks are read again after the topics: a topic that was deleted and made again since is not marked.
        """
        names = await self._tree.children(nodes.DELETED_TOPICS, watch)
        if not names:
            return ()
        topics = await self.read_topics()
        marked = frozenset(await self._tree.children(nodes.DELETED_TOPICS))
        return topics, events.DeleteRequested(tuple(name for name in names if name in marked))

    async def election(self, watch: Watch) -> tuple[events.Event, ...]:
        """Requested elections, after the present ISRs, whose notices come a moment later."""
        found = await self._tree.get(nodes.ELECTION, watch)
        if found is None:
            return ()
        election = nodes.decode_election(found.data)
        return await self._isrs_of(election.partitions), events.ElectionRequested(election)

    async def reassignments(self, watch: Watch) -> tuple[events.Event, ...]:
        """Requested reassignments, after the present topics, one of which may be new."""
        plans = await self.read_reassignments(watch)
        return await self.read_topics(), plans

    async def read_reassignments(self, watch: Watch | None = None) -> events.ReassignmentsRequested:
        return events.ReassignmentsRequested(await cluster.read_reassignments(self._tree, watch))

    async def isrs(self, watch: Watch) -> tuple[events.Event, ...]:
        """The states that leaders gave notice of; each notice is deleted once it was read."""
        names = await self._tree.children(nodes.ISR_CHANGES, watch)
        paths = [f"{nodes.ISR_CHANGES}/{name}" for name in names]
        found = await self._tree.read_batch(paths)
        tps: dict[TopicPartition, None] = {}
        for path, node in zip(paths, found, strict=True):
            if node is not None:
                with cluster.log_if_malformed():
                    tps.update(dict.fromkeys(nodes.decode_partitions(path, node.data)))
        changed = await self._isrs_of(tuple(tps))
        for path in paths:
            await delete_if_there(self._tree, path)
        return (changed,) if changed.partitions else ()

    async def _isrs_of(self, partitions: tuple[TopicPartition, ...]) -> events.IsrChanged:
        found = await cluster.read_states(self._tree, partitions)
        return events.IsrChanged(tuple((tp, state) for tp, state in found.items() if state is not None))


async def delete_if_there(tree: Tree, path: str) -> None:
    try:
        await tree.delete(path)
    except NoNodeError:
        return
