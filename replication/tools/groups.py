"""Consumer groups of a cluster: where they are, who is in them, and offsets set to another place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from logstore.errors import InvalidRequestError, PylogError, UnknownPartitionError
from replication.client import group_admin
from replication.client.cluster import UnreachableError
from replication.client.fetching import EARLIEST, LATEST
from replication.client.groups import Committed
from replication.client.kafka_client import KafkaClient
from replication.model.cluster import TopicPartition
from replication.model.times import TimeMs
from replication.tools.offset_resets import Place, Reset, new_offset
from replication.tools.topics import selected

Row = dict[str, Any]
Offsets = Mapping[TopicPartition, int]


def listed(client: KafkaClient, states: Collection[str] = ()) -> list[Row]:
    """All groups, or those in these states, in Kafka's words. Raises: KafkaError: a broker did not tell its groups."""
    wanted = {state.casefold() for state in states}
    return [
        {"group": each.id, "state": each.state, "protocol_type": each.protocol_type, "type": each.type}
        for each in client.run(group_admin.list_groups)
        if not wanted or each.state.casefold() in wanted
    ]


def described(client: KafkaClient, group: group_admin.DescribedGroup) -> list[Row]:
    """The committed offset, the end and the lag of each partition that the group reads or has read.

    The lag counts offsets up to the high watermark. A member without partitions has a row of its own, without a topic.
    Raises: KafkaError: nobody keeps the group.
    """
    if group.type == group_admin.SHARE:
        return _share_rows(client, group)
    owners = {tp: member for member in group.members or () for tp in member.partitions}
    committed = client.committed(group.id)
    ends = _present_ends(client, {*committed, *owners})
    idle = [(None, member) for member in group.members or () if not member.partitions]
    rows = []
    for tp, member in [*((tp, owners.get(tp)) for tp in sorted({*committed, *owners})), *idle]:
        end, offset = (ends.get(tp), committed[tp].offset if tp in committed else None) if tp else (None, None)
        rows.append(
            {
                "group": group.id,
                "topic": tp and tp.topic,
                "partition": None if tp is None else tp.partition,
                "current_offset": offset,
                "log_end_offset": end,
                "lag": None if offset is None or end is None else max(0, end - offset),
                "consumer_id": member and member.id,
                "host": member and member.host,
                "client_id": member and member.client_id,
                "state": group.state,
                "type": group.type,
            }
        )
    return rows


def _share_rows(client: KafkaClient, group: group_admin.DescribedGroup) -> list[Row]:
    """Return `described` of a share group: a partition has as many readers as there are members, and none is named.

    The lag counts the records that are not done.
    """
    known = client.run(group_admin.share_offsets, group.id)
    read = {tp for member in group.members or () for tp in member.partitions}
    ends = _present_ends(client, {*known, *read})
    nowhere = group_admin.ShareOffset(None, None)
    return [
        {
            "group": group.id,
            "topic": tp.topic,
            "partition": tp.partition,
            "current_offset": known.get(tp, nowhere).start,
            "log_end_offset": ends.get(tp),
            "lag": known.get(tp, nowhere).lag,
            "consumer_id": None,
            "host": None,
            "client_id": None,
            "state": group.state,
            "type": group.type,
        }
        for tp in sorted({*known, *read})
    ]


def _present_ends(client: KafkaClient, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The ends of those partitions that exist, and have a leader."""
    topics = client.topics()
    led = [tp for tp in tps if tp.topic in topics and topics[tp.topic].has_leader(tp.partition)]
    return {tp: found.offset for tp, found in client.offsets(dict.fromkeys(led, LATEST)).items()} if led else {}


def state(group: group_admin.DescribedGroup) -> list[Row]:
    """The group as one row; `members` is how many there are, None: this client cannot see them."""
    return [
        {
            "group": group.id,
            "state": group.state,
            "type": group.type,
            "assignment_strategy": group.protocol,
            "members": None if group.members is None else len(group.members),
        }
    ]


def members(group: group_admin.DescribedGroup) -> list[Row]:
    return [
        {
            "group": group.id,
            "consumer_id": member.id,
            "host": member.host,
            "client_id": member.client_id,
            "instance_id": member.instance_id,
            "partitions": len(member.partitions),
            "assignment": tuple(map(str, sorted(member.partitions))),
        }
        for member in group.members or ()
    ]


def of_each(
    client: KafkaClient, names: Iterable[str], rows_of: Callable[[group_admin.DescribedGroup], list[Row]]
) -> tuple[list[group_admin.DescribedGroup], list[Row], list[str]]:
    """These groups, the rows of all, and why others are missing. Raises: UnreachableError."""
    found: list[group_admin.DescribedGroup] = []
    rows: list[Row] = []
    failed: list[str] = []
    for name in names:
        try:
            group = client.run(group_admin.describe_group, name)
            rows += rows_of(group)
            found.append(group)
        except UnreachableError:
            raise
        except PylogError as error:  # one group hides no other
            failed.append(str(error))
    return found, rows, failed


def delete(client: KafkaClient, groups: Iterable[str]) -> None:
    """Delete these groups in turn. Raises: KafkaError: there is no such group, or it has members."""
    for name in groups:
        client.run(group_admin.delete_group, name)


def forget(client: KafkaClient, group: str, topics: Sequence[str]) -> list[TopicPartition]:
    """Delete what the group has committed of these topics; return the partitions.

    Raises: as `delete_offsets`; InvalidRequestError: it has committed nothing of them.
    """
    chosen, is_share = parse_topics(topics), client.run(group_admin.is_share_group, group)
    known = sorted(_positions(client, group, is_share=is_share))
    tps = [tp for tp in known if tp.topic in chosen and _is_chosen(chosen, tp)]
    _check_some(client, group, tps, "of these topics")
    if not is_share:
        client.run(group_admin.delete_offsets, group, tps)
        return tps
    if parts := [name for name, numbers in chosen.items() if numbers is not None]:
        raise InvalidRequestError(f"a share group forgets whole topics: give {parts[0]!r} without partitions")
    client.run(group_admin.delete_share_offsets, group, sorted({tp.topic for tp in tps}))
    return tps


def _positions(client: KafkaClient, group: str, *, is_share: bool) -> dict[TopicPartition, int]:
    """The offsets from which the group goes on, by partition; those that nobody has read yet are left out."""
    if is_share:
        known = client.run(group_admin.share_offsets, group)
        return {tp: each.start for tp, each in known.items() if each.start is not None}
    return {tp: each.offset for tp, each in client.committed(group).items()}


def _check_some(client: KafkaClient, group: str, tps: Collection[TopicPartition], where: str) -> None:
    """Raises: KafkaError: there is no such group; InvalidRequestError: there is, and nothing to do."""
    if not tps:
        client.run(group_admin.describe_group, group)
        raise InvalidRequestError(f"group {group!r} has committed nothing {where}")


def parse_topics(texts: Iterable[str]) -> dict[str, set[int] | None]:
    """Topics and partitions out of `orders`, `orders:0,2`; None: all. Raises: InvalidRequestError."""
    found: dict[str, set[int] | None] = {}
    for text in texts:
        name, colon, numbers = text.partition(":")
        if colon and not all(number.isdecimal() for number in numbers.split(",")):
            raise InvalidRequestError(f"{text!r} is neither a topic nor TOPIC:0,1,2")
        found[name] = set(map(int, numbers.split(","))) if colon else None
    return found


def _is_chosen(chosen: Mapping[str, set[int] | None], tp: TopicPartition) -> bool:
    partitions = chosen[tp.topic]
    return partitions is None or tp.partition in partitions


def planned(
    client: KafkaClient, group: str, reset: Reset, topics: Sequence[str] | None, *, given: Offsets | None = None
) -> list[Row]:
    """Where a reset would put the group: the present and the new offset of each partition of these topics.

    `topics` None: all that the group has read; `given` are partitions with offsets of their own. New offsets are those
    that the log has: one outside becomes the nearest.

    A group that does not exist gets offsets of the topics that are named.

    Raises: UnknownTopicError, UnknownPartitionError; InvalidRequestError: there is nothing to set; KafkaError: no topic
    is named, and there is no such group, or nobody keeps it.
    """
    committed = _positions(client, group, is_share=client.run(group_admin.is_share_group, group))
    tps = sorted(given) if given is not None else _scope(client, committed, topics)
    _check_some(client, group, tps, "yet, and no topic is named")
    extents = [client.offsets(dict.fromkeys(tps, edge)) for edge in (EARLIEST, LATEST)]
    at_time = client.offsets(dict.fromkeys(tps, TimeMs(reset.value))) if reset.place is Place.TIME else {}
    rows = []
    for tp in tps:
        start, end = (found[tp].offset for found in extents)
        known = committed.get(tp)
        wanted = Reset(Place.OFFSET, given[tp]) if given is not None else reset
        new = new_offset(wanted, known, start, end, at_time[tp].offset if tp in at_time else None)
        rows.append({"group": group, **tp._asdict(), "current_offset": known, "new_offset": new})
    return rows


def _scope(
    client: KafkaClient, committed: Iterable[TopicPartition], topics: Sequence[str] | None
) -> list[TopicPartition]:
    if topics is None:
        return sorted(committed)
    chosen = parse_topics(topics)
    found = []
    for name, topic in selected(client, chosen).items():
        numbers = chosen[name]
        for number in sorted(topic.partitions if numbers is None else numbers):
            if number not in topic.partitions:
                raise UnknownPartitionError(name, number, len(topic.partitions))
            found.append(TopicPartition(name, number))
    return found


def commit(client: KafkaClient, group: str, plan: Iterable[Row]) -> None:
    """Store the new offsets of a plan. Raises: KafkaError: the group has members."""
    offsets = {TopicPartition(row["topic"], row["partition"]): row["new_offset"] for row in plan}
    if client.run(group_admin.is_share_group, group):
        client.run(group_admin.alter_share_offsets, group, offsets)
    else:
        client.commit(group, {tp: Committed(offset) for tp, offset in offsets.items()})
