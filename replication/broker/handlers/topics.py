"""CreateTopics, DeleteTopics, CreatePartitions, ElectLeaders. Any broker answers."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Awaitable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from logstore.config import by_own_names
from logstore.errors import PylogError
from replication.broker.handlers.configs import SETTINGS_MAX, topic_settings
from replication.broker.topic_admin import NewTopic, TopicAdmin
from replication.config.live import LiveSettings
from replication.errors import ErrorCode, KafkaError, code_of, message_of
from replication.model.cluster import Election, TopicPartition, topic_id_of, topic_uuid
from replication.model.metadata import Metadata
from replication.network.steps import all_of, in_steps
from replication.network.throttle import Throttle
from replication.network.work import Handler, Response, Work
from replication.protocol import requests
from replication.protocol.apis import ApiKey
from replication.protocol.kio_pieces import Rows
from replication.security.access import Need, Operation, Resource, of_cluster, of_topic

Named = TypeVar("Named", requests.CreatableTopic, requests.CreatePartitionsTopic)

# The kinds of election, and what is wrong where one has elected nobody.
PREFERRED, UNCLEAN = 0, 1
NOT_ELECTED = {
    PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}
UNSHOWN: Response = {  # to a client that may create the topic, and may not describe its settings
    "topic_config_error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    "num_partitions": -1,
    "replication_factor": -1,
    "configs": (),
}
NO_CONFIG_ERROR = 0
# From these versions on a client whose quota is used up is refused; below, it only waits.
CREATE_STRICT, DELETE_STRICT, GROW_STRICT = 6, 5, 3


class TopicHandlers:
    def __init__(self, metadata: Metadata, admin: TopicAdmin, live: LiveSettings, throttle: Throttle) -> None:
        self._live = live
        self._throttle = throttle
        self._metadata = metadata
        self._admin = admin

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.CREATE_TOPICS: self.create_topics,
            ApiKey.DELETE_TOPICS: self.delete_topics,
            ApiKey.CREATE_PARTITIONS: self.create_partitions,
            ApiKey.ELECT_LEADERS: self.elect_leaders,
        }

    # ------------------------------------------------------------------ create

    async def create_topics(self, context: Work, body: requests.CreateTopicsRequest) -> Response:
        """Create topics, with one outcome each; a name that is given twice is an error."""
        context.park()
        names = await _named(body.topics)
        timeout_s = body.timeout.total_seconds()
        try:
            self._admin.check_request(
                sum(max(1, topic.num_partitions, len(topic.assignments)) for topic in body.topics)
            )
        except KafkaError as error:
            return {"topics": _all_failed(names, error)}

        async def create(topic: requests.CreatableTopic) -> Response:
            if names[topic.name] > 1:
                return _failed(topic.name, _twice(topic.name))
            made = await self._create(context, topic, timeout_s, validate_only=body.validate_only)
            is_shown = made["error_code"] or context.may(of_topic(Operation.DESCRIBE_CONFIGS, topic.name))
            return made if is_shown else {**made, **UNSHOWN}

        return {"topics": await all_of(create, _unique(body.topics, names))}

    async def _create(
        self, context: Work, asked: requests.CreatableTopic, timeout_s: float, *, validate_only: bool
    ) -> Response:
        assignment: dict[int, tuple[int, ...]] = {}
        async for chunk in in_steps(asked.assignments):
            assignment.update((row.partition_index, tuple(row.broker_ids)) for row in chunk)
        new = NewTopic(
            name=asked.name,
            partitions=asked.num_partitions,
            replication_factor=asked.replication_factor,
            assignment=assignment,
            config={row.name: row.value for row in asked.configs if row.value is not None},
        )
        try:
            if len(assignment) < len(asked.assignments):
                raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition is assigned twice")
            if any(row.value is None for row in asked.configs):
                raise KafkaError(ErrorCode.INVALID_CONFIG, "a setting is given as null: leave it out")
            if len(asked.configs) > SETTINGS_MAX:
                raise KafkaError(ErrorCode.INVALID_CONFIG, "no topic has so many settings")
            new = replace(new, config=by_own_names(new.config))
            plan = self._admin.plan(new)
            made = None
            if validate_only:
                await self._admin.check_room(plan)
            else:
                if self._metadata.topic(asked.name) is None:
                    self._throttle.mutate(context, len(plan), is_strict=context.version >= CREATE_STRICT)
                made = await self._admin.create(new, timeout_s=timeout_s)
                if made is None:
                    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the topic is created, and has no leaders yet")
        except PylogError as error:
            return _failed(asked.name, error)
        return {
            "name": asked.name,
            "topic_id": topic_uuid(made.id if made is not None else None),
            "error_code": ErrorCode.NONE,
            "error_message": None,
            "topic_config_error_code": NO_CONFIG_ERROR,
            "num_partitions": len(plan),
            "replication_factor": len(plan[0]),
            "configs": topic_settings(self._live, new.config),
        }

    async def create_partitions(self, context: Work, body: requests.CreatePartitionsRequest) -> Response:
        context.park()
        timeout_s = body.timeout.total_seconds()
        names = await _named(body.topics)
        try:
            self._admin.check_request(sum(topic.count - self._count(topic.name) for topic in body.topics))
        except KafkaError as error:
            return {"results": _all_failed(names, error)}

        async def grow(asked: requests.CreatePartitionsTopic) -> Response:
            if names[asked.name] > 1:
                return _failed(asked.name, _twice(asked.name))
            added = None if asked.assignments is None else [tuple(row.broker_ids) for row in asked.assignments]
            wait_s = 0 if body.validate_only else timeout_s
            more = asked.count - self._count(asked.name)
            if more > 0 and not body.validate_only and self._count(asked.name):
                try:
                    self._throttle.mutate(context, more, is_strict=context.version >= GROW_STRICT)
                except KafkaError as error:
                    return _failed(asked.name, error)
            return await _outcome(asked.name, self._admin.grow(asked.name, asked.count, added, timeout_s=wait_s))

        return {"results": await all_of(grow, _unique(body.topics, names))}

    def _count(self, topic: str) -> int:
        known = self._metadata.topic(topic)
        return 0 if known is None else len(known.partitions)

    # ------------------------------------------------------------------ delete

    async def delete_topics(self, context: Work, body: requests.DeleteTopicsRequest) -> Response:
        """Delete topics by name or id, and wait until they are gone. One that is asked for twice stays."""
        context.park()
        timeout_s = body.timeout.total_seconds()
        wanted: dict[str | UUID | None, tuple[str | None, UUID | None]] = {}  # by names, where these are known
        times: Counter[str | UUID | None] = Counter()
        by_names = ((name, None) for name in body.topic_names)
        async for chunk in in_steps(itertools.chain(by_names, ((row.name, row.topic_id) for row in body.topics))):
            for named, topic_id in chunk:
                known = named if topic_id is None else self._metadata.name_of(topic_id_of(topic_id))
                key = topic_id if known is None else known
                wanted.setdefault(key, (named, topic_id))
                times[key] += 1

        async def delete(name: str | UUID | None) -> Response:
            named, topic_id = wanted[name]
            try:
                if (named is None) == (topic_id is None):
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "give the name of a topic, or its id, and not both")
                if times[name] > 1:
                    raise _twice(str(name))
                if not isinstance(name, str):
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic of this id")
                if topic_id is not None and not context.may(
                    Need(Operation.DELETE, Resource.TOPIC, name, of_cluster(Operation.DELETE))
                ):
                    raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the client may not delete it")
            except KafkaError as error:
                return {**_failed(named, error), "topic_id": topic_id}
            wanted_id = None if topic_id is None else topic_id_of(topic_id)
            try:
                self._throttle.mutate(context, self._count(name), is_strict=context.version >= DELETE_STRICT)
                deleted_id = await self._admin.delete(name, wanted_id, timeout_s=timeout_s)
            except PylogError as error:
                return {**_failed(name, error), "topic_id": topic_id}
            return {
                "name": name,
                "error_code": ErrorCode.NONE,
                "error_message": None,
                "topic_id": topic_uuid(deleted_id),
            }

        return {"responses": await all_of(delete, wanted)}

    # ------------------------------------------------------------------- elect

    async def elect_leaders(self, context: Work, body: requests.ElectLeadersRequest) -> Response:
        """Elect the preferred replicas, or any where nobody leads.

        If no partitions are named, elect of all, and tell of those that needed it.
        """
        context.park()
        kind = body.election_type
        if kind not in NOT_ELECTED:
            return {"error_code": ErrorCode.INVALID_REQUEST, "replica_election_results": _of_no_type(body)}
        is_unclean = kind == UNCLEAN
        tps: dict[TopicPartition, None] = {}
        needed: set[TopicPartition] = set()
        async for chunk in in_steps(self._wanted(body.topic_partitions)):
            tps.update(dict.fromkeys(chunk))
            needed.update(tp for tp in chunk if self._admin.is_elected(tp, is_unclean=is_unclean) is False)
        if needed:
            try:
                election = Election(tuple(sorted(needed)), is_unclean)
                await self._admin.elect(election, timeout_s=body.timeout.total_seconds())
            except PylogError as error:
                return {"error_code": code_of(error), "replica_election_results": ()}
        rows: dict[str, list[Response]] = {}
        async for chunk in in_steps(tps):
            for tp in chunk:
                is_elected = self._admin.is_elected(tp, is_unclean=is_unclean)
                code = _of_election(kind, is_elected, was_needed=tp in needed)
                if code is ErrorCode.ELECTION_NOT_NEEDED and body.topic_partitions is None:
                    continue
                row = {"partition_id": tp.partition, "error_code": code, "error_message": None}
                rows.setdefault(tp.topic, []).append(row)
        results = [{"topic": topic, "partition_result": found} for topic, found in rows.items()]
        return {"error_code": ErrorCode.NONE, "replica_election_results": results}

    def _wanted(self, asked: Iterable[requests.TopicPartitions] | None) -> Iterable[TopicPartition]:
        if asked is None:
            known = list(self._metadata.topics().values())
            return (TopicPartition(topic.name, number) for topic in known for number in tuple(topic.partitions))
        return (TopicPartition(topic.topic, number) for topic in asked for number in topic.partitions)


def _of_election(kind: int, is_elected: bool | None, *, was_needed: bool) -> ErrorCode:
    if is_elected is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not is_elected:
        return NOT_ELECTED[kind]
    return ErrorCode.NONE if was_needed else ErrorCode.ELECTION_NOT_NEEDED


async def _named(topics: Iterable[Named]) -> Counter[str]:
    names: Counter[str] = Counter()
    async for chunk in in_steps(topics):
        names.update([topic.name for topic in chunk])
    return names


def _unique(topics: Iterable[Named], names: Mapping[str, int]) -> Iterable[Named]:
    answered: set[str] = set()
    for topic in topics:
        if names[topic.name] == 1:
            yield topic
        elif topic.name not in answered:
            answered.add(topic.name)
            yield topic


def _twice(name: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"topic {name!r} is asked for twice")


def _of_no_type(body: requests.ElectLeadersRequest) -> Rows[Response]:
    asked = body.topic_partitions or ()
    code = ErrorCode.INVALID_REQUEST

    def row(topic: requests.TopicPartitions) -> Response:
        rows = ({"partition_id": number, "error_code": code, "error_message": None} for number in topic.partitions)
        return {"topic": topic.topic, "partition_result": Rows(len(topic.partitions), rows)}

    return Rows(len(asked), map(row, asked))


async def _outcome(name: str | None, work: Awaitable[None]) -> Response:
    try:
        await work
    except PylogError as error:
        return _failed(name, error)
    return {"name": name, "error_code": ErrorCode.NONE, "error_message": None}


def _all_failed(names: Collection[str], error: PylogError) -> Rows[Response]:
    return Rows(len(names), (_failed(name, error) for name in names))


def _failed(name: str | None, error: PylogError) -> Response:
    return {
        "name": name,
        "topic_id": None,
        "error_code": code_of(error),
        "error_message": message_of(error),
        "topic_config_error_code": NO_CONFIG_ERROR,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": None,
    }
