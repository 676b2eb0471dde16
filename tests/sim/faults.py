"""Faults of a run: of processes, disks and networks, now and then, and at moments of clients.

Circumstances name faults as the methods here, which are given the broker that chance has chosen.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from replication.coordination import reassignments
from replication.coordination.tree import RefusedError
from replication.model.cluster import TRANSACTIONS_TOPIC, TopicPartition
from tests.sim.broker import SimBroker
from tests.sim.flips import flip, has_soundly
from tests.sim.laws import Batch
from tests.sim.tree import HOST as TREE
from tests.sim.world import LIFE
from tests.support.disk import Crash

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


class Faults:
    def __init__(self, sim: Simulation) -> None:
        self._sim, self._world = sim, sim.world

    def go_on(self) -> None:
        """Have one happen now and then, until all is to be calm."""
        if self._sim.is_calm or not self._sim.circumstances.faults:
            return
        self._strike(self._world.random.choice(self._sim.circumstances.faults))
        if self._sim.is_by_hand:
            self._sim.store.ask_for_unclean(self._sim.tps)
        self._world.after(self._world.random.choice(self._sim.circumstances.gaps_ms), self.go_on)

    def meet(self, moment: str) -> None:
        """A client is about to do this: a fault may happen now."""
        when, fault, probability = self._sim.circumstances.at
        if moment == when and not self._sim.is_calm and self._world.chance(probability):
            self._strike(fault)

    def _strike(self, fault: str) -> None:
        broker = self._sim.brokers[self._world.random.choice(list(self._sim.brokers))]
        self._sim.summary.faults += 1
        self._world.note(f"fault: {fault} {broker.id}")
        getattr(self, fault)(broker)

    def kill(self, broker: SimBroker) -> None:
        self._sim.down(broker, Crash.KILLED)

    def power(self, broker: SimBroker) -> None:
        """Only where the protocol promises something: another candidate has everything."""
        kinds = [Crash.LOST, Crash.TORN, Crash.REORDERED]
        may = self._sim.laws.may_lose_writes(broker.id)
        self._sim.down(broker, self._world.random.choice(kinds) if may else Crash.KILLED)

    def wipe(self, broker: SimBroker) -> None:
        """The disk is replaced by an empty one."""
        if broker.is_up and self._sim.laws.may_lose_writes(broker.id):
            self._sim.down(broker, Crash.LOST)
            broker.replace_disk()
            for tp in self._sim.tps:
                self._sim.laws.last_ends[broker.id, tp] = 0

    def cut_in_the_middle(self, broker: SimBroker) -> None:
        """The next change, or one soon after, is done in part only."""
        broker.disk.crash_at = broker.disk.calls + self._world.random.randint(1, 12)

    def pause(self, broker: SimBroker) -> None:
        broker.life.pause(self._world.random.choice([100, 400, 900, 2000]))

    def pause_controller(self, broker: SimBroker) -> None:
        if (controller := self._sim.store.controller) is not None:
            self.pause(self._sim.brokers[controller])

    def part(self, broker: SimBroker) -> None:
        """The broker hears no other, or is heard by none, or both; the store and the clients it may reach."""
        hosts = [other.host for other in self._sim.brokers.values() if other is not broker]
        ways = self._world.random.choice(["in", "out", "both"])
        cuts = {(o, broker.host) for o in hosts if ways != "out"} | {(broker.host, o) for o in hosts if ways != "in"}
        self._cut(cuts)

    def part_from_tree(self, broker: SimBroker) -> None:
        self._cut({(broker.host, TREE)})

    def isolate(self, broker: SimBroker) -> None:
        self.part(broker)
        self.part_from_tree(broker)

    def isolate_leader(self, broker: SimBroker) -> None:
        """Clients write to it while another one is elected."""
        self.isolate(self._leader_of(self._sim.tps, broker))

    def isolate_coordinator(self, broker: SimBroker) -> None:
        """The coordinator of transactions."""
        self.isolate(self._leader_of([TopicPartition(TRANSACTIONS_TOPIC, 0)], broker))

    def power_without_leader(self, broker: SimBroker) -> None:
        """Followers lose what they have not flushed, while their leader, which has it, is isolated."""
        tp = self._world.random.choice(self._sim.data)
        leader = self._leader_of([tp], broker)
        self.isolate(leader)
        for follower_id in {*self._sim.store.replicas(tp)} - {leader.id}:
            self._world.after(50, lambda follower=self._sim.brokers[follower_id]: self.power(follower))

    def _leader_of(self, tps: list[TopicPartition], default: SimBroker) -> SimBroker:
        stored = self._sim.store.state(self._world.random.choice(tps))
        return default if stored is None else self._sim.brokers.get(stored.leader, default)

    def cut_off_client(self, broker: SimBroker) -> None:
        """No broker hears the client that does something now."""
        self._cut({(LIFE.get().host, broker.host) for broker in self._sim.brokers.values()})

    def _cut(self, cuts: set[Any]) -> None:
        self._world.cuts |= cuts
        self._sim.later(lambda: self._world.cuts.difference_update(cuts))

    def remove_controller_node(self, broker: SimBroker) -> None:
        self._sim.store.remove_controller()

    def shut_down(self, broker: SimBroker) -> None:
        broker.shut_down()

    def offline(self, broker: SimBroker) -> None:
        """Its disk is full, or a replica of it odd, for a while."""
        broker.fall_out_of_order(self._world.random.choice([None, *self._sim.tps]))
        self._sim.later(broker.come_into_order)

    def flip(self, broker: SimBroker) -> None:
        """Bits of what is committed, in one batch here and perhaps in a later one elsewhere; nobody is told."""
        chance = self._world.random
        tp = chance.choice(self._sim.data)
        others = [other for other in self._sim.brokers.values() if other is not broker and chance.random() < 0.6]
        committed = self._sim.laws.committed[tp]
        if committed and not self._sim.laws.unclean:
            at = chance.randrange(len(committed))
            self._flip_in(broker, tp, committed[at])
            for other in others:
                self._flip_in(other, tp, committed[chance.randrange(at, len(committed))])

    def _flip_in(self, broker: SimBroker, tp: TopicPartition, batch: Batch) -> None:
        """Not the last sound copy; and above what is noted as flushed a start takes it for a torn write, and cuts.

        A damaged replica may have seen this copy, and be about to cut its own: that one does not count.
        """
        others = [other for other in self._sim.brokers.values() if other is not broker and not other.is_damaged(tp)]
        if not broker.is_up or tp not in broker.partitions:
            return
        is_here = batch.next_offset <= broker.flushed_to(tp) and has_soundly(broker, tp, batch)
        if is_here and any(has_soundly(other, tp, batch) for other in others):
            self._world.note(f"{broker.id}: {tp} a bit of {batch} flips")
            flip(broker, tp, batch)
            self._sim.laws.damaged.setdefault((broker.id, tp), []).append(batch)
            self._sim.summary.flips += 1

    def reassign(self, broker: SimBroker) -> None:
        """A partition shall be elsewhere, or on more or fewer brokers; or that is taken back."""
        chance = self._world.random
        tp, target = chance.choice(self._sim.tps), None
        if tp not in self._sim.store.plans or chance.random() >= 0.4:
            self._sim.summary.moves += 1
            count = chance.randint(1 if self._sim.laws.unclean else 2, 3)
            target = tuple(chance.sample(sorted(self._sim.brokers), count))

        async def ask() -> None:
            with suppress(RefusedError):
                await reassignments.request(self._sim.session, {tp: target})

        self._sim.operator.soon(lambda: setattr(self, "work", asyncio.ensure_future(ask())))
