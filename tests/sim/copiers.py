"""Instances of one transactional id, one after the other and side by side: each writes numbers in transactions.

With the numbers goes the position of their group, so that the next one, whoever it is, goes on behind them: what Kafka
calls consume, transform, produce. They use the product's client, and send by it what only others' clients send.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from logstore.errors import OffsetOutOfRangeError, PylogError
from logstore.records.batch import TRANSACTIONAL, InvalidBatchError, batches, build, records
from replication.client import groups, transactions
from replication.client.attempts import LOST
from replication.client.cluster import Cluster
from replication.client.coordinators import Key, group_key, transactional_key
from replication.client.fetching import LATEST, fetch, list_offsets
from replication.client.producing import Sender
from replication.client.transactions import Pair, Transaction
from replication.errors import ErrorCode, KafkaError, error_of
from replication.model.cluster import TopicPartition
from replication.protocol.apis import ApiKey
from replication.protocol.messages import Isolation, ProducePartition, ProduceRequest, ProduceTopic
from tests.sim.circumstances import END
from tests.sim.client_laws import Attempt

if TYPE_CHECKING:
    from tests.sim.client import Clients

ID, GROUP = "copier", "copiers"
SOURCE = TopicPartition("t", 0)  # of which the group's offset counts; nobody reads it
TIMEOUT_MS = 4_000  # of a call
TRANSACTION_MS = (700, 3_000)


class Copiers:
    def __init__(self, clients: Clients) -> None:
        self._clients, self._world, self._laws = clients, clients.world, clients.sim.laws.copied
        self._tps = clients.sim.data

    def _cluster(self) -> Cluster:
        return Cluster(self._clients.bootstrap, timeout_ms=TIMEOUT_MS)

    async def run(self) -> None:
        await self._clients.succession(self._copy, most=3)
        async with self._cluster() as cluster:
            while self._laws.position is None:  # a transaction that nobody ends is over after its own time
                with suppress(PylogError, OSError, TimeoutError):
                    self._laws.position = await self._position(cluster)

    async def _position(self, cluster: Cluster) -> int:
        """That of the group, which is decided. Raises: KafkaError."""
        found = await groups.committed(cluster, GROUP, [SOURCE])
        return found[SOURCE].offset if found else 0

    async def _copy(self) -> None:
        async with self._cluster() as cluster:
            while not self._clients.is_over:
                with suppress(PylogError, OSError, TimeoutError):
                    if self._world.chance(0.5):
                        await self._copy_once(cluster)
                    else:
                        await self._copy_on(cluster)
                await asyncio.sleep(self._world.random.choice((0, 0.01, 0.2)))

    async def _begin(self, cluster: Cluster) -> Pair:
        timeout_ms = self._world.random.choice(TRANSACTION_MS)
        return (await transactions.init_producer(cluster, ID, timeout_ms=timeout_ms)).pair

    async def _chosen(self, cluster: Cluster, pair: Pair) -> Attempt:
        """The next numbers, for some of the partitions."""
        chance, attempt = self._world.random, self._laws.begin(pair)
        attempt.end = await self._position(cluster)
        for tp in chance.sample(self._tps, chance.randint(1, len(self._tps))):
            start, attempt.end = attempt.end, attempt.end + chance.randint(1, 3)
            attempt.rows[tp] = range(start, attempt.end)
        return attempt

    async def _copy_once(self, cluster: Cluster) -> None:
        """Write a transaction like the product's client."""
        pair = await self._begin(cluster)
        attempt, transaction = await self._chosen(cluster, pair), Transaction(ID, pair)
        sender = Sender(cluster, pair, timeout_ms=TIMEOUT_MS, transaction=transaction)
        try:
            await sender.add(attempt.rows)
            await asyncio.gather(*(self._append(sender, attempt, tp) for tp in attempt.rows))
        finally:
            await sender.close()
        await self._ask(cluster, transactional_key(ID), ApiKey.ADD_OFFSETS_TO_TXN, attempt, version_max=3)
        await self._move(cluster, attempt, version_max=3)
        async with self._ending(attempt) as commits:
            await transactions.end_transaction(cluster, *transaction, commits=commits)

    async def _copy_on(self, cluster: Cluster) -> None:
        """Write like Java's producers since 4.0 (KIP-890): brokers add the partitions, each end begins an epoch."""
        pair = await self._begin(cluster)
        for _ in range(self._world.random.randint(1, 4)):
            if self._clients.is_over:
                break
            attempt = await self._chosen(cluster, pair)
            await asyncio.gather(*(self._produce(cluster, attempt, tp) for tp in attempt.rows))
            await self._move(cluster, attempt)
            async with self._ending(attempt) as commits:
                found = await self._ask(
                    cluster, transactional_key(ID), ApiKey.END_TXN, attempt, {"committed": commits}, version_min=5
                )
            pair = Pair(found.producer_id, found.producer_epoch)

    @asynccontextmanager
    async def _ending(self, attempt: Attempt) -> AsyncIterator[bool]:
        await asyncio.sleep(self._world.random.choice((0, 0, 0.1, 0.4)))
        was_fenced, commits = self._laws.is_fenced(attempt), not self._world.chance(0.2)
        attempt.is_asked = commits
        self._clients.sim.faults.meet(END)
        yield commits
        self._laws.ended(attempt, was_fenced=was_fenced, commits=commits)

    async def _produce(self, cluster: Cluster, attempt: Attempt, tp: TopicPartition) -> None:
        """Raises: KafkaError."""
        batch = bytes(build(attempt.records(tp), attributes=TRANSACTIONAL, producer=(*attempt.pair, 0)))
        request = ProduceRequest(
            -1, TIMEOUT_MS, (ProduceTopic(tp.topic, (ProducePartition(tp.partition, batch),)),), ID
        )
        was_fenced, backoff = self._laws.is_fenced(attempt), cluster.backoff()
        while True:
            leader = (await cluster.leader(tp, backoff)).broker
            code = ErrorCode.NETWORK_EXCEPTION
            with suppress(*LOST, KafkaError):
                answer = await cluster.call_leader(leader, [tp.topic], ApiKey.PRODUCE, request, version_min=12)
                code = ErrorCode(answer.topics[0].partitions[0].error_code)
            if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._laws.appended(attempt, tp, was_fenced=was_fenced)
                return
            if not code.is_retriable or backoff.is_over:
                raise KafkaError(code, f"{attempt} to {tp}")
            cluster.forget([tp.topic])
            await backoff.wait()

    async def _append(self, sender: Sender, attempt: Attempt, tp: TopicPartition) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        is_fenced = self._laws.is_fenced(attempt)

        def answered(first: int, count: int, outcome: int | PylogError) -> None:
            if done.done():
                return
            if isinstance(outcome, PylogError):
                done.set_exception(outcome)
            else:
                self._laws.appended(attempt, tp, was_fenced=is_fenced)
                done.set_result(None)

        rows = attempt.records(tp)
        sender.send(tp, memoryview(build(rows)), 0, len(rows), answered)
        await done

    async def _move(self, cluster: Cluster, attempt: Attempt, **versions: int) -> None:
        """The group's offset, as a part of the transaction. Raises: KafkaError."""
        row = {"partition_index": 0, "committed_offset": attempt.end, "committed_metadata": ""}
        topics = [{"name": SOURCE.topic, "partitions": [row | {"committed_leader_epoch": -1}]}]
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None, "topics": topics}
        await self._ask(cluster, group_key(GROUP), ApiKey.TXN_OFFSET_COMMIT, attempt, member, **versions)

    async def _ask(
        self, cluster: Cluster, key: Key, api: ApiKey, attempt: Attempt, more: Any = None, **versions: int
    ) -> Any:
        """The answer of a coordinator. Raises: KafkaError."""
        producer_id, epoch = attempt.pair
        head = {"transactional_id": ID, "producer_id": producer_id, "producer_epoch": epoch, "group_id": GROUP}

        def code(body: Any) -> ErrorCode:
            row = body.topics[0].partitions[0] if hasattr(body, "topics") else body
            return error_of(row.error_code.value).code

        answer = await cluster.coordinators.call(key, api, head | (more or {}), code, **versions)
        if refused := code(answer):
            raise error_of(refused, api.name)
        return answer

    async def read(self, tp: TopicPartition) -> None:
        """A reader of committed data. Brokers show damage to consumers, who find it and read again."""
        position = 0
        async with self._cluster() as cluster:
            while not self._clients.is_over:
                await asyncio.sleep(0.2)
                with suppress(PylogError, OSError, TimeoutError, InvalidBatchError):
                    wanted = list_offsets(cluster, {tp: LATEST}, isolation=Isolation.READ_COMMITTED)
                    end = (await wanted)[tp].offset
                    while position < end:
                        try:
                            found = await fetch(cluster, tp, position, end, isolation=Isolation.READ_COMMITTED)
                        except OffsetOutOfRangeError:
                            break
                        self._laws.read(tp, [value for part in found.parts for value in values_in(part, position)])
                        position = found.next_offset


def values_in(data: Any, start: int = 0) -> list[bytes]:
    """Return the values of transactions from an offset on."""
    return [
        record.value
        for at, header in batches(data)
        if header.is_transactional and not header.is_control
        for record in records(data, at)
        if record.offset >= start
    ]
