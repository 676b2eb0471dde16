"""A broker: the real machines over real logs on a simulated disk; what the driver of a real one does, in short.

It takes an event, steps, keeps the new state, then performs the effects. It decides nothing itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from logstore.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from logstore.config import LogConfig
from logstore.env import Env
from logstore.errors import OffsetOutOfRangeError
from logstore.log import Log, create
from logstore.partition_dir import topic_id_of
from replication import controller as controller_machine
from replication import follower, isr, roles
from replication.controller import Controller, events
from replication.model import LeaderAndIsr, Replica, TopicPartition
from replication.state_change_log import StateChange
from tests.crash.disk import Crash, Disk, PowerCut
from tests.sim.tree import Session, Tree
from tests.sim.world import World

ROOT = Path("/broker")
TICK_MS = 100
POLL_MS = 200
RETRY_MS = 60
FETCH_BYTES = 1024
LOG_SETTINGS = LogConfig(segment_bytes=2000, index_interval_bytes=400, max_message_bytes=2000)
CONTROLLER_LIMITS = controller_machine.Limits(leader_imbalance_check_interval_seconds=2)
FOLLOWER_LIMITS = follower.Limits(replica_fetch_backoff_ms=40)
LEADER_LIMITS = isr.Limits(replica_lag_time_max_ms=400)


class Partition:
    """A replica on this broker: its log, its role, and who waits for it."""

    def __init__(self, broker: SimBroker, tp: TopicPartition, log: Log, high_watermark: int) -> None:
        self.broker, self.tp, self.log = broker, tp, log
        self.role: isr.Leading | follower.Following | None = None
        self.known_epoch: int | None = None
        self.is_loss_decided = False
        self.idle_high_watermark = high_watermark
        self.waits: list[tuple[int, Callable[[Any], None]]] = []
        self.parked: list[Callable[[], None]] = []
        self.fetched = b""

    @property
    def high_watermark(self) -> int:
        return self.role.high_watermark if self.role is not None else self.idle_high_watermark

    @property
    def log_end_offset(self) -> int:
        return self.role.log_end_offset if self.role is not None else self.log.log_end_offset

    # ------------------------------------------------------------------ roles

    def take_role(self, news: events.PartitionNews) -> None:
        me = Replica(self.tp, self.broker.id)
        role = roles.judge_leadership(me, news.state, news.replicas, known_leader_epoch=self.known_epoch)
        if role not in (roles.Role.LEAD, roles.Role.FOLLOW, roles.Role.WAIT):
            return
        self.leave_role()
        self.known_epoch = news.state.leader_epoch
        self.is_loss_decided = roles.is_loss_decided(me, news.state)
        if role is roles.Role.LEAD:
            self._lead(news.state, news.replicas)
        elif role is roles.Role.FOLLOW:
            self._follow(news.state)

    def leave_role(self) -> None:
        """Nobody waits here any more."""
        if self.role is not None:
            self.idle_high_watermark = self.role.high_watermark
        self.role = None
        waits, self.waits = self.waits, []
        for _, reply in waits:
            reply("NOT_LEADER")
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

    def _follow(self, stored: LeaderAndIsr) -> None:
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
        assert isinstance(self.role, isr.Leading)
        left = []
        for end, reply in self.waits:
            ack = isr.acknowledge(self.role, end, self.broker.min_insync)
            if ack is isr.Ack.WAIT:
                left.append((end, reply))
            else:
                reply(ack)
        self.waits = left

    def produce(self, batch: bytearray, acks_all: bool, reply: Callable[[Any], None]) -> None:
        if not isinstance(self.role, isr.Leading):
            reply("NOT_LEADER")
            return
        if acks_all and not isr.has_enough_replicas(self.role, self.broker.min_insync):
            reply("NOT_ENOUGH_REPLICAS")
            return
        epoch = self.role.leader_epoch
        info = self.log.append_as_leader(batch, leader_epoch=epoch)
        if acks_all:
            self.waits.append((info.next_offset, lambda ack: reply((ack, info.first_offset, epoch))))
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
        verdict = isr.judge_fetch(leading, replica, leader_epoch=epoch, broker_epoch=broker_epoch)
        if verdict is not isr.Verdict.OK:
            reply(verdict)
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
            data = bytes(self.log.read(offset, max_bytes=FETCH_BYTES).data)
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
        verdict = isr.judge_epoch(self.role.leader_epoch, epoch)
        if verdict is not isr.Verdict.OK:
            return verdict
        found = self.log.epochs.end_offset(asked, self.log.log_end_offset)
        return (-1, self.log.log_start_offset) if found is None else tuple(found)

    # -------------------------------------------------------------- following

    def follow_on(self, event: follower.Event, epoch: int | None = None) -> None:
        if not isinstance(self.role, follower.Following) or epoch not in (None, self.role.leader_epoch):
            return
        self.role, effects = follower.step(self.role, event, FOLLOWER_LIMITS)
        if effects:
            self._perform_following(effects)

    def _perform_following(self, effects: tuple[follower.Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case follower.Fetch(leader, epoch, offset):
                    self._fetch(leader, epoch, offset)
                case follower.Append(leader_high_watermark):
                    self.log.append_as_follower(self.fetched)
                    end, starts = self.log.log_end_offset, _starts(self.log)
                    self.follow_on(follower.Appended(end, starts, leader_high_watermark))
                case follower.AskEpochEnd(leader, epoch, asked):
                    self._ask_epoch_end(leader, epoch, asked)
                case follower.TruncateTo(offset) | follower.StartAnew(offset):
                    self._truncate(offset)
                case follower.ReportLostRecords():
                    self.broker.watcher.lost(self, effect)
                case follower.HighWatermarkMoved() | follower.LogStartMoved():
                    pass

    def _fetch(self, leader: int, epoch: int, offset: int) -> None:
        world, broker = self.broker.world, self.broker
        target, me, mine = broker.peers[leader], broker.id, broker.epoch

        def handle(reply: Callable[[Any], None]) -> None:
            there = target.partitions.get(self.tp)
            if there is None:
                reply("NOT_LEADER")
            else:
                there.serve_fetch(me, mine, epoch, offset, reply, may_park=True)

        world.call(broker, target, handle, partial(self._on_fetched, epoch, offset), POLL_MS + 200)

    def _on_fetched(self, epoch: int, offset: int, answer: Any) -> None:
        match answer:
            case (bytes() as data, int() as high_watermark, int() as start):
                self.fetched = data
                self.follow_on(
                    follower.RecordsFetched(epoch, offset, len(data), high_watermark, start), epoch
                )
            case (int() as start, int() as end):
                self.follow_on(follower.OutOfRange(epoch, offset, start, end), epoch)
            case _:
                self._failed(epoch)

    def _ask_epoch_end(self, leader: int, epoch: int, asked: int) -> None:
        broker = self.broker
        target = broker.peers[leader]

        def handle(reply: Callable[[Any], None]) -> None:
            there = target.partitions.get(self.tp)
            reply("NOT_LEADER" if there is None else there.epoch_end(epoch, asked))

        def answered(answer: Any) -> None:
            match answer:
                case (int() as found, int() as end):
                    self.follow_on(follower.EpochEndAnswered(epoch, asked, found, end), epoch)
                case _:
                    self._failed(epoch)

        broker.world.call(broker, target, handle, answered)

    def _failed(self, epoch: int) -> None:
        self.follow_on(follower.Failed(epoch, self.broker.world.now_ms), epoch)
        self.broker.world.timer(
            self.broker,
            FOLLOWER_LIMITS.replica_fetch_backoff_ms,
            lambda: self.follow_on(follower.Ticked(self.broker.world.now_ms), epoch),
        )

    def _truncate(self, offset: int) -> None:
        """The checkpoints of recovery point and HW go down first."""
        if offset < self.log.log_end_offset:
            self.broker.watcher.truncated(self, offset)
            self.broker.lower(self, offset)
            self.log.truncate_to(offset)
        self.follow_on(
            follower.Truncated(self.log.log_start_offset, self.log.log_end_offset, _starts(self.log))
        )


def _starts(log: Log) -> follower.EpochStarts:
    return tuple((start.epoch, start.start_offset) for start in log.epochs.starts)


class SimBroker:
    """See the module. `peers` are all brokers; `watcher` checks the laws."""

    def __init__(self, id: int, world: World, tree: Tree, watcher: Any, *, min_insync: int) -> None:
        self.id, self.world, self.tree, self.watcher = id, world, tree, watcher
        self.min_insync = min_insync
        self.peers: dict[int, SimBroker] = {}
        self.follow = follower.follow
        self.judge_request = roles.judge_request
        self.disk = Disk(seed=id)
        self.disk.mkdir(ROOT)
        self.disk.fsync(ROOT.parent)
        self.life = 0
        self.is_up = False
        self.paused_until_ms = 0
        self.lost_writes = False
        self._forget()

    def _forget(self) -> None:
        self.env = Env(self.world_clock(), self.disk)
        self.session: Session | None = None
        self.epoch = -1
        self.partitions: dict[TopicPartition, Partition] = {}
        self.controller = Controller(broker=self.id)
        self.known_controller_epoch = 0
        self.outbox: dict[int, deque[Any]] = {}
        self.sending: set[int] = set()
        self.recovery_points: dict[str, int] = {}
        self.noted_high_watermarks: dict[str, int] = {}

    def world_clock(self) -> Any:
        world = self.world

        class Clock:
            def now_ms(self) -> int:
                return world.now_ms

            def monotonic_ms(self) -> int:
                return world.now_ms

            def sleep_ms(self, duration_ms: float) -> None:
                raise AssertionError("nobody sleeps here")

        return Clock()

    # ------------------------------------------------------------------- life

    def start(self) -> None:
        self.life += 1
        self.is_up = True
        self.paused_until_ms = 0
        self._forget()
        self.guarded(self._boot)

    def _boot(self) -> None:
        self.recovery_points = self._read("recovery-point-offset-checkpoint")
        noted = self._read("replication-offset-checkpoint")
        for name in sorted({Path(path).parent.name for path in self.disk.names} - {ROOT.name, ""}):
            topic, _, number = name.rpartition("-")
            if topic_id_of(ROOT / name, self.env) is not None:
                tp = TopicPartition(topic, int(number))
                log = self._open(tp)
                log.recover()
                hw = min(noted.get(name, 0), log.log_end_offset)
                self.partitions[tp] = Partition(self, tp, log, hw)
        known = {str(tp): partition.high_watermark for tp, partition in self.partitions.items()}
        if any(offset > known.get(name, 0) for name, offset in noted.items()):
            self._note_high_watermarks()  # or else the log grows below what is noted, and nobody has committed that
        else:
            self.noted_high_watermarks = noted
        self.session = self.tree.connect(self)
        self._register(self.session)
        self._tick()

    def _read(self, name: str) -> dict[str, int]:
        try:
            return {directory: int(offset) for directory, offset in read_checkpoint(self.env, ROOT / name)}
        except (FileNotFoundError, CheckpointError):
            return {}

    def _open(self, tp: TopicPartition) -> Log:
        topic_id = self.tree.topics[tp.topic].id
        assert topic_id is not None
        return Log.open(
            ROOT / str(tp),
            topic_id=topic_id,
            config=LOG_SETTINGS,
            env=self.env,
            recovery_point=self.recovery_points.get(str(tp), 0),
        )

    def die(self, kind: Crash) -> None:
        """The process is gone, and after a power failure what was not synced, too."""
        self.is_up = False
        self.disk = self.disk.after_crash(kind)
        if kind is not Crash.KILLED:
            self.lost_writes = True
        self.watcher.died(self, kind)

    def guarded(self, what: Callable[[], None]) -> None:
        """Do it; the disk may be set to end this life in the middle."""
        try:
            what()
        except PowerCut:
            self.die(self.watcher.kind_of_cut(self))

    def stop(self) -> None:
        """An orderly end: everything is flushed, the session closed."""
        for partition in self.partitions.values():
            self.flush(partition)
        if self.session is not None:
            self.tree.close(self.session)
        self.is_up = False
        self.disk = self.disk.after_crash(Crash.KILLED)

    def on_session_over(self, session: Session) -> None:
        """The tree has forgotten this broker: so it leads and follows nothing, and registers anew."""
        if session is not self.session:
            return
        self.epoch = -1
        self.post(events.Resigned())
        for partition in self.partitions.values():
            partition.leave_role()
            partition.known_epoch, partition.is_loss_decided = None, False
        self.session = self.tree.connect(self)
        self._register(self.session)

    def _register(self, session: Session) -> None:
        def registered(epoch: int | None) -> None:
            if session is not self.session:
                return
            if epoch is None:
                self.world.timer(self, RETRY_MS, lambda: self._register(session))
                return
            self.epoch = epoch
            self.on_controller_gone()

        self.ask_tree(lambda: self.tree.register(session, self.id, lost_writes=self.lost_writes), registered)

    def ask_tree(
        self, change: Callable[[], Any], answered: Callable[[Any], None], *, is_among_news: bool = False
    ) -> None:
        assert self.session is not None
        self.tree.request(self.session, change, answered, is_among_news=is_among_news)

    def _tick(self) -> None:
        for partition in self.partitions.values():
            if isinstance(partition.role, isr.Leading):
                partition.lead_on(isr.Ticked(self.world.now_ms))
        self.post(events.Ticked(self.world.now_ms))
        if self.world.chance(0.1):
            self._note_high_watermarks()
        if self.world.chance(0.05) and self.partitions:
            self.flush(self.world.random.choice(list(self.partitions.values())))
        self.world.timer(self, TICK_MS, self._tick)

    # ------------------------------------------------------------- checkpoints

    def checkpoint(self, tp: TopicPartition, recovery_point: int) -> None:
        self.recovery_points[str(tp)] = recovery_point
        write_checkpoint(self.env, ROOT / "recovery-point-offset-checkpoint", self.recovery_points.items())

    def flush(self, partition: Partition) -> None:
        self.checkpoint(partition.tp, partition.log.flush())

    def _note_high_watermarks(self) -> None:
        self.noted_high_watermarks = {str(tp): p.high_watermark for tp, p in self.partitions.items()}
        write_checkpoint(self.env, ROOT / "replication-offset-checkpoint", self.noted_high_watermarks.items())

    def lower(self, partition: Partition, offset: int) -> None:
        """The log is about to be cut: note nothing beyond it, before that is done."""
        self.checkpoint(partition.tp, min(partition.log.recovery_point, offset))
        if self.noted_high_watermarks.get(str(partition.tp), 0) > offset:
            self._note_high_watermarks()

    # ----------------------------------------------------------- as controller

    def on_controller_gone(self) -> None:
        """Whoever makes the node first is the next one. The news may be old: then this broker may be it already."""
        session = self.session
        assert session is not None

        def answered(epoch: int | None) -> None:
            if session is not self.session or epoch == self.controller.epoch:
                return
            if epoch is None:
                self.post(events.Resigned())
            else:
                self.outbox, self.sending = {}, set()
                self.post(events.Elected(epoch))

        self.ask_tree(lambda: self.tree.become_controller(session, self.id), answered)

    def post(self, event: events.Event) -> None:
        self.controller, effects = controller_machine.step(self.controller, event, CONTROLLER_LIMITS)
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: events.Effect) -> None:
        match effect:
            case events.WriteStates():
                epoch = self.controller.epoch
                self.ask_tree(
                    partial(self.tree.write_states, effect),
                    lambda outcome: self.post(outcome) if self.controller.epoch == epoch else None,
                )
            case events.SendLeaderAndIsr() | events.SendStopReplica():
                self.outbox.setdefault(effect.broker, deque()).append(effect)
                self._send_next(effect.broker)
            case events.LoadContext():
                self.ask_tree(
                    self.tree.load,
                    lambda cluster: self.post(events.ContextLoaded(cluster, self.world.now_ms)),
                    is_among_news=True,
                )
            case StateChange("WARN", message):
                self.watcher.loss_announced(message)
            case events.AnswerControlledShutdown(request, remaining):
                self.watcher.shutdown_answered(request, remaining)
            case events.Resign():
                session = self.session
                assert session is not None
                self.ask_tree(lambda: self.tree.give_up_controller(session), lambda _: None)

    def _send_next(self, broker: int) -> None:
        """One request at a time to each broker, again and again until it is answered or its life is over."""
        queue = self.outbox.get(broker)
        if not queue or broker in self.sending:
            return
        request = queue[0]
        live = self.controller.brokers.get(broker)
        if (
            request.controller_epoch != self.controller.epoch
            or live is None
            or live.epoch != request.broker_epoch
        ):
            queue.popleft()
            self._send_next(broker)
            return
        self.sending.add(broker)
        target = self.peers[broker]

        def answered(answer: Any) -> None:
            self.sending.discard(broker)
            if answer in (None, roles.RequestVerdict.STALE_BROKER_EPOCH):  # it may not know its epoch yet
                self.world.timer(self, RETRY_MS, lambda: self._send_next(broker))
            else:
                if queue and queue[0] is request:
                    queue.popleft()
                self._send_next(broker)

        self.world.call(self, target, lambda reply: target.on_request(request, reply), answered)

    # --------------------------------------------------------------- as broker

    def on_request(self, request: Any, reply: Callable[[Any], None]) -> None:
        verdict = self.judge_request(
            known_controller_epoch=self.known_controller_epoch,
            controller_epoch=request.controller_epoch,
            own_broker_epoch=self.epoch,
            broker_epoch=request.broker_epoch,
        )
        if verdict is roles.RequestVerdict.OK:
            self.watcher.obeys(self, request)
            self.known_controller_epoch = request.controller_epoch
            if isinstance(request, events.SendLeaderAndIsr):
                for news in request.partitions:
                    self._partition(news.tp).take_role(news)
                self._maybe_forget_loss()
            else:
                for tp, _ in request.partitions:
                    if tp in self.partitions:
                        self.partitions[tp].leave_role()
        reply(verdict)

    def _maybe_forget_loss(self) -> None:
        """Once the controller has decided about every replica of this life, no ISR counts on the former one."""
        assigned = [
            TopicPartition(name, number)
            for name, topic in self.tree.topics.items()
            for number, replicas in topic.partitions.items()
            if self.id in replicas
        ]
        is_decided = all(tp in self.partitions and self.partitions[tp].is_loss_decided for tp in assigned)
        if self.lost_writes and is_decided:
            session, self.lost_writes = self.session, False
            assert session is not None
            self.ask_tree(lambda: self.tree.forget_loss(session, self.id), lambda _: None)

    def _partition(self, tp: TopicPartition) -> Partition:
        if tp not in self.partitions:
            topic_id = self.tree.topics[tp.topic].id
            assert topic_id is not None
            create(ROOT / str(tp), topic_id=topic_id, env=self.env)
            self.partitions[tp] = Partition(self, tp, self._open(tp), 0)
        return self.partitions[tp]

    def read(self, tp: TopicPartition, offset: int, reply: Callable[[Any], None]) -> None:
        """A consumer's fetch: below the HW only."""
        partition = self.partitions.get(tp)
        if partition is None or not isinstance(partition.role, isr.Leading):
            reply(None)
            return
        if offset > partition.high_watermark:
            reply(("behind", partition.high_watermark))
            return
        try:
            found = partition.log.read(offset, max_bytes=4096, upper=partition.high_watermark)
        except OffsetOutOfRangeError:
            reply(None)
            return
        reply(("data", bytes(found.data), partition.role.leader_epoch))
