"""The values that brokers, the controller and their machines exchange. All frozen; nothing here decides.

A *replica* of a partition is named by its broker, since a broker holds at most one. The *ISR* keeps its order: a new
member comes last, and a controlled shutdown takes the next leader from its front. A broker's *epoch* identifies one
life of its process, a *leader epoch* one term of a partition's leader, a *controller epoch* one term of the
controller. All of them only grow.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

from logstore.store.description import TopicDescription
from replication.model.features import NO_LEVELS, Levels
from replication.model.listeners import PLAINTEXT, Endpoint, Listener, SecurityProtocol

_Row = TypeVar("_Row")

BrokerId: TypeAlias = int
# The assigned replicas of a partition, the preferred one first.
Assignment: TypeAlias = tuple[BrokerId, ...]

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC})  # only brokers write to them

NO_LEADER = -1  # every eligible replica is down
LEADER_DURING_DELETE = -2  # in metadata, while the topic is being deleted
NO_EPOCH = -1
EPOCH_DURING_DELETE = -2  # in place of a leader epoch, while the topic is being deleted
NAMED_MAX = 20  # partitions in one log line
_IDS_KEPT = 10_000  # of topics, in both forms
NO_NODE = -1  # the version of a state node that does not exist yet


def topic_uuid(topic_id: str | None) -> uuid.UUID | None:
    """Return a topic's id as messages have it; None for none, or an empty one."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(topic_id + "==")) if topic_id else None


def topic_id_of(number: uuid.UUID | None) -> str:
    """Return a topic's id as logs and the tree have it: 22 characters."""
    return _text_of(number.int) if number is not None else ""


@lru_cache(maxsize=_IDS_KEPT)
def _text_of(number: int) -> str:
    return base64.urlsafe_b64encode(number.to_bytes(16, "big")).decode().rstrip("=") if number else ""


def ids_of(brokers: Iterable[BrokerId]) -> str:
    return ",".join(map(str, brokers)) or "none"


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def rows_by_topic(rows: Iterable[tuple[TopicPartition, _Row]]) -> dict[str, list[_Row]]:
    """Return what is said of partitions as lists per topic, both in the given order."""
    found: dict[str, list[_Row]] = {}
    for tp, row in rows:
        found.setdefault(tp.topic, []).append(row)
    return found


def by_topic(rows: Mapping[TopicPartition, Any], field: str) -> list[dict[str, Any]]:
    """The rows of a request, one per topic, with the topic's name and the rows of its partitions in `field`."""
    return [{"name": name, field: found} for name, found in rows_by_topic(rows.items()).items()]


def by_partition(topics: Iterable[Any]) -> Iterator[tuple[TopicPartition, Any]]:
    """The rows of an answer, each with its partition."""
    return ((TopicPartition(topic.name, row.partition_index), row) for topic in topics for row in topic.partitions)


def names_of(tps: Sequence[TopicPartition]) -> str:
    """Return the names of the first partitions, and how many more there are, for a log line."""
    more = f" and {len(tps) - NAMED_MAX} more" if len(tps) > NAMED_MAX else ""
    return ",".join(map(str, tps[:NAMED_MAX])) + more


class Replica(NamedTuple):
    tp: TopicPartition
    broker: BrokerId


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """One life of a broker. `lost_writes`: it started without what its former life had not flushed.

    That happens after a power failure or with an empty disk, and not after a mere crash of the process. The broker
    says so when it registers, and the controller then trusts none of its places in an ISR.
    """

    id: BrokerId
    epoch: int
    host: str = ""
    port: int = 0
    rack: str | None = None
    lost_writes: bool = False
    levels: Levels = NO_LEVELS
    listeners: tuple[Listener, ...] = ()  # the brokers' own first, whose address is host and port; (): one, PLAINTEXT

    @property
    def endpoints(self) -> tuple[Listener, ...]:
        return self.listeners or (Listener(PLAINTEXT, SecurityProtocol.PLAINTEXT, Endpoint(self.host, self.port)),)

    def at(self, listener: str) -> Endpoint:
        """Return the address of this listener; of the brokers' own, if there is none of this name."""
        endpoints = self.endpoints
        return next((each.endpoint for each in endpoints if each.name == listener), endpoints[0].endpoint)


@dataclass(frozen=True, slots=True)
class Offline:
    """The replicas that a live broker cannot serve or write, each with its reason: everything, or these partitions."""

    everything: str | None = None
    partitions: Mapping[TopicPartition, str] = field(default_factory=dict)

    def reason(self, tp: TopicPartition) -> str | None:
        """Return why the broker's replica of this partition is offline; None if it is not."""
        return self.partitions.get(tp, self.everything)


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """The content of a partition's state node, and the node's version.

    The leader is in the ISR, unless it is NO_LEADER; the ISR then names the members that were in sync last. `unknown`
    are the fields of the node that a later release wrote: they stay there.
    """

    leader: BrokerId
    leader_epoch: int
    isr: tuple[BrokerId, ...]
    controller_epoch: int
    version: int = NO_NODE
    unknown: tuple[tuple[str, Any], ...] = field(default=(), hash=False)

    def __str__(self) -> str:
        isr = ",".join(map(str, self.isr))
        return (
            f"(Leader:{self.leader},ISR:{isr},LeaderEpoch:{self.leader_epoch},ControllerEpoch:{self.controller_epoch})"
        )

    def next_term(self, leader: BrokerId, isr: tuple[BrokerId, ...], controller_epoch: int) -> LeaderAndIsr:
        """Return the state that follows this one in a new leader epoch; it keeps the version of this one."""
        return replace(
            self,
            leader=leader,
            isr=isr,
            leader_epoch=self.leader_epoch + 1,
            controller_epoch=controller_epoch,
        )


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The outcome of writing one state. `stored` is the node's content after it, None if there is no node."""

    tp: TopicPartition
    accepted: bool
    stored: LeaderAndIsr | None


@dataclass(frozen=True, slots=True)
class LeaderAndIsrPartitionState:
    """One partition as a controller describes it to a broker. `is_new`: a missing replica may be created.

    `offline` are the replicas that live brokers cannot serve or write.
    """

    tp: TopicPartition
    topic_id: str
    state: LeaderAndIsr
    replicas: Assignment
    is_new: bool = False
    offline: Assignment = ()


UNCLEAN = "unclean.leader.election.enable"  # the setting of a topic


@dataclass(frozen=True, slots=True)
class Reassignment:
    """The wanted replicas of a partition, in this order.

    `original` are the replicas when the reassignment began, None before: making them the target cancels it.
    """

    target: Assignment
    original: Assignment | None = None


@dataclass(frozen=True, slots=True)
class ReassignmentWrite:
    """A change of the two nodes that hold a reassignment: the topic's, and /admin/reassign_partitions.

    It is done in one step if they still say `stored` and `before`. `replicas` None: the topic's node stays. `after`
    None: the entry of the partition is deleted, and the node with its last entry; an entry that is already gone is
    fine.
    """

    tp: TopicPartition
    before: Reassignment
    after: Reassignment | None
    stored: Assignment
    replicas: Assignment | None


@dataclass(frozen=True, slots=True)
class ReassignmentWritten:
    """The certain outcome of a ReassignmentWrite, and the content of both nodes. `replicas` (): no such partition."""

    tp: TopicPartition
    accepted: bool
    plan: Reassignment | None
    replicas: Assignment


@dataclass(frozen=True, slots=True)
class Election:
    """Partitions for which somebody asked for an election: of the preferred replica, or (`is_unclean`) of any."""

    partitions: tuple[TopicPartition, ...] = ()
    is_unclean: bool = False


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The content of the coordination tree: brokers, topics, their leaders, and requests."""

    brokers: Mapping[BrokerId, BrokerInfo] = field(default_factory=dict)
    topics: Mapping[str, TopicDescription] = field(default_factory=dict)
    leadership: Mapping[TopicPartition, LeaderAndIsr] = field(default_factory=dict)
    deletions: tuple[str, ...] = ()
    election: Election = Election()
    reassignments: Mapping[TopicPartition, Reassignment] = field(default_factory=dict)
    offline: Mapping[BrokerId, Offline] = field(default_factory=dict)
