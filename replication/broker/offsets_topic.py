"""OffsetsTopic: `__consumer_offsets` for the coordinator of groups: it writes to partitions and loads them.

A load is complete once everything from before this broker's term is read and committed. Until then nobody is answered:
consumers would start where they were long ago, or at the start of the log.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TypeAlias

from logstore.env import SYSTEM, Env
from logstore.records import batch
from replication.config.broker import BrokerConfig
from replication.coordinators.groups.coordinator import GroupCoordinator, Written
from replication.coordinators.groups.machine.records import Loaded
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import OFFSETS_TOPIC, TopicPartition
from replication.protocol.messages import FetchPartition
from replication.replica.leader.leader import Leader
from replication.replica.leader.results import ALL_IN_SYNC
from replication.replica.manager import ReplicaManager

logger = logging.getLogger(__name__)

READ_BYTES = 1024 * 1024  # decoded in another thread, while the event loop turns
# The last record of each key; earlier ones are not even decoded. key -> (offset, value)
Latest: TypeAlias = dict[bytes, tuple[int, bytes | None]]
WAIT_MS = 500
RETRY_S = 0.5
DAMAGE_RETRY_S = 30.0


@dataclass(frozen=True, slots=True)
class _Leadership:
    """See `replication.coordinators.groups.coordinator.Leadership`. Equal if they are the same role."""

    role: Leader

    @property
    def leader_epoch(self) -> int:
        return self.role.state.leader_epoch

    @property
    def is_over(self) -> bool:
        return self.role.is_over


class OffsetsTopic:
    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas

    def leadership(self, partition: int) -> _Leadership | None:
        try:
            return _Leadership(self._replicas.leader(TopicPartition(OFFSETS_TOPIC, partition)))
        except KafkaError:
            return None

    def is_between_roles(self, partition: int) -> bool:
        found = self._replicas.partitions().get(TopicPartition(OFFSETS_TOPIC, partition))
        return found is not None and found.role is None and found.known_leader_epoch is not None

    async def append(self, partition: int, records: bytearray, *, timeout_ms: int) -> Written:
        tp = TopicPartition(OFFSETS_TOPIC, partition)
        done = await self._replicas.append({tp: records}, acks=ALL_IN_SYNC, timeout_ms=timeout_ms)
        return Written(done[tp].error_code, done[tp].base_offset)

    async def load(self, leadership: _Leadership) -> Loaded | None:
        leader = leadership.role
        tp = leader.replica.tp
        latest: Latest = {}
        position = leader.replica.start
        while not leader.is_over:
            # Asked before the fetch: if it holds, an empty answer means that everything is read.
            is_settled = leader.state.is_settled
            found = await self._replicas.fetch(
                {tp: FetchPartition(tp.partition, position, READ_BYTES, leader.state.leader_epoch)},
                max_wait_ms=0 if is_settled else WAIT_MS,
                min_bytes=1,
                max_bytes=READ_BYTES,
            )
            fetched = found[tp]
            if fetched.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
                position = leader.replica.start  # records were deleted
            elif fetched.error_code is not ErrorCode.NONE:
                logger.warning(
                    "tp=%s groups cannot be loaded yet: %s", tp, ErrorCode(fetched.error_code).name
                )
                await asyncio.sleep(RETRY_S)
            elif len(fetched.records):
                try:
                    position = await asyncio.to_thread(_take, latest, fetched.records, position)
                except batch.InvalidBatchError as error:
                    # Going on without it would give consumers old offsets: give none until it is repaired.
                    logger.error("tp=%s groups cannot be loaded from offset %d on: %s", tp, position, error)
                    await asyncio.sleep(DAMAGE_RETRY_S)
            elif is_settled:
                loaded = await asyncio.to_thread(_add_up, latest)
                if loaded.unknown:
                    logger.warning("tp=%s %d records are of an unknown kind", tp, loaded.unknown)
                return loaded
        return None


def _take(latest: Latest, records: bytes | bytearray | memoryview, start: int) -> int:
    position = start
    for at, header in batch.batches(records):
        if not header.is_control:
            for record in batch.records(records, at):
                if record.offset >= start:
                    latest[record.key or b""] = record.offset, record.value
        position = header.next_offset
    return position


def _add_up(latest: Latest) -> Loaded:
    """Apply in the order of the log, since several versions of a key name the same thing."""
    loaded = Loaded()
    for offset, key in sorted((offset, key) for key, (offset, _) in latest.items()):
        loaded.apply(offset, key, latest[key][1])
    return loaded


def group_coordinator(config: BrokerConfig, replicas: ReplicaManager, env: Env = SYSTEM) -> GroupCoordinator:
    topic = OffsetsTopic(replicas)
    return GroupCoordinator(config, replicas.metadata, lambda: replicas.tree, topic, topic, env)
