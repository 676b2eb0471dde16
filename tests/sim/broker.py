"""A machine with a disk, on which one life of the product's `Broker` follows the other; and what the laws see of it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logstore.checkpoint import read_checkpoint
from logstore.env import Clock, Env
from logstore.errors import CorruptLogError, PylogError, StorageError
from logstore.log import soundness
from logstore.log.log import Log
from logstore.store.log_dir import BROKER
from logstore.store.recovery_points import FILE_NAME as RECOVERY_POINTS
from replication.broker.broker import Broker
from replication.config.broker import RACK_AWARE_SELECTOR, BrokerConfig
from replication.model.cluster import NO_EPOCH, TopicPartition
from replication.model.state_changes import StateChange
from replication.replica.leader.leader import Leader
from replication.replica.machine import follower, isr
from replication.replica.partition import Partition
from replication.replica.storage.offline import OfflineReplicas
from tests.sim.network import CLIENTS_PORT
from tests.sim.world import Life, World
from tests.support.disk import Crash, Disk, Inode, PowerCut

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

ROOT = Path("/broker")
ODD = "looks odd"  # why a replica is offline, in one of the faults
BOOT_ID = "/proc/sys/kernel/random/boot_id"
SETTINGS = {
    "log.dirs": str(ROOT),
    "coordination": "sqlite:the store of the simulation",
    "zookeeper.session.timeout.ms": 500,
    "num.io.threads": 2,
    "num.recovery.threads.per.data.dir": 1,  # a real one: two would go on in no certain order
    "auto.create.topics.enable": False,
    "replica.lag.time.max.ms": 400,
    "replica.fetch.wait.max.ms": 200,
    "replica.fetch.backoff.ms": 100,
    "replica.fetch.max.bytes": 1024,
    "replica.socket.timeout.ms": 1000,
    "replica.high.watermark.checkpoint.interval.ms": 500,
    "controlled.shutdown.retry.backoff.ms": 100,
    "leader.imbalance.check.interval.seconds": 2,
    "log.cleaner.enable": False,
    "log.scrub.interval.ms": -1,
    "log.flush.offset.checkpoint.interval.ms": 400,
    "log.segment.bytes": 2000,
    "log.index.interval.bytes": 400,
    "message.max.bytes": 2000,
    "replica.selector.class": RACK_AWARE_SELECTOR,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "group.initial.rebalance.delay.ms": 100,
    "group.min.session.timeout.ms": 500,
}


class SimDisk(Disk):
    """One that is slow or out of order now and then, and ends the life of who changes it when it is cut."""

    world: World
    life: Life

    def _changes(self, in_part=lambda _: None) -> bool:
        if self.life.is_over:
            raise PowerCut
        is_cut = super()._changes(in_part)
        self.life.is_cut |= is_cut
        return is_cut

    def _may_fail(self, path, times: int = 1) -> None:
        if not self.life.is_over and str(path).endswith(".log") and self.world.chance(times * self.world.fails):
            raise StorageError(f"{path}: Input/output error")

    def write(self, path, position, data) -> None:
        self._may_fail(path)
        super().write(path, position, data)

    def truncate(self, path, size) -> None:
        self._may_fail(path, 20)  # there are far fewer of these
        super().truncate(path, size)

    @property
    def is_syncing(self) -> bool:
        return not self.life.is_over and self.world.chance(self.world.busy)


class SimClock(Clock):
    def __init__(self, world: World) -> None:
        self._world = world

    def now_ms(self) -> int:
        return 1_000_000 + self._world.now_ms

    def monotonic_ms(self) -> int:
        return self._world.now_ms

    def sleep_ms(self, duration_ms: float) -> None:
        raise AssertionError("nobody sleeps here")


class StateChanges:
    """The state-change log, of which the laws want the warnings of a controller."""

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker

    def write(self, change: StateChange) -> None:
        if change.level == "WARN" and "potential data loss" in change.message:
            self._broker.sim.loss_announced(change.message)

    def flush(self) -> None: ...


class Seen:
    """A partition of a broker, as it was behind the last event there."""

    def __init__(self, broker: SimBroker, partition: Partition) -> None:
        self.broker, self.partition, self.tp = broker, partition, partition.tp
        self.log: Log = partition.replica.log
        self.role: isr.Leading | follower.FollowerState | None = None
        self.led_epoch, self.life = -1, broker.lives
        self.high_watermark = self.idle_high_watermark = partition.high_watermark
        self.log_end_offset = self.log.log_end_offset

    @property
    def known_epoch(self) -> int | None:
        return self.partition.known_leader_epoch

    def changed(self, state: isr.Leading | follower.FollowerState | None) -> None:
        before, self.role, sim = self.role, state, self.broker.sim
        self.idle_high_watermark, self.high_watermark = self.high_watermark, self.partition.high_watermark
        self.log_end_offset = self.log.log_end_offset if state is None else state.log_end_offset
        if isinstance(state, isr.Leading):
            is_new = not isinstance(before, isr.Leading) or before.leader_epoch != state.leader_epoch
            if is_new:
                self.led_epoch = state.leader_epoch
                sim.leads(self, state)
            if is_new or before.high_watermark != state.high_watermark:
                sim.laws.committed_by(self)


class SimBroker:
    def __init__(self, id: int, sim: Simulation) -> None:
        self.id, self.host, self.sim, self.world = id, f"b{id}", sim, sim.world
        self.rack = f"rack{id % 2}"
        self.boots = self.lives = 0
        self.broker: Broker | None = None
        self.is_up = False
        self.seen: dict[TopicPartition, Seen] = {}
        self.known_controller_epoch = 0
        self.replace_disk()

    @property
    def partitions(self) -> dict[TopicPartition, Seen]:
        return self.seen

    @property
    def epoch(self) -> int:
        return NO_EPOCH if self.broker is None else self.broker.lifecycle.epoch

    def replace_disk(self) -> None:
        """An empty one, in a machine that is booted for it."""
        self.life = Life(self.world.loop, self.host)
        self.disk = SimDisk(seed=self.id)
        self.disk.life = self.life
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

    # ------------------------------------------------------------------- life

    def start(self) -> None:
        self.life = Life(self.world.loop, self.host)
        self.disk.world, self.disk.life = self.world, self.life
        self.is_up = True
        self.lives += 1
        self.seen, self.known_controller_epoch, self.broker = {}, 0, None
        self.life.soon(self._boot)

    def _boot(self) -> None:
        loop, dice = self.world.loop, random.Random(self.world.random.getrandbits(64))
        self.env = Env(SimClock(self.world), self.disk, dice, loop.worker)
        listeners = f"PLAINTEXT://{self.host}:{CLIENTS_PORT}"
        own = {"broker.id": self.id, "broker.rack": self.rack, "listeners": listeners}
        config = BrokerConfig.from_properties(SETTINGS | own)
        self.disk.mkdir(ROOT / BROKER)
        self.broker = Broker(config, self.env, opening=self.sim.store.open, state_changes=StateChanges(self))  # type: ignore[arg-type]
        asyncio.ensure_future(self.broker.start()).add_done_callback(self._ended_early)

    def _ended_early(self, starting: asyncio.Task[Any]) -> None:
        """A process that cannot start ends, and somebody starts it again."""
        error = starting.exception()
        if isinstance(error, PylogError | OSError):
            self.world.note(f"{self.id}: cannot start: {error}")
            self.world.after(0, lambda life=self.life: self.sim.down(self, Crash.KILLED, life))
        elif error is not None:
            self.world.broken.append(error)

    def shut_down(self) -> None:
        """End in order, like a process at a SIGTERM."""
        if self.broker is not None:
            self.life.soon(self._stop, self.broker)

    def _stop(self, broker: Broker) -> None:
        def stopped(stopping: asyncio.Task[None], life: Life = self.life) -> None:
            if (error := stopping.exception()) is not None:
                self.world.broken.append(error)
            self.world.after(0, lambda: self.sim.down(self, Crash.KILLED, life))

        asyncio.ensure_future(broker.stop()).add_done_callback(stopped)

    def die(self, kind: Crash) -> None:
        """The process is gone, and after a failure of the power what was not synced, too."""
        self.is_up = False
        self.life.end(is_told=kind is Crash.KILLED)
        self.disk = self.disk.after_crash(kind)
        self.disk.world, self.disk.life = self.world, Life(self.world.loop, self.host)  # of tools, until the next start
        if kind is not Crash.KILLED:
            self._boot_machine()
        self.sim.died(self, kind)
        self.broker = None

    def fall_out_of_order(self, tp: TopicPartition | None) -> None:
        """These replicas (None: all) are offline from now on."""
        if self.broker is not None:
            offline = self.broker.replicas.offline
            if tp is None:
                self.life.soon(offline.mark_all, ODD)
            elif tp not in offline.reasons:
                self.life.soon(offline.mark, tp, ODD)

    def come_into_order(self) -> None:
        def clear(offline: OfflineReplicas) -> None:
            offline.clear_all()
            for tp in [tp for tp, reason in offline.reasons.items() if reason == ODD]:
                offline.clear(tp)

        if self.broker is not None:
            self.life.soon(clear, self.broker.replicas.offline)

    def scrub(self) -> None:
        """Look for damage like the scrub, which has a thread of its own in a broker."""
        for seen in self.seen.values() if self.is_up else ():
            if (found := soundness.find(seen.log)) is not None:
                error = CorruptLogError(found.path, found.position, found.reason)
                self.life.soon(seen.partition.replica.suspect, error)

    # ------------------------------------------------------------ what is seen

    def look(self) -> list[TopicPartition]:
        """Tell the simulation what has changed by the last event, and return where."""
        broker, news = self.broker, list[TopicPartition]()
        if broker is None:
            return news
        known, partitions = self.seen, broker.replicas.partitions()
        for tp, partition in partitions.items():
            seen = known.get(tp)
            if seen is None or seen.partition is not partition:
                if seen is not None:
                    self.sim.deletes(seen)
                seen = known[tp] = Seen(self, partition)
                self.sim.laws.booted(self, tp, seen.log)
                news.append(tp)
            role = partition.role
            if (state := None if role is None else role.state) is not seen.role:
                seen.changed(state)
                news.append(tp)
        if len(known) > len(partitions):
            for tp in [tp for tp in known if tp not in partitions]:
                self.sim.deletes(known.pop(tp))
                news.append(tp)
        epoch = broker.replicas.requests.controller_epoch
        if epoch != self.known_controller_epoch:
            self.sim.laws.obeys(self, epoch)
            self.known_controller_epoch = epoch
        return news

    def is_damaged(self, tp: TopicPartition) -> bool:
        """Return whether the broker knows of damage to the replica."""
        seen = self.seen.get(tp)
        return seen is not None and seen.partition.replica.damage is not None

    def flushed_to(self, tp: TopicPartition) -> int:
        try:
            rows = read_checkpoint(self.env, ROOT / RECOVERY_POINTS)
        except FileNotFoundError:
            return 0
        return {TopicPartition(topic, int(p)): int(offset) for topic, p, offset in rows}.get(tp, 0)

    def leads(self, tp: TopicPartition) -> int:
        """The leader epoch in which it leads the partition; -1 if it does not."""
        seen = self.seen.get(tp)
        return seen.led_epoch if seen is not None and isinstance(seen.partition.role, Leader) else -1
