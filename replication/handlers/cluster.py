"""What clients ask of the cluster: Metadata, which may make a topic, and DescribeCluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from logstore.catalog import check_topic_name
from logstore.errors import InvalidTopicError, PylogError
from replication.config import BrokerConfig
from replication.errors import ErrorCode, code_of
from replication.handlers.context import Handler, RequestContext
from replication.metadata import Metadata, PartitionMetadata, TopicMetadata
from replication.model import INTERNAL_TOPICS, NO_LEADER, topic_id_of, topic_uuid
from replication.protocol import apis
from replication.protocol.apis import ApiKey, EncodedBody
from replication.topic_admin import NewTopic, TopicAdmin

NOT_ASKED = -2_147_483_648  # authorized operations
ANSWERS_KEPT, TOPICS_KEPT = 64, 100
CREATE_WAIT_S = 5.0  # a client that is answered before would only ask again


class ClusterHandlers:
    """See the module."""

    def __init__(self, config: BrokerConfig, cluster_id: str, metadata: Metadata, admin: TopicAdmin) -> None:
        self._config = config
        self._cluster_id = cluster_id
        self._metadata = metadata
        self._admin = admin
        # Answers that were given since the cluster last changed; making one costs some 15 µs per partition.
        self._answers: dict[tuple[int, tuple[Any, ...] | None], EncodedBody] = {}
        self._changes = 0
        metadata.listen(self._note_change)

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """What is answered here."""
        return {ApiKey.METADATA: self.metadata, ApiKey.DESCRIBE_CLUSTER: self.describe_cluster}

    def _note_change(self) -> None:
        self._changes += 1
        self._answers.clear()

    async def metadata(self, context: RequestContext, body: Any) -> EncodedBody:
        """Brokers, the controller, and the topics that are asked for: all if none are named."""
        asked = body.topics
        is_all = asked is None or (not asked and context.version == 0)
        question = context.version, None if is_all else tuple(asked)
        if (answer := self._answers.get(question)) is not None:
            return answer
        changes = self._changes
        if is_all:
            rows = [self._topic(topic.name, topic) for topic in list(self._metadata.topics().values())]
        else:
            may_create = (
                getattr(body, "allow_auto_topic_creation", True) and self._config.auto_create_topics_enable
            )
            context.park()
            rows = list(await asyncio.gather(*(self._asked(topic, may_create=may_create) for topic in asked)))
        response = {
            "brokers": [
                {"node_id": b.id, "host": b.host, "port": b.port, "rack": b.rack}
                for b in self._metadata.brokers().values()
            ],
            "cluster_id": self._cluster_id,
            "controller_id": -1 if self._metadata.controller_id is None else self._metadata.controller_id,
            "topics": rows,
            "cluster_authorized_operations": NOT_ASKED,
        }
        answer = apis.encoded_body(context.key, context.version, response)
        is_short = is_all or len(asked) <= TOPICS_KEPT
        if changes == self._changes and is_short and not any(row["error_code"] for row in rows):
            if len(self._answers) >= ANSWERS_KEPT:
                self._answers.clear()
            self._answers[question] = answer
        return answer

    async def _asked(self, topic: Any, *, may_create: bool) -> Mapping[str, Any]:
        name: str | None = topic.name
        topic_id = getattr(topic, "topic_id", None)
        if name is None:
            name = self._metadata.name_of(topic_id_of(topic_id)) if topic_id is not None else None
            if name is None:
                return _failure(None, ErrorCode.UNKNOWN_TOPIC_ID, topic_id)
        known = self._metadata.topic(name)
        if known is not None:
            return self._topic(name, known)
        try:
            check_topic_name(name)
            if not may_create or name in INTERNAL_TOPICS:
                return _failure(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            made = await self._admin.ensure(NewTopic(name=name), timeout_s=CREATE_WAIT_S)
        except InvalidTopicError:
            return _failure(name, ErrorCode.INVALID_TOPIC_EXCEPTION)
        except PylogError as error:
            return _failure(name, code_of(error))
        return _failure(name, ErrorCode.LEADER_NOT_AVAILABLE) if made is None else self._topic(name, made)

    def _topic(self, name: str, topic: TopicMetadata) -> Mapping[str, Any]:
        return {
            "error_code": ErrorCode.NONE,
            "name": name,
            "topic_id": topic_uuid(topic.id) if topic.id else None,
            "is_internal": name in INTERNAL_TOPICS,
            "partitions": [
                self._partition(number, topic.partitions[number]) for number in sorted(topic.partitions)
            ],
            "topic_authorized_operations": NOT_ASKED,
        }

    def _partition(self, number: int, partition: PartitionMetadata) -> Mapping[str, Any]:
        live = self._metadata.brokers()
        leader = partition.state.leader if partition.state.leader in live else NO_LEADER
        return {
            "error_code": ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else ErrorCode.NONE,
            "partition_index": number,
            "leader_id": leader,
            "leader_epoch": partition.state.leader_epoch,
            "replica_nodes": partition.replicas,
            "isr_nodes": partition.state.isr,
            "offline_replicas": [
                b for b in partition.replicas if b not in live or b in partition.offline_replicas
            ],
        }

    def describe_cluster(self, context: RequestContext, body: Any) -> Mapping[str, Any]:
        """Brokers and the controller."""
        return {
            "error_code": ErrorCode.NONE,
            "error_message": None,
            "endpoint_type": 1,
            "cluster_id": self._cluster_id,
            "controller_id": -1 if self._metadata.controller_id is None else self._metadata.controller_id,
            "brokers": [
                {"broker_id": b.id, "host": b.host, "port": b.port, "rack": b.rack}
                for b in self._metadata.brokers().values()
            ],
            "cluster_authorized_operations": NOT_ASKED,
        }


def _failure(name: str | None, error: ErrorCode, topic_id: Any = None) -> Mapping[str, Any]:
    return {
        "error_code": error,
        "name": name,
        "topic_id": topic_id,
        "is_internal": name in INTERNAL_TOPICS,
        "partitions": (),
        "topic_authorized_operations": NOT_ASKED,
    }
