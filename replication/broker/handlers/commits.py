"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete: the committed offsets of groups."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast
from uuid import UUID

from logstore.env import Clock
from replication.broker.verification import Asked, Verification
from replication.coordinators.groups.consumer.commits import may_fetch
from replication.coordinators.groups.consumer.state import ConsumerGroup
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.groups.kinds import AnyGroup
from replication.coordinators.groups.offsets import events
from replication.coordinators.groups.offsets.state import NO_TIME, Committed
from replication.coordinators.partitioning import no_metadata
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import OFFSETS_TOPIC, TopicPartition, topic_id_of, topic_uuid
from replication.network.steps import begin, in_steps, step
from replication.network.work import Handler, Response, Work
from replication.protocol import requests
from replication.protocol.apis import ApiKey
from replication.protocol.kio_pieces import Rows
from replication.protocol.small_messages import COMMIT_IDS_FROM, CommitTopic, OffsetCommitRequest
from replication.replica.manager import ReplicaManager
from replication.security.access import Operation, Resource, of_group

SEVERAL_GROUPS_FROM, IDS_FROM = 8, 10  # OffsetFetch
# TxnOffsetCommit: it adds the partition of the group to the transaction; names topics by ids; tells of stale epochs.
TXN_COMMIT_ADDS, TXN_IDS_FROM, TXN_STALE_FROM = 5, 6, 6
NO_ID = UUID(int=0)
MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
NOTHING = Committed(-1)
_OF_OLD_VERSIONS = {ErrorCode.STALE_MEMBER_EPOCH: ErrorCode.ILLEGAL_GENERATION}
CHANGED_AT_ONCE = 250  # offsets in one event for a group: each becomes a record, in some milliseconds for all

CommittedTopics: TypeAlias = Sequence[CommitTopic] | Sequence[requests.TxnOffsetCommitRequestTopic]
FetchTopics: TypeAlias = Sequence[requests.OffsetFetchRequestTopic] | Sequence[requests.OffsetFetchRequestTopics]


class CommitHandlers:
    def __init__(
        self, replicas: ReplicaManager, groups: GroupCoordinator, verification: Verification, clock: Clock
    ) -> None:
        self._replicas = replicas
        self._metadata = replicas.metadata
        self._groups = groups
        self._verification = verification
        self._clock = clock

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.OFFSET_COMMIT: self.commit,
            ApiKey.TXN_OFFSET_COMMIT: self.commit_in_transaction,
            ApiKey.OFFSET_FETCH: self.fetch,
            ApiKey.OFFSET_DELETE: self.delete,
        }

    def commit(self, context: Work, body: OffsetCommitRequest) -> Awaitable[Response] | Response:
        """OffsetCommit: answered when all replicas in sync have the offsets; with one replica, mostly at once."""
        context.park()
        return begin(self._commit(body, has_ids=context.version >= COMMIT_IDS_FROM))

    async def _commit(self, body: OffsetCommitRequest, *, has_ids: bool) -> Response:
        topics = self._named(body.topics, has_ids=has_ids)
        codes = await self._store(body, await self._wanted(topics, body.retention_ms))
        return {"topics": _by_topic(topics, codes)}

    def _named(self, topics: CommittedTopics, *, has_ids: bool) -> Sequence[CommitTopic]:
        """Return the topics with their names, "" for an unknown id. The rows of both kinds have the same fields."""
        named = cast("Sequence[CommitTopic]", topics)
        if not has_ids:
            return named
        return [CommitTopic(self._name_of(row.topic_id), row.partitions, row.topic_id or NO_ID) for row in named]

    def _name_of(self, topic_id: UUID | None) -> str:
        return self._metadata.name_of(topic_id_of(topic_id)) or ""

    async def commit_in_transaction(self, context: Work, body: requests.TxnOffsetCommitRequest) -> Response:
        """TxnOffsetCommit: the offsets count once the transaction is committed, which must hold the partition."""
        context.park()
        topics = self._named(body.topics, has_ids=context.version >= TXN_IDS_FROM)
        wanted = await self._wanted(topics)
        producer = body.producer_id, body.producer_epoch
        try:
            tp = TopicPartition(OFFSETS_TOPIC, self._groups.terms.partition_of(body.group_id))
            asked = Asked(body.transactional_id, *producer, context.version >= TXN_COMMIT_ADDS)
            refused = await self._verification.check(self._replicas.leader(tp), asked)
        except KafkaError as error:
            refused = error.code
        if refused is not ErrorCode.NONE:
            # Clients look for the coordinator again, and do not stop.
            is_moved = refused in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            is_late = refused is ErrorCode.NOT_ENOUGH_REPLICAS
            code = ErrorCode.NOT_COORDINATOR if is_moved else refused
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_late else code
            return {"topics": _by_topic(topics, dict.fromkeys(wanted, code))}
        codes = await self._store(body, wanted, producer)
        if context.version < TXN_STALE_FROM:
            codes = {tp: _OF_OLD_VERSIONS.get(code, code) for tp, code in codes.items()}
        return {"topics": _by_topic(topics, codes)}

    async def _store(
        self,
        body: OffsetCommitRequest | requests.TxnOffsetCommitRequest,
        wanted: Mapping[TopicPartition, Committed],
        producer: tuple[int, int] | None = None,
    ) -> Mapping[TopicPartition, ErrorCode]:
        return await self._change(
            body.group_id,
            wanted,
            lambda request, known: events.Commit(
                request=request,
                offsets={tp: wanted[tp] for tp in known},
                member_id=body.member_id,
                generation=body.generation_id,
                instance_id=body.group_instance_id,
                producer=producer,
                topic_ids=self._ids_of({tp.topic for tp in known}),
            ),
        )

    def _ids_of(self, names: Iterable[str]) -> Mapping[str, str]:
        found = (self._metadata.topic(name) for name in names)
        return {topic.name: topic.id for topic in found if topic is not None and topic.id is not None}

    async def _wanted(self, topics: Sequence[CommitTopic], retention_ms: int = -1) -> dict[TopicPartition, Committed]:
        now_ms = self._clock.now_ms()
        until_ms = expire_ms(now_ms, retention_ms)
        wanted: dict[TopicPartition, Committed] = {}
        async for chunk in in_steps((topic.name, row) for topic in topics for row in topic.partitions):
            for name, row in chunk:
                wanted[TopicPartition(name, row.partition_index)] = Committed(
                    row.committed_offset,
                    row.committed_leader_epoch,
                    row.committed_metadata or "",
                    now_ms,
                    until_ms,
                )
        return wanted

    async def delete(self, context: Work, body: requests.OffsetDeleteRequest) -> Response:
        """OffsetDelete: for topics that no member subscribes to."""
        context.park()
        wanted: dict[TopicPartition, None] = {}
        async for chunk in in_steps((topic.name, row) for topic in body.topics for row in topic.partitions):
            wanted.update((TopicPartition(name, row.partition_index), None) for name, row in chunk)
        try:
            if not body.group_id:
                raise KafkaError(ErrorCode.INVALID_GROUP_ID)
            if self._groups.group(body.group_id) is None:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
            codes = await self._change(body.group_id, wanted, events.DeleteOffsets, raises=True)
        except KafkaError as error:
            return {"error_code": error.code, "topics": []}
        return {"error_code": ErrorCode.NONE, "topics": _by_topic(body.topics, codes)}

    async def _change(
        self,
        group_id: str,
        wanted: Iterable[TopicPartition],
        event: Callable[[int, tuple[TopicPartition, ...]], events.Commit | events.DeleteOffsets],
        *,
        raises: bool = False,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Return the outcome per partition; unknown partitions are not sent to the group.

        Very many are changed in steps of CHANGED_AT_ONCE: then some may be stored, and others refused.
        """
        if not self._metadata.is_initialized:
            return dict.fromkeys(wanted, no_metadata().code)
        codes: dict[TopicPartition, ErrorCode] = {}
        rest = iter(wanted)
        is_first = True
        while (chunk := tuple(itertools.islice(rest, CHANGED_AT_ONCE))) or is_first:
            known = tuple(tp for tp in chunk if self._metadata.leader(*tp) is not None)
            codes.update(dict.fromkeys(chunk, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            if known or is_first:
                codes.update(await self._change_few(group_id, known, event, raises=raises and is_first))
            else:
                await step()
            is_first = False
        return codes

    async def _change_few(
        self,
        group_id: str,
        known: tuple[TopicPartition, ...],
        event: Callable[[int, tuple[TopicPartition, ...]], events.Commit | events.DeleteOffsets],
        *,
        raises: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        try:
            answer = await self._groups.ask(group_id, lambda request: event(request, known))
            assert isinstance(answer, events.OffsetsDone), "every event has its kind of answer"
            if raises and answer.error:
                raise KafkaError(answer.error)
        except KafkaError as error:
            if raises:
                raise
            return dict.fromkeys(known, error.code)
        return {**dict.fromkeys(known, answer.error), **answer.refused}

    # -------------------------------------------------------------------- fetch

    async def fetch(self, context: Work, body: requests.OffsetFetchRequest) -> Response:
        """OffsetFetch: -1 for partitions without a committed offset. A group that is named twice is answered once."""
        if context.version >= SEVERAL_GROUPS_FROM:
            rows = []
            async for chunk in in_steps({asked.group_id: asked for asked in body.groups}.values()):
                for asked in chunk:
                    found = await self._fetch(context, asked, is_stable=body.require_stable)
                    rows.append({"group_id": asked.group_id, **found})
            return {"groups": rows}
        found = await self._fetch(context, body, is_stable=body.require_stable)
        code = found["error_code"]
        if code and context.version == 1:  # it has no error for the whole answer
            rows = [
                {
                    "name": topic.name,
                    "partitions": Rows(
                        len(topic.partition_indexes),
                        (_row(number, NOTHING, code) for number in topic.partition_indexes),
                    ),
                }
                for topic in body.topics or ()
            ]
            return {"topics": rows}
        return found

    async def _fetch(
        self, context: Work, asked: requests.OffsetFetchRequest | requests.OffsetFetchRequestGroup, *, is_stable: bool
    ) -> dict[str, Any]:
        if context.refuses(of_group(Operation.DESCRIBE, asked.group_id)):
            return {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED, "topics": []}
        try:
            group = self._groups.group(asked.group_id)
        except KafkaError as error:
            code = error.code
            if code in MOVED and self._groups.terms.is_moving(asked.group_id):
                # librdkafka asks again then, where the coordinator is by then. After another code it reads nothing
                # more of these partitions, until it is assigned others.
                code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return {"error_code": code, "topics": []}
        if isinstance(group, ConsumerGroup) and isinstance(asked, requests.OffsetFetchRequestGroup):
            refused = may_fetch(group, asked.member_id, asked.member_epoch)
            if refused:
                return {"error_code": refused, "topics": []}
        return {
            "error_code": ErrorCode.NONE,
            "topics": await self._fetched(context, group, asked.topics, is_stable=is_stable),
        }

    async def _fetched(
        self, context: Work, group: AnyGroup | None, topics: FetchTopics | None, *, is_stable: bool
    ) -> Rows[Response]:
        """Return the rows of a response: of these partitions, or of all that the client may see if `topics` is None.

        `is_stable`: not of those that an open transaction may still change.
        """
        offsets = group.offsets.committed if group is not None else {}
        unstable = group.offsets.unstable if group is not None and is_stable else frozenset()
        has_ids = context.version >= IDS_FROM
        if topics is None:
            wanted = await self._all_of(context, (*offsets, *unstable))
        else:
            wanted = {}
            asked = ((self._asked(topic), number) for topic in topics for number in topic.partition_indexes)
            async for few in in_steps(asked):
                for key, number in few:
                    wanted.setdefault(key, {})[number] = None

        # An id may have become known only now, behind the pipeline's authorization.
        named = {key.name for key in wanted if key.name}
        hidden = await context.hidden_of_many(Operation.DESCRIBE, Resource.TOPIC, named)

        def topic_row(key: _Named, numbers: Collection[int]) -> Response:
            code = ErrorCode.NONE
            if has_ids and not key.name:
                code = ErrorCode.UNKNOWN_TOPIC_ID
            elif key.name in hidden:
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            rows = (
                _row(number, NOTHING, code or ErrorCode.UNSTABLE_OFFSET_COMMIT)
                if code or (tp := TopicPartition(key.name, number)) in unstable
                else _row(number, offsets.get(tp, NOTHING))
                for number in numbers
            )
            return {**key._asdict(), "partitions": Rows(len(numbers), rows)}

        return Rows(len(wanted), (topic_row(key, numbers) for key, numbers in wanted.items()))

    async def _all_of(self, context: Work, offsets: Iterable[TopicPartition]) -> dict[_Named, dict[int, None]]:
        """Return the partitions that the client may see, under the ids of their topics if it uses them."""
        names: dict[str, dict[int, None]] = {}
        async for chunk in in_steps(offsets):
            for tp in chunk:
                names.setdefault(tp.topic, {})[tp.partition] = None
        for name in await context.hidden_of_many(Operation.DESCRIBE, Resource.TOPIC, names):
            del names[name]
        if context.version < IDS_FROM:
            return {_Named(name, None): numbers for name, numbers in names.items()}
        keyed = {_Named(name, self._id_of(name)): numbers for name, numbers in names.items()}
        return {key: numbers for key, numbers in keyed.items() if key.topic_id is not None}  # others are being deleted

    def _asked(self, topic: requests.OffsetFetchRequestTopic | requests.OffsetFetchRequestTopics) -> _Named:
        topic_id = topic.topic_id if isinstance(topic, requests.OffsetFetchRequestTopics) else None
        return _Named(topic.name if topic_id is None else self._name_of(topic_id), topic_id)

    def _id_of(self, name: str) -> UUID | None:
        topic = self._metadata.topic(name)
        return topic_uuid(topic.id) if topic is not None else None


class _Named(NamedTuple):
    """The name of a topic, "" for an unknown id; and its id, None where the client says names."""

    name: str
    topic_id: UUID | None


def expire_ms(now_ms: int, retention_ms: int) -> int:
    return now_ms + retention_ms if retention_ms >= 0 else NO_TIME


def _row(partition: int, committed: Committed, code: ErrorCode = ErrorCode.NONE) -> Response:
    return {
        "partition_index": partition,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": code,
    }


def _by_topic(
    topics: Sequence[CommitTopic] | Sequence[requests.OffsetDeleteRequestTopic],
    codes: Mapping[TopicPartition, ErrorCode],
) -> Rows[Response]:
    def topic_row(topic: CommitTopic | requests.OffsetDeleteRequestTopic) -> Response:
        topic_id = topic.topic_id if isinstance(topic, CommitTopic) else None
        is_unknown = topic_id is not None and not topic.name
        rows = (
            {
                "partition_index": row.partition_index,
                "error_code": (
                    ErrorCode.UNKNOWN_TOPIC_ID if is_unknown else codes[TopicPartition(topic.name, row.partition_index)]
                ),
            }
            for row in topic.partitions
        )
        return {"name": topic.name, "topic_id": topic_id, "partitions": Rows(len(topic.partitions), rows)}

    return Rows(len(topics), map(topic_row, topics))
