"""Fetch, by consumers and by followers: see `replication.replica.leader.sessions`.

The session of a consumer is of one request: a client that wants one that goes on is answered without, and names all
partitions in every request, as the protocol allows.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Generator, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from logstore.records.batch import batches
from logstore.records.compression import Codec
from replication.broker.handlers.broker_epochs import WrongEpochs
from replication.broker.handlers.moved import MOVED, current_leader
from replication.config.broker import BrokerConfig
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TopicPartition, topic_id_of
from replication.model.metadata import Metadata
from replication.network import steps
from replication.network.steps import STEP_ITEMS
from replication.network.throttle import Throttle
from replication.network.work import ROOM_BYTES_MIN, Encoded, Handler, Work
from replication.protocol.apis import ApiKey
from replication.protocol.decoding import TOPIC_IDS
from replication.protocol.encoding import fetched_one
from replication.protocol.messages import (
    FULL_SESSIONS,
    ONE_REQUEST,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    Isolation,
    NodeEndpoint,
    PartitionFetched,
    TopicFetched,
)
from replication.replica.leader.results import FetchTerms
from replication.replica.leader.rows import fetch_one
from replication.replica.leader.sessions import FetchSession, Found
from replication.replica.manager import ReplicaManager
from replication.security.access import Operation, Resource

FETCH_ZSTD = 10  # the first version whose clients know zstd
FETCH_ONE = 11  # the first version that is answered at once
FETCH_LEADERS = 12  # the first version that tells who leads now

Answer: TypeAlias = Encoded | FetchResponse


class _Asked(NamedTuple):
    """The partitions of a request by the names of their topics, and the topics as the request names them."""

    wanted: dict[TopicPartition, FetchPartition]
    topics: dict[str, tuple[str | None, uuid.UUID | None]]
    failed: list[tuple[FetchTopic, ErrorCode]]


class FetchHandlers:
    def __init__(
        self,
        config: BrokerConfig,
        replicas: ReplicaManager,
        wrong_epochs: WrongEpochs,
        throttle: Throttle | None = None,
    ) -> None:
        self._config = config
        self._throttle = throttle or Throttle()
        self._replicas = replicas
        self._wrong_epochs = wrong_epochs
        self._metadata: Metadata = replicas.metadata
        self._errors = replicas.counters.answered_errors

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.FETCH: self.fetch}

    def fetch(self, context: Work, request: FetchRequest) -> Awaitable[Answer] | Answer:
        """Read partitions, waiting until there is enough: most fetches wait for nothing."""
        if request.isolation is None:
            return self._refused(request, ErrorCode.INVALID_REQUEST)
        if context.refused and request.replica_id >= 0:
            return self._refused(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if self._throttle.is_on and request.replica_id < 0:
            most_bytes = self._throttle.most_bytes(context.origin.context, context.client_id)
            request = request._replace(max_bytes=min(request.max_bytes, most_bytes))
        if not context.refused and (at_once := self._fetch_one(context, request)):
            return at_once
        naming = self._named(context, request)
        is_over, asked = steps.advance(naming, STEP_ITEMS)
        if is_over and (request.replica_id < 0 or self._replicas.broker_epochs.is_known(*request.replica)):
            return self._fetch(context, request, asked)
        return steps.begin(self._fetch_later(context, request, naming, asked))

    async def _fetch_later(
        self, context: Work, request: FetchRequest, naming: Generator[None, None, _Asked], asked: _Asked | None
    ) -> Answer:
        """The same, of a long request, or of a follower whose life must be looked up."""
        if request.replica_id >= 0 and not await self._replicas.broker_epochs.is_current(*request.replica):
            self._wrong_epochs.count(context)
            refused = self._refused(request, ErrorCode.STALE_BROKER_EPOCH)
            return refused._replace(error_code=ErrorCode.NONE) if request.session_epoch == ONE_REQUEST else refused
        response = self._fetch(context, request, asked or await steps.run(naming, STEP_ITEMS))
        return response if isinstance(response, FetchResponse | Encoded) else await response

    def _fetch(self, context: Work, request: FetchRequest, asked: _Asked) -> Awaitable[Answer] | Answer:
        try:
            session = self._replicas.fetch_session(
                request.session_id, request.session_epoch, request.replica, request.rack
            )
        except KafkaError as error:
            self._errors[_kind_of(request), error.code] += 1
            return FetchResponse((), error_code=error.code)
        session.topics.update(asked.topics)
        names = {key: name for name, key in session.topics.items()} if request.forgotten else {}
        forgotten = [
            TopicPartition(names[key], partition)
            for gone in request.forgotten
            if (key := (gone.name, gone.topic_id)) in names
            for partition in gone.partitions
        ]
        max_bytes = max(0, min(request.max_bytes, self._config.fetch_max_bytes))
        assert request.isolation is not None, "else it is refused before"
        terms = FetchTerms(
            replica_id=request.replica_id,
            replica_epoch=request.replica_epoch,
            max_wait_ms=0 if asked.failed else max(0, request.max_wait_ms),
            min_bytes=min(request.min_bytes, max_bytes),
            max_bytes=max_bytes,
            isolation=request.isolation,
            room_bytes=context.room_bytes,
        )
        return session.fetch(asked.wanted, forgotten, terms, partial(self._response, context, request, asked, session))

    def _named(self, context: Work, request: FetchRequest) -> Generator[None, None, _Asked]:
        asked, has_ids, is_consumer = _Asked({}, {}, []), context.version >= TOPIC_IDS, request.replica_id < 0
        for topic in request.topics:
            name = self._metadata.name_of(topic_id_of(topic.topic_id)) if has_ids else topic.name
            if name is None:
                asked.failed.append((topic, ErrorCode.UNKNOWN_TOPIC_ID))
                continue
            # A later step may know an id that the pipeline's authorization did not.
            if is_consumer and context.hidden(Operation.READ, Resource.TOPIC, (name,)):
                asked.failed.append((topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
                continue
            asked.topics[name] = topic.name, topic.topic_id
            for partition in topic.partitions:
                asked.wanted[TopicPartition(name, partition[0])] = partition
                yield
        return asked

    async def _response(
        self, context: Work, request: FetchRequest, asked: _Asked, session: FetchSession, found: Found
    ) -> FetchResponse:
        version, kind = context.version, _kind_of(request)
        moved: dict[int, NodeEndpoint] = {}
        rows: dict[str, list[PartitionFetched]] = {}
        is_stale = False
        for number, (tp, row) in enumerate(found.items(), 1):
            if number % STEP_ITEMS == 0:
                await steps.step()
            if version < FETCH_ZSTD:
                row = _without_zstd(row)  # noqa: PLW2901
            if code := row.error_code:
                self._errors[kind, code] += 1
                is_stale |= code == ErrorCode.STALE_BROKER_EPOCH
                if code in MOVED and version >= FETCH_LEADERS:
                    leader = current_leader(self._metadata, tp, moved, context.listener)
                    row = row._replace(current_leader=leader)  # noqa: PLW2901
            rows.setdefault(tp.topic, []).append(row)
        if is_stale:
            self._wrong_epochs.count(context)
        topics = [TopicFetched(*session.topics[name], partitions) for name, partitions in rows.items()]
        topics += [self._failed(request, topic, code) for topic, code in asked.failed]
        return FetchResponse(topics, session_id=session.number, node_endpoints=tuple(moved.values()))

    def _refused(self, request: FetchRequest, code: ErrorCode) -> FetchResponse:
        return FetchResponse([self._failed(request, topic, code) for topic in request.topics], error_code=code)

    def _failed(self, request: FetchRequest, topic: FetchTopic, code: ErrorCode) -> TopicFetched:
        self._errors[_kind_of(request), code] += len(topic.partitions)
        rows = [PartitionFetched(each.partition, code) for each in topic.partitions]
        return TopicFetched(topic.name, topic.topic_id, rows)

    def _fetch_one(self, context: Work, request: FetchRequest) -> Encoded | None:
        """The answer to a consumer that asks for one partition, if it is known at once; None: nothing was done."""
        _, min_bytes, topics, max_bytes, isolation, replica_id, _, _, session_epoch, rack, _ = request
        assert isolation is not None, "else it is refused before"
        if replica_id != -1 or len(topics) != 1 or session_epoch not in FULL_SESSIONS:
            return None
        version, (name, topic_id, partitions) = context.version, topics[0]
        if version < FETCH_ONE or len(partitions) != 1 or (rack and self._config.has_nearest_reads):
            return None
        (asked,) = partitions
        known = name if version < TOPIC_IDS else self._metadata.name_of(topic_id_of(topic_id))
        leader = self._replicas.known_leader((known, asked[0])) if known is not None else None
        if leader is None:
            return None
        max_bytes = min(max_bytes, self._config.fetch_max_bytes)
        room_bytes = max_bytes if max_bytes <= ROOM_BYTES_MIN else min(max_bytes, context.room_bytes())
        found = fetch_one(leader, asked, isolation, room_bytes, min(min_bytes, max_bytes))
        if found is None:
            return None
        high_watermark, stable_end, start, records = found
        row, is_committed = (asked[0], high_watermark, stable_end, start), isolation is Isolation.READ_COMMITTED
        correlation_id, topic = context.correlation_id, (name, topic_id)
        return Encoded(fetched_one(version, correlation_id, topic, row, records, is_committed=is_committed))


def _kind_of(request: FetchRequest) -> str:
    return "FetchFollower" if request.replica_id >= 0 else "FetchConsumer"


def _without_zstd(fetched: PartitionFetched) -> PartitionFetched:
    """The same for a client that does not know zstd."""
    if any(batch.codec is Codec.ZSTD for _, batch in batches(fetched.records)):
        code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        return fetched._replace(error_code=code, records=b"", aborted=None)
    return fetched
