"""One look at a cluster for `pylog top`: few requests per broker, however many topics there are.

A broker that does not answer in time costs one line; what it leads is left out of the look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from logstore.env import SYSTEM
from logstore.errors import PylogError
from logstore.store.reading import OffsetRange
from logstore.tools.top import Look, Reader, TopicLook
from replication.client import group_admin
from replication.client.admin import log_dirs
from replication.client.cluster import Cluster
from replication.client.fetching import EARLIEST, LATEST, FoundOffset, ask_offsets
from replication.client.groups import committed
from replication.client.metadata import NO_LEADER, ClusterMetadata
from replication.model.cluster import TopicPartition

Found = TypeVar("Found")
ANSWER_S = 3.0  # for one broker, or one group: a look waits for no longer
GROUPS_AT_ONCE = 50


class _Led(NamedTuple):
    """The answers of a broker about the partitions that it leads; there are no sizes before Kafka 1.0."""

    extents: Mapping[TopicPartition, OffsetRange]
    sizes: Mapping[TopicPartition, int]


async def look_at(cluster: Cluster, readers: Sequence[Reader] = (), problems: Sequence[str] = ()) -> Look:
    """Return the topics and groups of a cluster as they are now, with these readers. Raises: UnreachableError."""
    known = await cluster.describe()
    failed = list(problems)
    shares: dict[int, list[TopicPartition]] = {}
    for name, topic in known.topics.items():
        for partition, leader in topic.leaders.items():
            shares.setdefault(leader.broker, []).append(TopicPartition(name, partition))
    if leaderless := shares.pop(NO_LEADER, []):
        failed.append(f"{len(leaderless)} partitions have no leader, {leaderless[0]} first")
    asked = [_within(_led(cluster, b, share), f"broker {b}", failed) for b, share in sorted(shares.items())]
    answers, groups = await asyncio.gather(asyncio.gather(*asked), _groups(cluster, failed))
    found = [each for each in answers if isinstance(each, _Led)]
    extents = {tp: extent for each in found for tp, extent in each.extents.items()}
    sizes = {tp: size for each in found for tp, size in each.sizes.items()}
    topics = _topics(known, extents, sizes)
    return Look(SYSTEM.clock.monotonic_ms(), topics, (*groups, *readers), tuple(failed))


def _topics(
    known: ClusterMetadata, extents: Mapping[TopicPartition, OffsetRange], sizes: Mapping[TopicPartition, int]
) -> dict[str, TopicLook]:
    looks = {}
    for name, topic in sorted(known.topics.items()):
        tps = [TopicPartition(name, p) for p in topic.leaders]
        size_bytes = sum(sizes[tp] for tp in tps if tp in sizes) if any(tp in sizes for tp in tps) else None
        held = {tp.partition: extents[tp] for tp in tps if tp in extents}
        looks[name] = TopicLook(topic.id, held, size_bytes, len(tps))
    return looks


async def _within(act: Awaitable[Found], who: str, failed: list[str]) -> Found | None:
    """Await it for ANSWER_S; a line in `failed` says why it has no result."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await act
    except TimeoutError:
        failed.append(f"{who} does not answer within {ANSWER_S:g} s")
    except (PylogError, OSError) as error:
        failed.append(f"{who}: {error}")
    return None


async def _led(cluster: Cluster, broker: int, share: Sequence[TopicPartition]) -> _Led:
    connection = await cluster.connection(broker)
    starts = await ask_offsets(connection, dict.fromkeys(share, EARLIEST))
    ends = await ask_offsets(connection, dict.fromkeys(share, LATEST))
    extents = {}
    for tp in share:
        start, end = starts.get(tp), ends.get(tp)
        if isinstance(start, FoundOffset) and isinstance(end, FoundOffset):  # else another broker leads it by now
            extents[tp] = OffsetRange(min(start.offset, end.offset), end.offset)
    sizes = {tp: size for each in await log_dirs(cluster, broker) for tp, size in each.bytes_of.items()}
    return _Led(extents, {tp: sizes[tp] for tp in share if tp in sizes})


async def _groups(cluster: Cluster, failed: list[str]) -> list[Reader]:
    listed = await _within(group_admin.list_groups(cluster), "the list of groups", failed)
    turns = asyncio.Semaphore(GROUPS_AT_ONCE)

    async def reader(group: group_admin.ListedGroup) -> Reader | None:
        async with turns:
            offsets = await _within(committed(cluster, group.id), f"group {group.id}", failed)
        by_topic: dict[str, dict[int, int]] = {}
        for tp, each in sorted((offsets or {}).items()):
            by_topic.setdefault(tp.topic, {})[tp.partition] = each.offset
        return Reader("group", group.id, group.state, by_topic) if by_topic else None

    wanted = [group for group in listed or () if group.type != group_admin.SHARE]
    return [each for each in await asyncio.gather(*map(reader, wanted)) if each is not None]
