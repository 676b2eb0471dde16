"""The APIs of the offsets of share groups (KIP-932): how far groups have come, and where they are to begin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias
from uuid import UUID

from replication.broker.feature_level import FeatureLevel
from replication.broker.handlers.parted_groups import numbers_of
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.groups.pieces import NO_PIECES, Piece, Pieces
from replication.coordinators.groups.share.events import AlterShareOffsets, DeleteShareOffsets, SharesDone
from replication.coordinators.groups.share.state import ShareGroup, pieces_of
from replication.coordinators.groups.topic_patterns import ClusterTopics
from replication.coordinators.share_state.states import BY_RESET, IdPartition, ShareStates, Summary
from replication.errors import NONE, ErrorCode, KafkaError
from replication.model.cluster import TopicPartition, topic_uuid
from replication.model.features import SHARE_GROUPS
from replication.model.metadata import Metadata
from replication.network.steps import all_of
from replication.network.work import Handler, Response, Work
from replication.protocol import requests
from replication.protocol.apis import ApiKey
from replication.security.access import Operation, Resource

Ends: TypeAlias = Callable[[Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]]
LAGS_FROM = 1  # DescribeShareGroupOffsets
NO_TOPIC = UUID(int=0)
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
UNKNOWN_SAID = "This server does not host this topic-partition."
NOTHING_SAID = "There is no offset information to delete."


class ShareOffsetHandlers:
    """`ends` returns the high watermarks of partitions."""

    def __init__(
        self,
        groups: GroupCoordinator,
        states: ShareStates,
        metadata: Metadata,
        level: FeatureLevel,
        ends: Ends,
    ) -> None:
        self._groups = groups
        self._states = states
        self._metadata = metadata
        self._level = level
        self._ends = ends
        self._topics = ClusterTopics(metadata)

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: self.describe,
            ApiKey.ALTER_SHARE_GROUP_OFFSETS: self.alter,
            ApiKey.DELETE_SHARE_GROUP_OFFSETS: self.delete,
        }

    async def describe(self, context: Work, body: requests.DescribeShareGroupOffsetsRequest) -> Response:
        """DescribeShareGroupOffsets: where groups begin in partitions, and from version 1 on how much is left."""
        context.park()
        return {"groups": await all_of(lambda group: self._offsets_of(context, group), body.groups)}

    async def _offsets_of(self, context: Work, group: requests.DescribeShareGroupOffsetsRequestGroup) -> dict[str, Any]:
        try:
            self._level.need(SHARE_GROUPS)
            known = self._groups.group(group.group_id)
            pieces = pieces_of(known.states.initialized) if isinstance(known, ShareGroup) else NO_PIECES
            asked = self._all_of(pieces) if group.topics is None else _asked(group.topics)
            hidden = await context.hidden_of_many(Operation.DESCRIBE, Resource.TOPIC, asked)
            shown = {name: numbers for name, numbers in asked.items() if name not in hidden}
            topics = await self._positions(group.group_id, shown, pieces, lags=context.version >= LAGS_FROM)
            if group.topics is not None:
                topics += [_refused(name, asked[name]) for name in asked if name in hidden]
        except KafkaError as error:
            return {
                "group_id": group.group_id,
                "error_code": error.code,
                "error_message": error.message or None,
                "topics": (),
            }
        return {"group_id": group.group_id, "error_code": NONE, "error_message": None, "topics": topics}

    def _all_of(self, pieces: Pieces) -> dict[str, list[int]]:
        named = ((self._metadata.name_of(topic_id), numbers) for topic_id, numbers in numbers_of(pieces))
        return {name: numbers for name, numbers in named if name is not None}

    async def _positions(
        self, group_id: str, asked: Mapping[str, Collection[int]], known: Pieces, *, lags: bool
    ) -> list[dict[str, Any]]:
        """Return the rows of what is asked for; only `known` partitions have a state."""
        places = {
            IdPartition(topic.id, number): TopicPartition(name, number)
            for name, numbers in asked.items()
            if (topic := self._topics.get(name)) is not None
            for number in numbers
            if (topic.id, number) in known
        }
        summaries = await self._states.summaries(group_id, tuple(places))
        found = {tp: summaries.get(at, Summary(ErrorCode.UNKNOWN_SERVER_ERROR)) for at, tp in places.items()}
        begun = [tp for tp, each in found.items() if _has_lag(each)]
        ends = await self._ends(begun) if lags and begun else {}

        def row(tp: TopicPartition) -> dict[str, Any]:
            return _position(tp.partition, found.get(tp), ends.get(tp))

        return [
            {
                "topic_name": name,
                "topic_id": self._id_of(name),
                "partitions": [row(TopicPartition(name, number)) for number in numbers],
            }
            for name, numbers in asked.items()
        ]

    async def alter(self, context: Work, body: requests.AlterShareGroupOffsetsRequest) -> Response:
        """AlterShareGroupOffsets: of a group that nobody is in; answered once the group begins there."""
        context.park()
        offsets, names = dict[Piece, int](), dict[str, str]()
        named = [topic.topic_name for topic in body.topics]
        hidden = await context.hidden_of_many(Operation.READ, Resource.TOPIC, named)
        for topic in body.topics:
            known = self._topics.get(topic.topic_name)
            if known is not None and topic.topic_name not in hidden:
                names[known.id] = topic.topic_name
                for each in topic.partitions:
                    if 0 <= each.partition_index < known.partitions:
                        offsets[Piece(known.id, each.partition_index)] = each.start_offset
        try:
            done = await self._change(body.group_id, lambda request: AlterShareOffsets(request, offsets, names))
        except KafkaError as error:
            return {"error_code": error.code, "error_message": error.message or None, "responses": ()}

        def row(topic: str, number: int) -> dict[str, Any]:
            known = self._topics.get(topic)
            error = UNKNOWN if known is None else done.errors.get(Piece(known.id, number), UNKNOWN)
            if topic in hidden:
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return {"partition_index": number, "error_code": error, "error_message": _said(error)}

        rows = [
            {
                "topic_name": topic.topic_name,
                "topic_id": NO_TOPIC if topic.topic_name in hidden else self._id_of(topic.topic_name),
                "partitions": [row(topic.topic_name, each.partition_index) for each in topic.partitions],
            }
            for topic in body.topics
        ]
        return {"error_code": NONE, "error_message": None, "responses": rows}

    async def delete(self, context: Work, body: requests.DeleteShareGroupOffsetsRequest) -> Response:
        """DeleteShareGroupOffsets: of a group that nobody is in; its states are deleted."""
        context.park()
        asked = list(dict.fromkeys(topic.topic_name for topic in body.topics))
        hidden = await context.hidden_of_many(Operation.READ, Resource.TOPIC, asked)
        ids = {name: known.id for name in asked if name not in hidden and (known := self._topics.get(name)) is not None}
        topics = {topic_id: name for name, topic_id in ids.items()}
        try:
            done = await self._change(body.group_id, lambda request: DeleteShareOffsets(request, topics, self._topics))
        except KafkaError as error:
            return {"error_code": error.code, "error_message": error.message or None, "responses": ()}
        failed = {piece.topic_id: code for piece, code in done.errors.items() if code is not NONE}

        def row(name: str) -> dict[str, Any]:
            code = failed.get(ids[name], NONE) if name in ids else UNKNOWN
            if name in hidden:
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            said = NOTHING_SAID if name in ids and code is UNKNOWN else _said(code)
            topic_id = NO_TOPIC if name in hidden else self._id_of(name)
            return {"topic_name": name, "topic_id": topic_id, "error_code": code, "error_message": said}

        return {"error_code": NONE, "error_message": None, "responses": [row(name) for name in asked]}

    def _id_of(self, name: str) -> UUID | None:
        known = self._topics.get(name)
        return NO_TOPIC if known is None else topic_uuid(known.id)

    async def _change(
        self, group_id: str, event: Callable[[int], AlterShareOffsets | DeleteShareOffsets]
    ) -> SharesDone:
        """Raises: KafkaError."""
        self._level.need(SHARE_GROUPS)
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        done = await self._groups.ask(group_id, event)
        assert isinstance(done, SharesDone), "every event has its kind of answer"
        if done.error:
            raise KafkaError(done.error, done.message or "")
        return done


def _asked(topics: Iterable[requests.DescribeShareGroupOffsetsRequestTopic]) -> dict[str, list[int]]:
    found: dict[str, dict[int, None]] = {}
    for topic in topics:
        found.setdefault(topic.topic_name, {}).update(dict.fromkeys(topic.partitions))
    return {name: list(numbers) for name, numbers in found.items()}


def _said(error: ErrorCode) -> str | None:
    if error is NONE:
        return None
    return UNKNOWN_SAID if error is UNKNOWN else error.name


def _has_lag(found: Summary) -> bool:
    return found.error is NONE and found.start_offset != BY_RESET and found.delivery_complete_count >= 0


def _position(number: int, found: Summary | None, end: int | None) -> dict[str, Any]:
    """Return the row of a partition; None: its topic is not known. A state that cannot be read has no offset."""
    row: dict[str, Any] = {"partition_index": number, "start_offset": BY_RESET, "leader_epoch": 0, "lag": -1}
    if found is not None and found.error is NONE:
        row |= {"start_offset": found.start_offset, "leader_epoch": found.leader_epoch}
        if end is not None and _has_lag(found):
            row["lag"] = end - found.start_offset - found.delivery_complete_count
    return {**row, "error_code": NONE, "error_message": None}


def _refused(name: str, numbers: Iterable[int]) -> dict[str, Any]:
    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    rows = [
        {"partition_index": number, "start_offset": BY_RESET, "leader_epoch": 0, "lag": -1, "error_code": error,
         "error_message": error.name}
        for number in numbers
    ]  # fmt: skip
    return {"topic_name": name, "topic_id": NO_TOPIC, "partitions": rows}
