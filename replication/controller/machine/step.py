"""The cluster machine: `step(state, event, limits) -> (state, effects)`.

Laws:

- A state node is written only if it is as it was read and the controller epoch is ours. Brokers hear of a state only
  after it was written. After a refused write, the decision is made again from the stored state.
- The leader comes from the ISR; any other replica leads only where the topic allows it or somebody asks for it, and
  that is logged.
- The ISR that a controller writes is a part of the stored one (or, after an unclean election, the leader alone).

The twelve steps of a controller failover: the driver has created /controller and incremented the epoch (1) when it
posts `Elected`; `LoadContext` sets the watches (2-6) and reads the tree (7). `ContextLoaded` starts both state
machines (8), is active from then on (9), sends every live broker everything (10), starts the rebalance task (11), and
resumes deletions (12), reassignments and requested elections.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import assert_never

from logstore.store.description import TopicDescription
from replication.controller.machine import deletion, elections, events, reassignment, rebalance
from replication.controller.machine.draft import WorkingState
from replication.controller.machine.state import Controller, ControllerSettings
from replication.controller.machine.transitions import PartitionState, ReplicaState
from replication.model.cluster import (
    NO_LEADER,
    BrokerId,
    Election,
    LeaderAndIsr,
    Offline,
    ReassignmentWritten,
    Replica,
    TopicPartition,
    WriteResult,
)

Step = tuple[Controller, tuple[events.Effect, ...]]


def step(state: Controller, event: events.Event, limits: ControllerSettings) -> Step:
    match event:
        case events.Elected(controller_epoch):
            return Controller(broker=state.broker, epoch=controller_epoch), (events.LoadContext(),)
        case events.Resigned():
            return Controller(broker=state.broker), ()
        case events.Fenced():
            return _fenced(state)
        case events.ContextLoaded():
            if state.is_active or not state.epoch:
                return state, ()
        case _:
            if not state.is_active:
                return state, ()
    if isinstance(event, events.StatesWritten) and any(
        result.stored is not None and result.stored.controller_epoch > state.epoch for result in event.results
    ):
        return _fenced(state)
    draft = WorkingState(state, limits)
    _work(draft, event)
    return draft.done()


def _work(draft: WorkingState, event: events.Event) -> None:
    match event:
        case events.ContextLoaded():
            _take_over(draft, event)
        case events.BrokersChanged():
            _brokers_changed(draft, event)
        case events.OfflineReplicasChanged(offline):
            _drive_and_tell_back(draft, _note_offline(draft, offline))
        case events.TopicsChanged(topics):
            _topics_changed(draft, topics)
        case events.StatesWritten(results):
            for result in results:
                _written(draft, result)
        case events.IsrChanged(states):
            _drive_each(draft, _note_states(draft, states))
        case events.Ticked(now_ms):
            _ticked(draft, now_ms)
        case events.Elected() | events.Resigned() | events.Fenced():
            raise AssertionError(f"{event} was handled by `step`")
        case _:
            _asked(draft, event)


def _asked(draft: WorkingState, event: events.Request) -> None:
    match event:
        case events.ElectionRequested(election):
            _elect(draft, election)
        case events.ReassignmentsRequested(plans):
            _drive_each(draft, reassignment.note(draft, plans))
            _begin_delayed_deletions(draft)
        case ReassignmentWritten():
            reassignment.written(draft, event)
            _begin_delayed_deletions(draft)
            elections.drive(draft, event.tp)
        case events.ControlledShutdownRequested(broker, request):
            _shut_down(draft, broker, request)
        case events.DeleteRequested(names):
            deletion.begin(draft, names)
        case events.ReplicasDeleted():
            deletion.replicas_deleted(draft, event)
            _drive_each(draft, event.deleted)
        case events.TopicNodesDeleted():
            deletion.nodes_deleted(draft, event)
        case _:
            assert_never(event)


def _drive_each(draft: WorkingState, tps: Iterable[TopicPartition]) -> None:
    for tp in tps:
        elections.drive(draft, tp)


def _fenced(state: Controller) -> Step:
    return Controller(broker=state.broker), (events.Resign(),)


def _take_over(draft: WorkingState, event: events.ContextLoaded) -> None:
    """Begin a term with the content of the tree.

    It makes up for what its predecessor could not do when brokers died, perhaps because it was one of them: dead
    leaders are replaced, and dead followers leave the ISR at once instead of when their leaders find them too slow.
    So do brokers that lost writes, since no leader would know.
    """
    cluster = event.cluster
    draft.is_active = True
    draft.brokers = dict(cluster.brokers)
    draft.offline = dict(cluster.offline)
    draft.leadership = dict(cluster.leadership)
    tps = _note_topics(draft, dict(cluster.topics))
    reassignment.note(draft, cluster.reassignments)
    draft.tell_metadata(tps)
    in_sync = {member for state in draft.leadership.values() for member in state.isr}
    _note_removals(draft, in_sync - draft.brokers.keys())
    _note_removals(draft, [broker.id for broker in draft.brokers.values() if broker.lost_writes])
    deletion.begin(draft, cluster.deletions)
    _drive_and_tell(draft, tps, draft.brokers)
    if cluster.election.partitions:
        _elect(draft, cluster.election)
    rebalance.start(draft, event.now_ms)


def _brokers_changed(draft: WorkingState, event: events.BrokersChanged) -> None:
    now = {broker.id: broker for broker in event.live}
    dead = sorted(b for b, info in draft.brokers.items() if b not in now or now[b].epoch != info.epoch)
    started = sorted(b for b, i in now.items() if b not in draft.brokers or draft.brokers[b].epoch != i.epoch)
    draft.brokers = now
    newer = _note_states(draft, event.states)
    changed = {} if event.offline is None else _note_offline(draft, event.offline)
    if dead:
        _failed(draft, dead)
    if started:
        _started(draft, started)
    if dead or started:
        draft.tell_metadata(())
        _drive_and_tell(draft, draft.partitions_on({*dead, *started}), started)
        for tp, move in list(draft.moves.items()):
            if move.is_leaving:
                elections.drive(draft, tp)  # brokers that are no replicas any more must delete theirs
    _drive_each(draft, newer)
    _drive_and_tell_back(draft, changed)


def _note_offline(
    draft: WorkingState, offline: Mapping[BrokerId, Offline]
) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """Take the offline replicas, and tell all brokers. Returns each changed partition, with who can serve it again."""
    before, draft.offline = draft.offline, dict(offline)
    none = Offline()
    brokers = [b for b in sorted({*before, *offline}) if before.get(b, none) != offline.get(b, none)]
    for broker in brokers:
        draft.log(draft.lines.replicas_offline(broker, offline.get(broker)))
    changed: dict[TopicPartition, tuple[BrokerId, ...]] = {}
    for tp in draft.partitions_on(brokers):
        held = [broker for broker in brokers if broker in draft.replicas_of(tp)]
        was = {broker for broker in held if before.get(broker, none).reason(tp) is not None}
        now = {broker for broker in held if offline.get(broker, none).reason(tp) is not None}
        if was != now:
            changed[tp] = tuple(sorted(was - now))
    draft.fenced = {replica for replica in draft.fenced if replica.broker in draft.offline_of(replica.tp)}
    draft.tell_metadata(changed)
    return changed


def _drive_and_tell_back(draft: WorkingState, changed: Mapping[TopicPartition, tuple[BrokerId, ...]]) -> None:
    """Decide these partitions; repeat the state to replicas that are back, which may have missed it."""
    for tp, back in changed.items():
        elections.drive(draft, tp)
        if tp not in draft.pending:
            draft.tell_replicas(tp, back)


def _drive_and_tell(draft: WorkingState, tps: list[TopicPartition], receivers: Collection[BrokerId]) -> None:
    """Decide first; tell these brokers now only what is not about to change, and the rest when it is written.

    A leader that lost writes must not hear that it leads, not even for a moment: its followers would truncate their
    logs.
    """
    for tp in tps:
        elections.drive(draft, tp)
        if tp not in draft.pending:
            draft.tell_replicas(tp, [broker for broker in draft.replicas_of(tp) if broker in receivers])


def _failed(draft: WorkingState, dead: list[BrokerId]) -> None:
    draft.shutting_down -= set(dead)
    draft.to_return -= {tp for tp in draft.to_return if draft.replicas_of(tp)[0] in dead}
    for broker in dead:
        draft.shutdowns.pop(broker, None)
    deletion.brokers_gone(draft, dead)
    _note_removals(draft, dead)
    for tp in draft.partitions_on(dead):
        for broker in draft.replicas_of(tp):
            state = draft.replica_states.get(Replica(tp, broker))
            if broker in dead and state in (ReplicaState.NEW, ReplicaState.ONLINE):
                draft.move_replica(tp, broker, ReplicaState.OFFLINE)


def _started(draft: WorkingState, started: list[BrokerId]) -> None:
    """Send these brokers all metadata; those that lost writes leave every ISR that has another member."""
    _note_removals(draft, [broker for broker in started if draft.brokers[broker].lost_writes])
    draft.tell_metadata(draft.leadership, started)
    for tp in draft.partitions_on(started):
        for broker in draft.replicas_of(tp):
            if broker not in started:
                continue
            if tp.topic in draft.deletions:
                deletion.drive(draft, tp)
            elif tp in draft.leadership:
                draft.move_replica(tp, broker, ReplicaState.ONLINE)


def _note_removals(draft: WorkingState, brokers: Iterable[BrokerId]) -> list[TopicPartition]:
    """Note that these brokers must leave every ISR; return their partitions."""
    gone = frozenset(brokers)
    tps = [tp for tp in draft.partitions_on(gone) if tp.topic not in draft.deletions]
    for tp in tps:
        draft.removals[tp] = draft.removals.get(tp, frozenset()) | (gone & frozenset(draft.replicas_of(tp)))
    return tps


def _shut_down(draft: WorkingState, broker: BrokerId, request: int) -> None:
    """Move leadership off a broker that wants to stop, and remove it from every ISR where it is not alone."""
    if broker not in draft.brokers:
        draft.also(events.AnswerControlledShutdown(request, ()))
        return
    draft.shutting_down.add(broker)
    tps = [
        tp
        for tp in draft.partitions_on([broker])
        if len(draft.replicas_of(tp)) > 1 and tp in draft.leadership and tp.topic not in draft.deletions
    ]
    draft.shutdowns[broker], draft.waiting[broker] = request, set(tps)
    for tp in tps:
        if draft.leadership[tp].leader != broker:
            draft.tell_to_stop(tp, broker, delete=False)
            draft.move_replica(tp, broker, ReplicaState.OFFLINE)
            draft.removals[tp] = draft.removals.get(tp, frozenset()) | {broker}
    _drive_each(draft, tps)
    if not tps:
        elections.answer_shutdown(draft, broker)


def _topics_changed(draft: WorkingState, topics: dict[str, TopicDescription]) -> None:
    _drive_each(draft, _note_topics(draft, topics))
    _begin_delayed_deletions(draft)


def _note_topics(draft: WorkingState, topics: dict[str, TopicDescription]) -> list[TopicPartition]:
    for name in sorted(draft.topics.keys() - topics.keys()):
        deletion.forget(draft, name)
    for name, topic in sorted(topics.items()):
        known = draft.topics.get(name)
        if known is not None and known.topic_id and topic.topic_id != known.topic_id:
            deletion.forget(draft, name)  # deleted and recreated
            known = None
        if not topic.topic_id:
            draft.also(events.MakeTopicId(name))
        kept = {} if known is None else known.replicas
        draft.topics[name] = topic.assigned({**topic.replicas, **kept})
        for tp in deletion.partitions_of(draft, name):
            if tp.partition not in kept:
                _add_partition(draft, tp)
    return [tp for name in sorted(draft.topics) for tp in deletion.partitions_of(draft, name)]


def _add_partition(draft: WorkingState, tp: TopicPartition) -> None:
    """Add a partition that is new to this controller, though perhaps not to the cluster."""
    current = draft.leadership.get(tp)
    if current is None:
        draft.move_partition(tp, PartitionState.NEW)
    elif current.leader != NO_LEADER and current.leader in draft.brokers:
        draft.partition_states[tp] = PartitionState.ONLINE
    else:
        draft.partition_states[tp] = PartitionState.OFFLINE
    for broker in draft.replicas_of(tp):
        state = ReplicaState.NEW
        if current is not None:
            state = ReplicaState.ONLINE if broker in draft.brokers else ReplicaState.DELETION_INELIGIBLE
        draft.replica_states[Replica(tp, broker)] = state


def _begin_delayed_deletions(draft: WorkingState) -> None:
    deletion.begin(draft, sorted(draft.delayed_deletions - {tp.topic for tp in draft.moves}))


def _elect(draft: WorkingState, election: Election) -> None:
    """Begin the elections that somebody asked for. One that has a leader keeps it in an unclean election."""
    known = [tp for tp in election.partitions if tp in draft.leadership and tp.topic not in draft.deletions]
    draft.has_election_node = True
    if election.is_unclean:
        known = [tp for tp in known if draft.leadership[tp].leader not in draft.brokers]
        draft.unclean.update(known)
    else:
        draft.preferred.update(known)
    _drive_each(draft, known)
    elections.maybe_end_election(draft)


def _written(draft: WorkingState, result: WriteResult) -> None:
    """Take the outcome of one write, accepted or refused, and decide the partition again."""
    tp = result.tp
    pending = draft.pending.pop(tp, None)
    if pending is None or not draft.replicas_of(tp):
        return
    if result.stored is None:
        draft.leadership.pop(tp, None)  # the topic is gone; an event will say so
        return
    is_new = result.accepted and tp not in draft.leadership
    removals = draft.removals.get(tp, frozenset())
    if result.accepted:
        elections.accepted(draft, tp, result.stored, pending.reason, is_unclean=pending.is_unclean)
        draft.fenced |= {Replica(tp, broker) for broker in draft.offline_of(tp)}
    else:
        draft.leadership[tp] = result.stored
        if pending.removing:
            draft.removals[tp] = draft.removals.get(tp, frozenset()) | pending.removing
    if tp.topic in draft.deletions:
        deletion.drive(draft, tp)
    elif pending.reason == "offline" and not elections.can_change(draft, tp):
        elections.settle(draft, tp)
    else:
        elections.drive(draft, tp)
    _tell_written(draft, result, removals, is_new=is_new)


def _tell_written(draft: WorkingState, result: WriteResult, removals: frozenset[BrokerId], *, is_new: bool) -> None:
    """Tell the stored state, after deciding again; `removals` were to leave the ISR before that.

    While the write was in flight a broker may have died and come back without its data. If it leads by that write,
    no broker gets it, since its followers would truncate their logs. Otherwise it gets the next write.
    """
    tp = result.tp
    if tp not in draft.pending:
        draft.tell_replicas(tp, is_new=is_new)
    elif not result.accepted:
        return
    elif draft.leadership[tp].leader not in removals:
        fit = [broker for broker in draft.replicas_of(tp) if broker not in removals]
        draft.tell_replicas(tp, fit, is_new=is_new)
    draft.tell_metadata([tp])


def _note_states(draft: WorkingState, states: Iterable[tuple[TopicPartition, LeaderAndIsr]]) -> list[TopicPartition]:
    """Take the states that are newer than the known ones, and tell all brokers; return their partitions."""
    newer = {
        tp: stored for tp, stored in states if tp in draft.leadership and stored.version > draft.leadership[tp].version
    }
    draft.leadership.update(newer)
    draft.tell_metadata(newer)
    return list(newer)


def _ticked(draft: WorkingState, now_ms: int) -> None:
    for topic in sorted(draft.deletions):
        for tp in deletion.partitions_of(draft, topic):
            deletion.drive(draft, tp)
    for tp, move in list(draft.moves.items()):
        if move.is_leaving:
            reassignment.proceed(draft, tp)  # repeat deletions that failed
    rebalance.maybe_rebalance(draft, now_ms)
