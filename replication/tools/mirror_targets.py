"""The targets of copies: a directory, or a cluster.

Both know exactly how far a source was copied, however the last run ended. A directory keeps the number of the last
transaction, which is committed with the records. A cluster keeps an offset that is committed for a group at
checkpoints; the records behind it are compared with those that come again.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

import logstore
from logstore.env import SYSTEM
from logstore.errors import PylogError, UnknownTopicError

logger = logging.getLogger(__name__)

Partition = tuple[str, int]

TIMEOUT_S = 30.0
SETTLE_MS = 1000  # until records in flight from a killed run are appended, or lost with its connection
RETRY_MS = 100
LARGEST_MESSAGE_BYTES = 100_000_000

_PASSING = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class MirrorError(PylogError):
    """Copying cannot go on; the copied records stay, and the next run continues behind them."""


class Record(NamedTuple):
    """The copied parts of a record. `timestamp_ms` None: it has none."""

    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @classmethod
    def of(cls, message: Message) -> Record:
        _, timestamp_ms = message.timestamp()
        offset = message.offset()
        assert offset is not None, "it was fetched"
        headers: Any = message.headers() or ()
        if isinstance(headers, Mapping):
            headers = headers.items()
        value: Any = message.value()
        key: Any = message.key()
        return cls(offset, timestamp_ms if timestamp_ms >= 0 else None, key, value, tuple(headers))

    @property
    def size_bytes(self) -> int:
        return len(self.key or b"") + len(self.value or b"") + sum(len(v or b"") for _, v in self.headers)

    def is_copied_as(self, copy: Record) -> bool:
        """Return whether the other record is its copy; a record without a timestamp was given one."""
        return self[2:] == copy[2:] and self.timestamp_ms in {None, 0, copy.timestamp_ms}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTopic:
    name: str
    partitions: int
    replicas: int
    settings: Mapping[str, str] = field(default_factory=dict)


class MirrorTarget(Protocol):
    def prepare(self, topic: SourceTopic) -> bool:
        """Make sure that the topic has at least this many partitions; True if it was created."""
        ...

    def positions(self, starts: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return the next offset of the source per partition; the given one where nothing was copied."""
        ...

    def append(self, records: Mapping[Partition, Sequence[Record]]) -> None:
        """Append these behind the former ones; on return they are durable, and never requested again."""
        ...

    def close(self) -> None: ...


class DirectoryTarget:
    """A stand-alone directory. Every append to a partition is a transaction numbered by the source's next offset.

    Two simultaneous runs do no harm: the later one ends the other.
    """

    def __init__(self, path: Path, source: str) -> None:
        self._store = logstore.open(path)
        self._source = source
        self._run = uuid.uuid4().hex
        self._positions: dict[Partition, int | None] = {}

    def prepare(self, topic: SourceTopic) -> bool:
        try:
            known = self._store.topic(topic.name)
        except UnknownTopicError:
            self._store.create_topic(topic.name, partitions=topic.partitions, config=topic.settings)
            return True
        if known.partitions < topic.partitions:
            self._store.alter_topic(topic.name, partitions=topic.partitions)
        return False

    def positions(self, starts: Mapping[Partition, int]) -> dict[Partition, int]:
        self._positions = {p: self._store.transactions.last_batch(self._name(p)) for p in starts}
        return {p: starts[p] if known is None else known for p, known in self._positions.items()}

    def append(self, records: Mapping[Partition, Sequence[Record]]) -> None:
        for partition, rows in records.items():
            name, end = self._name(partition), rows[-1].offset + 1
            with self._store.transactions.begin(name, end, run=self._run) as transaction:
                self._store.append(partition[0], _table(rows, partition[1]), transaction=transaction)
                # A run that registers later ends this transaction, so none can come between this check and its commit.
                if self._store.transactions.last_batch(name) != self._positions[partition]:
                    raise MirrorError(f"{partition[0]}-{partition[1]} is copied here by another run, too")
            self._positions[partition] = end

    def close(self) -> None:
        self._store.close()

    def _name(self, partition: Partition) -> str:
        topic, number = partition
        return f"mirror {self._source} {topic}-{number} {self._store.topic(topic).topic_id}"


def _table(records: Sequence[Record], partition: int) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([r.key for r in records], pa.binary()),
            "value": pa.array([r.value for r in records], pa.binary()),
            "timestamp": pa.array([r.timestamp_ms for r in records], pa.int64()),
            "headers": pa.array(
                [[{"key": k, "value": v} for k, v in r.headers] or None for r in records], _HEADERS
            ),
            "partition": pa.array([partition] * len(records), pa.int32()),
        }
    )


class ClusterTarget:
    """Another cluster. Nobody else may write to the copies: a run that finds foreign records behind its own ends.

    A group of the cluster holds, per partition, the end of the copy at the last checkpoint, and as the metadata of
    that offset how far the source was copied then.
    """

    def __init__(self, bootstrap: str, source: str, properties: Mapping[str, str]) -> None:
        self._source = source
        shared: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0, **properties}
        produce = {"acks": "all", "enable.idempotence": True, "message.max.bytes": LARGEST_MESSAGE_BYTES}
        self._producer = Producer({**produce, **shared})
        names = {"group.id": f"pylog-mirror-{source}", "enable.auto.commit": False}
        self._group: dict[str, Any] = {
            **shared,
            **names,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
        self._consumer = Consumer(self._group)
        self._admin = AdminClient(shared)
        self._ends: dict[Partition, int] = {}
        self._ahead: dict[Partition, deque[Record]] = {}
        self._errors: list[str] = []

    def prepare(self, topic: SourceTopic) -> bool:
        known = self._admin.list_topics(timeout=TIMEOUT_S)
        if getattr(known, "cluster_id", None) == self._source:
            raise MirrorError(
                f"{self._group['bootstrap.servers']} is the cluster that is copied: name another one, or a directory"
            )
        found = known.topics.get(topic.name)
        if found is None:
            replicas = min(topic.replicas, len(known.brokers))
            settings = dict(topic.settings)
            if int(settings.get("min.insync.replicas", 1)) > replicas:
                del settings["min.insync.replicas"]
            wanted = NewTopic(topic.name, topic.partitions, replicas, config=settings)
            _wait(self._admin.create_topics([wanted], operation_timeout=TIMEOUT_S))
            return True
        if len(found.partitions) < topic.partitions:
            _wait(self._admin.create_partitions([NewPartitions(topic.name, topic.partitions)]))
        return False

    def positions(self, starts: Mapping[Partition, int]) -> dict[Partition, int]:
        SYSTEM.clock.sleep_ms(SETTLE_MS)
        found = {}
        for known in self._consumer.committed([TopicPartition(*p) for p in starts], timeout=TIMEOUT_S):
            partition = known.topic, known.partition
            self._ends[partition] = end = extent(self._consumer, known)[1]
            if known.offset < 0:
                found[partition] = starts[partition]
                continue
            if known.offset > end:
                raise MirrorError(
                    f"{known.topic}-{known.partition} ends at {end} in the target, and the last copy ended at "
                    f"{known.offset}: it was recreated; delete the group {self._group['group.id']!r} to begin again"
                )
            found[partition] = int(known.metadata or 0)
            self._ahead[partition] = deque(self._tail(known, end))
        fresh = [p for p in found if not self._ahead.get(p)]
        self._checkpoint({p: found[p] for p in fresh})
        return found

    def _tail(self, start: TopicPartition, end: int) -> Iterable[Record]:
        if start.offset >= end:
            return
        with closing(Consumer(self._group)) as consumer:
            consumer.assign([start])
            while True:
                message = consumer.poll(TIMEOUT_S)
                if message is None:
                    raise MirrorError(f"{start.topic}-{start.partition}: the target does not answer")
                if (error := message.error()) is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        return
                    raise MirrorError(f"{start.topic}-{start.partition}: {error.str()}")
                record = Record.of(message)
                yield record
                if record.offset >= end - 1:
                    return

    def append(self, records: Mapping[Partition, Sequence[Record]]) -> None:
        for partition, rows in records.items():
            for record in rows:
                if not self._is_there(partition, record):
                    self._produce(partition, record)
        left = self._producer.flush(TIMEOUT_S * 10)
        if self._errors or left:
            raise MirrorError(self._errors[0] if self._errors else f"{left} records were not acknowledged")
        # Until all records of the last run have come again, the checkpoint of that run holds.
        met = {p: rows[-1].offset + 1 for p, rows in records.items() if not self._ahead.get(p)}
        self._ends |= {p: extent(self._consumer, TopicPartition(*p))[1] for p in met}
        self._checkpoint(met)

    def _is_there(self, partition: Partition, record: Record) -> bool:
        ahead = self._ahead.get(partition)
        if not ahead:
            return False
        if not record.is_copied_as(ahead.popleft()):
            raise MirrorError(
                f"{partition[0]}-{partition[1]}: the target has records that were not copied from offset "
                f"{record.offset}; others may not write there"
            )
        return True

    def _produce(self, partition: Partition, record: Record) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self._errors.append(f"{partition[0]}-{partition[1]}: {error.str()}")

        while True:
            try:
                self._producer.produce(
                    partition[0], record.value, record.key, partition[1],
                    on_delivery=delivered, timestamp=record.timestamp_ms or 0, headers=list(record.headers),
                )  # fmt: skip
            except BufferError:
                self._producer.poll(1)
            else:
                self._producer.poll(0)
                return

    def _checkpoint(self, copied: Mapping[Partition, int]) -> None:
        offsets = [
            TopicPartition(topic, number, self._ends[topic, number], str(position))
            for (topic, number), position in copied.items()
        ]
        if not offsets:
            return
        for committed in self._consumer.commit(offsets=offsets, asynchronous=False) or ():
            if committed.error is not None:
                raise MirrorError(f"the position of the copy is not kept: {committed.error.str()}")

    def close(self) -> None:
        self._consumer.close()


def _wait(asked: Mapping[str, Any]) -> None:
    for name, future in asked.items():
        try:
            future.result(TIMEOUT_S)
        except KafkaException as error:
            raise MirrorError(f"topic {name!r}: {said(error)}") from error


def said(error: KafkaException) -> str:
    cause = error.args[0] if error.args else error
    return cause.str() if isinstance(cause, KafkaError) else str(cause)


def extent(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """Return the first offset and the end of a partition; waits for a new topic to be known, or for a leader."""
    until_ms = SYSTEM.clock.monotonic_ms() + TIMEOUT_S * 1000
    while True:
        try:
            return consumer.get_watermark_offsets(partition, timeout=TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() not in _PASSING or SYSTEM.clock.monotonic_ms() > until_ms:
                raise
            SYSTEM.clock.sleep_ms(RETRY_MS)
