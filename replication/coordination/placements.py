"""Placements: the number of replicas per broker in the tree, limited by `max.broker.partitions`.

A broker that places replicas first writes /pylog/placements, and counts then. Its placements, of which there may be
many at a time, check in the same step that no other broker has written that node since. So two brokers cannot exceed
the limit together. A count that refuses is taken again, since topics may have been deleted. Placements by Kafka 0.9's
tools bypass brokers: they are counted, and not refused. Belongs to the event loop.
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

PAUSE_S = 0.05  # up to twice that passes before this broker takes over from another one again
COUNTED_S = 1.0  # a count may refuse for this long; a new one reads every topic
TOPICS_AT_ONCE = 200


class Placements:
    def __init__(self, replicas_max: int, env: Env = SYSTEM) -> None:
        self._replicas_max = replicas_max
        self._random = env.random
        self._deciding = asyncio.Lock()
        self._owned: tuple[Tree, Check] | None = None
        self._counts: Counter[BrokerId] = Counter()  # of existing replicas, and of those being written
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
        """Place replicas: `write` does so, with the step that it is given in the same multi.

        Raises: KafkaError: a broker would have too many (POLICY_VIOLATION); whatever `write` raises.
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
            await asyncio.sleep(PAUSE_S * (1 + self._random.random()))  # let that one make progress, too

    async def check(self, tree: Tree, added: Iterable[Assignment]) -> None:
        """Check that there is room for these replicas. Raises: KafkaError."""
        await self._decide(tree, _count(added), has_limit=True)

    async def _decide(self, tree: Tree, new: Counter[BrokerId], *, has_limit: bool) -> Check:
        """Return the check that no other broker has placed replicas since this one counted enough room."""
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
        return max((self._counts[broker] + count for broker, count in new.items()), default=0)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


def _count(added: Iterable[Assignment]) -> Counter[BrokerId]:
    return Counter(broker for replicas in added for broker in replicas)


async def _count_all(tree: Tree) -> Counter[BrokerId]:
    plans = await cluster.read_reassignments(tree)
    counts: Counter[BrokerId] = Counter()
    names = await tree.children(nodes.TOPICS)
    for first in range(0, len(names), TOPICS_AT_ONCE):
        some = names[first : first + TOPICS_AT_ONCE]
        found = await tree.read_batch([nodes.topic_path(name) for name in some])
        for name, node in zip(some, found, strict=True):
            partitions: Mapping[int, Assignment] = {}
            with cluster.log_if_malformed():
                partitions = nodes.decode_topic(name, node.data) if node is not None else {}
            for number, replicas in partitions.items():
                plan = plans.get(TopicPartition(name, number))
                counts.update(replicas if plan is None else {*replicas, *plan.target})
    return counts
