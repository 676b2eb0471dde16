"""The next write for one partition: the one place where a controller decides who leads and who is in sync.

`drive` compares the present state with what is wanted, and proposes at most one write. It is called again when the
outcome is known. In this order: a first leader; another leader for one that is gone, is shutting down, or is offline;
members out of the ISR, one per write; the next step of a reassignment; the preferred leader.

An *offline* replica (its broker is alive, but cannot serve or write it) counts as dead, with one exception: it has all
committed records, perhaps damaged. So the ISR never loses its last member for that: a leader alone in the ISR stays,
and if nobody leads and all of the ISR is alive and offline, one of them leads. While a member that is not offline may
come back, the partition waits for it.
"""

from __future__ import annotations

from dataclasses import replace

from replication.controller.machine import reassignment
from replication.controller.machine.assignment import (
    Choice,
    ElectionError,
    elect_for_shutdown,
    elect_offline,
    elect_preferred,
)
from replication.controller.machine.draft import WorkingState
from replication.controller.machine.events import AnswerControlledShutdown, DeleteElection, Selector
from replication.controller.machine.transitions import PartitionState, ReplicaState
from replication.model.cluster import NO_LEADER, BrokerId, LeaderAndIsr, Replica, TopicPartition


def drive(draft: WorkingState, tp: TopicPartition) -> None:
    """Propose the next write for a partition, or settle it if there is none."""
    topic = draft.topics.get(tp.topic)
    if tp in draft.pending or topic is None or not topic.topic_id or tp.topic in draft.deletions:
        return
    reassignment.proceed(draft, tp)
    current = draft.leadership.get(tp)
    if current is None:
        _create(draft, tp)
        return
    is_led = current.leader in draft.brokers and current.leader not in draft.removals.get(tp, ())
    for step in _WHILE_LED if is_led else (_replace_leader, reassignment.advance):
        step(draft, tp, current)
        if tp in draft.pending:
            return
    settle(draft, tp)


def settle(draft: WorkingState, tp: TopicPartition) -> None:
    """Note that nothing is left to do for this partition: elections and shutdowns that waited for it continue."""
    draft.preferred.discard(tp)
    draft.unclean.discard(tp)
    maybe_end_election(draft)
    for broker in list(draft.shutdowns):
        waiting = draft.waiting[broker]
        if tp in waiting:
            waiting.discard(tp)
            if not waiting:
                answer_shutdown(draft, broker)


def maybe_end_election(draft: WorkingState) -> None:
    """Delete the node of requested elections once all of them are done."""
    if draft.has_election_node and not draft.preferred and not draft.unclean:
        draft.has_election_node = False
        draft.also(DeleteElection())


def answer_shutdown(draft: WorkingState, broker: int) -> None:
    """Answer a broker that is shutting down with the partitions that it leads and another broker could take.

    A partition that nobody else can take is not counted, since no further attempt would move it.
    """
    request = draft.shutdowns.pop(broker)
    staying = draft.brokers.keys() - draft.shutting_down
    led = [tp for tp, state in draft.leadership.items() if state.leader == broker]
    remaining = tuple(sorted(tp for tp in led if not staying.isdisjoint(draft.replicas_of(tp))))
    draft.also(AnswerControlledShutdown(request, remaining))


def accepted(draft: WorkingState, tp: TopicPartition, stored: LeaderAndIsr, reason: str, *, is_unclean: bool) -> None:
    before = draft.leadership.get(tp)
    draft.leadership[tp] = stored
    is_new = before is None
    if stored.leader != NO_LEADER:
        draft.unclean.discard(tp)
        if is_unclean and before is not None:
            draft.log(draft.lines.data_may_be_lost(tp, stored.leader, before.isr))
        if reason == "election":
            draft.log(draft.lines.leader_elected(tp, stored.leader))
        if reason in ("creation", "election"):
            draft.move_partition(tp, PartitionState.ONLINE)
        if before is not None and before.leader in draft.shutting_down and before.leader != stored.leader:
            # A follower would join the ISR again just before it stops.
            draft.tell_to_stop(tp, before.leader, delete=False)
            draft.move_replica(tp, before.leader, ReplicaState.OFFLINE)
    if is_new and tp.topic not in draft.deletions:
        for broker in draft.replicas_of(tp):
            if broker in draft.brokers:
                draft.move_replica(tp, broker, ReplicaState.ONLINE)
    reassignment.accepted(draft, tp, stored, reason)


def _create(draft: WorkingState, tp: TopicPartition) -> None:
    """Let the first live replica lead, with all live ones in sync. Without a live one, the partition stays new.

    There is no ISR to leave yet, and no data to lose.
    """
    draft.removals.pop(tp, None)
    available = draft.available(tp)
    live = tuple(broker for broker in draft.replicas_of(tp) if broker in available)
    if live:
        draft.propose(tp, LeaderAndIsr(live[0], 0, live, draft.epoch), "creation")


def _replace_leader(draft: WorkingState, tp: TopicPartition, current: LeaderAndIsr) -> None:
    if draft.partition_states.get(tp) is not PartitionState.OFFLINE:
        draft.move_partition(tp, PartitionState.OFFLINE)
    draft.log(draft.lines.election_started(tp))
    try:
        choice, is_unclean = _choose(draft, tp, current)
    except ElectionError as error:
        draft.log(draft.lines.election_failed(tp, str(error)))
        _write_offline(draft, tp, current)
        return
    state = current.next_term(choice.leader, choice.isr, draft.epoch)
    draft.propose(
        tp,
        state,
        "election",
        selector=Selector.UNCLEAN if is_unclean else Selector.OFFLINE,
        removing=draft.removals.get(tp, frozenset()),  # also the elected leader, which nobody could remove
        is_unclean=is_unclean,
    )


def _choose(draft: WorkingState, tp: TopicPartition, current: LeaderAndIsr) -> tuple[Choice, bool]:
    """Return a leader, and whether it may lack committed records.

    The best is a member of the ISR that was alive all the time; then one that came back with everything. A member
    that lost writes leads only if the whole ISR did: then nobody is known to have more. Likewise an offline one, if
    all others of the ISR are offline, too. After that, if the topic allows it or somebody asked for it, any replica,
    preferably one that is not offline.
    """
    replicas, offline = draft.replicas_of(tp), draft.offline_of(tp)
    present = frozenset(draft.brokers) - draft.shutting_down
    suspects = _suspects(draft, tp)
    kept = frozenset(current.isr) - suspects
    able = present - offline
    last = kept if kept <= present & offline else frozenset()
    for candidates in (draft.available(tp), able - suspects, last, frozenset() if kept else present):
        if any(broker in candidates for broker in current.isr):
            choice = elect_offline(current, replicas, candidates, unclean=False)
            return choice, choice.leader in suspects
    unclean = draft.is_unclean(tp.topic) or tp in draft.unclean
    rest = replace(current, isr=tuple(broker for broker in current.isr if broker in kept))
    candidates = able if not unclean or able.intersection(replicas) else present
    choice = elect_offline(rest, replicas, candidates, unclean=unclean)
    return choice, choice.is_unclean


def can_change(draft: WorkingState, tp: TopicPartition) -> bool:
    """While nobody leads: would an election find a leader now, or a member that need not be waited for?"""
    current = draft.leadership[tp]
    try:
        _choose(draft, tp, current)
    except ElectionError:
        return current.leader != NO_LEADER or _waited_for(draft, tp, current) != current.isr
    return True


def _suspects(draft: WorkingState, tp: TopicPartition) -> frozenset[BrokerId]:
    """Return the live brokers that lost writes and have yet to leave the ISR."""
    gone = draft.removals.get(tp, frozenset())
    return frozenset(broker for broker in gone if broker in draft.brokers and draft.brokers[broker].lost_writes)


def _waited_for(draft: WorkingState, tp: TopicPartition, current: LeaderAndIsr) -> tuple[int, ...]:
    if draft.is_unclean(tp.topic):
        return ()
    suspects = _suspects(draft, tp)
    return tuple(broker for broker in current.isr if broker not in suspects) or current.isr


def _write_offline(draft: WorkingState, tp: TopicPartition, current: LeaderAndIsr) -> None:
    """Write leader -1. The ISR keeps the members that may lead again: all but those that lost writes.

    If all of them did, the ISR stays, and so does the note that they have yet to leave it. With unclean elections
    there is nothing to keep.
    """
    isr = _waited_for(draft, tp, current)
    if current.leader == NO_LEADER and isr == current.isr:
        return
    removing = draft.removals.get(tp, frozenset()) - (_suspects(draft, tp) & frozenset(isr))
    draft.propose(tp, current.next_term(NO_LEADER, isr, draft.epoch), "offline", removing=removing)


def _move_off(draft: WorkingState, tp: TopicPartition, current: LeaderAndIsr) -> None:
    """Hand the leadership of a broker that is shutting down to a member of the ISR that stays."""
    if current.leader not in draft.shutdowns or tp not in draft.waiting[current.leader]:
        return
    removing = draft.removals.get(tp, frozenset())
    leaving = sorted(draft.shutting_down | removing | draft.offline_of(tp))
    draft.elect(
        tp,
        Selector.SHUTDOWN,
        lambda: elect_for_shutdown(current, draft.brokers, leaving=leaving),
        removing=removing,
    )


def _leave_offline(draft: WorkingState, tp: TopicPartition, current: LeaderAndIsr) -> None:
    """Remove offline replicas from the ISR and from the lead, if another member can lead."""
    offline = draft.offline_of(tp)
    if not offline.intersection(current.isr):
        _fence_offline(draft, tp, current, offline)
        return
    replicas, gone = draft.replicas_of(tp), draft.removals.get(tp, frozenset())
    if current.leader not in offline:
        state = current.next_term(current.leader, tuple(b for b in current.isr if b not in offline), draft.epoch)
        draft.propose(tp, state, "removal", removing=gone & offline)
        return
    candidates = draft.available(tp)
    if not candidates.intersection(current.isr):
        return
    if current.leader == replicas[0] and draft.limits.auto_leader_rebalance_enable:
        draft.to_return.add(tp)
    draft.elect(
        tp,
        Selector.OFFLINE,
        lambda: elect_offline(current, replicas, candidates, unclean=False),
        removing=gone,
    )


def _fence_offline(
    draft: WorkingState, tp: TopicPartition, current: LeaderAndIsr, offline: frozenset[BrokerId]
) -> None:
    """Begin a leader epoch in which offline replicas have not fetched, if they may have in the present one.

    The leader might otherwise admit one of them to the ISR for an earlier fetch. In the new epoch it knows that they
    are out.
    """
    here = {Replica(tp, broker) for broker in offline.intersection(draft.replicas_of(tp), draft.brokers)}
    if not here <= draft.fenced:
        draft.propose(tp, current.next_term(current.leader, current.isr, draft.epoch), "removal")


def _remove_one(draft: WorkingState, tp: TopicPartition, current: LeaderAndIsr) -> None:
    """Remove one dead or departed broker from the ISR. The leader is none of them, so the ISR is not empty."""
    gone = draft.removals.pop(tp, frozenset())
    leaving = sorted(gone & set(current.isr))
    if not leaving:
        return
    draft.removals[tp] = frozenset(leaving)
    isr = tuple(member for member in current.isr if member != leaving[0])
    state = current.next_term(current.leader, isr, draft.epoch)
    draft.propose(tp, state, "removal", removing=frozenset(leaving[:1]))


def _prefer(draft: WorkingState, tp: TopicPartition, current: LeaderAndIsr) -> None:
    """Elect the preferred replica, if that was requested and costs nothing."""
    replicas = draft.replicas_of(tp)
    if current.leader == replicas[0]:
        draft.to_return.discard(tp)
        return
    available = draft.available(tp)
    if tp in draft.to_return and replicas[0] in available.intersection(current.isr):
        draft.preferred.add(tp)
    if tp in draft.preferred:
        draft.elect(tp, Selector.PREFERRED, lambda: elect_preferred(current, replicas, available))


# In this order, while there is a leader: the first that has something to write.
_WHILE_LED = (_move_off, _leave_offline, _remove_one, reassignment.advance, _prefer)
