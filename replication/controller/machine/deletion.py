"""Deletion of topics, crash-safe: the mark in the tree goes last, so a new controller starts again.

1. Clients learn that the topic has no leader any more (-2), and nothing is elected for it from now on.
2. Each partition is written without leader and ISR, so that nobody leads it again, whichever broker dies next.
3. Every live replica is stopped and deleted; one that is down follows when its broker is back.
4. When all are deleted, the nodes are deleted.

A topic is deleted after the reassignments of its partitions, and a topic whose node is malformed once its partitions
are known.

Only step 2 differs from Kafka 0.9: there the ISR loses its members one write after another.
"""

from __future__ import annotations

from collections.abc import Iterable

from replication.controller.machine import reassignment
from replication.controller.machine.draft import WorkingState
from replication.controller.machine.elections import settle
from replication.controller.machine.events import DeleteTopicNodes, ReplicasDeleted, TopicNodesDeleted, Unmark
from replication.controller.machine.transitions import PartitionState, ReplicaState
from replication.model.cluster import EPOCH_DURING_DELETE, NO_LEADER, Replica, TopicPartition


def begin(draft: WorkingState, topics: Iterable[str]) -> None:
    """Begin to delete these topics, if delete.topic.enable is true; unmark those that do not exist."""
    for name in topics:
        if name not in draft.topics:
            draft.also(Unmark(name))
        elif not draft.limits.delete_topic_enable:
            continue
        elif any(tp.topic == name for tp in draft.moves) or not draft.topics[name].replicas:
            draft.delayed_deletions.add(name)
        elif name not in draft.deletions:
            draft.delayed_deletions.discard(name)
            draft.deletions.add(name)
            tps = partitions_of(draft, name)
            draft.tell_metadata(tps)
            for tp in tps:
                draft.removals.pop(tp, None)
                settle(draft, tp)
                _stop_replicas(draft, tp)
                drive(draft, tp)
            _maybe_finish(draft, name)


def drive(draft: WorkingState, tp: TopicPartition) -> None:
    if tp in draft.pending or tp.topic not in draft.deletions:
        return
    current = draft.leadership.get(tp)
    if current is not None and (current.leader != NO_LEADER or current.isr):
        draft.propose(tp, current.next_term(NO_LEADER, (), draft.epoch), "deletion")
        return
    for broker in draft.replicas_of(tp):
        state = draft.replica_states.get(Replica(tp, broker))
        if state is ReplicaState.DELETION_INELIGIBLE and broker in draft.brokers:
            draft.move_replica(tp, broker, ReplicaState.OFFLINE)
            state = ReplicaState.OFFLINE
        if state is ReplicaState.OFFLINE and broker in draft.brokers:
            draft.move_replica(tp, broker, ReplicaState.DELETION_STARTED)
            draft.tell_to_stop(tp, broker, delete=True, leader_epoch=EPOCH_DURING_DELETE)


def brokers_gone(draft: WorkingState, brokers: Iterable[int]) -> None:
    """Note the deletions of these dead brokers as ineligible: they are repeated when the brokers are back."""
    dead = frozenset(brokers)
    for replica, state in list(draft.replica_states.items()):
        if replica.broker in dead and state is ReplicaState.DELETION_STARTED:
            draft.move_replica(replica.tp, replica.broker, ReplicaState.DELETION_INELIGIBLE)


def replicas_deleted(draft: WorkingState, event: ReplicasDeleted) -> None:
    for tps, after in (
        (event.deleted, ReplicaState.DELETION_SUCCESSFUL),
        (event.failed, ReplicaState.DELETION_INELIGIBLE),
    ):
        for tp in tps:
            if draft.replica_states.get(Replica(tp, event.broker)) is ReplicaState.DELETION_STARTED:
                draft.move_replica(tp, event.broker, after)
    for topic in sorted({tp.topic for tp in event.deleted} & draft.deletions):
        _maybe_finish(draft, topic)


def nodes_deleted(draft: WorkingState, event: TopicNodesDeleted) -> None:
    """Forget the topic, unless another one of its name was created since."""
    found = draft.topics.get(event.topic)
    if found is not None and found.topic_id == event.topic_id:
        forget(draft, event.topic)


def forget(draft: WorkingState, topic: str) -> None:
    for tp in partitions_of(draft, topic):
        settle(draft, tp)
        reassignment.forget(draft, tp)
        for known in (draft.leadership, draft.partition_states, draft.pending, draft.removals):
            known.pop(tp, None)
        for broker in draft.replicas_of(tp):
            draft.replica_states.pop(Replica(tp, broker), None)
            draft.fenced.discard(Replica(tp, broker))
        draft.to_return.discard(tp)
    draft.topics.pop(topic, None)
    draft.deletions.discard(topic)
    draft.delayed_deletions.discard(topic)


def partitions_of(draft: WorkingState, topic: str) -> list[TopicPartition]:
    found = draft.topics.get(topic)
    return [] if found is None else [TopicPartition(topic, number) for number in sorted(found.replicas)]


def _stop_replicas(draft: WorkingState, tp: TopicPartition) -> None:
    for broker in draft.replicas_of(tp):
        state = draft.replica_states.get(Replica(tp, broker))
        if state in (ReplicaState.NEW, ReplicaState.ONLINE):
            draft.move_replica(tp, broker, ReplicaState.OFFLINE)
            draft.tell_to_stop(tp, broker, delete=False)


def _maybe_finish(draft: WorkingState, topic: str) -> None:
    tps = partitions_of(draft, topic)
    replicas = [Replica(tp, broker) for tp in tps for broker in draft.replicas_of(tp)]
    if any(draft.replica_states.get(r) is not ReplicaState.DELETION_SUCCESSFUL for r in replicas):
        return
    for replica in replicas:
        draft.move_replica(replica.tp, replica.broker, ReplicaState.NON_EXISTENT)
    for tp in tps:
        draft.move_partition(tp, PartitionState.OFFLINE)
        draft.move_partition(tp, PartitionState.NON_EXISTENT)
    topic_id = draft.topics[topic].topic_id
    assert topic_id, f"{topic}: its replicas were deleted by its id"
    draft.also(DeleteTopicNodes(topic, topic_id))
