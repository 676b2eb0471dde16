"""Damaged replicas of a simulated broker: the real machine and the real cut; what drives them is in short.

Bits flip in what was flushed, in the records of a batch and not in its header. A broker finds that when it scrubs, and
when it reads for a follower, or for another broker that would cut.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from logstore.errors import CorruptLogError, InvalidRecordError
from logstore.log import holes, soundness
from logstore.log.holes import Hole, SegmentCopy
from logstore.log.log import Log
from replication.model.cluster import LeaderAndIsr, TopicPartition
from replication.replica.machine import isr, repair
from replication.replica.storage.damage_notes import DamageNote

if TYPE_CHECKING:
    from tests.sim.broker import SimBroker

AGAIN_MS = 100
FETCH_BYTES = 1024
HAND_OVER_MS = 300


class Repairs:
    """See the module. `offline` are the partitions that the broker has to say so of."""

    def __init__(self, broker: SimBroker) -> None:
        self.broker = broker
        self.states: dict[TopicPartition, repair.Damaged] = {}
        self.offline: dict[TopicPartition, str] = {}
        self._stored: dict[TopicPartition, LeaderAndIsr] = {}

    def begin(self) -> None:
        """With what a former life has noted, or the start has found."""
        for tp, (offset, reason) in self.broker.replicas.damage.items():
            self.states[tp], effects = repair.begin(offset, reason)
            self._perform(tp, effects)

    def scrub(self, tp: TopicPartition) -> None:
        partition = self.broker.partitions.get(tp)
        if partition is not None and tp not in self.states:
            found = soundness.find(partition.log)
            if found is not None:
                self._step(tp, repair.Found(found.offset, found.reason, self._stored.get(tp)))

    def told(self, tp: TopicPartition, stored: LeaderAndIsr) -> None:
        self._stored[tp] = stored
        self._step(tp, repair.Told(stored))

    def untold(self) -> None:
        self._stored.clear()
        for tp in list(self.states):
            self._step(tp, repair.Untold())

    def forget(self, tp: TopicPartition) -> None:
        """The replica is deleted."""
        self.states.pop(tp, None)
        if self.offline.pop(tp, None) is not None:
            self.broker.write_offline()

    def _step(self, tp: TopicPartition, event: repair.Event) -> None:
        state, effects = repair.step(self.broker.id, self.states.get(tp), event)
        if state is None:
            self.states.pop(tp, None)
        else:
            self.states[tp] = state
        self._perform(tp, effects)

    def _perform(self, tp: TopicPartition, effects: tuple[repair.Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case repair.Note(offset, reason):
                    self._later(tp, partial(self._note, tp, offset, reason))
                case repair.MarkOffline(reason):
                    self.offline[tp] = reason
                    self.broker.write_offline()
                case repair.ReadLeader(leader, leader_epoch, offset):
                    self._read_leader(tp, leader, leader_epoch, offset)
                case repair.Cut(offset):
                    self._later(tp, partial(self._cut, tp, offset))
                case repair.Fill(leader, leader_epoch):
                    self._fill(tp, leader, leader_epoch)
                case repair.Wait():
                    self.broker.world.timer(self.broker, HAND_OVER_MS, lambda: self._step(tp, repair.Ticked()))
                case repair.Forget(leader_epoch):
                    self._later(tp, partial(self._forget, tp, leader_epoch))

    def _later(self, tp: TopicPartition, what: Callable[[], None]) -> None:
        """Some time later, as a disk does it; not if the replica is gone by then."""
        partition = self.broker.partitions[tp]

        def if_there() -> None:
            if self.broker.partitions.get(tp) is partition:
                what()

        self.broker.world.timer(self.broker, self.broker.world.random.choice((0, 1, 5)), if_there)

    def _note(self, tp: TopicPartition, offset: int | None, reason: str) -> None:
        directory, log = self.broker.replicas, self.broker.partitions[tp].log
        directory.flush([(tp, log)])
        directory.notes.put(tp, DamageNote(log.topic_id, offset, reason))
        if tp in self.states:
            self._step(tp, repair.Noted())

    def _read_leader(self, tp: TopicPartition, leader: int, leader_epoch: int, offset: int | None) -> None:
        broker, log = self.broker, self.broker.partitions[tp].log
        begin, end = broker.replicas.would_cut_at(log, offset), log.log_end_offset
        target = broker.peers[leader]

        def handle(reply: Callable[[Any], None]) -> None:
            reply(target.repairs.show(tp, leader_epoch, begin, end))

        def answered(answer: Any) -> None:
            if broker.partitions.get(tp) is None or broker.partitions[tp].log is not log:
                return
            self._step(tp, repair.LeaderRead(leader_epoch, begin if answer == "SHOWN" else None))

        broker.world.call(broker, target, handle, answered)

    def show(self, tp: TopicPartition, leader_epoch: int, begin: int, end: int) -> str:
        """What a leader says to who would cut [begin, end): whether it has all of it that its log goes to, whole."""
        partition = self.broker.partitions.get(tp)
        if partition is None or not isinstance(partition.role, isr.Leading):
            return "NOT_LEADER"
        if isr.judge_epoch(partition.role.leader_epoch, leader_epoch):
            return "OTHER_EPOCH"
        end, at = min(end, partition.log.log_end_offset), begin
        while at < end:
            data, at = self.read_checked(tp, at)
            if not data:
                return "DAMAGED"
        return "SHOWN"

    def _fill(self, tp: TopicPartition, leader: int, leader_epoch: int) -> None:
        """Ask one replica after the other for each hole; what nobody has is asked for again later."""
        broker, log = self.broker, self.broker.partitions[tp].log
        is_cut = broker.replicas.notes.all()[tp].is_cut
        others = [other for other in self.broker.tree.replicas(tp) if other != broker.id]
        others.sort(key=lambda other: other != leader)
        todo = [(hole, other) for base in log.files.view.bases for hole in holes.find(log, base) for other in others]

        def go_on() -> None:
            if broker.partitions.get(tp) is None or broker.partitions[tp].log is not log:
                return
            while todo and todo[0][0] not in holes.find(log, todo[0][0].base):
                todo.pop(0)
            if todo and not is_cut:
                hole, other = todo.pop(0)
                target = broker.peers[other]
                broker.world.call(
                    broker,
                    target,
                    lambda reply: reply(target.repairs.show_hole(tp, leader_epoch, hole.start)),
                    lambda answer: answered(hole, answer),
                )
                return
            is_sound = not is_cut and not any(holes.find(log, base) for base in log.files.view.bases)
            if is_sound and tp in broker.replicas.unrecovered:
                log.recover()
            self._step(tp, repair.Filled(leader_epoch, is_sound))
            if not is_sound:
                broker.world.timer(broker, AGAIN_MS, lambda: self._step(tp, repair.Ticked()))

        def answered(hole: Hole, answer: Any) -> None:
            if isinstance(answer, bytes) and answer and broker.partitions.get(tp) is not None:
                copy = SegmentCopy(log, hole.base)
                try:
                    if hole in holes.find(log, hole.base) and copy.fill(hole, answer) != hole:
                        copy.put()
                        broker.watcher.filled(broker.partitions[tp])
                except InvalidRecordError:
                    copy.drop()
            go_on()

        self._later(tp, go_on)

    def show_hole(self, tp: TopicPartition, leader_epoch: int, offset: int) -> bytes:
        """What a replica that knows of this leader epoch has there, soundly."""
        partition = self.broker.partitions.get(tp)
        if partition is None or partition.known_epoch != leader_epoch:
            return b""
        if not partition.log.log_start_offset <= offset < partition.log.log_end_offset:
            return b""
        return self.read_checked(tp, offset)[0]

    def read_checked(self, tp: TopicPartition, offset: int) -> tuple[bytes, int]:
        """As a follower is served: what is sound, and where that ends; nothing where it is not."""
        log: Log = self.broker.partitions[tp].log
        try:
            found = soundness.checked(log.read(offset, max_bytes=FETCH_BYTES))
        except CorruptLogError:
            self._later(tp, partial(self.scrub, tp))
            return b"", offset
        return bytes(found.data), found.next_offset

    def _cut(self, tp: TopicPartition, offset: int) -> None:
        broker, partition = self.broker, self.broker.partitions[tp]
        partition.leave_role()
        broker.watcher.cuts(partition, offset)
        try:
            done = broker.replicas.set_aside(tp, partition.log, offset)
        except CorruptLogError:  # more has been damaged by now
            self._step(tp, repair.NotCut())
            broker.world.timer(broker, AGAIN_MS, lambda: self._step(tp, repair.Ticked()))
            return
        partition.idle_high_watermark = min(partition.idle_high_watermark, done.offset)
        self._step(tp, repair.WasCut())

    def _forget(self, tp: TopicPartition, leader_epoch: int | None) -> None:
        broker, partition, stored = self.broker, self.broker.partitions[tp], self._stored.get(tp)
        broker.replicas.note_mended(tp)
        broker.watcher.mended(partition)
        self.offline.pop(tp, None)
        if stored is not None and leader_epoch == stored.leader_epoch == partition.known_epoch:
            partition.follow(stored)
        broker.write_offline()
