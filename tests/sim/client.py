"""Producers and consumers: they believe what the store said, ask by the product's own client, and do not try again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from logstore.records.batch import Record, build, header_at
from replication.errors import ErrorCode, ProtocolError
from replication.model.cluster import TopicPartition, topic_uuid
from replication.network.client import Client
from replication.protocol.apis import ApiKey
from replication.protocol.messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from tests.sim.copiers import Copiers
from tests.sim.members import Members
from tests.sim.network import CLIENTS_PORT
from tests.sim.world import Life

if TYPE_CHECKING:
    from tests.sim.broker import SimBroker
    from tests.sim.simulation import Simulation

TIMEOUT_MS = 5_000
LOSSES = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)  # so a leader says that it has not all
PRODUCERS = 1_000_000  # from here on, so many per partition: no broker gives such an id out
TOPIC_ID = "c2ltdWxhdGVkIHRvcGljIQ"


class Process:
    """A client with a machine of its own, that may pause, and die without a word."""

    def __init__(self, clients: Clients, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        clients.processes += 1
        self.life = Life(clients.world.loop, f"client{clients.processes}")
        self.is_done = False
        self._work = work
        self.life.soon(lambda: clients.spawn(self._run()))

    async def _run(self) -> None:
        await self._work()
        self.is_done = True

    def die(self) -> None:
        self.life.end(is_told=True)


class Clients:
    def __init__(self, sim: Simulation) -> None:
        self.sim, self.world = sim, sim.world
        self.life = Life(sim.world.loop, "clients")
        self.bootstrap = ",".join(f"{broker.host}:{CLIENTS_PORT}" for broker in sim.brokers.values())
        self.is_over = False
        self.count = self.processes = 0
        self.positions = dict.fromkeys(sim.data, 0)
        self.acked_later = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self) -> None:
        self._connections = {
            broker: Client(sim.host, CLIENTS_PORT, "client", timeout_ms=TIMEOUT_MS)
            for broker, sim in self.sim.brokers.items()
        }
        for tp in self.sim.data:
            self.spawn(self._produce(tp))
            self.spawn(self._produce_in_sequence(tp))
            self.spawn(self._consume(tp))
        if self.sim.copies:
            copiers = Copiers(self)
            self.spawn(copiers.run())
            for tp in self.sim.data:
                self.spawn(copiers.read(tp))
        if self.sim.has_members:
            self.spawn(Members(self).run())

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.broken.append(error)

    async def succession(self, work: Callable[[], Coroutine[Any, Any, None]], most: int) -> None:
        """Processes follow one another, and go on beside each other. Return when they are over."""
        chance, running = self.world.random, list[Process]()
        while not self.is_over:
            if not (self.sim.is_calm and running):
                running.append(Process(self, work))
            await asyncio.sleep(chance.choice((0.4, 1.0, 2.0)))
            for each in running if not self.sim.is_calm else ():
                if self.world.chance(self.sim.circumstances.client_pause):
                    each.life.pause(chance.choice((100, 400, 900, 2000)))
            while len(running) > chance.randint(1, most) or (len(running) > 1 and self.world.chance(0.2)):
                running.pop(chance.randrange(len(running))).die()
        while not all(each.is_done for each in running):  # noqa: ASYNC110  in virtual time
            await asyncio.sleep(0.05)

    def _leader(self, tp: TopicPartition) -> SimBroker:
        state = self.sim.store.state(tp)
        if state is None or state.leader < 0 or self.world.chance(0.1):
            return self.sim.brokers[self.world.random.choice(list(self.sim.brokers))]
        return self.sim.brokers[state.leader]

    async def _call(self, target: SimBroker, key: ApiKey, request: Any) -> Any:
        try:
            return await self._connections[target.id].call(key, request)
        except (OSError, TimeoutError, ProtocolError):
            return None

    async def _produce(self, tp: TopicPartition) -> None:
        chance = self.world.random
        while not self.is_over:
            await asyncio.sleep(chance.choice((0.01, 0.03, 0.06, 0.2)) * self.sim.circumstances.pace)
            target = self._leader(tp)
            for _ in range(chance.choice((1, 1, 2, 3))):  # of which a broker takes those together that come together
                self.spawn(self._send(target, tp))

    def _records(self) -> list[Record]:
        first, self.count = self.count, self.count + self.world.random.randint(1, 3)
        return [Record(number - first, 1000, None, b"%d" % number) for number in range(first, self.count)]

    async def _send(self, target: SimBroker, tp: TopicPartition) -> None:
        await self._append(target, tp, bytes(build(self._records())), 1 if self.world.chance(0.2) else -1)

    async def _append(self, target: SimBroker, tp: TopicPartition, batch: bytes, acks: int = -1) -> int | None:
        """Return the error code; None: nobody has answered."""
        epoch = target.leads(tp)
        topic = ProduceTopic(tp.topic, (ProducePartition(tp.partition, batch),))
        self.sim.summary.appended += 1
        response = await self._call(target, ApiKey.PRODUCE, ProduceRequest(acks, TIMEOUT_MS, (topic,)))
        if response is None:
            return None
        row = response.topics[0].partitions[0]
        if row.error_code == ErrorCode.NONE and acks == -1:
            now = target.leads(tp)
            self.acked_later += -1 < epoch < now
            self.sim.laws.acknowledged(tp, row.base_offset, header_at(batch).crc, now if epoch < 0 else epoch)
        return int(row.error_code)

    async def _produce_in_sequence(self, tp: TopicPartition) -> None:
        """An idempotent producer: it sends a batch to whoever leads until it is acknowledged."""
        chance, producer_id, sequence = self.world.random, PRODUCERS * (1 + tp.partition), 0
        while not self.is_over:
            records = self._records()
            batch = bytes(build(records, producer=(producer_id, 0, sequence)))
            code: int | None = None
            while code not in (ErrorCode.NONE, *LOSSES) and not self.is_over:
                await asyncio.sleep(chance.choice((0.02, 0.1, 0.3)) * self.sim.circumstances.pace)
                code = await self._append(self._leader(tp), tp, batch)
            sequence += len(records)
            if code in LOSSES:  # as another producer
                producer_id, sequence = producer_id + 1, 0

    async def _consume(self, tp: TopicPartition) -> None:
        while not self.is_over:
            await asyncio.sleep(self.world.random.choice((0.1, 0.3)))
            target, offset = self._leader(tp), self.positions[tp]
            epoch = target.leads(tp)
            topic = FetchTopic(None, topic_uuid(TOPIC_ID), (FetchPartition(tp.partition, offset, 4096),))
            response = await self._call(target, ApiKey.FETCH, FetchRequest(100, 1, (topic,)))
            if response is None or response.error_code or not response.topics:
                continue
            row = response.topics[0].partitions[0]
            if row.error_code == ErrorCode.NONE and len(row.records):
                self.sim.laws.consumed(tp, bytes(row.records), target.leads(tp) if epoch < 0 else epoch)
                self.positions[tp] = header_at(row.records).base_offset + 1
