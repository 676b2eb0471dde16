"""What admin clients ask of topics: CreateTopics, DeleteTopics, CreatePartitions, ElectLeaders. Any broker answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

from logstore.errors import PylogError
from replication.config import BrokerConfig
from replication.errors import ErrorCode, KafkaError, code_of
from replication.handlers.configs import topic_settings
from replication.handlers.context import Handler, RequestContext
from replication.metadata import Metadata, TopicMetadata
from replication.model import TopicPartition, topic_id_of, topic_uuid
from replication.protocol.apis import ApiKey
from replication.topic_admin import NewTopic, TopicAdmin

PREFERRED = 0  # the kind of election that is served
NO_CONFIG_ERROR = 0


class TopicHandlers:
    """See the module."""

    def __init__(self, config: BrokerConfig, metadata: Metadata, admin: TopicAdmin) -> None:
        self._config = config
        self._metadata = metadata
        self._admin = admin

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """What is answered here."""
        return {
            ApiKey.CREATE_TOPICS: self.create_topics,
            ApiKey.DELETE_TOPICS: self.delete_topics,
            ApiKey.CREATE_PARTITIONS: self.create_partitions,
            ApiKey.ELECT_LEADERS: self.elect_leaders,
        }

    # ------------------------------------------------------------------ create

    async def create_topics(self, context: RequestContext, body: Any) -> Mapping[str, Any]:
        """Make topics, each for itself; a name that is there twice is an error."""
        context.park()
        names = Counter(topic.name for topic in body.topics)
        timeout_s = body.timeout.total_seconds()
        try:
            self._admin.check_request(
                sum(max(1, topic.num_partitions, len(topic.assignments)) for topic in body.topics)
            )
        except KafkaError as error:
            return {"topics": [await _failed(name, error) for name in names]}
        rows = await asyncio.gather(
            *(
                self._create(topic, timeout_s, validate_only=body.validate_only)
                if names[topic.name] == 1
                else _failed(topic.name, _twice(topic.name))
                for topic in {topic.name: topic for topic in body.topics}.values()
            )
        )
        return {"topics": rows}

    async def _create(self, asked: Any, timeout_s: float, *, validate_only: bool) -> Mapping[str, Any]:
        new = NewTopic(
            name=asked.name,
            partitions=asked.num_partitions,
            replication_factor=asked.replication_factor,
            assignment={row.partition_index: tuple(row.broker_ids) for row in asked.assignments},
            config={row.name: row.value for row in asked.configs if row.value is not None},
        )
        try:
            plan = self._admin.plan(new)
            made = None
            if validate_only:
                await self._admin.check_room(plan)
            else:
                made = await self._admin.create(new, timeout_s=timeout_s)
                if made is None:
                    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the topic is made, and not led yet")
        except PylogError as error:
            return await _failed(asked.name, error)
        return {
            "name": asked.name,
            "topic_id": topic_uuid(made.id) if made is not None and made.id else None,
            "error_code": ErrorCode.NONE,
            "error_message": None,
            "topic_config_error_code": NO_CONFIG_ERROR,
            "num_partitions": len(plan),
            "replication_factor": len(plan[0]),
            "configs": topic_settings(self._config, new.config),
        }

    async def create_partitions(self, context: RequestContext, body: Any) -> Mapping[str, Any]:
        """Give topics more partitions."""
        context.park()
        timeout_s = body.timeout.total_seconds()

        try:
            self._admin.check_request(sum(topic.count - self._count(topic.name) for topic in body.topics))
        except KafkaError as error:
            return {"results": [await _failed(topic.name, error) for topic in body.topics]}

        async def grow(asked: Any) -> Mapping[str, Any]:
            added = (
                None if asked.assignments is None else [tuple(row.broker_ids) for row in asked.assignments]
            )
            wait_s = 0 if body.validate_only else timeout_s
            return await _outcome(
                asked.name, self._admin.grow(asked.name, asked.count, added, timeout_s=wait_s)
            )

        return {"results": await asyncio.gather(*map(grow, body.topics))}

    def _count(self, topic: str) -> int:
        known = self._metadata.topic(topic)
        return 0 if known is None else len(known.partitions)

    # ------------------------------------------------------------------ delete

    async def delete_topics(self, context: RequestContext, body: Any) -> Mapping[str, Any]:
        """Delete topics by name or id, and wait until they are gone."""
        context.park()
        timeout_s = body.timeout.total_seconds()
        if hasattr(body, "topic_names"):
            wanted = [(name, None) for name in body.topic_names]
        else:
            wanted = [(topic.name, topic.topic_id) for topic in body.topics]

        async def delete(name: str | None, topic_id: Any) -> Mapping[str, Any]:
            if name is None:
                name = self._metadata.name_of(topic_id_of(topic_id)) if topic_id is not None else None
                if name is None:
                    unknown = KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic of this id")
                    return {**await _failed(None, unknown), "topic_id": topic_id}
            known = self._metadata.topic(name)
            found = await _outcome(name, self._admin.delete(name, timeout_s=timeout_s))
            return {**found, "topic_id": _id_of(known)}

        return {"responses": await asyncio.gather(*(delete(*each) for each in wanted))}

    # ------------------------------------------------------------------- elect

    async def elect_leaders(self, context: RequestContext, body: Any) -> Mapping[str, Any]:
        """Have preferred replicas lead; all partitions if none are named."""
        context.park()
        if getattr(body, "election_type", PREFERRED) != PREFERRED:
            return {"error_code": ErrorCode.INVALID_REQUEST, "replica_election_results": ()}
        tps = self._wanted(body.topic_partitions)
        needed = [tp for tp in tps if self._verdict(tp) is None]
        if needed:
            try:
                await self._admin.elect_preferred(needed, timeout_s=body.timeout.total_seconds())
            except PylogError as error:
                return {"error_code": code_of(error), "replica_election_results": ()}
        verdicts = {tp: self._verdict(tp) for tp in tps}
        rows: dict[str, list[Mapping[str, Any]]] = {}
        for tp, verdict in verdicts.items():
            if tp in needed:
                code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE if verdict is None else ErrorCode.NONE
            else:
                code = verdict or ErrorCode.NONE
            row = {"partition_id": tp.partition, "error_code": code, "error_message": None}
            rows.setdefault(tp.topic, []).append(row)
        results = [{"topic": topic, "partition_result": found} for topic, found in rows.items()]
        return {"error_code": ErrorCode.NONE, "replica_election_results": results}

    def _wanted(self, asked: Iterable[Any] | None) -> list[TopicPartition]:
        if asked is None:
            known = self._metadata.topics().values()
            return [TopicPartition(topic.name, number) for topic in known for number in topic.partitions]
        return [TopicPartition(topic.topic, number) for topic in asked for number in topic.partitions]

    def _verdict(self, tp: TopicPartition) -> ErrorCode | None:
        """Why no election is needed; None if one is."""
        topic = self._metadata.topic(tp.topic)
        found = None if topic is None else topic.partitions.get(tp.partition)
        if found is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.ELECTION_NOT_NEEDED if found.state.leader == found.replicas[0] else None


def _id_of(topic: TopicMetadata | None) -> Any:
    return topic_uuid(topic.id) if topic is not None and topic.id else None


def _twice(name: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"topic {name!r} is asked for twice")


async def _outcome(name: str | None, work: Awaitable[None]) -> Mapping[str, Any]:
    try:
        await work
    except PylogError as error:
        return await _failed(name, error)
    return {"name": name, "error_code": ErrorCode.NONE, "error_message": None}


async def _failed(name: str | None, error: PylogError) -> Mapping[str, Any]:
    return {
        "name": name,
        "topic_id": None,
        "error_code": code_of(error),
        "error_message": str(error),
        "topic_config_error_code": NO_CONFIG_ERROR,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": None,
    }
