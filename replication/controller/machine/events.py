"""What happens to a controller (events, in the past tense) and what it orders (effects)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from replication.model.cluster import (
    Assignment,
    BrokerId,
    BrokerInfo,
    ClusterState,
    LeaderAndIsr,
    Offline,
    Reassignment,
    ReassignmentWrite,
    ReassignmentWritten,
    TopicInfo,
    TopicPartition,
)
from replication.model.state_changes import StateChange

# -------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Elected:
    """This broker made /controller, and counted up /controller_epoch to this."""

    controller_epoch: int


@dataclass(frozen=True, slots=True)
class ContextLoaded:
    """What the tree says, read after the watches were set."""

    cluster: ClusterState
    now_ms: int


@dataclass(frozen=True, slots=True)
class Resigned:
    """This broker is no longer the controller: its session ended, or the node is another's."""


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """All who are registered now, with their incarnations.

    `offline` as in OfflineReplicasChanged, read after them: what a broker began with is known when the broker is. None:
    nothing is said of it.
    """

    live: tuple[BrokerInfo, ...]
    offline: Mapping[BrokerId, Offline] | None = None


@dataclass(frozen=True, slots=True)
class OfflineReplicasChanged:
    """Which replicas brokers cannot serve or write now; those that are not named have none."""

    offline: Mapping[BrokerId, Offline]


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """All topics as the tree has them now. Replicas of a partition that is known already are not taken from here."""

    topics: dict[str, TopicInfo]


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The outcome of one StateWrite: `stored` is what the node says now, None if there is none."""

    tp: TopicPartition
    accepted: bool
    stored: LeaderAndIsr | None


@dataclass(frozen=True, slots=True)
class StatesWritten:
    """The outcomes of a WriteStates, for certain: who does not know one reads the node."""

    results: tuple[WriteResult, ...]


@dataclass(frozen=True, slots=True)
class Fenced:
    """The controller epoch has changed: nothing was written, and nothing ever will be in this term."""


@dataclass(frozen=True, slots=True)
class IsrChanged:
    """Leaders have written these; the nodes were read after their notification."""

    partitions: tuple[tuple[TopicPartition, LeaderAndIsr], ...]


@dataclass(frozen=True, slots=True)
class PreferredElectionRequested:
    """/admin/preferred_replica_election names these."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ReassignmentsRequested:
    """What /admin/reassign_partitions says now, all of it."""

    plans: Mapping[TopicPartition, Reassignment]


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequested:
    """A broker wants to stop. The answer goes to `request`, whatever that is to the driver."""

    broker: BrokerId
    request: int


@dataclass(frozen=True, slots=True)
class DeleteRequested:
    """/admin/delete_topics names these."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplicasDeleted:
    """A broker's answer to StopReplica with `delete`."""

    broker: BrokerId
    deleted: tuple[TopicPartition, ...]
    failed: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicNodesDeleted:
    """The tree has forgotten the topic of this id. There may be another of its name."""

    topic: str
    topic_id: str | None


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""

    now_ms: int


Request: TypeAlias = (
    PreferredElectionRequested
    | ReassignmentsRequested
    | ReassignmentWritten
    | ControlledShutdownRequested
    | DeleteRequested
    | ReplicasDeleted
    | TopicNodesDeleted
)
Event: TypeAlias = (
    Elected
    | ContextLoaded
    | Resigned
    | BrokersChanged
    | OfflineReplicasChanged
    | TopicsChanged
    | StatesWritten
    | Fenced
    | IsrChanged
    | Ticked
    | Request
)

# ------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class LoadContext:
    """Set all watches, then read the tree; answer with ContextLoaded."""


@dataclass(frozen=True, slots=True)
class Resign:
    """Stop acting, give /controller up if it is ours, watch it again."""


class Selector(enum.StrEnum):
    """The ways to choose a leader, by the names that Kafka's controller has for them in its log."""

    OFFLINE = "OfflinePartitionLeaderSelector"
    REASSIGNED = "ReassignedPartitionLeaderSelector"
    PREFERRED = "PreferredReplicaPartitionLeaderSelector"
    SHUTDOWN = "ControlledShutdownLeaderSelector"


@dataclass(frozen=True, slots=True)
class StateWrite:
    """Write this state if the node is of `state.version` (NO_NODE: if there is none). `selector` chose its leader."""

    tp: TopicPartition
    state: LeaderAndIsr
    selector: Selector | None = None


@dataclass(frozen=True, slots=True)
class WriteStates:
    """Conditional writes that do not depend on each other, each in one step with a check of the controller epoch.

    All outcomes come back in one StatesWritten, or Fenced.
    """

    controller_epoch: int
    writes: tuple[StateWrite, ...]


@dataclass(frozen=True, slots=True)
class MakeTopicId:
    """Give the topic an id (create /pylog/topic_ids/[topic], or read it); answer with TopicsChanged."""

    topic: str


@dataclass(frozen=True, slots=True)
class LeaderAndIsrPartitionState:
    """What a broker is told of a partition. `is_new`: the replica may be made if it is not there.

    `offline` are the replicas whose brokers live, and cannot serve or write them.
    """

    tp: TopicPartition
    topic_id: str
    state: LeaderAndIsr
    replicas: Assignment
    is_new: bool = False
    offline: Assignment = ()


@dataclass(frozen=True, slots=True)
class SendLeaderAndIsr:
    """To be repeated until the incarnation has obeyed or is gone; in order with all that goes to this broker.

    No answer, and STALE_BROKER_EPOCH, are reasons to repeat it; STALE_CONTROLLER_EPOCH ends the term.
    """

    broker: BrokerId
    broker_epoch: int
    controller_epoch: int
    partitions: tuple[LeaderAndIsrPartitionState, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """A replica to let go of. Who knows a later leader epoch does not: it has become a replica again.

    NO_EPOCH: in any leader epoch; EPOCH_DURING_DELETE: the topic goes.
    """

    tp: TopicPartition
    topic_id: str
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class SendStopReplica:
    """As SendLeaderAndIsr. The answer to a `delete` comes back as ReplicasDeleted."""

    broker: BrokerId
    broker_epoch: int
    controller_epoch: int
    partitions: tuple[Stop, ...]
    delete: bool


@dataclass(frozen=True, slots=True)
class SendUpdateMetadata:
    """As SendLeaderAndIsr. `brokers` are all that live."""

    broker: BrokerId
    broker_epoch: int
    controller_epoch: int
    brokers: tuple[BrokerInfo, ...]
    partitions: tuple[LeaderAndIsrPartitionState, ...]


@dataclass(frozen=True, slots=True)
class AnswerControlledShutdown:
    """The broker still leads `remaining`; it may stop when there are none."""

    request: int
    remaining: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class DeletePreferredElection:
    """Remove /admin/preferred_replica_election: all that it named is done, or cannot be done."""


@dataclass(frozen=True, slots=True)
class WriteReassignment:
    """Do this write in a step that checks the controller epoch, too.

    Answer: Fenced, or ReassignmentWritten and then, read after it, ReassignmentsRequested.
    """

    controller_epoch: int
    write: ReassignmentWrite


@dataclass(frozen=True, slots=True)
class DeleteTopicNodes:
    """Remove the topic's nodes, its settings and the mark in /admin/delete_topics, the mark last.

    `topic_id` None: whatever topic of this name is there. Answer: TopicNodesDeleted.
    """

    topic: str
    topic_id: str | None


Effect: TypeAlias = (
    StateChange
    | LoadContext
    | Resign
    | WriteStates
    | MakeTopicId
    | SendLeaderAndIsr
    | SendStopReplica
    | SendUpdateMetadata
    | AnswerControlledShutdown
    | DeletePreferredElection
    | WriteReassignment
    | DeleteTopicNodes
)
