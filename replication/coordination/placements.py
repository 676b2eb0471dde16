"""Placements: how many replicas each broker has in the tree, and that none gets more than `max.broker.partitions`.

Whoever places replicas takes over /pylog/placements first, by writing it, and counts then. Its placements, many at a
time, check in the same step that nobody has taken over since. So two that would go beyond the limit together cannot
both be written, whichever brokers they ask. A count that says no is recreated, since topics may have been deleted.
What Kafka 0.9's tools write past brokers is counted then, and not refused. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping

from logstore.env import SYSTEM, Env
from replication.coordination import cluster, nodes
from replication.coordination.tree import BadVersionError, Check, Step, Tree, ensure_path
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import Assignment, BrokerId, TopicPartition

PAUSE_S = 0.05  # at least, and at most twice that, before this broker takes over from another one again
COUNTED_S = 1.0  # so long a count is good for saying no: it costs a look at every topic
TOPICS_AT_ONCE = 200


class Placements:
    """See the module."""

    def __init__(self, replicas_max: int, env: Env = SYSTEM) -> None:
        self._replicas_max = replicas_max
        self._random = env.random
        self._deciding = asyncio.Lock()
        self._owned: tuple[Tree, Check] | None = None
        self._counts: Counter[BrokerId] = Counter()  # of what is there, and of what is being written
        self._counted_s = 0.0
        self._writing = 0
        self._is_written = asyncio.Event()

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
        new = _count(added)
        while True:
            check = await self._decide(tree, new, has_limit=has_limit)
            self._begin(new)
            is_done = False
            try:
                await write(check)
                is_done = True
                return
            except BadVersionError as error:
                if error.path != nodes.PLACEMENTS:
                    raise
            finally:
                self._end(new, is_done=is_done)
            if self._owned is not None and self._owned[1] == check:
                self._owned = None  # another broker has taken over
            await asyncio.sleep(PAUSE_S * (1 + self._random.random()))  # it shall get on, too

    async def check(self, tree: Tree, added: Iterable[Assignment]) -> None:
        """Would there be room for them? Raises: KafkaError."""
        await self._decide(tree, _count(added), has_limit=True)

    async def _decide(self, tree: Tree, new: Counter[BrokerId], *, has_limit: bool) -> Check:
        """The check that nobody else has placed anything since it was counted that there is room."""
        async with self._deciding:
            if self._owned is None or self._owned[0] is not tree:
                await self._take_over(tree)
            if has_limit and self._fullest(new) > self._replicas_max:
                if self._writing or self._now_s() - self._counted_s > COUNTED_S:
                    await self._take_over(tree)
                if (count := self._fullest(new)) > self._replicas_max:
                    raise KafkaError(
                        ErrorCode.POLICY_VIOLATION,
                        f"a broker would have {count:,} replicas of partitions: max.broker.partitions is "
                        f"{self._replicas_max:,}",
                    )
            assert self._owned is not None
            return self._owned[1]

    async def _take_over(self, tree: Tree) -> None:
        """Be the only one who places replicas, and count what there is."""
        self._owned = None
        while self._writing:
            self._is_written.clear()
            await self._is_written.wait()
        await ensure_path(tree, nodes.PLACEMENTS)
        check = Check(nodes.PLACEMENTS, await tree.set(nodes.PLACEMENTS, b""))
        self._counts = await _count_all(tree)
        self._counted_s = self._now_s()
        self._owned = tree, check

    def _begin(self, new: Counter[BrokerId]) -> None:
        self._writing += 1
        self._counts.update(new)

    def _end(self, new: Counter[BrokerId], *, is_done: bool) -> None:
        self._writing -= 1
        if not is_done:
            self._counts.subtract(new)
        self._is_written.set()

    def _fullest(self, new: Counter[BrokerId]) -> int:
        """The most that a broker would have."""
        return max((self._counts[broker] + count for broker, count in new.items()), default=0)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


def _count(added: Iterable[Assignment]) -> Counter[BrokerId]:
    return Counter(broker for replicas in added for broker in replicas)


async def _count_all(tree: Tree) -> Counter[BrokerId]:
    """Replicas that are there, and those that are to be."""
    plans = await cluster.read_reassignments(tree)
    counts: Counter[BrokerId] = Counter()
    names = await tree.children(nodes.TOPICS)
    for first in range(0, len(names), TOPICS_AT_ONCE):
        some = names[first : first + TOPICS_AT_ONCE]
        found = await tree.read_batch([nodes.topic_path(name) for name in some])
        for name, node in zip(some, found, strict=True):
            partitions: Mapping[int, Assignment] = {}
            with cluster.said_if_malformed():
                partitions = nodes.decode_topic(name, node.data) if node is not None else {}
            for number, replicas in partitions.items():
                plan = plans.get(TopicPartition(name, number))
                counts.update(replicas if plan is None else {*replicas, *plan.target})
    return counts
