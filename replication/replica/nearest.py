"""Reads from the nearest replica (KIP-392): where a leader sends a consumer, and what a follower shows to it.

Laws: a leader names only followers in sync that stand in the consumer's rack and have the offset. A follower shows what
it knows to be committed, once it has reconciled its log with that of its leader, and only to who knows that leader.
"""

from __future__ import annotations

from collections.abc import Mapping

from replication.errors import ErrorCode
from replication.model.cluster import BrokerId, TopicPartition
from replication.network.steps import in_steps
from replication.protocol.messages import FetchPartition, Isolation, PartitionFetched
from replication.replica.follower.follower import Follower
from replication.replica.leader.leader import Leader
from replication.replica.leader.results import FetchTerms
from replication.replica.machine import isr
from replication.replica.machine.follower import Phase
from replication.replica.partition import Partition
from replication.replica.storage.batch_cache import BatchCache

Racks = Mapping[BrokerId, str | None]


def preferred_replica(
    state: isr.Leading, starts: Mapping[BrokerId, int], racks: Racks, rack: str, offset: int
) -> BrokerId | None:
    """The follower from which a consumer in `rack` reads `offset` best: of several the one that has most; or None.

    `starts`: where the followers' logs start, as far as they have told. None, too, if the leader stands there itself.
    """
    if racks.get(state.broker) == rack:
        return None
    near = {
        broker: state.followers[broker].log_end_offset
        for broker in state.isr
        if broker in state.followers and racks.get(broker) == rack and starts.get(broker, 0) <= offset
    }
    broker = max(near, key=lambda each: (near[each], -each), default=None)
    return broker if broker is not None and near[broker] >= offset else None


async def sent_on(
    partitions: Mapping[TopicPartition, Partition],
    wanted: Mapping[TopicPartition, FetchPartition],
    racks: Racks,
    rack: str,
    isolation: Isolation,
) -> dict[TopicPartition, PartitionFetched]:
    """The answers to what a consumer in `rack` is to read elsewhere: they name the replica, and have no records."""
    found = {}
    async for tps in in_steps(wanted):
        for tp in tps:
            role, asked = partitions[tp].role if tp in partitions else None, wanted[tp]
            if not isinstance(role, Leader) or role.judge_epoch(asked.current_leader_epoch):
                continue
            replica = preferred_replica(role.state, role.starts, racks, rack, asked.fetch_offset)
            if replica is not None and asked.fetch_offset >= role.replica.start:
                end = role.high_watermark
                none = () if isolation is Isolation.READ_COMMITTED else None
                stable_end = role.replica.stable_end_known()
                stable_end = end if stable_end is None else min(end, stable_end)
                answer = PartitionFetched(tp.partition, 0, end, stable_end, role.replica.start, none)
                found[tp] = answer._replace(preferred_read_replica=replica)
    return found


class ShownFollower:
    """A follower as one fetch of a consumer reads it."""

    def __init__(self, role: Follower) -> None:
        self.replica = role.replica
        self.recent = BatchCache()
        self._role = role

    @property
    def is_over(self) -> bool:
        return self._role.is_over

    @property
    def high_watermark(self) -> int:
        return self._role.high_watermark

    def readable_end(self, terms: FetchTerms) -> int:
        return self._role.high_watermark

    def judge_epoch(self, asked: int) -> ErrorCode:
        return isr.judge_epoch(self._role.state.leader_epoch, asked)

    def admit(self, asked: FetchPartition, terms: FetchTerms) -> PartitionFetched | None:
        """The refusal, if there is one: OFFSET_NOT_AVAILABLE for what is there, or may be, and is not yet known so."""
        role, offset = self._role, asked.fetch_offset
        if error := self.judge_epoch(asked.current_leader_epoch):
            return self.refused(error)
        if role.is_offline or self.replica.ends_early:
            return self.refused(ErrorCode.KAFKA_STORAGE_ERROR)
        if role.state.phase is not Phase.FETCHING or role.high_watermark < offset <= self.replica.end:
            return self.refused(ErrorCode.OFFSET_NOT_AVAILABLE)
        if not self.replica.start <= offset <= role.high_watermark:
            return self.refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        return None

    def refused(self, code: ErrorCode) -> PartitionFetched:
        return PartitionFetched(
            self.replica.tp.partition, code, self.high_watermark, log_start_offset=self.replica.start
        )
