"""PartitionMapping: from a name to its partition of an internal topic, by the number of partitions at its creation.

The tree holds that number with the id of the topic: partitions that are added later move no name. A broker that does
not know it yet is nobody's coordinator. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from replication.coordination import topics
from replication.coordination.nodes import PartitionCount
from replication.coordination.tree import CoordinationError, Tree
from replication.coordinators.binary import partition_of
from replication.errors import ErrorCode, KafkaError
from replication.model.metadata import Metadata

logger = logging.getLogger(__name__)

RETRY_S = 0.5


def no_metadata() -> KafkaError:
    """The refusal of a coordinator that has had no UpdateMetadata yet: clients ask again."""
    return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "this broker has no metadata of the cluster yet")


class PartitionMapping:
    """The partition of `topic` for each name; `tree` returns the session's tree, None while there is no session.

    Call `look` when the metadata has changed, `end` when the broker stops.
    """

    def __init__(self, topic: str, metadata: Metadata, tree: Callable[[], Tree | None]) -> None:
        self.topic = topic
        self.metadata = metadata
        self.tree = tree
        self._found: PartitionCount | None = None
        self._learning: asyncio.Task[None] | None = None

    def partition_of(self, name: str) -> int:
        """Return the partition that keeps a name.

        Raises: KafkaError: NOT_COORDINATOR: there is no such topic yet; COORDINATOR_LOAD_IN_PROGRESS;
        COORDINATOR_NOT_AVAILABLE: this broker has had no UpdateMetadata yet.
        """
        topic = self.metadata.topic(self.topic)
        if not self.metadata.is_initialized:
            raise no_metadata()
        if topic is None or not topic.partitions:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"there is no topic {self.topic} yet")
        if self._found is None or self._found.topic_id != topic.id:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"the number of partitions of {self.topic} is being read",
            )
        return partition_of(name, self._found.partitions)

    def look(self) -> None:
        """Read the number of partitions, if the topic is another one than before."""
        topic = self.metadata.topic(self.topic)
        is_known = self._found is not None and topic is not None and self._found.topic_id == topic.id
        if topic is not None and not is_known and (self._learning is None or self._learning.done()):
            self._learning = asyncio.get_running_loop().create_task(self._learn())

    async def learned(self, timeout_s: float) -> None:
        if self._learning is not None:
            await asyncio.wait((self._learning,), timeout=timeout_s)

    def end(self) -> None:
        if self._learning is not None:
            self._learning.cancel()

    async def _learn(self) -> None:
        while (topic := self.metadata.topic(self.topic)) is not None:
            try:
                found = await topics.read_partition_count(tree, self.topic) if (tree := self.tree()) else None
            except CoordinationError as error:
                logger.warning("the number of partitions of %s cannot be read: %s", self.topic, error)
                found = None
            if found is not None and found.topic_id == topic.id:
                self._found = found
                return
            await asyncio.sleep(RETRY_S)
