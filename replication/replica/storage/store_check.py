"""Whether a coordination store is the one that this broker's logs were written under, and not an older copy of it.

A leader epoch is in the store before a record of it is in any log. So a log that has a later one was written after the
store was copied: what it says of leaders and ISRs is old, and by it committed records would be cut.
"""

from __future__ import annotations

from collections.abc import Mapping

from logstore.errors import NotAStoreError
from logstore.store.log_dir import DirectoryOwner
from replication.coordination import cluster, nodes
from replication.coordination.sqlite_file import WHAT_TO_DO
from replication.coordination.tree import CoordinationError, Tree
from replication.model.cluster import TopicPartition


class OldStoreError(CoordinationError):
    """The coordination store is an older copy."""


def check_owner(path: object, owner: DirectoryOwner, found: DirectoryOwner) -> None:
    """Raises: NotAStoreError: the directory is another broker's, or another cluster's."""
    if owner.broker_id != found.broker_id:
        raise NotAStoreError(
            f"{path} belongs to broker {owner.broker_id} of cluster {owner.cluster_id}; "
            f"this is broker {found.broker_id} of cluster {found.cluster_id}: give every broker a directory of its own"
        )
    if owner.cluster_id != found.cluster_id:
        raise NotAStoreError(
            f"{path} belongs to broker {owner.broker_id} of cluster {owner.cluster_id}, and the coordination store is "
            f"of cluster {found.cluster_id}. If that is another cluster, say with --coordination where this one's is; "
            f"if this one's was lost and recreated: {WHAT_TO_DO}"
        )


async def check_epochs(tree: Tree, epochs: Mapping[TopicPartition, tuple[str, int]]) -> None:
    """`epochs`: of each log here the id of its topic, and its latest leader epoch. Raises: OldStoreError."""
    states = await cluster.read_states(tree, list(epochs))
    topics = sorted({tp.topic for tp in epochs})
    found = await tree.read_batch([nodes.topic_id_path(topic) for topic in topics])
    ids = {topic: node.data.decode() for topic, node in zip(topics, found, strict=True) if node is not None}
    for tp, (topic_id, epoch) in sorted(epochs.items()):
        state = states[tp]
        if state is not None and ids.get(tp.topic) == topic_id and epoch > state.leader_epoch:
            raise OldStoreError(
                f"the coordination store knows leader epoch {state.leader_epoch} of {tp}, and the log here has "
                f"records of epoch {epoch}: it is an older copy, and would have committed records cut; {WHAT_TO_DO}"
            )
