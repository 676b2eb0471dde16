"""Records of a cluster for a terminal: lines in, records out; one Python object per record, as in `logstore.tools`."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Collection, Iterator, MutableMapping
from typing import Any

import pyarrow as pa

from logstore import TopicInfo
from logstore.env import SYSTEM
from logstore.errors import OffsetOutOfRangeError, PylogError, UnknownPartitionError, UnreadableBatchError
from logstore.store.reading import OffsetRange, read_round
from logstore.tools.console import ConsoleRecord, Skipped, console_records
from replication.client.blocking import Consumer
from replication.client.kafka_client import Isolation, KafkaClient
from replication.model.cluster import TopicPartition

logger = logging.getLogger(__name__)

__all__ = ["ClusterTarget", "Isolation", "latest_records", "members_records", "records", "share_records"]

LOOK_S = 0.2  # between two looks for what came
COMMIT_MS = 5_000  # between two commits of a member


class ClusterTarget:
    """A cluster as `logstore.tools.console.LineTarget`. Records that failed may be appended all the same."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client

    def topic(self, name: str) -> TopicInfo:
        """Raises: UnknownTopicError, UnreachableError."""
        found = self._client.topic(name)
        return TopicInfo.of(name, found.id, len(found.leaders), {})

    def log(self, topic: str, partition: int) -> None:
        """Raises: UnknownPartitionError."""
        if partition >= (count := self.topic(topic).partitions):
            raise UnknownPartitionError(topic, partition, count)

    def append(self, topic: str, data: pa.RecordBatch, *, compression: str | None) -> dict[int, OffsetRange]:
        done = self._client.append(topic, data, compression=compression)
        return {partition: OffsetRange(extent.start, extent.end) for partition, extent in done.items()}


def records(  # noqa: PLR0913  as the options of `pylog consume`
    client: KafkaClient,
    topic: str,
    partition: int | None,
    start: int | str,
    *,
    isolation: Isolation,
    timeout_ms: int | None,
    skipped: Skipped,
) -> Iterator[ConsoleRecord]:
    """Yield records, partition by partition, from an offset, "earliest" or "latest", until none came for `timeout_ms`.

    With 0 that are the present ones.

    Raises: UnknownTopicError, UnknownPartitionError, OffsetOutOfRangeError, CorruptLogError, KafkaError.
    """
    wanted = None if partition is None else [partition]
    positions: dict[int, int] = {}
    read_ms = SYSTEM.clock.now_ms()
    while True:
        is_first = not positions
        for p, extent in sorted(client.extents(topic, isolation=isolation, partitions=wanted).items()):
            if p not in positions:  # or a new partition, which is read as a whole
                edges = {"earliest": extent.start, "latest": extent.end if is_first else extent.start}
                positions[p] = int(edges.get(str(start), start))
                if not extent.start <= positions[p] <= extent.end:
                    raise OffsetOutOfRangeError(positions[p], extent.start, extent.end)

            def read(at: int, p: int = p, end: int = extent.end) -> Iterator[pa.RecordBatch]:
                return client.read(topic, p, at, end, isolation=isolation)

            for batch in read_round(read, positions[p], extent.end, skipped):
                yield from console_records(topic, batch, p)
                read_ms = SYSTEM.clock.now_ms()
            positions[p] = max(positions[p], extent.end)
        if timeout_ms is not None and SYSTEM.clock.now_ms() - read_ms >= timeout_ms:
            return
        threading.Event().wait(LOOK_S)


def latest_records(
    client: KafkaClient, topic: str, partition: int | None, *, isolation: Isolation, skipped: Skipped
) -> Iterator[ConsoleRecord]:
    """Yield the last record of each key, partition by partition. A damaged one is an error, and not skipped.

    Raises: as `records`.
    """
    wanted = None if partition is None else [partition]
    for p, extent in sorted(client.extents(topic, isolation=isolation, partitions=wanted).items()):
        for batch in client.read(topic, p, extent.start, extent.end, isolation=isolation, view="latest"):
            yield from console_records(topic, batch, p)


class _Commits:
    """Commits the offsets behind records that were printed: the consumer itself knows only what it handed out."""

    def __init__(self, topic: str, printed: MutableMapping[int, int]) -> None:
        self._topic = topic
        self._printed = printed
        self._committed: dict[int, int] = {}
        self._last_ms = SYSTEM.clock.now_ms()

    def now_and_then(self, consumer: Consumer) -> None:
        now_ms = SYSTEM.clock.now_ms()
        if now_ms - self._last_ms >= COMMIT_MS:
            self._last_ms = now_ms
            self._commit(consumer, consumer.assignment)

    def last(self, consumer: Consumer, tps: Collection[TopicPartition]) -> None:
        """Commit before these partitions are given up."""
        try:
            self._commit(consumer, tps)
        except PylogError as error:
            logger.warning("offsets of the last records were not committed: %s", error)
        for tp in tps:
            self._printed.pop(tp.partition, None)
            self._committed.pop(tp.partition, None)  # another member commits from now on

    def _commit(self, consumer: Consumer, tps: Collection[TopicPartition]) -> None:
        held = {tp.partition for tp in tps}
        new = {p: at for p, at in self._printed.items() if p in held and self._committed.get(p) != at}
        if new:
            consumer.commit({TopicPartition(self._topic, p): at for p, at in new.items()})
            self._committed |= new


def members_records(  # noqa: PLR0913  likewise
    client: KafkaClient,
    topic: str,
    group: str,
    *,
    from_beginning: bool,
    isolation: Isolation,
    timeout_ms: int | None,
    skipped: Skipped,
    printed: MutableMapping[int, int],
    is_over: Callable[[], bool],
    group_protocol: str = "classic",
) -> Iterator[ConsoleRecord]:
    """Yield records as a member of a group, from its offsets, until none came for `timeout_ms`, or `is_over`.

    Offsets in `printed` (partition -> offset behind the last record) are committed: every few seconds, when a partition
    is given up, and at the end. The caller advances them. Raises: UnknownTopicError, KafkaError, CorruptLogError.
    """
    client.topic(topic)  # a member would wait for one that is not there
    commits = _Commits(topic, printed)
    options: dict[str, Any] = {
        "auto_offset_reset": "earliest" if from_beginning else "latest",
        "isolation_level": isolation.name.lower(),
        "enable_auto_commit": False,
        "on_revoke": lambda tps: commits.last(consumer, tps),
        "group_protocol": group_protocol,
    }
    consumer: Consumer
    with client.consumer(topic, group, **options) as consumer:
        read_ms = SYSTEM.clock.now_ms()
        while not is_over():
            commits.now_and_then(consumer)
            try:
                batch = consumer.poll(100 if timeout_ms is None else max(1, min(100, timeout_ms)))
            except UnreadableBatchError as error:
                skipped(error)
                continue
            if batch is not None:
                rows = console_records(topic, batch, batch.column("partition")[0].as_py())
                yield from itertools.takewhile(lambda _: not is_over(), rows)
                read_ms = SYSTEM.clock.now_ms()
            elif timeout_ms is not None and SYSTEM.clock.now_ms() - read_ms >= timeout_ms:
                return


def share_records(  # noqa: PLR0913  likewise
    client: KafkaClient,
    topic: str,
    group: str,
    *,
    timeout_ms: int | None,
    skipped: Skipped,
    printed: MutableMapping[int, int],
    is_over: Callable[[], bool],
) -> Iterator[ConsoleRecord]:
    """Yield records as a member of a share group, until none came for `timeout_ms`, or `is_over`.

    Records below the offset in `printed`, which the caller advances, are accepted, and the others of a poll released.
    Raises: as `members_records`; UnsupportedVersionError: the brokers know no share groups.
    """
    import pyarrow.compute as pc

    client.topic(topic)  # a member would wait for one that is not there
    with client.share_consumer(topic, group, share_acknowledgement_mode="explicit") as member:
        read_ms = SYSTEM.clock.now_ms()
        while not is_over():
            try:
                batch = member.poll(100 if timeout_ms is None else max(1, min(100, timeout_ms)))
            except UnreadableBatchError as error:
                skipped(error)
                continue
            if batch is not None:
                partition = batch.column("partition")[0].as_py()
                printed.pop(partition, None)  # a record that was released before has a lower offset
                try:
                    rows = console_records(topic, batch, partition)
                    yield from itertools.takewhile(lambda _: not is_over(), rows)
                finally:
                    is_printed = pc.less(batch.column("offset"), printed.get(partition, 0))
                    member.acknowledge(batch.filter(is_printed))
                    member.acknowledge(batch.filter(pc.invert(is_printed)), "release")
                read_ms = SYSTEM.clock.now_ms()
            elif timeout_ms is not None and SYSTEM.clock.now_ms() - read_ms >= timeout_ms:
                return
