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
from replication.errors import ErrorCode, KafkaError, error_of
from replication.model.cluster import TopicPartition
from replication.protocol.apis import ApiKey

CONSUMER = "consumer"  # the protocol type whose assignments are partitions
_DEAD = "Dead"


class ListedGroup(NamedTuple):
    """`state` is Kafka's word; "" before Kafka 2.6. `protocol_type` is "" for a group that has only offsets."""

    id: str
    state: str
    protocol_type: str


class GroupMember(NamedTuple):
    """Who reads what. `partitions` is empty while the group rebalances."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: frozenset[TopicPartition]


class DescribedGroup(NamedTuple):
    """A group, its state in Kafka's word, its assignor, and its members."""

    id: str
    state: str
    protocol: str
    members: tuple[GroupMember, ...]


async def list_groups(cluster: Cluster) -> list[ListedGroup]:
    """The groups of all brokers, by id.

    Raises: KafkaError: not every broker told its groups until the deadline; UnreachableError.
    """
    backoff = cluster.backoff()
    while True:
        brokers = (await cluster.describe()).brokers
        asked = [cluster.call(broker, ApiKey.LIST_GROUPS, {"states_filter": []}) for broker in brokers]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        refused = [error for error in map(_refusal, answers) if error is not None]
        if not refused:
            rows = (row for answer in answers for row in answer.body.groups)  # type: ignore[union-attr]
            return sorted(ListedGroup(row.group_id, getattr(row, "group_state", ""), row.protocol_type) for row in rows)
        await backoff.wait()
        if backoff.is_over:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"not all brokers told their groups; {refused[0]}")


def _refusal(answer: Any) -> str | None:
    if isinstance(answer, (*LOST, KafkaError)):
        return reason_of(answer)
    if isinstance(answer, BaseException):
        raise answer
    code = error_of(answer.body.error_code.value).code
    return None if code is ErrorCode.NONE else code.name


async def describe_group(cluster: Cluster, group: str) -> DescribedGroup:
    """One group with its members.

    Raises: KafkaError: there is no such group, or nobody kept it until the deadline; UnreachableError.
    """
    request = {"groups": [group], "include_authorized_operations": False}
    answer = await cluster.coordinators.call(
        group_key(group), ApiKey.DESCRIBE_GROUPS, request, lambda body: error_of(body.groups[0].error_code.value).code
    )
    (row,) = answer.body.groups
    if code := row.error_code.value:
        raise error_of(code, f"group {group!r}")
    if row.group_state == _DEAD:
        raise error_of(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group!r}")
    members = (_member(member, row.protocol_type) for member in row.members)
    return DescribedGroup(group, row.group_state, row.protocol_data, tuple(sorted(members)))


def _member(row: Any, protocol_type: str) -> GroupMember:
    partitions = decode_assignment(row.member_assignment) if protocol_type == CONSUMER else frozenset()
    instance_id = getattr(row, "group_instance_id", None)
    return GroupMember(row.member_id, instance_id, row.client_id, row.client_host, partitions)


async def delete_group(cluster: Cluster, group: str) -> None:
    """Delete a group that has no members, with its offsets.

    Raises: KafkaError: there is no such group, it has members, or nobody kept it until the deadline.
    """
    request = {"groups_names": [group]}
    answer = await cluster.coordinators.call(
        group_key(group), ApiKey.DELETE_GROUPS, request, lambda body: error_of(body.results[0].error_code.value).code
    )
    if code := answer.body.results[0].error_code.value:
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
    if code := answer.body.error_code.value:
        raise error_of(code, f"group {group!r}")
    for topic in answer.body.topics:
        for row in topic.partitions:
            if code := row.error_code.value:
                raise error_of(code, f"offset of {topic.name}-{row.partition_index} in group {group!r}")
