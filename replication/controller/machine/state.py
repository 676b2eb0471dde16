"""Controller: the knowledge of a controller and the work in progress, as a frozen value; and its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from logstore.store.description import TopicDescription
from replication.controller.machine.events import StateWrite
from replication.controller.machine.transitions import PartitionState, ReplicaState
from replication.model.cluster import (
    Assignment,
    BrokerId,
    BrokerInfo,
    LeaderAndIsr,
    Offline,
    Reassignment,
    Replica,
    TopicPartition,
)


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    delete_topic_enable: bool = True
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = 300
    leader_imbalance_per_broker_percentage: int = 10
    unclean_leader_election_enable: bool = False


@dataclass(frozen=True, slots=True)
class Pending:
    """A write in flight: its reason, the brokers that it removes from the ISR, and whether the leader may lack data."""

    write: StateWrite
    reason: str
    removing: frozenset[BrokerId] = frozenset()
    is_unclean: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A reassignment and its progress.

    `stored` are the replicas in the topic's node. While the old replicas are removed (`is_leaving`), the partition's
    replicas are the target ones only.
    """

    plan: Reassignment
    stored: Assignment
    is_storing: bool = False  # a write of the two nodes is in flight
    is_announced: bool = False  # this controller has sent the leader all of `stored`
    is_leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """One broker as a controller, or as a candidate (`is_active` is false: it knows nothing).

    Invariant: a partition has at most one write in flight (`pending`). Other work for it is stored (`removals`,
    `preferred`, `unclean`, `shutdowns`, `deletions`, `moves`) and considered again when the outcome of the write is
    known.
    """

    broker: BrokerId
    epoch: int = 0
    is_active: bool = False
    brokers: Mapping[BrokerId, BrokerInfo] = field(default_factory=dict)
    offline: Mapping[BrokerId, Offline] = field(default_factory=dict)
    topics: Mapping[str, TopicDescription] = field(default_factory=dict)
    leadership: Mapping[TopicPartition, LeaderAndIsr] = field(default_factory=dict)
    partition_states: Mapping[TopicPartition, PartitionState] = field(default_factory=dict)
    replica_states: Mapping[Replica, ReplicaState] = field(default_factory=dict)
    pending: Mapping[TopicPartition, Pending] = field(default_factory=dict)
    # Brokers that died, left or lost writes, and must still leave the ISR.
    removals: Mapping[TopicPartition, frozenset[BrokerId]] = field(default_factory=dict)
    preferred: frozenset[TopicPartition] = frozenset()
    # Partitions without a leader that any replica may lead, once: somebody asked for it.
    unclean: frozenset[TopicPartition] = frozenset()
    # Partitions whose preferred replica lost the lead by being offline: it leads again once it is in sync.
    to_return: frozenset[TopicPartition] = frozenset()
    # Offline replicas that cannot have fetched in the present leader epoch.
    fenced: frozenset[Replica] = frozenset()
    has_election_node: bool = False
    shutting_down: frozenset[BrokerId] = frozenset()
    # Brokers that asked for a controlled shutdown: the request to answer, and the partitions to settle before that.
    shutdowns: Mapping[BrokerId, int] = field(default_factory=dict)
    waiting: Mapping[BrokerId, frozenset[TopicPartition]] = field(default_factory=dict)
    deletions: frozenset[str] = frozenset()
    delayed_deletions: frozenset[str] = frozenset()  # they cannot begin yet: see `deletion`
    moves: Mapping[TopicPartition, Move] = field(default_factory=dict)
    next_rebalance_ms: int | None = None

    def partitions_in_doubt(self, live: Iterable[BrokerInfo]) -> list[TopicPartition]:
        """Return the partitions of which a new life lost writes: an unheard ISR may count on the former life."""
        doubtful = {info.id for info in live if info.lost_writes and self.brokers.get(info.id) != info}
        rows = self.topics.items() if doubtful else ()
        return [
            TopicPartition(name, number)
            for name, topic in rows
            for number, replicas in topic.replicas.items()
            if not doubtful.isdisjoint(replicas)
        ]
