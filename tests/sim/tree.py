"""The coordination tree: sessions that end, ephemeral nodes, conditional writes in one step, news in order.

Brokers reach it through requests that take time. A broker that is cut off gets its answers, or the news that its
session has ended, when it is back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from replication.controller.machine import events
from replication.model.cluster import (
    NO_LEADER,
    BrokerInfo,
    ClusterState,
    Election,
    LeaderAndIsr,
    Offline,
    Reassignment,
    TopicInfo,
    TopicPartition,
)
from tests.sim.world import World
from tests.support import reassigning

SESSION_TIMEOUT_MS = 500
EXPIRY_CHECK_MS = 50
ID = "tree"


@dataclass
class Session:
    owner: Any
    life: int
    seen_ms: int
    is_over: bool = False
    news_at_ms: int = 0
    news: deque[Callable[[Any], None]] = field(default_factory=deque)


@dataclass
class Tree:
    """See the module. `checks_controller_epoch` is false in one of the mutants."""

    world: World
    topics: dict[str, TopicInfo] = field(default_factory=dict)
    states: dict[TopicPartition, LeaderAndIsr] = field(default_factory=dict)
    plans: dict[TopicPartition, Reassignment] = field(default_factory=dict)
    brokers: dict[int, tuple[BrokerInfo, Session]] = field(default_factory=dict)
    offline: dict[int, Offline] = field(default_factory=dict)
    election: Election = field(default_factory=Election)
    controller: tuple[int, Session] | None = None
    controller_epoch: int = 0
    sessions: list[Session] = field(default_factory=list)
    clock: int = 0  # counts creations, as a creation version does
    checks_controller_epoch: bool = True
    id: str = ID

    def __post_init__(self) -> None:
        self.world.after(EXPIRY_CHECK_MS, self._expire)

    # --------------------------------------------------------------- sessions

    def connect(self, owner: Any) -> Session:
        session = Session(owner, owner.life, self.world.now_ms)
        self.sessions.append(session)
        return session

    def is_reachable(self, owner: Any) -> bool:
        return (owner.id, ID) not in self.world.cuts and owner.paused_until_ms <= self.world.now_ms

    def close(self, session: Session) -> None:
        """The session ends, whoever wanted that; its nodes go, and everybody hears of it."""
        if session.is_over:
            return
        session.is_over = True
        self.sessions.remove(session)
        gone = [broker for broker, (_, owner) in self.brokers.items() if owner is session]
        for broker in gone:
            del self.brokers[broker]
            self.offline.pop(broker, None)
            self.world.note(f"tree: broker {broker} gone")
        if self.controller is not None and self.controller[1] is session:
            self.controller = None
            self._tell(lambda owner: owner.on_controller_gone())
        if gone:
            self._brokers_changed()

    def _expire(self) -> None:
        for session in list(self.sessions):
            owner = session.owner
            if owner.is_up and owner.life == session.life and self.is_reachable(owner):
                session.seen_ms = self.world.now_ms
            elif self.world.now_ms - session.seen_ms > SESSION_TIMEOUT_MS:
                self.close(session)
                life = session.life
                self._when_reachable(owner, life, lambda o=owner, s=session: o.on_session_over(s))
        self.world.after(EXPIRY_CHECK_MS, self._expire)

    def _when_reachable(self, owner: Any, life: int, what: Callable[[], None]) -> None:
        if owner.life != life or not owner.is_up:
            return
        if not self.is_reachable(owner):
            self.world.after(EXPIRY_CHECK_MS, lambda: self._when_reachable(owner, life, what))
        else:
            self.world.at(owner, life, what)

    # ------------------------------------------------------------------- news

    def _tell(self, what: Callable[[Any], None]) -> None:
        """Tell every session, each in the order of things, some time later."""
        for session in self.sessions:
            self._tell_one(session, what, self.world.random.randint(1, 10))

    def _tell_one(self, session: Session, what: Callable[[Any], None], delay_ms: int) -> None:
        at_ms = session.news_at_ms = max(session.news_at_ms, self.world.now_ms + delay_ms)
        session.news.append(what)
        self.world.after(
            at_ms - self.world.now_ms,
            lambda: self._when_reachable(session.owner, session.life, partial(self._tell_next, session)),
        )

    def _tell_next(self, session: Session) -> None:
        """The oldest news first: while the owner could not be reached, several may have become due."""
        what = session.news.popleft()
        if not session.is_over:
            what(session.owner)

    def _brokers_changed(self) -> None:
        live, offline = tuple(info for info, _ in self.brokers.values()), dict(self.offline)
        self._tell(lambda owner: owner.post(events.BrokersChanged(live, offline)))

    def topics_changed(self) -> None:
        topics = dict(self.topics)
        self._tell(lambda owner: owner.post(events.TopicsChanged(topics)))

    # --------------------------------------------------------------- requests

    def request(
        self,
        session: Session,
        change: Callable[[], Any],
        answered: Callable[[Any], None],
        *,
        is_among_news: bool = False,
    ) -> None:
        """Do something in one step, a little later; the answer comes when the owner can be reached.

        `is_among_news`: behind the news of before it, and ahead of the news of after it.
        """
        delay_ms = self.world.random.randint(1, 5)

        def perform() -> None:
            if session.is_over:
                return
            answer = change()
            back_ms = self.world.random.randint(1, 5)
            if is_among_news:
                self._tell_one(session, lambda _: answered(answer), back_ms)
                return
            self.world.after(
                back_ms,
                lambda: self._when_reachable(
                    session.owner, session.life, lambda: None if session.is_over else answered(answer)
                ),
            )

        def leave() -> None:
            if not session.is_over:
                self._when_reachable(session.owner, session.life, perform)

        self.world.after(delay_ms, leave)

    def register(self, session: Session, broker: int, *, lost_writes: bool, offline: Offline | None) -> int | None:
        """The broker's epoch; None if a former session of it is not over yet."""
        if broker in self.brokers:
            return None
        self.clock += 1
        self.brokers[broker] = (BrokerInfo(broker, self.clock, lost_writes=lost_writes), session)
        if offline is not None:
            self.offline[broker] = offline
        self._brokers_changed()
        self.world.note(f"tree: broker {broker} registered, epoch {self.clock}, lost_writes={lost_writes}")
        return self.clock

    def write_offline(self, session: Session, broker: int, offline: Offline | None) -> None:
        """The broker says which of its replicas it cannot serve or write."""
        if broker in self.brokers and self.brokers[broker][1] is session:
            self.offline.pop(broker, None)
            if offline is not None:
                self.offline[broker] = offline
            now = dict(self.offline)
            self._tell(lambda owner: owner.post(events.OfflineReplicasChanged(now)))

    def forget_loss(self, session: Session, broker: int) -> bool:
        """The broker rewrites its node: nothing that it lacks is counted on any more."""
        info, owner = self.brokers[broker]
        if owner is not session:
            return False
        self.brokers[broker] = (replace(info, lost_writes=False), session)
        self._brokers_changed()
        return True

    def become_controller(self, session: Session, broker: int) -> int | None:
        """The controller epoch, a new one if there was no controller; None if another broker is it."""
        if self.controller is not None:
            return self.controller_epoch if self.controller[1] is session else None
        self.controller = (broker, session)
        self.controller_epoch += 1
        self.world.note(f"tree: controller {broker}, epoch {self.controller_epoch}")
        return self.controller_epoch

    def give_up_controller(self, session: Session) -> None:
        if self.controller is not None and self.controller[1] is session:
            self.controller = None
            self._tell(lambda owner: owner.on_controller_gone())

    def load(self) -> ClusterState:
        return ClusterState(
            {broker: info for broker, (info, _) in self.brokers.items()},
            dict(self.topics),
            dict(self.states),
            reassignments=dict(self.plans),
            offline=dict(self.offline),
            election=self.election,
        )

    def replicas(self, tp: TopicPartition) -> tuple[int, ...]:
        return self.topics[tp.topic].partitions[tp.partition]

    def ask_for(self, tp: TopicPartition, target: tuple[int, ...] | None) -> None:
        """Other replicas; None: those that it had before."""
        known = self.plans.get(tp)
        if target is not None:
            self.plans[tp] = Reassignment(target, None if known is None else known.original)
        elif known is not None and known.original is not None:
            self.plans[tp] = Reassignment(known.original, known.original)
        else:
            self.plans.pop(tp, None)
        self.world.note(f"tree: {tp} on {self.replicas(tp)} {self.plans.get(tp)}")
        self._plans_changed()

    def ask_for_unclean(self) -> None:
        """Somebody asks for unclean elections where nobody leads, unless others are under way."""
        leaderless = tuple(tp for tp, state in self.states.items() if state.leader == NO_LEADER)
        if leaderless and not self.election.partitions:
            election = self.election = Election(leaderless, is_unclean=True)
            self._tell(lambda owner: owner.post(events.ElectionRequested(election)))

    def delete_election(self) -> None:
        self.election = Election()

    def _plans_changed(self) -> None:
        plans = dict(self.plans)
        self._tell(lambda owner: owner.post(events.ReassignmentsRequested(plans)))

    def write_reassignment(self, order: events.WriteReassignment) -> events.Event:
        """Both nodes in one step with a check of the controller epoch, and of what they say."""
        if self.checks_controller_epoch and order.controller_epoch != self.controller_epoch:
            return events.Fenced()
        done = reassigning.write(self.plans, self.topics, order.write)
        if done.accepted:
            self.world.note(f"tree: {done.tp} on {done.replicas} {done.plan}")
            self._plans_changed()
        return done

    def write_states(self, order: events.WriteStates) -> events.Event:
        """Each write in one step with a check of the controller epoch."""
        if self.checks_controller_epoch and order.controller_epoch != self.controller_epoch:
            return events.Fenced()
        results = []
        for write in order.writes:
            accepted = self._write(write.tp, write.state)
            results.append(events.WriteResult(write.tp, accepted, self.states.get(write.tp)))
        return events.StatesWritten(tuple(results))

    def write_isr(
        self, tp: TopicPartition, leader_epoch: int, isr: tuple[int, ...], version: int, alive: Any
    ) -> int | None:
        """A leader's write: the version and the incarnations that join are checked in the same step."""
        stored = self.states[tp]
        is_alive = all(b in self.brokers and self.brokers[b][0].epoch == epoch for b, epoch in alive)
        if stored.version != version or stored.leader_epoch != leader_epoch or not is_alive:
            return None
        self._write(tp, replace(stored, isr=isr))
        written = self.states[tp]
        self._tell(lambda owner: owner.post(events.IsrChanged(((tp, written),))))
        return written.version

    def _write(self, tp: TopicPartition, state: LeaderAndIsr) -> bool:
        before = self.states.get(tp)
        if state.version != (before.version if before else -1):
            return False
        self.states[tp] = replace(state, version=state.version + 1)
        self.world.note(f"tree: {tp} {self.states[tp]}")
        return True
