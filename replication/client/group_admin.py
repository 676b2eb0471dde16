"""Groups as an operator sees them: which there are, who is in them, and what is deleted of them.

Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, NamedTuple

from replication.client.assignors import decode_assignment
from replication.client.attempts import LOST, reason_of
from replication.client.cluster import Cluster
from replication.client.coordinators import group_key
from replication.client.groups import by_topic
from replication.errors import ErrorCode, KafkaError, UnsupportedVersionError, error_of
from replication.model.cluster import TopicPartition
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
    """A group, its state and type in Kafka's words, its assignor, and its members; None: they cannot be told."""

    id: str
    state: str
    type: str
    protocol: str
    members: tuple[GroupMember, ...] | None


async def list_groups(cluster: Cluster) -> list[ListedGroup]:
    """The groups of all brokers, by id.

    Raises: KafkaError: not every broker told its groups until the deadline; UnreachableError.
    """
    backoff = cluster.backoff()
    while True:
        brokers = (await cluster.describe()).brokers
        asked = [
            cluster.call(broker, ApiKey.LIST_GROUPS, {"states_filter": [], "types_filter": []}) for broker in brokers
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        refused = [error for error in map(_refusal, answers) if error is not None]
        if not refused:
            rows = (row for answer in answers for row in answer.groups)  # type: ignore[union-attr]
            return sorted(map(_listed, rows))
        await backoff.wait()
        if backoff.is_over:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"not all brokers told their groups; {refused[0]}")


def _listed(row: Any) -> ListedGroup:
    return ListedGroup(
        row.group_id, getattr(row, "group_state", ""), row.protocol_type, getattr(row, "group_type", "").lower()
    )


def _refusal(answer: Any) -> str | None:
    if isinstance(answer, (*LOST, KafkaError)):
        return reason_of(answer)
    if isinstance(answer, BaseException):
        raise answer
    code = error_of(answer.error_code.value).code
    return None if code is ErrorCode.NONE else code.name


async def describe_group(cluster: Cluster, group: str) -> DescribedGroup:
    """One group of any type with its members; those of a type that no request here is for are None.

    Raises: KafkaError: there is no such group, or nobody kept it until the deadline; UnreachableError.
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
        answer = await cluster.coordinators.call(
            group_key(group), api, request, lambda body: error_of(body.groups[0].error_code.value).code
        )
    except UnsupportedVersionError:
        return None
    (row,) = answer.groups
    if row.error_code.value == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    if code := row.error_code.value:
        raise error_of(code, f"group {group!r}")
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

    Raises: KafkaError: there is no such group, it has members, or nobody kept it until the deadline.
    """
    request = {"groups_names": [group]}
    answer = await cluster.coordinators.call(
        group_key(group), ApiKey.DELETE_GROUPS, request, lambda body: error_of(body.results[0].error_code.value).code
    )
    if code := answer.results[0].error_code.value:
        raise error_of(code, f"group {group!r}")


async def delete_offsets(cluster: Cluster, group: str, partitions: Collection[TopicPartition]) -> None:
    """Forget what the group has committed of these partitions; members may not be subscribed to their topics.

    Raises: KafkaError: one was refused (others may be done), or there is no such group.
    """
    rows = {tp: {"partition_index": tp.partition} for tp in partitions}
    request = {"group_id": group, "topics": by_topic(rows, "partitions")}
    answer = await cluster.coordinators.call(
        group_key(group), ApiKey.OFFSET_DELETE, request, lambda body: error_of(body.error_code.value).code
    )
    if code := answer.error_code.value:
        raise error_of(code, f"group {group!r}")
    for topic in answer.topics:
        for row in topic.partitions:
            if code := row.error_code.value:
                raise error_of(code, f"offset of {topic.name}-{row.partition_index} in group {group!r}")
