"""Reads everything that a store holds and says what is damaged, for `pylog verify`. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from logstore.errors import CorruptLogError, PylogError, UnreadableBatchError
from logstore.log.log import Log
from logstore.progress import Progress, no_progress
from logstore.store.meta_properties import is_kafkas
from logstore.store.reading import read_batches, read_round
from logstore.store.store import LogStore
from logstore.store.stray import lost_descriptions

Place = tuple[str, int, str]  # file, position, reason


class PartitionReport(NamedTuple):
    """One partition; unknown numbers are None.

    Without partition: a topic whose description is lost. Without topic, too: the journal of transactions.
    """

    topic: str | None
    partition: int | None
    segments: int | None
    size_bytes: int | None
    damage: tuple[Place, ...]


def verify_store(
    store: LogStore, topic: str | None = None, progress: Progress = no_progress
) -> Iterator[PartitionReport]:
    """Yield a report of every partition (of one topic): all batches are read and checked.

    Topics with records and no description, and a damaged journal, have reports, too. Damage in one partition does not
    affect others; each place is reported once. `progress` gets the bytes done, of how many.
    """
    topics = store.topics() if topic is None else [store.topic(topic)]
    partitions = [(info.name, p, *_extent(store, info.name, p)) for info in topics for p in range(info.partitions)]
    total, done = sum(size_bytes or 0 for *_, size_bytes in partitions), 0
    for name, partition, _, size_bytes in partitions:
        progress(done, total)
        yield verify_partition(store, name, partition)
        done += size_bytes or 0
    progress(total, total)
    if topic is None:
        yield from verify_descriptions(store)
    if report := verify_transactions(store):
        yield report


def verify_transactions(store: LogStore) -> PartitionReport | None:
    """Return the report of the journal of transactions; None if it is sound."""
    error = store.transactions.outcomes().damage
    if error is None:
        return None
    path = getattr(error, "path", str(store.path))
    place = path, getattr(error, "position", 0), getattr(error, "reason", str(error))
    return PartitionReport(None, None, None, None, (place,))


def verify_descriptions(store: LogStore) -> Iterator[PartitionReport]:
    """Yield a report of every topic that has records and no description."""
    for error in lost_descriptions(store.path, store.env):
        yield PartitionReport(error.topic, None, None, None, ((error.path, 0, str(error)),))


def verify_partition(store: LogStore, topic: str, partition: int, *, dry_run: bool = False) -> PartitionReport:
    """Return the report of one partition: all its batches are read and checked, or only counted (`dry_run`)."""
    segments, size_bytes = _extent(store, topic, partition)
    places: dict[tuple[str, int], Place] = {}
    for place in () if dry_run else _damage(store, topic, partition):
        places.setdefault(place[:2], place)
    return PartitionReport(topic, partition, segments, size_bytes, tuple(places.values()))


def _extent(store: LogStore, topic: str, partition: int) -> tuple[int | None, int | None]:
    try:
        segments = store.log(topic, partition).segments()
    except PylogError:
        return None, None
    return len(segments), sum(segment.size_bytes for segment in segments)


def _unreadable(log: Log) -> list[Place]:
    """Batches of a right CRC whose records cannot be decoded. Other damage ends the walk: `Log.verify` has named it."""
    end, found = log.log_end_offset, list[UnreadableBatchError]()
    with suppress(CorruptLogError):
        for _ in read_round(lambda at: read_batches(log, at, end, ["offset"]), log.log_start_offset, end, found.append):
            pass
    return [(error.path, error.position, error.reason) for error in found]


def _damage(store: LogStore, topic: str, partition: int) -> Iterator[Place]:
    directory = store.path / f"{topic}-{partition}"
    if is_kafkas(store.path, store.env) and store.env.files.stat(directory) is None:
        return  # another broker of that Kafka has it
    try:
        log = store.log(topic, partition)
        for found in log.verify():
            yield str(found.path), found.position, found.reason
        yield from _unreadable(log)
        _ = log.log_end_offset  # says it if records that were flushed are not there any more
    except CorruptLogError as error:
        yield error.path, error.position, error.reason
    except PylogError as error:
        yield getattr(error, "path", str(directory)), 0, str(error)
