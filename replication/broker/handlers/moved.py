"""Moved: what a client learns from a broker that does not lead a partition: who does, and where that broker is."""

from __future__ import annotations

from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition
from replication.model.metadata import Metadata
from replication.protocol.messages import CurrentLeader, NodeEndpoint

MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def current_leader(
    metadata: Metadata, tp: TopicPartition, moved: dict[int, NodeEndpoint], listener: str
) -> CurrentLeader | None:
    """Return who leads the partition, as far as this broker knows; add its address at this listener to `moved`."""
    topic = metadata.topic(tp.topic)
    partition = topic.partitions.get(tp.partition) if topic is not None else None
    if partition is None:
        return None
    leader = partition.state.leader
    if (address := metadata.brokers_at(listener).get(leader)) is not None:
        moved[leader] = NodeEndpoint(leader, address.host, address.port, address.rack)
    return CurrentLeader(leader, partition.state.leader_epoch)
