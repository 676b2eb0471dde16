"""Placements: how many replicas each broker has in the tree, and that none gets more than `max.broker.partitions`.

Whoever places replicas counts them first, and writes on the condition that nobody else has placed any since: each
placement raises the version of /pylog/placements in the same step. So two that would go beyond the limit together
cannot both be written, whichever brokers they ask. Counts are kept between placements; those of others, and a count
that says no, are reasons to read all topics anew. What Kafka 0.9's tools write past brokers is counted, and not
refused. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from replication.coordination import cluster, nodes
from replication.coordination.tree import BadVersionError, SetData, Step, Tree, ensure_path
from replication.errors import ErrorCode, KafkaError
from replication.model import Assignment, BrokerId


class Placements:
    """See the module."""

    def __init__(self, replicas_max: int) -> None:
        self._replicas_max = replicas_max
        self._placing = asyncio.Lock()
        self._tree: Tree | None = None
        self._version = -1
        self._counts: Counter[BrokerId] = Counter()

    async def place(
        self,
        tree: Tree,
        added: Iterable[Assignment],
        write: Callable[[Step], Awaitable[None]],
        *,
        has_limit: bool = True,
    ) -> None:
        """Have replicas written: `write` does so, and the step that it is given, in one multi.

        Raises: KafkaError: a broker would have too many (POLICY_VIOLATION); and what `write` raises.
        """
        new = Counter(broker for replicas in added for broker in replicas)
        async with self._placing:
            while True:
                await self._look(tree)
                if has_limit:
                    await self._check(tree, new)
                try:
                    await write(SetData(nodes.PLACEMENTS, b"", self._version))
                except BadVersionError as error:
                    if error.path != nodes.PLACEMENTS:
                        raise
                    continue  # somebody else was faster
                self._version += 1
                self._counts += new
                return

    async def check(self, tree: Tree, added: Iterable[Assignment]) -> None:
        """Would there be room for them? Raises: KafkaError."""
        async with self._placing:
            await self._look(tree)
            await self._check(tree, Counter(broker for replicas in added for broker in replicas))

    async def _look(self, tree: Tree) -> None:
        """Know what the tree has, but for what has been deleted since it was counted."""
        found = await tree.get(nodes.PLACEMENTS)
        if found is None:
            await ensure_path(tree, nodes.PLACEMENTS)
        version = found.version if found is not None else 0
        if tree is not self._tree or version != self._version:
            await self._count(tree)
            self._tree, self._version = tree, version

    async def _count(self, tree: Tree) -> None:
        """Replicas that are there, and those that are to be."""
        topics = await cluster.read_topics(tree)
        plans = await cluster.read_reassignments(tree)
        counts: Counter[BrokerId] = Counter()
        for topic in topics.values():
            for replicas in topic.partitions.values():
                counts.update(replicas)
        for tp, plan in plans.items():
            known = topics[tp.topic].partitions.get(tp.partition, ()) if tp.topic in topics else ()
            counts.update(set(plan.target) - set(known))
        self._counts = counts

    async def _check(self, tree: Tree, new: Counter[BrokerId]) -> None:
        if self._fullest(new) > self._replicas_max:
            await self._count(tree)  # topics may have been deleted
        if (count := self._fullest(new)) > self._replicas_max:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"a broker would have {count:,} replicas of partitions: max.broker.partitions is "
                f"{self._replicas_max:,}",
            )

    def _fullest(self, new: Counter[BrokerId]) -> int:
        return max((self._counts[broker] + count for broker, count in new.items()), default=0)
