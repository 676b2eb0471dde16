"""Scrub: every byte of every log is read and checked once per `log.scrub.interval.ms`, in one background thread.

A pass goes over all logs in their order, as slowly as fits into the interval, and takes at most a tenth of the thread's
time; if that is too slow, a line says so. Closed segments are read from the disk, not from the cache. A restart goes on
where the pass was.

::

    scrub-progress      one line: when the pass began (ms), and the topic, partition and base offset that are next
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from logstore.checkpoint import CheckpointError, read_checkpoint, write_atomic
from logstore.env import Env
from logstore.errors import CorruptLogError, PylogError
from logstore.log import soundness
from replication.config.broker import BrokerConfig
from replication.model.cluster import TopicPartition
from replication.replica.partition import Partition
from replication.replica.partitions import Partitions

logger = logging.getLogger(__name__)

PROGRESS = "scrub-progress"
BYTES_PER_S_MIN = 1024 * 1024  # slower spares nothing, and finds damage later
SAVE_MS = 10_000
IDLE_TIMES = 9  # so many times as long as a read took there is a pause at least


class Progress(NamedTuple):
    """A pass: when it began, and what is next. None: it begins, or is over."""

    began_ms: int
    tp: TopicPartition | None = None
    base_offset: int = 0


def bytes_per_s(total_bytes: int, interval_ms: int) -> float:
    """How fast a pass over so many bytes is to be: even over the interval, but not for ever."""
    return max(BYTES_PER_S_MIN, total_bytes * 1000 / interval_ms)


def pause_s(size_bytes: int, spent_s: float, rate: float) -> float:
    return max(size_bytes / rate - spent_s, IDLE_TIMES * spent_s)


def left_of(tps: Iterable[TopicPartition], progress: Progress) -> list[TopicPartition]:
    return sorted(tp for tp in tps if progress.tp is None or tp >= progress.tp)


class _EndedError(Exception): ...


class Scrub:
    def __init__(self, config: BrokerConfig, env: Env, replicas: Partitions) -> None:
        self._interval_ms = config.log_scrub_interval_ms
        self._env = env
        self._path = Path(config.log_dirs) / PROGRESS
        self._replicas = replicas
        self._ending = threading.Event()
        self._rate = float(BYTES_PER_S_MIN)
        self._since_ms = self._saved_ms = 0
        self._next: Progress | None = None

    def end(self) -> None:
        self._ending.set()

    def run(self) -> None:
        try:
            progress = self._load()
            while True:
                self._pass(progress)
                now_ms = self._env.clock.now_ms()
                late_ms = now_ms - progress.began_ms - self._interval_ms
                if late_ms > 0:
                    logger.warning("scrub took ms=%d more than log.scrub.interval.ms", late_ms)
                self._wait(max(0, -late_ms) / 1000)
                progress = Progress(self._env.clock.now_ms())
        except _EndedError:
            if self._next is not None:
                self._save(self._next)

    def _pass(self, progress: Progress) -> None:
        partitions = dict(self._replicas.partitions)
        total = sum(_size_bytes(partition) for partition in partitions.values())
        self._rate = bytes_per_s(total, self._interval_ms)
        for tp in left_of(partitions, progress):
            base = progress.base_offset if tp == progress.tp else 0
            try:
                self._check(tp, partitions[tp], base, progress.began_ms)
            except (PylogError, OSError) as error:
                self._replicas.repairs.suspect(tp, error)
                if tp in self._replicas.partitions:  # else it is deleted
                    logger.error("tp=%s is not scrubbed: %s", tp, error)
        self._next = None
        self._save(Progress(progress.began_ms + self._interval_ms))
        self._replicas.counters.scrub_passes += 1

    def _check(self, tp: TopicPartition, partition: Partition, base: int, began_ms: int) -> None:
        log = partition.replica.log
        while True:
            view = log.files.refresh()
            number = next((n for n, found in enumerate(view.bases) if found >= base), None)
            if number is None:
                return
            base = view.bases[number] + 1
            segment = log.files.segment(view.bases[number])
            self._since_ms = self._env.clock.monotonic_ms()
            try:
                if number < len(view.bases) - 1:
                    self._env.files.drop_cache(segment.path)
                found = soundness.check_segment(log.files, view, number, self._pace)
            except FileNotFoundError:  # it has left the log
                continue
            if found is not None:
                error = CorruptLogError(found.path, found.position, found.reason)
                self._replicas.repairs.suspect(tp, error)
            self._next = Progress(began_ms, tp, base)
            if self._env.clock.monotonic_ms() - self._saved_ms >= SAVE_MS:
                self._save(self._next)

    def _pace(self, size_bytes: int) -> None:
        self._replicas.counters.scrubbed_bytes += size_bytes
        now_ms = self._env.clock.monotonic_ms()
        self._wait(pause_s(size_bytes, (now_ms - self._since_ms) / 1000, self._rate))
        self._since_ms = self._env.clock.monotonic_ms()

    def _wait(self, seconds: float) -> None:
        if self._ending.wait(min(seconds, threading.TIMEOUT_MAX)):
            raise _EndedError

    def _load(self) -> Progress:
        now_ms = self._env.clock.now_ms()
        try:
            ((began, topic, number, base),) = read_checkpoint(self._env, self._path)
            progress = Progress(int(began), TopicPartition(topic, int(number)), int(base))
        except FileNotFoundError:
            return Progress(now_ms)
        except (CheckpointError, ValueError) as error:
            logger.warning("path=%s a pass begins anew: %s", self._path, error)
            return Progress(now_ms)
        if progress.tp == _NOBODY:  # the last one was over: the next is due then
            self._wait(min(max(0, progress.began_ms - now_ms), self._interval_ms) / 1000)
            return Progress(self._env.clock.now_ms())
        return progress

    def _save(self, progress: Progress) -> None:
        """A pass that is lost begins anew: not worth an fsync."""
        self._saved_ms = self._env.clock.monotonic_ms()
        row = (progress.began_ms, *(progress.tp or _NOBODY), progress.base_offset)
        text = f"0\n1\n{' '.join(map(str, row))}\n"
        try:
            write_atomic(self._env, self._path, text.encode(), durable=False)
        except OSError as error:
            logger.warning("path=%s is not written: %s", self._path, error)


_NOBODY = TopicPartition("-", -1)  # in the file of a pass that is over: its time is when the next one is due


def _size_bytes(partition: Partition) -> int:
    files = partition.replica.log.files
    try:
        return sum(files.segment(base).size_bytes() for base in files.view.bases)
    except OSError:
        return 0
