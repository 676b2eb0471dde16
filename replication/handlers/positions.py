"""Offsets of partitions, and ids of producers: ListOffsets, OffsetForLeaderEpoch, DeleteRecords, InitProducerId."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from replication.config import BrokerConfig
from replication.coordination.tree import Tree
from replication.errors import ErrorCode, KafkaError
from replication.handlers.context import Handler, RequestContext
from replication.producer_ids import ProducerIds
from replication.protocol.apis import ApiKey
from replication.replicas import Replicas

logger = logging.getLogger(__name__)


class PositionHandlers:
    """See the module."""

    def __init__(self, config: BrokerConfig, replicas: Replicas, tree: Callable[[], Tree]) -> None:
        self._replicas = replicas
        self._producer_ids = ProducerIds(config.broker_id, tree)

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """What is answered here."""
        return {ApiKey.INIT_PRODUCER_ID: self.init_producer_id}

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
