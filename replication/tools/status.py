"""The state of a cluster at a glance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from logstore.errors import PylogError
from replication.client import admin
from replication.client.fetching import LATEST
from replication.client.kafka_client import KafkaClient
from replication.client.metadata import NO_LEADER
from replication.model.cluster import TopicPartition
from replication.tools.groups import listed
from replication.tools.topics import partitions_of, selected

Row = dict[str, Any]
PROBLEMS = ("missing_brokers", "offline_partitions", "under_replicated_partitions")


def status(client: KafkaClient, *, groups: int = 5) -> Row:
    """Brokers, partitions that lack something, and the `groups` groups with the largest lag.

    `is_sound`: there is a controller, and none of PROBLEMS. Raises: KafkaError, UnreachableError.
    """
    known, topics = client.describe(), selected(client)
    partitions = partitions_of(topics)
    led = {tp: each for tp, each in partitions.items() if each.leader != NO_LEADER}
    controller = client.run(admin.controller, known)
    found: Row = {
        "cluster_id": known.cluster_id,
        "controller": controller,
        "topics": len(topics),
        "partitions": len(partitions),
        "missing_brokers": sorted({b for each in partitions.values() for b in each.replicas} - known.brokers.keys()),
        "offline_partitions": [str(tp) for tp in partitions if tp not in led],
        "under_replicated_partitions": [str(tp) for tp, each in led.items() if len(each.isr) < len(each.replicas)],
    }
    leaders = Counter(each.leader for each in partitions.values())
    replicas = Counter(broker for each in partitions.values() for broker in each.replicas)
    return {
        **found,
        "is_sound": controller is not None and not any(found[problem] for problem in PROBLEMS),
        "brokers": [
            {
                "broker": id,
                "address": f"{broker.host}:{broker.port}",
                "rack": broker.rack,
                "controller": id == controller,
                "leaders": leaders[id],
                "replicas": replicas[id],
                **_disk(client, id),
            }
            for id, broker in sorted(known.brokers.items())
        ],
        "groups": _lags(client, led)[:groups],
    }


def _disk(client: KafkaClient, broker: int) -> Row:
    try:
        found = client.run(admin.log_dirs, broker)
    except (PylogError, OSError):  # too old for it, or down by now
        return {"log_bytes": None, "usable_bytes": None}
    return {
        "log_bytes": sum(size for each in found for size in each.bytes_of.values()),
        "usable_bytes": sum(each.usable_bytes for each in found),
    }


def _lags(client: KafkaClient, led: Collection[TopicPartition]) -> list[Row]:
    """Every group with the lag of all its partitions that somebody leads, the largest first."""
    groups = listed(client)
    committed = {row["group"]: client.committed(row["group"]) for row in groups}
    asked = {tp for offsets in committed.values() for tp in offsets if tp in led}
    ends = client.offsets(dict.fromkeys(asked, LATEST)) if asked else {}
    rows = [
        {
            "group": row["group"],
            "state": row["state"],
            "lag": sum(max(0, ends[tp].offset - each.offset) for tp, each in offsets.items() if tp in ends),
        }
        for row, offsets in zip(groups, committed.values(), strict=True)
    ]
    return sorted(rows, key=lambda row: (-row["lag"], row["group"]))
