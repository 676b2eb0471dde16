"""Members of one group, that read with the product's consumer, commit, leave, or are gone without a word."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from logstore.errors import PylogError
from replication.client import groups
from replication.client.cluster import Cluster
from replication.client.consumer import AsyncConsumer, ConsumerSettings
from replication.client.membership import Tps
from replication.model.cluster import TopicPartition
from tests.sim.circumstances import OFFSETS

if TYPE_CHECKING:
    from tests.sim.client import Clients

GROUP = "members"
POLL_MS = 100


class Members:
    def __init__(self, clients: Clients) -> None:
        self._clients, self._world, self._laws = clients, clients.world, clients.sim.laws.read
        self._tps = clients.sim.data

    async def run(self) -> None:
        await self._clients.succession(self._member, most=4)
        async with Cluster(self._clients.bootstrap, timeout_ms=5_000) as cluster:
            found = await groups.committed(cluster, GROUP, self._tps)
            self._laws.check_end({tp: each.offset for tp, each in found.items()})

    async def _member(self) -> None:
        chance = self._world.random
        settings = ConsumerSettings(
            group_id=GROUP,
            assignor=chance.choice(("cooperative-sticky", "cooperative-sticky", "range")),
            session_timeout_ms=600,
            heartbeat_interval_ms=100,
            max_poll_interval_ms=1_000,
            auto_commit_interval_ms=300,
            enable_auto_commit=self._world.chance(0.5),
            auto_offset_reset="earliest",
            rack=chance.choice(("", "rack0", "rack1")),
        )
        consumer: AsyncConsumer
        known: dict[TopicPartition, int] = {}  # was committed before it asked: it may have been paused since

        async def assigned(tps: Tps) -> None:
            for tp in sorted(tps):
                self._laws.begins(tp, consumer.position(tp), known.get(tp, 0))

        consumer = AsyncConsumer(self._clients.bootstrap, ["t"], settings, on_assign=assigned)
        async with consumer:
            while not self._clients.is_over:
                known.update(self._laws.stored)
                try:
                    await self._poll(consumer)
                except (PylogError, OSError, TimeoutError) as error:
                    self._world.note(f"a member: {error}")
                    await asyncio.sleep(0.1)

    async def _poll(self, consumer: AsyncConsumer) -> None:
        rows = await consumer.poll(POLL_MS)
        if rows is not None:
            tp = TopicPartition("t", rows["partition"][0].as_py())
            self._laws.reads(tp, rows["offset"].to_pylist())
        if self._world.chance(0.2):
            positions = {tp: consumer.position(tp) for tp in sorted(consumer.assignment)}
            if positions:
                self._clients.sim.faults.meet(OFFSETS)
            await consumer.commit(positions)
            self._laws.commits(positions)
        if self._world.chance(0.02):
            await asyncio.sleep(1.5)  # later than it may poll
