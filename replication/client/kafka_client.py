"""KafkaClient: topics of a cluster as Arrow columns, for code without an event loop.

All calls may be made from any thread; they run in one event loop in a thread of the client's own.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import pyarrow as pa

from logstore.env import SYSTEM
from logstore.errors import InvalidRecordError, InvalidRequestError, PylogError
from logstore.records.arrow import decode_pieces, encode
from logstore.records.batch import batches
from logstore.records.compression import Codec
from logstore.records.partitioner import group_by_partition, partition_ids
from logstore.records.rows import Rows
from logstore.store.reading import schema_of
from replication.client.cluster import Cluster
from replication.client.fetching import (
    EARLIEST,
    FETCH_BYTES,
    FIRST_FETCH_BYTES,
    LATEST,
    Fetched,
    FoundOffset,
    epoch_ends,
    fetch,
    fetch_of_epoch,
    list_offsets,
)
from replication.client.groups import Committed, commit, committed
from replication.client.local_replicas import local_replica
from replication.client.metadata import NO_EPOCH, TopicMetadata
from replication.client.producing import Producer, split
from replication.client.settings import TopicSettings, topic_settings
from replication.client.topics import BROKERS_DEFAULT, create_topic
from replication.model.cluster import TopicPartition
from replication.protocol.messages import Isolation

Found = TypeVar("Found")
logger = logging.getLogger(__name__)

UNACKNOWLEDGED_BYTES_MAX = 64 * 1024 * 1024
BATCH_BYTES = (
    1_000_000  # of a batch that is sent: below the limit that brokers have unless they are told otherwise
)


class Extent(NamedTuple):
    """Offsets [start, end) of a partition. No record in them has a later leader epoch; NO_EPOCH: not known."""

    start: int
    end: int
    leader_epoch: int = NO_EPOCH


class Sample(NamedTuple):
    """Some batches at the begin of a range: their size, and how many offsets they and the first one span."""

    size_bytes: int
    offsets: int
    first_batch_offsets: int


class KafkaClient:
    """See the module. Close it, or use it in a `with` block.

    Raises: InvalidConfigError: the addresses are none. No broker is asked before the first call.
    """

    def __init__(self, bootstrap: str, *, client_id: str = "pylog", timeout_ms: int = 60_000) -> None:
        self._cluster = Cluster(bootstrap, client_id=client_id, timeout_ms=timeout_ms)
        self._timeout_ms = timeout_ms
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pylog-client", daemon=True)
        self._thread.start()
        self._producer: Producer | None = None
        self._turns = itertools.count()
        self._appending = threading.Lock()
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every connection. What was sent and not acknowledged may be appended, or not."""
        if not self._is_closed:
            self._is_closed = True
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @property
    def where(self) -> str:
        """The bootstrap addresses."""
        return self._cluster.where

    # ---------------------------------------------------------------- metadata

    def topics(self) -> dict[str, TopicMetadata]:
        """Every topic that may be seen, by name. Raises: UnreachableError."""
        return dict(self._run(self._cluster.topics()))

    def topic(self, name: str) -> TopicMetadata:
        """One topic as it is now. Raises: UnknownTopicError, UnreachableError."""
        return self._run(self._cluster.topic(name, is_fresh=True))

    def create_topic(
        self, name: str, *, partitions: int = 1, replicas: int = BROKERS_DEFAULT, **settings: str
    ) -> None:
        """Make a topic; settings by Kafka's names, `_` for a dot. Raises: as `topics.create_topic`."""
        named = {key.replace("_", "."): value for key, value in settings.items()}
        self._run(create_topic(self._cluster, name, partitions=partitions, replicas=replicas, settings=named))

    def extents(self, topic: str, *, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> dict[int, Extent]:
        """First and next offset of every partition, as a reader of this isolation sees them.

        Raises: UnknownTopicError, UnreachableError, KafkaError.
        """
        return self._run(self._extents(topic, isolation))

    def offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> dict[TopicPartition, FoundOffset]:
        """As `fetching.list_offsets`."""
        return self._run(list_offsets(self._cluster, wanted, isolation=isolation))

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """As `fetching.epoch_ends`."""
        return self._run(epoch_ends(self._cluster, epochs))

    # ------------------------------------------------------------------ groups

    def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Committed]:
        """As `groups.committed`."""
        return self._run(committed(self._cluster, group, partitions))

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, Committed], *, timeout_ms: int | None = None
    ) -> None:
        """As `groups.commit`, for a group that has no members; `timeout_ms` if it is less than the client's.

        Raises: as that; TimeoutError: it was not answered in `timeout_ms`, and may be stored all the same.
        """

        async def bounded() -> None:
            try:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    await commit(self._cluster, group, offsets)
            except TimeoutError:
                raise TimeoutError(
                    f"the coordinator of group {group!r} did not answer in {timeout_ms} ms"
                ) from None

        self._run(bounded())

    # ----------------------------------------------------------------- records

    def read(  # noqa: PLR0913  each of them is one choice of the caller
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        columns: Sequence[str] | None = None,
        isolation: Isolation = Isolation.READ_COMMITTED,
        fetch_bytes: int = FETCH_BYTES,
        short_circuit: bool = False,
        leader_epoch: int = NO_EPOCH,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records with start <= offset < end, in the columns of `RECORD_SCHEMA` or these of them.

        One answer of about `fetch_bytes` is asked for ahead, so memory is bounded by a few of them. CRCs are checked.
        `short_circuit`: the files of a leader that runs on this machine are read instead; see `local_replicas`.
        `leader_epoch` is that of the extent that `end` is from: later records in their place are told.

        Raises: OffsetOutOfRangeError, TruncatedError, CorruptLogError, UnknownTopicError, UnreachableError, KafkaError;
        InvalidRequestError: an unknown column.
        """
        names = schema_of(columns).names  # an unknown one is told before anything is asked
        tp = TopicPartition(topic, partition)
        is_local = short_circuit and start < end
        if is_local and (
            replica := self._run(local_replica(self._cluster, tp, end, isolation, leader_epoch))
        ):
            try:
                for rows, next_offset in replica.read(start, end, names, isolation):
                    start = next_offset
                    yield rows
                return
            except (PylogError, OSError) as error:
                logger.warning("tp=%s offset=%d is read over the network from here on: %s", tp, start, error)

        def ask(offset: int, max_bytes: int) -> Future[Fetched]:
            bounds = {"isolation": isolation, "max_bytes": max_bytes}
            asked = fetch_of_epoch(leader_epoch, self._cluster, tp, offset, end, **bounds)
            return asyncio.run_coroutine_threadsafe(asked, self._loop)

        coming = ask(start, min(FIRST_FETCH_BYTES, fetch_bytes)) if start < end else None
        try:
            while coming is not None:
                found = coming.result()
                coming = ask(found.next_offset, fetch_bytes) if found.next_offset < end else None
                where = (f"{topic}-{partition} at {self.where}", 0)
                for part in found.parts:
                    for rows in decode_pieces(part, start=start, end=end, columns=columns, where=where):
                        if rows.num_rows:
                            yield rows
        finally:
            if coming is not None:
                coming.cancel()

    def sample(self, topic: str, partition: int, start: int, end: int, *, max_bytes: int) -> Sample:
        """The size of the first batches of a range, at least one. Raises: as `read`."""
        asked = fetch(self._cluster, TopicPartition(topic, partition), start, end, max_bytes=max_bytes)
        found = self._run(asked) if start < end else Fetched((), end)
        headers = [header for part in found.parts for _, header in batches(part)]
        if not headers:
            return Sample(0, end - start, 0)
        size_bytes = sum(map(len, found.parts))
        return Sample(
            size_bytes, headers[-1].next_offset - headers[0].base_offset, headers[0].next_offset - start
        )

    def append(
        self,
        topic: str,
        data: pa.Table | pa.RecordBatch,
        *,
        partitioner: str = "murmur3",
        compression: str | None = None,
    ) -> dict[int, Extent]:
        """Append rows with acks=all, each once; return the offsets that each partition's got, the first to the last.

        The columns are those of `LogStore.append`. Others may append between the batches of one call.

        Raises: InvalidRecordError, RecordTooLargeError (both before anything is sent), UnknownTopicError, KafkaError.
        """
        if not isinstance(data, pa.Table | pa.RecordBatch):
            raise InvalidRecordError(
                f"data is a {type(data).__name__}: it must be a pyarrow Table or RecordBatch"
            )
        metadata, settings = self._run(self._writable(topic))
        rows = Rows(data, now_ms=SYSTEM.clock.now_ms())
        rows.check(batch_bytes_max=settings.batch_bytes_max, keys_required=settings.is_compacted)
        if not metadata.leaders:
            raise InvalidRequestError(f"topic {topic!r} has no partitions at {self.where}")
        ids = partition_ids(rows, len(metadata.leaders), partitioner=partitioner, start=next(self._turns))
        codec = Codec.from_name(compression)
        sent: deque[_Sent] = deque()
        found: dict[int, Extent] = {}
        with self._appending:  # a partition's batches are sent in the order of their sequence numbers
            self._run(self._have_producer())
            try:
                for partition, order in group_by_partition(ids, len(metadata.leaders)):
                    tp = TopicPartition(topic, partition)
                    stamp = self._call(self._stamp, tp, len(order))
                    for buffer in encode(
                        rows,
                        order,
                        codec=codec,
                        batch_bytes=min(BATCH_BYTES, settings.batch_bytes_max),
                        batch_bytes_max=settings.batch_bytes_max,
                        producer=stamp,
                    ):
                        for batch, size in split(buffer):
                            sent.append(_Sent(partition, size, len(batch), self._call(self._send, tp, batch)))
                        while sum(each.size_bytes for each in sent) > UNACKNOWLEDGED_BYTES_MAX:
                            self._run(_acknowledged(sent, found))
            except PylogError as error:
                self._call(self._give_up, error)
                raise
        while sent:
            self._run(_acknowledged(sent, found))
        return found

    # ------------------------------------------------------------------ the loop

    async def _stop(self) -> None:
        if self._producer is not None:
            await self._producer.close()
        self._cluster.close()

    async def _extents(self, topic: str, isolation: Isolation) -> dict[int, Extent]:
        partitions = [
            TopicPartition(topic, p) for p in (await self._cluster.topic(topic, is_fresh=True)).leaders
        ]
        first, last = await asyncio.gather(
            list_offsets(self._cluster, dict.fromkeys(partitions, EARLIEST)),
            list_offsets(self._cluster, dict.fromkeys(partitions, LATEST), isolation=isolation),
        )
        return {
            tp.partition: Extent(
                first[tp].offset, max(first[tp].offset, last[tp].offset), last[tp].leader_epoch
            )
            for tp in partitions
        }

    async def _writable(self, topic: str) -> tuple[TopicMetadata, TopicSettings]:
        metadata = await self._cluster.topic(topic)
        return metadata, await topic_settings(self._cluster, topic)

    async def _have_producer(self) -> None:
        if self._producer is None or self._producer.has_failed:
            self._producer = await Producer.begin(self._cluster, timeout_ms=2 * self._timeout_ms)

    def _stamp(self, tp: TopicPartition, count: int) -> Any:
        assert self._producer is not None
        return self._producer.stamp(tp, count)

    def _send(self, tp: TopicPartition, data: memoryview) -> asyncio.Future[int]:
        assert self._producer is not None
        return self._producer.send(tp, data)

    def _give_up(self, error: PylogError) -> None:
        if self._producer is not None:
            self._producer.fail(error)

    def _run(self, what: Coroutine[Any, Any, Found]) -> Found:
        if self._is_closed:
            what.close()
            raise InvalidRequestError(f"the client of {self.where} is closed")
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()

    def _call(self, function: Any, *arguments: Any) -> Any:
        async def call() -> Any:
            return function(*arguments)

        return self._run(call())


class _Sent(NamedTuple):
    """A batch of so many records on its way."""

    partition: int
    records: int
    size_bytes: int
    done: asyncio.Future[int]


async def _acknowledged(sent: deque[_Sent], found: dict[int, Extent]) -> None:
    """Wait for the oldest batch, and note what it was given."""
    oldest = sent.popleft()
    base = await oldest.done
    if base >= 0:
        known = found.get(oldest.partition)
        found[oldest.partition] = Extent(known.start if known else base, base + oldest.records)
