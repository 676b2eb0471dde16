"""LogManager: the open logs of a store, what this process appended to them, and when the store may be changed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from logstore import errors
from logstore.checkpoint import check_mark
from logstore.env import Env, reset_after_fork
from logstore.log.log import Log
from logstore.log.segments.names import METADATA
from logstore.maintenance import retention
from logstore.store.description import TopicDescription, as_int
from logstore.store.log_dir import LogDir
from logstore.store.topics import Topics

logger = logging.getLogger(__name__)

TopicPartition = tuple[str, int]


class LogManager:
    """The logs of one store; see the module. Safe for threads; notices a fork.

    `is_recovered`: nothing that this process recovered failed.
    """

    def __init__(self, log_dir: LogDir, env: Env) -> None:
        self.log_dir = log_dir
        self.env = env
        self.topics = Topics(log_dir, env)
        self.is_recovered = True
        self._logs: dict[TopicPartition, Log] = {}
        self._appended: set[TopicPartition] = set()  # by this process; `flush` makes them durable
        self._changes = 0  # of other threads that are on their way
        self._mutex = threading.RLock()
        self._is_closed = False
        reset_after_fork(self)

    def after_fork(self) -> None:
        """In a child: changes that were on their way, and appends that are not flushed, are the parent's."""
        self._mutex = threading.RLock()
        self._appended.clear()
        self._changes = 0

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def check_open(self, *, writable: bool = False) -> None:
        """Raise InvalidRequestError if the store is closed; in a forked child, take a lock of its own.

        Raises: ReadOnlyStoreError: it must be `writable`.
        """
        if self._is_closed:
            raise errors.InvalidRequestError(f"the store {self.log_dir.path} is closed; open it again")
        if not self.log_dir.belongs_to_this_process:
            with self._mutex:
                if not self.log_dir.belongs_to_this_process:
                    self.log_dir.reopen_after_fork()
        if writable and self.log_dir.read_only:
            raise errors.ReadOnlyStoreError(f"{self.log_dir.path} {self.log_dir.why_read_only()}")

    def check_writable(self) -> None:
        """Raise unless the store may be changed; from now on it has no clean end.

        Raises: ReadOnlyStoreError; FailedStoreError: an fsync failed here.
        """
        self.check_open(writable=True)
        check_mark(self.env, self.log_dir.path)
        self.log_dir.mark_dirty()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Around a change. No clean shutdown is recorded meanwhile. Raises as `check_writable`."""
        with self._mutex:
            self.check_writable()
            self._changes += 1
        try:
            yield
        finally:
            with self._mutex:
                self._changes -= 1

    def topic(self, name: str) -> TopicDescription:
        """One topic. Raises: UnknownTopicError."""
        self.check_open()
        return self.topics.catalog.topic(name)

    def partitions(self) -> list[TopicPartition]:
        return [(info.name, p) for info in self.topics.catalog.topics() for p in range(info.partitions)]

    def log(self, topic: str, partition: int) -> Log:
        """The log of one partition, opened if need be. Raises: UnknownTopicError, UnknownPartitionError."""
        info, partition = self.topic(topic), as_int(partition, "partition")
        if not 0 <= partition < info.partitions:
            raise errors.UnknownPartitionError(topic, partition, info.partitions)
        with self._mutex:
            log = self._logs.get((topic, partition))
            if log is not None and log.topic_id != info.topic_id:
                log.close()
                log = None
            if log is None:
                log = self._open(info, partition)
                self._logs[topic, partition] = log
            elif log.config is not info.config:
                log.reconfigure(info.config)
            return log

    def _open(self, info: TopicDescription, partition: int) -> Log:
        directory = self.log_dir.partition(info.name, partition)
        catalog = self.topics.catalog
        if self.env.files.stat(directory) is None:
            if catalog.topic(info.name).topic_id != info.topic_id:
                raise errors.StaleLogError(f"{directory.name} was recreated; look the topic up again")
            remedy = "restore it from a backup, or delete the topic and create it again"
            if self.log_dir.is_kafkas:
                remedy = "other brokers of that Kafka have it: read it in their directories"
            raise errors.StoreError(f"{directory}: the directory of {info.name}-{partition} is missing; {remedy}")
        try:
            log = Log.open(
                directory,
                topic_id=info.topic_id,
                config=info.config,
                env=self.env,
                recovery_point=self.log_dir.recovery_points.read().get((info.name, partition), 0),
                read_only=self.log_dir.read_only,
            )
            if self.log_dir.is_kafkas:
                log.files.take_as_kafkas()
            return log
        except errors.StaleLogError:
            if catalog.topic(info.name).topic_id != info.topic_id:
                raise
            remedy = f"it should say `topic_id: {info.topic_id}`"
            raise errors.CorruptLogError(directory / METADATA, 0, "it names another topic", remedy) from None

    def note_append(self, topic: str, partition: int) -> None:
        """This process appends there: flush it before a clean shutdown is recorded."""
        with self._mutex:
            self._appended.add((topic, partition))

    def drop(self, info: TopicDescription) -> None:
        with self._mutex:
            for partition in range(info.partitions):
                if log := self._logs.pop((info.name, partition), None):
                    log.close()
                self._appended.discard((info.name, partition))

    def flush(self, topic: str | None = None) -> None:
        """Fsync what this process appended (to this topic), and note how far it is on disk."""
        with self._mutex:
            wanted = sorted(key for key in self._appended if topic in (None, key[0]))
        self.flush_partitions(wanted)

    def flush_partitions(self, partitions: Iterable[TopicPartition], *, journal_lines: int = 0) -> None:
        """Fsync these logs, but for deleted ones, and note how far they, and the journal, are on disk."""
        points = {}
        try:
            for topic, partition in partitions:
                # Another thread may be at it: only a flush of one's own is known to be over. It may be deleted since.
                with suppress(errors.UnknownTopicError, errors.UnknownPartitionError, errors.StaleLogError):
                    log = self.log(topic, partition)
                    points[topic, partition] = log.topic_id, log.flush()
        finally:
            self.log_dir.recovery_points.advance(points, journal_lines=journal_lines)

    def expire(self, partitions: Iterable[TopicPartition], *, is_append: bool = False) -> None:
        """Apply retention where a topic has any. Failures are logged: they must not fail an open or a close."""
        for topic, partition in partitions:
            try:
                log = self.log(topic, partition)
                if log.config.expires:
                    act = partial(retention.expire, log, is_append=is_append)
                    self.log_dir.reserve.despite_full_disk(act)
            except errors.PylogError as error:
                logger.warning("%s-%d: retention did not run: %s", topic, partition, error)

    @contextmanager
    def closing(self) -> Iterator[bool]:
        """Close the store at the end; yields whether it is to be closed cleanly. A second close does nothing."""
        with self._mutex:
            if self._is_closed:
                yield False
                return
            try:
                yield not self.log_dir.read_only and self.log_dir.belongs_to_this_process
            finally:
                self._is_closed = True
                for log in self._logs.values():
                    log.close()
                self._logs.clear()
                self.log_dir.close()

    def expire_appended(self) -> None:
        self.expire(sorted(key for key in self._appended if key in self._logs))

    def mark_clean(self) -> None:
        """Note a clean end if no other process is here; what a killed process left unflushed is flushed first."""
        is_known = self.is_recovered and not self._changes
        if not is_known or self.log_dir.is_clean or not self.log_dir.try_alone():
            return
        try:
            self._appended.update(self.partitions())
            self.flush()
            check_mark(self.env, self.log_dir.path)
            self.log_dir.mark_clean()
        except errors.PylogError as error:
            logger.warning("path=%s not closed cleanly: %s", self.log_dir.path, error)
