"""The content of the coordination store, as people ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from replication.client.cluster import brokers_known_at
from replication.coordination import cluster, open_tree
from replication.coordination.tree import Tree
from replication.model.cluster import UNCLEAN, BrokerId, ClusterState, LeaderAndIsr

_T = TypeVar("_T")


class DescribedTopic(NamedTuple):
    """One topic of a cluster. `partitions`: the replicas of each, the preferred one first; `id` None: not set yet."""

    partitions: Mapping[int, tuple[BrokerId, ...]]
    id: str | None
    unclean_leader_election: bool  # by a setting of its own


@dataclass(frozen=True, slots=True)
class ClusterDescription(ClusterState):
    """The content of the coordination store, its topics by the fields that people use."""

    topics: Mapping[str, DescribedTopic] = field(default_factory=dict)  # type: ignore[assignment]

    def states_on(self, broker: BrokerId) -> Iterator[LeaderAndIsr]:
        """The states of the partitions that have a replica there."""
        for tp, state in self.leadership.items():
            topic = self.topics.get(tp.topic)
            if topic is not None and broker in topic.partitions.get(tp.partition, ()):
                yield state


def describe(coordination: str) -> ClusterDescription:
    found = in_thread(read(coordination, cluster.read_cluster))
    topics = {
        name: DescribedTopic(each.replicas, each.topic_id or None, each.overrides.get(UNCLEAN, "").lower() == "true")
        for name, each in found.topics.items()
    }
    known = {each.name: getattr(found, each.name) for each in fields(found)}
    return ClusterDescription(**known | {"topics": topics})


async def missing(coordination: str, own: set[BrokerId]) -> list[BrokerId]:
    """Return the brokers with partitions that are neither `own` nor up."""
    found = await read(coordination, cluster.read_cluster)
    assigned = {
        broker for topic in found.topics.values() for replicas in topic.replicas.values() for broker in replicas
    }
    absent = assigned - own
    elsewhere = [found.brokers[broker] for broker in absent & found.brokers.keys()]
    # A killed broker stays registered for a while: ask each.
    up = {each.id for each in elsewhere if each.id in await brokers_known_at(each.host, each.port)}
    return sorted(absent - up)


async def read(coordination: str, what: Callable[[Tree], Awaitable[_T]]) -> _T:
    tree = await open_tree(coordination, on_session=lambda event: None, create=False)
    try:
        return await what(tree)
    finally:
        await tree.close()


def in_thread(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine, even where an event loop is already running (a notebook)."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
