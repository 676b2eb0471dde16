"""What brokers and tools do to topics on the tree: create, grow, alter, mark for deletion. A controller does the rest.

Every change is one step. Changes of settings leave a notice behind, as Kafka's tools do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from logstore.errors import InvalidRequestError, TopicExistsError, UnknownTopicError
from replication.coordination import nodes
from replication.coordination.tree import (
    BadVersionError,
    Create,
    Delete,
    Node,
    NodeExistsError,
    NoNodeError,
    SetData,
    Step,
    Tree,
    Watch,
)
from replication.model.cluster import OFFSETS_TOPIC, Assignment, TopicPartition


async def create_topic(
    tree: Tree,
    topic: str,
    topic_id: str,
    partitions: Mapping[int, Assignment],
    config: Mapping[str, str],
    *also: Step,
) -> None:
    """Make a topic, and do what else is said in the same step.

    Raises: TopicExistsError: it is there, or is being deleted; RefusedError of `also`.
    """
    config_path = nodes.topic_config_path(topic)
    left, marked = await tree.read_batch([config_path, f"{nodes.DELETED_TOPICS}/{topic}"])
    if marked is not None:
        raise TopicExistsError(topic)
    data = nodes.encode_config(config)
    steps: list[Step] = [
        Create(config_path, data) if left is None else SetData(config_path, data),
        Create(nodes.topic_path(topic), nodes.encode_topic(partitions)),
        Create(nodes.topic_id_path(topic), topic_id.encode()),
        *also,
    ]
    if topic == OFFSETS_TOPIC:
        note = await tree.get(nodes.GROUP_PARTITIONS)
        steps.append(_noting(note, nodes.GroupPartitions(topic_id, len(partitions))))
    try:
        await tree.multi(steps)
    except (NodeExistsError, BadVersionError) as error:
        if error.path in {step.path for step in also}:
            raise
        raise TopicExistsError(topic) from None


async def grow_topic(tree: Tree, topic: str, added: Mapping[int, Assignment], *also: Step) -> None:
    """Add partitions, and do what else is said in the same step.

    Raises: UnknownTopicError, InvalidRequestError: they are there, or leave a gap; RefusedError of `also`.
    """
    path = nodes.topic_path(topic)
    while True:
        found = await tree.get(path)
        if found is None:
            raise UnknownTopicError(topic, await tree.children(nodes.TOPICS), "the cluster")
        known = nodes.decode_topic(topic, found.data)
        if sorted({*known, *added}) != list(range(len(known) + len(added))):
            raise InvalidRequestError(
                f"topic {topic!r} has {len(known)} partitions: {sorted(added)} do not follow them"
            )
        try:
            await tree.multi([SetData(path, nodes.encode_topic({**known, **added}), found.version), *also])
        except (BadVersionError, NoNodeError) as error:
            if error.path != path:
                raise
            continue  # changed, or deleted meanwhile: the next look says so
        return


async def read_group_partitions(tree: Tree) -> nodes.GroupPartitions | None:
    """By how many partitions groups are spread; None if there is no topic for them, or it has no id yet.

    Of a topic that others made it is noted now, as it is.
    """
    paths = [nodes.topic_path(OFFSETS_TOPIC), nodes.topic_id_path(OFFSETS_TOPIC), nodes.GROUP_PARTITIONS]
    while True:
        topic, topic_id, note = await tree.read_batch(paths)
        if topic is None or topic_id is None:
            return None
        known = nodes.decode_group_partitions(note.data) if note is not None else None
        if known is not None and known.topic_id == topic_id.data.decode():
            return known
        count = len(nodes.decode_topic(OFFSETS_TOPIC, topic.data))
        try:
            await tree.multi([_noting(note, nodes.GroupPartitions(topic_id.data.decode(), count))])
        except (BadVersionError, NodeExistsError, NoNodeError):
            continue  # somebody else was faster


def _noting(note: Node | None, found: nodes.GroupPartitions) -> Step:
    data = nodes.encode_group_partitions(found)
    if note is None:
        return Create(nodes.GROUP_PARTITIONS, data)
    return SetData(nodes.GROUP_PARTITIONS, data, note.version)


async def read_configs(tree: Tree, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """The settings of these topics that are not the cluster's."""
    found = await tree.read_batch([nodes.topic_config_path(topic) for topic in topics])
    return {topic: nodes.settings_of(topic, node) for topic, node in zip(topics, found, strict=True)}


async def change_config(
    tree: Tree, topic: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> None:
    """Give a topic the settings that `change` makes of those that it has, and tell all brokers."""
    path = nodes.topic_config_path(topic)
    notice = Create(nodes.CONFIG_CHANGE_PREFIX, nodes.encode_config_change(topic), sequence=True)
    while True:
        found = await tree.get(path)
        data = nodes.encode_config(change(nodes.settings_of(topic, found)))
        step: Step = Create(path, data) if found is None else SetData(path, data, found.version)
        try:
            await tree.multi([step, notice])
        except (BadVersionError, NodeExistsError, NoNodeError):
            continue  # somebody else was faster
        return


async def mark_deleted(tree: Tree, topic: str) -> None:
    """Ask for the topic to be deleted; nothing happens where delete.topic.enable is false."""
    try:
        await tree.create(f"{nodes.DELETED_TOPICS}/{topic}")
    except NodeExistsError:
        return


async def is_marked_deleted(tree: Tree, topic: str) -> bool:
    """Is there somebody who wants the topic deleted, and it is not yet?"""
    return await tree.get(f"{nodes.DELETED_TOPICS}/{topic}") is not None


async def find_gone(tree: Tree, ids: Mapping[str, str | None]) -> tuple[str, ...]:
    """Which of the topics of these names and ids are not there any more, or are being deleted."""
    names = list(ids)
    known = await tree.read_batch([nodes.topic_path(name) for name in names])
    found = await tree.read_batch([nodes.topic_id_path(name) for name in names])
    marked = await tree.read_batch([f"{nodes.DELETED_TOPICS}/{name}" for name in names])
    return tuple(
        name
        for name, node, topic_id, mark in zip(names, known, found, marked, strict=True)
        if node is None or mark is not None or (topic_id is not None and topic_id.data.decode() != ids[name])
    )


async def request_election(tree: Tree, partitions: Sequence[TopicPartition]) -> None:
    """Ask for the preferred replicas of these to lead. Raises: InvalidRequestError: another election is under way."""
    try:
        await tree.create(nodes.PREFERRED_ELECTION, nodes.encode_partitions(partitions))
    except NodeExistsError:
        raise InvalidRequestError("another election of preferred replicas is under way: try again") from None


async def is_electing(tree: Tree, watch: Watch) -> bool:
    """Is an election of preferred replicas under way?"""
    return await tree.get(nodes.PREFERRED_ELECTION, watch) is not None


async def forget_old_notices(tree: Tree, keep: int) -> None:
    """Remove the notices of changed settings but for the last `keep`."""
    names = await tree.children(nodes.CONFIG_CHANGES)
    if len(names) > keep:
        await tree.write_batch([[Delete(f"{nodes.CONFIG_CHANGES}/{name}")] for name in names[:-keep]])
