"""The settings of topics: those that decide what may be sent, and a topic's own; those of producers and consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

from logstore.errors import InvalidConfigError, did_you_mean
from replication.client.cluster import Cluster
from replication.client.connection import UnsupportedVersionError
from replication.errors import ErrorCode
from replication.protocol.apis import ApiKey

TOPIC_RESOURCE = 2
_OF_THE_TOPIC = 1  # DescribeConfigs: where a value is from
MAX_MESSAGE_BYTES = 1_048_588  # Kafka's default of max.message.bytes

Settings = TypeVar("Settings")
# Kafka's names where ours are others, or what to do instead.
_HINTS = {
    "batch_size": "here it is batch_bytes",
    "bootstrap_servers": "the client has them: KafkaClient('HOST:PORT')",
    "buffer_memory": "here it is buffer_bytes",
    "client_id": "the client has it: KafkaClient(…, client_id=…)",
    "client_rack": "here it is rack, of consumers",
    "enable_idempotence": "producers are idempotent with acks='all'",
    "partition_assignment_strategy": "here it is assignor",
    "partitioner_class": "here it is partitioner",
}


class TopicSettings(NamedTuple):
    """The largest batch that the topic takes, and whether records need keys."""

    batch_bytes_max: int = MAX_MESSAGE_BYTES
    is_compacted: bool = False


async def topic_settings(cluster: Cluster, topic: str) -> TopicSettings:
    """The settings of a topic; Kafka's defaults where they may not be seen.

    Raises: UnreachableError.
    """
    rows = (await _describe(cluster, [topic], ["max.message.bytes", "cleanup.policy"])).get(topic, ())
    values = {row.name: row.value for row in rows}
    return TopicSettings(
        int(values.get("max.message.bytes") or MAX_MESSAGE_BYTES),
        "compact" in (values.get("cleanup.policy") or "").split(","),
    )


async def topic_overrides(cluster: Cluster, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """What each of these topics has set for itself; one whose settings may not be seen is left out.

    Raises: UnreachableError.
    """
    return {
        topic: {row.name: row.value for row in rows if row.config_source == _OF_THE_TOPIC}
        for topic, rows in (await _describe(cluster, topics, None)).items()
    }


async def _describe(cluster: Cluster, topics: Sequence[str], keys: Sequence[str] | None) -> dict[str, Sequence[Any]]:
    resources = [
        {"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configuration_keys": keys} for topic in topics
    ]
    request = {"resources": resources, "include_synonyms": False, "include_documentation": False}
    try:
        answer = (await cluster.call_any(ApiKey.DESCRIBE_CONFIGS, request)).body
    except UnsupportedVersionError:
        return {}
    return {
        result.resource_name: result.configs for result in answer.results if result.error_code.value == ErrorCode.NONE
    }


def settings_of(kind: type[Settings], given: Mapping[str, Any], what: str) -> Settings:
    """These settings of `what` as a `kind`, which is a dataclass. Raises: InvalidConfigError: an unknown name."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    for name in given.keys() - known:
        ours = name.replace(".", "_")
        hint = f"; {_HINTS[ours]}" if ours in _HINTS else did_you_mean(ours, known)
        raise InvalidConfigError(f"unknown setting {name!r} of {what}{hint}", option=name)
    return kind(**given)
