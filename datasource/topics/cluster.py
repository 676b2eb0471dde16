"""ClusterTopics: the topics of a Kafka cluster, as Spark's readers and writers see them.

A Python worker of Spark serves many tasks, so clients stay open between them, in this module.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from datasource.topics.interface import BATCH_BYTES, NO_EPOCH, LedRange, PartitionRange, TransactionSettings
from logstore import OffsetRange, PylogError, TopicInfo
from logstore.config import INT64_MAX, Isolation
from logstore.errors import CorruptLogError, OffsetOutOfRangeError, TopicExistsError, UnreadableBatchError
from logstore.records.batch import InvalidBatchError, header_at
from logstore.records.counting import Range, count, offsets_in
from logstore.tools.verify import Place
from replication.client.admin import is_pylog
from replication.client.fetching import LATEST
from replication.client.group_admin import describe_group
from replication.client.groups import Committed
from replication.client.kafka_client import KafkaClient, Sample
from replication.client.metadata import TopicMetadata
from replication.client.registry_settings import RegistrySettings
from replication.client.security import PLAINTEXT, Security
from replication.client.settings import topic_settings
from replication.model.cluster import TopicPartition
from replication.model.times import TimeMs
from replication.protocol.messages import Isolation as Level

if TYPE_CHECKING:
    import pyarrow as pa

    from datasource.topics.transactions.batches import ClusterPart, ClusterTransactions
    from logstore.schemas.registry import Schemas

CLIENTS_MAX = 8
COMMIT_TIMEOUT_MS = 5_000  # a query waits for it, and can do without it

Found = TypeVar("Found")
_LEVELS = {"read_committed": Level.READ_COMMITTED, "read_uncommitted": Level.READ_UNCOMMITTED}


class ClusterTopics:
    """See `ReadableTopics` and `WritableTopics`. Errors are those of `logstore.errors` and `KafkaError`."""

    def __init__(
        self, client: KafkaClient, isolation: Isolation = "read_committed", *, short_circuit: bool = False
    ) -> None:
        self._client = client
        self._short_circuit = short_circuit
        self._level = _LEVELS[isolation]
        self._asked: set[str] = set()  # topics that were appended to

    @property
    def identity(self) -> str:
        return f"kafka:{self._client.cluster_id()}"

    @property
    def schemas(self) -> Schemas:
        return self._client.schemas

    def is_pylog(self) -> bool:
        return self._client.run(is_pylog)

    def topics(self) -> list[TopicInfo]:
        """Every topic that may be seen, by name; those of Kafka itself only if they are named."""
        return [_info(topic) for _, topic in sorted(self._client.topics().items()) if not topic.is_internal]

    def topic(self, name: str) -> TopicInfo:
        return _info(self._client.topic(name))

    def is_compacted(self, name: str) -> bool:
        return self._client.run(lambda cluster: topic_settings(cluster, name)).is_compacted

    def make(self, name: str, settings: Mapping[str, str]) -> None:
        more: dict[str, Any] = dict(settings)
        if name not in self._client.topics():
            with suppress(TopicExistsError):
                self._client.create_topic(name, **more)

    def offsets(self, topic: str) -> dict[int, LedRange]:
        return {p: LedRange(*e) for p, e in self._client.extents(topic, isolation=self._level).items()}

    def extent(self, topic: str, partition: int) -> LedRange:
        return LedRange(*self._client.extents(topic, isolation=self._level, partitions=[partition])[partition])

    def wait_for_more(self, ends: Mapping[str, Mapping[int, int]], wait_ms: int) -> bool:
        asked = {TopicPartition(topic, p): end for topic, parts in ends.items() for p, end in parts.items()}
        try:
            return self._client.wait_for_more(asked, wait_ms=wait_ms, isolation=self._level)
        except PylogError:
            return True

    def epoch_ends(self, topic: str, epochs: Mapping[int, int]) -> dict[int, int]:
        asked = {TopicPartition(topic, p): epoch for p, epoch in epochs.items()}
        return {tp.partition: end for tp, end in self._client.epoch_ends(asked).items()}

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        tp = TopicPartition(topic, partition)
        found = self._client.offsets({tp: TimeMs(timestamp_ms)}, isolation=self._level)[tp]
        return None if found.offset < 0 else found.offset

    def floor_batch(self, r: PartitionRange, offset: int) -> int:
        """`offset` itself: where batches begin is not asked for, and a batch that is cut is read twice."""
        return offset

    def size_bytes(self, r: PartitionRange) -> int:
        """Size as stored, by the size of its first batches."""
        return self._sample(r).bytes_of(r.count)

    def offset_after_bytes(self, r: PartitionRange, max_bytes: int) -> int:
        """End of about `max_bytes` from the start of `r`, by the size of its first batches; beyond one batch."""
        stored = self._sample(r)
        count = stored.offsets_of(max_bytes)
        return r.end if count is None else min(r.end, r.start + max(stored.first_batch_offsets, count))

    def offset_before_bytes(self, r: PartitionRange, max_bytes: int) -> int:
        """Start of about the last `max_bytes` of `r`, by the size of its first batches."""
        count = self._sample(r).offsets_of(max_bytes)
        return r.start if count is None else max(r.start, r.end - max(1, count))

    def _sample(self, r: PartitionRange) -> Sample:
        """The first batches of what is there of a range. A read of the range raises for records that are gone."""
        try:
            return self._client.sample(r.topic, r.partition, r.start, r.end)
        except OffsetOutOfRangeError:
            start = max(r.start, min(r.end, self.extent(r.topic, r.partition).start))
            return self._client.sample(r.topic, r.partition, start, r.end)

    def read(self, r: PartitionRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The records of `r`, a few MiB at a time."""
        yield from self._client.read(
            r.topic,
            r.partition,
            r.start,
            r.end,
            columns=columns,
            isolation=self._level,
            fetch_bytes=BATCH_BYTES,
            short_circuit=self._short_circuit,
            leader_epoch=r.leader_epoch,
        )

    def count(self, r: PartitionRange) -> int:
        """How many records `read` yields: the batches come from the leader, and their headers are counted.

        With `short_circuit` the offsets are read, from the leader's files where those are here.
        """
        if self._short_circuit:
            return sum(rows.num_rows for rows in self.read(r, ["offset"]))
        bounds: dict[str, Any] = {"isolation": self._level, "fetch_bytes": BATCH_BYTES, "leader_epoch": r.leader_epoch}
        where = f"{r.topic}-{r.partition} at {self._client.where}"
        with closing(self._client.fetch(r.topic, r.partition, r.start, r.end, **bounds)) as answers:
            return sum(_count(part, Range(r.start, r.end), where) for found in answers for part in found.parts)

    def verify(self, topic: str, partition: int) -> tuple[int, list[Place]]:
        """Fetch all of a partition from its leader; return the stored bytes, and what is damaged.

        CRCs, offsets and the bounds of records are checked. Behind a batch whose header is damaged nothing is read.

        Raises: KafkaError (the leader does not give it), UnknownTopicError, UnreachableError.
        """
        extent = self.extent(topic, partition)
        begin, size_bytes, damage = extent.start, 0, list[Place]()
        while begin < extent.end:
            try:
                for found in self._client.fetch(topic, partition, begin, extent.end):
                    size_bytes += sum(map(len, found.parts))
                    where = f"{topic}-{partition} as its leader sends it from offset {begin} on"
                    damage += (place for part in found.parts for place in _damage(part, where))
                    begin = found.next_offset
            except OffsetOutOfRangeError:
                if (start := self.extent(topic, partition).start) <= begin:
                    raise
                begin = start  # retention has deleted more meanwhile
            except CorruptLogError as error:
                damage.append((error.path, error.position, error.reason))
                break
        return size_bytes, damage

    def settled(self, look: Callable[[], Found]) -> Found:
        """Return the result of `look`: each partition by itself, up to its last stable offset."""
        return look()

    def transactions(self, settings: TransactionSettings) -> ClusterTransactions:
        from datasource.topics.transactions.batches import ClusterTransactions

        return ClusterTransactions(self._client, settings)

    def append(
        self,
        topic: str,
        rows: pa.Table,
        *,
        partitioner: str,
        compression: str | None,
        transaction: ClusterPart | None,
    ) -> dict[int, OffsetRange]:
        """Append rows, acknowledged by all in-sync replicas; return the offsets that they got."""
        if topic not in self._asked:  # the client outlives tasks, and a topic may have been made again since
            self._client.topic(topic)
            self._asked.add(topic)
        if transaction is not None:
            return transaction.append(topic, rows, partitioner=partitioner, compression=compression)
        done = self._client.append(topic, rows, partitioner=partitioner, compression=compression)
        return {p: OffsetRange(extent.start, extent.end) for p, extent in done.items()}

    def flush(self) -> None:
        """Nothing: `append` returns when all in-sync replicas have the rows."""


class GroupPositions:
    """The committed offsets of a group, as a query reads and writes them. Errors: KafkaError, UnreachableError."""

    def __init__(self, client: KafkaClient, group: str) -> None:
        self._client = client
        self._group = group

    def committed(self) -> dict[str, dict[int, Committed]]:
        """Topic -> partition -> the next offset to read, of all that the group has any for."""
        found: dict[str, dict[int, Committed]] = {}
        for tp, each in self._client.committed(self._group).items():
            found.setdefault(tp.topic, {})[tp.partition] = each
        return found

    def commit(self, offsets: Mapping[str, Mapping[int, int]], epochs: Mapping[str, Mapping[int, int]]) -> None:
        """Store these, with the leader epochs that are known, in at most COMMIT_TIMEOUT_MS."""
        wanted = {
            TopicPartition(topic, p): Committed(offset, epochs.get(topic, {}).get(p, NO_EPOCH))
            for topic, parts in offsets.items()
            for p, offset in parts.items()
        }
        self._client.commit(self._group, wanted, timeout_ms=COMMIT_TIMEOUT_MS)

    def behind(self) -> dict[str, dict[int, int]]:
        """How many records each partition has that the group has not committed; of partitions with a commit.

        Raises: KafkaError: there is no such group.
        """
        there, committed = self._client.topics(), self.committed()
        if not committed:  # a group that never was has none either
            self._client.run(describe_group, self._group)
        position = {topic: parts for topic, parts in committed.items() if topic in there}
        ends = self._client.offsets({TopicPartition(t, p): LATEST for t, parts in position.items() for p in parts})
        return {
            t: {p: max(0, ends[TopicPartition(t, p)].offset - each.offset) for p, each in parts.items()}
            for t, parts in position.items()
        }


_clients: dict[tuple[int, str, str, Security, RegistrySettings | None], KafkaClient] = {}
_mutex = threading.Lock()


def client_of(
    bootstrap: str, rack: str = "", security: Security = PLAINTEXT, registry: RegistrySettings | None = None
) -> KafkaClient:
    """Return this process's client of the cluster. Raises: InvalidConfigError."""
    key = os.getpid(), bootstrap, rack, security, registry
    with _mutex:
        client = _clients.pop(key, None) or KafkaClient(
            bootstrap, client_id="pylog-spark", rack=rack, security=security, schema_registry=registry
        )
        _clients[key] = client
        while len(_clients) > CLIENTS_MAX:
            _clients.pop(next(iter(_clients))).close()
    return client


def _damage(part: memoryview, where: str) -> list[Place]:
    """Each of these batches that cannot be decoded, up to the first other damage."""
    from logstore.records.arrow import decode_pieces

    found, at = list[Place](), 0
    while at < len(part):
        try:
            for _ in decode_pieces(part[at:], start=0, end=INT64_MAX, columns=["offset"], where=(where, at)):
                pass
            break
        except CorruptLogError as error:
            found.append((error.path, error.position, error.reason))
            if not isinstance(error, UnreadableBatchError):
                break
            at = error.position + header_at(part, error.position).size_bytes
    return found


def _count(part: memoryview, wanted: Range, where: str) -> int:
    """How many records of a range these batches hold. Raises: CorruptLogError."""

    def decoded(at: int, size: int) -> int:
        return offsets_in(part[at : at + size], wanted, (where, at))

    try:
        return count(part, wanted, decoded).records
    except InvalidBatchError as error:
        raise CorruptLogError(where, error.position, error.reason) from error


def _info(topic: TopicMetadata) -> TopicInfo:
    return TopicInfo.of(topic.name, topic.id, len(topic.leaders), {})
