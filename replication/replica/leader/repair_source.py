"""RepairSource: a replica that does not lead, as another one reads it that is damaged: what is sound on its disk."""

from __future__ import annotations

from replication.errors import ErrorCode
from replication.protocol.messages import FetchPartition, PartitionFetched
from replication.replica.leader.readable import Readable
from replication.replica.leader.results import FetchTerms
from replication.replica.storage.batch_cache import BatchCache
from replication.replica.storage.replica_log import ReplicaLog


class RepairSource(Readable):
    """For one fetch, which waits for nothing; `leader_epoch` is the one that LeaderAndIsr named to the replica."""

    is_over = False
    high_watermark = -1  # those who ask here read what is on the disk, committed or not

    def __init__(self, replica: ReplicaLog, leader_epoch: int) -> None:
        self.replica = replica
        self.recent = BatchCache()
        self._leader_epoch = leader_epoch

    @property
    def leader_epoch(self) -> int:
        return self._leader_epoch

    def readable_end(self, terms: FetchTerms) -> int:
        return self.replica.end

    def judge_epoch(self, asked: int) -> ErrorCode:
        return ErrorCode.UNKNOWN_LEADER_EPOCH if super().judge_epoch(asked) else ErrorCode.NONE

    def admit(self, asked: FetchPartition, terms: FetchTerms) -> PartitionFetched | None:
        if error := self.judge_epoch(asked.current_leader_epoch):
            return self.refused(error)
        if not self.replica.start <= asked.fetch_offset <= self.replica.end:
            return self.refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        return None
