"""Metadata: what a controller has told this broker of the cluster, for its clients and for itself.

Invariant: what is known of a partition only ever becomes newer (leader epoch, then version of its state), whatever
order the news comes in; of the same state, what was heard last of its offline replicas counts. A topic that was created
anew takes the place of the former one of its name. Belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from replication.model.cluster import LEADER_DURING_DELETE, Assignment, BrokerId, LeaderAndIsr, TopicPartition


class BrokerAddress(NamedTuple):
    """Where a live broker is reached."""

    id: BrokerId
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition: who leads it, and who has replicas."""

    state: LeaderAndIsr
    replicas: Assignment
    offline_replicas: Assignment = ()


@dataclass(slots=True)
class TopicMetadata:
    """One topic: its id, and what is known of its partitions."""

    name: str
    id: str | None
    partitions: dict[int, PartitionMetadata] = field(default_factory=dict)


class PartitionUpdate(NamedTuple):
    """News of one partition."""

    tp: TopicPartition
    topic_id: str | None
    metadata: PartitionMetadata


class Metadata:
    """See the module."""

    def __init__(self) -> None:
        self.controller_id: BrokerId | None = None
        self._brokers: Mapping[BrokerId, BrokerAddress] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._names: dict[str, str] = {}  # topic id -> name
        self._leaders: dict[BrokerId, tuple[str, int]] = {}
        self._listeners: list[Callable[[], None]] = []

    def brokers(self) -> Mapping[BrokerId, BrokerAddress]:
        """The live brokers."""
        return self._brokers

    def topics(self) -> Mapping[str, TopicMetadata]:
        """All topics."""
        return self._topics

    def topic(self, name: str) -> TopicMetadata | None:
        """One topic; None if none of this name is known."""
        return self._topics.get(name)

    def name_of(self, topic_id: str) -> str | None:
        """The name of the topic of this id."""
        return self._names.get(topic_id)

    def leader(self, topic: str, partition: int) -> BrokerId | None:
        """Who leads the partition; NO_LEADER if nobody does, None if there is no such partition."""
        known = self._topics.get(topic)
        found = known.partitions.get(partition) if known is not None else None
        return found.state.leader if found is not None else None

    def address(self, broker: BrokerId) -> tuple[str, int] | None:
        """Where a broker is reached, as far as anybody has said."""
        if (found := self._brokers.get(broker)) is not None:
            return found.host, found.port
        return self._leaders.get(broker)

    def note_leaders(self, addresses: Iterable[BrokerAddress], topic_ids: Iterable[tuple[str, str]]) -> None:
        """What a broker is told before it is told of the cluster: where leaders are, and (id, name) of topics."""
        self._leaders.update((broker.id, (broker.host, broker.port)) for broker in addresses)
        self._names.update(topic_ids)

    def listen(self, listener: Callable[[], None]) -> None:
        """Have `listener` called after every change."""
        self._listeners.append(listener)

    def update(
        self,
        controller_id: BrokerId,
        brokers: Iterable[BrokerAddress],
        partitions: Iterable[PartitionUpdate],
        *,
        gone: Iterable[str] = (),
    ) -> tuple[TopicPartition, ...]:
        """Take what a controller says: all brokers, and the partitions that changed. Returns those that were news.

        `gone` are topics that were deleted while nobody told this broker.
        """
        self.controller_id = controller_id
        self._brokers = {broker.id: broker for broker in brokers}
        for name in gone:
            self._forget(self._topics[name])
        taken = tuple(update.tp for update in partitions if self._take(update))
        for listener in self._listeners:
            listener()
        return taken

    def _take(self, update: PartitionUpdate) -> bool:
        tp, metadata = update.tp, update.metadata
        topic = self._topics.get(tp.topic)
        if topic is not None and topic.id != update.topic_id and update.topic_id is not None:
            self._forget(topic)
            topic = None
        if metadata.state.leader == LEADER_DURING_DELETE:
            if topic is not None:
                topic.partitions.pop(tp.partition, None)
                if not topic.partitions:
                    self._forget(topic)
            return True
        if topic is None:
            topic = self._topics[tp.topic] = TopicMetadata(tp.topic, update.topic_id)
            if update.topic_id is not None:
                self._names[update.topic_id] = tp.topic
        known = topic.partitions.get(tp.partition)
        if is_newer(known.state if known is not None else None, metadata.state):
            topic.partitions[tp.partition] = metadata
            return True
        if known is not None and known.state == metadata.state:  # what is offline changes without it
            topic.partitions[tp.partition] = metadata
        return False

    def _forget(self, topic: TopicMetadata) -> None:
        del self._topics[topic.name]
        if topic.id is not None:
            self._names.pop(topic.id, None)


def is_newer(known: LeaderAndIsr | None, state: LeaderAndIsr) -> bool:
    """Is what UpdateMetadata says of a partition newer than what is known? Requests may overtake each other."""
    if known is None:
        return True
    return (state.leader_epoch, state.version) > (known.leader_epoch, known.version)
