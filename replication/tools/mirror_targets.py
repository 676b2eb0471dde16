"""The targets of copies: a directory, or a cluster.

Both know exactly how far a source was copied, however the last run ended. A directory keeps the number of the last
transaction, which is committed with the records. A cluster keeps an offset that is committed for a group at
checkpoints; the records behind it are compared with those that come again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow as pa

import logstore
from logstore.config import LogConfig
from logstore.env import SYSTEM
from logstore.errors import PylogError, UnknownTopicError
from logstore.store.reading import schema_of
from replication.client.fetching import LATEST
from replication.client.groups import Committed
from replication.client.kafka_client import Isolation, KafkaError
from replication.model.cluster import TopicPartition
from replication.tools.connecting import client_of

logger = logging.getLogger(__name__)

SETTINGS = frozenset(each.metadata["key"] for each in fields(LogConfig))
SETTLE_MS = 1000  # until records in flight from a killed run are appended, or lost with its connection
COPIED_COLUMNS = ["key", "value", "headers", "timestamp"]
CLIENT_ID = "pylog-mirror"
_COMPRESSION = "compression.type"


class MirrorError(PylogError):
    """Copying cannot go on; the copied records stay, and the next run continues behind them."""


class Unit(NamedTuple):
    """Records of a partition, in `COPIED_COLUMNS`, and the source's next offset behind them. There is at least one."""

    rows: pa.Table
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTopic:
    """`id` is "" where the source is older than Kafka 2.8."""

    name: str
    partitions: int
    replicas: int
    id: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


def _known(topic: SourceTopic) -> dict[str, str]:
    """Return the settings of a topic that pylog has, and say which ones are left out."""
    if unknown := sorted(topic.settings.keys() - SETTINGS):
        logger.warning("topic %s: the target does not know %s, and the copy is without", topic.name, ", ".join(unknown))
    return {key: value for key, value in topic.settings.items() if key in SETTINGS}


def recreated(name: object) -> MirrorError:
    return MirrorError(f"{name} was recreated in the source since it was copied; delete the copy to begin again")


def _check_same(tp: TopicPartition, copied: str, now: str) -> None:
    """Raise MirrorError if the ids say that the copied topic of the source is not the one that there is now.

    A copy that an earlier release made knows no id.
    """
    if copied and now and copied != now:
        raise recreated(tp)


class MirrorTarget(Protocol):
    def prepare(self, topic: SourceTopic) -> bool:
        """Make sure that the topic has at least this many partitions; True if it was created."""

    def positions(self, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the next offset of the source per partition; the given one where nothing was copied.

        The topics were prepared. Raises: MirrorError: another topic of that name was copied.
        """

    def append(self, units: Mapping[TopicPartition, Unit]) -> None:
        """Append these behind the former ones; on return they are durable, and never requested again."""

    def close(self) -> None: ...


class DirectoryTarget:
    """A stand-alone directory. Every append to a partition is a transaction numbered by the source's next offset.

    The run of a transaction ends with the id of the source's topic.
    Two simultaneous runs do no harm: the later one ends the other.
    """

    def __init__(self, path: Path, source: str) -> None:
        self._store = logstore.open(path)
        self._source = source
        self._run = uuid.uuid4().hex
        self._positions: dict[TopicPartition, int | None] = {}
        self._ids: dict[str, str] = {}

    def prepare(self, topic: SourceTopic) -> bool:
        self._ids[topic.name] = topic.id
        try:
            known = self._store.topic(topic.name)
        except UnknownTopicError:
            self._store.create_topic(topic.name, partitions=topic.partitions, config=_known(topic))
            return True
        if known.partitions < topic.partitions:
            self._store.alter_topic(topic.name, partitions=topic.partitions)
        return False

    def positions(self, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        state = self._store.transactions.state()
        for tp in starts:
            last = state.last_of(self._name(tp))
            if last is not None:
                _check_same(tp, last.run.partition(" ")[2], self._ids[tp.topic])
            self._positions[tp] = None if last is None else last.batch_id
        return {tp: starts[tp] if known is None else known for tp, known in self._positions.items()}

    def append(self, units: Mapping[TopicPartition, Unit]) -> None:
        for tp, (rows, end) in units.items():
            name = self._name(tp)
            run = f"{self._run} {self._ids[tp.topic]}".rstrip()
            with self._store.transactions.begin(name, end, run=run) as transaction:
                self._store.append(tp.topic, _placed(rows, tp.partition), transaction=transaction)
                # A run that registers later ends this transaction, so none can come between this check and its commit.
                if self._store.transactions.last_batch(name) != self._positions[tp]:
                    raise MirrorError(f"{tp} is copied here by another run, too")
            self._positions[tp] = end

    def close(self) -> None:
        self._store.close()

    def _name(self, tp: TopicPartition) -> str:
        return f"mirror {self._source} {tp} {self._store.topic(tp.topic).topic_id}"


def _placed(rows: pa.Table, partition: int) -> pa.Table:
    return rows.append_column("partition", pa.repeat(pa.scalar(partition, pa.int32()), len(rows)))


class ClusterTarget:
    """Another cluster. Nobody else may write to the copies: a run that finds foreign records behind its own ends.

    A group of the cluster holds, per partition, the end of the copy at the last checkpoint, and as the metadata of
    that offset how far the source was copied then, and the id of its topic.
    """

    def __init__(self, bootstrap: str, source: str, properties: Mapping[str, str]) -> None:
        self._source = source
        self._client = client_of(bootstrap, properties, client_id=CLIENT_ID, more=(_COMPRESSION,))
        self._compression = properties.get(_COMPRESSION)
        self._group = f"pylog-mirror-{source}"
        self._ends: dict[TopicPartition, int] = {}
        self._ahead: dict[TopicPartition, pa.Table] = {}
        self._ids: dict[str, str] = {}

    def prepare(self, topic: SourceTopic) -> bool:
        self._ids[topic.name] = topic.id
        cluster = self._client.describe()
        if cluster.cluster_id == self._source:
            raise MirrorError(f"{self._client.where} is the cluster that is copied: name another one, or a directory")
        found = cluster.topics.get(topic.name)
        if found is None:
            replicas = min(topic.replicas, len(cluster.brokers))
            settings = dict(topic.settings)
            if int(settings.get("min.insync.replicas", 1)) > replicas:
                del settings["min.insync.replicas"]
            self._create(topic, replicas, settings)
            return True
        if len(found.leaders) < topic.partitions:
            self._client.add_partitions(topic.name, topic.partitions)
        return False

    def _create(self, topic: SourceTopic, replicas: int, settings: Mapping[str, str]) -> None:
        """Create the topic with all settings of the source; with those that pylog knows, where others are refused."""
        make: Callable[..., None] = partial(
            self._client.create_topic, topic.name, partitions=topic.partitions, replicas=replicas
        )
        try:
            make(**settings)
        except KafkaError as error:
            if error.code.name != "INVALID_CONFIG" or settings.keys() <= SETTINGS:
                raise
            make(**_known(replace(topic, settings=settings)))

    def positions(self, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        SYSTEM.clock.sleep_ms(SETTLE_MS)
        copied = self._client.committed(self._group, starts)
        found = dict(starts)
        for tp, known in copied.items():
            position, _, topic_id = (known.metadata or "0").partition(" ")
            _check_same(tp, topic_id, self._ids[tp.topic])
            found[tp] = int(position)
        for tp, end in self._client.offsets(dict.fromkeys(starts, LATEST)).items():
            known = copied.get(tp, Committed(end.offset))
            if known.offset > end.offset:
                raise MirrorError(
                    f"{tp} ends at {end.offset} in the target, and the last copy ended at {known.offset}: it was "
                    f"recreated; delete the group {self._group!r} to begin again"
                )
            self._ends[tp] = end.offset
            self._ahead[tp] = self._read(tp, known.offset, end.offset)
        self._checkpoint({tp: found[tp] for tp in starts if not len(self._ahead[tp])})
        return found

    def _read(self, tp: TopicPartition, start: int, end: int) -> pa.Table:
        isolation = Isolation.READ_UNCOMMITTED
        rows = self._client.read(*tp, start, end, columns=COPIED_COLUMNS, isolation=isolation)
        return pa.Table.from_batches(rows, schema_of(COPIED_COLUMNS))

    def append(self, units: Mapping[TopicPartition, Unit]) -> None:
        left: dict[str, list[pa.Table]] = {}
        for tp, unit in units.items():
            if len(rows := self._missing(tp, unit)):
                left.setdefault(tp.topic, []).append(_placed(rows, tp.partition))
        for topic, tables in left.items():
            try:
                extents = self._client.append(topic, pa.concat_tables(tables), compression=self._compression)
            except PylogError as error:
                raise MirrorError(f"the target: {error}") from error
            self._ends |= {TopicPartition(topic, p): extent.end for p, extent in extents.items()}
        # Until all records of the last run have come again, the checkpoint of that run holds.
        self._checkpoint({tp: unit.end for tp, unit in units.items() if not len(self._ahead[tp])})

    def _missing(self, tp: TopicPartition, unit: Unit) -> pa.Table:
        """Return the records that are not there yet. Raises: MirrorError: others are."""
        ahead = self._ahead[tp]
        count = min(len(ahead), len(unit.rows))
        if not unit.rows.slice(0, count).equals(ahead.slice(0, count)):
            raise MirrorError(
                f"{tp}: the target has records that were not copied among the last {len(ahead)} before offset "
                f"{self._ends[tp]}; others may not write there"
            )
        self._ahead[tp] = ahead.slice(count)
        return unit.rows.slice(count)

    def _checkpoint(self, copied: Mapping[TopicPartition, int]) -> None:
        try:
            self._client.commit(
                self._group,
                {
                    tp: Committed(self._ends[tp], metadata=f"{position} {self._ids[tp.topic]}".rstrip())
                    for tp, position in copied.items()
                },
            )
        except PylogError as error:
            raise MirrorError(f"the position of the copy cannot be stored: {error}") from error

    def close(self) -> None:
        self._client.close()
