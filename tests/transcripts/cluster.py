"""A cluster of words: the controller's machine over a tree in memory. Its orders are done at once, and printed.

Commands (one a line; what they print stands below them in the transcript):

    brokers 1 2 3                     these register and nobody dies; `brokers +4` one more; `4!` it lost writes
    elect 3                           broker 3 becomes the controller, in the next controller epoch
    create bar 1:2:3 2:3:1            a topic, replicas of each partition; `unclean=yes` lets anybody lead; `id=bar@2`
                                      says that it is another than before, whose nodes are gone
    kill 1 2                          their sessions end in one look at the tree
    bounce 1                          it died and came back between two looks; `1~`: all that it has is offline
    offline 2 bar-0 | offline 2 all   broker 2 cannot serve or write these replicas; `offline 2`: all is well
    isr bar-0 2,3,1                   the leader writes this ISR, and the controller hears of it
    shutdown 1                        it asks to stop
    prefer bar-0 bar-1 | prefer all   a preferred replica election is asked for
    unclean bar-0                     any live replica is to lead, if nobody does
    reassign bar-0 4:5:6              the partition is to have these replicas; `cancel bar-0`: its original ones
    delete bar                        the topic is to be deleted
    tick 5000                         milliseconds pass
    percentage 60                     leader.imbalance.per.broker.percentage
    hold / go                         from now on the tree, and who deletes, are silent / answer; `go 1`: one of them
    usurp                             another broker becomes the controller, and this one has not noticed
    foreign bar-0 3 5 3,1             somebody else writes leader 3, leader epoch 5, ISR 3,1
    describe                          every partition as the tree has it; `replicas`: and on which brokers
    states                            the states of all partitions and replicas
    log                               the lines of TRACE since it was asked last
    fail                              who has to delete cannot: all that is held of it
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from logstore import TopicDescription
from replication.controller.machine import events
from replication.controller.machine.state import Controller, ControllerSettings
from replication.controller.machine.step import step
from replication.model.cluster import (
    BrokerInfo,
    ClusterState,
    Election,
    LeaderAndIsr,
    Offline,
    Reassignment,
    TopicPartition,
)
from replication.model.state_changes import StateChange
from tests.support import reassigning
from tests.support.topics import described

Order: TypeAlias = events.WriteStates | events.WriteReassignment | events.SendStopReplica


class Cluster:
    def __init__(self) -> None:
        self.state = Controller(broker=0)
        self.limits = ControllerSettings(leader_imbalance_check_interval_seconds=10)
        self.brokers: dict[int, BrokerInfo] = {}
        self.topics: dict[str, TopicDescription] = {}
        self.stored: dict[TopicPartition, LeaderAndIsr] = {}
        self.controller_epoch = 0
        self.next_broker_epoch = 1
        self.now_ms = 0
        self.holds = False
        self.held: list[Order] = []
        self.plans: dict[TopicPartition, Reassignment] = {}
        self.deletions: list[str] = []
        self.offline: dict[int, Offline] = {}
        self.election = Election()
        self.out: list[str] = []
        self.log: list[StateChange] = []
        self.queue: deque[events.Event] = deque()

    def run(self, line: str) -> list[str]:
        command, *words = line.split()
        self.out = []
        getattr(self, f"do_{command}")(*words)
        return self.out

    # --------------------------------------------------------------- commands

    def do_brokers(self, *words: str) -> None:
        for word in words:
            self._register(int(word.strip("+!")), lost_writes="!" in word)
        self._post(events.BrokersChanged(self._live()))

    def do_kill(self, *words: str) -> None:
        for word in words:
            del self.brokers[int(word)]
            self.offline.pop(int(word), None)
        if self.state.broker not in self.brokers:
            self._post(events.Resigned())
        self._post(events.BrokersChanged(self._live()))

    def do_bounce(self, *words: str) -> None:
        for word in words:
            self._register(int(word.strip("!~")), lost_writes="!" in word)
            self._say_offline(int(word.strip("!~")), ["all"] if "~" in word else [])
        self._post(events.BrokersChanged(self._live(), dict(self.offline)))

    def do_offline(self, word: str, *names: str) -> None:
        self._say_offline(int(word), names)
        self._post(events.OfflineReplicasChanged(dict(self.offline)))

    def do_elect(self, word: str) -> None:
        self.state = Controller(broker=int(word))
        self.held = []
        self.controller_epoch += 1
        self._post(events.Elected(self.controller_epoch))

    def do_create(self, name: str, *words: str) -> None:
        rows = [word for word in words if "=" not in word]
        partitions = {n: tuple(int(b) for b in row.split(":")) for n, row in enumerate(rows)}
        named = [word.removeprefix("id=") for word in words if word.startswith("id=")]
        topic_id = "" if named == ["none"] else named[0] if named else f"{name}@1"
        if name in self.topics:
            self.stored = {tp: state for tp, state in self.stored.items() if tp.topic != name}
        self.topics[name] = described(partitions, topic_id, name=name, unclean="unclean=yes" in words)
        self._post(events.TopicsChanged(dict(self.topics)))

    def do_isr(self, word: str, members: str) -> None:
        tp = partition(word)
        old = self.stored[tp]
        isr = tuple(int(member) for member in members.split(","))
        self.stored[tp] = replace(old, isr=isr, version=old.version + 1)
        self._post(events.IsrChanged(((tp, self.stored[tp]),)))

    def do_foreign(self, word: str, leader: str, epoch: str, members: str) -> None:
        tp = partition(word)
        isr = tuple(int(member) for member in members.split(","))
        self.stored[tp] = LeaderAndIsr(
            int(leader), int(epoch), isr, self.stored[tp].controller_epoch, self.stored[tp].version + 1
        )

    def do_shutdown(self, word: str) -> None:
        self._post(events.ControlledShutdownRequested(int(word), 7))

    def do_prefer(self, *words: str) -> None:
        tps = sorted(self.stored) if words == ("all",) else [partition(word) for word in words]
        self._hold(Election(tuple(tps)))

    def do_unclean(self, *words: str) -> None:
        self._hold(Election(tuple(partition(word) for word in words), is_unclean=True))

    def _hold(self, election: Election) -> None:
        self.election = election
        self._post(events.ElectionRequested(election))

    def do_reassign(self, word: str, row: str) -> None:
        tp, target = partition(word), tuple(int(broker) for broker in row.split(":") if broker)
        known = self.plans.get(tp)
        self.plans[tp] = Reassignment(target, None if known is None else known.original)
        self._post(events.ReassignmentsRequested(dict(self.plans)))

    def do_cancel(self, word: str) -> None:
        tp = partition(word)
        original = self.plans.pop(tp).original
        if original is not None:
            self.plans[tp] = Reassignment(original, original)
        self._post(events.ReassignmentsRequested(dict(self.plans)))

    def do_delete(self, *names: str) -> None:
        self.deletions += names
        self._post(events.DeleteRequested(names))

    def do_percentage(self, word: str) -> None:
        self.limits = replace(self.limits, leader_imbalance_per_broker_percentage=int(word))

    def do_tick(self, word: str) -> None:
        self.now_ms += int(word)
        self._post(events.Ticked(self.now_ms))

    def do_hold(self) -> None:
        self.holds = True

    def do_go(self, count: str = "") -> None:
        self.holds = bool(count)
        number = int(count) if count else len(self.held)
        held, self.held = self.held[:number], self.held[number:]
        for order in held:
            self._carry_out(order)

    def do_usurp(self) -> None:
        self.controller_epoch += 1

    def do_describe(self) -> None:
        for tp, state in sorted(self.stored.items()):
            self.out.append(f"{tp}: {written(state)}")

    def do_replicas(self) -> None:
        for name, topic in sorted(self.topics.items()):
            for number, replicas in topic.replicas.items():
                tp = TopicPartition(name, number)
                plan = f", to be {row(self.plans[tp].target)}" if tp in self.plans else ""
                self.out.append(f"{tp} on {row(replicas)}{plan}: {written(self.stored[tp])}")

    def do_states(self) -> None:
        for tp, state in sorted(self.state.partition_states.items()):
            replicas = [
                f"{replica.broker}:{value}"
                for replica, value in sorted(self.state.replica_states.items())
                if replica.tp == tp
            ]
            self.out.append(f"{tp}: {state} {' '.join(replicas)}")

    def do_log(self) -> None:
        self.out += [change.message for change in self.log if change.level == "TRACE"]
        self.log = []

    def do_fail(self) -> None:
        held, self.held = self.held, []
        for order in held:
            assert isinstance(order, events.SendStopReplica)
            failed = tuple(stop.tp for stop in order.partitions)
            self._post(events.ReplicasDeleted(order.broker, (), failed))

    # ---------------------------------------------------------------- effects

    def _post(self, event: events.Event) -> None:
        """One event after the other: what effects cause comes after the effects."""
        self.queue.append(event)
        if len(self.queue) > 1:
            return
        while self.queue:
            self.state, effects = step(self.state, self.queue[0], self.limits)
            for effect in effects:
                self._perform(effect)
            self.queue.popleft()

    def _perform(self, effect: events.Effect) -> None:
        match effect:
            case StateChange(level, message):
                self.log.append(effect)
                if level != "TRACE":
                    self.out.append(f"{level} {message}")
            case events.WriteStates() | events.WriteReassignment():
                self.held.append(effect) if self.holds else self._carry_out(effect)
            case events.LoadContext():
                cluster = ClusterState(
                    dict(self.brokers),
                    dict(self.topics),
                    dict(self.stored),
                    tuple(self.deletions),
                    election=self.election,
                    reassignments=dict(self.plans),
                    offline=dict(self.offline),
                )
                self._post(events.ContextLoaded(cluster, self.now_ms))
            case events.SendLeaderAndIsr():
                self.out.append(f"leadership to {effect.broker}: {told(effect.partitions)}")
            case events.SendUpdateMetadata():
                live = ",".join(str(broker.id) for broker in effect.brokers)
                self.out.append(f"metadata to {effect.broker}: live {live}; {told(effect.partitions)}")
            case events.SendStopReplica():
                tps = " ".join(str(stop.tp) for stop in effect.partitions)
                self.out.append(f"{'delete' if effect.delete else 'stop'} at {effect.broker}: {tps}")
                if effect.delete and effect.broker in self.brokers:
                    self.held.append(effect) if self.holds else self._carry_out(effect)
            case _:
                self._perform_other(effect)

    def _perform_other(self, effect: events.Effect) -> None:
        match effect:
            case events.AnswerControlledShutdown():
                self.out.append(f"shutdown answered, remaining: {' '.join(map(str, effect.remaining)) or 'none'}")
            case events.DeleteElection():
                self.election = Election()
                self.out.append("election done")
            case events.DeleteTopicNodes(topic, topic_id):
                self._forget(topic, topic_id)
            case events.Unmark(topic):
                self.out.append(f"mark of {topic} deleted")
                self.deletions = [name for name in self.deletions if name != topic]
            case events.MakeTopicId(topic):
                self.out.append(f"topic id of {topic} made")
                self.topics[topic] = replace(self.topics[topic], topic_id=f"{topic}@1")
                self._post(events.TopicsChanged(dict(self.topics)))
            case events.Resign():
                self.out.append("resigns")

    def _carry_out(self, order: Order) -> None:
        if isinstance(order, events.SendStopReplica):
            tps = tuple(stop.tp for stop in order.partitions)
            self._post(events.ReplicasDeleted(order.broker, tps))
        elif order.controller_epoch != self.controller_epoch:
            self._post(events.Fenced())
        elif isinstance(order, events.WriteStates):
            self._write(order)
        else:
            self._reassign(order)

    def _reassign(self, order: events.WriteReassignment) -> None:
        done, after = reassigning.write(self.plans, self.topics, order.write), order.write.after
        what = "reassignment over" if after is None else f"to be {row(after.target)}"
        self.out.append(f"{'write' if done.accepted else 'refused'} {done.tp}: on {row(done.replicas)}, {what}")
        self._post(done)
        self._post(events.ReassignmentsRequested(dict(self.plans)))

    def _write(self, order: events.WriteStates) -> None:
        results = []
        for write in order.writes:
            tp, state = write.tp, write.state
            now = self.stored.get(tp)
            accepted = state.version == (now.version if now else -1)
            if accepted:
                self.stored[tp] = replace(state, version=state.version + 1)
            self.out.append(f"{'write' if accepted else 'refused'} {tp}: {written(state)}")
            results.append(events.WriteResult(tp, accepted, self.stored.get(tp)))
        self._post(events.StatesWritten(tuple(results)))

    def _forget(self, topic: str, topic_id: str) -> None:
        self.out.append(f"nodes of {topic} deleted")
        self.topics.pop(topic, None)
        self.deletions = [name for name in self.deletions if name != topic]
        self.stored = {tp: state for tp, state in self.stored.items() if tp.topic != topic}
        self._post(events.TopicNodesDeleted(topic, topic_id))

    def _register(self, broker: int, *, lost_writes: bool) -> None:
        self.brokers[broker] = BrokerInfo(broker, self.next_broker_epoch, lost_writes=lost_writes)
        self.next_broker_epoch += 1

    def _say_offline(self, broker: int, names: Iterable[str]) -> None:
        self.offline.pop(broker, None)
        if names:
            tps = {partition(name): "damaged" for name in names if name != "all"}
            self.offline[broker] = Offline("disk full" if "all" in names else None, tps)

    def _live(self) -> tuple[BrokerInfo, ...]:
        return tuple(self.brokers.values())


def partition(word: str) -> TopicPartition:
    topic, _, number = word.rpartition("-")
    return TopicPartition(topic, int(number))


def row(replicas: tuple[int, ...]) -> str:
    return ",".join(map(str, replicas)) or "none"


def written(state: LeaderAndIsr) -> str:
    return f"leader {state.leader} epoch {state.leader_epoch} isr {','.join(map(str, state.isr)) or 'none'}"


def told(news: tuple[events.LeaderAndIsrPartitionState, ...]) -> str:
    groups = defaultdict(list)
    for item in news:
        offline = f"~{row(item.offline)}" if item.offline else ""
        told = f"{item.tp}@{item.state.leader_epoch}{'*' if item.is_new else ''}{offline}"
        groups[item.state.leader].append(told)
    return "; ".join(f"{leader} leads {' '.join(tps)}" for leader, tps in groups.items()) or "nothing else"
