"""Topics made, and given partitions, by a client."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from logstore.errors import TopicExistsError, UnknownTopicError
from replication.client.cluster import Cluster
from replication.client.metadata import NO_LEADER, PartitionLeader
from replication.errors import ErrorCode, KafkaError, error_of
from replication.protocol.apis import ApiKey

BROKERS_DEFAULT = -1


async def create_topic(
    cluster: Cluster,
    name: str,
    *,
    partitions: int,
    replicas: int = BROKERS_DEFAULT,
    settings: Mapping[str, str],
) -> None:
    """Make a topic, and return when it can be written to.

    Raises: TopicExistsError, KafkaError (the name, a setting, too few brokers), UnreachableError.
    """
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": (),
        "configs": [{"name": key, "value": value} for key, value in settings.items()],
    }
    await _change(cluster, ApiKey.CREATE_TOPICS, topic)


async def add_partitions(cluster: Cluster, name: str, partitions: int) -> None:
    """Give a topic more partitions, so many in all, and return when each can be written to.

    Raises: KafkaError (no such topic, or no more than before), UnreachableError.
    """
    await _change(cluster, ApiKey.CREATE_PARTITIONS, {"name": name, "count": partitions, "assignments": None})


async def _change(cluster: Cluster, key: ApiKey, topic: Mapping[str, Any]) -> None:
    name = topic["name"]
    request = {"topics": [topic], "timeout": int(cluster.timeout_s * 1000), "validate_only": False}
    answer = _result(await cluster.call_controller(key, request, _code))
    code = ErrorCode(answer.error_code.value)
    if code is ErrorCode.TOPIC_ALREADY_EXISTS:
        raise TopicExistsError(name)
    if code is not ErrorCode.NONE:
        raise error_of(code, f"topic {name!r}: {answer.error_message or ''}")
    backoff, partitions = cluster.backoff(), topic.get("count", 1)
    while True:
        leaders: Mapping[int, PartitionLeader] = {}
        with contextlib.suppress(UnknownTopicError):  # whoever was asked has not heard of it yet
            leaders = (await cluster.topic(name, is_fresh=True)).leaders
        if len(leaders) >= partitions and all(each.broker != NO_LEADER for each in leaders.values()):
            return
        if backoff.is_over:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name!r} is made, and has no leaders yet")
        await backoff.wait()


def _result(answer: Any) -> Any:
    return (answer.topics if hasattr(answer, "topics") else answer.results)[0]


def _code(answer: Any) -> ErrorCode:
    return ErrorCode(_result(answer).error_code.value)
