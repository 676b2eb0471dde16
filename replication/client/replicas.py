"""Batches of any replica of a partition, whether it leads or not, up to the end of its log.

Brokers are asked as Kafka's debugging consumer asks: it is in no ISR, moves no high watermark, and waits for nothing.
Belongs to one event loop.
"""

from __future__ import annotations

from typing import NamedTuple

from replication.client.cluster import Cluster
from replication.client.fetching import TOPIC_IDS_FROM, row_of, rows_fetched
from replication.errors import ErrorCode, code_in
from replication.model.cluster import TopicPartition, topic_uuid
from replication.protocol.apis import ApiKey
from replication.protocol.messages import EXAMINER, FetchPartition, FetchRequest, FetchTopic
from replication.protocol.wire import Buffer

ANSWER_MS = 5_000  # a broker that hangs holds up no reader of the others for longer


class ReplicaRead(NamedTuple):
    """Whole batches; none: the replica ends before them, or begins at `start`. `error` names why it was not read."""

    error: str | None
    start: int
    records: Buffer


async def read_replica(cluster: Cluster, tp: TopicPartition, broker: int, offset: int, max_bytes: int) -> ReplicaRead:
    """Read this broker's replica from the batch that holds `offset` on: about `max_bytes`, at least one batch.

    Raises: KafkaError: the broker is not known, or refuses the request; OSError, TimeoutError: it does not answer;
    UnknownTopicError, UnreachableError.
    """
    topic_id = topic_uuid((await cluster.topic(tp.topic)).id)
    topic = FetchTopic(tp.topic, topic_id, (FetchPartition(tp.partition, offset, max_bytes),))
    request = FetchRequest(0, 0, (topic,), max_bytes=max_bytes, replica_id=EXAMINER)
    version_max = None if topic_id else TOPIC_IDS_FROM - 1
    answer = await cluster.call(broker, ApiKey.FETCH, request, timeout_ms=ANSWER_MS, version_max=version_max)
    row = row_of(rows_fetched(answer, {topic_id: tp.topic}, broker), tp, broker)
    code = code_in(row)
    is_read = code in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE)
    return ReplicaRead(None if is_read else code.name, row.log_start_offset, row.records)
