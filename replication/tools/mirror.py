"""Copies topics of an existing Kafka: keys, values, headers, timestamps and partitions stay, offsets may differ.

A copy that ended, in whatever way, is continued: no record is missing, and none is there twice. The targets
(`mirror_targets`) see to that. Records are moved as Arrow columns, one partition after the other.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import UnknownTopicError, UnreadableBatchError, did_you_mean
from logstore.progress import Progress, no_progress
from logstore.store.reading import read_round
from replication.client.addresses import addresses_of
from replication.client.cluster import UnreachableError
from replication.client.fetching import EARLIEST, FETCH_BYTES, LATEST
from replication.client.kafka_client import Isolation, KafkaClient, KafkaError
from replication.model.cluster import TopicPartition
from replication.tools.connecting import client_of
from replication.tools.mirror_targets import (
    CLIENT_ID,
    COPIED_COLUMNS,
    ClusterTarget,
    DirectoryTarget,
    MirrorError,
    MirrorTarget,
    SourceTopic,
    Unit,
    recreated,
)

__all__ = ["Copied", "MirrorError", "mirror"]

logger = logging.getLogger(__name__)

# Appended at once: held in memory, and copied again after a crash.
BATCH_BYTES = 32 * 1024 * 1024
LOOK_S = 0.5  # between two looks for what came
_BOOTSTRAP = re.compile(r"[^/,\s]+:\d+(,[^/,\s]+:\d+)*")
# Settings of a source that a copy must not have: records keep their times, however old they are by then.
_NOT_COPIED = frozenset(
    {"message.timestamp.type", "message.timestamp.before.max.ms", "message.timestamp.difference.max.ms"}
)


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

    Raises: MirrorError, and the errors of the client and of a directory.
    """
    if not _BOOTSTRAP.fullmatch(source):
        raise MirrorError(_no_address(source))
    addresses_of(source, "--from")
    fits = None if pattern is None else _compiled(pattern)
    stop = stop or threading.Event()
    with client_of(source, consumer_properties or {}, client_id=CLIENT_ID) as origin:
        name, wanted = _wanted(origin, topics, fits)
        where: MirrorTarget
        if _BOOTSTRAP.fullmatch(target):
            where = ClusterTarget(target, name, producer_properties or {})
        else:
            where = DirectoryTarget(Path(target), name)
        with closing(where):
            copy = _Copy(origin, where, wanted, progress, stop)
            while True:
                try:
                    copy.catch_up()
                except (UnreachableError, KafkaError) as error:  # of the source, which may come back
                    if not follow or (isinstance(error, KafkaError) and not error.code.is_retriable):
                        raise
                    logger.warning("the source: %s", error)
                if not follow or stop.wait(LOOK_S):
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


def _wanted(
    origin: KafkaClient, names: Sequence[str], pattern: re.Pattern[str] | None
) -> tuple[str, list[SourceTopic]]:
    """Return the id of the source, which survives changes of its addresses, and the requested topics.

    Raises: MirrorError: one of them does not exist.
    """
    cluster = origin.describe()
    known = cluster.topics
    for name in names:
        if name not in known:
            raise MirrorError(f"no topic {name!r} in the source{did_you_mean(name, known)}")
    chosen = set(names)
    if pattern is not None:
        chosen |= {n for n in known if pattern.fullmatch(n) and not n.startswith("__")}
    if not chosen:
        raise MirrorError(f"no topic of the source fits {pattern.pattern if pattern else names!r}")
    overrides = origin.overrides(sorted(chosen))
    for name in chosen - overrides.keys():
        logger.warning("topic %s: its settings may not be seen, and are not copied", name)
    return cluster.cluster_id or "unnamed", [
        SourceTopic(
            name=name,
            partitions=len(known[name].leaders),
            replicas=known[name].replicas,
            id=known[name].id,
            settings={key: value for key, value in overrides.get(name, {}).items() if key not in _NOT_COPIED},
        )
        for name in sorted(chosen)
    ]


def _checked(start: int, first: int, end: int, tp: TopicPartition) -> int:
    """Return where to read on. Raises: MirrorError: the source is another one than before."""
    if start > end:
        logger.warning("%s was copied up to offset %d, and ends at %d in the source", tp, start, end)
        raise recreated(tp)
    if start < first:
        logger.warning("%s: offsets %d to %d were deleted in the source before they were copied", tp, start, first - 1)
    return max(start, first)


class _Copy:
    """The copying of topics; `done` counts the copied records of each."""

    def __init__(
        self,
        source: KafkaClient,
        target: MirrorTarget,
        wanted: Iterable[SourceTopic],
        progress: Progress,
        stop: threading.Event,
    ) -> None:
        self._source, self._target, self._progress, self._stop = source, target, progress, stop
        wanted = list(wanted)
        self._ids = {topic.name: topic.id for topic in wanted}
        self.done = {t.name: Copied(topic=t.name, partitions=t.partitions, created=target.prepare(t)) for t in wanted}
        tps = [TopicPartition(name, n) for name, each in self.done.items() for n in range(each.partitions)]
        first = {tp: found.offset for tp, found in source.offsets(dict.fromkeys(tps, EARLIEST)).items()}
        starts, self._ends = target.positions(first), self._look(tps)
        self._positions = {tp: _checked(starts[tp], first[tp], self._ends[tp], tp) for tp in tps}
        self._begun = sum(self._positions.values())
        self._held: defaultdict[TopicPartition, list[pa.RecordBatch]] = defaultdict(list)
        self._held_bytes = 0

    def _look(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = self._source.offsets(dict.fromkeys(tps, LATEST), isolation=Isolation.READ_COMMITTED)
        return {tp: each.offset for tp, each in found.items()}

    def catch_up(self) -> None:
        """Copy everything up to the ends that the partitions have now, unless it is stopped."""
        self._ends = self._look(self._positions)
        for tp, end in self._ends.items():
            self._copy(tp, end)
        self._flush()

    def _check_same(self, names: Iterable[str]) -> None:
        """Raise MirrorError if one of these topics is another one than when the copy began."""
        for name in names:
            with suppress(UnknownTopicError):  # it is gone: this is the last of it
                if self._source.topic(name).id != self._ids[name]:
                    raise recreated(name)

    def _copy(self, tp: TopicPartition, end: int) -> None:
        columns, size = [*COPIED_COLUMNS, "offset"], min(FETCH_BYTES, BATCH_BYTES)

        def read(start: int) -> Iterator[pa.RecordBatch]:
            return self._source.read(*tp, start, end, columns=columns, fetch_bytes=size)

        def skipped(error: UnreadableBatchError) -> None:
            logger.warning("not copied: %s", error)

        for rows in read_round(read, self._positions[tp], end, skipped):
            self._held[tp].append(rows.select(COPIED_COLUMNS))
            self._held_bytes += rows.nbytes
            self._positions[tp] = rows.column("offset")[-1].as_py() + 1
            if self._held_bytes >= BATCH_BYTES:
                self._flush()
            if self._stop.is_set():
                return
        self._positions[tp] = max(end, self._positions[tp])  # the last offsets may hold no data

    def _flush(self) -> None:
        self._check_same({tp.topic for tp in self._held})  # after the reads: what is held is of this topic
        units = {tp: Unit(pa.Table.from_batches(rows), self._positions[tp]) for tp, rows in self._held.items()}
        self._held.clear()
        self._held_bytes = 0
        if units:
            self._target.append(units)
        for tp, (rows, _) in units.items():
            before = self.done[tp.topic]
            self.done[tp.topic] = replace(
                before, records=before.records + len(rows), bytes=before.bytes + _bytes_of(rows)
            )
        moved = sum(self._positions.values()) - self._begun
        self._progress(moved, max(moved, sum(self._ends.values()) - self._begun))


def _bytes_of(rows: pa.Table) -> int:
    """Bytes of keys, values, and the values of headers."""
    headers = pc.struct_field(pc.list_flatten(rows["headers"]), "value")
    return sum(pc.sum(pc.binary_length(cells)).as_py() or 0 for cells in (rows["key"], rows["value"], headers))
