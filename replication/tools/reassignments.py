"""Reassignments of a running cluster: planned, asked for, looked at, cancelled."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from logstore.errors import PylogError
from replication.client.admin import Moving, log_dirs, reassign, reassignments
from replication.client.kafka_client import KafkaClient
from replication.client.settings import BROKER_RESOURCE, TOPIC_RESOURCE, describe_settings
from replication.model.cluster import Assignment, TopicPartition
from replication.tools import topics
from replication.tools.brokers import chosen
from replication.tools.plans import Plan, spread

Row = dict[str, Any]
Changes = Mapping[TopicPartition, Assignment | None]

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADERS, FOLLOWERS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
DONE, MOVING, FAILED = "complete", "in progress", "failed"


def generated(client: KafkaClient, names: Iterable[str], brokers: Collection[int]) -> tuple[Plan, Plan]:
    """The present replicas of these topics, and a plan that spreads them over these brokers.

    Raises: UnknownTopicError; InvalidRequestError: a broker is not up, or there are too few.
    """
    wanted, live = chosen(client, brokers), client.describe().brokers
    current = {tp: each.replicas for tp, each in topics.partitions_of(topics.selected(client, names)).items()}
    return current, spread(current, [live[broker] for broker in wanted])


def present(client: KafkaClient, partitions: Collection[TopicPartition]) -> Plan:
    """The replicas that these have now. Raises: UnknownTopicError, UnknownPartitionError."""
    return {tp: each.replicas for tp, each in topics.present(client, partitions).items()}


def request(client: KafkaClient, changes: Changes) -> list[Row]:
    """Ask for these replicas, or (None) for an end; why each partition was refused, or None.

    Raises: KafkaError, UnreachableError.
    """
    done = client.run(reassign, changes)
    return [{**tp._asdict(), "error": done[tp] and str(done[tp])} for tp in sorted(done)]


def verified(client: KafkaClient, plan: Plan) -> list[Row]:
    """How far the reassignment of each partition of a plan is: DONE, MOVING, or FAILED: it is elsewhere, and stays.

    Raises: UnknownTopicError, UnknownPartitionError, KafkaError.
    """
    moving = client.run(reassignments)  # first: a reassignment that ends meanwhile counts as done
    now = present(client, plan)
    return [
        {
            **tp._asdict(),
            "replicas": now[tp],
            "wanted": wanted,
            "state": MOVING if tp in moving else DONE if now[tp] == wanted else FAILED,
        }
        for tp, wanted in sorted(plan.items())
    ]


def listed(client: KafkaClient) -> list[Row]:
    """Every reassignment under way, with the replicas that come and go. Raises: KafkaError, UnreachableError."""
    return [{**tp._asdict(), **each._asdict()} for tp, each in sorted(client.run(reassignments).items())]


def under_way(client: KafkaClient, plan: Plan) -> dict[TopicPartition, Moving]:
    """The reassignments under way of a plan. Raises: KafkaError, UnreachableError."""
    return {tp: each for tp, each in client.run(reassignments).items() if tp in plan}


def copied(client: KafkaClient, moving: Mapping[TopicPartition, Moving]) -> tuple[int, int]:
    """The bytes that replicas to come have on disk, and those that they will have: as the largest of each partition.

    Brokers that do not answer are left out.
    """
    sizes: dict[TopicPartition, dict[int, int]] = {tp: {} for tp in moving}
    for broker in {broker for each in moving.values() for broker in each.replicas}:
        with contextlib.suppress(OSError, PylogError):
            for found in client.run(log_dirs, broker):
                for tp in moving.keys() & found.bytes_of.keys():
                    sizes[tp][broker] = found.bytes_of[tp]
    done = sum(sizes[tp].get(broker, 0) for tp, each in moving.items() for broker in each.adding)
    return done, sum(max(sizes[tp].values(), default=0) * len(each.adding) for tp, each in moving.items())


class Throttle(NamedTuple):
    """The throttle of a plan: the settings of each topic, and the brokers that copy."""

    topics: Mapping[str, Mapping[str, str]]  # topic -> setting -> the replicas in it
    brokers: tuple[int, ...]


def throttle_of(wanted: Plan, before: Plan) -> Throttle:
    """The throttle of this plan, given the replicas `before` it; replicas that join are throttled as followers.

    Every present replica is throttled as a leader, because it may lead while the others copy.
    """
    topics: dict[str, dict[str, list[str]]] = {}
    for tp, replicas in sorted(wanted.items()):
        lists = topics.setdefault(tp.topic, {LEADERS: [], FOLLOWERS: []})
        lists[LEADERS] += [f"{tp.partition}:{broker}" for broker in before[tp]]
        lists[FOLLOWERS] += [f"{tp.partition}:{broker}" for broker in replicas if broker not in before[tp]]
    brokers = {broker for plan in (wanted, before) for tp in wanted for broker in plan[tp]}
    texts = {topic: {key: ",".join(row) for key, row in lists.items()} for topic, lists in topics.items()}
    return Throttle(texts, tuple(sorted(brokers)))


def throttle(client: KafkaClient, wanted: Plan, bytes_per_s: int) -> Throttle:
    """Hold the copying of this plan to so many bytes per second and broker, of leaders and of followers.

    Replaces what the topics and brokers had in these settings. A plan under way gets another rate.

    Raises: UnknownTopicError, UnknownPartitionError, KafkaError, UnreachableError.
    """
    moving = client.run(reassignments)
    before = {
        tp: tuple(broker for broker in replicas if tp not in moving or broker not in moving[tp].adding)
        for tp, replicas in present(client, wanted).items()
    }
    made = throttle_of(wanted, before)
    for broker in made.brokers:
        client.alter_settings((BROKER_RESOURCE, str(broker)), dict.fromkeys(RATES, str(bytes_per_s)))
    for topic, lists in made.topics.items():
        client.alter_settings((TOPIC_RESOURCE, topic), lists)
    return made


def unthrottle(client: KafkaClient, wanted: Plan) -> tuple[list[str], list[str]]:
    """Take back what `throttle` sets, of these topics and of all brokers; return those that had something.

    Raises: KafkaError, UnreachableError.
    """
    known = client.describe()
    brokers = [str(broker) for broker in sorted(known.brokers)]
    return (
        _remove(client, TOPIC_RESOURCE, sorted({tp.topic for tp in wanted}), (LEADERS, FOLLOWERS)),
        _remove(client, BROKER_RESOURCE, brokers, RATES),
    )


def _remove(client: KafkaClient, kind: int, names: list[str], keys: tuple[str, str]) -> list[str]:
    own = "DYNAMIC_TOPIC_CONFIG" if kind == TOPIC_RESOURCE else "DYNAMIC_BROKER_CONFIG"
    settings = client.run(describe_settings, kind, names)
    # A Kafka shows a broker's throttles only where they are set.
    found = {
        name: [key for key in keys if key in settings[name] and settings[name][key].source == own] for name in names
    }
    for name, removed in found.items():
        if removed:
            client.alter_settings((kind, name), {}, removed)
    return [name for name in names if found[name]]
