"""KafkaClient: topics of a cluster as Arrow columns, for code without an event loop.

All calls may be made from any thread; they run in one event loop in a thread of the client's own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack

from logstore.config import setting_text
from logstore.errors import PylogError, TopicExistsError
from logstore.records.latest import check_view
from logstore.records.tables import Tabular
from logstore.schemas.registry import COLUMNS_OF_TOPICS
from logstore.store.reading import schema_of
from logstore.store.schemas import declare
from replication.client import transactions
from replication.client.blocking import Closing, Consumer, Producer, TransactionalProducer
from replication.client.client_loop import ClientLoop
from replication.client.cluster import Cluster
from replication.client.consumer import AsyncConsumer, ConsumerSettings, apart
from replication.client.fetching import (
    FETCH_BYTES,
    FIRST_FETCH_BYTES,
    Fetched,
    epoch_ends,
    extents,
    fetch,
    fetch_of_epoch,
    list_offsets,
    wait_for_more,
)
from replication.client.groups import Committed, commit, committed
from replication.client.latest import ClientPartition
from replication.client.local_replicas import local_replica
from replication.client.metadata import NO_EPOCH, Extent, TopicMetadata
from replication.client.producer import AsyncProducer, AsyncTransactionalProducer, ProducerSettings
from replication.client.registry_settings import RegistrySettings, registry_of
from replication.client.samples import SAMPLE_BYTES, Sample, sample_of
from replication.client.security import PLAINTEXT, Security, security_of
from replication.client.settings import alter_settings, settings_of, topic_overrides
from replication.client.topics import BROKERS_DEFAULT, add_partitions, create_topic, delete_topic
from replication.client.transactions import Pair, Transaction
from replication.client.typed import TypedConsumer
from replication.errors import KafkaError, UnsupportedVersionError
from replication.model.cluster import TopicPartition
from replication.protocol.messages import Isolation

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.schemas.choice import Typing
    from logstore.schemas.registry import Schemas
    from replication.client.share_consumer import ShareConsumer
    from replication.client.share_reading import Outcome

Arguments = ParamSpec("Arguments")
Found = TypeVar("Found")
TRANSACTION_TIMEOUT_MS = 60_000  # Kafka's default

__all__ = ["Isolation", "KafkaClient", "KafkaError", "Sample", "UnsupportedVersionError"]

logger = logging.getLogger(__name__)


def _waiting(
    call: Callable[Concatenate[Cluster, Arguments], Coroutine[Any, Any, Found]],
) -> Callable[Concatenate[KafkaClient, Arguments], Found]:
    """The same call, of a client: it runs in the client's loop, with its cluster, and is waited for."""

    @wraps(call)
    def run(self: KafkaClient, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Found:
        return self.run(call, *arguments, **named)

    return run


class KafkaClient(Closing):
    """See the module. Close it, or use it in a `with` block. With `rack` (client.rack) it reads near replicas.

    `security`: TLS and SASL, by the settings of `security.SETTINGS`. A failure there is an AuthenticationError.
    `schema_registry`: a registry with a REST API, by the settings of `registry_settings.SETTINGS`.

    Raises: InvalidConfigError: the addresses, `security` or `schema_registry` are wrong. No broker is asked before the
    first call.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "pylog",
        timeout_ms: int = 60_000,
        rack: str = "",
        security: Security | Mapping[str, str] = PLAINTEXT,
        schema_registry: RegistrySettings | Mapping[str, str] | None = None,
    ) -> None:
        self._security = security if isinstance(security, Security) else security_of(security)
        self._cluster = Cluster(
            bootstrap, client_id=client_id, timeout_ms=timeout_ms, rack=rack, security=self._security
        )
        self._rack = rack
        self._timeout_ms = timeout_ms
        self._loop = ClientLoop(self._cluster.where)
        self._run, self._ending = self._loop.run, self._loop.ending
        self._producer: AsyncProducer | None = None
        self._schemas: Schemas | None = None
        if schema_registry:
            from replication.client.schema_registry import RestSchemas

            if not isinstance(schema_registry, RegistrySettings):
                schema_registry = registry_of(schema_registry)
            self._schemas = RestSchemas(schema_registry)

    def __repr__(self) -> str:
        return f"KafkaClient({self.where!r}{', closed' * self._loop.is_closed})"

    def close(self) -> None:
        """End every connection. Records that were sent and not acknowledged may be appended, or not.

        Calls of other threads that wait raise InvalidRequestError.
        """
        self._loop.close(self._cluster.close)

    @property
    def where(self) -> str:
        """The bootstrap addresses."""
        return self._cluster.where

    @property
    def schemas(self) -> Schemas:
        """The schemas of the cluster: in its topic `_schemas`, or those of `schema_registry`."""
        if self._schemas is None:
            from replication.client.schemas import schemas_of

            self._schemas = schemas_of(self)
        return self._schemas

    # ---------------------------------------------------------------- metadata

    describe = _waiting(Cluster.describe)

    def topics(self) -> dict[str, TopicMetadata]:
        """Every topic that may be seen, by name. Raises: UnreachableError."""
        return dict(self.describe().topics)

    def topic(self, name: str) -> TopicMetadata:
        """One topic as it is now. Raises: UnknownTopicError, UnreachableError."""
        return self._run(self._cluster.topic(name, is_fresh=True))

    def create_topic(self, name: str, *, partitions: int = 1, replicas: int = BROKERS_DEFAULT, **settings: Any) -> None:
        """Make a topic; settings by Kafka's names, `_` for a dot; times of them may be timedeltas.

        Its columns are `schema`, `format`, `key_schema` and `key_format`, as for `LogStore.create_topic`.

        Raises: as `topics.create_topic`; InvalidRequestError: the columns are none, or do not fit those of before.
        """
        columns: Any = {key: settings.pop(key) for key in COLUMNS_OF_TOPICS & settings.keys()}
        if columns:
            if name in self.topics():
                raise TopicExistsError(name)
            declare(self.schemas, name, columns)
        dotted = {key.replace("_", "."): value for key, value in settings.items()}
        named = {key: setting_text(key, value) for key, value in dotted.items()}
        self._run(create_topic(self._cluster, name, partitions=partitions, replicas=replicas, settings=named))

    def cluster_id(self) -> str:
        """The id of the cluster; "" before Kafka 0.10.1. Raises: UnreachableError."""
        if self._cluster.metadata is None:
            self.topics()
        assert self._cluster.metadata is not None  # somebody has answered
        return self._cluster.metadata.cluster_id

    add_partitions = _waiting(add_partitions)
    delete_topic = _waiting(delete_topic)
    overrides = _waiting(topic_overrides)
    alter_settings = _waiting(alter_settings)
    extents = _waiting(extents)
    offsets = _waiting(list_offsets)
    epoch_ends = _waiting(epoch_ends)
    wait_for_more = _waiting(wait_for_more)

    # ------------------------------------------------------------------ groups

    committed = _waiting(committed)

    def commit(self, group: str, offsets: Mapping[TopicPartition, Committed], *, timeout_ms: int | None = None) -> None:
        """Forward to `groups.commit`, for a group without members; `timeout_ms` if it is less than the client's.

        Raises: as that; TimeoutError: no answer came within `timeout_ms`; the offsets may be stored all the same.
        """

        async def bounded() -> None:
            try:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    await commit(self._cluster, group, offsets)
            except TimeoutError:
                raise TimeoutError(f"the coordinator of group {group!r} did not answer in {timeout_ms} ms") from None

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
        view: Literal["latest"] | None = None,
        **typing: Unpack[Typing],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records with start <= offset < end, in the columns of `RECORD_SCHEMA` or these of them.

        One answer of about `fetch_bytes` is asked for ahead, so memory is bounded by a few of them. CRCs are checked.
        `short_circuit`: the files of a leader that runs on this machine are read instead; see `local_replicas`.
        `leader_epoch` is that of the extent that `end` is from: later records in their place are an error.
        With `schema` or `typed`, see `logstore.schemas.choice.Typing`, the rows have typed columns instead.
        `view="latest"` leaves the last record of each key up to `end`, as `LogStore.read`; `start` is the log's.

        Raises: OffsetOutOfRangeError, TruncatedError, CorruptLogError, UnknownTopicError, UnreachableError, KafkaError;
        InvalidRequestError: an unknown column; MisfitError, by mode FAILFAST.
        """
        check_view(view)
        options: dict[str, Any] = {"isolation": isolation, "fetch_bytes": fetch_bytes, "short_circuit": short_circuit}
        options["leader_epoch"] = leader_epoch
        if typing:
            from logstore.schemas.choice import chosen

            records = chosen(topic, typing, lambda: self.schemas, self.topic).only(columns)
            found = self.read(topic, partition, start, end, columns=records.stored, view=view, **options)
            yield from (records.decode(rows, topic, partition).rows for rows in found)
            return
        if view is not None:
            first = self.extents(topic, partitions=[partition])[partition].start
            whole = ClientPartition(self, topic, partition, options)
            yield from whole.latest(start, end, schema_of(columns).names, first)
            return
        names = schema_of(columns).names  # an unknown one fails before anything is asked
        tp = TopicPartition(topic, partition)
        is_local = short_circuit and start < end
        if is_local and (replica := self._run(local_replica(self._cluster, tp, end, isolation, leader_epoch))):
            try:
                for rows, next_offset in replica.read(start, end, names, isolation):
                    start = next_offset
                    yield rows
                return
            except (PylogError, OSError) as error:
                logger.warning("tp=%s offset=%d is read over the network from here on: %s", tp, start, error)

        from logstore.records.arrow import decode_pieces

        bounds: dict[str, Any] = {"isolation": isolation, "fetch_bytes": fetch_bytes}
        where = (f"{topic}-{partition} at {self.where}", 0)
        with closing(self.fetch(topic, partition, start, end, leader_epoch=leader_epoch, **bounds)) as answers:
            for part in (part for found in answers for part in found.parts):
                for rows in decode_pieces(part, start=start, end=end, columns=columns, where=where):
                    if rows.num_rows:
                        yield rows

    def fetch(  # noqa: PLR0913  as `read`
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        fetch_bytes: int = FETCH_BYTES,
        leader_epoch: int = NO_EPOCH,
    ) -> Generator[Fetched, None, None]:
        """Yield the batches of a range as the leader sends them, undecoded; arguments and errors of `read`."""

        def ask(offset: int, max_bytes: int) -> Future[Fetched]:
            bounds = {"isolation": isolation, "max_bytes": max_bytes}
            tp = TopicPartition(topic, partition)
            return self._loop.submit(fetch_of_epoch(leader_epoch, self._cluster, tp, offset, end, **bounds))

        coming = ask(start, min(FIRST_FETCH_BYTES, fetch_bytes)) if start < end else None
        try:
            while coming is not None:
                found = self._loop.result(coming)
                coming = ask(found.next_offset, fetch_bytes) if found.next_offset < end else None
                yield found
        finally:
            if coming is not None:
                coming.cancel()

    def sample(self, topic: str, partition: int, start: int, end: int, *, max_bytes: int = SAMPLE_BYTES) -> Sample:
        """The size of the first batches of a range, at least one. Raises: as `read`."""
        asked = fetch(self._cluster, TopicPartition(topic, partition), start, end, max_bytes=max_bytes)
        return sample_of(self._run(asked) if start < end else Fetched((), end), start, end)

    def append(
        self,
        topic: str,
        data: Tabular,
        *,
        partitioner: str = "murmur3",
        compression: str | None = None,
        **typing: Unpack[Typing],
    ) -> dict[int, Extent]:
        """Append rows with acks=all, each once; return the offsets that each partition's got, the first to the last.

        Rows, columns and `typing` are those of `LogStore.append`. Others may append between the batches of one call.

        Raises: InvalidRecordError, RecordTooLargeError (both before anything is sent), UnknownTopicError, KafkaError:
        some rows failed, and which ones is not known.
        """
        if typing:
            from logstore.schemas.choice import encoded

            data = encoded(topic, data, typing, lambda: self.schemas, self.topic)
        return self._run(self._append(topic, data, partitioner, compression))

    def producer(self, **settings: Any) -> Producer:
        """A producer of its own, with `ProducerSettings`. It ends with this client. Raises: InvalidConfigError."""
        producer = AsyncProducer(self._cluster, settings_of(ProducerSettings, settings, "a producer"))
        return Producer(producer, self._run, self._ending(producer.close))

    def consumer(
        self,
        topics: str | Sequence[str],
        group_id: str,
        *,
        on_assign: Callable[[frozenset[TopicPartition]], None] | None = None,
        on_revoke: Callable[[frozenset[TopicPartition]], None] | None = None,
        **settings: Any,
    ) -> Consumer:
        """A member of a group, with `ConsumerSettings`; `AsyncConsumer` says when it calls. It ends with this client.

        With `schema` or `typed` among the settings, see `logstore.schemas.choice.Typing`, it polls typed rows.

        Raises: InvalidConfigError.
        """
        from logstore.schemas.choice import Typing, chosen

        typing: Any = {name: settings.pop(name) for name in Typing.__annotations__ if name in settings}

        async def made() -> AsyncConsumer:
            return AsyncConsumer(
                self.where,
                [topics] if isinstance(topics, str) else topics,
                settings_of(ConsumerSettings, {"group_id": group_id, "rack": self._rack, **settings}, "a consumer"),
                on_assign=apart(on_assign),
                on_revoke=apart(on_revoke),
                security=self._security,
            )

        consumer = self._run(made())
        if typing:
            records_of = partial(chosen, typing=typing, schemas=lambda: self.schemas)
            return TypedConsumer(consumer, self._run, self._ending(consumer.close), records_of)
        return Consumer(consumer, self._run, self._ending(consumer.close))

    def share_consumer(
        self,
        topics: str | Sequence[str],
        group_id: str,
        *,
        on_acknowledged: Callable[[tuple[Outcome, ...]], None] | None = None,
        **settings: Any,
    ) -> ShareConsumer:
        """A member of a share group (KIP-932), with `ShareConsumerSettings`. It ends with this client.

        Its members acquire records of the same partitions, one by one, and acknowledge them. `on_acknowledged` is told
        what became of acknowledgements; without it the refused ones are logged.

        Raises: InvalidConfigError.
        """
        from replication.client.share_consumer import ShareConsumer, share_member

        names = [topics] if isinstance(topics, str) else topics
        given = {"group_id": group_id, "rack": self._rack, **settings}
        member = self._run(share_member(self.where, names, given, on_acknowledged, self._security))
        return ShareConsumer(member, self._run, self._ending(member.close))

    # ------------------------------------------------------------ transactions

    @contextmanager
    def transaction(
        self, transactional_id: str, *, timeout_ms: int = TRANSACTION_TIMEOUT_MS
    ) -> Iterator[TransactionalProducer]:
        """A transaction of this id: committed at the end of the `with` block, aborted if that raises.

        A producer that had one of the same id open before is fenced, and its transaction is aborted.

        Raises: as `init_producer` and `end_transaction`; KafkaError: rows were not appended, and all are aborted.
        """
        pair = self.init_producer(transactional_id, timeout_ms=timeout_ms).pair
        with self.transactional_producer(transactional_id, pair) as producer:
            try:
                yield producer
                producer.flush()
            except BaseException:
                with suppress(PylogError):  # the block's error counts; the transaction times out, or is ended already
                    self.end_transaction(transactional_id, pair, commits=False)
                raise
            if producer.partitions:
                self.end_transaction(transactional_id, pair, commits=True)

    def transactional_producer(self, transactional_id: str, pair: Pair) -> TransactionalProducer:
        """Appends to the transaction of this pair, which it neither begins nor ends. It ends with this client."""
        transaction = Transaction(transactional_id, pair)
        producer = AsyncTransactionalProducer(self._cluster, transaction, delivery_timeout_ms=2 * self._timeout_ms)
        return TransactionalProducer(producer, self._run, self._ending(producer.close))

    init_producer = _waiting(transactions.init_producer)
    end_transaction = _waiting(transactions.end_transaction)
    describe_transactions = _waiting(transactions.describe_transactions)
    list_transactions = _waiting(transactions.list_transactions)

    # ------------------------------------------------------------------ the loop

    def run(
        self,
        act: Callable[Concatenate[Cluster, Arguments], Coroutine[Any, Any, Found]],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Found:
        """Run `act` in the client's event loop, with its cluster and these arguments, and return the result."""
        return self._run(act(self._cluster, *arguments, **named))

    async def _append(self, topic: str, data: Tabular, partitioner: str, compression: str | None) -> dict[int, Extent]:
        if self._producer is None or self._producer.error is not None:
            settings = ProducerSettings(linger_ms=0, delivery_timeout_ms=2 * self._timeout_ms)
            self._producer = AsyncProducer(self._cluster, settings)
            self._ending(self._producer.close)
        return await (await self._producer.send(topic, data, partitioner=partitioner, compression_type=compression))
