"""Partition: one replica on this broker: its log, and the role that a controller gave it.

Invariant: at most one role. A greater leader epoch begins another role, after all that the former one sent to the log
is in it; a leader that goes on leading keeps its role. Between two roles nobody is served. Belongs to the event loop.
"""

from __future__ import annotations

from logstore.errors import CorruptLogError
from logstore.log.log import Log
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import Assignment, LeaderAndIsr, Replica, TopicPartition
from replication.replica.follower.follower import Asking, Follower
from replication.replica.leader.leader import Leader
from replication.replica.machine.leadership import is_loss_decided
from replication.replica.storage.replica_log import Host, ReplicaLog


class Partition:
    """`known_leader_epoch` is None until a controller of this session describes the partition.

    `is_loss_decided`: no ISR counts any more on records that a former life of the replica may have lost.
    """

    def __init__(self, host: Host, asking: Asking, tp: TopicPartition, log: Log, high_watermark: int) -> None:
        self.tp = tp
        self._asking = asking
        self.topic_id = log.topic_id
        self.replica = ReplicaLog(host, tp, log)
        self.role: Leader | Follower | None = None
        self.known_leader_epoch: int | None = None
        self.is_loss_decided = False
        self._me = Replica(tp, host.broker)
        self._idle_high_watermark = min(high_watermark, self.replica.end)

    @property
    def high_watermark(self) -> int:
        return self._idle_high_watermark if self.role is None else self.role.high_watermark

    @property
    def leader(self) -> Leader:
        if isinstance(self.role, Leader):
            return self.role
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {self.tp}")

    def leave_role(self) -> None:
        """End the role: nobody is served until there is another one."""
        role, self.role = self.role, None
        if role is not None:
            self._idle_high_watermark = role.high_watermark
            role.leave()

    def forget_recent(self) -> None:
        if isinstance(self.role, Leader):
            self.role.recent.clear()

    def note_cut(self) -> None:
        self._idle_high_watermark = min(self._idle_high_watermark, self.replica.end)

    async def lead(self, stored: LeaderAndIsr, replicas: Assignment) -> None:
        """Begin to lead in this leader epoch, or lead on in it, unless the session ends before that."""
        if not isinstance(self.role, Leader):
            self.leave_role()
        self._note(stored)
        try:
            await self.replica.call(self._check_end)
        except BaseException:
            self.leave_role()
            raise
        if self.known_leader_epoch != stored.leader_epoch:
            return
        if isinstance(self.role, Leader):
            self.role.lead_on(stored, replicas)
        else:
            self.role = Leader(self.replica, stored, replicas, self._idle_high_watermark)

    async def follow(self, stored: LeaderAndIsr) -> None:
        """Begin to follow in this leader epoch, unless there is no leader or the session ends before that."""
        self.leave_role()
        self._note(stored)
        if stored.leader >= 0:
            log = self.replica.log
            epochs = await self.replica.call(lambda: log.epochs.starts)
            if self.known_leader_epoch == stored.leader_epoch:
                self.role = Follower(self.replica, stored, epochs, self._idle_high_watermark, self._asking)

    def _check_end(self) -> None:
        """Raise CorruptLogError if the log lacks its end: its followers would truncate theirs. In the log's queue."""
        log = self.replica.log
        if self.replica.damage is None and (damage := log.files.view.tail.damage):
            raise CorruptLogError(log.directory, log.files.view.tail.position, damage)

    def _note(self, stored: LeaderAndIsr) -> None:
        self.known_leader_epoch = stored.leader_epoch
        self.is_loss_decided = is_loss_decided(self._me, stored)

    def forget(self) -> None:
        """Leave the role after the session ended, until a controller of the next session describes it again."""
        self.leave_role()
        self.known_leader_epoch, self.is_loss_decided = None, False
