"""Reads from the nearest replica (KIP-392): where a leader sends a consumer, and what a follower shows to it.

Laws: a leader names only followers in sync that stand in the consumer's rack and have the offset. A follower shows what
it knows to be committed, once it has reconciled its log with that of its leader, and only to who knows that leader.
"""

from __future__ import annotations

from collections.abc import Mapping

from replication.errors import ErrorCode
from replication.model.cluster import BrokerId
from replication.protocol.messages import FetchPartition, Isolation, PartitionFetched
from replication.replica.follower.follower import Follower
from replication.replica.leader.leader import Leader
from replication.replica.leader.readable import Readable
from replication.replica.leader.results import FetchTerms
from replication.replica.machine import isr
from replication.replica.machine.follower import Phase
from replication.replica.storage.batch_cache import BatchCache

Racks = Mapping[BrokerId, str | None]


def preferred_replica(
    state: isr.Leading, starts: Mapping[BrokerId, int], racks: Racks, rack: str, offset: int
) -> BrokerId | None:
    """The follower from which a consumer in `rack` reads `offset` best: of several the one that has most; or None.

    `starts`: where the followers' logs start, as far as they have sent them. None, too, if the leader is there itself.
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


class _Shown(Readable):
    """A role as one fetch of a consumer in a rack reads it."""

    def __init__(self, role: Leader | Follower, recent: BatchCache) -> None:
        self.replica = role.replica
        self.recent = recent
        self._role = role

    @property
    def is_over(self) -> bool:
        return self._role.is_over

    @property
    def high_watermark(self) -> int:
        return self._role.high_watermark

    @property
    def leader_epoch(self) -> int:
        return self._role.state.leader_epoch

    def readable_end(self, terms: FetchTerms) -> int:
        return self._role.high_watermark


class ShownLeader(_Shown):
    """A leader that names a nearer replica, if there is one, in an answer without records."""

    def __init__(self, role: Leader, racks: Racks, rack: str) -> None:
        super().__init__(role, role.recent)
        self._leader, self._racks, self._rack = role, racks, rack

    def admit(self, asked: FetchPartition, terms: FetchTerms) -> PartitionFetched | None:
        role = self._leader
        if refused := role.admit(asked, terms):
            return refused
        replica = preferred_replica(role.state, role.starts, self._racks, self._rack, asked.fetch_offset)
        if replica is None:
            return None
        end, stable_end = role.high_watermark, role.replica.stable_end_known()
        return PartitionFetched(
            role.replica.tp.partition,
            ErrorCode.NONE,
            end,
            end if stable_end is None else min(end, stable_end),
            role.replica.start,
            () if terms.isolation is Isolation.READ_COMMITTED else None,
            preferred_read_replica=replica,
        )


class ShownFollower(_Shown):
    def __init__(self, role: Follower) -> None:
        super().__init__(role, BatchCache())
        self._follower = role

    def admit(self, asked: FetchPartition, terms: FetchTerms) -> PartitionFetched | None:
        """Return the refusal, if there is one: OFFSET_NOT_AVAILABLE for what may be there, and is not yet known so."""
        role, offset = self._follower, asked.fetch_offset
        if error := self.judge_epoch(asked.current_leader_epoch):
            return self.refused(error)
        if role.is_offline or self.replica.ends_early:
            return self.refused(ErrorCode.KAFKA_STORAGE_ERROR)
        if role.state.phase is not Phase.FETCHING or role.high_watermark < offset <= self.replica.end:
            return self.refused(ErrorCode.OFFSET_NOT_AVAILABLE)
        if not self.replica.start <= offset <= role.high_watermark:
            return self.refused(ErrorCode.OFFSET_OUT_OF_RANGE)
        return None
