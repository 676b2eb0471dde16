"""Transactions of a cluster for Spark's writers, without an event loop: see `BatchTransactions`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from datasource.topics.interface import Batch, Part, PreparedPart, TransactionSettings, quietly
from datasource.topics.transactions import protocol
from datasource.topics.transactions.state import Attempt, Decision
from datasource.topics.transactions.wire import ClusterBrokers, brokers_of
from logstore.env import SYSTEM
from logstore.errors import TransactionAbortedError
from logstore.store.reading import OffsetRange
from logstore.store.transactions.state import Content
from replication.client.blocking import TransactionalProducer
from replication.client.cluster import Cluster
from replication.client.kafka_client import KafkaClient
from replication.client.transactions import Pair

if TYPE_CHECKING:
    import pyarrow as pa

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedAttempt:
    """One task's part of a batch, in all in-sync replicas. `attempt` None: it wrote nothing.

    `rows` are counted per partition; `begun_ms` is when the transaction began; `offset` is where the state of the name
    was, and no later one is before it.
    """

    name: str
    batch_id: int
    run: str
    attempt: Attempt | None
    content: Content
    rows: Mapping[str, int]
    begun_ms: int
    offset: int | None


class ClusterTransactions:
    def __init__(self, client: KafkaClient, settings: TransactionSettings) -> None:
        self._client, self._settings = client, settings

    def claim(self, name: str | None, run: str) -> str:
        driver = self._settings.driver
        if name is None:
            return self.run(lambda brokers: protocol.lease(brokers, run, driver))
        self.run(lambda brokers: protocol.Name(brokers, name, run, driver).take_over())
        return name

    @contextmanager
    def begun(self, batch: Batch, task: tuple[int, int]) -> Iterator[Part]:
        part = ClusterPart(self, self._client, batch, task)
        try:
            yield part
        except BaseException:
            with quietly():
                part.abort()
            raise
        finally:
            part.close()

    def name_of(self, brokers: ClusterBrokers, batch: Batch) -> protocol.Name:
        """The `Name` for the run of this batch."""
        return protocol.Name(brokers, batch.name, batch.run, self._settings.driver)

    def commit(self, prepared: Sequence[PreparedPart], *, origin: str) -> None:
        parts = cast("Sequence[PreparedAttempt]", prepared)
        first, written = parts[0], [part for part in parts if part.attempt is not None]
        rows: Counter[str] = Counter()
        for part in written:
            rows.update(part.rows)
        wanted = Decision(
            batch_id=first.batch_id,
            content=sum((part.content for part in parts), Content()),
            origin=origin,
            rows=rows,
            attempts=tuple(sorted(part.attempt for part in written if part.attempt is not None)),
        )
        start = min((part.offset for part in parts if part.offset is not None), default=None)

        async def commit(brokers: ClusterBrokers) -> None:
            if not brokers.is_two_phase and written:
                self.check_in_time(min(part.begun_ms for part in written), wanted.attempts[0])
            await protocol.Name(brokers, first.name, first.run, self._settings.driver).commit(wanted)

        self.run(commit, start=start)

    def check_in_time(self, begun_ms: int, attempt: Attempt) -> None:
        """Raise TransactionAbortedError if a decided transaction could time out before it is committed."""
        age_ms = SYSTEM.clock.now_ms() - begun_ms
        if age_ms > self._settings.timeout_ms // 2:
            raise TransactionAbortedError(
                attempt.producer_id,
                attempt.epoch,
                f"its tasks took {age_ms / 1000:.0f} s, and these brokers abort it after transaction.timeout.ms = "
                f"{self._settings.timeout_ms / 1000:.0f} s: make batches smaller, or set a longer timeout",
            )

    def abort(self, batch: Batch, *, reason: str) -> None:
        self.run(lambda brokers: self.name_of(brokers, batch).abort(batch.batch_id))

    def release(self, name: str) -> None:
        """End what a driver that is gone for good left under a name: what it decided is committed, the rest aborted.

        Raises: KafkaError, UnreachableError, UnknownOutcomeError.
        """

        async def release(brokers: ClusterBrokers) -> None:
            run = (await brokers.read(name)).run
            await protocol.Name(brokers, name, run).abort(protocol.NO_BATCH)

        self.run(release)

    def run(self, act: Callable[[ClusterBrokers], Coroutine[Any, Any, Found]], *, start: int | None = None) -> Found:
        """Run `act` in the client's event loop, and return its result. The decision topic is read from `start` on."""
        settings = self._settings

        async def done(cluster: Cluster) -> Found:
            topic, timeout_ms = settings.decision_topic, settings.timeout_ms
            return await act(await brokers_of(cluster, topic, timeout_ms=timeout_ms, start=start))

        return self._client.run(done)


class ClusterPart:
    """The transaction of a task. It begins with the first rows: a task without rows asks nothing of anybody.

    A batch that is committed already is not written: its rows are counted and hashed.
    """

    def __init__(
        self, transactions: ClusterTransactions, client: KafkaClient, batch: Batch, task: tuple[int, int]
    ) -> None:
        self._transactions, self._client, self._batch, self._task = transactions, client, batch, task
        self._is_begun = False
        self._attempt: Attempt | None = None
        self._producer: TransactionalProducer | None = None
        self._content, self._rows = Content(), Counter[str]()
        self._begun_ms, self._offset = 0, cast("int | None", None)

    def append(
        self, topic: str, rows: pa.Table, *, partitioner: str, compression: str | None
    ) -> dict[int, OffsetRange]:
        """Append rows to the transaction; return the offsets that they got, none in a batch that is committed already.

        Raises: BatchConflictError, TransactionAbortedError: the batch is not wanted (any more); KafkaError.
        """
        if not self._is_begun:
            self._begin()
        digest = 0
        if not self._batch.is_once:
            from logstore.records.rows import Rows

            digest = Rows(rows, now_ms=0).digest(topic)
        self._content += Content(rows=rows.num_rows, digest=digest)
        if self._producer is None:
            return {}
        done = self._producer.append(topic, rows, partitioner=partitioner, compression=compression)
        self._rows.update({f"{topic}-{p}": extent.end - extent.start for p, extent in done.items()})
        return {p: OffsetRange(extent.start, extent.end) for p, extent in done.items()}

    def _begin(self) -> None:
        batch = self._batch

        async def begin(brokers: ClusterBrokers) -> tuple[Attempt | None, int | None]:
            name = self._transactions.name_of(brokers, batch)
            attempt = await name.begin(batch.batch_id, self._task, takes_over=not batch.is_claimed)
            return attempt, brokers.offset

        self._attempt, self._offset = self._transactions.run(begin)
        self._is_begun, self._begun_ms = True, SYSTEM.clock.now_ms()
        if self._attempt is not None:
            id, *pair = self._attempt
            self._producer = self._client.transactional_producer(id, Pair(*pair))

    def prepare(self) -> PreparedAttempt:
        if (producer := self._producer) is not None:
            producer.flush()
        return PreparedAttempt(
            name=self._batch.name,
            batch_id=self._batch.batch_id,
            run=self._batch.run,
            attempt=self._attempt,
            content=self._content,
            rows=dict(self._rows),
            begun_ms=self._begun_ms,
            offset=self._offset,
        )

    def abort(self) -> None:
        """End the transaction, if it has begun. Raises: KafkaError, UnreachableError."""
        attempt, producer = self._attempt, self._producer
        if attempt is not None and producer is not None and producer.partitions:
            self._transactions.run(lambda brokers: brokers.end([attempt], commits=False))

    def close(self) -> None:
        """Let go of the producer; the transaction goes on."""
        if (producer := self._producer) is not None:
            producer.close()
