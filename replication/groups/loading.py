"""What a partition of `__consumer_offsets` says, read by the broker that has begun to lead it.

It is whole once everything from before this broker's term is read, and committed: not sooner can anybody be answered,
or consumers would begin where they were long ago, or at the start of the log.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TypeAlias

from logstore.records import batch
from replication.errors import ErrorCode
from replication.groups.machine.records import Loaded
from replication.replica.leader.leader import Leader
from replication.replica.leader.results import FetchSpec
from replication.replica.manager import ReplicaManager

logger = logging.getLogger(__name__)

# Decoded in another thread; the event loop is held up by no more than a thread's turn.
READ_BYTES = 1024 * 1024
# Of a key the last record counts: the others are not even looked at. key -> (offset, value)
Latest: TypeAlias = dict[bytes, tuple[int, bytes | None]]
WAIT_MS = 500
RETRY_S = 0.5
DAMAGE_RETRY_S = 30.0


async def load(replicas: ReplicaManager, leader: Leader) -> Loaded | None:
    """Everything that is stored; None if the leader's term ended before it was read."""
    tp = leader.replica.tp
    latest: Latest = {}
    position = leader.replica.start
    while not leader.is_over:
        # Before the fetch: what was committed until then is read, or there is no more.
        is_settled = leader.state.is_settled
        found = await replicas.fetch(
            {tp: FetchSpec(position, READ_BYTES, leader.state.leader_epoch)},
            max_wait_ms=0 if is_settled else WAIT_MS,
            min_bytes=1,
            max_bytes=READ_BYTES,
        )
        fetched = found[tp]
        if fetched.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
            position = leader.replica.start  # the start moved on: records were deleted
        elif fetched.error_code is not ErrorCode.NONE:
            logger.warning("tp=%s groups cannot be loaded yet: %s", tp, fetched.error_code.name)
            await asyncio.sleep(RETRY_S)
        elif len(fetched.records):
            try:
                position = await asyncio.to_thread(_take, latest, fetched.records, position)
            except batch.InvalidBatchError as error:
                # To go on without would tell consumers old offsets: better none until it is mended.
                logger.error("tp=%s groups cannot be loaded from offset %d on: %s", tp, position, error)
                await asyncio.sleep(DAMAGE_RETRY_S)
        elif is_settled:
            loaded = await asyncio.to_thread(_add_up, latest)
            if loaded.unknown:
                logger.warning("tp=%s %d records are of a kind that is not known here", tp, loaded.unknown)
            return loaded
    return None


def _take(latest: Latest, records: bytes | bytearray | memoryview, start: int) -> int:
    """Take in the records from offset `start` on; return where the next ones begin."""
    position = start
    for at, header in batch.batches(records):
        if not header.is_control:
            for record in batch.records(records, at):
                if record.offset >= start:
                    latest[record.key or b""] = record.offset, record.value
        position = header.next_offset
    return position


def _add_up(latest: Latest) -> Loaded:
    """In the order of the log, since several versions of a key name the same thing."""
    loaded = Loaded()
    for offset, key in sorted((offset, key) for key, (offset, _) in latest.items()):
        loaded.apply(offset, key, latest[key][1])
    return loaded
