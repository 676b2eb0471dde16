"""`Brokers` over a client: the topic of decisions, and the transactions of the cluster.

The topic has one partition that counts, so that nobody who adds partitions moves a name. It is read without regard to
what others have open in it: a record counts once the marker of its own producer is there. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Collection, Mapping, Sequence

from datasource.topics.transactions.protocol import PAUSE_S, Described
from datasource.topics.transactions.state import Attempt, NameState, driver_id, is_leased, read_value, value_of
from logstore.env import SYSTEM
from logstore.errors import OffsetOutOfRangeError, PylogError, TopicExistsError, UnknownTopicError
from logstore.records import batch as batches
from logstore.records.compression import Codec
from logstore.records.marker import marker_of
from replication.client import transactions
from replication.client.cluster import Cluster
from replication.client.coordinators import transactional_key
from replication.client.fetching import EARLIEST, LATEST, fetch, list_offsets
from replication.client.producing import Sender
from replication.client.topics import create_topic
from replication.client.transactions import BegunProducer, Pair, Transaction
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TopicPartition

DRIVER_TIMEOUT_MS = 60_000  # of the transaction of a state, which takes some milliseconds
REPLICAS_MAX, IN_SYNC_MIN = 3, 2
SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": str(1024 * 1024),
    "segment.ms": str(600_000),
    "max.message.bytes": str(16 * 1024 * 1024),  # a state names every task of a batch: of some hundred thousand
}
LARGE_BYTES = 64 * 1024  # from here on a state is compressed
# Codes which say that id and pair are those of no transaction that could still end so.
ENDED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)


class DecisionTopic:
    """The states of names as a topic holds them. `start` is where to begin, if what is before is not asked for."""

    def __init__(self, cluster: Cluster, topic: str, start: int | None = None) -> None:
        self._cluster, self._tp = cluster, TopicPartition(topic, 0)
        self._next = start
        self._is_whole = start is None
        self._open: dict[int, list[tuple[int, str, bytes]]] = {}  # by producer id: offset, name, record
        self._known: dict[str, tuple[int, bytes]] = {}
        self._mutex = asyncio.Lock()

    async def read(self, *, is_whole: bool = False) -> Mapping[str, tuple[int, bytes]]:
        """Every name with the offset of its record, and that record, as they are now; with `is_whole` all of them.

        Raises: KafkaError, UnreachableError.
        """
        async with self._mutex:
            if is_whole and not self._is_whole:
                self._forget()
            try:
                await self._read_on()
            except OffsetOutOfRangeError:  # another topic of this name
                self._forget()
                await self._read_on()
            return self._known

    def _forget(self) -> None:
        self._next, self._is_whole = None, True
        self._open.clear()
        self._known.clear()

    async def _read_on(self) -> None:
        try:
            found = await list_offsets(self._cluster, {self._tp: LATEST})
        except UnknownTopicError:
            await self._make()
            found = await list_offsets(self._cluster, {self._tp: LATEST})
        end = found[self._tp].offset
        if self._next is None:
            self._next = (await list_offsets(self._cluster, {self._tp: EARLIEST}))[self._tp].offset
        if self._next > end:
            raise OffsetOutOfRangeError(self._next, 0, end)
        while self._next < end:
            fetched = await fetch(self._cluster, self._tp, self._next, end)
            for part in fetched.parts:
                self._fold(part)
            self._next = fetched.next_offset

    def _fold(self, part: memoryview) -> None:
        for position, header in batches.batches(part):
            batches.check(part, position, header)
            if header.is_control:
                marker, ended = marker_of(part, position), self._open.pop(header.producer_id, ())
                if marker is not None and marker.kind == "COMMIT":
                    self._known.update({name: (offset, value) for offset, name, value in ended})
                continue
            for record in batches.records(part, position):
                name = (record.key or b"").decode()
                if record.value is None:
                    self._known.pop(name, None)  # an operator's tombstone
                else:
                    self._open.setdefault(header.producer_id, []).append((header.base_offset, name, record.value))

    async def _make(self) -> None:
        brokers = len((await self._cluster.describe()).brokers)
        in_sync = {"min.insync.replicas": str(min(IN_SYNC_MIN, brokers))}
        with contextlib.suppress(TopicExistsError):  # somebody was quicker
            replicas = min(REPLICAS_MAX, brokers)
            await create_topic(
                self._cluster, self._tp.topic, partitions=1, replicas=replicas, settings=SETTINGS | in_sync
            )

    async def write(self, transaction: Transaction, name: str, state: NameState) -> None:
        """Append the record of a state as a part of this transaction. Raises: KafkaError, UnreachableError."""
        value = value_of(state)
        codec = Codec.GZIP if len(value) > LARGE_BYTES else Codec.NONE
        record = batches.Record(0, SYSTEM.clock.now_ms(), name.encode(), value)
        data = batches.build([record], codec=codec)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answered(first: int, count: int, outcome: int | PylogError) -> None:
            if isinstance(outcome, PylogError):
                done.set_exception(outcome)
            else:
                done.set_result(None)

        sender = Sender(self._cluster, transaction.pair, timeout_ms=DRIVER_TIMEOUT_MS, transaction=transaction)
        try:
            await sender.add([self._tp])
            sender.send(self._tp, memoryview(data), 0, 1, answered)
            await done
        finally:
            await sender.close()


class ClusterBrokers:
    """Implements `protocol.Brokers`. `timeout_ms` is that of transactions where they have one."""

    def __init__(self, cluster: Cluster, decisions: DecisionTopic, *, timeout_ms: int, is_two_phase: bool) -> None:
        self._cluster, self._decisions, self._timeout_ms = cluster, decisions, timeout_ms
        self.is_two_phase = is_two_phase
        self.offset: int | None = None  # where the record of the name is that was read last

    async def read(self, name: str) -> NameState:
        found = (await self._decisions.read()).get(name)
        self.offset = None if found is None else found[0]
        return NameState() if found is None else read_value(found[1])

    async def leases(self) -> Mapping[str, NameState]:
        found = await self._decisions.read(is_whole=True)
        return {name: read_value(value) for name, (_, value) in found.items() if is_leased(name)}

    async def begin_driver(self, name: str, ids: Collection[str] = ()) -> tuple[Pair, Described]:
        id = driver_id(name)
        keys = [transactional_key(each) for each in (id, *ids)]
        await self._cluster.coordinators.shares(keys, self._cluster.backoff())
        begun, described = await asyncio.gather(
            transactions.init_producer(self._cluster, id, timeout_ms=DRIVER_TIMEOUT_MS), self.describe(ids)
        )
        return begun.pair, described

    async def begin(self, id: str) -> BegunProducer:
        keeps = self.is_two_phase
        return await transactions.init_producer(
            self._cluster, id, timeout_ms=self._timeout_ms, is_two_phase=keeps, keeps=keeps
        )

    async def write(self, name: str, pair: Pair, state: NameState) -> bool:
        transaction = Transaction(driver_id(name), pair)
        try:
            await self._decisions.write(transaction, name, state)
            await transactions.end_transaction(self._cluster, *transaction, commits=True)
        except KafkaError as error:
            if error.code in ENDED:
                return False
            raise
        return True

    async def end(self, attempts: Collection[Attempt], *, commits: bool) -> list[Attempt]:
        pairs = {each.id: Pair(each.producer_id, each.epoch) for each in attempts}
        refused = await transactions.end_transactions(self._cluster, pairs, commits=commits)
        for error in refused.values():
            if error.code not in ENDED:
                raise error
        return [each for each in attempts if each.id in refused]

    async def describe(self, ids: Collection[str]) -> Described:
        return await transactions.describe_transactions(self._cluster, ids)

    async def listed(self, states: Sequence[str]) -> Collection[str]:
        found = await transactions.list_transactions(self._cluster, states=states)
        return [each.transactional_id for each in found or ()]

    async def pause(self, most_s: float = PAUSE_S) -> None:
        await asyncio.sleep(SYSTEM.random.uniform(0, most_s))


_topics: weakref.WeakKeyDictionary[Cluster, dict[str, DecisionTopic]] = weakref.WeakKeyDictionary()
_two_phase: weakref.WeakKeyDictionary[Cluster, bool] = weakref.WeakKeyDictionary()


async def brokers_of(cluster: Cluster, topic: str, *, timeout_ms: int, start: int | None = None) -> ClusterBrokers:
    """Brokers with this topic of decisions; what this client has read of the topic before is kept.

    Raises: UnreachableError.
    """
    known = _topics.setdefault(cluster, {})
    decisions = known.setdefault(topic, DecisionTopic(cluster, topic, start))
    if cluster not in _two_phase:  # a process that commits begins here each time: what it needs first, at once
        _two_phase[cluster], _ = await asyncio.gather(transactions.has_two_phase(cluster), decisions.read())
    return ClusterBrokers(cluster, decisions, timeout_ms=timeout_ms, is_two_phase=_two_phase[cluster])
