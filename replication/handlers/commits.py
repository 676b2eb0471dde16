"""Offsets that groups commit, ask for, and have deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from logstore.env import Clock
from replication.errors import ErrorCode, KafkaError
from replication.group_coordinator import GroupCoordinator
from replication.groups import Group, events
from replication.groups.state import NO_TIME, Committed
from replication.handlers.context import Handler, RequestContext
from replication.metadata import Metadata
from replication.model import TopicPartition
from replication.protocol.apis import ApiKey

SEVERAL_GROUPS_FROM = 8  # OffsetFetch
NOTHING = Committed(-1)

Response = Mapping[str, Any]


class CommitHandlers:
    """See the module."""

    def __init__(self, metadata: Metadata, groups: GroupCoordinator, clock: Clock) -> None:
        self._metadata = metadata
        self._groups = groups
        self._clock = clock

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """What is answered here."""
        return {
            ApiKey.OFFSET_COMMIT: self.commit,
            ApiKey.OFFSET_FETCH: self.fetch,
            ApiKey.OFFSET_DELETE: self.delete,
        }

    async def commit(self, context: RequestContext, body: Any) -> Response:
        """OffsetCommit: answered when the offsets are stored by all replicas in sync."""
        context.park()
        now_ms = self._clock.now_ms()
        keep = getattr(body, "retention_time", None)
        keep_ms = -1 if keep is None else round(keep.total_seconds() * 1000)
        wanted = {
            TopicPartition(topic.name, row.partition_index): Committed(
                row.committed_offset,
                getattr(row, "committed_leader_epoch", -1),
                row.committed_metadata or "",
                now_ms,
                now_ms + keep_ms if keep_ms >= 0 else NO_TIME,
            )
            for topic in body.topics
            for row in topic.partitions
        }
        codes = await self._change(
            body.group_id,
            wanted,
            lambda request, known: events.Commit(
                request=request,
                offsets={tp: wanted[tp] for tp in known},
                member_id=body.member_id,
                generation=body.generation_id_or_member_epoch,
                instance_id=getattr(body, "group_instance_id", None),
            ),
        )
        return {"topics": _by_topic(body.topics, codes)}

    async def delete(self, context: RequestContext, body: Any) -> Response:
        """OffsetDelete: of topics that no member reads."""
        context.park()
        wanted = [TopicPartition(t.name, row.partition_index) for t in body.topics for row in t.partitions]
        try:
            if self._groups.group(body.group_id) is None:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
            codes = await self._change(
                body.group_id,
                wanted,
                events.DeleteOffsets,
                raises=True,
            )
        except KafkaError as error:
            return {"error_code": error.code, "topics": []}
        return {"error_code": ErrorCode.NONE, "topics": _by_topic(body.topics, codes)}

    async def _change(
        self,
        group_id: str,
        wanted: Iterable[TopicPartition],
        event: Callable[[int, tuple[TopicPartition, ...]], events.Event],
        *,
        raises: bool = False,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """How it came out for each partition; those that the cluster does not know are left out of it."""
        wanted = tuple(wanted)
        known = tuple(tp for tp in wanted if self._metadata.leader(*tp) is not None)
        codes = dict.fromkeys(wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        try:
            answer = await self._groups.ask(group_id, lambda request: event(request, known))
            assert isinstance(answer, events.OffsetsDone), "every event has its kind of answer"
            if raises and answer.error:
                raise KafkaError(answer.error)
        except KafkaError as error:
            if raises:
                raise
            return {**codes, **dict.fromkeys(known, error.code)}
        return {**codes, **dict.fromkeys(known, answer.error), **answer.refused}

    # -------------------------------------------------------------------- fetch

    def fetch(self, context: RequestContext, body: Any) -> Response:
        """OffsetFetch: what is committed; -1 for what never was."""
        if context.version >= SEVERAL_GROUPS_FROM:
            return {"groups": [{"group_id": asked.group_id, **self._fetch(asked)} for asked in body.groups]}
        found = self._fetch(body)
        code = found["error_code"]
        if code and context.version == 1:  # which has no error for all
            rows = [
                {
                    "name": topic.name,
                    "partitions": [_row(number, NOTHING, code) for number in topic.partition_indexes],
                }
                for topic in body.topics
            ]
            return {"topics": rows}
        return found

    def _fetch(self, asked: Any) -> dict[str, Any]:
        try:
            group = self._groups.group(asked.group_id)
        except KafkaError as error:
            return {"error_code": error.code, "topics": []}
        return {"error_code": ErrorCode.NONE, "topics": _fetched(group, asked.topics)}


def _fetched(group: Group | None, topics: Any) -> list[Mapping[str, Any]]:
    """The rows of a response: of these partitions, or of all there are if `topics` is None."""
    offsets = group.offsets if group is not None else {}
    names: dict[str, list[int]] = {}
    if topics is None:
        for tp in offsets:
            names.setdefault(tp.topic, []).append(tp.partition)
    else:
        for topic in topics:
            names.setdefault(topic.name, []).extend(topic.partition_indexes)
    return [
        {
            "name": name,
            "partitions": [_row(n, offsets.get(TopicPartition(name, n), NOTHING)) for n in numbers],
        }
        for name, numbers in names.items()
    ]


def _row(partition: int, committed: Committed, code: ErrorCode = ErrorCode.NONE) -> Mapping[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": code,
    }


def _by_topic(topics: Any, codes: Mapping[TopicPartition, ErrorCode]) -> list[Mapping[str, Any]]:
    return [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": row.partition_index,
                    "error_code": codes[TopicPartition(topic.name, row.partition_index)],
                }
                for row in topic.partitions
            ],
        }
        for topic in topics
    ]
