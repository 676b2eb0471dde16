"""ReadReplicas: which replica of a partition is read: its leader, or the nearer one that the leader names (KIP-392).

Laws: a leader is asked first in each of its epochs, and again after RENEW_S. When a named replica fails, its leader
serves: for LEADERS_ONLY_S its requests for that partition name no rack. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from replication.client.metadata import PartitionLeader
from replication.model.cluster import TopicPartition

RENEW_S = 300.0  # as long as metadata is believed by default
LEADERS_ONLY_S = 10.0  # a broker that died is out of all ISRs by then


class _Named(NamedTuple):
    """The replica that a leader has named, and until when that counts."""

    replica: int
    leader: PartitionLeader
    until: float


class ReadReplicas:
    """See the module. `rack` is the reader's; "": it reads from leaders."""

    def __init__(self, rack: str = "") -> None:
        self._rack = rack
        self._named: dict[TopicPartition, _Named] = {}
        self.leaders_until: dict[TopicPartition, float] = {}

    def rack(self, tps: Iterable[TopicPartition]) -> str:
        """The rack to name in a request for these partitions; "" while one of them must be read from its leader."""
        now = asyncio.get_running_loop().time()
        return "" if any(self.leaders_until.get(tp, now) > now for tp in tps) else self._rack

    def of(self, tp: TopicPartition, leader: PartitionLeader) -> int:
        """The broker to read from."""
        named = self._named.get(tp)
        if named is None:
            return leader.broker
        if named.leader != leader or asyncio.get_running_loop().time() >= named.until:
            del self._named[tp]
            return leader.broker
        return named.replica

    def note(self, tp: TopicPartition, leader: PartitionLeader, replica: int) -> None:
        """The leader has named a replica."""
        self._named[tp] = _Named(replica, leader, asyncio.get_running_loop().time() + RENEW_S)

    def failed(self, tps: Iterable[TopicPartition]) -> None:
        """A replica that was named for these does not serve them."""
        until = asyncio.get_running_loop().time() + LEADERS_ONLY_S
        self.leaders_until |= {tp: until for tp in tps if self._named.pop(tp, None) is not None}
