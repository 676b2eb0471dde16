"""The markers that end transactions in the logs.

A marker that is there is not written again, so several processes may write them at once.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial

from logstore.errors import (
    ProducerFencedError,
    PylogError,
    StaleLogError,
    StoreError,
    UnknownPartitionError,
    UnknownTopicError,
)
from logstore.log.log import Log
from logstore.store.log_manager import LogManager
from logstore.store.transactions.state import Partition, Producer, TransactionAttempt

logger = logging.getLogger(__name__)


class Markers:
    """The markers in the logs of one store."""

    def __init__(self, logs: LogManager) -> None:
        self._log_dir = logs.log_dir
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
        points = self._log_dir.recovery_points.read()
        try:
            self._logs.flush_partitions(
                (topic, p) for (topic, _, p), end in marked.items() if points.get((topic, p), 0) < end
            )
        except PylogError as error:
            logger.warning("markers of a transaction are not flushed yet: %s", error)

    def are_on_disk(self, marked: Mapping[Partition, int]) -> bool:
        """Are the markers on disk that end here?"""
        points = self._log_dir.recovery_points.read()
        return all(
            points.get((topic, partition), 0) >= end or not self._is_there(topic, topic_id)
            for (topic, topic_id, partition), end in marked.items()
        )

    def _is_there(self, topic: str, topic_id: str) -> bool:
        """Does the topic exist? A damaged description counts: it may be mended."""
        try:
            return self._logs.topic(topic).topic_id == topic_id
        except UnknownTopicError:
            return False
        except StoreError:
            return True


def _append_markers(log: Log, producers: Iterable[Producer], *, commit: bool) -> None:
    with log.lock():
        for producer_id, epoch in producers:
            with suppress(ProducerFencedError):  # ended long ago: its id is in use again
                log.append_marker(producer_id, epoch, commit=commit)
