"""Leaders, elected where another one, or none, leads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from replication.client.admin import elect_leaders
from replication.client.cluster import Cluster
from replication.client.kafka_client import KafkaClient
from replication.client.metadata import NO_LEADER
from replication.client.topics import topic_replicas
from replication.model.cluster import TopicPartition
from replication.tools.topics import partitions_of, selected

Row = dict[str, Any]


def elect(client: KafkaClient, wanted: Collection[tuple[str, int]] | None, *, is_unclean: bool = False) -> list[Row]:
    """Have the preferred replicas of these partitions, or of all, lead; the former and the present leader of each.

    `is_unclean`: where nobody leads, any live replica does, and records may be lost; others keep their leaders.

    `error` says why a partition is not led so; None if it is. Raises: UnknownTopicError (nothing is changed),
    KafkaError, UnreachableError, UnsupportedVersionError.
    """
    tps = None if wanted is None else [TopicPartition(*each) for each in wanted]
    before = selected(client, None if tps is None else {tp.topic for tp in tps})
    # Asked about all, brokers name those that needed an election.
    there = partitions_of(before)
    answered = client.run(elect_leaders, tps, is_unclean=is_unclean)
    done = {**dict.fromkeys(there if tps is None else ()), **answered}
    former = {tp: found.leader for tp, found in there.items() if tp in done}
    led = [tp for tp, error in done.items() if error is None and tp in former]
    if is_unclean:
        left = [tp for tp in led if former[tp] == NO_LEADER]
        leaders = {**former, **client.run(_leaders, left)}
    else:
        leaders = {**former, **{tp: there[tp].replicas[0] for tp in led}}
    return [
        {
            **tp._asdict(),
            "leader_before": former.get(tp),
            "leader": leaders.get(tp),
            "error": error and str(error),
        }
        for tp, error in sorted(done.items(), key=lambda row: row[0])
    ]


async def _leaders(cluster: Cluster, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """The present leaders; brokers that were not asked for the election may learn of it a moment later."""
    backoff = cluster.backoff()
    while True:
        known = partitions_of(await topic_replicas(cluster)) if tps else {}
        leaders = {tp: known[tp].leader for tp in tps if tp in known}
        if backoff.is_over or NO_LEADER not in leaders.values():
            return leaders
        await backoff.wait()
