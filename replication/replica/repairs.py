"""Repairs: damaged replicas of this broker, from the first doubt until they are copied from their leaders, or filled.

A reader that finds something odd in a log calls `suspect`; the doubt counts once a second look, while nobody writes,
shows the same. `machine.repair` decides what follows; this does it, and logs a line for each step. Belongs to the event
loop, but for `suspect`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from logstore.errors import CorruptLogError, PylogError
from logstore.log import soundness
from logstore.log.soundness import SetAside, Unsound
from replication.errors import is_disk_dead
from replication.model.cluster import NO_LEADER, Assignment, BrokerId, LeaderAndIsr, TopicPartition
from replication.replica import second_copy
from replication.replica.filling import Filling
from replication.replica.follower.follower import Asking
from replication.replica.leader.leader import Leader
from replication.replica.machine import repair
from replication.replica.partition import Partition
from replication.replica.second_copy import NotShownError
from replication.replica.storage.damage_notes import DamageNote
from replication.replica.storage.log_dir import ReplicaLogDir
from replication.replica.storage.replica_log import Host

logger = logging.getLogger(__name__)

RETRY_S = 5.0  # what failed (a full disk, say) is done again so much later
# Batches that the leader has not shown are asked for again so much later, and then less and less often.
FIRST_ASK_S, ASK_S_MAX = 0.5, 60.0
HAND_OVER_S = 5.0  # so long who leads waits for another to take over before it is filled
CALM_S = 60.0  # a file that was found sound is not looked through again so soon


class Repairs:
    """`states` are the machine's, per damaged replica; `unshown`: why some are not mended."""

    def __init__(self, dir_: ReplicaLogDir, partitions: Mapping[TopicPartition, Partition], asking: Asking) -> None:
        self.states: dict[TopicPartition, repair.Damaged] = {}
        self._dir = dir_
        self._partitions = partitions
        self._asking = asking
        self.unshown: dict[TopicPartition, str] = {}
        self._pauses_s: dict[TopicPartition, float] = {}  # before the next attempt to fill
        self._stored: dict[TopicPartition, LeaderAndIsr] = {}
        self._replicas: dict[TopicPartition, Assignment] = {}
        self._looking: set[TopicPartition] = set()
        self._sound_s: dict[tuple[TopicPartition, str], float] = {}  # when it was found so
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def begin(self, host: Host) -> None:
        """Take up what opening and recovery have found, before any controller hears of this broker."""
        self._host = host
        for tp, (offset, reason) in self._dir.damage.items():
            if tp not in self._partitions:  # nothing of it can be read: it waits for a restart
                host.offline.mark(tp, reason)
                continue
            self._note_in_log(tp, reason)
            self.states[tp], effects = repair.begin(offset, reason)
            self._perform(tp, effects)

    async def close(self) -> None:
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------ events

    def suspect(self, tp: TopicPartition, error: BaseException) -> None:
        """If the error says that the log is damaged, look into that. From any thread."""
        if isinstance(error, CorruptLogError):
            self._host.disk.loop.call_soon_threadsafe(self._look, tp, error.path)

    def learn(self, tp: TopicPartition, stored: LeaderAndIsr, replicas: Assignment) -> None:
        self._stored[tp] = stored
        self._replicas[tp] = replicas
        self._step(tp, repair.LeaderKnown(stored))

    def unlearn(self) -> None:
        self._stored.clear()
        for tp in list(self.states):
            self._step(tp, repair.LeaderUnknown())

    def forget(self, tp: TopicPartition) -> None:
        self.states.pop(tp, None)
        self.unshown.pop(tp, None)
        self._stored.pop(tp, None)
        self._replicas.pop(tp, None)
        self._host.offline.clear(tp)

    def _step(self, tp: TopicPartition, event: repair.Event) -> None:
        state, effects = repair.step(self._host.broker, self.states.get(tp), event)
        if state is None:
            self.states.pop(tp, None)
        else:
            self.states[tp] = state
        self._perform(tp, effects)

    # -------------------------------------------------------------------- look

    def _look(self, tp: TopicPartition, path: str) -> None:
        partition = self._partitions.get(tp)
        last_s = self._sound_s.get((tp, path))
        is_calm = last_s is not None and self._host.disk.loop.time() - last_s < CALM_S
        if partition is not None and tp not in self.states and tp not in self._looking and not is_calm:
            self._looking.add(tp)
            self._spawn(self._look_again(tp, partition, path))

    async def _look_again(self, tp: TopicPartition, partition: Partition, path: str) -> None:
        """In the log's queue, and under its lock: what others change meanwhile is no damage."""
        log = partition.replica.log
        is_segment = path.endswith(".log")
        try:
            found: Unsound | None = await partition.replica.call(
                partial(soundness.find, log, path if is_segment else None)
            )
        except (PylogError, OSError) as error:
            logger.error("tp=%s path=%s cannot be looked through: %s", tp, path, error)
            found = None
        finally:
            self._looking.discard(tp)
        if self._partitions.get(tp) is not partition:
            return
        if found is None:
            self._sound_s[tp, path] = self._host.disk.loop.time()
            logger.warning("tp=%s path=%s looked damaged, and a second look shows nothing", tp, path)
            return
        self._note_in_log(tp, str(found))
        self._step(tp, repair.Found(found.offset, str(found), self._stored.get(tp)))

    def _note_in_log(self, tp: TopicPartition, reason: str) -> None:
        replica = self._partitions[tp].replica
        view = replica.log.files.view
        replica.damage = reason
        is_short = view.tail.damage is not None or view.end < replica.log.point.offset
        replica.ends_early = is_short or tp in self._dir.unrecovered
        replica.wake_followers()  # they are refused now
        logger.error("tp=%s damaged: %s", tp, reason)

    # ----------------------------------------------------------------- effects

    def _perform(self, tp: TopicPartition, effects: tuple[repair.Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case repair.Note(offset, reason):
                    self._spawn(self._note(tp, offset, reason))
                case repair.MarkOffline(reason):
                    self._host.offline.mark(tp, reason)
                case repair.ReadLeader(leader, leader_epoch, offset):
                    self._spawn(self._read_leader(tp, leader, leader_epoch, offset))
                case repair.Cut(offset):
                    self._spawn(self._cut(tp, offset))
                case repair.Fill(leader, leader_epoch):
                    self._spawn(self._fill(tp, leader, leader_epoch))
                case repair.Wait():
                    self._spawn(self._tick(tp, HAND_OVER_S))
                case repair.Forget(leader_epoch):
                    self._spawn(self._forget(tp, leader_epoch))

    async def _note(self, tp: TopicPartition, offset: int | None, reason: str) -> None:
        partition = self._partitions[tp]

        def act() -> None:
            # Data behind the damage is no torn end that the next start may cut.
            self._dir.flush([(tp, partition.replica.log)])
            self._dir.notes.put(tp, DamageNote(partition.topic_id, offset, reason))

        if await self._done(tp, "noted", act) and tp in self.states:
            self._step(tp, repair.Noted())

    async def _read_leader(self, tp: TopicPartition, leader: BrokerId, leader_epoch: int, offset: int | None) -> None:
        partition = self._partitions[tp]
        try:
            begin = await self._shown_from(partition, leader, leader_epoch, offset)
        except (NotShownError, PylogError, OSError) as error:
            self._note_unshown(tp, f"leader={leader} epoch={leader_epoch}: {error}")
            self._step(tp, repair.LeaderRead(leader_epoch, None))
        else:
            self.unshown.pop(tp, None)
            self._step(tp, repair.LeaderRead(leader_epoch, begin))

    async def _shown_from(self, partition: Partition, leader: BrokerId, leader_epoch: int, offset: int | None) -> int:
        """Where the log would be cut; the leader has shown all that is behind. Raises: NotShownError."""
        replica, config = partition.replica, self._host.config
        log = replica.log
        begin = await replica.call(partial(self._dir.would_cut_at, log, offset))
        wanted = second_copy.Wanted(
            partition.tp,
            replica.topic_uuid,
            leader_epoch,
            begin,
            None if replica.ends_early else replica.end,
            log.files.may_have_gaps,
        )
        client = self._asking.connect(leader)
        try:
            await second_copy.read(client, self._host.broker, wanted, config.replica_fetch_max_bytes)
        finally:
            client.close()
        return begin

    def _note_unshown(self, tp: TopicPartition, why: str) -> None:
        if why != self.unshown.get(tp):
            logger.warning("tp=%s is not cut yet, the leader has not shown that it has what is damaged: %s", tp, why)
        self.unshown[tp] = why

    async def _fill(self, tp: TopicPartition, leader: BrokerId, leader_epoch: int) -> None:
        if (partition := self._partitions.get(tp)) is None:
            return
        others = sorted({leader, *self._replicas.get(tp, ())} - {self._host.broker, NO_LEADER})
        others.sort(key=lambda broker: broker != leader)
        filling = Filling(partition, others, leader_epoch, self._asking.connect)
        try:
            is_sound = await self._is_filled(partition, filling)
        except (PylogError, OSError) as error:
            self._failed(tp, "filled", error)
            is_sound = False
        if is_sound:
            self.unshown.pop(tp, None)
            self._pauses_s.pop(tp, None)
        elif filling.why != self.unshown.get(tp, ""):
            logger.warning("tp=%s is not filled: %s", tp, filling.why)
            self.unshown[tp] = filling.why
        self._step(tp, repair.Filled(leader_epoch, is_sound))
        if not is_sound:
            pause_s = self._pauses_s[tp] = min(2 * self._pauses_s.get(tp, FIRST_ASK_S / 2), ASK_S_MAX)
            await self._tick(tp, pause_s)

    async def _is_filled(self, partition: Partition, filling: Filling) -> bool:
        """Return whether all of it is sound, and as long as it was.

        A log that was cut before, or may be longer than the leader's, is not.
        """
        replica, log, tp = partition.replica, partition.replica.log, partition.tp
        note = self._dir.notes.all().get(tp)
        if log.files.may_have_gaps:
            filling.why = "it is compacted: each replica of it has other gaps"
        elif note is not None and note.is_cut:
            filling.why = "it was cut in part, and is copied from where it was cut"
        elif isinstance(partition.role, Leader) and replica.ends_early:
            filling.why = "its end is damaged, and it leads"
        elif await filling.run():
            if tp in self._dir.unrecovered or tp in self._dir.half_recovered:
                await replica.call(log.recover)
            return True
        return False

    async def _tick(self, tp: TopicPartition, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        self._step(tp, repair.Ticked())

    async def _cut(self, tp: TopicPartition, offset: int) -> None:
        partition = self._partitions[tp]
        partition.leave_role()
        try:
            done: SetAside = await partition.replica.call(
                partial(self._dir.set_aside, tp, partition.replica.log, offset)
            )
        except (PylogError, OSError) as error:
            self._failed(tp, "set aside", error)
            self._step(tp, repair.NotCut())
            await self._tick(tp, RETRY_S)
            return
        logger.warning("tp=%s cut to=%d, what was damaged is kept as path=%s", tp, done.offset, done.path)
        if self._partitions.get(tp) is partition:
            partition.note_cut()
            self._step(tp, repair.WasCut())

    async def _forget(self, tp: TopicPartition, leader_epoch: int | None) -> None:
        if not await self._done(tp, "taken back", partial(self._dir.note_mended, tp)):
            return
        partition, stored = self._partitions.get(tp), self._stored.get(tp)
        if partition is None:
            return
        partition.replica.damage, partition.replica.ends_early = None, False
        self._host.counters.repairs += 1
        if stored is not None and leader_epoch == stored.leader_epoch == partition.known_leader_epoch:
            logger.info("tp=%s copies from leader=%d from offset=%d on", tp, stored.leader, partition.replica.end)
            await partition.follow(stored)
        self._host.offline.clear(tp)

    async def _done(self, tp: TopicPartition, what: str, act: Callable[[], None]) -> bool:
        """Do it until it is done, or nobody wants it any more."""
        while tp in self._partitions:
            try:
                await asyncio.to_thread(act)
            except (PylogError, OSError) as error:
                self._failed(tp, what, error)
                if is_disk_dead(error):
                    return False
                await asyncio.sleep(RETRY_S)
            else:
                return True
        return False

    def _failed(self, tp: TopicPartition, what: str, error: Exception) -> None:
        logger.error("tp=%s damage is not %s: %s", tp, what, error)
        if is_disk_dead(error):
            self._host.disk_failed()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._is_closed:  # a step of what was being closed wants more
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a repair failed", exc_info=error)
