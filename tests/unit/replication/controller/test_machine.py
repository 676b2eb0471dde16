"""Laws of the cluster machine, whatever happens in whatever order; scenarios are in tests/transcripts."""

import copy
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from replication.controller.machine import events
from replication.controller.machine.state import Controller, ControllerSettings
from replication.controller.machine.step import step
from replication.controller.machine.transitions import PARTITION_ENTERED_FROM, REPLICA_ENTERED_FROM
from replication.model.cluster import (
    NO_LEADER,
    UNCLEAN,
    Assignment,
    BrokerInfo,
    Election,
    LeaderAndIsr,
    Offline,
    Reassignment,
    ReassignmentWrite,
    ReassignmentWritten,
    TopicPartition,
)
from tests.support import reassigning
from tests.support.topics import described

LIMITS = ControllerSettings(leader_imbalance_check_interval_seconds=1)
ALL = (1, 2, 3, 4)
T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)


class World:
    """A tree that answers late and out of order, changes under the controller's feet, and counts who was told."""

    def __init__(self, unclean: bool) -> None:
        self.state = Controller(broker=1)
        self.epoch = 0
        self.unclean = unclean
        self.live = {b: BrokerInfo(b, b) for b in ALL}
        self.next_epoch = 10
        self.stored: dict[TopicPartition, LeaderAndIsr] = {}
        self.topics = {"t": described({0: (1, 2, 3)}, "t@1", unclean=unclean)}
        self.deletions: list[str] = []
        self.offline: dict[int, Offline] = {}
        self.orders: list[events.WriteStates | events.WriteReassignment] = []
        self.plans: dict[TopicPartition, Reassignment] = {}
        self.election = Election()  # one that is unclean
        self.told: dict[tuple[TopicPartition, int], Assignment] = {}  # what a leader knows of its replicas, per epoch
        self.to_delete: list[events.SendStopReplica] = []
        # Lives that have lost writes while an ISR counted on a former one of the broker, and since.
        self.tainted: dict[tuple[TopicPartition, int], int] = {}
        self.now_ms = 0

    def post(self, event) -> None:
        before = copy.deepcopy(self.state)
        state, effects = step(self.state, event, LIMITS)
        assert self.state == before, "step changes nothing that it was given"
        self.state = state
        assert not state.deletions & state.delayed_deletions
        self.check_moves(before)
        self.check_losses()
        for effect in effects:
            self.check(effect)
            match effect:
                case events.WriteStates() | events.WriteReassignment():
                    self.orders.append(effect)
                case events.LoadContext():
                    cluster = (dict(self.live), dict(self.topics), dict(self.stored), tuple(self.deletions))
                    found = events.ClusterState(
                        *cluster, reassignments=dict(self.plans), offline=dict(self.offline), election=self.election
                    )
                    self.post(events.ContextLoaded(found, self.now_ms))
                    return
                case events.SendLeaderAndIsr():
                    for news in effect.partitions:
                        if news.state.leader == effect.broker:
                            self.told[news.tp, news.state.leader_epoch] = news.replicas
                case events.SendStopReplica(delete=True):
                    self.to_delete.append(effect)
                case events.DeleteElection():
                    self.election = Election()
                case events.Unmark(topic):
                    assert topic not in self.topics
                    self.deletions = [name for name in self.deletions if name != topic]
                case events.DeleteTopicNodes(topic, topic_id):
                    self.topics.pop(topic, None)
                    self.deletions = [name for name in self.deletions if name != topic]
                    self.stored = {tp: s for tp, s in self.stored.items() if tp.topic != topic}
                    self.post(events.TopicNodesDeleted(topic, topic_id))

    def check(self, effect) -> None:
        match effect:
            case events.WriteStates(epoch, writes):
                assert epoch == self.state.epoch
                for write in writes:
                    self.check_write(write)
            case events.SendLeaderAndIsr(broker, broker_epoch, _, partitions):
                assert self.state.brokers[broker].epoch == broker_epoch
                for news in partitions:
                    assert news.state == self.state.leadership[news.tp], "told is what is written"
            case events.SendStopReplica(broker, delete=True, partitions=partitions):
                for stop in partitions:
                    assert stop.tp.topic in self.state.deletions or self.leaves(stop.tp, broker)

    def leaves(self, tp: TopicPartition, broker: int) -> bool:
        move = self.state.moves[tp]
        return move.is_leaving and broker not in self.state.topics[tp.topic].replicas[tp.partition]

    def is_offline(self, tp: TopicPartition, broker: int) -> bool:
        return broker in self.state.offline and self.state.offline[broker].reason(tp) is not None

    def check_moves(self, before: Controller) -> None:
        """(R34) Replicas go when all that stay are in the ISR, and nobody else; of a cancelled one, all that live.

        An offline replica is dead.
        """
        for tp, move in self.state.moves.items():
            assert tp.topic not in self.state.deletions
            known = before.moves.get(tp)
            if move.is_leaving and not (known and known.is_leaving):
                target, isr = set(move.plan.target), set(self.state.leadership[tp].isr)
                live = {broker for broker in self.state.brokers if not self.is_offline(tp, broker)}
                needed = target & live if move.plan.target == move.plan.original else target
                assert isr <= target
                assert needed <= isr or self.state.leadership[tp].leader == NO_LEADER
                assert isr

    def check_write(self, write: events.StateWrite) -> None:
        before, after = self.state.leadership.get(write.tp), write.state
        assert self.state.pending[write.tp].write == write
        assert after.controller_epoch == self.state.epoch
        if before is None:
            assert (after.leader_epoch, after.version, after.leader) == (0, -1, after.isr[0])
            return
        assert (after.leader_epoch, after.version) == (before.leader_epoch + 1, before.version)
        if after.leader != NO_LEADER:
            assert after.leader in after.isr
            assert after.leader in self.state.brokers
            is_clean = set(after.isr) <= set(before.isr)
            assert is_clean or (self.is_unclean(write.tp) and after.isr == (after.leader,))
            self.check_offline(write.tp, before, after)
        elif not self.unclean and write.tp.topic not in self.state.deletions:
            assert after.isr, "who was in sync last is kept"

    def is_unclean(self, tp: TopicPartition) -> bool:
        """May anybody lead it? The topic's setting allows it, or the node that asks for it is there."""
        return self.unclean or tp in self.election.partitions

    def check_offline(self, tp: TopicPartition, before: LeaderAndIsr, after: LeaderAndIsr) -> None:
        """An offline replica takes no lead, unless nobody else of the ISR is left."""
        offline = {broker for broker, said in self.state.offline.items() if said.reason(tp)}
        if after.leader in offline and after.leader != before.leader and not self.is_unclean(tp):
            kept = {b for b in before.isr if b not in self.state.brokers or not self.state.brokers[b].lost_writes}
            assert kept <= offline & set(self.state.brokers) or not kept
        if after.isr and set(after.isr) <= offline and not self.is_unclean(tp):
            info = self.state.brokers.get(before.leader)
            is_sound = info is not None and not info.lost_writes and before.leader not in offline
            assert not is_sound, "a sound leader stays in the ISR"

    def check_losses(self) -> None:
        """(R10) Who is known to have lost writes is about to leave each ISR that counts on a former life of it."""
        for (tp, broker), epoch in self.tainted.items():
            info, pending = self.state.brokers.get(broker), self.state.pending.get(tp)
            is_known = info is not None and info.epoch == epoch and tp in self.state.leadership
            if is_known and tp.topic not in self.state.deletions:
                leaving = self.state.removals.get(tp, frozenset()) | (pending.removing if pending else frozenset())
                assert broker in leaving, f"{tp}: {broker} stays in {self.stored[tp]}"

    def note_brokers(self) -> None:
        """Tell the controller, as its driver does, of the brokers and of the ISRs of those that lost writes."""
        live = tuple(self.live.values())
        doubtful = self.state.partitions_in_doubt(live)
        states = tuple((tp, self.stored[tp]) for tp in doubtful if tp in self.stored)
        self.post(events.BrokersChanged(live, dict(self.offline), states))

    def store(self, tp: TopicPartition, state: LeaderAndIsr, *, is_elected: bool) -> None:
        self.stored[tp] = state
        is_over = is_elected and (tp, state.leader) in self.tainted  # what it has is the truth from now on
        for broker in ALL:
            if is_over or broker not in state.isr:
                self.tainted.pop((tp, broker), None)

    def write(self, order: events.WriteStates | events.WriteReassignment) -> None:
        if order.controller_epoch != self.epoch:
            self.post(events.Fenced())
        elif isinstance(order, events.WriteStates):
            self.write_states(order)
        else:
            self.write_reassignment(order)

    def write_reassignment(self, order: events.WriteReassignment) -> None:
        self.post(reassigning.write(self.plans, self.topics, order.write))
        self.post(events.ReassignmentsRequested(dict(self.plans)))

    def write_states(self, order: events.WriteStates) -> None:
        results = []
        for write in order.writes:
            now = self.stored.get(write.tp)
            accepted = write.state.version == (now.version if now else -1) and write.tp.topic in self.topics
            if accepted:
                self.store(write.tp, replace(write.state, version=write.state.version + 1), is_elected=True)
            results.append(events.WriteResult(write.tp, accepted, self.stored.get(write.tp)))
        self.post(events.StatesWritten(tuple(results)))


def register(world: World, broker: int, *, lost_writes: bool) -> None:
    counted = [(tp, broker) for tp, state in world.stored.items() if broker in state.isr]
    lost_writes |= any(key in world.tainted for key in counted)  # it says so until that is decided
    world.live[broker] = BrokerInfo(broker, world.next_epoch, lost_writes=lost_writes)
    world.tainted.update((key, world.next_epoch) for key in counted if lost_writes)
    world.next_epoch += 1


def write_offline(world: World, broker: int, offline: Offline | None) -> None:
    world.offline.pop(broker, None)
    if offline is not None:
        world.offline[broker] = offline


def elect(world: World) -> None:
    world.epoch += 1
    world.orders = []
    world.post(events.Elected(world.epoch))


def leader_writes(world: World, isr: tuple[int, ...], heard: bool) -> None:
    for tp, stored in list(world.stored.items()):
        known = world.told.get((tp, stored.leader_epoch), ())
        if stored.leader in known and (tp, stored.leader) not in world.tainted:
            may_join = {*stored.isr, *world.live}  # it admits lives that are registered
            members = (stored.leader, *(b for b in isr if b != stored.leader and b in known and b in may_join))
            world.store(tp, replace(stored, isr=members, version=stored.version + 1), is_elected=False)
            if heard:
                world.post(events.IsrChanged(((tp, world.stored[tp]),)))


def act(world: World, action) -> None:
    match action:
        case ("dies", broker):
            world.live.pop(broker, None)
            world.offline.pop(broker, None)
            world.note_brokers()
        case ("starts", broker, lost, offline):
            register(world, broker, lost_writes=lost)
            write_offline(world, broker, offline)
            world.note_brokers()
        case ("offline", broker, offline) if broker in world.live:
            write_offline(world, broker, offline)
            world.post(events.OfflineReplicasChanged(dict(world.offline)))
        case ("registers unseen", broker, lost):
            register(world, broker, lost_writes=lost)
        case ("writes", number) if world.orders:
            world.write(world.orders.pop(number % len(world.orders)))
        case ("isr", isr, heard):
            leader_writes(world, isr, heard)
        case ("loses", broker):
            leader_writes(world, ALL, heard=False)
            register(world, broker, lost_writes=True)
            world.note_brokers()
        case _:
            ask(world, action)


def ask(world: World, action) -> None:
    match action:
        case ("create", row):
            world.topics.setdefault("u", described({0: row}, "u@1", name="u", unclean=world.unclean))
            world.post(events.TopicsChanged(dict(world.topics)))
        case ("delete",):
            world.deletions.append("u")
            world.post(events.DeleteRequested(("u",)))
        case ("deleted",) if world.to_delete:
            order = world.to_delete.pop()
            world.post(events.ReplicasDeleted(order.broker, tuple(stop.tp for stop in order.partitions)))
        case ("shutdown", broker):
            world.post(events.ControlledShutdownRequested(broker, 1))
        case ("prefer",):
            world.post(events.ElectionRequested(Election((T0, U0))))
        case ("unclean",):
            world.election = Election((T0, U0), is_unclean=True)
            world.post(events.ElectionRequested(world.election))
        case ("tick",):
            world.now_ms += 3000
            world.post(events.Ticked(world.now_ms))
        case ("elect",):
            elect(world)
        case ("usurped",):
            world.epoch += 1
        case _:
            move(world, action)


def move(world: World, action) -> None:
    match action:
        case ("reassign", tp, target, heard):
            known = world.plans.get(tp)
            world.plans[tp] = Reassignment(target, known.original if known else None)
            if heard:
                world.post(events.ReassignmentsRequested(dict(world.plans)))
        case ("cancel", tp) if tp in world.plans:
            original = world.plans[tp].original
            if original is None:
                del world.plans[tp]
            else:
                world.plans[tp] = Reassignment(original, original)
            world.post(events.ReassignmentsRequested(dict(world.plans)))


BROKER = st.sampled_from(ALL)
TP = st.sampled_from([T0, U0])
OFFLINE = st.sampled_from([None, None, Offline("disk full"), Offline(None, {T0: "damaged"})])
ROW = st.lists(BROKER, unique=True, min_size=1, max_size=3).map(tuple)
ACTIONS = st.one_of(
    st.tuples(st.just("dies"), BROKER),
    st.tuples(st.just("starts"), BROKER, st.booleans(), OFFLINE),
    *[st.tuples(st.just("offline"), BROKER, OFFLINE)] * 2,
    st.tuples(st.just("registers unseen"), BROKER, st.booleans()),
    *[st.tuples(st.just("writes"), st.integers(0, 3))] * 4,
    *[st.tuples(st.just("isr"), st.permutations(ALL).map(tuple), st.booleans())] * 2,
    st.tuples(st.just("isr"), ROW, st.booleans()),
    st.tuples(st.just("loses"), BROKER),
    st.tuples(st.just("create"), st.permutations([1, 2, 3]).map(tuple)),
    *[st.tuples(st.just("reassign"), TP, ROW, st.booleans())] * 2,
    st.tuples(st.just("cancel"), TP),
    st.tuples(st.sampled_from(["delete", "deleted", "prefer", "unclean", "tick", "elect", "usurped"])),
    st.tuples(st.just("shutdown"), BROKER),
)


def refused(world: World) -> set[TopicPartition]:
    """The requests that the controller has decided not to do, while the tree does not know it yet."""
    orders = [order for order in world.orders if isinstance(order, events.WriteReassignment)]
    return {order.write.tp for order in orders if order.write.replicas is None}


def become_well(world: World, *, anew: bool) -> None:
    """Everybody lives, and the controller knows everything: another one, or the one that there is."""
    world.offline = {}
    for broker in ALL:
        register(world, broker, lost_writes=False)
    if anew or not world.state.is_active or world.state.epoch != world.epoch:
        elect(world)
        return
    world.note_brokers()
    world.post(events.TopicsChanged(dict(world.topics)))
    world.post(events.IsrChanged(tuple(world.stored.items())))
    world.post(events.ReassignmentsRequested(dict(world.plans)))


@settings(deadline=None)
@given(actions=st.lists(ACTIONS, max_size=60), unclean=st.booleans(), anew=st.booleans())
def test_whatever_happens_the_laws_hold_and_in_the_end_everything_is_led(actions, unclean, anew):
    world = World(unclean)
    elect(world)
    world.post(events.TopicsChanged(dict(world.topics)))
    for action in actions:
        act(world, action)
    # Everybody is well: a controller that finishes all orders ends with a leader for every partition, where it belongs.
    wanted = {tp: plan.target for tp, plan in world.plans.items() if tp not in refused(world)}
    become_well(world, anew=anew)
    for _ in range(100):
        if not (world.orders or world.to_delete or world.plans or world.deletions):
            break
        act(world, ("writes", 0))
        act(world, ("deleted",))
        if not world.orders:
            act(world, ("isr", ALL, True))
            act(world, ("tick",))
    assert not world.state.pending
    assert not world.state.preferred
    assert not world.state.unclean
    assert not world.election.partitions
    assert not world.deletions
    assert not world.plans
    assert not world.state.moves
    for tp, target in wanted.items():
        assert tp.topic not in world.topics or world.topics[tp.topic].replicas[tp.partition] == target
    assert world.state.topics == world.topics
    for tp, state in world.stored.items():
        assert state.leader in world.live, tp
        assert world.state.leadership[tp] == state
    assert set(world.stored) == {TopicPartition(topic, 0) for topic in world.topics}


@pytest.mark.parametrize("table", [PARTITION_ENTERED_FROM, REPLICA_ENTERED_FROM])
def test_every_state_can_be_reached_and_left(table):
    states = set(table)
    assert set().union(*table.values()) == states
    assert all(table.values())


def test_a_broker_that_is_not_the_controller_does_nothing():
    idle = Controller(broker=1)
    for event in (events.BrokersChanged(()), events.Ticked(1), events.DeleteRequested(("t",))):
        assert step(idle, event, LIMITS) == (idle, ())


def test_without_delete_topic_enable_a_topic_is_only_marked():
    world = World(unclean=False)
    elect(world)
    world.post(events.TopicsChanged(dict(world.topics)))
    act(world, ("writes", 0))
    limits = ControllerSettings(delete_topic_enable=False)
    assert step(world.state, events.DeleteRequested(("t",)), limits) == (world.state, ())
    _, effects = step(world.state, events.DeleteRequested(("gone",)), limits)
    assert effects == (events.Unmark("gone"),), "or nobody can create it"


def told_of(effects):
    """The brokers that get each leader and ISR."""
    return {
        (effect.broker, news.state.leader, news.state.isr)
        for effect in effects
        if isinstance(effect, events.SendLeaderAndIsr)
        for news in effect.partitions
    }


def in_the_middle_of_a_write(isr, leader, live, then):
    """A controller that reads this state, writes what comes of it, and hears of `then` before of the outcome."""
    brokers = {info.id: info for info in live}
    topics = {"t": described({0: (1, 2, 3)}, "t@1")}
    stored = LeaderAndIsr(leader, 4, isr, 1, 9)
    state, _ = step(Controller(broker=3), events.Elected(2), LIMITS)
    state, effects = step(state, events.ContextLoaded(events.ClusterState(brokers, topics, {T0: stored}), 0), LIMITS)
    (write,) = [write for effect in effects if isinstance(effect, events.WriteStates) for write in effect.writes]
    state, effects = step(state, events.BrokersChanged(then), LIMITS)
    assert not told_of(effects), "nothing is told while a write is under way"
    return step(state, written(write), LIMITS)


def written(write):
    stored = replace(write.state, version=write.state.version + 1)
    return events.StatesWritten((events.WriteResult(write.tp, True, stored),))


def next_write(effects):
    (write,) = [write for effect in effects if isinstance(effect, events.WriteStates) for write in effect.writes]
    return write


def test_nobody_hears_of_a_leader_that_came_back_without_its_data_while_it_was_written():
    """(R10, R19) Its followers would cut what it lost, and one of them leads next."""
    two, three = BrokerInfo(2, 2), BrokerInfo(3, 3)
    state, effects = in_the_middle_of_a_write((1, 2, 3), 1, (two, three), (BrokerInfo(2, 12, lost_writes=True), three))
    assert state.leadership[T0].leader == 2
    assert not told_of(effects)
    write = next_write(effects)
    assert (write.state.leader, write.state.isr) == (3, (3,))
    _, effects = step(state, written(write), LIMITS)
    assert told_of(effects) == {(2, 3, (3,)), (3, 3, (3,))}


def test_who_comes_back_without_its_data_while_nobody_leads_is_not_waited_for():
    """(R10) It was written that the partition waits for both; it hears only that it does not wait for it."""
    three = BrokerInfo(3, 3)
    state, effects = in_the_middle_of_a_write((1, 2), 1, (three,), (three, BrokerInfo(2, 12, lost_writes=True)))
    assert told_of(effects) == {(3, NO_LEADER, (1, 2))}
    write = next_write(effects)
    assert (write.state.leader, write.state.isr) == (NO_LEADER, (1,))
    _, effects = step(state, written(write), LIMITS)
    assert told_of(effects) == {(2, NO_LEADER, (1,)), (3, NO_LEADER, (1,))}


def test_a_leader_without_its_data_leads_no_more_once_it_shows_that_another_member_has_them():
    """(R10) It led alone, and wrote that broker 1 is in sync, too, just before it lost its writes."""
    one, three = BrokerInfo(1, 1), BrokerInfo(3, 13, lost_writes=True)
    topics = {"t": described({0: (3, 1)}, "t@1")}
    alone, both = LeaderAndIsr(3, 4, (3,), 1, 7), LeaderAndIsr(3, 4, (3, 1), 1, 8)
    state, _ = step(Controller(broker=1), events.Elected(2), LIMITS)
    cluster = events.ClusterState({1: one, 3: BrokerInfo(3, 3)}, topics, {T0: alone})
    state, _ = step(state, events.ContextLoaded(cluster, 0), LIMITS)
    state, effects = step(state, events.BrokersChanged((one, three)), LIMITS)
    assert next_write(effects).state.leader == 3, "nobody else is known to be in sync"
    state, effects = step(state, events.StatesWritten((events.WriteResult(T0, False, both),)), LIMITS)
    assert (next_write(effects).state.leader, next_write(effects).state.isr) == (1, (1,))
    assert not told_of(effects)


def test_a_leader_that_stops_after_the_whole_isr_lost_writes_hands_over_to_another_member():
    """(R10) They come back one after the other while a write is under way, the leader last, and it asks to stop."""
    world = World(unclean=False)
    elect(world)
    world.post(events.TopicsChanged(dict(world.topics)))
    for action in [("writes", 0), ("loses", 2), ("starts", 3, True, None), ("loses", 1), ("shutdown", 1)]:
        act(world, action)
    act(world, ("writes", 0))  # refused, since the leader wrote meanwhile
    act(world, ("writes", 0))
    stored = world.stored[T0]
    assert (stored.leader, stored.isr) == (2, (2, 3))
    assert not world.tainted


def admitted_before_it_lost_writes():
    """The leader has admitted broker 3 before that lost power; the controller learns both now."""
    brokers = {b: BrokerInfo(b, b) for b in (1, 2)}
    topics = {"t": described({0: (2, 3, 1)}, "t@1")}
    known, stored = LeaderAndIsr(2, 4, (2, 1), 1, 8), LeaderAndIsr(2, 4, (2, 1, 3), 1, 9)
    state, _ = step(Controller(broker=1), events.Elected(2), LIMITS)
    cluster = events.ClusterState({**brokers, 3: BrokerInfo(3, 3)}, topics, {T0: known})
    state, _ = step(state, events.ContextLoaded(cluster, 0), LIMITS)
    live = (*brokers.values(), BrokerInfo(3, 13, lost_writes=True))
    assert state.partitions_in_doubt(live) == [T0]
    state, effects = step(state, events.BrokersChanged(live, states=((T0, stored),)), LIMITS)
    assert not state.partitions_in_doubt(live)
    return state, effects


def test_who_lost_its_writes_does_not_lead_for_it_was_in_an_isr_that_nobody_told_of():
    """(R10) It leaves the ISR at once; the leader dies meanwhile, and broker 1 leads."""
    state, effects = admitted_before_it_lost_writes()
    assert not told_of(effects)
    write = next_write(effects)
    assert (write.state.leader, write.state.isr, write.state.version) == (2, (2, 1), 9)
    live = BrokerInfo(1, 1), BrokerInfo(3, 13, lost_writes=True)
    state, _ = step(state, events.BrokersChanged(live), LIMITS)
    refused = events.WriteResult(T0, False, replace(write.state, leader_epoch=4, isr=(2, 3, 1), version=10))
    _, effects = step(state, events.StatesWritten((refused,)), LIMITS)
    assert (next_write(effects).state.leader, next_write(effects).state.isr) == (1, (1,))


def test_who_lost_its_writes_joins_again_once_and_stays():
    """(R10) The leader admits only the life that is registered: what it says from now on is of this one."""
    state, effects = admitted_before_it_lost_writes()
    state, _ = step(state, written(next_write(effects)), LIMITS)
    joined = replace(state.leadership[T0], isr=(2, 1, 3), version=11)
    state, effects = step(state, events.IsrChanged(((T0, joined),)), LIMITS)
    assert not state.pending
    assert state.leadership[T0] == joined


@pytest.mark.parametrize(
    ("own", "default", "led"), [(None, False, -1), (None, True, 2), ("True", False, 2), ("false", True, -1)]
)
def test_a_topic_elects_outside_its_isr_if_it_says_so_and_as_brokers_say_if_it_says_nothing(own, default, led):
    topic = replace(described({0: (1, 2)}, "t@1"), overrides={} if own is None else {UNCLEAN: own})
    cluster = events.ClusterState({2: BrokerInfo(2, 2)}, {"t": topic}, {T0: LeaderAndIsr(1, 4, (1,), 1, 9)})
    limits = ControllerSettings(unclean_leader_election_enable=default)
    state, _ = step(Controller(broker=2), events.Elected(2), limits)
    _, effects = step(state, events.ContextLoaded(cluster, 0), limits)
    assert next_write(effects).state.leader == led


def test_who_asks_again_before_the_end_is_heard_of_begins_from_what_the_tree_says():
    """The news of the next reassignment overtakes the outcome of the write that ended the former one."""
    brokers = {b: BrokerInfo(b, b) for b in ALL}
    topics = {"t": described({0: (1, 2)}, "t@1")}
    plans = {T0: Reassignment((2,), (1, 2))}
    cluster = events.ClusterState(brokers, topics, {T0: LeaderAndIsr(2, 4, (2, 1), 1, 9)}, reassignments=plans)
    state, _ = step(Controller(broker=3), events.Elected(2), LIMITS)
    state, effects = step(state, events.ContextLoaded(cluster, 0), LIMITS)
    state, _ = step(state, written(next_write(effects)), LIMITS)
    state, effects = step(state, events.ReplicasDeleted(1, (T0,)), LIMITS)
    (end,) = [effect for effect in effects if isinstance(effect, events.WriteReassignment)]
    assert (end.write.after, end.write.replicas) == (None, (2,))

    again = {T0: Reassignment((3,))}
    state, _ = step(state, events.ReassignmentsRequested(again), LIMITS)
    state, _ = step(state, ReassignmentWritten(T0, True, None, (2,)), LIMITS)
    assert state.topics["t"].replicas == {0: (2,)}
    assert [replica.broker for replica in state.replica_states] == [2]
    state, effects = step(state, events.ReassignmentsRequested(again), LIMITS)
    (begin,) = [effect for effect in effects if isinstance(effect, events.WriteReassignment)]
    expected = ReassignmentWrite(T0, Reassignment((3,)), Reassignment((3,), (2,)), (2,), (2, 3))
    assert begin.write == expected
