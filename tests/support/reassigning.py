"""A tree's reaction to a controller's write of a reassignment, for the trees of tests that are in memory."""

from __future__ import annotations

from collections.abc import MutableMapping

from logstore import TopicDescription
from replication.model.cluster import (
    Reassignment,
    ReassignmentWrite,
    ReassignmentWritten,
    TopicPartition,
)


def write(
    plans: MutableMapping[TopicPartition, Reassignment],
    topics: MutableMapping[str, TopicDescription],
    asked: ReassignmentWrite,
) -> ReassignmentWritten:
    """Change both nodes, if they say what the write says that they do."""
    tp, topic, known = asked.tp, topics.get(asked.tp.topic), plans.get(asked.tp)
    replicas = topic.replicas.get(tp.partition, ()) if topic else ()
    is_known = known == asked.before or (known is None and asked.after is None)
    if not is_known or (asked.replicas is not None and replicas != asked.stored):
        return ReassignmentWritten(tp, False, known, replicas)
    plans.pop(tp, None)
    if asked.after is not None:
        plans[tp] = asked.after
    if asked.replicas is not None and topic is not None:
        replicas = asked.replicas
        topics[tp.topic] = topic.assigned({**topic.replicas, tp.partition: replicas})
    return ReassignmentWritten(tp, True, asked.after, replicas)
