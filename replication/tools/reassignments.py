"""Reassignments of a running cluster: planned, asked for, looked at, cancelled."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from logstore.errors import InvalidRequestError, UnknownPartitionError
from replication.client.admin import reassign, reassignments
from replication.client.kafka_client import KafkaClient
from replication.model.cluster import Assignment, TopicPartition
from replication.tools.plans import Plan, spread
from replication.tools.topics import selected

Row = dict[str, Any]
Changes = Mapping[TopicPartition, Assignment | None]

DONE, MOVING, FAILED = "complete", "in progress", "failed"


def generated(client: KafkaClient, topics: Iterable[str], brokers: Collection[int]) -> tuple[Plan, Plan]:
    """The present replicas of these topics, and a plan that spreads them over these brokers.

    Raises: UnknownTopicError; InvalidRequestError: a broker is not up, or there are too few.
    """
    live = client.describe().brokers
    if missing := sorted(set(brokers) - live.keys()):
        raise InvalidRequestError(f"brokers {missing} are not up; there are {sorted(live)}")
    current = {
        TopicPartition(name, number): each.replicas
        for name, topic in selected(client, topics).items()
        for number, each in topic.partitions.items()
    }
    return current, spread(current, [live[broker] for broker in sorted(set(brokers))])


def present(client: KafkaClient, partitions: Iterable[TopicPartition]) -> Plan:
    """The replicas that these have now. Raises: UnknownTopicError, UnknownPartitionError."""
    wanted = list(partitions)
    topics = selected(client, dict.fromkeys(tp.topic for tp in wanted))
    for tp in wanted:
        if tp.partition not in topics[tp.topic].partitions:
            raise UnknownPartitionError(tp.topic, tp.partition, len(topics[tp.topic].partitions))
    return {tp: topics[tp.topic].partitions[tp.partition].replicas for tp in wanted}


def request(client: KafkaClient, changes: Changes) -> list[Row]:
    """Ask for these replicas, or (None) for an end; why each partition was refused, or None.

    Raises: KafkaError, UnreachableError.
    """
    done = client.run(lambda cluster: reassign(cluster, changes))
    return [
        {"topic": tp.topic, "partition": tp.partition, "error": error and str(error)}
        for tp, error in sorted(done.items(), key=lambda row: row[0])
    ]


def verified(client: KafkaClient, plan: Plan) -> list[Row]:
    """How far the reassignment of each partition of a plan is: DONE, MOVING, or FAILED: it is elsewhere, and stays.

    Raises: UnknownTopicError, UnknownPartitionError, KafkaError.
    """
    moving = client.run(reassignments)  # first: what ends meanwhile is told as done
    now = present(client, plan)
    return [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "replicas": now[tp],
            "wanted": wanted,
            "state": MOVING if tp in moving else DONE if now[tp] == wanted else FAILED,
        }
        for tp, wanted in sorted(plan.items())
    ]


def listed(client: KafkaClient) -> list[Row]:
    """Every reassignment under way, with the replicas that come and go. Raises: KafkaError, UnreachableError."""
    return [
        {"topic": tp.topic, "partition": tp.partition, **each._asdict()}
        for tp, each in sorted(client.run(reassignments).items())
    ]
