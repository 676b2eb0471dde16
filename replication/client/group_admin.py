"""Groups as an operator sees them: which there are, who is in them, and what is deleted of them.

Belongs to one event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from replication.client.assignors import decode_assignment
from replication.client.cluster import Cluster
from replication.client.coordinators import group_key
from replication.errors import ErrorCode, KafkaError, UnsupportedVersionError, code_in, error_of, raise_for_code
from replication.model.cluster import TopicPartition, by_partition, by_topic, rows_by_topic
from replication.protocol.apis import ApiKey

CONSUMER = "consumer"  # the protocol type whose assignments are partitions
CLASSIC, SHARE = "classic", "share"  # types: members of a classic one assign partitions themselves
_DEAD = "Dead"
_OTHER_TYPES = {ApiKey.CONSUMER_GROUP_DESCRIBE: "consumer", ApiKey.SHARE_GROUP_DESCRIBE: SHARE}


class ListedGroup(NamedTuple):
    """`state` and `type` are Kafka's words, and "" before Kafka 2.6 and 3.8.

    `protocol_type` is "" for a group that has only offsets.
    """

    id: str
    state: str
    protocol_type: str
    type: str


class GroupMember(NamedTuple):
    """A member of a group. `partitions` is empty while the group rebalances."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: frozenset[TopicPartition]


class DescribedGroup(NamedTuple):
    """A group, its state and type in Kafka's words, its assignor, and its members; None: no request here has them."""

    id: str
    state: str
    type: str
    protocol: str
    members: tuple[GroupMember, ...] | None


async def list_groups(cluster: Cluster) -> list[ListedGroup]:
    """The groups of all brokers, by id.

    Raises: KafkaError: not every broker listed its groups until the deadline; UnreachableError.
    """
    backoff = cluster.backoff()
    request: dict[str, list[str]] = {"states_filter": [], "types_filter": []}
    while True:
        brokers = (await cluster.describe()).brokers
        answers = await cluster.call_each(brokers, ApiKey.LIST_GROUPS, request, backoff)
        refused = [answer for answer in answers if isinstance(answer, str)]
        if not refused:
            return sorted(_listed(row) for answer in answers for row in answer.groups)
        await backoff.wait()
        if backoff.is_over:
            raise backoff.failure("LIST_GROUPS", refused[0], ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _listed(row: Any) -> ListedGroup:
    return ListedGroup(
        row.group_id, getattr(row, "group_state", ""), row.protocol_type, getattr(row, "group_type", "").lower()
    )


async def describe_group(cluster: Cluster, group: str) -> DescribedGroup:
    """One group of any type with its members; those of a type that no request here is for are None.

    Raises: KafkaError: there is no such group, or no coordinator until the deadline; UnreachableError.
    """
    request = {"groups": [group], "include_authorized_operations": False}
    row = await _described(cluster, ApiKey.DESCRIBE_GROUPS, group, request)
    if row is not None and row.group_state != _DEAD:
        members = (_member(member, row.protocol_type) for member in row.members)
        return DescribedGroup(group, row.group_state, CLASSIC, row.protocol_data, tuple(sorted(members)))
    for api, type_ in _OTHER_TYPES.items():  # to DescribeGroups, a group of another type is a dead one
        row = await _described(cluster, api, group, {**request, "group_ids": [group]})
        if row is not None:
            newer = tuple(sorted(map(_newer_member, row.members)))
            return DescribedGroup(group, row.group_state, type_, row.assignor_name, newer)
    for each in await list_groups(cluster):
        if each.id == group:
            return DescribedGroup(group, each.state, each.type, "", None)
    raise error_of(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group!r}")


async def _described(cluster: Cluster, api: ApiKey, group: str, request: Any) -> Any | None:
    """The group's row in the answer; None: the broker has no such API, or no group of its type and this id."""
    try:
        answer = await cluster.coordinators.call(group_key(group), api, request, lambda body: code_in(body.groups[0]))
    except UnsupportedVersionError:
        return None
    (row,) = answer.groups
    if row.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    raise_for_code(row, f"group {group!r}")
    return row


def _member(row: Any, protocol_type: str) -> GroupMember:
    partitions = decode_assignment(row.member_assignment) if protocol_type == CONSUMER else frozenset()
    instance_id = getattr(row, "group_instance_id", None)
    return GroupMember(row.member_id, instance_id, row.client_id, row.client_host, partitions)


def _newer_member(row: Any) -> GroupMember:
    """A member of a group whose coordinator assigns partitions (KIP-848, KIP-932)."""
    partitions = frozenset(
        TopicPartition(topic.topic_name, number)
        for topic in row.assignment.topic_partitions
        for number in topic.partitions
    )
    return GroupMember(row.member_id, getattr(row, "instance_id", None), row.client_id, row.client_host, partitions)


async def delete_group(cluster: Cluster, group: str) -> None:
    """Delete a group that has no members, with its offsets.

    Raises: KafkaError: there is no such group, it has members, or no coordinator until the deadline.
    """
    request = {"groups_names": [group]}
    answer = await cluster.coordinators.call(
        group_key(group), ApiKey.DELETE_GROUPS, request, lambda body: code_in(body.results[0])
    )
    raise_for_code(answer.results[0], f"group {group!r}")


async def delete_offsets(cluster: Cluster, group: str, partitions: Collection[TopicPartition]) -> None:
    """Forget what the group has committed of these partitions; members may not be subscribed to their topics.

    Raises: KafkaError: one was refused (others may be done), or there is no such group.
    """
    rows = {tp: {"partition_index": tp.partition} for tp in partitions}
    request = {"group_id": group, "topics": by_topic(rows, "partitions")}
    answer = await cluster.coordinators.call(group_key(group), ApiKey.OFFSET_DELETE, request, code_in)
    raise_for_code(answer, f"group {group!r}")
    for tp, row in by_partition(answer.topics):
        raise_for_code(row, f"offset of {tp} in group {group!r}")


async def is_share_group(cluster: Cluster, group: str) -> bool:
    """Return whether there is such a share group. Raises: KafkaError: no coordinator until the deadline."""
    try:
        return (await describe_group(cluster, group)).type == SHARE
    except KafkaError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return False


class ShareOffset(NamedTuple):
    """Where a share group stands in a partition: records below `start` are done; `lag` are those that are not.

    `start` None: nobody has read there yet; `lag` None: it is not known, or the brokers do not tell it.
    """

    start: int | None
    lag: int | None


async def share_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, ShareOffset]:
    """Where a share group stands in all partitions that it has read.

    Raises: KafkaError: there is no such group, a partition's is not known, or no coordinator until the deadline.
    """
    request = {"groups": [{"group_id": group, "topics": None}]}
    (row,) = (await _ask(cluster, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, group, request, _code_of_group)).groups
    raise_for_code(row, row.error_message or f"group {group!r}")
    found = {}
    for topic in row.topics:
        for each in topic.partitions:
            tp = TopicPartition(topic.topic_name, each.partition_index)
            raise_for_code(each, f"offset of {tp} in group {group!r}")
            known = each.start_offset >= 0
            lag = getattr(each, "lag", -1)
            found[tp] = ShareOffset(each.start_offset if known else None, lag if lag >= 0 else None)
    return found


async def alter_share_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Have a share group that has no members go on at these offsets.

    Raises: KafkaError: one was refused (others may be done), there is no such group, or it has members.
    """
    rows = rows_by_topic((tp, {"partition_index": tp.partition, "start_offset": at}) for tp, at in offsets.items())
    topics = [{"topic_name": name, "partitions": found} for name, found in rows.items()]
    request = {"group_id": group, "topics": topics}
    answer = await _ask(cluster, ApiKey.ALTER_SHARE_GROUP_OFFSETS, group, request, code_in)
    raise_for_code(answer, answer.error_message or f"group {group!r}")
    for topic in answer.responses:
        for each in topic.partitions:
            what = f"offset of {topic.topic_name}-{each.partition_index} in group {group!r}"
            raise_for_code(each, f"{what}: {each.error_message}" if each.error_message else what)


async def delete_share_offsets(cluster: Cluster, group: str, topics: Collection[str]) -> None:
    """Have a share group that has no members forget these topics: it would begin anew there.

    Raises: as `alter_share_offsets`.
    """
    request = {"group_id": group, "topics": [{"topic_name": name} for name in topics]}
    answer = await _ask(cluster, ApiKey.DELETE_SHARE_GROUP_OFFSETS, group, request, code_in)
    raise_for_code(answer, answer.error_message or f"group {group!r}")
    for topic in answer.responses:
        raise_for_code(topic, f"offsets of {topic.topic_name!r} in group {group!r}")


async def _ask(cluster: Cluster, api: ApiKey, group: str, request: Any, code_of: Callable[[Any], ErrorCode]) -> Any:
    return await cluster.coordinators.call(group_key(group), api, request, code_of)


def _code_of_group(answer: Any) -> ErrorCode:
    return code_in(answer.groups[0])
