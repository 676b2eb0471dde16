"""Checks that a coordination store is the one under which this broker's logs were written, and not an older copy.

A leader epoch is in the store before any log has a record of it. A log with a later epoch was written after the store
was copied: the leaders and ISRs in the copy are old, and committed records would be truncated by them.
"""

from __future__ import annotations

from collections.abc import Mapping

from logstore.errors import NotAStoreError
from logstore.store.meta_properties import DirectoryOwner
from replication.coordination import cluster, nodes
from replication.coordination.sqlite_file import WHAT_TO_DO
from replication.coordination.tree import CoordinationError, Tree
from replication.model.cluster import TopicPartition


class OldStoreError(CoordinationError): ...


def check_owner(path: object, owner: DirectoryOwner, found: DirectoryOwner) -> None:
    """Raises: NotAStoreError: the directory belongs to another broker or cluster."""
    if owner.broker_id != found.broker_id:
        raise NotAStoreError(
            f"{path} belongs to broker {owner.broker_id} of cluster {owner.cluster_id}; "
            f"this is broker {found.broker_id} of cluster {found.cluster_id}: give every broker a directory of its own"
        )
    if owner.cluster_id != found.cluster_id:
        raise NotAStoreError(
            f"{path} belongs to broker {owner.broker_id} of cluster {owner.cluster_id}, and the coordination store is "
            f"of cluster {found.cluster_id}. If that is another cluster, name the right store with --coordination; "
            f"if the right one was lost and recreated: {WHAT_TO_DO}"
        )


async def check_epochs(tree: Tree, epochs: Mapping[TopicPartition, tuple[str, int]]) -> None:
    """`epochs`: the topic id and the latest leader epoch of each log here. Raises: OldStoreError."""
    states = await cluster.read_states(tree, list(epochs))
    topics = sorted({tp.topic for tp in epochs})
    found = await tree.read_batch([nodes.topic_id_path(topic) for topic in topics])
    ids = {topic: node.data.decode() for topic, node in zip(topics, found, strict=True) if node is not None}
    for tp, (topic_id, epoch) in sorted(epochs.items()):
        state = states[tp]
        if state is not None and ids.get(tp.topic) == topic_id and epoch > state.leader_epoch:
            raise OldStoreError(
                f"the coordination store has leader epoch {state.leader_epoch} of {tp}, and the log here has "
                f"records of epoch {epoch}: the store is an older copy, which would truncate committed records; "
                f"{WHAT_TO_DO}"
            )
