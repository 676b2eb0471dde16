"""Filling: the damaged ranges of a replica, fetched from the replicas that have them soundly, each from any of them.

Fetched bytes are checked here as they are written: CRC, offsets, leader epochs, and that it takes the room of what was
there. So nobody has to be believed, and a piece that was had is kept even if the next one cannot be.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from logstore.errors import InvalidRecordError
from logstore.log import holes
from logstore.log.holes import Hole, SegmentCopy
from replication.model.cluster import BrokerId
from replication.network.client import Client
from replication.replica import second_copy
from replication.replica.partition import Partition
from replication.replica.second_copy import NotShownError, Wanted

logger = logging.getLogger(__name__)

Connect = Callable[[BrokerId], Client]


class Filling:
    """One attempt, in one leader epoch. `why` says what could not be had, or is empty."""

    def __init__(self, partition: Partition, others: Sequence[BrokerId], leader_epoch: int, connect: Connect) -> None:
        self.why = ""
        self._replica = partition.replica
        self._others = others
        self._connect = connect
        self._wanted = Wanted(
            partition.tp, self._replica.topic_uuid, leader_epoch, start=0, end=None, may_have_gaps=False
        )

    async def run(self) -> bool:
        """Fill what can be had; return whether all of the log is sound then.

        Raises: PylogError, OSError: this disk does not take it.
        """
        log, is_sound = self._replica.log, True
        for base in log.files.view.bases:
            if found := await self._replica.call(partial(holes.find, log, base)):
                await self._fill_segment(base, found)
                is_sound &= not await self._replica.call(partial(holes.find, log, base))
        return is_sound

    async def _fill_segment(self, base: int, found: Sequence[Hole]) -> None:
        copy = SegmentCopy(self._replica.log, base)
        try:
            is_changed = False
            for hole in found:
                left = await self._fill_hole(copy, hole)
                is_changed |= left != hole
                if left.start != hole.start:
                    end = left.start
                    logger.warning("tp=%s offsets %d to %d are filled", self._replica.tp, hole.start, end)
            if is_changed:
                kept = await self._replica.call(copy.put)
                logger.warning("tp=%s what was damaged is kept as path=%s", self._replica.tp, kept)
        finally:
            copy.drop()

    async def _fill_hole(self, copy: SegmentCopy, hole: Hole) -> Hole:
        if hole.end is None:
            self.why = f"nobody can tell where the damage at offset {hole.start} ends"
            return hole
        reasons = []
        for other in self._others:
            client = None
            try:
                client = self._connect(other)
                while hole.start != hole.end:
                    max_bytes = self._replica.host.config.replica_fetch_max_bytes
                    records = await second_copy.fetch(client, self._wanted, hole.start, max_bytes)
                    hole = await asyncio.to_thread(copy.fill, hole, records)
                return hole
            except (NotShownError, InvalidRecordError, ConnectionError) as error:
                reasons.append(f"broker {other}: {error}")
            finally:
                if client is not None:
                    client.close()
        self.why = f"{hole} are sound nowhere: {'; '.join(reasons) or 'there is no other replica'}"
        return hole
