"""A replica on a simulated broker: the real machines of leader and follower over a real log.

It takes an event, steps, keeps the new state, then performs the effects. It decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from logstore.log.log import Log
from replication.controller.machine import events
from replication.model.cluster import LeaderAndIsr, Replica, TopicPartition
from replication.replica.machine import follower, isr, leadership
from tests.support.partition import appended

if TYPE_CHECKING:
    from tests.sim.broker import SimBroker

POLL_MS = 200
WRITE_FAILS = 0.03  # of a follower's appends and cuts
FOLLOWER_BACKOFF_MS = 40
LEADER_LIMITS = isr.IsrSettings(replica_lag_time_max_ms=400)


class Wait(NamedTuple):
    """Records that were appended in this epoch; `reply` is told once all before `end` is committed."""

    end: int
    leader_epoch: int
    reply: Callable[[Any], None]


class Partition:
    """A replica on this broker: its log, its role, and who waits for it."""

    def __init__(self, broker: SimBroker, tp: TopicPartition, log: Log, high_watermark: int) -> None:
        self.broker, self.tp, self.log = broker, tp, log
        self.role: isr.Leading | follower.FollowerState | None = None
        self.known_epoch: int | None = None
        self.is_loss_decided = False
        self.idle_high_watermark = high_watermark
        self.waits: list[Wait] = []
        self.parked: list[Callable[[], None]] = []

    @property
    def high_watermark(self) -> int:
        return self.role.high_watermark if self.role is not None else self.idle_high_watermark

    @property
    def is_offline(self) -> bool:
        """Then it does not fetch, nor ask where epochs end."""
        return self.broker.offline is not None and self.broker.offline.reason(self.tp) is not None

    @property
    def log_end_offset(self) -> int:
        return self.role.log_end_offset if self.role is not None else self.log.log_end_offset

    # ------------------------------------------------------------------ roles

    def take_role(self, news: events.LeaderAndIsrPartitionState) -> None:
        me = Replica(self.tp, self.broker.id)
        if leadership.judge_leadership(me, news.state, news.replicas, known_leader_epoch=self.known_epoch):
            return
        self.known_epoch = news.state.leader_epoch
        self.is_loss_decided = leadership.is_loss_decided(me, news.state)
        if news.state.leader == me.broker and isinstance(self.role, isr.Leading):
            self._lead_on(self.role, news.state, news.replicas)
            return
        self.leave_role()
        if news.state.leader == me.broker:
            self._lead(news.state, news.replicas)
        elif news.state.leader >= 0:
            self.follow(news.state)

    def leave_role(self) -> None:
        """Nobody waits here any more."""
        if self.role is not None:
            self.idle_high_watermark = self.role.high_watermark
        self.role = None
        if not self.broker.waits_outlive_roles:
            waits, self.waits = self.waits, []
            for wait in waits:
                wait.reply("NOT_LEADER")
        self.wake()

    def wake(self) -> None:
        parked, self.parked = self.parked, []
        for again in parked:
            again()

    def _lead(self, stored: LeaderAndIsr, replicas: tuple[int, ...]) -> None:
        self.role, effects = isr.lead(
            self.broker.id,
            stored,
            replicas,
            log_end_offset=self.log.log_end_offset,
            high_watermark=self.idle_high_watermark,
            now_ms=self.broker.world.now_ms,
        )
        self.broker.watcher.leads(self, stored)
        self._perform(effects)

    def _lead_on(self, role: isr.Leading, stored: LeaderAndIsr, replicas: tuple[int, ...]) -> None:
        """Who waits for the high watermark waits on."""
        self.idle_high_watermark = role.high_watermark
        self.role, effects = isr.lead_on(
            role, stored, replicas, log_end_offset=self.log.log_end_offset, now_ms=self.broker.world.now_ms
        )
        self.broker.watcher.leads(self, stored)
        self._perform(effects)
        self.wake()

    def follow(self, stored: LeaderAndIsr) -> None:
        self.role, effects = self.broker.follow(
            stored.leader,
            stored.leader_epoch,
            log_start_offset=self.log.log_start_offset,
            log_end_offset=self.log.log_end_offset,
            epochs=self.log.epochs.starts,
            high_watermark=self.idle_high_watermark,
        )
        self._perform_following(effects)

    # ---------------------------------------------------------------- leading

    def lead_on(self, event: isr.Event) -> None:
        assert isinstance(self.role, isr.Leading)
        self.role, effects = isr.step(self.role, event, LEADER_LIMITS)
        if effects:
            self._perform(effects)

    def _perform(self, effects: tuple[isr.Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case isr.HighWatermarkMoved():
                    self.broker.watcher.committed(self)
                    self._complete_waits()
                    self.wake()
                case isr.WriteIsr(members, version, alive):
                    self._write_isr(members, version, alive)
                case isr.RefreshLeadership():
                    self._refresh()
                case isr.IsrChanged():
                    pass  # the tree tells the controller

    def _write_isr(self, members: tuple[int, ...], version: int, alive: Any) -> None:
        assert isinstance(self.role, isr.Leading)
        epoch, tree = self.role.leader_epoch, self.broker.tree
        self.broker.ask_tree(
            partial(tree.write_isr, self.tp, epoch, members, version, alive),
            lambda written: self._if_leading(
                isr.IsrRefused(epoch) if written is None else isr.IsrWritten(epoch, written)
            ),
        )

    def _refresh(self) -> None:
        tree = self.broker.tree
        self.broker.ask_tree(
            lambda: tree.states[self.tp], lambda stored: self._if_leading(isr.LeadershipRefreshed(stored))
        )

    def _if_leading(self, event: isr.Event) -> None:
        if isinstance(self.role, isr.Leading):
            self.lead_on(event)

    def _complete_waits(self) -> None:
        role = self.role
        assert isinstance(role, isr.Leading)
        left = []
        for wait in self.waits:
            if role.high_watermark < wait.end:
                left.append(wait)
            else:
                self.broker.acked_later += role.leader_epoch > wait.leader_epoch
                wait.reply(isr.has_enough_replicas(role, self.broker.min_insync))
        self.waits = left

    def produce(self, batch: bytearray, acks_all: bool, reply: Callable[[Any], None]) -> None:
        if not isinstance(self.role, isr.Leading):
            reply("NOT_LEADER")
            return
        if acks_all and not isr.has_enough_replicas(self.role, self.broker.min_insync):
            reply("NOT_ENOUGH_REPLICAS")
            return
        epoch = self.role.leader_epoch
        info = appended(self.log, batch, leader_epoch=epoch)
        if acks_all:
            self.waits.append(Wait(info.next_offset, epoch, lambda ack: reply((ack, info.first_offset, epoch))))
        self.lead_on(isr.Appended(info.next_offset))
        self.wake()
        if acks_all:
            self._complete_waits()
        else:
            reply(("ACKS_1", info.first_offset))

    def serve_fetch(
        self, replica: int, broker_epoch: int, epoch: int, offset: int, reply: Any, *, may_park: bool
    ) -> None:
        """A follower's fetch: judged, noted, answered; parked for a while if there is nothing."""
        leading = self.role
        if not isinstance(leading, isr.Leading):
            reply("NOT_LEADER")
            return
        if error := isr.judge_fetch(leading, replica, leader_epoch=epoch, broker_epoch=broker_epoch):
            reply(error)
            return
        start = self.log.log_start_offset
        if not start <= offset <= leading.log_end_offset:
            reply((start, leading.log_end_offset))
            return
        before = leading.high_watermark
        if may_park:
            self.lead_on(isr.Fetched(replica, offset, self.broker.world.now_ms, broker_epoch))
            leading = self.role
        if may_park and offset == leading.log_end_offset and leading.high_watermark == before:
            self._park(partial(self.serve_fetch, replica, broker_epoch, epoch, offset, reply, may_park=False))
            return
        data = b""
        if offset < leading.log_end_offset:
            data, _ = self.broker.repairs.read_checked(self.tp, offset)
            if not data:
                reply("KAFKA_STORAGE_ERROR")
                return
        reply((data, leading.high_watermark, start))

    def _park(self, again: Callable[[], None]) -> None:
        is_done = False

        def once() -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                again()

        self.parked.append(once)
        self.broker.world.timer(self.broker, POLL_MS, once)

    def epoch_end(self, epoch: int, asked: int) -> Any:
        if not isinstance(self.role, isr.Leading):
            return "NOT_LEADER"
        if error := isr.judge_epoch(self.role.leader_epoch, epoch):
            return error
        found = self.log.epochs.end_offset(asked, self.log.log_end_offset)
        return (-1, self.log.log_start_offset) if found is None else tuple(found)

    # -------------------------------------------------------------- following

    def follow_on(self, event: follower.Event, epoch: int | None = None) -> None:
        if not isinstance(self.role, follower.FollowerState) or epoch not in (None, self.role.leader_epoch):
            return
        self.role, effects = follower.step(self.role, event)
        if effects:
            self._perform_following(effects)

    def _perform_following(self, effects: tuple[follower.Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case follower.Fetch():
                    self._fetch(effect)
                case follower.Append(records, leader_high_watermark):
                    self._append(bytes(records), leader_high_watermark)
                case follower.AskEpochEnd():
                    self._ask_epoch_end(effect)
                case follower.TruncateTo(offset) | follower.StartAnew(offset):
                    self._truncate(offset)
                case follower.ReportLostRecords():
                    self.broker.watcher.lost(self, effect)
                case follower.MoveLogStart():
                    pass
                case follower.Pause():
                    self._later(partial(self.follow_on, follower.PauseOver(), self.role.leader_epoch))

    def _append(self, records: bytes, leader_high_watermark: int) -> None:
        """Some time later, as a disk does it; not at all if the role was left before."""
        role, world = self.role, self.broker.world
        assert isinstance(role, follower.FollowerState)

        def append() -> None:
            now = self.role
            if isinstance(now, follower.FollowerState) and now.leader_epoch == role.leader_epoch:
                if world.chance(WRITE_FAILS):
                    self._write_failed()
                    return
                self.log.append_as_follower(records)
                end, starts = self.log.log_end_offset, _starts(self.log)
                self.follow_on(follower.Appended(end, starts, leader_high_watermark))

        if delay_ms := world.random.choice((0, 0, 1, 5)):
            world.timer(self.broker, delay_ms, append)
        else:
            append()

    def _fetch(self, question: follower.Fetch) -> None:
        world, broker = self.broker.world, self.broker
        if self.is_offline:
            self._failed(question)
            return
        leader, epoch, offset = question.leader, question.leader_epoch, question.offset
        target, me, mine = broker.peers[leader], broker.id, broker.epoch

        def handle(reply: Callable[[Any], None]) -> None:
            there = target.partitions.get(self.tp)
            if there is None:
                reply("NOT_LEADER")
            else:
                there.serve_fetch(me, mine, epoch, offset, reply, may_park=True)

        world.call(broker, target, handle, partial(self._on_fetched, question), POLL_MS + 200)

    def _on_fetched(self, question: follower.Fetch, answer: Any) -> None:
        epoch, offset = question.leader_epoch, question.offset
        match answer:
            case (bytes() as data, int() as high_watermark, int() as start):
                self.follow_on(follower.RecordsFetched(epoch, offset, data, high_watermark, start), epoch)
            case (int() as start, int() as end):
                self.follow_on(follower.OutOfRange(epoch, offset, start, end), epoch)
            case _:
                self._failed(question)

    def _ask_epoch_end(self, question: follower.AskEpochEnd) -> None:
        broker = self.broker
        if self.is_offline:
            self._failed(question)
            return
        epoch, asked, target = question.leader_epoch, question.epoch, broker.peers[question.leader]

        def handle(reply: Callable[[Any], None]) -> None:
            there = target.partitions.get(self.tp)
            reply("NOT_LEADER" if there is None else there.epoch_end(epoch, asked))

        def answered(answer: Any) -> None:
            match answer:
                case (int() as found, int() as end):
                    self.follow_on(follower.EpochEndAnswered(epoch, asked, found, end), epoch)
                case _:
                    self._failed(question)

        broker.world.call(broker, target, handle, answered)

    def _failed(self, question: follower.Fetch | follower.AskEpochEnd) -> None:
        """Ask the same again later, as the driver does: the machine does not see it."""

        def again() -> None:
            role = self.role
            is_following = isinstance(role, follower.FollowerState) and role.is_asking
            if is_following and role.leader_epoch == question.leader_epoch:
                self._perform_following((question,))

        self._later(again)

    def _write_failed(self) -> None:
        """The disk is out of order for a moment."""
        log = self.log
        self.follow_on(follower.WriteFailed(log.log_start_offset, log.log_end_offset, _starts(log)))

    def _later(self, act: Callable[[], None]) -> None:
        self.broker.world.timer(self.broker, FOLLOWER_BACKOFF_MS, act)

    def _truncate(self, offset: int) -> None:
        """The checkpoints of recovery point and HW go down first."""
        if offset < self.log.log_end_offset:
            if self.broker.world.chance(WRITE_FAILS):
                self._write_failed()
                return
            self.broker.watcher.truncated(self, offset)
            with self.broker.replicas.cutting(self.tp, offset):
                self.log.truncate_to(offset)
        self.follow_on(follower.Truncated(self.log.log_start_offset, self.log.log_end_offset, _starts(self.log)))


def _starts(log: Log) -> follower.EpochStarts:
    return tuple((start.epoch, start.start_offset) for start in log.epochs.starts)
