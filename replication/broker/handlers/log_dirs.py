"""DescribeLogDirs: where this broker keeps its replicas, and how large they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition
from replication.network.steps import in_steps
from replication.network.work import Handler, Response, Work
from replication.protocol.apis import ApiKey
from replication.protocol.kio_pieces import Rows
from replication.protocol.requests import DescribableLogDirTopic, DescribeLogDirsRequest
from replication.replica.manager import ReplicaManager
from replication.replica.storage.room import Usage


class LogDirHandlers:
    def __init__(self, log_dir: str, replicas: ReplicaManager) -> None:
        self._log_dir = str(Path(log_dir).absolute())
        self._replicas = replicas

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.DESCRIBE_LOG_DIRS: self.describe_log_dirs}

    async def describe_log_dirs(self, context: Work, body: DescribeLogDirsRequest) -> Response:
        """Return the one directory, with those of the named replicas that are here; all if none are named."""
        context.park()
        wanted: set[TopicPartition] | None = None
        if body.topics is not None:
            wanted = set()
            async for chunk in in_steps(_named(body.topics)):
                wanted.update(chunk)
        usage = await asyncio.to_thread(self._replicas.room.usage)
        found: dict[str, list[int]] = {}
        async for replicas in in_steps(list(self._replicas.partitions())):
            for tp in replicas:
                if wanted is None or tp in wanted:
                    found.setdefault(tp.topic, []).append(tp.partition)
        return {
            "error_code": ErrorCode.NONE,
            "results": [
                {
                    "error_code": ErrorCode.NONE,
                    "log_dir": self._log_dir,
                    "topics": Rows(len(found), (self._topic(*row, usage) for row in sorted(found.items()))),
                    "total_bytes": usage.total_bytes,
                    "usable_bytes": usage.free_bytes,
                }
            ],
        }

    def _topic(self, name: str, partitions: list[int], usage: Usage) -> Response:
        rows = (self._partition(TopicPartition(name, number), usage) for number in sorted(partitions))
        return {"name": name, "partitions": Rows(len(partitions), rows)}

    def _partition(self, tp: TopicPartition, usage: Usage) -> Response:
        known = self._replicas.partitions().get(tp)
        return {
            "partition_index": tp.partition,
            "partition_size": usage.replica_bytes.get(f"{tp.topic}-{tp.partition}", 0),
            "offset_lag": 0 if known is None else max(0, known.high_watermark - known.replica.end),
            "is_future_key": False,
        }


def _named(topics: Iterable[DescribableLogDirTopic]) -> Iterable[TopicPartition]:
    return (TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions)
