"""One run: a cluster, clients and faults from one seed; then all is well for a while, and everything is checked.

`simulate(seed)` raises AssertionError with the seed when a law is broken. `Mutant` names bugs that it must find.
"""

from __future__ import annotations

import enum
import random
import uuid
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from logstore.log.holes import SegmentCopy
from logstore.log.log import Log
from logstore.records.batch import header_at
from logstore.store import disk_reserve
from replication.controller.machine import events
from replication.errors import ErrorCode
from replication.model.cluster import Offline, TopicInfo, TopicPartition
from replication.replica.machine import follower, isr, leadership
from replication.replica.storage.log_dir import ReplicaLogDir
from tests.sim.broker import SimBroker
from tests.sim.flips import flip, has_soundly, unflip
from tests.sim.laws import Batch, Laws
from tests.sim.partition import Partition
from tests.sim.repairs import Repairs
from tests.sim.tree import ID as TREE
from tests.sim.tree import Tree
from tests.sim.world import World
from tests.support.disk import Crash
from tests.support.partition import TOPIC_ID
from tests.support.partition import batch as build_batch

FAULTS_MS = 6_000
CALM_MS = 3_000
QUIET_MS = 1_500
PRODUCE_TIMEOUT_MS = 1_000


class Mutant(enum.Enum):
    TRUNCATE_TO_HW = "a follower cuts its log at its high watermark"
    COMMITTED_ISR_ONLY = "the high watermark does not wait for an ISR that is being written"
    NO_CONTROLLER_EPOCH_CHECK = "writes and requests of a former controller count"
    CUT_IN_THE_DARK = "a follower whose cut failed asks where no epoch ends, and cuts there"
    CUT_UNASKED = "a damaged replica is cut on the word that it is out of the ISR"
    NOT_FILLED = "what is damaged waits for a leader that shows all that is behind it, for ever"
    NO_RECOVERY = "a broker opens its logs after a crash as it does after a clean end"
    WAITS_OUTLIVE_ROLES = "an append that waits is answered by a later leadership, though its records were cut"
    POWER_CUT_UNNOTICED = "a broker takes a failure of the power for one of its process"


@dataclass
class Summary:
    """What happened in a run."""

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


class Simulation:
    """See the module."""

    def __init__(self, seed: int, mutant: Mutant | None = None) -> None:
        self.world = World(seed)
        chance = self.world.random
        self.summary = Summary(seed)
        count = chance.choice([3, 3, 3, 4])
        factor = chance.choice([2, 3, 3])
        unclean = chance.random() < 0.1
        self.tree = Tree(self.world, checks_controller_epoch=mutant is not Mutant.NO_CONTROLLER_EPOCH_CHECK)
        rows = {p: tuple(chance.sample(range(1, count + 1), factor)) for p in range(chance.choice([1, 1, 2]))}
        self.is_by_hand = unclean and seed % 2 == 0  # unclean elections are asked for
        self.topics = {"t": TopicInfo(rows, TOPIC_ID, unclean and not self.is_by_hand)}
        self.tree.topics = dict(self.topics)
        self.tps = [TopicPartition("t", p) for p in rows]
        min_insync = chance.choice([1, 2])
        self.brokers = {
            b: SimBroker(b, self.world, self.tree, self, min_insync=min_insync) for b in range(1, count + 1)
        }
        self.laws = Laws(self.tree, self.brokers, unclean=unclean)
        for broker in self.brokers.values():
            broker.peers = self.brokers
            broker.waits_outlive_roles = mutant is Mutant.WAITS_OUTLIVE_ROLES
            if mutant is Mutant.TRUNCATE_TO_HW:
                broker.follow = follow_from_hw
            if mutant is Mutant.NO_CONTROLLER_EPOCH_CHECK:
                broker.judge_request = partial(judge_any_controller, broker)
        self.client = Client(self)
        self.cut_kinds: dict[int, Crash] = {}
        self.is_calm = False

    def run(self) -> Summary:
        world, chance = self.world, self.world.random
        world.drop, world.double = chance.choice([0, 0.02, 0.1]), chance.choice([0, 0.05])
        world.spike = chance.choice([0, 0.02, 0.1])
        for broker in self.brokers.values():
            world.after(chance.randint(0, 50), broker.start)
        self.client.begin()
        world.after(300, self._next_fault)
        world.run_until(FAULTS_MS, self._after_each)
        self._calm_down()
        for quarter in (1, 3):  # twice, for who was down
            world.after(CALM_MS * quarter // 4, self._scrub)
            world.after(CALM_MS * (quarter + 1) // 4, self._put_back)
        world.run_until(FAULTS_MS + CALM_MS, self._after_each)
        self.client.is_over = True
        world.run_until(world.now_ms + QUIET_MS, self._after_each)
        self.laws.check_end()
        self.summary.excused = len(self.laws.excused)
        self.summary.acked = len(self.laws.acked)
        self.summary.acked_later = sum(broker.acked_later for broker in self.brokers.values())
        self.summary.committed = sum(self.laws.ends.values())
        self.summary.elections = sum(state.leader_epoch for state in self.tree.states.values())
        self.summary.controllers = self.tree.controller_epoch
        return self.summary

    def _after_each(self) -> None:
        self.summary.events += 1
        self.laws.check()

    # ----------------------------------------------------------------- faults

    def _next_fault(self) -> None:
        if self.is_calm:
            return
        chance = self.world.random
        fault = chance.choice(FAULTS)
        broker = self.brokers[chance.choice(list(self.brokers))]
        self.summary.faults += 1
        getattr(self, f"_{fault}")(broker)
        if self.is_by_hand:
            self.tree.ask_for_unclean()
        self.world.after(chance.choice([20, 100, 300, 600]), self._next_fault)

    def _later(self, what: Any) -> None:
        self.world.after(self.world.random.choice([50, 200, 700, 1500]), what)

    def _kill(self, broker: SimBroker) -> None:
        self._down(broker, Crash.KILLED)

    def _power(self, broker: SimBroker) -> None:
        """Only where the protocol promises something: another candidate has everything."""
        kinds = [Crash.LOST, Crash.TORN, Crash.REORDERED]
        may = self.laws.may_lose_writes(broker.id)
        self._down(broker, self.world.random.choice(kinds) if may else Crash.KILLED)

    def _wipe(self, broker: SimBroker) -> None:
        """The disk is replaced by an empty one."""
        if broker.is_up and self.laws.may_lose_writes(broker.id):
            self._down(broker, Crash.LOST)
            broker.replace_disk()
            for tp in self.tps:
                self.laws.last_ends[broker.id, tp] = 0

    def _down(self, broker: SimBroker, kind: Crash) -> None:
        if broker.is_up:
            broker.die(kind)

    def _cut_in_the_middle(self, broker: SimBroker) -> None:
        """The next change, or one soon after, is done in part only."""
        broker.disk.crash_at = broker.disk.calls + self.world.random.randint(1, 12)

    def _pause(self, broker: SimBroker) -> None:
        broker.paused_until_ms = self.world.now_ms + self.world.random.choice([100, 400, 900, 2000])

    def _pause_controller(self, broker: SimBroker) -> None:
        if self.tree.controller is not None:
            self._pause(self.brokers[self.tree.controller[0]])

    def _part(self, broker: SimBroker) -> None:
        """The broker hears nobody, or is heard by nobody, or both; the tree it may reach."""
        others = [other for other in self.brokers if other != broker.id]
        ways = self.world.random.choice(["in", "out", "both"])
        cuts = {(o, broker.id) for o in others if ways != "out"} | {(broker.id, o) for o in others if ways != "in"}
        self.world.cuts |= cuts
        self._later(lambda: self._heal(cuts))

    def _part_from_tree(self, broker: SimBroker) -> None:
        cuts = {(broker.id, TREE)}
        self.world.cuts |= cuts
        self._later(lambda: self._heal(cuts))

    def _isolate(self, broker: SimBroker) -> None:
        self._part(broker)
        self._part_from_tree(broker)

    def _heal(self, cuts: set[Any]) -> None:
        self.world.cuts -= cuts

    def _remove_controller_node(self, broker: SimBroker) -> None:
        """By hand: the controller's session lives on."""
        if self.tree.controller is not None:
            self.tree.give_up_controller(self.tree.controller[1])

    def _shut_down(self, broker: SimBroker) -> None:
        """As a broker does that gets a SIGTERM: it asks the controller, then goes."""
        if not broker.is_up or self.tree.controller is None:
            return
        target, life, epoch = self.brokers[self.tree.controller[0]], broker.life, broker.epoch

        def stop(answer: Any) -> None:
            if broker.life == life and broker.is_up:
                broker.guarded(broker.stop)
                self.died(broker, Crash.KILLED)

        self.replies[len(self.replies)] = None
        number = len(self.replies) - 1

        def handle(reply: Any) -> None:
            live = target.controller.brokers.get(broker.id)
            if live is not None and live.epoch != epoch:
                reply(())  # an old request: that life of it is over
                return
            self.replies[number] = reply
            target.post(events.ControlledShutdownRequested(broker.id, number))

        self.world.call(broker, target, handle, stop, 800)

    replies: dict[int, Any]

    def _offline(self, broker: SimBroker) -> None:
        """Its disk is full, or a replica of it damaged, for a while."""
        chance = self.world.random
        if broker.out_of_order is None:
            some = Offline(None, {chance.choice(self.tps): "damaged"})
            broker.fall_out_of_order(chance.choice([Offline("disk full"), some]))
            self._later(lambda: broker.fall_out_of_order(None))

    def _flip(self, broker: SimBroker) -> None:
        """Bits of what is committed, in one batch here and perhaps in a later one elsewhere; nobody is told."""
        chance = self.world.random
        tp = chance.choice(self.tps)
        others = [other for other in self.brokers.values() if other is not broker and chance.random() < 0.6]
        committed = self.laws.committed[tp]
        if committed and not self.laws.unclean:
            at = chance.randrange(len(committed))
            self._flip_in(broker, tp, committed[at])
            for other in others:
                self._flip_in(other, tp, committed[chance.randrange(at, len(committed))])

    def _flip_in(self, broker: SimBroker, tp: TopicPartition, batch: Batch) -> None:
        """Not the last sound copy; and above what is noted as flushed a start takes it for a torn write, and cuts."""
        others = [other for other in self.brokers.values() if other is not broker]
        if not broker.is_up or tp not in broker.partitions:
            return
        is_flushed = batch.next_offset <= broker.replicas.log_dir.recovery_points.read().get(tp, 0)
        is_here = is_flushed and has_soundly(broker, tp, batch)
        if is_here and any(has_soundly(other, tp, batch) for other in others):
            self.world.note(f"{broker.id}: {tp} a bit of {batch} flips")
            flip(broker, tp, batch)
            self.laws.damaged.setdefault((broker.id, tp), []).append(batch)
            self.summary.flips += 1

    def _scrub(self) -> None:
        """Brokers look through their logs one by one, now and then: here every log has had its turn."""
        for broker in self.brokers.values():
            for tp in list(broker.partitions) if broker.is_up else ():
                broker.repairs.scrub(tp)

    def _put_back(self) -> None:
        """By hand, as operations.md has it: the leader gets back what no replica has soundly any more."""
        for tp, stored in self.tree.states.items():
            replicas = [self.brokers[replica] for replica in self.tree.replicas(tp)]
            gone = [
                batch
                for batch in self.laws.damaged.get((stored.leader, tp), ())
                if not any(has_soundly(replica, tp, batch) for replica in replicas)
            ]
            if gone:
                self._down(self.brokers[stored.leader], Crash.KILLED)
            for batch in gone:
                self.summary.put_back += 1
                unflip(self.brokers[stored.leader], tp, batch)

    def _reassign(self, broker: SimBroker) -> None:
        """A partition shall be elsewhere, or on more or fewer brokers; or that is taken back."""
        chance = self.world.random
        tp = chance.choice(self.tps)
        if tp in self.tree.plans and chance.random() < 0.4:
            self.tree.ask_for(tp, None)
            return
        self.summary.moves += 1
        count = chance.randint(1 if self.laws.unclean else 2, 3)
        self.tree.ask_for(tp, tuple(chance.sample(sorted(self.brokers), count)))

    def _calm_down(self) -> None:
        self.is_calm = True
        self.world.drop = self.world.double = self.world.spike = 0.0
        self.world.cuts.clear()
        for broker in self.brokers.values():
            broker.disk.crash_at = None
            broker.paused_until_ms = 0
            broker.fall_out_of_order(None)
            if not broker.is_up:
                broker.start()

    # ----------------------------------------------------- what brokers report

    def leads(self, partition: Partition, stored: Any) -> None:
        self.world.note(
            f"{partition.broker.id}: leads {partition.tp} epoch {stored.leader_epoch} end {partition.log_end_offset}"
        )
        self.laws.leads(partition, stored)

    def committed(self, partition: Partition) -> None:
        self.laws.committed_by(partition)

    def lost(self, partition: Partition, effect: Any) -> None:
        self.world.note(f"{partition.broker.id}: {partition.tp} {effect}")
        self.laws.lost(partition, effect)

    def loss_announced(self, message: str) -> None:
        self.world.note(message)
        self.laws.announced.add(message.partition("partition ")[2].partition(" ")[0])

    def truncated(self, partition: Partition, offset: int) -> None:
        role = partition.role
        assert isinstance(role, follower.FollowerState)
        self.world.note(
            f"{partition.broker.id}: {partition.tp} cut to {offset}, was {role.log_end_offset}, leader {role.leader} "
            f"epoch {role.leader_epoch}"
        )

    def deletes(self, partition: Partition) -> None:
        self.world.note(f"{partition.broker.id}: deletes {partition.tp}")
        self.laws.deletes(partition)

    def cuts(self, partition: Partition, offset: int) -> None:
        self.world.note(f"{partition.broker.id}: {partition.tp} is cut at {offset} for its damage")
        self.summary.cuts += 1
        self.laws.cuts(partition, offset)

    def filled(self, partition: Partition) -> None:
        self.world.note(f"{partition.broker.id}: {partition.tp} has what was damaged from another replica")
        self.summary.fills += 1

    def mended(self, partition: Partition) -> None:
        self.laws.damaged.pop((partition.broker.id, partition.tp), None)

    def obeys(self, broker: SimBroker, request: Any) -> None:
        self.laws.obeys(broker, request)

    def shutdown_answered(self, request: int, remaining: Any) -> None:
        reply = self.replies.get(request)
        if reply is not None:
            reply(remaining)

    def booted(self, broker: SimBroker, tp: TopicPartition, log: Log) -> None:
        self.laws.booted(broker, tp, log)

    def kind_of_cut(self, broker: SimBroker) -> Crash:
        kinds = [Crash.KILLED, Crash.LOST, Crash.TORN]
        return self.world.random.choice(kinds) if self.laws.may_lose_writes(broker.id) else Crash.KILLED

    def died(self, broker: SimBroker, kind: Crash) -> None:
        self.world.note(f"{broker.id}: died, {kind.name}, committed {list(self.laws.ends.values())}")
        self.laws.died(broker, lost_writes=kind is not Crash.KILLED)
        self.summary.lost_writes += kind is not Crash.KILLED
        life = broker.life

        def restart() -> None:
            if broker.life == life and not broker.is_up:
                broker.start()

        self._later(restart)


FAULTS = [
    *["kill"] * 4,
    *["power"] * 4,
    "wipe",
    *["cut_in_the_middle"] * 3,
    *["pause"] * 2,
    *["pause_controller"] * 2,
    *["part"] * 3,
    *["part_from_tree"] * 2,
    *["isolate"] * 2,
    *["remove_controller_node"] * 2,
    *["shut_down"] * 2,
    *["reassign"] * 4,
    *["offline"] * 3,
    *["flip"] * 4,
]


class Client:
    """Producers and consumers: they believe what the tree said some time ago, and do not try again."""

    def __init__(self, simulation: Simulation) -> None:
        self.sim, self.world = simulation, simulation.world
        self.id, self.life, self.is_up, self.paused_until_ms = "client", 1, True, 0
        self.count = 0
        self.is_over = False
        self.positions = dict.fromkeys(simulation.tps, 0)

    def guarded(self, what: Any) -> None:
        what()

    def begin(self) -> None:
        for tp in self.sim.tps:
            self.world.timer(self, 100, partial(self._produce, tp))
            self.world.timer(self, 150, partial(self._consume, tp))

    def _leader(self, tp: TopicPartition) -> SimBroker:
        state = self.sim.tree.states.get(tp)
        if state is None or state.leader < 0 or self.world.chance(0.1):
            return self.sim.brokers[self.world.random.choice(list(self.sim.brokers))]
        return self.sim.brokers[state.leader]

    def _produce(self, tp: TopicPartition) -> None:
        if self.is_over:
            return
        target = self._leader(tp)
        values = [b"%d" % (self.count + n) for n in range(self.world.random.randint(1, 3))]
        self.count += len(values)
        acks_all = not self.world.chance(0.2)
        record_batch = build_batch(*values)
        crc = header_at(record_batch).crc

        def handle(reply: Any) -> None:
            partition = target.partitions.get(tp)
            if partition is not None:
                partition.produce(bytearray(record_batch), acks_all, reply)

        def answered(answer: Any) -> None:
            match answer:
                case (True, int() as offset, int() as leader_epoch):
                    self.sim.laws.acknowledged(tp, offset, crc, leader_epoch)

        self.sim.summary.appended += 1
        self.world.call(self, target, handle, answered, PRODUCE_TIMEOUT_MS)
        self.world.timer(self, self.world.random.choice([5, 20, 40, 150]), partial(self._produce, tp))

    def _consume(self, tp: TopicPartition) -> None:
        if self.is_over:
            return
        target = self._leader(tp)

        def answered(answer: Any) -> None:
            match answer:
                case ("data", bytes() as data, int() as leader_epoch):
                    self.sim.laws.consumed(tp, data, leader_epoch)
                    if data:
                        self.positions[tp] = header_at(data).base_offset + 1

        offset = self.positions[tp]
        self.world.call(self, target, lambda reply: target.read(tp, offset, reply), answered)
        self.world.timer(self, self.world.random.choice([100, 300]), partial(self._consume, tp))


# -------------------------------------------------------------------- mutants


def follow_from_hw(leader: int, leader_epoch: int, **known: Any) -> follower.Step:
    """The bug of old: cut at the high watermark, then fetch."""
    state, _ = follower.follow(leader, leader_epoch, **known)
    state = state._replace(phase=follower.Phase.TRUNCATING, asked=-1, is_asking=False)
    return state, (follower.TruncateTo(state.high_watermark),)


def judge_any_controller(broker: SimBroker, **epochs: int) -> ErrorCode | None:
    return leadership.judge_request(**{**epochs, "known_controller_epoch": epochs["controller_epoch"]})


@contextmanager
def committed_isr_only() -> Any:
    right = isr.Leading.maximal_isr
    isr.Leading.maximal_isr = property(lambda state: state.isr)  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        isr.Leading.maximal_isr = right  # type: ignore[misc]


@contextmanager
def cut_in_the_dark() -> Any:
    right = follower._write_failed
    follower._write_failed = lambda state, event: (
        state._replace(is_asking=False, is_paused=True), (follower.Pause(),)
    )  # fmt: skip
    try:
        yield
    finally:
        follower._write_failed = right


@contextmanager
def cut_unasked() -> Any:
    right = Repairs.show
    Repairs.show = lambda *asked: "SHOWN"
    try:
        yield
    finally:
        Repairs.show = right


@contextmanager
def not_filled() -> Any:
    right = SegmentCopy.put
    SegmentCopy.put = lambda self: self.drop()
    try:
        yield
    finally:
        SegmentCopy.put = right


@contextmanager
def no_recovery() -> Any:
    right = ReplicaLogDir._open_or_mend
    ReplicaLogDir._open_or_mend = lambda self, tp, config, point, *, is_clean: right(
        self, tp, config, point, is_clean=True
    )
    try:
        yield
    finally:
        ReplicaLogDir._open_or_mend = right


@contextmanager
def power_cut_unnoticed() -> Any:
    right = ReplicaLogDir._boot
    ReplicaLogDir._boot = lambda self: "this one"
    try:
        yield
    finally:
        ReplicaLogDir._boot = right


@contextmanager
def small_and_the_same(seed: int) -> Any:
    """Directories that are cheap to copy, with names that are the same in each run of a seed."""
    dice, right = random.Random(seed), (uuid.uuid4, disk_reserve.RESERVE_BYTES)
    uuid.uuid4 = lambda: uuid.UUID(int=dice.getrandbits(128), version=4)
    disk_reserve.RESERVE_BYTES = 64
    try:
        yield
    finally:
        uuid.uuid4, disk_reserve.RESERVE_BYTES = right


_PATCHES = {
    Mutant.CUT_UNASKED: cut_unasked,
    Mutant.NOT_FILLED: not_filled,
    Mutant.NO_RECOVERY: no_recovery,
    Mutant.POWER_CUT_UNNOTICED: power_cut_unnoticed,
    Mutant.COMMITTED_ISR_ONLY: committed_isr_only,
    Mutant.CUT_IN_THE_DARK: cut_in_the_dark,
}


def simulate(seed: int, mutant: Mutant | None = None) -> Summary:
    """Run one seed.

    Raises: AssertionError: a law was broken.
    """
    simulation = Simulation(seed, mutant)
    simulation.replies = {}
    try:
        with small_and_the_same(seed), _PATCHES.get(mutant, nullcontext)():
            return simulation.run()
    except AssertionError as error:
        error.add_note("\n".join(simulation.world.notes))
        raise AssertionError(f"seed {seed} at {simulation.world.now_ms} ms: {error}") from error
