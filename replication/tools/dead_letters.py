"""Where dead letters are in a cluster; `logstore.tools.dead_letters` says which there are, and sends them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from logstore.tools.dead_letters import Append, Range, replay_id
from replication.client.kafka_client import Isolation, KafkaClient
from replication.client.metadata import Extent

if TYPE_CHECKING:
    import pyarrow as pa


class ClusterDeadLetters:
    """`logstore.tools.dead_letters.Place` of a cluster. A replay fences the one before by its transactional id."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client

    def extents(self, topic: str) -> Mapping[int, Extent]:
        return self._client.extents(topic, isolation=Isolation.READ_COMMITTED)

    def read(self, topic: str, partition: int, found: Range, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return self._client.read(topic, partition, found.start, found.end, columns=columns)

    @contextmanager
    def replaying(self, topic: str) -> Iterator[Append]:
        with self._client.transaction(replay_id(topic)) as producer:
            yield producer.append
