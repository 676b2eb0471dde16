"""Maintenance: scheduled work on the logs of a broker: checkpoints, flushes, retention, compaction, scrub.

One background thread does one thing at a time (the scrub has its own). Nothing above a partition's high watermark is
removed. A failure is logged, and the work repeated the next time. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from logstore.config import INT64_MAX
from logstore.env import Env
from logstore.errors import DiskFullError, FailedStoreError, PylogError
from logstore.maintenance import compaction, retention
from replication.config.broker import BrokerConfig
from replication.errors import is_disk_dead
from replication.model.cluster import TopicPartition
from replication.replica.partition import Partition
from replication.replica.partitions import Partitions
from replication.replica.scrub import Scrub

logger = logging.getLogger(__name__)

FLUSH_LOOK_MS = 1000  # without appends, an fsync comes up to this much later than `flush.ms`


class Maintenance:
    def __init__(self, config: BrokerConfig, env: Env, replicas: Partitions) -> None:
        self._config = config
        self._replicas = replicas
        self._noted: dict[TopicPartition, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._is_ending = False
        self._scrubber: threading.Thread | None = None
        self._scrub = Scrub(config, env, replicas)

    def begin(self) -> None:
        config = self._config
        self._thread = ThreadPoolExecutor(1, "maintenance")
        schedule: list[tuple[Callable[[], int], Callable[[], None]]] = [
            (lambda: config.log_flush_offset_checkpoint_interval_ms, self._flush),
            (lambda: FLUSH_LOOK_MS, self._flush_due),
            (lambda: config.log_retention_check_interval_ms, self._retain),
        ]
        if config.log_cleaner_enable:
            schedule.append((lambda: config.log_cleaner_backoff_ms, self._compact))
        self._tasks = [asyncio.ensure_future(self._repeat(interval_ms, act)) for interval_ms, act in schedule]
        self._tasks.append(asyncio.ensure_future(self._checkpoint()))
        if config.log_scrub_interval_ms > 0:
            self._scrubber = threading.Thread(target=self._scrub.run, name="scrub", daemon=True)
            self._scrubber.start()

    async def end(self) -> None:
        self._is_ending = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            self._tasks = []
            await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)
        self._scrub.end()
        if self._scrubber is not None:
            await asyncio.to_thread(self._scrubber.join)

    async def _repeat(self, interval_ms: Callable[[], int], act: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(max(interval_ms(), 100) / 1000)
            try:
                await loop.run_in_executor(self._thread, act)
            except Exception as error:  # the next time may succeed
                logger.exception("maintenance failed")
                if is_disk_dead(error):
                    self._replicas.disk_failed.set()
                    return

    async def _checkpoint(self) -> None:
        """Store high watermarks. Not in the thread: a compaction may take minutes."""
        while True:
            await asyncio.sleep(self._config.replica_high_watermark_checkpoint_interval_ms / 1000)
            cuts = self._replicas.dir.checkpoints.cuts()
            offsets = self._replicas.high_watermarks()
            if offsets != self._noted:
                try:
                    await asyncio.to_thread(self._replicas.dir.checkpoints.note, offsets, cuts)
                except DiskFullError:
                    self._replicas.room.is_missing()  # logs it once
                except (PylogError, OSError) as error:
                    logger.error("high watermarks cannot be stored: %s", error)
                    if is_disk_dead(error):
                        self._replicas.disk_failed.set()
                        return
                else:
                    self._noted = offsets

    def _flush(self) -> None:
        """Flush what is not noted as flushed: an append or a retention may have flushed it, and notes nothing."""
        noted = self._replicas.dir.log_dir.recovery_points.read()
        logs = [(tp, partition.replica.log) for tp, partition in self._partitions()]
        self._replicas.dir.flush((tp, log) for tp, log in logs if log.files.view.end > noted.get(tp, 0))

    def _flush_due(self) -> None:
        """Flush logs whose topic sets `flush.ms`, even if nothing is appended any more."""
        partitions, config_of = self._partitions(), self._replicas.config_of
        topics = {topic for topic in {tp.topic for tp, _ in partitions} if config_of(topic).flush_ms < INT64_MAX}
        logs = [(tp, partition.replica.log) for tp, partition in partitions if tp.topic in topics] if topics else ()
        due = [(tp, log) for tp, log in logs if log.point.is_time_to_flush(log.config)]
        if behind := [(tp, log) for tp, log in due if log.files.view.end > log.point.offset]:
            self._replicas.dir.flush(behind)

    def _retain(self) -> None:
        for tp, partition in self._partitions():
            replica = partition.replica
            if replica.config.expires or replica.log.files.view.aside:  # whose files leave after a delay
                self._guarded(tp, partial(self._expire, partition))
        self._replicas.dir.sweep(self._config.log_segment_delete_delay_ms)

    def _expire(self, partition: Partition) -> None:
        log, reserve = partition.replica.log, self._replicas.dir.log_dir.reserve
        report = reserve.despite_full_disk(partial(retention.expire, log, upper=partition.high_watermark))
        if report.removed:
            logger.info("tp=%s segments=%d bytes=%d deleted", partition.tp, len(report.removed), report.removed_bytes)
        partition.replica.note_start(report.log_start_after)

    def _compact(self) -> None:
        for tp, partition in self._partitions():
            if partition.replica.config.is_compacted:
                self._guarded(tp, partial(self._clean, partition))

    def _clean(self, partition: Partition) -> None:
        log, dir_ = partition.replica.log, self._replicas.dir
        with dir_.checkpoints.noting() as points:
            report = compaction.compact(log, upper=partition.high_watermark)
            if report.rounds:
                points[partition.tp] = log.topic_id, log.point.offset
        if report.rounds:
            self._replicas.disk.loop.call_soon_threadsafe(partition.forget_recent)
            logger.info("tp=%s compacted bytes=%d to=%d", partition.tp, report.bytes_before, report.bytes_after)

    def _partitions(self) -> list[tuple[TopicPartition, Partition]]:
        return [] if self._is_ending else list(self._replicas.partitions.items())

    def _guarded(self, tp: TopicPartition, act: Callable[[], None]) -> None:
        if self._is_ending or tp not in self._replicas.partitions:
            return
        try:
            act()
        except FailedStoreError:
            raise
        except (PylogError, OSError) as error:
            logger.error("tp=%s maintenance failed: %s", tp, error)
            self._replicas.repairs.suspect(tp, error)
