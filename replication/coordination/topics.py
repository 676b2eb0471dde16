"""Changes of topics in the tree by brokers and tools: create, grow, alter, mark for deletion.

Every change is one step, and concerns the life of the topic that was read before (see `topic_nodes`).
Changes of settings leave a notice behind, as those by Kafka's tools do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from logstore.errors import InvalidRequestError, TopicExistsError, UnknownTopicError
from replication.coordination import nodes
from replication.coordination.topic_nodes import read_topic_id, still_alive
from replication.coordination.tree import (
    ANY_VERSION,
    BadVersionError,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    RefusedError,
    SetData,
    Step,
    Tree,
    Watch,
    put,
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
    """Create a topic, and do the steps `also` in the same multi. Nodes without a topic that have its name are replaced.

    Raises: TopicExistsError: it exists, or is being deleted; RefusedError of `also`.
    """
    path = nodes.topic_path(topic)
    new = {nodes.topic_config_path(topic): nodes.encode_config(config), nodes.topic_id_path(topic): topic_id.encode()}
    count_path = nodes.PARTITION_COUNTS.get(topic)
    while True:
        *left, marked = await tree.read_batch([*new, nodes.deletion_path(topic)])
        if marked is not None:
            raise TopicExistsError(topic)
        steps: list[Step] = [Create(path, nodes.encode_topic(partitions)), *also]
        for (at, data), orphan in zip(new.items(), left, strict=True):
            steps += () if orphan is None else (Delete(at, orphan.version),)
            steps.append(Create(at, data))
        if count_path is not None:
            note = await tree.get(count_path)
            count = nodes.PartitionCount(topic_id, len(partitions))
            steps.append(put(count_path, nodes.encode_partition_count(count), note))
        try:
            await tree.multi(steps)
        except RefusedError as error:
            if error.index == 0 and isinstance(error, NodeExistsError):
                raise TopicExistsError(topic) from None
            if error.index <= len(also):
                raise
            continue  # the topic was deleted between the read and the step
        return


async def grow_topic(tree: Tree, topic: str, added: Mapping[int, Assignment], *also: Step) -> None:
    """Add partitions, and do the steps `also` in the same multi.

    Raises: UnknownTopicError; InvalidRequestError: they exist, or leave a gap; RefusedError of `also`.
    """
    path = nodes.topic_path(topic)
    while True:
        alive = await still_alive(tree)
        found = await tree.get(path)
        if found is None:
            raise UnknownTopicError(topic, await tree.children(nodes.TOPICS), "the cluster")
        known = nodes.decode_topic(topic, found.data)
        if sorted({*known, *added}) != list(range(len(known) + len(added))):
            raise InvalidRequestError(
                f"topic {topic!r} has {len(known)} partitions: {sorted(added)} do not follow them"
            )
        try:
            data = nodes.encode_topic({**known, **added}, found.data)
            await tree.multi([alive, SetData(path, data, found.version), *also])
        except (BadVersionError, NoNodeError) as error:
            if error.path not in (alive.path, path):
                raise
            continue  # it was changed or deleted: the next read tells
        return


async def read_partition_count(tree: Tree, internal: str) -> nodes.PartitionCount | None:
    """Return over how many partitions names are spread; None while the internal topic or its id is missing.

    If that was not stored yet, since another tool created the topic, its present number of partitions is stored.
    """
    path = nodes.PARTITION_COUNTS[internal]
    paths = [nodes.topic_path(internal), nodes.topic_id_path(internal), path]
    while True:
        alive = await still_alive(tree)
        topic, topic_id, note = await tree.read_batch(paths)
        if topic is None or topic_id is None:
            return None
        known = nodes.decode_partition_count(path, note.data) if note is not None else None
        if known is not None and known.topic_id == topic_id.data.decode():
            return known
        count = nodes.PartitionCount(topic_id.data.decode(), len(nodes.decode_topic(internal, topic.data)))
        try:
            await tree.multi([alive, put(path, nodes.encode_partition_count(count), note)])
        except (BadVersionError, NodeExistsError, NoNodeError):
            continue  # another broker was faster


async def read_configs(tree: Tree, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    found = await tree.read_batch([nodes.topic_config_path(topic) for topic in topics])
    return {
        topic: nodes.settings_at(nodes.topic_config_path(topic), node)
        for topic, node in zip(topics, found, strict=True)
    }


async def change_config(tree: Tree, path: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
    """Replace the settings in a config node by what `change` makes of them, and notify all brokers.

    Raises: UnknownTopicError: they are those of a topic that does not exist; whatever `change` raises.
    """
    notice = Create(nodes.CONFIG_CHANGE_PREFIX, nodes.encode_config_change(path), sequence=True)
    topic = nodes.topic_of_config(path)
    while True:
        steps: list[Step] = []
        if topic is not None:
            steps = [await still_alive(tree), Check(nodes.topic_path(topic), ANY_VERSION)]
            if await tree.get(nodes.topic_path(topic)) is None:
                raise UnknownTopicError(topic, await tree.children(nodes.TOPICS), "the cluster")
        found = await tree.get(path)
        data = nodes.encode_config(change(nodes.settings_at(path, found)), None if found is None else found.data)
        try:
            await tree.multi([*steps, put(path, data, found), notice])
        except (BadVersionError, NodeExistsError, NoNodeError):
            continue  # another broker was faster
        return


async def mark_deleted(tree: Tree, topic: str, topic_id: str | None = None) -> None:
    """Ask the controller to delete the topic, if it exists; with `topic_id`, only that life of it.

    Without delete.topic.enable the controller ignores that.
    """
    while True:
        alive = await still_alive(tree)
        if topic_id is not None and await read_topic_id(tree, topic) != topic_id:
            return
        steps: list[Step] = [Check(nodes.topic_path(topic), ANY_VERSION), Create(nodes.deletion_path(topic))]
        try:
            await tree.multi(steps if topic_id is None else [alive, *steps])
        except BadVersionError:
            continue  # a topic was deleted, perhaps this one
        except (NodeExistsError, NoNodeError):
            return
        return


class NameState(NamedTuple):
    """The use of a topic's name: by which topic, and whether that is being deleted."""

    exists: bool
    is_marked: bool
    topic_id: str | None


async def read_name(tree: Tree, topic: str) -> NameState:
    paths = [nodes.topic_path(topic), nodes.deletion_path(topic), nodes.topic_id_path(topic)]
    found, marked, named = await tree.read_batch(paths)
    return NameState(found is not None, marked is not None, None if named is None else named.data.decode())


async def is_there(tree: Tree, topic: str, topic_id: str | None) -> bool:
    found = await read_name(tree, topic)
    return found.exists and found.topic_id == topic_id


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


async def find_missing(tree: Tree, names: Collection[str]) -> frozenset[str]:
    """Return those of these topics that do not exist.

    A ZooKeeper server may be behind, but not behind a write of the same session: one goes first.
    """
    if missing := await _absent(tree, names):
        with suppress(BadVersionError):
            await tree.multi([await still_alive(tree)])
        missing = await _absent(tree, missing)
    return missing


async def find_missing_ids(tree: Tree, topic_ids: Collection[str]) -> frozenset[str]:
    """Return those of these ids that no topic has; nor had one when it was asked."""
    with suppress(BadVersionError):
        await tree.multi([await still_alive(tree)])  # as in `find_missing`
    names = await tree.children(nodes.TOPICS)
    found = await tree.read_batch([nodes.topic_id_path(name) for name in names])
    return frozenset(topic_ids) - {node.data.decode() for node in found if node is not None}


async def _absent(tree: Tree, names: Collection[str]) -> frozenset[str]:
    found = await tree.read_batch([nodes.topic_path(name) for name in names])
    return frozenset(name for name, node in zip(names, found, strict=True) if node is None)


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
