"""Metadata: the cluster as controllers described it to this broker, for its clients and for itself.

Invariant: the known state of a partition only becomes newer (leader epoch, then version), in whatever order updates
come; the offline replicas of one state are those of the last update. A topic that was recreated replaces the former
one of its name. Belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from replication.model.cluster import LEADER_DURING_DELETE, Assignment, BrokerId, LeaderAndIsr, TopicPartition
from replication.model.listeners import Listener


class BrokerAddress(NamedTuple):
    """A broker, and where it is for other brokers; `listeners`: where for clients, if not just there."""

    id: BrokerId
    host: str
    port: int
    rack: str | None = None
    listeners: tuple[Listener, ...] = ()

    def at(self, listener: str) -> BrokerAddress | None:
        """Return the broker with its address as clients of this listener are told; None: it has no such listener."""
        if not self.listeners:
            return self
        endpoint = next((each.endpoint for each in self.listeners if each.name == listener), None)
        return None if endpoint is None else self._replace(host=endpoint.host, port=endpoint.port)


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    state: LeaderAndIsr
    replicas: Assignment
    offline_replicas: Assignment = ()


# In one UpdateMetadata request, since brokers bound what they take (`protocol.bounds`). After one that has as
# many, more follow: the first that has fewer completes the metadata.
UPDATE_PARTITIONS_MAX = 10_000


@dataclass(slots=True)
class TopicMetadata:
    name: str
    id: str | None
    partitions: dict[int, PartitionMetadata] = field(default_factory=dict)


class PartitionUpdate(NamedTuple):
    tp: TopicPartition
    topic_id: str | None
    metadata: PartitionMetadata


class Metadata:
    def __init__(self) -> None:
        self.controller_id: BrokerId | None = None
        # A controller has described the whole cluster: until then no topic is missing, only not known.
        self.is_initialized = False
        self._brokers: Mapping[BrokerId, BrokerAddress] = {}
        self._told: dict[str, Mapping[BrokerId, BrokerAddress]] = {}  # by listener
        self._topics: dict[str, TopicMetadata] = {}
        self._names: dict[str, str] = {}  # topic id -> name
        self._leaders: dict[BrokerId, tuple[str, int]] = {}
        self._listeners: list[Callable[[], None]] = []

    def brokers(self) -> Mapping[BrokerId, BrokerAddress]:
        return self._brokers

    def brokers_at(self, listener: str) -> Mapping[BrokerId, BrokerAddress]:
        """Return the live brokers as clients of this listener know them, without those that have no such one."""
        if not listener:  # the broker asks itself
            return self._brokers
        found = self._told.get(listener)
        if found is None:
            named = ((broker, address.at(listener)) for broker, address in self._brokers.items())
            found = self._told[listener] = {broker: address for broker, address in named if address is not None}
        return found

    def topics(self) -> Mapping[str, TopicMetadata]:
        return self._topics

    def topic(self, name: str) -> TopicMetadata | None:
        return self._topics.get(name)

    def name_of(self, topic_id: str) -> str | None:
        return self._names.get(topic_id)

    def leader(self, topic: str, partition: int) -> BrokerId | None:
        """Return the leader of the partition; NO_LEADER if there is none now, None for an unknown partition."""
        known = self._topics.get(topic)
        found = known.partitions.get(partition) if known is not None else None
        return found.state.leader if found is not None else None

    def address(self, broker: BrokerId) -> tuple[str, int] | None:
        if (found := self._brokers.get(broker)) is not None:
            return found.host, found.port
        return self._leaders.get(broker)

    def note_leaders(self, addresses: Iterable[BrokerAddress], topic_ids: Iterable[tuple[str, str]]) -> None:
        """Note addresses of leaders and names of topics (id, name) from a LeaderAndIsr request."""
        self._leaders.update((broker.id, (broker.host, broker.port)) for broker in addresses)
        self._names.update(topic_ids)

    def listen(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def update(
        self,
        controller_id: BrokerId,
        brokers: Iterable[BrokerAddress],
        partitions: Iterable[PartitionUpdate],
        *,
        gone: Iterable[str] = (),
    ) -> tuple[TopicPartition, ...]:
        """Take all live brokers and the changed partitions of an UpdateMetadata request; return the newer ones.

        `gone` are topics that were deleted while no controller reached this broker.
        """
        self.controller_id = controller_id
        self._brokers = {broker.id: broker for broker in brokers}
        self._told = {}
        for name in gone:
            self._forget(self._topics[name])
        taken = tuple(update.tp for update in partitions if self._take(update))
        self._notify()
        return taken

    def note_whole(self) -> None:
        """Note that all of a request is taken in."""
        if not self.is_initialized:
            self.is_initialized = True
            self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()

    def _take(self, update: PartitionUpdate) -> bool:
        tp, metadata = update.tp, update.metadata
        topic = self._topics.get(tp.topic)
        is_another = topic is not None and update.topic_id not in (None, topic.id)
        if metadata.state.leader == LEADER_DURING_DELETE:
            if topic is not None and not is_another:  # else the former topic of this name is gone already
                topic.partitions.pop(tp.partition, None)
                if not topic.partitions:
                    self._forget(topic)
            return True
        if topic is not None and is_another:
            self._forget(topic)
            topic = None
        if topic is None:
            topic = self._topics[tp.topic] = TopicMetadata(tp.topic, update.topic_id)
            if update.topic_id is not None:
                self._names[update.topic_id] = tp.topic
        known = topic.partitions.get(tp.partition)
        if is_newer(known.state if known is not None else None, metadata.state):
            topic.partitions[tp.partition] = metadata
            return True
        if known is not None and known.state == metadata.state:  # offline replicas change without it
            topic.partitions[tp.partition] = metadata
        return False

    def _forget(self, topic: TopicMetadata) -> None:
        del self._topics[topic.name]
        if topic.id is not None:
            self._names.pop(topic.id, None)


def is_newer(known: LeaderAndIsr | None, state: LeaderAndIsr) -> bool:
    """Return whether an update of a partition is newer than the known state. Requests may overtake each other."""
    if known is None:
        return True
    return (state.leader_epoch, state.version) > (known.leader_epoch, known.version)
