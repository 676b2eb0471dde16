"""One run: a cluster of the product's brokers, clients and faults from one seed; then all is well, and all is checked.

`simulate(seed)` raises AssertionError with the seed when a law is broken, UnforeseenError when a driver fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from logstore.log import isolation
from logstore.store.description import new_topic_id
from replication.coordination import cluster, topics
from replication.model.cluster import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from replication.replica.machine import follower, isr
from tests.sim.broker import Seen, SimBroker
from tests.sim.circumstances import CIRCUMSTANCES, COPIES, MEMBERS, USUAL, Circumstances
from tests.sim.client import TOPIC_ID, Clients
from tests.sim.copiers import values_in
from tests.sim.faults import Faults
from tests.sim.flips import has_soundly, unflip
from tests.sim.laws import Laws, read
from tests.sim.mutants import PATCHES, Mutant
from tests.sim.observed import lines_noted, load_classes, observed, small_and_the_same, without_collection
from tests.sim.tree import SimTree, Store
from tests.sim.world import LIFE, Life, World
from tests.support.disk import Crash

FAULTS_MS = 6_000
CALM_MS = 30_000  # until then all must be well
LOOK_MS, SCRUB_LOOKS = 500, 4  # while that is waited for
QUIET_MS = 1_500
COPIES_MS = 4_000  # transactions that nobody ends any more are aborted
POSITION_MS = 12_000  # by then a group is told its position, which such a transaction hides


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
        self.clients, self.faults = Clients(self), Faults(self)
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
        world.after(600, self.faults.go_on)
        self._run_until(world.now_ms + FAULTS_MS)
        self._calm_down()
        self._until_all_is_well()
        self.clients.is_over = True
        over_ms = world.now_ms
        self._run_until(over_ms + (COPIES_MS if self.copies else QUIET_MS))
        while self._is_expected and world.now_ms < over_ms + POSITION_MS:
            self._run_until(world.now_ms + LOOK_MS)
        self.laws.check_end()
        if self.copies:
            self.laws.check_copies({tp: self._committed(tp) for tp in self.data})
        return self._summed_up()

    @property
    def _is_expected(self) -> bool:
        """The copiers' position is not known yet, or a group wrote a moment ago and a follower's HW is behind."""
        return (self.copies and self.laws.copied.position is None) or not self.laws.is_all_well(are_told=True)

    def _committed(self, tp: TopicPartition) -> list[bytes]:
        """The values of the transactions that its leader's log has, as a reader of committed data sees them.

        A transaction stays open for ever where its coordinator's own log lost it, beyond what is promised.
        """
        stored = self.store.state(tp)
        log = self.brokers[stored.leader].partitions[tp].log
        end, aborted = isolation.committed(log, 0, log.log_end_offset)
        is_forgotten = TopicPartition(TRANSACTIONS_TOPIC, 0) in self.laws.since
        assert end == log.log_end_offset or is_forgotten, f"{tp} is undecided from {end} on"
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
        news: Sequence[TopicPartition] = ()
        broker = self._at.get(life.host) if life is not None else None
        if broker is not None and broker.life is life:
            if life.is_cut:
                self.down(broker, self._kind_of_cut(broker), life)
                news = self.tps
            else:
                news = broker.look()
        if self.store.number != self._checked_at:
            self._checked_at, news = self.store.number, self.tps
        if news:
            self.laws.check(news)

    # ------------------------------------------------------------ lives and calm

    def later(self, act: Callable[[], object]) -> None:
        self.world.after(self.world.random.choice(self.circumstances.lasts_ms), act)

    def down(self, broker: SimBroker, kind: Crash, life: Life | None = None) -> None:
        """The broker's process, or its machine, ends: if this life of it has not ended before."""
        if broker.is_up and life in (None, broker.life):
            broker.die(kind)

    def _kind_of_cut(self, broker: SimBroker) -> Crash:
        kinds = [Crash.KILLED, Crash.LOST, Crash.TORN]
        return self.world.random.choice(kinds) if self.laws.may_lose_writes(broker.id) else Crash.KILLED

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
        """Scrubs find the damage, and a batch that is sound nowhere any more is put back, until all is well."""
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
        return self.summary.calm_ms >= LOOK_MS * SCRUB_LOOKS and self.laws.is_all_well()

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

        self.later(restart)

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
    with without_collection():
        return _simulate(Simulation(seed, mutant, circumstances or CIRCUMSTANCES.get(mutant, USUAL)), mutant)


def _simulate(sim: Simulation, mutant: Mutant | None) -> Summary:
    seed = sim.summary.seed
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
