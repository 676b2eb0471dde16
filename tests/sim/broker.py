"""A broker: its partitions on a simulated disk, its controller; what the driver of a real one does, in short."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from logstore.config import LogConfig
from logstore.env import Env
from logstore.errors import OffsetOutOfRangeError
from logstore.log.log import Log
from replication.controller.machine import events
from replication.controller.machine.state import Controller
from replication.controller.machine.state import ControllerSettings as ControllerLimits
from replication.controller.machine.step import step as controller_step
from replication.errors import ErrorCode
from replication.model.cluster import Offline, Replica, TopicPartition
from replication.model.state_changes import StateChange
from replication.replica.machine import follower, isr, leadership
from replication.replica.storage.log_dir import ReplicaLogDir
from tests.sim.partition import Partition
from tests.sim.repairs import Repairs
from tests.sim.tree import Session, Tree
from tests.sim.world import World
from tests.support.disk import Crash, Disk, Inode, PowerCut

ROOT = Path("/broker")
BOOT_ID = "/proc/sys/kernel/random/boot_id"
TICK_MS = 100
RETRY_MS = 60
LOG_SETTINGS = LogConfig(segment_bytes=2000, index_interval_bytes=400, max_message_bytes=2000)
CONTROLLER_LIMITS = ControllerLimits(leader_imbalance_check_interval_seconds=2)


class SimBroker:
    """See the module. `peers` are all brokers; `watcher` checks the laws."""

    def __init__(self, id: int, world: World, tree: Tree, watcher: Any, *, min_insync: int) -> None:
        self.id, self.world, self.tree, self.watcher = id, world, tree, watcher
        self.min_insync = min_insync
        self.peers: dict[int, SimBroker] = {}
        self.follow = follower.follow
        self.judge_request = leadership.judge_request
        self.waits_outlive_roles = False
        self.acked_later = 0
        self.boots = 0
        self.life = 0
        self.is_up = False
        self.paused_until_ms = 0
        self.replace_disk()
        self._forget()

    def replace_disk(self) -> None:
        """An empty one, in a machine that is booted for it."""
        self.disk = Disk(seed=self.id)
        self.disk.mkdir(ROOT)
        self.disk.fsync(ROOT.parent)
        self._boot_machine()

    def _boot_machine(self) -> None:
        """The system says which boot this is; that is on no disk."""
        self.boots += 1
        said = b"%d\n" % self.boots
        self.disk.names[BOOT_ID] = self.disk.synced_names[BOOT_ID] = Inode(0, bytearray(said), said)
        self.disk.directories[str(Path(BOOT_ID).parent)] = 0
        self.disk.synced_directories.add(str(Path(BOOT_ID).parent))

    def _forget(self) -> None:
        self.env = Env(self.world_clock(), self.disk)
        self.session: Session | None = None
        self.epoch = -1
        self.partitions: dict[TopicPartition, Partition] = {}
        self.controller = Controller(broker=self.id)
        self.known_controller_epoch = 0
        self.outbox: dict[int, deque[Any]] = {}
        self.sending: set[int] = set()
        self.out_of_order: Offline | None = None  # by a fault, beside what is damaged
        self.repairs = Repairs(self)
        self.deleted: dict[TopicPartition, int] = {}  # and in which leader epoch
        self.directory: ReplicaLogDir | None = None

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
        self.directory = directory = ReplicaLogDir.open(ROOT, self.env)
        directory.look()
        for tp, log in sorted(directory.recover(lambda topic: LOG_SETTINGS, threads=1).items()):
            assert isinstance(log, Log), f"{tp} is not recovered: {log}"
            self.watcher.booted(self, tp, log)
            self.partitions[tp] = Partition(self, tp, log, directory.high_watermarks.get(tp, 0))
        self.repairs.begin()
        for tp, state in self.tree.states.items():
            me, is_here = Replica(tp, self.id), tp in self.partitions
            if self.id in self.tree.replicas(tp) and leadership.is_replica_lost(
                me, state, is_on_disk=is_here, is_new=False
            ):
                directory.has_lost_writes = True
        self.session = self.tree.connect(self)
        self._register(self.session)
        self._tick()

    @property
    def replicas(self) -> ReplicaLogDir:
        """What a broker keeps of its replicas on its disk."""
        assert self.directory is not None, "it is up"
        return self.directory

    def die(self, kind: Crash) -> None:
        """The process is gone, and after a power failure what was not synced, too."""
        self.is_up = False
        self.disk = self.disk.after_crash(kind)
        if kind is not Crash.KILLED:
            self._boot_machine()
        self.watcher.died(self, kind)

    def guarded(self, what: Callable[[], None]) -> None:
        """Do it; the disk may be set to end this life in the middle."""
        try:
            what()
        except PowerCut:
            self.die(self.watcher.kind_of_cut(self))

    def stop(self) -> None:
        """An orderly end: everything is flushed, the session closed."""
        if self.session is not None:
            self.tree.close(self.session)
        self._note_high_watermarks()
        self.replicas.close({tp: partition.log for tp, partition in self.partitions.items()})
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
        self.repairs.untold()
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
            self.write_offline()  # it may be another by now
            self.on_controller_gone()

        has_lost = self.replicas.has_lost_writes
        said = self.offline
        self.ask_tree(lambda: self.tree.register(session, self.id, lost_writes=has_lost, offline=said), registered)

    @property
    def offline(self) -> Offline | None:
        """The replicas that fetch nothing."""
        some = self.out_of_order or Offline()
        every = Offline(some.everything, {**some.partitions, **self.repairs.offline})
        return every if every != Offline() else None

    def fall_out_of_order(self, offline: Offline | None) -> None:
        """These replicas, too, fetch nothing from now on."""
        self.out_of_order = offline
        self.write_offline()

    def write_offline(self) -> None:
        """The tree says so as soon as it can."""
        session = self.session
        if self.is_up and session is not None:
            self.ask_tree(lambda: self.tree.write_offline(session, self.id, self.offline), lambda _: None)

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
        if self.world.chance(0.1) and self.partitions:
            self.repairs.scrub(self.world.random.choice(list(self.partitions)))
        self.world.timer(self, TICK_MS, self._tick)

    # ------------------------------------------------------------- checkpoints

    def flush(self, partition: Partition) -> None:
        self.replicas.flush([(partition.tp, partition.log)])

    def _note_high_watermarks(self) -> None:
        offsets = {tp: partition.high_watermark for tp, partition in self.partitions.items()}
        self.replicas.note_high_watermarks(offsets, self.replicas.cuts())

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
        self.controller, effects = controller_step(self.controller, event, CONTROLLER_LIMITS)
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
            case events.WriteReassignment():
                epoch = self.controller.epoch
                self.ask_tree(
                    partial(self.tree.write_reassignment, effect),
                    lambda outcome: self.post(outcome) if self.controller.epoch == epoch else None,
                    is_among_news=True,
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
            case events.DeleteElection():
                self.ask_tree(self.tree.delete_election, lambda _: None)
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
        if request.controller_epoch != self.controller.epoch or live is None or live.epoch != request.broker_epoch:
            queue.popleft()
            self._send_next(broker)
            return
        self.sending.add(broker)
        target = self.peers[broker]

        def answered(answer: Any) -> None:
            self.sending.discard(broker)
            if answer in (None, ErrorCode.STALE_BROKER_EPOCH):  # it may not know its epoch yet
                self.world.timer(self, RETRY_MS, lambda: self._send_next(broker))
            else:
                if queue and queue[0] is request:
                    queue.popleft()
                    self._note_deleted(request, answer)
                self._send_next(broker)

        self.world.call(self, target, lambda reply: target.on_request(request, reply), answered)

    def _note_deleted(self, request: Any, answer: Any) -> None:
        if isinstance(request, events.SendStopReplica) and request.delete:
            tps = [stop.tp for stop in request.partitions]
            is_done = answer is ErrorCode.NONE
            done, failed = (tuple(tps), ()) if is_done else ((), tuple(tps))
            self.post(events.ReplicasDeleted(request.broker, done, failed))

    # --------------------------------------------------------------- as broker

    def on_request(self, request: Any, reply: Callable[[Any], None]) -> None:
        error = self._error(request, is_looked_up=False)
        if error is None:
            self.ask_tree(lambda: self.tree.controller_epoch, partial(self._looked_up, request, reply))
        else:
            self._obey(request, error, reply)

    def _error(self, request: Any, *, is_looked_up: bool) -> ErrorCode | None:
        return self.judge_request(
            known_controller_epoch=self.known_controller_epoch,
            controller_epoch=request.controller_epoch,
            own_broker_epoch=self.epoch,
            broker_epoch=request.broker_epoch,
            is_looked_up=is_looked_up,
        )

    def _looked_up(self, request: Any, reply: Callable[[Any], None], controller_epoch: int) -> None:
        self.known_controller_epoch = controller_epoch
        self._obey(request, self._error(request, is_looked_up=True), reply)

    def _obey(self, request: Any, error: ErrorCode | None, reply: Callable[[Any], None]) -> None:
        if error is ErrorCode.NONE:
            self.watcher.obeys(self, request)
            self.known_controller_epoch = request.controller_epoch
            if isinstance(request, events.SendLeaderAndIsr):
                for news in request.partitions:
                    if news.state.leader_epoch > self.deleted.get(news.tp, -1):
                        self._partition(news.tp).take_role(news)
                        self.repairs.told(news.tp, news.state)
                self._maybe_forget_loss()
            else:
                for stop in request.partitions:
                    self._stop(stop, delete=request.delete)
        reply(error)

    def _stop(self, stop: events.Stop, *, delete: bool) -> None:
        """Not one that has become a replica again."""
        partition = self.partitions.get(stop.tp)
        if partition is None or 0 <= stop.leader_epoch < (partition.known_epoch or 0):
            return
        partition.leave_role()
        if delete:
            self.watcher.deletes(partition)
            del self.partitions[stop.tp]
            self.repairs.forget(stop.tp)
            self.deleted[stop.tp] = stop.leader_epoch
            partition.log.close()
            self.replicas.delete(stop.tp, 0)

    def _maybe_forget_loss(self) -> None:
        """Once the controller has decided about every replica of this life, no ISR counts on the former one."""
        assigned = [
            TopicPartition(name, number)
            for name, topic in self.tree.topics.items()
            for number, replicas in topic.partitions.items()
            if self.id in replicas
        ]
        is_decided = all(tp in self.partitions and self.partitions[tp].is_loss_decided for tp in assigned)
        if self.replicas.has_lost_writes and is_decided:
            session = self.session
            assert session is not None

            def answered(is_forgotten: bool) -> None:
                if is_forgotten:
                    self.replicas.note_boot()

            self.ask_tree(lambda: self.tree.forget_loss(session, self.id), answered)

    def _partition(self, tp: TopicPartition) -> Partition:
        if tp not in self.partitions:
            topic_id = self.tree.topics[tp.topic].id
            assert topic_id is not None
            self.replicas.create_logs({tp: topic_id})
            self.partitions[tp] = Partition(self, tp, self.replicas.open_log(tp, topic_id, LOG_SETTINGS), 0)
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
