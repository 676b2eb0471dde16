"""(R10) Runs with a plot: a broker loses writes while the controller does not know yet that an ISR counts on it."""

import pytest

from replication.model.cluster import TopicPartition
from tests.sim.broker import SETTINGS, SimBroker
from tests.sim.client import Clients
from tests.sim.laws import Laws
from tests.sim.observed import lines_noted, load_classes, observed, small_and_the_same
from tests.sim.simulation import Simulation
from tests.support.disk import Crash

TP = TopicPartition("t", 0)
LEADER, FOLLOWER, CONTROLLER = 1, 2, 3
ALL_MS = 20_000


class Plot(Simulation):
    """Nothing goes wrong by chance. Broker 1 leads and 2 follows; 3 is the controller, and has no replica."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.rows = {0: (LEADER, FOLLOWER)}
        self.settings = {"min.insync.replicas": "1", "unclean.leader.election.enable": "false"}
        self.tps = self.data = [TP]
        self.copies = self.has_members = False
        self.internal = []
        self.brokers = {b: SimBroker(b, self) for b in (LEADER, FOLLOWER, CONTROLLER)}
        self._at = {broker.host: broker for broker in self.brokers.values()}
        self.laws = Laws(self.store, self.brokers, self.tps, unclean=False)
        self.clients = Clients(self)
        self.leader, self.follower, self.controller = self.brokers.values()

    def later(self, act) -> None:
        self.world.after(1_500, act)

    def begin(self) -> None:
        self.operator.soon(self._prepare)
        self.until(lambda: self.session is not None)
        self.controller.start()
        self.until(lambda: self.store.controller == CONTROLLER)
        self.leader.start()
        self.until(lambda: self.isr == (LEADER,))
        self.follower.start()
        self.until(lambda: self.isr == (LEADER, FOLLOWER))
        self.clients.life.soon(self.clients.begin)
        self.until(lambda: self.laws.ends[TP] > 10)

    def until(self, holds) -> None:
        end_ms = self.world.now_ms + ALL_MS
        while not holds():
            assert self.world.now_ms < end_ms, "it does not come to that"
            self._run_until(self.world.now_ms + 1)

    def pass_ms(self, duration_ms: int) -> None:
        self._run_until(self.world.now_ms + duration_ms)

    def until_all_is_well(self) -> None:
        self.pass_ms(2_000)
        self.world.cuts.clear()
        self.clients.is_over = True
        self.until(self.laws.is_all_well)

    @property
    def isr(self) -> tuple[int, ...]:
        stored = self.store.state(TP)
        return () if stored is None else stored.isr

    @property
    def known_isr(self) -> tuple[int, ...]:
        """The one that the controller knows."""
        return self.controller.broker.controller.state.leadership[TP].isr

    def between_brokers(self) -> set[tuple[str, str]]:
        return {(self.leader.host, self.follower.host), (self.follower.host, self.leader.host)}


@pytest.fixture(params=range(1, 4))
def plot(request, monkeypatch):
    monkeypatch.setitem(SETTINGS, "replica.lag.time.max.ms", 2_000)  # who is paused for less stays
    load_classes()
    seed = request.param
    found = Plot(seed)
    with small_and_the_same(seed), lines_noted(found), observed(found):
        try:
            yield found
        finally:
            found.world.loop.finish()


def join_and_lose(plot: Plot) -> None:
    """The follower is admitted to the ISR again, and loses what it has copied before anybody tells the controller."""
    plot.begin()
    plot.world.cuts |= plot.between_brokers()
    plot.until(lambda: plot.isr == plot.known_isr == (LEADER,))
    ends = plot.laws.ends[TP]
    plot.until(lambda: plot.laws.ends[TP] > ends + 10)
    plot.world.cuts.clear()
    plot.until(lambda: plot.isr == (LEADER, FOLLOWER))
    plot.leader.life.pause(400)  # behind the write, and before it says so
    plot.world.cuts |= plot.between_brokers()
    assert plot.known_isr == (LEADER,)
    plot.down(plot.follower, Crash.LOST)
    plot.follower.start()
    plot.until(lambda: plot.store.has_lost_writes(FOLLOWER))


def test_who_lost_writes_is_not_elected_for_it_was_admitted_before_that(plot):
    join_and_lose(plot)
    plot.until(lambda: plot.known_isr == (LEADER, FOLLOWER) or plot.store.state(TP).leader_epoch > 0)
    plot.pass_ms(300)
    plot.down(plot.leader, Crash.KILLED)
    plot.until_all_is_well()


def test_nor_by_a_controller_to_which_it_does_not_say_so_any_more(plot):
    """It says so until it was told what was decided: by a controller that did not know of the ISR."""
    join_and_lose(plot)
    plot.until(lambda: not plot.store.has_lost_writes(FOLLOWER))
    plot.down(plot.leader, Crash.KILLED)
    plot.down(plot.controller, Crash.KILLED)
    plot.until_all_is_well()
