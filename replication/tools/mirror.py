"""Copies topics of an existing Kafka: keys, values, headers, timestamps and partitions stay, offsets may differ.

A copy that ended, in whatever way, is continued: no record is missing, and none is there twice. The targets
(`mirror_targets`) see to that.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, ResourceType

from logstore.config import LogConfig
from logstore.env import SYSTEM
from logstore.errors import did_you_mean
from logstore.progress import Progress, no_progress
from replication.tools.mirror_targets import (
    LARGEST_MESSAGE_BYTES,
    TIMEOUT_S,
    ClusterTarget,
    DirectoryTarget,
    MirrorError,
    MirrorTarget,
    Partition,
    Record,
    SourceTopic,
    extent,
    said,
)

__all__ = ["Copied", "MirrorError", "mirror"]

logger = logging.getLogger(__name__)


# Appended at once: held in memory, and copied again after a crash.
BATCH_BYTES = 32 * 1024 * 1024
BATCH_RECORDS = 50_000
BATCH_MS = 1000
_BOOTSTRAP = re.compile(r"[^/,\s]+:\d+(,[^/,\s]+:\d+)*")
_KNOWN = {f.metadata["key"] for f in fields(LogConfig)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    topic: str
    partitions: int
    created: bool
    records: int = 0
    bytes: int = 0


def mirror(  # noqa: PLR0913  where from, what, where to, and how long
    source: str,
    target: str,
    *,
    topics: Sequence[str] = (),
    pattern: str | None = None,
    follow: bool = False,
    stop: threading.Event | None = None,
    progress: Progress = no_progress,
    consumer_properties: Mapping[str, str] | None = None,
    producer_properties: Mapping[str, str] | None = None,
) -> list[Copied]:
    """Copy these topics, or those whose whole name matches the pattern, to a directory or a cluster (HOST:PORT,…).

    It ends at the ends that the topics had at its begin; with `follow`, when `stop` is set.

    Raises: MirrorError, and the errors of a directory.
    """
    if not _BOOTSTRAP.fullmatch(source):
        raise MirrorError(_no_address(source))
    fits = None if pattern is None else _compiled(pattern)
    with _client_errors(), closing(_Source(source, consumer_properties or {})) as origin:
        wanted = origin.topics(topics, fits)
        where: MirrorTarget
        if _BOOTSTRAP.fullmatch(target):
            where = ClusterTarget(target, origin.name, producer_properties or {})
        else:
            where = DirectoryTarget(Path(target), origin.name)
        with closing(where):
            done = {
                t.name: Copied(topic=t.name, partitions=t.partitions, created=where.prepare(t))
                for t in wanted
            }
            extents = origin.extents(wanted)
            starts = where.positions({partition: first for partition, (first, _) in extents.items()})
            origin.assign(_checked(starts, extents))
            ends = None if follow else {p: end for p, (_, end) in extents.items()}
            copy = _Copy(where, done, starts, ends, progress)
            while not copy.is_over and not (stop and stop.is_set()):
                copy.take(origin.poll())
            copy.flush()
        return list(copy.done.values())


def _no_address(source: str) -> str:
    if not Path(source).is_dir():
        return f"{source} is not HOST:PORT[,HOST:PORT…]; a source has to be"
    return (
        f"{source} is not HOST:PORT; only the target can be a directory "
        f"(to serve it: pylog broker start --set log.dirs={source})"
    )


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise MirrorError(f"{pattern!r} is not a regular expression: {error}") from None


@contextmanager
def _client_errors() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise MirrorError(said(error)) from error


def _checked(
    starts: Mapping[Partition, int], extents: Mapping[Partition, tuple[int, int]]
) -> dict[Partition, int]:
    """Return where to read on. Raises: MirrorError: the source is another one than before."""
    found = {}
    for (topic, number), start in starts.items():
        first, end = extents[topic, number]
        if start > end:
            raise MirrorError(
                f"{topic}-{number} was copied up to offset {start}, and ends at {end} in the source: it was "
                "recreated there; delete the copy to begin again"
            )
        if start < first:
            logger.warning(
                "%s-%d: offsets %d to %d were deleted in the source before they were copied",
                topic, number, start, first - 1,
            )  # fmt: skip
        found[topic, number] = max(start, first)
    return found


class _Copy:
    def __init__(
        self,
        target: MirrorTarget,
        done: dict[str, Copied],
        starts: Mapping[Partition, int],
        ends: Mapping[Partition, int] | None,
        progress: Progress,
    ) -> None:
        self.done = done
        self._target = target
        self._ends = ends
        self._open = {p for p in starts if ends is None or starts[p] < ends[p]}
        self._starts = dict(starts)
        self._positions = dict(starts)
        self._progress = progress
        self._held: defaultdict[Partition, list[Record]] = defaultdict(list)
        self._records = self._bytes = 0
        self._since_ms = 0

    @property
    def is_over(self) -> bool:
        return not self._open

    def take(self, messages: Iterable[Message]) -> None:
        """Take the messages of the source; append what is due."""
        for message in messages:
            topic, number = message.topic(), message.partition()
            assert topic is not None, "it says of which topic it is"
            assert number is not None, "and of which partition"
            if message.error() is None:
                self._hold((topic, number), Record.of(message))
            elif self._ends is not None:
                self._end((topic, number))
        now_ms = SYSTEM.clock.monotonic_ms()
        is_due = self._bytes >= BATCH_BYTES or self._records >= BATCH_RECORDS
        if is_due or (self._records and now_ms - self._since_ms >= BATCH_MS):
            self.flush()

    def _hold(self, partition: Partition, record: Record) -> None:
        if partition not in self._open:
            return
        if not self._records:
            self._since_ms = SYSTEM.clock.monotonic_ms()
        self._held[partition].append(record)
        self._records += 1
        self._bytes += record.size_bytes
        self._positions[partition] = record.offset + 1
        if self._ends is not None and record.offset + 1 >= self._ends[partition]:
            self._end(partition)

    def _end(self, partition: Partition) -> None:
        """Finish a partition: its last offsets hold no data."""
        if self._ends is not None and partition in self._open:
            self._open.discard(partition)
            self._positions[partition] = self._ends[partition]

    def flush(self) -> None:
        if self._held:
            self._target.append(self._held)
        for (topic, _), records in self._held.items():
            before = self.done[topic]
            size = sum(record.size_bytes for record in records)
            self.done[topic] = replace(
                before, records=before.records + len(records), bytes=before.bytes + size
            )
        self._held.clear()
        self._records = self._bytes = 0
        moved = sum(self._positions[p] - self._starts[p] for p in self._starts)
        total = sum(max(end, self._starts[p]) - self._starts[p] for p, end in (self._ends or {}).items())
        self._progress(moved, max(moved, total))


class _Source:
    """The Kafka that is copied. `name` survives changes of its addresses; clusters before 0.10.1 have none."""

    def __init__(self, bootstrap: str, properties: Mapping[str, str]) -> None:
        shared: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0, **properties}
        consume = {
            "group.id": "pylog-mirror",  # required; nothing is committed for it
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "receive.message.max.bytes": LARGEST_MESSAGE_BYTES + 1024,
        }
        self._consumer = Consumer({**shared, **consume})
        self._admin = AdminClient(shared)
        try:
            self._known = self._consumer.list_topics(timeout=TIMEOUT_S)
        except KafkaException as error:
            raise MirrorError(f"{bootstrap} does not answer as a Kafka: {said(error)}") from error
        self.name = getattr(self._known, "cluster_id", None) or "unnamed"

    def topics(self, names: Sequence[str], pattern: re.Pattern[str] | None) -> list[SourceTopic]:
        """Return the requested topics. Raises: MirrorError: one of them does not exist."""
        known = self._known.topics
        for name in names:
            if name not in known:
                raise MirrorError(f"no topic {name!r} in the source{did_you_mean(name, known)}")
        chosen = set(names)
        if pattern is not None:
            chosen |= {n for n in known if pattern.fullmatch(n) and not n.startswith("__")}
        if not chosen:
            raise MirrorError(f"no topic of the source fits {pattern.pattern if pattern else names!r}")
        settings = self._settings(sorted(chosen))
        return [
            SourceTopic(
                name=name,
                partitions=len(known[name].partitions),
                replicas=max(len(p.replicas) for p in known[name].partitions.values()),
                settings=settings.get(name, {}),
            )
            for name in sorted(chosen)
        ]

    def _settings(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the overrides of these topics for their copies, except those that change timestamps."""
        asked = self._admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in names])
        found: dict[str, dict[str, str]] = {}
        for resource, future in asked.items():
            try:
                entries = future.result(TIMEOUT_S)
            except KafkaException as error:  # before 0.11 nobody could ask
                logger.warning("topic %s: settings are not copied: %s", resource.name, said(error))
                continue
            found[resource.name] = {
                key: entry.value
                for key, entry in entries.items()
                if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
                and key in _KNOWN
                and not key.startswith("message.timestamp.")
            }
        return found

    def extents(self, topics: Iterable[SourceTopic]) -> dict[Partition, tuple[int, int]]:
        return {
            (topic.name, number): extent(self._consumer, TopicPartition(topic.name, number))
            for topic in topics
            for number in range(topic.partitions)
        }

    def assign(self, starts: Mapping[Partition, int]) -> None:
        self._consumer.assign([TopicPartition(*partition, start) for partition, start in starts.items()])

    def poll(self) -> list[Message]:
        """Return the messages of up to half a second; errors in them end a partition. Raises: MirrorError."""
        messages = self._consumer.consume(min(BATCH_RECORDS, 10_000), 0.5)
        for message in messages:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise MirrorError(f"{message.topic()}-{message.partition()}: {error.str()}")
        return messages

    def close(self) -> None:
        self._consumer.close()
