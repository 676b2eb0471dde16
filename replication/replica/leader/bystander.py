"""Bystander: a replica that does not lead, as another one reads it that is damaged: what is sound on its disk."""

from __future__ import annotations

from replication.errors import ErrorCode
from replication.model.cluster import NO_EPOCH
from replication.protocol.messages import FetchPartition, PartitionFetched
from replication.replica.leader.results import FetchTerms
from replication.replica.storage.batch_cache import BatchCache
from replication.replica.storage.replica_log import ReplicaLog


class Bystander:
    """For one fetch, which waits for nothing; `leader_epoch` is the one that the replica was told."""

    is_over = False

    def __init__(self, replica: ReplicaLog, leader_epoch: int) -> None:
        self.replica = replica
        self.recent = BatchCache()
        self._leader_epoch = leader_epoch

    @property
    def high_watermark(self) -> int:
        """Not for those who ask here: they read what is on the disk, committed or not."""
        return -1

    def readable_end(self, terms: FetchTerms) -> int:
        return self.replica.end

    def judge_epoch(self, asked: int) -> ErrorCode:
        return ErrorCode.NONE if asked in (NO_EPOCH, self._leader_epoch) else ErrorCode.UNKNOWN_LEADER_EPOCH

    def admit(self, asked: FetchPartition, terms: FetchTerms) -> PartitionFetched | None:
        if self.judge_epoch(asked.current_leader_epoch):
            return self.refused(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if not self.replica.start <= asked.fetch_offset <= self.replica.end:
            return self.refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        return None

    def refused(self, code: ErrorCode) -> PartitionFetched:
        return PartitionFetched(self.replica.tp.partition, code, log_start_offset=self.replica.start)
