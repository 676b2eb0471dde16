"""The committed offsets of groups: read and written at the coordinator of the group.

A commit that returned is at all replicas in sync. Belongs to one event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from replication.client.cluster import Cluster
from replication.client.coordinators import group_key
from replication.errors import ErrorCode, error_of, raise_for_code
from replication.model.cluster import TopicPartition, by_partition, by_topic
from replication.protocol.apis import ApiKey

_OF_MEMBERS = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS)
_HAS_MEMBERS = ": it has members, and only they may commit; choose a group without members"


class Committed(NamedTuple):
    """The next offset to read. `leader_epoch` is that of the record before it, or a later one; -1: not known."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class Member(NamedTuple):
    """The member that commits. The default is no member: accepted from any client while the group has no members."""

    generation: int = -1
    id: str = ""
    instance: str | None = None


async def commit(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, Committed], *, member: Member | None = None
) -> None:
    """Store these offsets, whatever was stored before.

    Raises: KafkaError: a partition's offset was refused (others may be stored), or there was no coordinator until
    the deadline; UnreachableError.
    """
    if not offsets:
        return
    who = member or Member()
    request = {
        "group_id": group,
        "generation_id_or_member_epoch": who.generation,
        "member_id": who.id,
        "group_instance_id": who.instance,
        "retention_time": -1,
        "topics": by_topic(
            {
                tp: {
                    "partition_index": tp.partition,
                    "committed_offset": each.offset,
                    "committed_leader_epoch": each.leader_epoch,
                    "committed_metadata": each.metadata,
                }
                for tp, each in offsets.items()
            },
            "partitions",
        ),
    }
    answer = await cluster.coordinators.call(group_key(group), ApiKey.OFFSET_COMMIT, request, _code)
    for tp, row in by_partition(answer.topics):
        hint = _HAS_MEMBERS if member is None and row.error_code in _OF_MEMBERS else ""
        raise_for_code(row, f"commit of {tp} in group {group!r}{hint}")


async def committed(
    cluster: Cluster,
    group: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    member: Member | None = None,
) -> dict[TopicPartition, Committed]:
    """The committed offsets of these partitions, or of all; those that have none are left out.

    Offsets of a transaction that is not decided are waited for. A `member` (of a group whose coordinator assigns
    partitions) learns nothing when it is out of date, so it does not begin where another member is.

    Raises: KafkaError: the group may not be seen, had no coordinator until the deadline, or has no such member;
    UnreachableError.
    """
    names = None if partitions is None else by_topic({tp: tp.partition for tp in partitions}, "partition_indexes")
    who = {} if member is None else {"member_id": member.id, "member_epoch": member.generation}
    request = {
        "group_id": group,
        "topics": names,
        "groups": [{"group_id": group, "topics": names, **who}],  # from version 8 on, `who` from 9 on
        "require_stable": True,
    }
    answer = await cluster.coordinators.call(group_key(group), ApiKey.OFFSET_FETCH, request, _code)
    whole = _group_of(answer)
    if code := getattr(whole, "error_code", ErrorCode.NONE).value:
        raise error_of(code, f"offsets of group {group!r}")
    found = {}
    for tp, row in by_partition(whole.topics):
        if row.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise_for_code(row, f"offset of {tp} in group {group!r}")
        if row.committed_offset >= 0:
            epoch = getattr(row, "committed_leader_epoch", -1)
            found[tp] = Committed(row.committed_offset, epoch, row.metadata or "")
    return found


def _group_of(answer: Any) -> Any:
    return answer.groups[0] if hasattr(answer, "groups") else answer


def _code(answer: Any) -> ErrorCode:
    """The error of the whole answer: brokers give it once, or in every partition."""
    found = _group_of(answer)
    rows = (row for topic in found.topics for row in topic.partitions)
    codes = (each.error_code.value for each in (found, *rows) if hasattr(each, "error_code"))
    return error_of(next(filter(None, codes), ErrorCode.NONE)).code
