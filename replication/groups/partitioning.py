"""Which partition of `__consumer_offsets` keeps a group: by the number of partitions with which that topic was made.

That number stands in the tree, with the id of its topic: partitions that somebody adds later, in whatever way, move no
group. As long as this broker does not know it, it speaks for no group. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging

from replication.coordination import topics
from replication.coordination.nodes import GroupPartitions
from replication.coordination.tree import CoordinationError
from replication.errors import ErrorCode, KafkaError
from replication.groups.machine.records import partition_of
from replication.model.cluster import OFFSETS_TOPIC
from replication.replica.manager import ReplicaManager

logger = logging.getLogger(__name__)

RETRY_S = 0.5


class GroupMapping:
    """See the module. `look` when the metadata has changed; `end` when the broker stops."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self._found: GroupPartitions | None = None
        self._learning: asyncio.Task[None] | None = None

    def partition_of(self, group_id: str) -> int:
        """The partition that keeps a group.

        Raises: KafkaError: NOT_COORDINATOR: there is no offsets topic yet; COORDINATOR_LOAD_IN_PROGRESS.
        """
        topic = self._replicas.metadata.topic(OFFSETS_TOPIC)
        if topic is None or not topic.partitions:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"there is no topic {OFFSETS_TOPIC} yet")
        if self._found is None or self._found.topic_id != topic.id:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"how {OFFSETS_TOPIC} keeps groups is being read"
            )
        return partition_of(group_id, self._found.partitions)

    def look(self) -> None:
        """Learn how groups are kept, if that is another topic than before."""
        topic = self._replicas.metadata.topic(OFFSETS_TOPIC)
        is_known = self._found is not None and topic is not None and self._found.topic_id == topic.id
        if topic is not None and not is_known and (self._learning is None or self._learning.done()):
            self._learning = asyncio.get_running_loop().create_task(self._learn())

    async def learned(self, timeout_s: float) -> None:
        """Wait until nothing is left to learn, or the time is over."""
        if self._learning is not None:
            await asyncio.wait((self._learning,), timeout=timeout_s)

    def end(self) -> None:
        """Learn no more."""
        if self._learning is not None:
            self._learning.cancel()

    async def _learn(self) -> None:
        while (topic := self._replicas.metadata.topic(OFFSETS_TOPIC)) is not None:
            try:
                found = await topics.read_group_partitions(tree) if (tree := self._replicas.tree) else None
            except CoordinationError as error:
                logger.warning("how %s keeps groups cannot be read: %s", OFFSETS_TOPIC, error)
                found = None
            if found is not None and found.topic_id == topic.id:
                self._found = found
                return
            await asyncio.sleep(RETRY_S)
