"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords.

The partitions of a request are looked up one after the other, so that a request with very many of them does not delay
others. A partition that is named twice is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from replication.errors import ErrorCode
from replication.model.cluster import INTERNAL_TOPICS
from replication.model.times import AskedTime, SpecialTime, from_wire
from replication.network.steps import all_of, in_steps
from replication.network.work import Handler, Response, Work
from replication.protocol import requests
from replication.protocol.apis import ApiKey
from replication.protocol.kio_pieces import Rows
from replication.protocol.messages import ISOLATIONS, Isolation
from replication.replica.leader.results import DeletedRecords, FoundOffset
from replication.replica.manager import ReplicaManager

# The first version of ListOffsets with these; with the other places all have begun.
_KNOWN_SINCE: Mapping[AskedTime, int] = {
    SpecialTime.MAX_TIMESTAMP: 7,
    SpecialTime.EARLIEST_LOCAL: 8,
    SpecialTime.LATEST_TIERED: 9,
    SpecialTime.EARLIEST_PENDING_UPLOAD: 11,
}

_INVALID, _TOO_OLD = FoundOffset(ErrorCode.INVALID_REQUEST), FoundOffset(ErrorCode.UNSUPPORTED_VERSION)


class PositionHandlers:
    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.LIST_OFFSETS: self.list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self.offset_for_leader_epoch,
            ApiKey.DELETE_RECORDS: self.delete_records,
        }

    async def list_offsets(self, context: Work, body: requests.ListOffsetsRequest) -> Response:
        isolation = Isolation(body.isolation_level) if body.isolation_level in ISOLATIONS else None
        named: Counter[tuple[str, int]] = Counter()
        async for chunk in in_steps(_asked(body.topics)):
            named.update((name, asked.partition_index) for name, asked in chunk)
        done: list[FoundOffset] = []
        async for chunk in in_steps(_asked(body.topics)):
            for name, asked in chunk:
                tp, time = (name, asked.partition_index), from_wire(asked.timestamp)
                if named[tp] > 1 or isolation is None:
                    found = _INVALID
                elif time is None or _KNOWN_SINCE.get(time, 0) > context.version:
                    found = _TOO_OLD
                else:
                    found = await self._replicas.offset_for_time(
                        tp,
                        time,
                        replica_id=body.replica_id,
                        leader_epoch=asked.current_leader_epoch,
                        isolation=isolation,
                    )
                done.append(found)

        def row(asked: requests.ListOffsetsPartition, found: FoundOffset) -> Response:
            code, timestamp_ms, offset, leader_epoch = found
            known = {"partition_index": asked.partition_index, "error_code": code, "timestamp": timestamp_ms}
            return {**known, "offset": offset, "leader_epoch": leader_epoch}

        rest = iter(done)

        def topic_row(topic: requests.ListOffsetsTopic) -> Response:
            rows = (row(asked, next(rest)) for asked in topic.partitions)
            return {"name": topic.name, "partitions": Rows(len(topic.partitions), rows)}

        return {"topics": Rows(len(body.topics), map(topic_row, body.topics))}

    async def offset_for_leader_epoch(self, context: Work, body: requests.OffsetForLeaderEpochRequest) -> Response:
        def row(topic: requests.OffsetForLeaderTopic, asked: requests.OffsetForLeaderPartition) -> Response:
            code, epoch, end_offset = self._replicas.end_offset_for_epoch(
                (topic.topic, asked.partition),
                asked.leader_epoch,
                replica_id=body.replica_id,
                leader_epoch=asked.current_leader_epoch,
            )
            found = {"partition": asked.partition, "error_code": code}
            return {**found, "leader_epoch": epoch, "end_offset": end_offset}

        def topic_row(topic: requests.OffsetForLeaderTopic) -> Response:
            rows = (row(topic, asked) for asked in topic.partitions)
            return {"topic": topic.topic, "partitions": Rows(len(topic.partitions), rows)}

        return {"topics": Rows(len(body.topics), map(topic_row, body.topics))}

    async def delete_records(self, context: Work, body: requests.DeleteRecordsRequest) -> Response:
        """Move the log starts up on all replicas in sync. The partitions wait for their followers together."""
        context.park()
        timeout_ms = int(body.timeout.total_seconds() * 1000)
        asked: dict[tuple[str, int], int] = {}
        async for chunk in in_steps((topic.name, row) for topic in body.topics for row in topic.partitions):
            asked.update(((name, each.partition_index), each.offset) for name, each in chunk)

        async def delete(tp: tuple[str, int]) -> DeletedRecords:
            if tp[0] in INTERNAL_TOPICS:  # only brokers delete the state of groups
                return DeletedRecords(ErrorCode.INVALID_TOPIC_EXCEPTION)
            return await self._replicas.delete_records(tp, asked[tp], timeout_ms=max(0, timeout_ms))

        done = await all_of(delete, asked)
        rows: dict[str, list[Response]] = {topic.name: [] for topic in body.topics}
        async for some in in_steps(zip(asked, done, strict=True)):
            for (name, partition), (code, low_watermark) in some:
                row = {"partition_index": partition, "error_code": code, "low_watermark": low_watermark}
                rows[name].append(row)
        return {"topics": [{"name": name, "partitions": found} for name, found in rows.items()]}


def _asked(topics: Iterable[requests.ListOffsetsTopic]) -> Iterable[tuple[str, requests.ListOffsetsPartition]]:
    return ((topic.name, asked) for topic in topics for asked in topic.partitions)
