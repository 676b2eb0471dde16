"""Changes of topics in the tree by brokers and tools: create, grow, alter, mark for deletion.

Every change is one step. Changes of settings leave a notice behind, as those by Kafka's tools do.
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
from replication.model.cluster import Assignment, Election


async def create_topic(
    tree: Tree,
    topic: str,
    topic_id: str,
    partitions: Mapping[int, Assignment],
    config: Mapping[str, str],
    *also: Step,
) -> None:
    """Create a topic, and do the steps `also` in the same multi.

    Raises: TopicExistsError: it exists, or is being deleted; RefusedError of `also`.
    """
    config_path = nodes.topic_config_path(topic)
    left, marked = await tree.read_batch([config_path, nodes.deletion_path(topic)])
    if marked is not None:
        raise TopicExistsError(topic)
    data = nodes.encode_config(config)
    steps: list[Step] = [
        Create(config_path, data) if left is None else SetData(config_path, data),
        Create(nodes.topic_path(topic), nodes.encode_topic(partitions)),
        Create(nodes.topic_id_path(topic), topic_id.encode()),
        *also,
    ]
    if (path := nodes.PARTITION_COUNTS.get(topic)) is not None:
        note = await tree.get(path)
        steps.append(_noting(path, note, nodes.PartitionCount(topic_id, len(partitions))))
    try:
        await tree.multi(steps)
    except (NodeExistsError, BadVersionError) as error:
        if error.path in {step.path for step in also}:
            raise
        raise TopicExistsError(topic) from None


async def grow_topic(tree: Tree, topic: str, added: Mapping[int, Assignment], *also: Step) -> None:
    """Add partitions, and do the steps `also` in the same multi.

    Raises: UnknownTopicError; InvalidRequestError: they exist, or leave a gap; RefusedError of `also`.
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
            continue  # it was changed or deleted: the next read tells
        return


async def read_partition_count(tree: Tree, internal: str) -> nodes.PartitionCount | None:
    """Return over how many partitions names are spread; None while the internal topic or its id is missing.

    If that was not noted yet, since another tool created the topic, its present number of partitions is noted.
    """
    path = nodes.PARTITION_COUNTS[internal]
    paths = [nodes.topic_path(internal), nodes.topic_id_path(internal), path]
    while True:
        topic, topic_id, note = await tree.read_batch(paths)
        if topic is None or topic_id is None:
            return None
        known = nodes.decode_partition_count(path, note.data) if note is not None else None
        if known is not None and known.topic_id == topic_id.data.decode():
            return known
        count = len(nodes.decode_topic(internal, topic.data))
        try:
            await tree.multi([_noting(path, note, nodes.PartitionCount(topic_id.data.decode(), count))])
        except (BadVersionError, NodeExistsError, NoNodeError):
            continue  # another broker was faster


def _noting(path: str, note: Node | None, found: nodes.PartitionCount) -> Step:
    data = nodes.encode_partition_count(found)
    if note is None:
        return Create(path, data)
    return SetData(path, data, note.version)


async def read_configs(tree: Tree, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    found = await tree.read_batch([nodes.topic_config_path(topic) for topic in topics])
    return {
        topic: nodes.settings_at(nodes.topic_config_path(topic), node)
        for topic, node in zip(topics, found, strict=True)
    }


async def change_config(tree: Tree, path: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
    """Replace the settings in a config node by what `change` makes of them, and notify all brokers."""
    notice = Create(nodes.CONFIG_CHANGE_PREFIX, nodes.encode_config_change(path), sequence=True)
    while True:
        found = await tree.get(path)
        data = nodes.encode_config(change(nodes.settings_at(path, found)))
        step: Step = Create(path, data) if found is None else SetData(path, data, found.version)
        try:
            await tree.multi([step, notice])
        except (BadVersionError, NodeExistsError, NoNodeError):
            continue  # another broker was faster
        return


async def mark_deleted(tree: Tree, topic: str) -> None:
    """Ask the controller to delete the topic; without delete.topic.enable it ignores that."""
    try:
        await tree.create(nodes.deletion_path(topic))
    except NodeExistsError:
        return


async def is_marked_deleted(tree: Tree, topic: str) -> bool:
    return await tree.get(nodes.deletion_path(topic)) is not None


async def find_gone(tree: Tree, ids: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return those of these topics (name -> id) that do not exist any more, or are being deleted."""
    names = list(ids)
    known = await tree.read_batch([nodes.topic_path(name) for name in names])
    found = await tree.read_batch([nodes.topic_id_path(name) for name in names])
    marked = await tree.read_batch([nodes.deletion_path(name) for name in names])
    return tuple(
        name
        for name, node, topic_id, mark in zip(names, known, found, marked, strict=True)
        if node is None or mark is not None or (topic_id is not None and topic_id.data.decode() != ids[name])
    )


async def request_election(tree: Tree, election: Election) -> None:
    """Ask the controller for an election. Raises: InvalidRequestError: another one is under way."""
    try:
        await tree.create(nodes.ELECTION, nodes.encode_election(election))
    except NodeExistsError:
        raise InvalidRequestError("another election is under way: try again") from None


async def is_electing(tree: Tree, watch: Watch) -> bool:
    return await tree.get(nodes.ELECTION, watch) is not None


async def forget_old_notices(tree: Tree, keep: int) -> None:
    names = await tree.children(nodes.CONFIG_CHANGES)
    if len(names) > keep:
        await tree.write_batch([[Delete(f"{nodes.CONFIG_CHANGES}/{name}")] for name in names[:-keep]])
