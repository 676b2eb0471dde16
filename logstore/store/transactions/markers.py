"""The markers that end transactions in the logs: written, flushed, known to be on disk.

A marker that is there is not written again, so several processes may do this at once.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Protocol

from logstore.errors import (
    ProducerFencedError,
    PylogError,
    StaleLogError,
    StoreError,
    UnknownPartitionError,
    UnknownTopicError,
)
from logstore.log.log import Log
from logstore.store.catalog import TopicInfo
from logstore.store.log_dir import LogDir
from logstore.store.transactions.state import Partition, Producer, TransactionAttempt

logger = logging.getLogger(__name__)


class Logs(Protocol):
    """The topics of the store, as they are now."""

    def topic(self, name: str) -> TopicInfo:
        """One topic."""
        ...

    def topics(self) -> list[TopicInfo]:
        """Every topic."""
        ...

    def log(self, topic: str, partition: int) -> Log:
        """The log of one partition."""
        ...

    def changing(self) -> AbstractContextManager[None]:
        """Around a change of the store. Raises: ReadOnlyStoreError, FailedStoreError."""
        ...


class Markers:
    """The markers in the logs of one store."""

    def __init__(self, log_dir: LogDir, logs: Logs) -> None:
        self._log_dir = log_dir
        self._logs = logs

    def write(self, attempts: Iterable[TransactionAttempt], *, commit: bool) -> dict[Partition, int] | None:
        """Write the markers of these attempts; return where the logs end behind them, None if some are missing.

        A partition that was deleted needs none.
        """
        by_partition = defaultdict(list)
        for attempt in attempts:
            for partition in attempt.partitions:
                by_partition[partition].append(attempt.producer)
        ends, complete = {}, True
        for (topic, topic_id, number), producers in sorted(by_partition.items()):
            try:
                log = self._logs.log(topic, number)
                if log.topic_id != topic_id:
                    continue
                mark = partial(_append_markers, log, producers, commit=commit)
                self._log_dir.reserve.despite_full_disk(mark)
                ends[topic, topic_id, number] = log.log_end_offset
            except (UnknownTopicError, UnknownPartitionError, StaleLogError):
                continue
            except PylogError as error:
                complete = False
                logger.warning("%s-%d: the end of a transaction is not marked yet: %s", topic, number, error)
        return ends if complete else None

    def flush(self, marked: Mapping[Partition, int]) -> None:
        """Flush the markers that end here, where they are not on disk yet. What fails stays for the next."""
        points = self._log_dir.recovery_points()
        try:
            self.flush_partitions(p for p, end in marked.items() if points.get((p[0], p[2]), 0) < end)
        except PylogError as error:
            logger.warning("markers of a transaction are not flushed yet: %s", error)

    def flush_partitions(self, partitions: Iterable[Partition], *, journal_lines: int = 0) -> None:
        """Flush these logs, and note how far they, and the journal, are on disk.

        A partition that was deleted needs nothing.
        """
        points = {}
        try:
            for topic, _, number in partitions:
                with suppress(UnknownTopicError, UnknownPartitionError, StaleLogError):  # deleted since
                    log = self._logs.log(topic, number)
                    points[topic, number] = log.topic_id, log.flush()
        finally:
            self._log_dir.advance_recovery_points(points, journal_lines=journal_lines)

    def are_on_disk(self, marked: Mapping[Partition, int]) -> bool:
        """Are the markers on disk that end here?"""
        points = self._log_dir.recovery_points()
        return all(
            points.get((topic, partition), 0) >= end or not self._is_there(topic, topic_id)
            for (topic, topic_id, partition), end in marked.items()
        )

    def _is_there(self, topic: str, topic_id: str) -> bool:
        """Is there this topic? One whose description is damaged is in no other's way, and may be mended."""
        try:
            return self._logs.topic(topic).topic_id == topic_id
        except UnknownTopicError:
            return False
        except StoreError:
            return True


def _append_markers(log: Log, producers: Iterable[Producer], *, commit: bool) -> None:
    """Append the markers that are missing; one that is there is not written again."""
    with log.lock():
        for producer_id, epoch in producers:
            with suppress(ProducerFencedError):  # ended long ago: its id is in use again
                log.append_marker(producer_id, epoch, commit=commit)
