"""The topics of a cluster: what an operator asks about them, as rows for people and for programs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from logstore.errors import InvalidRequestError, UnknownPartitionError, UnknownTopicError
from replication.client.kafka_client import KafkaClient
from replication.client.metadata import NO_LEADER
from replication.client.settings import TOPIC_RESOURCE, describe_settings
from replication.client.topics import BROKERS_DEFAULT, PartitionReplicas, TopicReplicas, create_topic, topic_replicas
from replication.model.cluster import Assignment, TopicPartition

Row = dict[str, Any]
MIN_ISR = "min.insync.replicas"
# Filters of partitions, with the topic's min.insync.replicas.
FILTERS: Mapping[str, Callable[[PartitionReplicas, int], bool]] = {
    "under_replicated": lambda found, _: len(found.isr) < len(found.replicas),
    "under_min_isr": lambda found, least: len(found.isr) < least,
    "at_min_isr": lambda found, least: len(found.isr) == least,
    "unavailable": lambda found, _: found.leader == NO_LEADER,
}


def names(client: KafkaClient) -> set[str]:
    """All topics that may be seen."""
    return set(client.topics())


def summaries(client: KafkaClient, topics: Iterable[str] | None = None, *, with_internal: bool = True) -> list[Row]:
    """Number of partitions and replicas, and the settings of its own, of these topics or of all.

    Internal topics are left out unless `with_internal`.

    Raises: UnknownTopicError.
    """
    found = {name: topic for name, topic in selected(client, topics).items() if with_internal or not topic.is_internal}
    overrides = client.overrides(list(found)) if found else {}
    return [
        {
            "topic": name,
            "topic_id": topic.id,
            "partitions": len(topic.partitions),
            "replication_factor": max((len(each.replicas) for each in topic.partitions.values()), default=0),
            "config": overrides.get(name, {}),
        }
        for name, topic in found.items()
    ]


def selected(client: KafkaClient, topics: Iterable[str] | None = None) -> dict[str, TopicReplicas]:
    """These topics, or all, with their replicas. Raises: UnknownTopicError."""
    found = client.run(topic_replicas)
    if topics is None:
        return found
    chosen = {}
    for name in topics:
        if name not in found:
            raise UnknownTopicError(name, found, f"the cluster at {client.where}")
        chosen[name] = found[name]
    return chosen


def partitions_of(topics: Mapping[str, TopicReplicas]) -> dict[TopicPartition, PartitionReplicas]:
    return {TopicPartition(name, p): each for name, topic in topics.items() for p, each in topic.partitions.items()}


def present(client: KafkaClient, wanted: Collection[TopicPartition]) -> dict[TopicPartition, PartitionReplicas]:
    """These partitions as they are now. Raises: UnknownTopicError, UnknownPartitionError."""
    topics = selected(client, {tp.topic for tp in wanted})
    for tp in wanted:
        if tp.partition not in topics[tp.topic].partitions:
            raise UnknownPartitionError(*tp, len(topics[tp.topic].partitions))
    return {tp: topics[tp.topic].partitions[tp.partition] for tp in wanted}


def described(client: KafkaClient, topics: Iterable[str] | None, filters: Sequence[str] = ()) -> list[Row]:
    """Leader, replicas and ISR of every partition of these topics, or of all.

    With `filters` (keys of FILTERS) only partitions for which one of them holds, and topics that have such partitions.

    Raises: UnknownTopicError.
    """
    found = selected(client, topics)
    settings = client.run(describe_settings, TOPIC_RESOURCE, list(found)) if found else {}
    rows = []
    for name, topic in found.items():
        values = settings.get(name, {})
        least = int(values[MIN_ISR].value or 1) if MIN_ISR in values else 1
        partitions = [
            {"partition": number, **each._asdict()}
            for number, each in topic.partitions.items()
            if not filters or any(FILTERS[key](each, least) for key in filters)
        ]
        if partitions or not filters:
            own = {key: each.value for key, each in values.items() if each.source == "DYNAMIC_TOPIC_CONFIG"}
            rows.append({"topic": name, "topic_id": topic.id, "config": own, "partitions": partitions})
    return rows


def assignments_of(text: str) -> list[Assignment]:
    """The replicas of each partition out of `1:2,2:3`. Raises: InvalidRequestError."""
    found = []
    for part in text.split(","):
        brokers = part.strip().split(":")
        if not all(broker.isdecimal() for broker in brokers):
            raise InvalidRequestError(f"{text!r} does not name the brokers of each partition, as in 1:2,2:3")
        found.append(tuple(map(int, brokers)))
    if len({len(replicas) for replicas in found}) > 1:
        raise InvalidRequestError(f"{text!r}: every partition needs as many replicas as the others")
    return found


def create(
    client: KafkaClient,
    name: str,
    partitions: int,
    replication_factor: int | None,
    config: Mapping[str, str],
    assignments: Sequence[Assignment],
) -> None:
    replicas = BROKERS_DEFAULT if replication_factor is None else replication_factor
    client.run(create_topic, name, partitions=partitions, replicas=replicas, settings=config, assignments=assignments)


def alter(
    client: KafkaClient,
    name: str,
    *,
    partitions: int | None = None,
    assignments: Sequence[Assignment] | None = None,
    config: Mapping[str, str],
    delete_config: Sequence[str] = (),
) -> None:
    """Change settings, all of them or none; then add partitions. `assignments` are those of the new ones.

    Raises: KafkaError: no such topic or setting, a value out of range, no more partitions than before.
    """
    if config or delete_config:
        client.alter_settings((TOPIC_RESOURCE, name), config, delete_config)
    if partitions is not None:
        client.add_partitions(name, partitions, assignments)
