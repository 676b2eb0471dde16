"""Metadata, which may create a topic, and DescribeCluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

from logstore.errors import InvalidTopicError, PylogError
from logstore.store.description import check_topic_name
from replication.broker.handlers.operations import NOT_ASKED, granted
from replication.broker.topic_admin import NewTopic, TopicAdmin
from replication.config.broker import BrokerConfig
from replication.errors import ErrorCode, code_of
from replication.model.cluster import INTERNAL_TOPICS, NO_LEADER, BrokerId, topic_id_of, topic_uuid
from replication.model.metadata import Metadata, PartitionMetadata, TopicMetadata
from replication.network import steps
from replication.network.steps import all_of, begin, in_steps
from replication.network.throttle import Throttle
from replication.network.work import Handler, Response, Work
from replication.protocol import apis
from replication.protocol.apis import ApiKey, EncodedBody
from replication.protocol.kio_pieces import Rows
from replication.protocol.requests import DescribeClusterRequest
from replication.protocol.small_messages import MetadataRequest, MetadataTopic
from replication.security.access import Operation, Resource, of_cluster

IDS_NAME_FROM = 12  # Metadata: a topic may be named by its id
LISTENERS_FROM = 6  # clients know that a leader may lack the listener
BROKERS, CONTROLLERS = 1, 2  # DescribeCluster: types of endpoints
ANSWERS_KEPT, TOPICS_KEPT = 64, 100
NONE_HIDDEN: frozenset[str] = frozenset()
CREATE_WAIT_S = 5.0  # a client that is answered earlier would only ask again


class Question(NamedTuple):
    """A request for metadata, as far as answers to it are the same, to whoever asks.

    `topics` None: all. `hidden`: those that the client may not see.
    """

    version: int
    listener: str
    topics: tuple[MetadataTopic, ...] | None
    hidden: frozenset[str]


class ClusterHandlers:
    def __init__(
        self,
        config: BrokerConfig,
        cluster_id: str,
        metadata: Metadata,
        admin: TopicAdmin,
        throttle: Throttle | None = None,
    ) -> None:
        self._config = config
        self._throttle = throttle or Throttle()
        self._cluster_id = cluster_id
        self._metadata = metadata
        self._admin = admin
        # Answers since the last change of the cluster; making one costs about 15 µs per partition.
        self._answers: dict[Question, EncodedBody] = {}
        self._making = asyncio.Lock()
        self._changes = 0
        metadata.listen(self._note_change)

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.METADATA: self.metadata, ApiKey.DESCRIBE_CLUSTER: self.describe_cluster}

    def _note_change(self) -> None:
        self._changes += 1
        self._answers.clear()

    def metadata(
        self, context: Work, body: MetadataRequest
    ) -> Awaitable[EncodedBody | Response] | EncodedBody | Response:
        """Return brokers, controller and the named topics, each once; all topics if none are named."""
        topics = body.topics
        if topics and len(topics) <= TOPICS_KEPT and not context.refused and not _asks(body):
            answer = self._answers.get(Question(context.version, context.listener, topics, NONE_HIDDEN))
            if answer is not None:
                return answer
        return begin(self._asked(context, body))

    async def _asked(self, context: Work, body: MetadataRequest) -> EncodedBody | Response:
        asked = body.topics
        if asked is None or (not asked and context.version == 0):
            return await self._everything(context, body)
        wanted: dict[MetadataTopic, None] = {}
        async for chunk in in_steps(asked):
            wanted.update((topic, None) for topic in chunk)
        hidden = frozenset(need.name for need in context.refused)
        # No long request, so that no step lies between the pipeline's authorization and the answer that is kept.
        question = (
            Question(context.version, context.listener, tuple(wanted), hidden) if len(asked) <= TOPICS_KEPT else None
        )
        if question is not None and not _asks(body) and (answer := self._answers.get(question)) is not None:
            return answer
        changes = self._changes
        failed: dict[str, ErrorCode] = dict.fromkeys(hidden, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if body.allow_auto_topic_creation and self._config.auto_create_topics_enable:
            context.park()
            named = [name for name, topic_id in wanted if name is not None and topic_id is None]
            missing = [name for name in named if name not in failed and self._metadata.topic(name) is None]
            refused = await context.hidden_of_many(
                Operation.CREATE, Resource.TOPIC, missing, of_cluster(Operation.CREATE)
            )
            failed.update(dict.fromkeys(refused, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            missing = [name for name in missing if name not in refused]
            failed.update(zip(missing, await all_of(partial(self._make, context), missing), strict=True))
        if question is None:
            rows = Rows(len(wanted), (self._named(context, body, each, failed) for each in wanted))
            return self._response(context, body, rows)
        few = [self._named(context, body, each, failed) for each in wanted]
        answer = await self._encoded(context, body, few)
        if changes == self._changes and not _asks(body) and not any(row["error_code"] for row in few):
            self._keep(question, answer)
        return answer

    async def _everything(self, context: Work, body: MetadataRequest) -> EncodedBody:
        """Return the answer about all topics: one since the last change, for all requests of the same kind."""

        def question() -> Question:
            hidden = context.hidden(Operation.DESCRIBE, Resource.TOPIC, self._metadata.topics())
            return Question(context.version, context.listener, None, hidden)

        if not _asks(body) and (answer := self._answers.get(question())) is not None:
            return answer
        async with self._making:
            asked = question()  # there may be other topics by now
            if not _asks(body) and (answer := self._answers.get(asked)) is not None:
                return answer
            changes = self._changes
            shown = [topic for name, topic in self._metadata.topics().items() if name not in asked.hidden]
            rows = Rows(len(shown), (self._topic(context, body, topic.name, topic) for topic in shown))
            answer = await self._encoded(context, body, rows)
            if changes == self._changes and not _asks(body):
                self._keep(asked, answer)
            return answer

    def _keep(self, question: Question, answer: EncodedBody) -> None:
        if len(self._answers) >= ANSWERS_KEPT:
            self._answers.clear()
        self._answers[question] = answer

    async def _encoded(
        self, context: Work, body: MetadataRequest, rows: Sequence[Response] | Rows[Response]
    ) -> EncodedBody:
        made = apis.body_steps(context.key, context.version, self._response(context, body, rows))
        return EncodedBody([await steps.run(made)])

    def _response(self, context: Work, body: MetadataRequest, rows: Sequence[Response] | Rows[Response]) -> Response:
        asks = body.include_cluster_authorized_operations
        return {
            "brokers": [
                {"node_id": b.id, "host": b.host, "port": b.port, "rack": b.rack}
                for b in self._metadata.brokers_at(context.listener).values()
            ],
            "cluster_id": self._cluster_id,
            "controller_id": -1 if self._metadata.controller_id is None else self._metadata.controller_id,
            "error_code": ErrorCode.NONE,
            "topics": rows,
            "cluster_authorized_operations": granted(context, Resource.CLUSTER) if asks else NOT_ASKED,
        }

    async def _make(self, context: Work, name: str) -> ErrorCode:
        try:
            check_topic_name(name)
            if name in INTERNAL_TOPICS:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            self._throttle.mutate(context, self._config.num_partitions, is_strict=False)
            made = await self._admin.ensure(NewTopic(name=name), timeout_s=CREATE_WAIT_S)
        except InvalidTopicError:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        except PylogError as error:
            return code_of(error)
        return ErrorCode.LEADER_NOT_AVAILABLE if made is None else ErrorCode.NONE

    def _named(
        self, context: Work, body: MetadataRequest, asked: MetadataTopic, failed: Mapping[str, ErrorCode]
    ) -> Response:
        """Return the row of a topic named by its id, or else by its name; `failed`: why it is not shown or created.

        A name beside an id says nothing: Java's clients send an empty one.
        """
        name, topic_id = asked
        if context.version < IDS_NAME_FROM and (name is None or topic_id is not None):
            return _failure(name or "", ErrorCode.INVALID_REQUEST, topic_id)  # these answers have no null for a name
        if topic_id is not None or name is None:
            name = self._metadata.name_of(topic_id_of(topic_id)) if topic_id is not None else None
            if name is None:
                return _failure(None, ErrorCode.UNKNOWN_TOPIC_ID, topic_id)
            # The id may have become known only now, behind the pipeline's authorization.
            is_hidden = context.hidden(Operation.DESCRIBE, Resource.TOPIC, (name,))
            if code := ErrorCode.TOPIC_AUTHORIZATION_FAILED if is_hidden else failed.get(name, ErrorCode.NONE):
                return _failure(None, code, topic_id)
        if failed.get(name, ErrorCode.NONE) is ErrorCode.NONE:
            known = self._metadata.topic(name)
            if known is not None:
                return self._topic(context, body, name, known)
        if name not in failed:
            return _failure(name, why_unknown(name))
        return _failure(name, failed[name] or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _topic(self, context: Work, body: MetadataRequest, name: str, topic: TopicMetadata) -> Response:
        asks, told = body.include_topic_authorized_operations, self._metadata.brokers_at(context.listener)
        live = self._metadata.brokers() if context.version >= LISTENERS_FROM else told
        return {
            "error_code": ErrorCode.NONE,
            "name": name,
            "topic_id": topic_uuid(topic.id),
            "is_internal": name in INTERNAL_TOPICS,
            "partitions": Rows(
                len(topic.partitions),
                (partition_row(live, told, number, found) for number, found in sorted(topic.partitions.items())),
            ),
            "topic_authorized_operations": granted(context, Resource.TOPIC, name) if asks else NOT_ASKED,
        }

    def describe_cluster(self, context: Work, body: DescribeClusterRequest) -> Response:
        """Return the live brokers. There are no others to include: a broker that is not live is not registered."""
        asks = body.include_cluster_authorized_operations
        if body.endpoint_type != BROKERS:
            is_known = body.endpoint_type == CONTROLLERS
            code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            said = f"endpoints of type {body.endpoint_type}: this one is of a broker, {BROKERS}"
            return {"error_code": code, "error_message": said, "cluster_id": "", "brokers": ()}
        return {
            "error_code": ErrorCode.NONE,
            "error_message": None,
            "endpoint_type": BROKERS,
            "cluster_id": self._cluster_id,
            "controller_id": -1 if self._metadata.controller_id is None else self._metadata.controller_id,
            "brokers": [
                {"broker_id": b.id, "host": b.host, "port": b.port, "rack": b.rack, "is_fenced": False}
                for b in self._metadata.brokers_at(context.listener).values()
            ],
            "cluster_authorized_operations": granted(context, Resource.CLUSTER) if asks else NOT_ASKED,
        }


def _asks(body: MetadataRequest) -> bool:
    """Return whether a client asks for the operations that it may do: no other client is answered the same."""
    return body.include_cluster_authorized_operations or body.include_topic_authorized_operations


def partition_row(
    live: Collection[BrokerId], told: Collection[BrokerId], number: int, partition: PartitionMetadata
) -> Response:
    """Return what is told of a partition while these brokers are live, and clients are told of some of them.

    Those without the listener that was asked are offline for its clients.
    """
    leader, code = partition.state.leader, ErrorCode.NONE
    if leader not in told:
        code = ErrorCode.LISTENER_NOT_FOUND if leader in live else ErrorCode.LEADER_NOT_AVAILABLE
        leader = NO_LEADER
    return {
        "error_code": code,
        "partition_index": number,
        "leader_id": leader,
        "leader_epoch": partition.state.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.state.isr,
        "offline_replicas": [b for b in partition.replicas if b not in told or b in partition.offline_replicas],
    }


def why_unknown(name: str) -> ErrorCode:
    try:
        check_topic_name(name)
    except InvalidTopicError:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _failure(name: str | None, error: ErrorCode, topic_id: UUID | None = None) -> Response:
    return {
        "error_code": error,
        "name": name,
        "topic_id": topic_id,
        "is_internal": name in INTERNAL_TOPICS,
        "partitions": (),
        "topic_authorized_operations": NOT_ASKED,
    }
