"""ShareRequests: the requests of a member of a share group to the leaders of its partitions (KIP-932)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from replication.client.cluster import Cluster
from replication.client.deliveries import Due, merged
from replication.client.share_sessions import Asked, SharePartition
from replication.client.share_settings import ShareConsumerSettings
from replication.errors import KafkaError, error_of
from replication.model.cluster import topic_id_of, topic_uuid
from replication.protocol.apis import ApiKey

_RENEWS = 2  # version
_ACQUIRE_MODES = {"batch_optimized": 0, "record_limit": 1}


class ShareRequests:
    """Belongs to one event loop."""

    def __init__(self, cluster: Cluster, settings: ShareConsumerSettings, member_id: str) -> None:
        self._cluster, self._settings, self._member_id = cluster, settings, member_id

    @property
    def is_record_limited(self) -> bool:
        """One broker at a time is asked for records."""
        return self._settings.share_acquire_mode == "record_limit"

    async def ask(
        self, broker: int, topics: Collection[str], asked: Asked, due: Iterable[Due], wait_s: float | None
    ) -> Any:
        """Ask for records, or (`wait_s` None) only acknowledge. Raises: as `Cluster.call_leader`."""
        named: dict[str, dict[int, list[dict[str, Any]]]] = {}
        for partition in asked.added:
            named.setdefault(partition.topic_id, {})[partition.partition] = []
        for (topic_id, number), said in merged(due).items():
            named.setdefault(topic_id, {})[number] = [
                {"first_offset": each.first, "last_offset": each.last, "acknowledge_types": (each.kind.value,)}
                for each in said
            ]
        request = {
            "group_id": self._settings.group_id,
            "member_id": self._member_id,
            "share_session_epoch": asked.epoch,
            "topics": [
                {
                    "topic_id": topic_uuid(topic_id),
                    "partitions": [
                        {"partition_index": number, "acknowledgement_batches": said} for number, said in rows.items()
                    ],
                }
                for topic_id, rows in named.items()
            ],
        }
        bounds: dict[str, Any] = {"waits": True}
        if wait_s is None:
            renews = any(each.renews for each in due)
            bounds["version_min"] = _RENEWS if renews else 0
            request["is_renew_ack"] = renews
            return await self._cluster.call_leader(broker, topics, ApiKey.SHARE_ACKNOWLEDGE, request, **bounds)
        wait_ms = min(self._settings.fetch_max_wait_ms, round(1000 * wait_s))
        bounds["timeout_ms"] = self._cluster.request_timeout_ms + wait_ms
        request |= self._bounds(wait_ms) | {"forgotten_topics_data": _forgotten(asked.forgotten)}
        return await self._cluster.call_leader(broker, topics, ApiKey.SHARE_FETCH, request, **bounds)

    def _bounds(self, wait_ms: int) -> dict[str, Any]:
        settings = self._settings
        return {
            "max_wait": wait_ms,
            "min_bytes": settings.fetch_min_bytes,
            "max_bytes": settings.fetch_max_bytes,
            "max_records": settings.max_poll_records,
            "batch_size": settings.max_poll_records,
            "share_acquire_mode": _ACQUIRE_MODES[settings.share_acquire_mode],
        }

    @staticmethod
    def errors_in(answer: Any) -> Mapping[SharePartition, KafkaError | None]:
        """Why the acknowledgements of each partition were refused; None: they are taken."""
        found = {}
        for topic in answer.responses:
            for row in topic.partitions:
                is_fetched = hasattr(row, "acknowledge_error_code")
                code = row.acknowledge_error_code if is_fetched else row.error_code
                message = row.acknowledge_error_message if is_fetched else row.error_message
                partition = SharePartition(topic_id_of(topic.topic_id), row.partition_index)
                found[partition] = error_of(code, message or "") if code else None
        return found


def _forgotten(partitions: Iterable[SharePartition]) -> list[dict[str, Any]]:
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic_id, []).append(partition.partition)
    return [{"topic_id": topic_uuid(topic_id), "partitions": numbers} for topic_id, numbers in topics.items()]
