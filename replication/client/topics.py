"""Topics made by a client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logstore.errors import TopicExistsError
from replication.client.cluster import Cluster
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
    request = {"topics": [topic], "timeout": int(cluster.timeout_s * 1000), "validate_only": False}
    answer = (await cluster.call_controller(ApiKey.CREATE_TOPICS, request, _code)).topics[0]
    code = ErrorCode(answer.error_code.value)
    if code is ErrorCode.TOPIC_ALREADY_EXISTS:
        raise TopicExistsError(name)
    if code is not ErrorCode.NONE:
        raise error_of(code, f"topic {name!r}: {answer.error_message or ''}")
    backoff = cluster.backoff()
    while not all(
        leader.broker >= 0 for leader in (await cluster.topic(name, is_fresh=True)).leaders.values()
    ):
        if backoff.is_over:
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name!r} is made, and has no leaders yet"
            )
        await backoff.wait()


def _code(answer: Any) -> ErrorCode:
    return ErrorCode(answer.topics[0].error_code.value)
