"""Assignment of partitions to the members of a group, and its encoding on the wire: pure.

An assignor gives every partition of the topics to one member that subscribes to its topic. `range` gives each member
neighbouring partitions of every topic, `roundrobin` deals them out one by one, `cooperative-sticky` leaves each member
its partitions, as far as all get equally many; it assigns a partition that has to move once the owner has given it up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple

from kio.schema.consumer_protocol_assignment.v0.data import ConsumerProtocolAssignment
from kio.schema.consumer_protocol_subscription import v0, v1, v2

from replication.errors import ProtocolError
from replication.model.cluster import TopicPartition, rows_by_topic
from replication.protocol import kio_reader
from replication.protocol.kio_entities import build, encode_entity
from replication.protocol.wire import INT16, MALFORMED, Buffer

# The last one has the partitions that are owned, and since which generation.
_SUBSCRIPTIONS = (v0.ConsumerProtocolSubscription, v1.ConsumerProtocolSubscription, v2.ConsumerProtocolSubscription)
NO_GENERATION = -1


class Subscription(NamedTuple):
    """The topics of a member, and the partitions that it owns since `generation`."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION


class Member(NamedTuple):
    """A member as its leader knows it. `rank` decides between equals: the instance id if there is one, and the id."""

    id: str
    rank: tuple[bool, str]
    subscription: Subscription


Assignment = dict[str, list[TopicPartition]]
Assignor = Callable[[Sequence[Member], Mapping[str, Iterable[int]]], Assignment]


def assign_range(members: Sequence[Member], partitions: Mapping[str, Iterable[int]]) -> Assignment:
    """Neighbouring partitions of each topic; the first members get one more."""
    found: Assignment = {member.id: [] for member in members}
    for topic, takers, numbers in _topics(members, partitions):
        size, more = divmod(len(numbers), len(takers))
        begin = 0
        for i, member in enumerate(takers):
            end = begin + size + (i < more)
            found[member.id] += [TopicPartition(topic, p) for p in numbers[begin:end]]
            begin = end
    return found


def assign_round_robin(members: Sequence[Member], partitions: Mapping[str, Iterable[int]]) -> Assignment:
    """One partition after the other to one member after the other."""
    found: Assignment = {member.id: [] for member in members}
    turns = cycle(sorted(members, key=lambda member: member.rank))
    for topic, takers, numbers in _topics(members, partitions):
        ids = {member.id for member in takers}
        for p in numbers:
            found[next(m.id for m in turns if m.id in ids)].append(TopicPartition(topic, p))
    return found


def assign_sticky(members: Sequence[Member], partitions: Mapping[str, Iterable[int]]) -> Assignment:
    """Balanced with the fewest moves, as the group will be in the end."""
    found: Assignment = {member.id: [] for member in members}
    owners = _owners(members)
    takers_of: dict[str, list[str]] = {}
    free: list[TopicPartition] = []
    for topic, takers, numbers in _topics(members, partitions):
        takers_of[topic] = [member.id for member in takers]
        for tp in (TopicPartition(topic, p) for p in numbers):
            owner = owners.get(tp)
            if owner in takers_of[topic]:
                found[owner].append(tp)
            else:
                free.append(tp)
    for tp in free:
        found[min(takers_of[tp.topic], key=lambda m: len(found[m]))].append(tp)
    while _move_some(found, takers_of):
        pass
    return {member: sorted(tps) for member, tps in found.items()}


def assign_cooperative(members: Sequence[Member], partitions: Mapping[str, Iterable[int]]) -> Assignment:
    """Assign as `assign_sticky` does, without partitions that another member still owns, until it has given them up."""
    owners = _owners(members)
    return {
        member: [tp for tp in tps if owners.get(tp, member) == member]
        for member, tps in assign_sticky(members, partitions).items()
    }


ASSIGNORS: Mapping[str, Assignor] = {
    "cooperative-sticky": assign_cooperative,
    "range": assign_range,
    "roundrobin": assign_round_robin,
}


def _topics(
    members: Sequence[Member], partitions: Mapping[str, Iterable[int]]
) -> Iterable[tuple[str, list[Member], list[int]]]:
    """(topic, its subscribers by rank, its partitions) of every topic that has both."""
    ranked = sorted(members, key=lambda member: member.rank)
    for topic, numbers in sorted(partitions.items()):
        takers = [member for member in ranked if topic in member.subscription.topics]
        if takers and (listed := sorted(numbers)):
            yield topic, takers, listed


def _owners(members: Sequence[Member]) -> dict[TopicPartition, str]:
    """The owner of each partition. If two members claim a partition, the one with the later generation owns it."""
    owners: dict[TopicPartition, tuple[int, str]] = {}
    for member in members:
        claim = member.subscription.generation, member.id
        for tp in member.subscription.owned:
            owners[tp] = max(owners.get(tp, claim), claim)
    return {tp: owner for tp, (_, owner) in owners.items()}


def _move_some(found: Assignment, takers_of: Mapping[str, Sequence[str]]) -> bool:
    """Move partitions to members that have two fewer: of those above the mean down to it, of others one. Were any?"""
    has_moved = False
    mean = -(-sum(map(len, found.values())) // max(1, len(found)))
    for _, mine in sorted(found.items(), key=lambda item: -len(item[1])):
        if len(mine) < min(map(len, found.values())) + 2:
            continue
        for i in reversed(range(len(mine))):
            least = min(takers_of[mine[i].topic], key=lambda m: len(found[m]))
            if len(mine) >= len(found[least]) + 2:
                found[least].append(mine.pop(i))
                has_moved = True
                if len(mine) <= mean:
                    break
    return has_moved


# --------------------------------------------------------------------- bytes


def encode_subscription(subscription: Subscription) -> bytes:
    """The metadata of a member that joins."""
    topics, generation = subscription.topics, subscription.generation
    owned = _by_topic(subscription.owned)
    return _encoded(_SUBSCRIPTIONS[-1], topics=topics, owned_partitions=owned, generation_id=generation)


def decode_subscription(data: Buffer) -> Subscription:
    """Decode a subscription of any version. Raises: ProtocolError."""
    found = _decoded(data, *_SUBSCRIPTIONS)
    owned, generation = getattr(found, "owned_partitions", ()), getattr(found, "generation_id", NO_GENERATION)
    return Subscription(found.topics, tuple(_partitions(owned)), generation)


def encode_assignment(tps: Iterable[TopicPartition]) -> bytes:
    return _encoded(ConsumerProtocolAssignment, assigned_partitions=_by_topic(tps))


def decode_assignment(data: Buffer) -> frozenset[TopicPartition]:
    """Decode an assignment of any version; no bytes are no partitions. Raises: ProtocolError."""
    found = _decoded(data, ConsumerProtocolAssignment).assigned_partitions if len(data) else ()
    return frozenset(_partitions(found))


def _encoded(cls: Any, **values: Any) -> bytes:
    return INT16.pack(cls.__version__) + encode_entity(build(cls, values))


def _decoded(data: Buffer, *classes: Any) -> Any:
    """Decode bytes behind their version, whose class is at its place in `classes`; later versions only add fields."""
    try:
        (version,) = INT16.unpack_from(data)
        return kio_reader.read(classes[max(0, min(version, len(classes) - 1))], data, INT16.size)[0]
    except MALFORMED as error:
        raise ProtocolError(f"no {classes[0].__name__}: {error}") from error


def _by_topic(tps: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    topics = rows_by_topic((tp, tp.partition) for tp in sorted(tps))
    return [{"topic": topic, "partitions": numbers} for topic, numbers in topics.items()]


def _partitions(topics: Iterable[Any]) -> Iterable[TopicPartition]:
    return (TopicPartition(row.topic, partition) for row in topics for partition in row.partitions)
