"""The settings of a topic that decide what may be sent to it."""

from __future__ import annotations

from typing import NamedTuple

from replication.client.cluster import Cluster
from replication.client.connection import UnsupportedVersionError
from replication.errors import ErrorCode
from replication.protocol.apis import ApiKey

TOPIC_RESOURCE = 2
MAX_MESSAGE_BYTES = 1_048_588  # Kafka's default of max.message.bytes


class TopicSettings(NamedTuple):
    """The largest batch that the topic takes, and whether records need keys."""

    batch_bytes_max: int = MAX_MESSAGE_BYTES
    is_compacted: bool = False


async def topic_settings(cluster: Cluster, topic: str) -> TopicSettings:
    """The settings of a topic; Kafka's defaults where they may not be seen.

    Raises: UnreachableError.
    """
    names = ["max.message.bytes", "cleanup.policy"]
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configuration_keys": names}
    request = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    try:
        answer = (await cluster.call_any(ApiKey.DESCRIBE_CONFIGS, request)).body
    except UnsupportedVersionError:
        return TopicSettings()
    found = next((result for result in answer.results if result.resource_name == topic), None)
    if found is None or found.error_code.value != ErrorCode.NONE:
        return TopicSettings()
    values = {row.name: row.value for row in found.configs}
    return TopicSettings(
        int(values.get("max.message.bytes") or MAX_MESSAGE_BYTES),
        "compact" in (values.get("cleanup.policy") or "").split(","),
    )
