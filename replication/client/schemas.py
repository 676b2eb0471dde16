"""The topic `_schemas` of a cluster: its leader judges each record, and a client that is refused reads on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from logstore.env import SYSTEM
from logstore.errors import OffsetOutOfRangeError, ReadOnlyStoreError, TopicExistsError, UnknownTopicError
from logstore.schemas.registry import COLUMNS, Found, Stored, TopicSchemas, rows_of, stored
from logstore.schemas.subjects import TOPIC, Record
from replication.client.admin import judges_schemas
from replication.client.fetching import TruncatedError
from replication.client.metadata import ClusterMetadata, Extent, TopicMetadata
from replication.errors import ErrorCode, KafkaError
from replication.protocol.messages import Isolation

if TYPE_CHECKING:
    import pyarrow as pa

REPLICAS_MAX = 3
WAIT_MS = 50  # for a record that is in the leader's log, and not committed yet


class _Client(Protocol):
    """The parts of a `KafkaClient` that are used here."""

    @property
    def where(self) -> str: ...
    def topic(self, name: str) -> TopicMetadata: ...
    def create_topic(self, name: str, *, partitions: int, replicas: int, cleanup_policy: str) -> None: ...
    def append(self, topic: str, data: Any) -> object: ...

    @property
    def extents(self) -> Callable[..., dict[int, Extent]]: ...
    @property
    def describe(self) -> Callable[[], ClusterMetadata]: ...
    @property
    def read(self) -> Callable[..., Iterator[pa.RecordBatch]]: ...
    @property
    def run(self) -> Callable[..., bool]: ...


def schemas_of(client: _Client) -> TopicSchemas:
    return TopicSchemas(ClusterTopic(client))


class ClusterTopic:
    """`logstore.schemas.registry.SchemaTopic`. Safe for threads."""

    if_unknown = "if the id is of a registry with a REST API, name that by schema.registry.url"

    def __init__(self, client: _Client) -> None:
        self.where = f"the cluster at {client.where}"
        self._client = client
        self._mutex = threading.RLock()
        self._topic_id = ""  # of the topic that was read last
        self._judges: frozenset[int] = frozenset()  # brokers that are known to judge
        self._refused_at = -1  # the end of the topic when a record was refused last

    def turn(self) -> AbstractContextManager[object]:
        return self._mutex

    def read(self, start: int) -> Found:
        try:
            topic_id = self._client.topic(TOPIC).id
            extent = self._client.extents(TOPIC, partitions=[0])[0]
        except UnknownTopicError:
            return Found(0, 0, ())
        is_same = topic_id == self._topic_id
        begin = start if is_same and start <= extent.end else 0
        self._topic_id = topic_id
        try:
            return Found(begin, extent.end, self._records(max(begin, extent.start), extent.end, extent.leader_epoch))
        except (TruncatedError, OffsetOutOfRangeError):  # an unclean election since then
            self._topic_id = ""
            return self.read(0)

    def _records(self, start: int, end: int, leader_epoch: int) -> list[Stored]:
        options: dict[str, Any] = {"isolation": Isolation.READ_UNCOMMITTED, "leader_epoch": leader_epoch}
        found = self._client.read(TOPIC, 0, start, end, columns=COLUMNS, **options)
        return [record for rows in found for record in stored(rows.to_pylist())]

    def append(self, records: Sequence[Record], end: int) -> bool:
        brokers = self._check_judges()
        if end == 0:
            with suppress(TopicExistsError):
                replicas = min(REPLICAS_MAX, brokers)
                self._client.create_topic(TOPIC, partitions=1, replicas=replicas, cleanup_policy="compact")
        if end == self._refused_at:
            SYSTEM.clock.sleep_ms(WAIT_MS)
        try:
            self._client.append(TOPIC, rows_of(records))
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_RECORD:
                raise
            self._refused_at = end
            return False
        return True

    def _check_judges(self) -> int:
        """Return the number of brokers, each of which judges the records of schemas.

        Raises: ReadOnlyStoreError: one of them does not: two writers would hand out one id for two schemas.
        """
        brokers = frozenset(self._client.describe().brokers)
        for broker in sorted(brokers - self._judges):
            if not self._client.run(judges_schemas, broker):
                raise ReadOnlyStoreError(
                    f"broker {broker} of {self.where} does not check what is written to {TOPIC}, which is only read "
                    "there: register and delete through a registry, by its address in schema.registry.url"
                )
            self._judges |= {broker}
        return len(brokers)
