"""Readable: a replica as a fetch reads it: its leader, or one that shows its log to a few readers."""

from __future__ import annotations

from typing import Protocol

from replication.errors import ErrorCode
from replication.model.cluster import BrokerId
from replication.protocol.messages import FetchPartition, PartitionFetched
from replication.replica.leader.caught_up import CaughtUp
from replication.replica.leader.results import FetchTerms
from replication.replica.machine import isr
from replication.replica.storage.batch_cache import BatchCache
from replication.replica.storage.replica_log import ReplicaLog


class Readable(Protocol):
    """Followers read a leader only: the rules for them are here for a replica that has no followers."""

    replica: ReplicaLog
    recent: BatchCache

    @property
    def is_over(self) -> bool:
        """The replica is in this role no more."""

    @property
    def high_watermark(self) -> int:
        """The end of what is known to be committed."""

    @property
    def leader_epoch(self) -> int:
        """The leader epoch in which it may be read."""

    def readable_end(self, terms: FetchTerms) -> int:
        """The first offset that this reader may not read yet."""

    def admit(self, asked: FetchPartition, terms: FetchTerms) -> PartitionFetched | None:
        """Return the answer if nothing may be read, or None."""

    def judge_epoch(self, asked: int) -> ErrorCode:
        """Return the error for a reader that names this leader epoch; NONE for a reader that names none."""
        return isr.judge_epoch(self.leader_epoch, asked)

    def refused(self, code: ErrorCode) -> PartitionFetched:
        start = self.replica.start
        return PartitionFetched(self.replica.tp.partition, code, self.high_watermark, log_start_offset=start)

    def refusal(self, asked: FetchPartition, terms: FetchTerms) -> ErrorCode:
        """Return why what was admitted may be read no more; NONE if it may."""
        if self.is_over:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if error := self.judge_epoch(asked.current_leader_epoch):
            return error
        return ErrorCode.KAFKA_STORAGE_ERROR if terms.is_follower and self.replica.ends_early else ErrorCode.NONE

    def follow(self, follower: BrokerId, offset: int, caught_up: CaughtUp) -> bool:
        """Take an admitted fetch of a follower from `offset` on; return whether the follower is in sync."""
        return True

    def unfollow(self, follower: BrokerId, caught_up: CaughtUp) -> None:
        """The follower does not repeat this fetch any more."""
        return

    def is_throttled(self, follower: BrokerId) -> bool:
        """Return whether the quota holds back what this follower copies."""
        return False

    def has_news(self, follower: BrokerId, start: int) -> bool:
        """Return whether a follower whose log begins at `start` is answered at once, with records or without."""
        return False

    def sent(self, terms: FetchTerms, size_bytes: int) -> None:
        """Count what an answer takes along."""
        counters = self.replica.host.counters
        if terms.reads_all:
            counters.replication_bytes_out += size_bytes
        else:
            counters.bytes_out += size_bytes
