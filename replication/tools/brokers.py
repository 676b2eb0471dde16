"""The brokers of a cluster: what they have on disk, and what they speak."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from logstore.errors import InvalidRequestError
from replication.client.admin import api_versions, log_dirs
from replication.client.kafka_client import KafkaClient

Row = dict[str, Any]


def chosen(client: KafkaClient, brokers: Collection[int] | None) -> list[int]:
    """These brokers, or all. Raises: InvalidRequestError: one of them is not up."""
    live = client.describe().brokers
    if missing := sorted(set(brokers or ()) - live.keys()):
        raise InvalidRequestError(f"brokers {missing} are not up; there are {sorted(live)}")
    return sorted(live if brokers is None else brokers)


def directories(client: KafkaClient, brokers: Iterable[int], topics: Collection[str] | None = None) -> list[Row]:
    """The directories of these brokers, with the replicas (of these topics) in each.

    Raises: KafkaError, OSError: a broker does not answer.
    """
    return [
        {
            "broker": broker,
            "log_dir": found.path,
            "error": found.error,
            "total_bytes": found.total_bytes,
            "usable_bytes": found.usable_bytes,
            "partitions": [
                {**tp._asdict(), "bytes": size, "offset_lag": found.lag_of[tp]}
                for tp, size in sorted(found.bytes_of.items())
                if topics is None or tp.topic in topics
            ],
        }
        for broker in brokers
        for found in client.run(log_dirs, broker)
    ]


def versions(client: KafkaClient, brokers: Iterable[int]) -> list[Row]:
    """The APIs of these brokers, with the version of each that pylog's client uses.

    Raises: KafkaError, OSError: a broker does not answer.
    """
    return [
        {"broker": broker, "api": each.name, "key": each.key, "first": each.first, "last": each.last, "used": each.used}
        for broker in brokers
        for each in client.run(api_versions, broker)
    ]
