"""WorkingState: the state of a controller while one event is processed, and the resulting effects.

`done` returns the new state and the effects: log lines first, then requests to brokers (leadership, stops, metadata),
then writes, then the rest. Requests tell only what is already written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from logstore.store.description import TopicDescription
from replication.controller.machine import events
from replication.controller.machine.assignment import Choice, ElectionError
from replication.controller.machine.state import Controller, ControllerSettings, Move, Pending
from replication.controller.machine.transitions import (
    PARTITION_ENTERED_FROM,
    REPLICA_ENTERED_FROM,
    PartitionState,
    ReplicaState,
)
from replication.model.cluster import (
    LEADER_DURING_DELETE,
    NO_EPOCH,
    UNCLEAN,
    Assignment,
    BrokerId,
    BrokerInfo,
    LeaderAndIsr,
    LeaderAndIsrPartitionState,
    Offline,
    Replica,
    TopicPartition,
)
from replication.model.edit import freeze, thaw
from replication.model.state_changes import ControllerLines, StateChange


class WorkingState:
    broker: BrokerId
    epoch: int
    is_active: bool
    brokers: dict[BrokerId, BrokerInfo]
    offline: dict[BrokerId, Offline]
    topics: dict[str, TopicDescription]
    leadership: dict[TopicPartition, LeaderAndIsr]
    partition_states: dict[TopicPartition, PartitionState]
    replica_states: dict[Replica, ReplicaState]
    pending: dict[TopicPartition, Pending]
    removals: dict[TopicPartition, frozenset[BrokerId]]
    preferred: set[TopicPartition]
    unclean: set[TopicPartition]
    to_return: set[TopicPartition]
    fenced: set[Replica]
    has_election_node: bool
    shutting_down: set[BrokerId]
    shutdowns: dict[BrokerId, int]
    deletions: set[str]
    delayed_deletions: set[str]
    moves: dict[TopicPartition, Move]
    next_rebalance_ms: int | None

    def __init__(self, state: Controller, limits: ControllerSettings) -> None:
        thaw(state, self)
        # Sets, since thousands of partitions are taken out one by one.
        self.waiting = {broker: set(tps) for broker, tps in state.waiting.items()}
        self.limits = limits
        self.lines = ControllerLines(state.broker, state.epoch)
        self._log: list[StateChange] = []
        self._leadership_for: dict[BrokerId, dict[TopicPartition, bool]] = {}
        self._metadata_for: dict[BrokerId, dict[TopicPartition, LeaderAndIsr]] = {}
        self._stops_for: dict[tuple[BrokerId, bool], dict[TopicPartition, events.Stop]] = {}
        self._writes: list[events.StateWrite] = []
        self._others: list[events.Effect] = []

    def done(self) -> tuple[Controller, tuple[events.Effect, ...]]:
        """Return the state after the event, and the effects in the order in which they must be performed."""
        waiting = {broker: frozenset(self.waiting[broker]) for broker in self.shutdowns}
        state = freeze(Controller, self, waiting=waiting)
        effects: list[events.Effect] = [*self._log, *self._requests()]
        if self._writes:
            effects.append(events.WriteStates(self.epoch, tuple(self._writes)))
        return state, (*effects, *self._others)

    def partitions(self) -> Iterable[tuple[TopicPartition, Assignment]]:
        for name, topic in self.topics.items():
            for number, replicas in topic.replicas.items():
                yield TopicPartition(name, number), replicas

    def partitions_on(self, brokers: Collection[BrokerId]) -> list[TopicPartition]:
        return [tp for tp, replicas in self.partitions() if any(broker in brokers for broker in replicas)]

    def replicas_of(self, tp: TopicPartition) -> Assignment:
        topic = self.topics.get(tp.topic)
        return () if topic is None else topic.replicas.get(tp.partition, ())

    def is_unclean(self, topic: str) -> bool:
        """Return whether the topic may elect a leader outside its ISR; without a setting of its own, as brokers may."""
        own = self.topics[topic].overrides.get(UNCLEAN)
        return self.limits.unclean_leader_election_enable if own is None else own.lower() == "true"

    def offline_of(self, tp: TopicPartition) -> frozenset[BrokerId]:
        return frozenset(broker for broker, offline in self.offline.items() if offline.reason(tp) is not None)

    def available(self, tp: TopicPartition) -> frozenset[BrokerId]:
        """Return who may be elected: alive, not offline, not shutting down, not about to leave this ISR."""
        gone = self.removals.get(tp, frozenset()) | self.offline_of(tp)
        return frozenset(self.brokers) - self.shutting_down - gone

    def log(self, change: StateChange) -> None:
        self._log.append(change)

    def also(self, effect: events.Effect) -> None:
        self._others.append(effect)

    def assign(self, tp: TopicPartition, replicas: Assignment) -> None:
        topic = self.topics[tp.topic]
        self.topics[tp.topic] = topic.assigned({**topic.replicas, tp.partition: replicas})

    def elect(
        self,
        tp: TopicPartition,
        selector: events.Selector,
        choose: Callable[[], Choice],
        *,
        removing: frozenset[BrokerId] = frozenset(),
    ) -> None:
        """Propose the leader that `choose` returns; log the failure if there is none."""
        self.log(self.lines.election_started(tp))
        try:
            choice = choose()
        except ElectionError as error:
            self.log(self.lines.election_failed(tp, str(error)))
            return
        state = self.leadership[tp].next_term(choice.leader, choice.isr, self.epoch)
        self.propose(tp, state, "election", selector=selector, removing=removing)

    def move_partition(self, tp: TopicPartition, after: PartitionState) -> None:
        """Move a partition to another state; a line is logged unless it stays where it is."""
        before = self.partition_states.get(tp, PartitionState.NON_EXISTENT)
        assert before in PARTITION_ENTERED_FROM[after], f"{tp}: {before} to {after}"
        if after is PartitionState.NON_EXISTENT:
            self.partition_states.pop(tp, None)
        else:
            self.partition_states[tp] = after
        if after is PartitionState.ONLINE:
            self.log(self.lines.partition_online(tp, before, self.leadership[tp].leader))
        elif before is not after:
            self.log(self.lines.partition_changed(tp, before, after))

    def move_replica(self, tp: TopicPartition, broker: BrokerId, after: ReplicaState) -> None:
        """Move a replica to another state; a line is logged unless it stays where it is."""
        replica = Replica(tp, broker)
        before = self.replica_states.get(replica, ReplicaState.NON_EXISTENT)
        assert before in REPLICA_ENTERED_FROM[after], f"{replica}: {before} to {after}"
        if after is ReplicaState.NON_EXISTENT:
            self.replica_states.pop(replica, None)
        else:
            self.replica_states[replica] = after
        if before is not after:
            self.log(self.lines.replica_changed(replica, before, after))

    def propose(
        self,
        tp: TopicPartition,
        state: LeaderAndIsr,
        reason: str,
        *,
        selector: events.Selector | None = None,
        removing: frozenset[BrokerId] = frozenset(),
        is_unclean: bool = False,
    ) -> None:
        """Write this state on the condition of its version; the outcome comes as an event.

        The brokers that it removes from the ISR are no longer in `removals`, unless it is refused.
        """
        assert tp not in self.pending, f"{tp}: two writes at once"
        if left := self.removals.pop(tp, frozenset()) - removing:
            self.removals[tp] = left
        selected = None
        if selector is not None:
            assigned = self.replicas_of(tp)
            live = tuple(broker for broker in assigned if broker in self.brokers)
            selected = events.Selected(selector, assigned, live, self.leadership[tp].isr)
        write = events.StateWrite(tp, state, selected)
        self.pending[tp] = Pending(write, reason, removing, is_unclean)
        self._writes.append(write)

    def tell_replicas(
        self, tp: TopicPartition, receivers: Iterable[BrokerId] | None = None, *, is_new: bool = False
    ) -> None:
        """Tell these replicas (default: all) who leads; those that are down or stopped hear nothing."""
        for broker in self.replicas_of(tp) if receivers is None else receivers:
            is_on = self.replica_states.get(Replica(tp, broker)) in (ReplicaState.NEW, ReplicaState.ONLINE)
            if broker in self.brokers and is_on and tp in self.leadership:
                partitions = self._leadership_for.setdefault(broker, {})
                partitions[tp] = partitions.get(tp, False) or is_new

    def tell_metadata(self, tps: Iterable[TopicPartition], receivers: Iterable[BrokerId] | None = None) -> None:
        """Tell live brokers (default: all) the state of these partitions, or that their topic is deleted."""
        known = [(tp, self._shown(tp, self.leadership[tp])) for tp in tps if tp in self.leadership]
        for broker in self.brokers if receivers is None else receivers:
            self._metadata_for.setdefault(broker, {}).update(known)

    def _shown(self, tp: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr:
        return replace(state, leader=LEADER_DURING_DELETE) if tp.topic in self.deletions else state

    def tell_to_stop(self, tp: TopicPartition, broker: BrokerId, *, delete: bool, leader_epoch: int = NO_EPOCH) -> None:
        """Tell a broker to stop a replica, and with `delete` to delete it; `leader_epoch` as in `Stop`."""
        topic_id = self.topics[tp.topic].topic_id
        if broker in self.brokers and topic_id:
            self._stops_for.setdefault((broker, delete), {})[tp] = events.Stop(tp, topic_id, leader_epoch)

    def _described(
        self, tp: TopicPartition, state: LeaderAndIsr, *, is_new: bool = False
    ) -> LeaderAndIsrPartitionState:
        replicas, gone = self.replicas_of(tp), self.offline_of(tp)
        offline = tuple(broker for broker in replicas if broker in gone)
        return LeaderAndIsrPartitionState(tp, self.topics[tp.topic].topic_id, state, replicas, is_new, offline)

    def _requests(self) -> Iterable[events.Effect]:
        for broker, partitions in sorted(self._leadership_for.items()):
            rows = tuple(self._described(tp, self.leadership[tp], is_new=new) for tp, new in partitions.items())
            yield events.SendLeaderAndIsr(broker, self.brokers[broker].epoch, self.epoch, rows)
        for (broker, delete), stops in sorted(self._stops_for.items()):
            yield events.SendStopReplica(broker, self.brokers[broker].epoch, self.epoch, tuple(stops.values()), delete)
        live = tuple(self.brokers[broker] for broker in sorted(self.brokers))
        for broker, states in sorted(self._metadata_for.items()):
            rows = tuple(self._described(tp, state) for tp, state in states.items() if self.replicas_of(tp))
            yield events.SendUpdateMetadata(broker, self.brokers[broker].epoch, self.epoch, live, rows)
