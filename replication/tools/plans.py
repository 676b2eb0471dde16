"""Reassignments as plans: Kafka's JSON, read and written, and a plan that spreads topics over brokers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from logstore.errors import InvalidRequestError
from replication.model.cluster import Assignment, TopicPartition
from replication.model.metadata import BrokerAddress
from replication.model.placement import place

Plan = dict[TopicPartition, Assignment]
_PARTITIONS = '{"partitions": [{"topic": "orders", "partition": 0}], "version": 1}'
_PLAN = '{"partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2]}], "version": 1}'
_TOPICS = '{"topics": [{"topic": "orders"}], "version": 1}'


def topics_of(text: str) -> list[str]:
    """The topics of a topics-to-move file. Raises: InvalidRequestError."""
    names: dict[str, None] = {}
    for row in _rows(text, "topics", _TOPICS):
        if not isinstance(row.get("topic"), str):
            raise InvalidRequestError(f"the file is not of the form {_TOPICS}")
        names[row["topic"]] = None
    return list(names)


def partitions_of(text: str) -> list[TopicPartition]:
    """The partitions of a file, each once. Raises: InvalidRequestError."""
    found: dict[TopicPartition, None] = {}
    for row in _rows(text, "partitions", _PARTITIONS):
        tp = _partition(row, _PARTITIONS)
        if tp in found:
            raise InvalidRequestError(f"the file names {tp} twice")
        found[tp] = None
    return list(found)


def plan_of(text: str) -> Plan:
    """The wanted replicas of a reassignment file. Raises: InvalidRequestError."""
    found: Plan = {}
    for row in _rows(text, "partitions", _PLAN):
        tp, replicas = _partition(row, _PLAN), row.get("replicas")
        if not isinstance(replicas, list) or not replicas or any(type(broker) is not int for broker in replicas):
            raise InvalidRequestError(f"{tp} names no replicas; the form is {_PLAN}")
        if tp in found:
            raise InvalidRequestError(f"the file names {tp} twice")
        if len(set(replicas)) < len(replicas):
            raise InvalidRequestError(f"{tp} names a broker twice: {replicas}")
        found[tp] = tuple(replicas)
    return found


def plan_text(plan: Mapping[TopicPartition, Assignment]) -> str:
    """A plan as `plan_of` reads it."""
    rows = [{**tp._asdict(), "replicas": list(replicas)} for tp, replicas in sorted(plan.items())]
    return json.dumps({"version": 1, "partitions": rows})


def spread(current: Mapping[TopicPartition, Assignment], brokers: Iterable[BrokerAddress]) -> Plan:
    """The partitions on these brokers, with as many replicas as they have, leaders in turn; with racks if all name one.

    Raises: InvalidRequestError: more replicas than brokers.
    """
    row = list(brokers)
    topics: dict[str, dict[int, Assignment]] = {}
    for tp, replicas in current.items():
        topics.setdefault(tp.topic, {})[tp.partition] = replicas
    wanted: Plan = {}
    for start, (name, partitions) in enumerate(sorted(topics.items())):
        placed = place(
            row,
            partitions=max(partitions) + 1,
            replication_factor=max(map(len, partitions.values())),
            start=start,
            rack_aware=all(broker.rack is not None for broker in row),
        )
        for number, replicas in partitions.items():
            wanted[TopicPartition(name, number)] = placed[number][: len(replicas)]
    return wanted


def _rows(text: str, key: str, form: str) -> list[dict[str, Any]]:
    try:
        rows = json.loads(text)[key]
    except (ValueError, KeyError, TypeError):
        raise InvalidRequestError(f"the file is not of the form {form}") from None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise InvalidRequestError(f"the file names no {key}; its form is {form}")
    return rows


def _partition(row: Mapping[str, Any], form: str) -> TopicPartition:
    topic, number = row.get("topic"), row.get("partition")
    if not isinstance(topic, str) or type(number) is not int:
        raise InvalidRequestError(f"the file is not of the form {form}")
    return TopicPartition(topic, number)
