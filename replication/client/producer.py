"""Producers for programs: Arrow tables to topics, small ones together in a batch, each with the offsets that it got.

The rows of a `send` are checked at once, wait `linger_ms` for others of their topic, are encoded together, and leave
as batches through `producing`. Laws: rows of a partition are appended in the order of the sends; a send is done when
all of its rows are answered, or one of them has failed. Accepted bytes are bounded by `buffer_bytes`: `send` waits for
room.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeVar

from logstore.env import SYSTEM
from logstore.errors import InvalidConfigError, InvalidRequestError, PylogError
from logstore.records.compression import Codec
from logstore.records.tables import Tabular, as_arrow
from replication.client.attempts import failure_of
from replication.client.cluster import Cluster
from replication.client.metadata import Extent
from replication.client.partition_queue import split
from replication.client.producing import ACKS_ALL, ACKS_LEADER, ACKS_NONE, NO_OFFSET, Sender
from replication.client.settings import TopicSettings, topic_settings
from replication.client.transactions import Transaction
from replication.model.cluster import TopicPartition
from replication.network.loops import is_set_within

if TYPE_CHECKING:
    from logstore.records.rows import Rows

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

BATCH_BYTES = 1_000_000  # below the default limit of brokers, max.message.bytes
SETTINGS_S = 30.0  # for so long a topic's settings are believed
ENCODED_AT_ONCE = 8  # partitions, whose batches then leave in one request for a leader; each takes a buffer of a batch
ROWS_AT_ONCE = 4096  # more are looked at in another thread: the event loop has heartbeats to send
_ACKS = {"all": ACKS_ALL, 1: ACKS_LEADER, 0: ACKS_NONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How a producer sends; the names are Kafka's.

    acks: "all": each row once, and in every in-sync replica; 1: in the leader; 0: no answer. With 1 and 0 a row may
    be there twice after a failure, and 0 gives no offsets. linger_ms: how long rows wait for others. compression_type:
    gzip, snappy, lz4, zstd. delivery_timeout_ms: after so long a row that is not acknowledged has failed.
    """

    acks: Literal["all", 1, 0] = "all"
    linger_ms: int = 5
    batch_bytes: int = BATCH_BYTES
    compression_type: str | None = None
    partitioner: str = "murmur3"
    buffer_bytes: int = 64 * 1024 * 1024
    delivery_timeout_ms: int = 120_000

    def __post_init__(self) -> None:
        """Raises: InvalidConfigError."""
        if self.acks not in _ACKS:
            raise InvalidConfigError(f"acks={self.acks!r}: 'all', 1 or 0", option="acks")
        for name in ("linger_ms", "batch_bytes", "buffer_bytes", "delivery_timeout_ms"):
            if getattr(self, name) < (0 if name == "linger_ms" else 1):
                raise InvalidConfigError(f"{name}={getattr(self, name)!r} is too small", option=name)


class _Promise:
    """One send: `left` rows are not answered yet."""

    def __init__(self, rows: int) -> None:
        self.done: asyncio.Future[dict[int, Extent]] = asyncio.get_running_loop().create_future()
        self._left = rows
        self._extents: dict[int, Extent] = {}
        if not rows:
            self.done.set_result({})

    def answered(self, partition: int, rows: int, outcome: int | PylogError) -> None:
        """The next rows of the send in this partition are at this offset, or failed."""
        if self.done.done():
            return
        if isinstance(outcome, PylogError):
            self.done.set_exception(outcome)
            return
        if outcome != NO_OFFSET:
            known = self._extents.get(partition)
            self._extents[partition] = Extent(known.start if known else outcome, outcome + rows)
        self._left -= rows
        if not self._left:
            self.done.set_result(self._extents)


class _Shares:
    """Which rows of a partition's encoding belong to which send: those of promise i end at `ends[i]`."""

    def __init__(self, partition: int, ends: list[int], promises: list[_Promise]) -> None:
        self._partition, self._ends, self._promises = partition, ends, promises

    def answered(self, first: int, count: int, outcome: int | PylogError) -> None:
        """Forward to `producing.Answered`."""
        at, end, i = first, first + count, bisect_right(self._ends, first)
        while at < end:
            upper = min(end, self._ends[i])
            is_known = not isinstance(outcome, PylogError) and outcome != NO_OFFSET
            begin = outcome + at - first if is_known else outcome  # type: ignore[operator]
            if upper > at:  # a send may have no rows here
                self._promises[i].answered(self._partition, upper - at, begin)
            at, i = upper, i + 1


class _Kind(NamedTuple):
    """The common properties of rows that are encoded together."""

    topic: str
    partitions: int
    codec: Codec
    batch_bytes_max: int


@dataclass(slots=True)
class _Gathered:
    """Rows of one kind that wait for others until `due`."""

    due: float
    rows: list[Rows] = field(default_factory=list)
    ids: list[Any] = field(default_factory=list)
    promises: list[_Promise] = field(default_factory=list)
    size_bytes: int = 0


@dataclass(slots=True)
class _Encoding:
    """The rows of one partition on their way: those before `first` are sent."""

    tp: TopicPartition
    shares: _Shares
    buffers: Iterator[memoryview | None]
    first: int = 0


class AsyncProducer:
    """See the module. Belongs to the event loop in which it is first used; ends with `close` or `async with`."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings | None = None,
        *,
        transaction: Transaction | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings or ProducerSettings()
        self._transaction = transaction
        self._known: dict[str, tuple[float, TopicSettings]] = {}
        self._turns = itertools.count()
        self._gathered: dict[_Kind, _Gathered] = {}
        self._promises: set[asyncio.Future[Any]] = set()
        self._buffered_bytes = 0
        self._changed, self._has_room = asyncio.Event(), asyncio.Event()
        self._beginning = asyncio.Lock()
        self._sender: Sender | None = None
        self._encoder: asyncio.Task[None] | None = None
        self._error: PylogError | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._cluster.where!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.flush()
        await self.close()

    async def send(
        self,
        topic: str,
        data: Tabular,
        *,
        partitioner: str | None = None,
        compression_type: str | None = None,
    ) -> asyncio.Future[dict[int, Extent]]:
        """Accept rows; the future gives the offsets that each partition's got, the first to the last.

        Rows and columns are those of `LogStore.append`. Rows of others may be between them. The future raises
        RecordTooLargeError or KafkaError: some of the rows failed; which ones of them are appended is not known.

        Raises: InvalidRecordError, RecordTooLargeError (nothing was sent), UnknownTopicError, UnreachableError,
        KafkaError; the error of a producer that has failed.
        """
        data = as_arrow(data)
        await self._begin()
        partitions, limits = await self._topic(topic)
        codec = Codec.from_name(compression_type or self._settings.compression_type)
        start, how = next(self._turns), partitioner or self._settings.partitioner

        def look() -> tuple[Rows, Any]:
            from logstore.records.partitioner import partition_ids
            from logstore.records.rows import Rows  # and the kernels

            rows = Rows(data, now_ms=SYSTEM.clock.now_ms())
            rows.check(batch_bytes_max=limits.batch_bytes_max, keys_required=limits.is_compacted)
            return rows, partition_ids(rows, partitions, partitioner=how, start=start)

        rows, ids = await (asyncio.to_thread(look) if data.num_rows > ROWS_AT_ONCE else _now(look))
        await self._room(data.nbytes)
        promise = self._promise(rows.count, data.nbytes)
        if rows.count:
            kind = _Kind(topic, partitions, codec, limits.batch_bytes_max)
            due = asyncio.get_running_loop().time() + self._settings.linger_ms / 1000
            gathered = self._gathered.setdefault(kind, _Gathered(due))
            gathered.rows.append(rows)
            gathered.ids.append(ids)
            gathered.promises.append(promise)
            gathered.size_bytes += data.nbytes
            self._changed.set()
        return promise.done

    async def flush(self) -> None:
        """Return when everything that was sent before is appended, or has failed, as the futures say."""
        for gathered in self._gathered.values():
            gathered.due = 0.0
        self._changed.set()
        if self._promises:
            await asyncio.wait(set(self._promises))

    async def close(self) -> None:
        """Stop. Records that were not acknowledged may be appended, or not: `flush` before."""
        self._fail(InvalidRequestError("the producer is closed"))
        if self._encoder is not None:
            self._encoder.cancel()
            await asyncio.wait([self._encoder])
        if self._sender is not None:
            await self._sender.close()

    @property
    def error(self) -> PylogError | None:
        """Why nothing is taken any more."""
        return self._error or (self._sender.error if self._sender else None)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions of its transaction. While there are none, it has not begun, and there is nothing to end."""
        return self._sender.added if self._sender else frozenset()

    # ---------------------------------------------------------------- accepting

    async def _begin(self) -> None:
        async with self._beginning:
            if (error := self.error) is not None:
                raise error
            if self._sender is None:
                await asyncio.to_thread(import_module, "logstore.records.encoding")  # the kernels take their time
                acks, timeout_ms = _ACKS[self._settings.acks], self._settings.delivery_timeout_ms
                if self._transaction is None:
                    self._sender = await Sender.begin(self._cluster, acks=acks, timeout_ms=timeout_ms)
                else:
                    pair, transaction = self._transaction.pair, self._transaction
                    self._sender = Sender(self._cluster, pair, timeout_ms=timeout_ms, transaction=transaction)
                self._encoder = asyncio.create_task(self._encode_all())
                self._encoder.add_done_callback(self._ended)

    async def _topic(self, topic: str) -> tuple[int, TopicSettings]:
        partitions = len((await self._cluster.topic(topic)).leaders)
        if not partitions:
            raise InvalidRequestError(f"topic {topic!r} has no partitions at {self._cluster.where}")
        now = asyncio.get_running_loop().time()
        known = self._known.get(topic)
        if known is None or now - known[0] > SETTINGS_S:
            known = self._known[topic] = now, await topic_settings(self._cluster, topic)
        return partitions, known[1]

    async def _room(self, size_bytes: int) -> None:
        """Wait until so much is accepted; more than all of the buffer is when nothing else is there."""
        while self._buffered_bytes and self._buffered_bytes + size_bytes > self._settings.buffer_bytes:
            self._has_room.clear()
            await self._has_room.wait()
        if (error := self.error) is not None:
            raise error

    def _promise(self, rows: int, size_bytes: int) -> _Promise:
        promise = _Promise(rows)
        self._promises.add(promise.done)
        self._buffered_bytes += size_bytes

        def done(future: asyncio.Future[Any]) -> None:
            self._promises.discard(future)
            self._buffered_bytes -= size_bytes
            self._has_room.set()
            if not future.cancelled() and (error := future.exception()) is not None:
                logger.warning("%d rows were not all appended: %s", rows, error)

        promise.done.add_done_callback(done)
        return promise

    # ----------------------------------------------------------------- encoding

    async def _encode_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            due = float("inf")
            for kind, gathered in tuple(self._gathered.items()):
                is_full = gathered.size_bytes >= self._settings.batch_bytes
                if is_full or gathered.due <= loop.time():
                    del self._gathered[kind]
                    await self._encode(kind, gathered)
                else:
                    due = min(due, gathered.due)
            await is_set_within(self._changed, None if due == float("inf") else due - loop.time())

    async def _encode(self, kind: _Kind, gathered: _Gathered) -> None:
        import numpy as np

        from logstore.records.partitioner import group_by_partition

        is_one = len(gathered.rows) == 1
        rows = gathered.rows[0] if is_one else gathered.rows[0].joined(gathered.rows)
        ids = gathered.ids[0] if is_one else np.concatenate(gathered.ids)
        ends = np.cumsum([part.count for part in gathered.rows])
        is_small = rows.count <= ROWS_AT_ONCE
        waiting = deque(group_by_partition(ids, kind.partitions))
        await self._sending.add([TopicPartition(kind.topic, partition) for partition, _ in waiting])
        live: list[_Encoding] = []
        while waiting or live:
            while waiting and len(live) < ENCODED_AT_ONCE:
                partition, order = waiting.popleft()
                shares = _Shares(partition, np.searchsorted(order, ends).tolist(), gathered.promises)
                live.append(_Encoding(TopicPartition(kind.topic, partition), shares, self._encoded(kind, rows, order)))
            buffers = await (_now if is_small else asyncio.to_thread)(partial(_next_of, live))
            for each, buffer in zip(live, buffers, strict=True):
                for data, count in split(buffer) if buffer is not None else ():
                    self._sending.send(each.tp, data, each.first, count, each.shares.answered)
                    each.first += count
            live = [each for each, buffer in zip(live, buffers, strict=True) if buffer is not None]
            await self._sending.room(self._settings.buffer_bytes)

    def _encoded(self, kind: _Kind, rows: Rows, order: Any) -> Iterator[memoryview | None]:
        """Buffers of batches, then None."""
        from logstore.records.encoding import encode

        yield from encode(
            rows,
            order,
            codec=kind.codec,
            batch_bytes=min(self._settings.batch_bytes, kind.batch_bytes_max),
            batch_bytes_max=kind.batch_bytes_max,
        )
        yield None

    @property
    def _sending(self) -> Sender:
        assert self._sender is not None, "it has begun"
        return self._sender

    # ------------------------------------------------------------------- ending

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fail all waiting sends when the sender task has failed."""
        if (error := failure_of(task, "the producer")) is not None:
            self._fail(error)

    def _fail(self, error: PylogError) -> None:
        self._error = self._error or error
        for promise in tuple(self._promises):
            if not promise.done():
                promise.set_exception(self._error)
        self._gathered.clear()
        self._has_room.set()


class AsyncTransactionalProducer(AsyncProducer):
    """Appends rows in one transaction, which `transactions` begins and ends; it goes on after `close`.

    Laws: rows of a partition are in the order of the appends, each once, in batches that bear the transaction's pair.
    The first row that cannot be appended fails it for good, with all that was not acknowledged: abort the transaction.
    """

    def __init__(self, cluster: Cluster, transaction: Transaction, *, delivery_timeout_ms: int = 120_000) -> None:
        settings = ProducerSettings(linger_ms=0, delivery_timeout_ms=delivery_timeout_ms)
        super().__init__(cluster, settings, transaction=transaction)

    async def append(
        self,
        topic: str,
        data: Tabular,
        *,
        partitioner: str = "murmur3",
        compression: str | None = None,
    ) -> dict[int, Extent]:
        """Append rows; return the offsets that each partition's got, the first to the last, for committed readers, too.

        Others may append between them. Several appends may go on at once.

        Raises: InvalidRecordError, RecordTooLargeError, UnknownTopicError (all before anything is sent),
        UnreachableError, KafkaError: the producer has failed.
        """
        return await (await self.send(topic, data, partitioner=partitioner, compression_type=compression))

    async def flush(self) -> None:
        """Return when everything that was appended before is at all in-sync replicas. Raises: PylogError: it failed."""
        await super().flush()
        if (error := self.error) is not None:
            raise error


async def _now(look: Callable[[], Found]) -> Found:
    return look()


def _next_of(encodings: Sequence[_Encoding]) -> list[memoryview | None]:
    return [next(each.buffers) for each in encodings]
