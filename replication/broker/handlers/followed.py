"""Fetches of followers: their requests and answers in sessions, see `replica.leader.sessions`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from replication.broker.handlers.strangers import Strangers
from replication.config.broker import BrokerConfig
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TopicPartition, topic_id_of
from replication.model.metadata import Metadata
from replication.network.steps import begin
from replication.network.work import Work
from replication.protocol.messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    NodeEndpoint,
    PartitionFetched,
    TopicFetched,
)
from replication.replica.leader.results import FetchTerms
from replication.replica.leader.sessions import FetchSession
from replication.replica.manager import ReplicaManager


class FollowedHandler:
    """`failed` counts an error, and completes its row: (version, asker, partition, row, who leads)."""

    def __init__(
        self,
        config: BrokerConfig,
        replicas: ReplicaManager,
        strangers: Strangers,
        failed: Callable[[int, str, TopicPartition, PartitionFetched, dict[int, NodeEndpoint]], PartitionFetched],
    ) -> None:
        self._config = config
        self._replicas = replicas
        self._strangers = strangers
        self._failed = failed
        self._metadata: Metadata = replicas.metadata
        self._errors = replicas.counters.answered_errors

    def fetch(self, context: Work, request: FetchRequest) -> Awaitable[FetchResponse] | FetchResponse:
        if self._replicas.lives.is_known(request.replica_id, request.replica_epoch):
            return self._fetch_in_session(context, request)
        return begin(self._fetch_newcomer(context, request))

    async def _fetch_newcomer(self, context: Work, request: FetchRequest) -> FetchResponse:
        """The same, for one whose life must be looked up."""
        if not await self._replicas.lives.is_life(request.replica_id, request.replica_epoch):
            self._strangers.note_wrong(context)
            code = ErrorCode.STALE_BROKER_EPOCH
            self._errors["FetchFollower", code] += sum(len(topic.partitions) for topic in request.topics)
            return FetchResponse([all_failed(topic, code) for topic in request.topics], error_code=code)
        response = self._fetch_in_session(context, request)
        return response if isinstance(response, FetchResponse) else await response

    def _fetch_in_session(self, context: Work, request: FetchRequest) -> Awaitable[FetchResponse] | FetchResponse:
        who = request.replica_id, request.replica_epoch
        try:
            session = self._replicas.fetch_sessions.of(request.session_id, request.session_epoch, who)
        except KafkaError as error:
            self._errors["FetchFollower", error.code] += 1
            return FetchResponse((), error_code=error.code)
        wanted: dict[TopicPartition, FetchPartition] = {}
        failed: list[TopicFetched] = []
        for topic in request.topics:
            name = self._metadata.name_of(topic_id_of(topic.topic_id))
            if name is None:
                self._errors["FetchFollower", ErrorCode.UNKNOWN_TOPIC_ID] += len(topic.partitions)
                failed.append(all_failed(topic, ErrorCode.UNKNOWN_TOPIC_ID))
                continue
            session.topic_ids[name] = topic.topic_id
            for asked in topic.partitions:
                wanted[TopicPartition(name, asked[0])] = asked
        names = {topic_id: name for name, topic_id in session.topic_ids.items()} if request.forgotten else {}
        forgotten = [
            TopicPartition(names[gone.topic_id], partition)
            for gone in request.forgotten
            if gone.topic_id in names
            for partition in gone.partitions
        ]
        max_bytes = max(0, min(request.max_bytes, self._config.fetch_max_bytes))
        assert request.isolation is not None, "else it is refused before"
        terms = FetchTerms(
            *who,
            0 if failed else max(0, request.max_wait_ms),
            min(request.min_bytes, max_bytes),
            max_bytes,
            request.isolation,
            context.room_bytes,
        )
        return session.fetch(wanted, forgotten, terms, partial(self._followed, context, session, failed))

    def _followed(
        self,
        context: Work,
        session: FetchSession,
        failed: list[TopicFetched],
        found: Mapping[TopicPartition, PartitionFetched],
    ) -> FetchResponse:
        moved: dict[int, NodeEndpoint] = {}
        rows: dict[str, list[PartitionFetched]] = {}
        is_stranger = False
        for tp, row in found.items():
            if row.error_code is not ErrorCode.NONE:
                is_stranger |= row.error_code is ErrorCode.STALE_BROKER_EPOCH
                row = self._failed(context.version, "FetchFollower", tp, row, moved)  # noqa: PLW2901
            rows.setdefault(tp.topic, []).append(row)
        if is_stranger:
            self._strangers.note_wrong(context)
        topics = [TopicFetched(None, session.topic_ids[name], partitions) for name, partitions in rows.items()]
        return FetchResponse(topics + failed, session_id=session.number, node_endpoints=tuple(moved.values()))


def all_failed(topic: FetchTopic, code: ErrorCode) -> TopicFetched:
    return TopicFetched(
        topic.name, topic.topic_id, [PartitionFetched(each.partition, code) for each in topic.partitions]
    )
