"""Offsets of partitions, and ids of producers: ListOffsets, OffsetForLeaderEpoch, DeleteRecords, InitProducerId.

The partitions of a request are looked up one after the other, so that a request which names very many of them takes
its time and not that of others. One that is named twice is an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from replication.config import BrokerConfig
from replication.coordination.tree import Tree
from replication.errors import ErrorCode, KafkaError
from replication.handlers.context import Handler, RequestContext
from replication.model import INTERNAL_TOPICS
from replication.producer_ids import ProducerIds
from replication.protocol.apis import ApiKey
from replication.protocol.messages import Isolation
from replication.replica.data_plane import DeletedRecords, FoundOffset
from replication.replica.offsets import Special
from replication.replica.replicas import Replicas

logger = logging.getLogger(__name__)

# The version of ListOffsets that knows a special time.
_KNOWN_SINCE = {Special.LATEST: 1, Special.EARLIEST: 1, Special.MAX_TIMESTAMP: 7, Special.EARLIEST_LOCAL: 8}
_NEVER = 2**15


class PositionHandlers:
    """See the module."""

    def __init__(self, config: BrokerConfig, replicas: Replicas, tree: Callable[[], Tree]) -> None:
        self._replicas = replicas
        self._producer_ids = ProducerIds(config.broker_id, tree)

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """What is answered here."""
        return {
            ApiKey.LIST_OFFSETS: self.list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self.offset_for_leader_epoch,
            ApiKey.DELETE_RECORDS: self.delete_records,
            ApiKey.INIT_PRODUCER_ID: self.init_producer_id,
        }

    async def list_offsets(self, context: RequestContext, body: Any) -> Mapping[str, Any]:
        """Where partitions begin and end, or where a time is in them."""
        isolation = Isolation(1 if getattr(body, "isolation_level", 0) == 1 else 0)
        named = Counter(
            (topic.name, asked.partition_index) for topic in body.topics for asked in topic.partitions
        )
        topics = []
        for topic in body.topics:
            rows = []
            for asked in topic.partitions:
                tp = topic.name, asked.partition_index
                if named[tp] > 1:
                    found = FoundOffset(ErrorCode.INVALID_REQUEST)
                elif asked.timestamp < 0 and _KNOWN_SINCE.get(asked.timestamp, _NEVER) > context.version:
                    found = FoundOffset(ErrorCode.UNSUPPORTED_VERSION)
                else:
                    found = await self._replicas.offset_for_time(
                        tp,
                        asked.timestamp,
                        replica_id=body.replica_id,
                        leader_epoch=getattr(asked, "current_leader_epoch", -1),
                        isolation=isolation,
                    )
                code, timestamp_ms, offset, leader_epoch = found
                row = {"partition_index": tp[1], "error_code": code, "timestamp": timestamp_ms}
                rows.append({**row, "offset": offset, "leader_epoch": leader_epoch})
            topics.append({"name": topic.name, "partitions": rows})
        return {"topics": topics}

    async def offset_for_leader_epoch(self, context: RequestContext, body: Any) -> Mapping[str, Any]:
        """Where leader epochs end: what a reader with such an epoch may have that this broker has not."""
        topics = []
        for topic in body.topics:
            rows = []
            for asked in topic.partitions:
                code, epoch, end_offset = self._replicas.end_offset_for_epoch(
                    (topic.topic, asked.partition),
                    asked.leader_epoch,
                    replica_id=getattr(body, "replica_id", -1),
                    leader_epoch=asked.current_leader_epoch,
                )
                row = {"partition": asked.partition, "error_code": code}
                rows.append({**row, "leader_epoch": epoch, "end_offset": end_offset})
            topics.append({"topic": topic.topic, "partitions": rows})
        return {"topics": topics}

    async def delete_records(self, context: RequestContext, body: Any) -> Mapping[str, Any]:
        """Move the starts of logs up, on all replicas in sync. The partitions wait for their followers together."""
        context.park()
        timeout_ms = int(body.timeout.total_seconds() * 1000)
        asked = {(topic.name, p.partition_index): p.offset for topic in body.topics for p in topic.partitions}
        done = await asyncio.gather(
            *(self._delete_records(tp, offset, timeout_ms=max(0, timeout_ms)) for tp, offset in asked.items())
        )
        rows: dict[str, list[Mapping[str, Any]]] = {topic.name: [] for topic in body.topics}
        for (name, partition), (code, low_watermark) in zip(asked, done, strict=True):
            row = {"partition_index": partition, "error_code": code, "low_watermark": low_watermark}
            rows[name].append(row)
        return {"topics": [{"name": name, "partitions": found} for name, found in rows.items()]}

    async def _delete_records(self, tp: tuple[str, int], offset: int, *, timeout_ms: int) -> DeletedRecords:
        if tp[0] in INTERNAL_TOPICS:  # the state of groups is the brokers' to forget
            return DeletedRecords(ErrorCode.INVALID_TOPIC_EXCEPTION)
        return await self._replicas.delete_records(tp, offset, timeout_ms=timeout_ms)

    async def init_producer_id(self, context: RequestContext, body: Any) -> Mapping[str, Any]:
        """A new id, of epoch 0; also for who names an id of its own, as only transactions go on with one."""
        if body.transactional_id is not None:
            return {"error_code": ErrorCode.INVALID_REQUEST, "producer_id": -1, "producer_epoch": -1}
        try:
            producer_id = await self._producer_ids.next_id()
        except KafkaError as error:
            logger.warning("no producer id can be given: %s", error)
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE  # clients try again
            return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
        return {"error_code": ErrorCode.NONE, "producer_id": producer_id, "producer_epoch": 0}
