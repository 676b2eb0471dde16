"""One run: a cluster of the product's brokers, clients and faults from one seed; then all is well, and all is checked.

`simulate(seed)` raises AssertionError with the seed when a law is broken, UnforeseenError when a driver fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from logstore.log import isolation
from logstore.store.description import new_topic_id
from replication.coordination import cluster, reassignments, topics
from replication.coordination.tree import RefusedError
from replication.model.cluster import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from replication.replica.machine import follower, isr
from tests.sim.broker import Seen, SimBroker
from tests.sim.circumstances import CIRCUMSTANCES, COPIES, MEMBERS, USUAL, Circumstances
from tests.sim.client import TOPIC_ID, Clients
from tests.sim.copiers import values_in
from tests.sim.flips import flip, has_soundly, unflip
from tests.sim.laws import Batch, Laws, read
from tests.sim.mutants import PATCHES, Mutant
from tests.sim.observed import lines_noted, load_classes, observed, small_and_the_same
from tests.sim.tree import HOST as TREE
from tests.sim.tree import SimTree, Store
from tests.sim.world import LIFE, Life, World
from tests.support.disk import Crash

FAULTS_MS = 6_000
CALM_MS = 30_000  # until then all must be well
LOOK_MS, SCRUB_LOOKS = 500, 4  # while that is waited for
QUIET_MS = 1_500
COPIES_MS = 4_000  # transactions that nobody ends any more are aborted


class UnforeseenError(Exception): ...


@dataclass
class Summary:
    """Counts of a run."""

    seed: int
    events: int = 0
    appended: int = 0
    acked: int = 0
    acked_later: int = 0  # in a later leader epoch of the same leadership
    committed: int = 0
    elections: int = 0
    controllers: int = 0
    faults: int = 0
    lost_writes: int = 0
    excused: int = 0
    moves: int = 0
    flips: int = 0
    cuts: int = 0
    fills: int = 0
    put_back: int = 0
    copied: int = 0  # in transactions
    read: int = 0  # by a group
    calm_ms: int = 0


class Simulation:
    def __init__(self, seed: int, mutant: Mutant | None = None, circumstances: Circumstances = USUAL) -> None:
        self.world, self.circumstances = World(seed), circumstances
        chance = self.world.random
        self.summary = Summary(seed)
        count = chance.choice([3, 3, 3, 4])
        factor = chance.choice(circumstances.factors)
        unclean = chance.random() < circumstances.unclean
        self.store = Store(self.world)
        self.store.checks_controller_epoch = mutant is not Mutant.NO_CONTROLLER_EPOCH_CHECK
        self.rows = {
            p: tuple(chance.sample(range(1, count + 1), factor)) for p in range(chance.choice(circumstances.partitions))
        }
        self.is_by_hand = unclean and seed % 2 == 0  # unclean elections are asked for
        self.settings = {
            "min.insync.replicas": str(chance.choice(circumstances.min_isr)),
            "unclean.leader.election.enable": str(unclean and not self.is_by_hand).lower(),
        }
        clients = "" if unclean else circumstances.clients[seed % 3]
        self.copies, self.has_members = clients == COPIES, clients == MEMBERS
        self.data = [TopicPartition("t", p) for p in self.rows]
        names = [OFFSETS_TOPIC] * (self.copies or self.has_members) + [TRANSACTIONS_TOPIC] * self.copies
        self.internal = [TopicPartition(name, 0) for name in names]
        self.tps = self.data + self.internal
        self.brokers = {b: SimBroker(b, self) for b in range(1, count + 1)}
        self._at = {broker.host: broker for broker in self.brokers.values()}
        self.laws = Laws(self.store, self.brokers, self.tps, unclean=unclean)
        self.clients = Clients(self)
        self.operator = Life(self.world.loop, "operator")
        self.session: SimTree | None = None
        self.is_calm = False
        self._checked_at = -1

    def run(self) -> Summary:
        world, chance = self.world, self.world.random
        self.operator.soon(self._prepare)
        while self.session is None:
            self._run_until(world.now_ms + LOOK_MS)
        world.drop, world.spike = chance.choice(self.circumstances.drops), chance.choice(self.circumstances.spikes)
        world.fails, world.busy = chance.choice(self.circumstances.fails), chance.choice([0, 0.1, 0.5])
        for broker in self.brokers.values():
            world.after(chance.randint(0, 50), broker.start)
        self.clients.life.soon(self.clients.begin)
        world.after(600, self._next_fault)
        self._run_until(world.now_ms + FAULTS_MS)
        self._calm_down()
        self._until_all_is_well()
        self.clients.is_over = True
        self._run_until(world.now_ms + (COPIES_MS if self.copies else QUIET_MS))
        self.laws.check_end()
        if self.copies:
            self.laws.check_copies({tp: self._committed(tp) for tp in self.data})
        return self._summed_up()

    def _committed(self, tp: TopicPartition) -> list[bytes]:
        """The values of the transactions that its leader's log has, as a reader of committed data sees them."""
        stored = self.store.state(tp)
        log = self.brokers[stored.leader].partitions[tp].log
        end, aborted = isolation.committed(log, 0, log.log_end_offset)
        assert end == log.log_end_offset, f"{tp} is undecided from {end} on"
        return [
            value
            for data in read(log, 0, end)
            for part in isolation.kept(data, aborted)
            for value in values_in(part.data)
        ]

    def _summed_up(self) -> Summary:
        summary = self.summary
        summary.events = self.world.loop.events
        summary.excused = len(self.laws.excused)
        summary.copied = self.laws.copied.committed
        summary.read = self.laws.read.count
        summary.acked = len(self.laws.acked)
        summary.acked_later = self.clients.acked_later
        summary.committed = sum(self.laws.ends.values())
        summary.elections = sum(state.leader_epoch for state in self.store.states(self.tps).values())
        summary.controllers = self.store.controller_epoch
        return summary

    def _run_until(self, end_ms: int) -> None:
        self.world.loop.run_until(end_ms / 1000, self._after_each)

    def _prepare(self) -> None:
        """An operator makes the topic."""

        async def prepare() -> None:
            tree = await self.store.open("", on_session=lambda event: None, session_timeout_ms=600_000)
            await cluster.prepare(tree)
            await topics.create_topic(tree, "t", TOPIC_ID, self.rows, self.settings)
            for tp in self.internal:
                settings = {"cleanup.policy": "compact", "min.insync.replicas": "2"}
                await topics.create_topic(tree, tp.topic, new_topic_id(), {0: tuple(self.brokers)[:3]}, settings)
            self.session = tree

        self.work = asyncio.ensure_future(prepare())

    def _after_each(self, life: Life | None) -> None:
        is_news = self.store.number != self._checked_at
        broker = self._at.get(life.host) if life is not None else None
        if broker is not None and broker.life is life:
            if life.is_cut:
                self.down(broker, self._kind_of_cut(broker), life)
                is_news = True
            else:
                is_news |= broker.look()
        if is_news:
            self._checked_at = self.store.number
            self.laws.check()

    # ----------------------------------------------------------------- faults

    def _next_fault(self) -> None:
        if self.is_calm or not self.circumstances.faults:
            return
        self._strike(self.world.random.choice(self.circumstances.faults))
        if self.is_by_hand:
            self.store.ask_for_unclean(self.tps)
        self.world.after(self.world.random.choice(self.circumstances.gaps_ms), self._next_fault)

    def meet(self, moment: str) -> None:
        """A client is about to do this: a fault may happen now."""
        when, fault, probability = self.circumstances.at
        if moment == when and not self.is_calm and self.world.chance(probability):
            self._strike(fault)

    def _strike(self, fault: str) -> None:
        broker = self.brokers[self.world.random.choice(list(self.brokers))]
        self.summary.faults += 1
        self.world.note(f"fault: {fault} {broker.id}")
        getattr(self, f"_{fault}")(broker)

    def _later(self, act: Callable[[], object]) -> None:
        self.world.after(self.world.random.choice(self.circumstances.lasts_ms), act)

    def down(self, broker: SimBroker, kind: Crash, life: Life | None = None) -> None:
        """The broker's process, or its machine, ends: if this life of it has not ended before."""
        if broker.is_up and life in (None, broker.life):
            broker.die(kind)

    def _kill(self, broker: SimBroker) -> None:
        self.down(broker, Crash.KILLED)

    def _power(self, broker: SimBroker) -> None:
        """Only where the protocol promises something: another candidate has everything."""
        kinds = [Crash.LOST, Crash.TORN, Crash.REORDERED]
        may = self.laws.may_lose_writes(broker.id)
        self.down(broker, self.world.random.choice(kinds) if may else Crash.KILLED)

    def _wipe(self, broker: SimBroker) -> None:
        """The disk is replaced by an empty one."""
        if broker.is_up and self.laws.may_lose_writes(broker.id):
            self.down(broker, Crash.LOST)
            broker.replace_disk()
            for tp in self.tps:
                self.laws.last_ends[broker.id, tp] = 0

    def _kind_of_cut(self, broker: SimBroker) -> Crash:
        kinds = [Crash.KILLED, Crash.LOST, Crash.TORN]
        return self.world.random.choice(kinds) if self.laws.may_lose_writes(broker.id) else Crash.KILLED

    def _cut_in_the_middle(self, broker: SimBroker) -> None:
        """The next change, or one soon after, is done in part only."""
        broker.disk.crash_at = broker.disk.calls + self.world.random.randint(1, 12)

    def _pause(self, broker: SimBroker) -> None:
        broker.life.pause(self.world.random.choice([100, 400, 900, 2000]))

    def _pause_controller(self, broker: SimBroker) -> None:
        if (controller := self.store.controller) is not None:
            self._pause(self.brokers[controller])

    def _part(self, broker: SimBroker) -> None:
        """The broker hears no other, or is heard by none, or both; the store and the clients it may reach."""
        hosts = [other.host for other in self.brokers.values() if other is not broker]
        ways = self.world.random.choice(["in", "out", "both"])
        cuts = {(o, broker.host) for o in hosts if ways != "out"} | {(broker.host, o) for o in hosts if ways != "in"}
        self._cut(cuts)

    def _part_from_tree(self, broker: SimBroker) -> None:
        self._cut({(broker.host, TREE)})

    def _isolate(self, broker: SimBroker) -> None:
        self._part(broker)
        self._part_from_tree(broker)

    def _isolate_leader(self, broker: SimBroker) -> None:
        """Clients write to it while another one is elected."""
        self._isolate(self._leader_of(self.tps, broker))

    def _isolate_coordinator(self, broker: SimBroker) -> None:
        """The coordinator of transactions."""
        self._isolate(self._leader_of([TopicPartition(TRANSACTIONS_TOPIC, 0)], broker))

    def _power_without_leader(self, broker: SimBroker) -> None:
        """Followers lose what they have not flushed, while their leader, which has it, is isolated."""
        tp = self.world.random.choice(self.data)
        leader = self._leader_of([tp], broker)
        self._isolate(leader)
        for follower_id in {*self.store.replicas(tp)} - {leader.id}:
            self.world.after(50, lambda follower=self.brokers[follower_id]: self._power(follower))

    def _leader_of(self, tps: list[TopicPartition], default: SimBroker) -> SimBroker:
        stored = self.store.state(self.world.random.choice(tps))
        return default if stored is None else self.brokers.get(stored.leader, default)

    def _cut_off_client(self, broker: SimBroker) -> None:
        """No broker hears the client that does something now."""
        self._cut({(LIFE.get().host, broker.host) for broker in self.brokers.values()})

    def _cut(self, cuts: set[Any]) -> None:
        self.world.cuts |= cuts
        self._later(lambda: self.world.cuts.difference_update(cuts))

    def _remove_controller_node(self, broker: SimBroker) -> None:
        self.store.remove_controller()

    def _shut_down(self, broker: SimBroker) -> None:
        broker.shut_down()

    def _offline(self, broker: SimBroker) -> None:
        """Its disk is full, or a replica of it odd, for a while."""
        broker.fall_out_of_order(self.world.random.choice([None, *self.tps]))
        self._later(broker.come_into_order)

    def _flip(self, broker: SimBroker) -> None:
        """Bits of what is committed, in one batch here and perhaps in a later one elsewhere; nobody is told."""
        chance = self.world.random
        tp = chance.choice(self.data)
        others = [other for other in self.brokers.values() if other is not broker and chance.random() < 0.6]
        committed = self.laws.committed[tp]
        if committed and not self.laws.unclean:
            at = chance.randrange(len(committed))
            self._flip_in(broker, tp, committed[at])
            for other in others:
                self._flip_in(other, tp, committed[chance.randrange(at, len(committed))])

    def _flip_in(self, broker: SimBroker, tp: TopicPartition, batch: Batch) -> None:
        """Not the last sound copy; and above what is noted as flushed a start takes it for a torn write, and cuts.

        A damaged replica may have seen this copy, and be about to cut its own: that one does not count.
        """
        others = [other for other in self.brokers.values() if other is not broker and not other.is_damaged(tp)]
        if not broker.is_up or tp not in broker.partitions:
            return
        is_here = batch.next_offset <= broker.flushed_to(tp) and has_soundly(broker, tp, batch)
        if is_here and any(has_soundly(other, tp, batch) for other in others):
            self.world.note(f"{broker.id}: {tp} a bit of {batch} flips")
            flip(broker, tp, batch)
            self.laws.damaged.setdefault((broker.id, tp), []).append(batch)
            self.summary.flips += 1

    def _put_back(self) -> None:
        """By hand, as operations.md has it: the leader gets back what no replica has soundly any more.

        A broker that could not recover a log starts again.
        """
        for broker in self.brokers.values():
            if broker.broker is not None and broker.broker.replicas.broken:
                self.down(broker, Crash.KILLED)
        for tp, stored in self.store.states(self.tps).items():
            replicas = [self.brokers[replica] for replica in self.store.replicas(tp)]
            gone = [
                batch
                for batch in self.laws.damaged.get((stored.leader, tp), ())
                if not any(has_soundly(replica, tp, batch) for replica in replicas)
            ]
            if gone:
                self.down(self.brokers[stored.leader], Crash.KILLED)
            for batch in gone:
                self.summary.put_back += 1
                unflip(self.brokers[stored.leader], tp, batch)

    def _reassign(self, broker: SimBroker) -> None:
        """A partition shall be elsewhere, or on more or fewer brokers; or that is taken back."""
        chance = self.world.random
        tp, target = chance.choice(self.tps), None
        if tp not in self.store.plans or chance.random() >= 0.4:
            self.summary.moves += 1
            count = chance.randint(1 if self.laws.unclean else 2, 3)
            target = tuple(chance.sample(sorted(self.brokers), count))

        async def ask() -> None:
            with suppress(RefusedError):
                await reassignments.request(self.session, {tp: target})

        self.operator.soon(lambda: setattr(self, "work", asyncio.ensure_future(ask())))

    def _calm_down(self) -> None:
        world = self.world
        self.is_calm = True
        world.drop = world.spike = world.fails = 0.0
        world.cuts.clear()
        for broker in self.brokers.values():
            broker.disk.crash_at = None
            broker.life.paused_until_s = world.loop.now_s
            broker.life.pause(0)
            broker.come_into_order()
            if not broker.is_up:
                broker.start()

    def _until_all_is_well(self) -> None:
        """Scrubs find the damage, and a batch that is sound nowhere any more is put back."""
        looks = 0
        while True:
            self._run_until(self.world.now_ms + LOOK_MS)
            self.summary.calm_ms += LOOK_MS
            looks += 1
            if looks % SCRUB_LOOKS == 1:
                for broker in self.brokers.values():
                    broker.scrub()
            if looks % SCRUB_LOOKS == 0:
                self._put_back()
            if self.is_calm_over or self.summary.calm_ms >= CALM_MS:
                return

    @property
    def is_calm_over(self) -> bool:
        return self.summary.calm_ms >= 3 * LOOK_MS * SCRUB_LOOKS and self.laws.is_all_well()

    # ----------------------------------------------------- what brokers report

    def leads(self, seen: Seen, state: isr.Leading) -> None:
        self.world.note(
            f"{seen.broker.id}: leads {seen.tp} epoch {state.leader_epoch} isr {state.isr} end {seen.log_end_offset}"
        )
        self.laws.leads(seen, state)

    def loss_announced(self, message: str) -> None:
        self.world.note(message)
        self.laws.announced.add(message.partition("partition ")[2].partition(" ")[0])

    def deletes(self, seen: Seen) -> None:
        self.world.note(f"{seen.broker.id}: deletes {seen.tp}")
        self.laws.deletes(seen)

    def died(self, broker: SimBroker, kind: Crash) -> None:
        self.world.note(f"{broker.id}: died, {kind.name}, committed {list(self.laws.ends.values())}")
        self.laws.died(broker, lost_writes=kind is not Crash.KILLED)
        self.summary.lost_writes += kind is not Crash.KILLED
        life = broker.life

        def restart() -> None:
            if broker.life in (life, None) and not broker.is_up:
                broker.start()

        self._later(restart)

    def here(self, tp: TopicPartition) -> Seen | None:
        """The partition of the broker in whose life this happens."""
        life = self.world.loop.life
        broker = self._at.get(life.host) if life is not None else None
        return None if broker is None else broker.seen.get(tp)

    def following(self, state: follower.FollowerState) -> Seen:
        seen = self._at[LIFE.get().host].seen.values()
        return next(each for each in seen if each.partition.role is not None and each.partition.role.state is state)

    def judge(self, law: Callable[..., None], *args: Any) -> None:
        """Where a driver would take the failure of a law for one of its own."""
        try:
            law(*args)
        except AssertionError as error:
            self.world.broken.append(error)


def simulate(seed: int, mutant: Mutant | None = None, circumstances: Circumstances | None = None) -> Summary:
    """Run one seed, a mutant's in its own circumstances.

    Raises: AssertionError: a law was broken; UnforeseenError: a driver failed.
    """
    load_classes()
    sim = Simulation(seed, mutant, circumstances or CIRCUMSTANCES.get(mutant, USUAL))
    try:
        with small_and_the_same(seed), lines_noted(sim), observed(sim), PATCHES.get(mutant, nullcontext)():
            return sim.run()
    except Exception as error:
        kind = AssertionError if isinstance(error, AssertionError) else UnforeseenError
        told = kind(f"seed {seed} at {sim.world.now_ms} ms: {type(error).__name__}: {error}")
        told.add_note("\n".join(sim.world.notes))
        raise told from error
    finally:
        sim.world.loop.finish()
