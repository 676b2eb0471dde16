"""Metadata as a client knows it: brokers, topics, and the leader of each partition with its epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from replication.errors import ErrorCode, code_in
from replication.model.cluster import topic_id_of
from replication.model.metadata import BrokerAddress

NO_LEADER = -1
NO_EPOCH = -1


class PartitionLeader(NamedTuple):
    """A partition's leader: NO_LEADER if it has none. `epoch` is NO_EPOCH if the broker is older than Kafka 2.1."""

    broker: int
    epoch: int = NO_EPOCH


class TopicMetadata(NamedTuple):
    """One topic. `id` is "" where the broker is older than Kafka 2.8; `error` is NONE, or why nothing is known."""

    name: str
    id: str
    leaders: Mapping[int, PartitionLeader]
    error: ErrorCode = ErrorCode.NONE
    is_internal: bool = False
    replicas: int = 0  # of the partition that has most

    def has_leader(self, partition: int) -> bool:
        """Whether there is such a partition, and somebody leads it."""
        return partition in self.leaders and self.leaders[partition].broker != NO_LEADER


class ClusterMetadata(NamedTuple):
    """An answer to Metadata."""

    cluster_id: str
    controller: int
    brokers: Mapping[int, BrokerAddress]
    topics: Mapping[str, TopicMetadata]


def metadata_of(answer: Any) -> ClusterMetadata:
    """The answer of any version as values."""
    brokers = {b.node_id: BrokerAddress(b.node_id, b.host, b.port, getattr(b, "rack", None)) for b in answer.brokers}
    topics = {topic.name: _topic(topic) for topic in answer.topics}
    return ClusterMetadata(
        getattr(answer, "cluster_id", None) or "",
        getattr(answer, "controller_id", NO_LEADER),
        brokers,
        topics,
    )


def newer(known: TopicMetadata | None, found: TopicMetadata) -> TopicMetadata:
    """The topic as it is now known: a leader of an older epoch than the known one is not believed.

    A topic of another id was created again: its epochs begin anew.
    """
    if known is None or known.id != found.id:
        return found
    leaders = {partition: _later(known.leaders.get(partition), leader) for partition, leader in found.leaders.items()}
    return found._replace(leaders=leaders)


def _later(known: PartitionLeader | None, found: PartitionLeader) -> PartitionLeader:
    return known if known is not None and known.epoch > found.epoch != NO_EPOCH else found


def _topic(topic: Any) -> TopicMetadata:
    leaders = {
        p.partition_index: PartitionLeader(p.leader_id, getattr(p, "leader_epoch", NO_EPOCH)) for p in topic.partitions
    }
    return TopicMetadata(
        topic.name,
        topic_id_of(getattr(topic, "topic_id", None)),
        dict(sorted(leaders.items())),
        code_in(topic),
        getattr(topic, "is_internal", False),
        max((len(p.replica_nodes) for p in topic.partitions), default=0),
    )


class Extent(NamedTuple):
    """Offsets [start, end) of a partition. No record in them has a later leader epoch; NO_EPOCH: not known."""

    start: int
    end: int
    leader_epoch: int = NO_EPOCH
