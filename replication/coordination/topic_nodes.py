"""Lives of topics: a name may be deleted and created again, and all nodes of a name belong to one life of it.

- A topic is created, and deleted, in one step: its node, its settings and its id come and go together, with the mark of
  its deletion.
- The version of a node does not distinguish a topic from its predecessor, since a recreated node begins at 0. That of
/pylog/deletions does:
  every deletion of a topic writes it in the same step. `still_alive` is read first; a later step that checks it
  concerns the same life as everything that was read between.
- No store can check that a node is absent, but every store can create it and delete it within a step: see `absent`.
"""

from __future__ import annotations

from replication.coordination import nodes
from replication.coordination.cluster import FencedError, Term
from replication.coordination.tree import (
    ANY_VERSION,
    BatchResult,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    RefusedError,
    SetData,
    Step,
    Tree,
    ensure_path,
)
from replication.model.cluster import TopicPartition


async def still_alive(tree: Tree) -> Check:
    """Return the step that is refused once a topic was deleted, whichever it was."""
    while (found := await tree.get(nodes.DELETIONS)) is None:
        await ensure_path(tree, nodes.DELETIONS)
    return Check(nodes.DELETIONS, found.version)


def absent(path: str) -> tuple[Step, Step]:
    """Return the steps that are refused if there is a node, and leave none behind."""
    return Create(path), Delete(path)


async def read_topic_id(tree: Tree, topic: str) -> str | None:
    found = await tree.get(nodes.topic_id_path(topic))
    return None if found is None else found.data.decode()


async def make_topic_id(tree: Tree, term: Term, topic: str, new_id: str) -> str | None:
    """Set the topic's id to `new_id` if it has none; return the id that it has, None if there is no such topic.

    Raises: FencedError.
    """
    path = nodes.topic_id_path(topic)
    while True:
        try:
            await tree.multi([term.guard, Check(nodes.topic_path(topic), ANY_VERSION), Create(path, new_id.encode())])
        except NodeExistsError:
            if (known := await read_topic_id(tree, topic)) is not None:
                return known
        except RefusedError as refused:
            _raise_if_fenced(refused, term)
            return None
        else:
            return new_id


async def delete_topic_nodes(tree: Tree, term: Term, topic: str, topic_id: str) -> None:
    """Delete the nodes of this life of a topic: its states first, then in one step all that remains.

    May be repeated: another life of the name is left alone. Raises: FencedError.
    """
    while await read_topic_id(tree, topic) == topic_id:
        await _delete_states(tree, term, topic)
        rest = [nodes.topic_config_path(topic), nodes.topic_id_path(topic), nodes.deletion_path(topic)]
        steps: list[Step] = [term.guard, SetData(nodes.DELETIONS, b""), Delete(nodes.topic_path(topic))]
        await still_alive(tree)  # there is a node to write
        for path, node in zip(rest, await tree.read_batch(rest), strict=True):
            steps += absent(path) if node is None else (Delete(path),)
        try:
            await tree.multi(steps)
        except RefusedError as refused:  # settings or a mark have come meanwhile, or a partition
            _raise_if_fenced(refused, term)


async def _delete_states(tree: Tree, term: Term, topic: str) -> None:
    try:
        numbers = await tree.children(nodes.partitions_path(topic))
    except NoNodeError:
        return
    tps = [TopicPartition(topic, int(number)) for number in numbers]
    for level in (
        [nodes.state_path(tp) for tp in tps],
        [nodes.partition_path(tp) for tp in tps],
        [nodes.partitions_path(topic)],
    ):
        for result in await tree.write_batch([[term.guard, Delete(path)] for path in level]):
            _raise_if_fenced(result, term)


async def unmark(tree: Tree, term: Term, topic: str) -> bool:
    """Delete the mark of a topic that does not exist; False if it does. Raises: FencedError."""
    try:
        await tree.multi([term.guard, *absent(nodes.topic_path(topic)), Delete(nodes.deletion_path(topic))])
    except NodeExistsError:
        return False
    except RefusedError as refused:
        _raise_if_fenced(refused, term)
    return True


async def clean_orphans(tree: Tree, term: Term) -> tuple[str, ...]:
    """Delete ids of topics that do not exist, as earlier versions left them; return their names.

    Raises: FencedError.
    """
    names = sorted({*await tree.children(nodes.TOPIC_IDS)} - {*await tree.children(nodes.TOPICS)})
    ids = [nodes.topic_id_path(name) for name in names]
    found = await tree.read_batch(ids)
    orphans = [(name, path, node) for name, path, node in zip(names, ids, found, strict=True) if node is not None]
    results = await tree.write_batch(
        [[term.guard, *absent(nodes.topic_path(name)), Delete(path, node.version)] for name, path, node in orphans]
    )
    for result in results:
        _raise_if_fenced(result, term)
    return tuple(
        name for (name, _, _), result in zip(orphans, results, strict=True) if not isinstance(result, RefusedError)
    )


def _raise_if_fenced(result: BatchResult, term: Term) -> None:
    if isinstance(result, RefusedError) and result.path == term.guard.path:
        raise FencedError(term.controller_epoch)
