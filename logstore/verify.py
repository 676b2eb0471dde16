"""Reads everything that a store holds and says what is damaged, for `pylog verify`. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from logstore.store import LogStore


class PartitionReport(NamedTuple):
    """One partition; `damage` holds (file, position, reason) of each place."""

    topic: str
    partition: int
    segments: int
    size_bytes: int
    damage: tuple[tuple[str, int, str], ...]


def verify_store(
    store: LogStore, topic: str | None = None, progress: Callable[[int, int], None] = lambda done, total: None
) -> Iterator[PartitionReport]:
    """Yield a report of every partition (of one topic): all batches are read and checked.

    `progress` is told the bytes that are done, of how many.
    """
    names = [topic] if topic is not None else [info.name for info in store.topics()]
    logs = [(name, p, store.log(name, p)) for name in names for p in range(store.topic(name).partitions)]
    sizes = [sum(segment.size_bytes for segment in log.segments()) for _, _, log in logs]
    done = 0
    for (name, partition, log), size_bytes in zip(logs, sizes, strict=True):
        progress(done, sum(sizes))
        damage = tuple((str(found.path), found.position, found.reason) for found in log.verify())
        yield PartitionReport(name, partition, len(log.segments()), size_bytes, damage)
        done += size_bytes
    progress(done, sum(sizes))
