"""The events of a controller, in the past tense, and its effects."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from logstore.store.description import TopicDescription
from replication.model.cluster import (
    Assignment,
    BrokerId,
    BrokerInfo,
    ClusterState,
    Election,
    LeaderAndIsr,
    LeaderAndIsrPartitionState,
    Offline,
    Reassignment,
    ReassignmentWrite,
    ReassignmentWritten,
    TopicPartition,
    WriteResult,
)
from replication.model.state_changes import StateChange


@dataclass(frozen=True, slots=True)
class Elected:
    """This broker created /controller, and incremented /controller_epoch to this."""

    controller_epoch: int


@dataclass(frozen=True, slots=True)
class ContextLoaded:
    """The content of the tree, read after the watches were set."""

    cluster: ClusterState
    now_ms: int


@dataclass(frozen=True, slots=True)
class Resigned:
    """This broker is no longer the controller: its session ended, or another broker has the node."""


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """All registered brokers, with their epochs.

    `offline` is as in OfflineReplicasChanged and read after the brokers, so that the offline replicas of a new broker
    are known with it. None: nothing is known about them.

    `states` are as in IsrChanged, of the partitions of brokers that registered with lost writes, and read after these
    registered. A leader admits a life to an ISR only while that is registered, so they show each ISR that counts on a
    former one.
    """

    live: tuple[BrokerInfo, ...]
    offline: Mapping[BrokerId, Offline] | None = None
    states: tuple[tuple[TopicPartition, LeaderAndIsr], ...] = ()


@dataclass(frozen=True, slots=True)
class OfflineReplicasChanged:
    """All offline replicas now; brokers that are not named have none."""

    offline: Mapping[BrokerId, Offline]


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """All topics in the tree. The replicas of partitions that are already known are not taken from here."""

    topics: dict[str, TopicDescription]


@dataclass(frozen=True, slots=True)
class StatesWritten:
    """The certain outcomes of a WriteStates: an unknown outcome was looked up in the node."""

    results: tuple[WriteResult, ...]


@dataclass(frozen=True, slots=True)
class Fenced:
    """The controller epoch has changed: nothing was written, and nothing will be in this term."""


@dataclass(frozen=True, slots=True)
class IsrChanged:
    """Leaders have written these states; read after their notification."""

    partitions: tuple[tuple[TopicPartition, LeaderAndIsr], ...]


@dataclass(frozen=True, slots=True)
class ElectionRequested:
    election: Election


@dataclass(frozen=True, slots=True)
class ReassignmentsRequested:
    plans: Mapping[TopicPartition, Reassignment]


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequested:
    """A broker wants to stop. The answer goes to `request`, whatever that is to the driver."""

    broker: BrokerId
    request: int


@dataclass(frozen=True, slots=True)
class DeleteRequested:
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplicasDeleted:
    broker: BrokerId
    deleted: tuple[TopicPartition, ...]
    failed: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicNodesDeleted:
    """The nodes of the topic with this id are deleted. There may be another topic of its name."""

    topic: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class Ticked:
    now_ms: int


Request: TypeAlias = (
    ElectionRequested
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
    """Set all watches, then read the tree. Answer: ContextLoaded."""


@dataclass(frozen=True, slots=True)
class Resign:
    """Stop the term, delete /controller if it is ours, and watch it again."""


class Selector(enum.StrEnum):
    """The ways to elect a leader, by the names that Kafka's controller logs; unclean ones have a name of their own."""

    OFFLINE = "OfflinePartitionLeaderSelector"
    UNCLEAN = "UncleanOfflinePartitionLeaderSelector"
    REASSIGNED = "ReassignedPartitionLeaderSelector"
    PREFERRED = "PreferredReplicaPartitionLeaderSelector"
    SHUTDOWN = "ControlledShutdownLeaderSelector"


@dataclass(frozen=True, slots=True)
class Selected:
    """How a leader was chosen, and from what: the assigned replicas, those on live brokers, the ISR before."""

    selector: Selector
    assigned: Assignment
    live: Assignment
    isr: Assignment


@dataclass(frozen=True, slots=True)
class StateWrite:
    """Write the state if the node still has `state.version` (NO_NODE: does not exist). `selected`: how its leader was.

    None: the write elects nobody.
    """

    tp: TopicPartition
    state: LeaderAndIsr
    selected: Selected | None = None


@dataclass(frozen=True, slots=True)
class WriteStates:
    """Independent conditional writes, each in one step with a check of the controller epoch.

    Answer: one StatesWritten with all outcomes, or Fenced.
    """

    controller_epoch: int
    writes: tuple[StateWrite, ...]


@dataclass(frozen=True, slots=True)
class MakeTopicId:
    """Create /pylog/topic_ids/[topic], or read it. Answer: TopicsChanged."""

    topic: str


@dataclass(frozen=True, slots=True)
class SendLeaderAndIsr:
    """Repeat it until this life of the broker has obeyed or is gone; in order with all requests to that broker.

    No answer and STALE_BROKER_EPOCH are reasons to repeat it; STALE_CONTROLLER_EPOCH ends the term.
    """

    broker: BrokerId
    broker_epoch: int
    controller_epoch: int
    partitions: tuple[LeaderAndIsrPartitionState, ...]


class Stop(NamedTuple):
    """A replica to stop. A broker that knows a later leader epoch ignores it: the replica was assigned again.

    NO_EPOCH: in any leader epoch; EPOCH_DURING_DELETE: its topic is being deleted.
    """

    tp: TopicPartition
    topic_id: str
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class SendStopReplica:
    """A StopReplica, repeated as a SendLeaderAndIsr is. Answer to a `delete`: ReplicasDeleted."""

    broker: BrokerId
    broker_epoch: int
    controller_epoch: int
    partitions: tuple[Stop, ...]
    delete: bool


@dataclass(frozen=True, slots=True)
class SendUpdateMetadata:
    """An UpdateMetadata, repeated as a SendLeaderAndIsr is. `brokers` are all live ones."""

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
class DeleteElection:
    """Delete /admin/preferred_replica_election: all that it named is done, or cannot be done."""


@dataclass(frozen=True, slots=True)
class WriteReassignment:
    """Do this write in a step that also checks the controller epoch.

    Answer: Fenced, or ReassignmentWritten followed by ReassignmentsRequested, read after it.
    """

    controller_epoch: int
    write: ReassignmentWrite


@dataclass(frozen=True, slots=True)
class DeleteTopicNodes:
    """Delete the nodes of the topic with this id: its states, then at once the rest. Answer: TopicNodesDeleted."""

    topic: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class Unmark:
    """Delete the mark in /admin/delete_topics of a topic that does not exist."""

    topic: str


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
    | DeleteElection
    | WriteReassignment
    | DeleteTopicNodes
    | Unmark
)
