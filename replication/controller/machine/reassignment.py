"""Reassignment of replicas, crash-safe: the tree holds the progress, so a new controller continues from there.

With O the original replicas and T the target:

1. In one step, the topic's node gets O + T, and /admin/reassign_partitions what O was.
2. All of O + T hear of it in a new leader epoch, so the leader counts the new replicas; they begin to fetch.
3. When all of T are alive and in the ISR, one of T leads.
4. The ISR shrinks to its part in T, in a new leader epoch. From here on T are the replicas: nobody else can join.
5. The other replicas are stopped and deleted. One that is down is not waited for; its directory stays behind.
6. In one step, the topic's node gets T, and /admin/reassign_partitions loses the entry.

Elections go on all the time. Making O the target cancels: then the others go when all live members of O are in the
ISR, or, while nobody leads, when the ISR has members of O only. Another target may be given at any time before step
6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from replication.controller.machine.assignment import elect_reassigned
from replication.controller.machine.draft import WorkingState
from replication.controller.machine.events import Selector, WriteReassignment
from replication.controller.machine.state import Move
from replication.controller.machine.transitions import ReplicaState
from replication.model.cluster import (
    NO_LEADER,
    Assignment,
    BrokerId,
    LeaderAndIsr,
    Reassignment,
    ReassignmentWrite,
    ReassignmentWritten,
    Replica,
    TopicPartition,
)

GONE = "the partition does not exist"


def note(draft: WorkingState, plans: Mapping[TopicPartition, Reassignment]) -> list[TopicPartition]:
    """Take the requested reassignments; return the new ones. A move that has begun continues without its entry."""
    new = []
    for tp, move in list(draft.moves.items()):
        if tp not in plans and move.plan.original is None and not move.is_storing:
            del draft.moves[tp]
    for tp, plan in sorted(plans.items()):
        known = draft.moves.get(tp)
        replicas = draft.replicas_of(tp)
        if not replicas:
            _drop(draft, tp, Move(plan, ()), GONE)
        elif tp.topic in draft.deletions:
            _drop(draft, tp, Move(plan, replicas), "its topic is being deleted")
        elif known is None:
            draft.moves[tp] = Move(plan, replicas)
            new.append(tp)
        elif plan.target != known.plan.target:
            if known.is_leaving:
                _take(draft, tp, known.stored)
            draft.moves[tp] = replace(known, plan=plan, is_announced=False, is_leaving=False)
            new.append(tp)
    return new


def forget(draft: WorkingState, tp: TopicPartition) -> None:
    move = draft.moves.pop(tp, None)
    if move is not None:
        draft.log(draft.lines.reassignment_refused(tp, move.plan.target, GONE))
        _store(draft, tp, move, None, None)


def written(draft: WorkingState, event: ReassignmentWritten) -> None:
    """Take the outcome of a write: the content of both nodes, as requested or by another writer."""
    tp, move = event.tp, draft.moves.get(event.tp)
    if move is None or not draft.replicas_of(tp):
        return
    replicas = event.replicas or draft.replicas_of(tp)
    if event.accepted and event.plan is None and replicas == move.plan.target:
        _end(draft, tp, move)
    else:
        _take(draft, tp, replicas)
    if event.plan is None:
        del draft.moves[tp]
    else:
        draft.moves[tp] = Move(event.plan, replicas)


def proceed(draft: WorkingState, tp: TopicPartition) -> None:
    """Take the next step that concerns no leader: begin the move, delete old replicas, or end it."""
    move = draft.moves.get(tp)
    if move is None or move.is_storing:
        return
    if move.is_leaving:
        _remove(draft, tp, move)
        return
    target, original = move.plan.target, move.plan.original
    if original is None and target == move.stored:
        _store(draft, tp, move, None, None)
        return
    joining = tuple(broker for broker in target if broker not in move.stored)
    if reason := _reason_to_refuse(draft, tp, move, joining):
        _drop(draft, tp, move, reason)
    elif original is None or joining:
        draft.log(draft.lines.reassignment_started(tp, original or move.stored, target))
        plan = Reassignment(target, move.stored if original is None else original)
        _store(draft, tp, move, plan, move.stored + joining)


def advance(draft: WorkingState, tp: TopicPartition, current: LeaderAndIsr) -> None:
    """Propose the next state of a partition, if one is due; without a leader, only a cancellation can go on."""
    move = draft.moves.get(tp)
    if move is None or move.is_storing or move.is_leaving:
        return
    if _is_ready(draft, tp, move, current):
        _hand_over(draft, tp, move, current)
    elif not (move.is_announced or current.leader == NO_LEADER):
        draft.propose(tp, current.next_term(current.leader, current.isr, draft.epoch), "reassignment")


def accepted(draft: WorkingState, tp: TopicPartition, stored: LeaderAndIsr, reason: str) -> None:
    move = draft.moves.get(tp)
    if move is None or move.is_storing or move.is_leaving or move.plan.original is None:
        return
    if reason == "departure" and set(stored.isr) <= set(move.plan.target) and _is_ready(draft, tp, move, stored):
        for broker in _leaving(move):
            if draft.replica_states.get(Replica(tp, broker)) in (ReplicaState.NEW, ReplicaState.ONLINE):
                draft.move_replica(tp, broker, ReplicaState.OFFLINE)
                draft.tell_to_stop(tp, broker, delete=False, leader_epoch=stored.leader_epoch)
        draft.assign(tp, move.plan.target)
        draft.moves[tp] = replace(move, is_leaving=True)
    else:
        draft.moves[tp] = replace(move, is_announced=True)


def _reason_to_refuse(draft: WorkingState, tp: TopicPartition, move: Move, joining: Assignment) -> str:
    target = move.plan.target
    if move.plan.original is None and tp.topic in draft.delayed_deletions:
        return "its topic is to be deleted"
    if not target or len(set(target)) != len(target):
        return "it needs at least one replica, and each on another broker"
    absent = [broker for broker in joining if broker not in draft.brokers]
    return f"brokers {','.join(map(str, absent))} are not alive" if absent else ""


def _drop(draft: WorkingState, tp: TopicPartition, move: Move, reason: str) -> None:
    plan, original = move.plan, move.plan.original
    draft.log(draft.lines.reassignment_refused(tp, plan.target, reason))
    if original is None or not move.stored:
        _store(draft, tp, move, None, None)
    else:
        _store(draft, tp, move, Reassignment(original, original), None)


def _store(
    draft: WorkingState,
    tp: TopicPartition,
    move: Move,
    after: Reassignment | None,
    replicas: Assignment | None,
) -> None:
    if tp in draft.moves:
        draft.moves[tp] = replace(move, is_storing=True)
    write = ReassignmentWrite(tp, move.plan, after, move.stored, replicas)
    draft.also(WriteReassignment(draft.epoch, write))


def _is_ready(draft: WorkingState, tp: TopicPartition, move: Move, current: LeaderAndIsr) -> bool:
    """May the old replicas go? The target must be alive and in sync; of a cancelled move, its live members.

    Offline replicas count as dead. While nobody leads, it is enough that the ISR is within the target.
    """
    plan, live = move.plan, frozenset(draft.brokers) - draft.offline_of(tp)
    if current.leader == NO_LEADER:
        return plan.target == plan.original and frozenset(plan.target).issuperset(current.isr)
    needed = live.intersection(plan.target) if plan.target == plan.original else frozenset(plan.target)
    in_sync = live.intersection(current.isr) - draft.removals.get(tp, frozenset())
    return bool(needed) and needed <= in_sync


def _hand_over(draft: WorkingState, tp: TopicPartition, move: Move, current: LeaderAndIsr) -> None:
    target = move.plan.target
    for broker in target:
        if draft.replica_states.get(Replica(tp, broker)) is ReplicaState.NEW:
            draft.move_replica(tp, broker, ReplicaState.ONLINE)
    if current.leader in target or current.leader == NO_LEADER:
        isr = tuple(broker for broker in current.isr if broker in target)
        draft.propose(tp, current.next_term(current.leader, isr, draft.epoch), "departure")
    else:
        draft.elect(tp, Selector.REASSIGNED, lambda: elect_reassigned(current, target, draft.available(tp)))


def _leaving(move: Move) -> list[BrokerId]:
    return [broker for broker in move.stored if broker not in move.plan.target]


def _remove(draft: WorkingState, tp: TopicPartition, move: Move) -> None:
    """Have the old replicas deleted; end the move when all live ones are."""
    is_done = True
    for broker in _leaving(move):
        state = draft.replica_states.get(Replica(tp, broker))
        if broker not in draft.brokers:
            if state is ReplicaState.OFFLINE:
                draft.move_replica(tp, broker, ReplicaState.DELETION_INELIGIBLE)
            continue
        if state is ReplicaState.DELETION_INELIGIBLE:
            draft.move_replica(tp, broker, ReplicaState.OFFLINE)
            state = ReplicaState.OFFLINE
        if state is ReplicaState.OFFLINE:
            draft.move_replica(tp, broker, ReplicaState.DELETION_STARTED)
            epoch = draft.leadership[tp].leader_epoch
            draft.tell_to_stop(tp, broker, delete=True, leader_epoch=epoch)
        is_done = is_done and state is ReplicaState.DELETION_SUCCESSFUL
    if is_done:
        _store(draft, tp, move, None, move.plan.target)


def _end(draft: WorkingState, tp: TopicPartition, move: Move) -> None:
    for broker in _leaving(move):
        draft.move_replica(tp, broker, ReplicaState.NON_EXISTENT)
    draft.log(draft.lines.reassignment_done(tp, move.plan.target))


def _take(draft: WorkingState, tp: TopicPartition, replicas: Assignment) -> None:
    """Set the replicas; new ones start as NewReplica."""
    before = draft.replicas_of(tp)
    draft.assign(tp, replicas)
    for broker in set(before) - set(replicas):
        draft.replica_states.pop(Replica(tp, broker), None)
    for broker in replicas:
        if broker in before:
            continue
        state = draft.replica_states.get(Replica(tp, broker))
        if state is ReplicaState.DELETION_STARTED:
            draft.move_replica(tp, broker, ReplicaState.DELETION_INELIGIBLE)
        elif state is ReplicaState.DELETION_SUCCESSFUL:
            draft.move_replica(tp, broker, ReplicaState.NON_EXISTENT)
            state = None
        if state is None:
            draft.move_replica(tp, broker, ReplicaState.NEW)
        if broker not in draft.brokers:
            draft.move_replica(tp, broker, ReplicaState.OFFLINE)
        elif state is not None:
            draft.move_replica(tp, broker, ReplicaState.ONLINE)
