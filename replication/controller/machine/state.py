"""Controller: what a controller knows and has begun, and its settings. A frozen value; `step` makes the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    TopicInfo,
    TopicPartition,
)


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Settings of the controller, by their names in server.properties."""

    delete_topic_enable: bool = True
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = 300
    leader_imbalance_per_broker_percentage: int = 10


@dataclass(frozen=True, slots=True)
class Pending:
    """A write in flight: what it is for, whom it takes out of the ISR, and whether its leader may lack data."""

    write: StateWrite
    reason: str
    removing: frozenset[BrokerId] = frozenset()
    is_unclean: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A reassignment: what is wanted, and how far this controller is with it.

    `stored` are the replicas that the topic's node names. While those that are not wanted any more are removed
    (`is_leaving`), the replicas of the partition are the target ones only.
    """

    plan: Reassignment
    stored: Assignment
    is_storing: bool = False  # a write of the two nodes is in flight
    is_announced: bool = False  # the leader knows all of `stored` from this controller
    is_leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """One broker as a controller, or as one that may become it (`is_active` is false: it knows nothing).

    Invariant: a partition has at most one write in flight (`pending`); what else is to be done for it is noted
    (`removals`, `preferred`, `shutdowns`, `deletions`, `moves`) and looked at again when the write's outcome is known.
    """

    broker: BrokerId
    epoch: int = 0
    is_active: bool = False
    brokers: Mapping[BrokerId, BrokerInfo] = field(default_factory=dict)
    offline: Mapping[BrokerId, Offline] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    leadership: Mapping[TopicPartition, LeaderAndIsr] = field(default_factory=dict)
    partition_states: Mapping[TopicPartition, PartitionState] = field(default_factory=dict)
    replica_states: Mapping[Replica, ReplicaState] = field(default_factory=dict)
    pending: Mapping[TopicPartition, Pending] = field(default_factory=dict)
    # Brokers that died, left or lost writes, and are still to be taken out of the ISR.
    removals: Mapping[TopicPartition, frozenset[BrokerId]] = field(default_factory=dict)
    preferred: frozenset[TopicPartition] = frozenset()
    # Led by others only since the preferred replica was offline: it leads again once it is in sync.
    to_return: frozenset[TopicPartition] = frozenset()
    # Offline replicas that have not fetched in the leader epoch of now, as is known.
    fenced: frozenset[Replica] = frozenset()
    has_preferred_node: bool = False
    shutting_down: frozenset[BrokerId] = frozenset()
    # Brokers that asked for a controlled shutdown: the request to answer, and the partitions to settle before that.
    shutdowns: Mapping[BrokerId, int] = field(default_factory=dict)
    waiting: Mapping[BrokerId, frozenset[TopicPartition]] = field(default_factory=dict)
    deletions: frozenset[str] = frozenset()
    delayed_deletions: frozenset[str] = frozenset()  # until they can begin: see `deletion`
    moves: Mapping[TopicPartition, Move] = field(default_factory=dict)
    next_rebalance_ms: int | None = None
