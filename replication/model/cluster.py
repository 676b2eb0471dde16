"""Values that brokers, the controller and their machines speak of. All frozen; nothing here decides.

Words: a *replica* of a partition is named by its broker, since a broker holds at most one. The *ISR* keeps its
order: who joins comes last, and a controlled shutdown takes the next leader from its front. A broker's *epoch*
names one life of its process (incarnation); a *leader epoch* one term of a partition's leader; a *controller
epoch* one term of the controller. All of them only grow.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

BrokerId: TypeAlias = int
# The assigned replicas of a partition, the preferred one first.
Assignment: TypeAlias = tuple[BrokerId, ...]

OFFSETS_TOPIC = "__consumer_offsets"  # where groups are kept
# Topics that only brokers write to.
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, "__transaction_state"})

NO_LEADER = -1  # every replica that may lead is down
LEADER_DURING_DELETE = -2  # told to clients while a topic is being deleted
NO_EPOCH = -1
EPOCH_DURING_DELETE = -2  # in place of a leader epoch, while the topic is being deleted
NO_NODE = -1  # the version of a state node that is not there yet


def topic_uuid(topic_id: str) -> uuid.UUID | None:
    """A topic's id as messages have it; None for the empty one."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(topic_id + "==")) if topic_id else None


def topic_id_of(number: uuid.UUID | None) -> str:
    """The same back: 22 characters, as logs and the tree have it."""
    return (
        base64.urlsafe_b64encode(number.bytes).decode().rstrip("=")
        if number is not None and number.int
        else ""
    )


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Replica(NamedTuple):
    """One copy of a partition."""

    tp: TopicPartition
    broker: BrokerId


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """One life of a broker. `lost_writes`: it came up without what its former life had not flushed.

    That is so after a power failure, or with an empty disk; not after a mere crash of the process. The broker
    says so itself when it registers, and the controller then trusts none of its places in an ISR.
    """

    id: BrokerId
    epoch: int
    host: str = ""
    port: int = 0
    rack: str | None = None
    lost_writes: bool = False


@dataclass(frozen=True, slots=True)
class Offline:
    """The replicas that a live broker cannot serve or write, with the reason: all that it has, or these partitions."""

    everything: str | None = None
    partitions: Mapping[TopicPartition, str] = field(default_factory=dict)

    def reason(self, tp: TopicPartition) -> str | None:
        """Why the broker's replica of this partition is offline; None if it is not."""
        return self.partitions.get(tp, self.everything)


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """The content of a partition's state node, and the node's version.

    The leader is in the ISR, unless it is NO_LEADER; the ISR then names who was in sync last.
    """

    leader: BrokerId
    leader_epoch: int
    isr: tuple[BrokerId, ...]
    controller_epoch: int
    version: int = NO_NODE

    def __str__(self) -> str:
        isr = ",".join(map(str, self.isr))
        return (
            f"(Leader:{self.leader},ISR:{isr},LeaderEpoch:{self.leader_epoch},"
            f"ControllerEpoch:{self.controller_epoch})"
        )

    def next_term(self, leader: BrokerId, isr: tuple[BrokerId, ...], controller_epoch: int) -> LeaderAndIsr:
        """The state that follows this one in a new leader epoch; its version is still that of this one."""
        return replace(
            self,
            leader=leader,
            isr=isr,
            leader_epoch=self.leader_epoch + 1,
            controller_epoch=controller_epoch,
        )


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the tree has it. `id` is None until the controller has given it one.

    No partitions: which it has cannot be understood.
    """

    partitions: Mapping[int, Assignment]
    id: str | None = None
    unclean_leader_election: bool = False


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition is to have the replicas `target`, in this order.

    `original` are those that it had when that was begun, None before: it is cancelled by making them the target.
    """

    target: Assignment
    original: Assignment | None = None


@dataclass(frozen=True, slots=True)
class ReassignmentWrite:
    """A change of what the two nodes of a partition say: its topic's, and /admin/reassign_partitions.

    Done in one step if they say `stored` and `before` until then. `replicas` None: the topic's node stays as it is.
    `after` None: the partition goes from the other, which goes with its last one; that somebody has removed it there
    already is fine.
    """

    tp: TopicPartition
    before: Reassignment
    after: Reassignment | None
    stored: Assignment
    replicas: Assignment | None


@dataclass(frozen=True, slots=True)
class ReassignmentWritten:
    """What became of it, for certain, and what both nodes say now. `replicas`: () if there is no such partition."""

    tp: TopicPartition
    accepted: bool
    plan: Reassignment | None
    replicas: Assignment


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What the coordination tree says: who lives, which topics there are, who leads them, what is asked for."""

    brokers: Mapping[BrokerId, BrokerInfo] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    leadership: Mapping[TopicPartition, LeaderAndIsr] = field(default_factory=dict)
    deletions: tuple[str, ...] = ()
    preferred_elections: tuple[TopicPartition, ...] = ()
    reassignments: Mapping[TopicPartition, Reassignment] = field(default_factory=dict)
    offline: Mapping[BrokerId, Offline] = field(default_factory=dict)
