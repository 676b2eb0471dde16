"""Topics made, given partitions, and deleted by a client; where their replicas are. Belongs to one event loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from logstore.errors import TopicExistsError, UnknownTopicError
from replication.client.cluster import Cluster, metadata_request
from replication.client.metadata import NO_EPOCH, TopicMetadata, metadata_of
from replication.errors import ErrorCode, KafkaError, code_in, raise_for_code
from replication.model.cluster import Assignment, topic_id_of
from replication.protocol.apis import ApiKey

BROKERS_DEFAULT = -1


class PartitionReplicas(NamedTuple):
    """A partition's replicas. `leader` is NO_LEADER if there is none; `offline`: replicas that cannot be reached."""

    leader: int
    leader_epoch: int
    replicas: Assignment
    isr: Assignment
    offline: Assignment


class TopicReplicas(NamedTuple):
    """A topic, by partition. `id` is "" where the broker is older than Kafka 2.8."""

    id: str
    is_internal: bool
    partitions: Mapping[int, PartitionReplicas]


async def topic_replicas(cluster: Cluster) -> dict[str, TopicReplicas]:
    """Every topic that may be seen, by name, as the controller knows it, or whoever answers. Raises: UnreachableError.

    So what one has changed just now is seen.
    """
    answer = await cluster.call_informed(ApiKey.METADATA, metadata_request(None))
    return {
        topic.name: TopicReplicas(
            topic_id_of(getattr(topic, "topic_id", None)),
            getattr(topic, "is_internal", False),
            {row.partition_index: _replicas(row) for row in sorted(topic.partitions, key=lambda p: p.partition_index)},
        )
        for topic in sorted(answer.topics, key=lambda topic: topic.name)
        if topic.error_code.value == ErrorCode.NONE
    }


def _replicas(row: Any) -> PartitionReplicas:
    return PartitionReplicas(
        row.leader_id,
        getattr(row, "leader_epoch", NO_EPOCH),
        tuple(row.replica_nodes),
        tuple(row.isr_nodes),
        tuple(getattr(row, "offline_replicas", ())),
    )


async def create_topic(
    cluster: Cluster,
    name: str,
    *,
    partitions: int,
    replicas: int = BROKERS_DEFAULT,
    settings: Mapping[str, str],
    assignments: Sequence[Assignment] = (),
) -> None:
    """Make a topic, and return when it can be written to. `assignments`: of each partition, instead of their numbers.

    All brokers that answer know it then, but for one that takes longer than seconds to learn of it.

    Raises: TopicExistsError, KafkaError (the name, a setting, too few brokers), UnreachableError.
    """
    topic = {
        "name": name,
        "num_partitions": BROKERS_DEFAULT if assignments else partitions,
        "replication_factor": BROKERS_DEFAULT if assignments else replicas,
        "assignments": [{"partition_index": p, "broker_ids": each} for p, each in enumerate(assignments)],
        "configs": [{"name": key, "value": value} for key, value in settings.items()],
    }
    await _change(cluster, ApiKey.CREATE_TOPICS, topic)


async def add_partitions(
    cluster: Cluster, name: str, partitions: int, assignments: Sequence[Assignment] | None = None
) -> None:
    """Give a topic more partitions, so many in all, and return when each can be written to.

    `assignments` are those of the new ones.

    Raises: KafkaError (no such topic, or no more than before), UnreachableError.
    """
    added = None if assignments is None else [{"broker_ids": each} for each in assignments]
    await _change(cluster, ApiKey.CREATE_PARTITIONS, {"name": name, "count": partitions, "assignments": added})


async def delete_topic(cluster: Cluster, name: str) -> None:
    """Delete a topic, and return when no broker that answers knows it any more, or one takes longer than seconds.

    Raises: KafkaError (no such topic, or delete.topic.enable is false), UnreachableError.
    """
    topic = {"name": name, "topic_id": None}
    request = {"topics": [topic], "topic_names": [name], "timeout": cluster.timeout_ms}
    answer = _result(await cluster.call_controller(ApiKey.DELETE_TOPICS, request, _code))
    raise_for_code(answer, f"topic {name!r}: {getattr(answer, 'error_message', None) or ''}".rstrip(": "))
    await _until_all_know(cluster, name, lambda found: found is None)


async def _change(cluster: Cluster, key: ApiKey, topic: Mapping[str, Any]) -> None:
    name = topic["name"]
    request = {"topics": [topic], "timeout": cluster.timeout_ms, "validate_only": False}
    answer = _result(await cluster.call_controller(key, request, _code))
    if answer.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
        raise TopicExistsError(name)
    raise_for_code(answer, f"topic {name!r}: {answer.error_message or ''}")
    count, backoff = topic.get("count", 1), cluster.backoff()
    while True:
        known: TopicMetadata | None = None
        with contextlib.suppress(UnknownTopicError):  # the broker that answered does not know it yet
            known = await cluster.topic(name, is_fresh=True)
        if _is_ready(known, count):
            break
        if backoff.is_over:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name!r} is made, and has no leaders yet")
        await backoff.wait()
    await _until_all_know(cluster, name, lambda found: _is_ready(found, count))


def _is_ready(topic: TopicMetadata | None, partitions: int) -> bool:
    return topic is not None and len(topic.leaders) >= partitions and all(map(topic.has_leader, topic.leaders))


async def _until_all_know(cluster: Cluster, name: str, holds: Callable[[TopicMetadata | None], bool]) -> None:
    """Wait, for some seconds, until this holds of the topic, or of None, at each broker that answers."""

    def is_known(answer: Any) -> bool:
        topic = metadata_of(answer).topics.get(name)
        return holds(topic if topic is not None and topic.error is ErrorCode.NONE else None)

    await cluster.until_all(ApiKey.METADATA, metadata_request([name]), is_known)


def _result(answer: Any) -> Any:
    return next(getattr(answer, rows) for rows in ("topics", "results", "responses") if hasattr(answer, rows))[0]


def _code(answer: Any) -> ErrorCode:
    return code_in(_result(answer))
