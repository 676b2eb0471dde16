"""LogStore: one directory of topics, used in process. `logstore.open(path)` returns one.

The append path, top to bottom: `LogStore.append` (which partition does each row go to?) → `records.arrow.encode`
(rows to batches) → `Log.append_as_leader` (offsets) → `Segment.append` (one write). The read path: `LogStore.read` →
`Log.read` (whole batches, as stored) → `records.arrow.decode`.

Threads, processes and forks may share a directory: each `LogStore` belongs to one process, and notices a fork.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from logstore.checkpoint import check_mark, clear_mark, is_marked
from logstore.config import LogConfig
from logstore.env import SYSTEM, Env, reset_after_fork
from logstore.errors import (
    CorruptLogError,
    InvalidRecordError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    PylogError,
    ReadOnlyStoreError,
    StaleLogError,
    StoreError,
    UnknownPartitionError,
    UnknownTopicError,
)
from logstore.log.isolation import Isolation, checked, end_of
from logstore.log.log import Log, OffsetAndTimestamp
from logstore.log.producers.state import Producing
from logstore.log.segments.directory import METADATA
from logstore.maintenance import compaction, expiry
from logstore.maintenance.compaction import KEY_MAP_BYTES, CompactionReport
from logstore.store.catalog import TopicInfo, as_int
from logstore.store.log_dir import LogDir
from logstore.store.reading import READ_BYTES, read_isolated, schema_of
from logstore.store.topic_tail import Position, TopicTail
from logstore.store.topics import Topics
from logstore.store.transactions.coordinator import Outcomes, Part, Transaction, Transactions

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.log.recovery import RecoveryReport
    from logstore.maintenance.expiry import RetentionReport
    from logstore.records.compression import Codec
    from logstore.records.rows import Rows

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]  # (done, total)


def no_progress(done: int, total: int) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end)."""

    start: int
    end: int

    @property
    def count(self) -> int:
        """How many offsets; records may be fewer."""
        return self.end - self.start


def open_store(
    path: str | os.PathLike[str],
    *,
    mode: Literal["auto", "r"] = "auto",
    create: bool = True,
    env: Env = SYSTEM,
) -> LogStore:
    """Return the store in this directory, which is made if it is not there.

    With mode "r", or where the directory may only be read, the store can only be read. The first process to open a
    store after a crash recovers it (tails that were not flushed are checked, torn ones cut).

    Raises: NotAStoreError: other files are there, or a newer format; StoreLockedError: a broker has it.
    """
    if mode not in ("auto", "r"):
        raise InvalidRequestError(f"mode={mode!r}: 'auto', or 'r' for reading only")
    log_dir = LogDir.open(Path(path), read_only=mode == "r", create=create, env=env)
    store = LogStore(log_dir, env)
    try:
        if log_dir.is_alone:
            store.take_over()
        log_dir.share()
    except BaseException:
        log_dir.close()
        raise
    return store


def recover(
    path: str | os.PathLike[str], *, progress: Progress = no_progress, env: Env = SYSTEM
) -> list[RecoveryReport]:
    """Check and mend a store that nobody else has open, and take it back into service after a failed fsync.

    Raises: StoreLockedError: others have it open; CorruptLogError: flushed data is damaged; nothing of it was dropped.
    """
    log_dir = LogDir.open(Path(path), read_only=False, create=False, env=env, alone_for="recovery")
    with LogStore(log_dir, env) as store:
        log_dir.mark_dirty()
        return store.recover(progress)


class LogStore:
    """The topics of one directory. Use it in a `with` block, or call `close()`: that makes everything durable.

    An append is in the page cache when `append` returns (it survives the process, not the power) and on disk after
    `flush()`, `close()`, or as `flush.messages` and `flush.ms` say.
    """

    def __init__(self, log_dir: LogDir, env: Env) -> None:
        self._log_dir = log_dir
        self.env = self._env = env
        self._topics = Topics(log_dir, env)
        self._catalog = self._topics.catalog
        self._logs: dict[tuple[str, int], Log] = {}
        self._appended: set[tuple[str, int]] = set()  # by this store; `flush` makes them durable
        self._appending = 0  # appends of other threads that are on their way
        self.transactions = Transactions(log_dir, env, self)
        self._mutex = threading.RLock()
        self._is_recovered = True  # as far as this store knows
        # Where rows without a key begin: in turn, and elsewhere in every process.
        self._turns = itertools.count(os.getpid())
        self._closed = False
        reset_after_fork(self)

    def after_fork(self) -> None:
        """In a child: what the parent's threads were doing is theirs to finish, and its appends are its to flush."""
        self._mutex = threading.RLock()
        self._appended.clear()
        self._appending = 0

    @property
    def path(self) -> Path:
        """The directory."""
        return self._log_dir.path

    @property
    def read_only(self) -> bool:
        """True when nothing can be written."""
        return self._log_dir.read_only

    # ------------------------------------------------------------------ topics

    def topics(self) -> list[TopicInfo]:
        """Every topic, by name. One whose description is damaged has `damage`; it can be neither read nor written."""
        self._check_open()
        return self._catalog.topics()

    def topic(self, name: str) -> TopicInfo:
        """One topic. Raises: UnknownTopicError (with the names that look alike)."""
        self._check_open()
        return self._catalog.topic(name)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        config: Mapping[str, Any] | None = None,
        if_not_exists: bool = False,
    ) -> TopicInfo:
        """Create a topic; on return it is durable.

        Raises: TopicExistsError (unless `if_not_exists`), InvalidTopicError, InvalidConfigError, ReadOnlyStoreError.
        """
        self._check_writable()
        self._log_dir.reserve.keep()
        return self._topics.create(name, partitions, config or {}, if_not_exists=if_not_exists)

    def alter_topic(
        self, name: str, *, partitions: int | None = None, config: Mapping[str, Any] | None = None
    ) -> TopicInfo:
        """Change settings (a value of None removes the override) or add partitions; never fewer.

        Keys hash over the number of partitions: after it has grown, new records of a key may go elsewhere.
        """
        self._check_writable()
        self._log_dir.reserve.keep()
        return self._topics.alter(name, partitions, config or {})

    def delete_topic(self, name: str) -> None:
        """Delete a topic: it is gone at once, its files after `file.delete.delay.ms`."""
        self._check_writable()
        info = self._topics.delete(name)
        with self._mutex:
            for partition in range(info.partitions):
                if log := self._logs.pop((name, partition), None):
                    log.close()
                self._appended.discard((name, partition))

    # ----------------------------------------------------------------- records

    def append(  # noqa: PLR0913  each of them is one choice of the caller
        self,
        topic: str,
        data: pa.Table | pa.RecordBatch,
        *,
        partitioner: str = "murmur3",
        compression: str | None = None,
        flush: bool = False,
        producer: Producing | None = None,
        transaction: Transaction | None = None,
    ) -> dict[int, OffsetRange]:
        """Append rows; return the offsets that they got, per partition. Rows of one partition keep their order.

        Columns: `value` (binary or string), and optionally `key`, `headers` (list of struct key, value), `timestamp`
        (any Arrow timestamp, or int64 milliseconds; null: now) and `partition` (null: `partitioner` decides, by key).
        Each partition gets its rows as one unbroken range. Nothing is appended when a row is not acceptable. Batches of
        a `producer` bear its stamp, and follow the rules of `logstore.log.producers.state`. Those of a
        `transaction` become
        visible when it is committed.

        Raises: InvalidRecordError (column, row), RecordTooLargeError, UnknownTopicError, DiskFullError: `appended` then
        holds the ranges that were written before, and the message names them.
        """
        import pyarrow as pa

        from logstore.records.partitioner import group_by_partition, partition_ids
        from logstore.records.rows import Rows

        if not isinstance(data, pa.Table | pa.RecordBatch):
            raise InvalidRecordError(
                f"data is a {type(data).__name__}: it must be a pyarrow Table or RecordBatch"
            )
        with self.changing():
            self._log_dir.reserve.keep()
            info = self.topic(topic)
            codec, limit = _codec(info.config, compression), info.config.batch_bytes_max
            rows = Rows(data, now_ms=self._env.clock.now_ms())
            rows.check(batch_bytes_max=limit, keys_required=info.config.is_compacted)
            if allowed := info.config.timestamps_at(self._env.clock.now_ms()):
                rows.check_times(allowed)
            ids = partition_ids(rows, info.partitions, partitioner=partitioner, start=next(self._turns))
            parts = group_by_partition(ids, info.partitions)
            if transaction is None:
                appended = self._append_parts(info, rows, parts, codec, producer)
            else:
                with transaction.appending(info, parts, rows) as wanted:
                    appended = self._append_parts(info, rows, wanted, codec, transaction)
            if flush:
                self.flush(topic)
            return appended

    def _append_parts(
        self, info: TopicInfo, rows: Rows, parts: Sequence[Part], codec: Codec, producer: Producing | None
    ) -> dict[int, OffsetRange]:
        """Append to each of these partitions its rows."""
        from logstore.records.arrow import encode

        appended: dict[int, OffsetRange] = {}
        try:
            for partition, order in parts:
                log = self.log(info.name, partition)
                with self._mutex:
                    self._appended.add((info.name, partition))
                stamp = producer.stamp(info.name, partition, len(order)) if producer else None
                batches = encode(
                    rows, order, codec=codec, batch_bytes_max=info.config.batch_bytes_max, producer=stamp
                )
                if producer is not None and log.topic_id != info.topic_id:
                    raise StaleLogError(f"topic {info.name!r} was deleted and created anew; look it up again")
                for extent in self._append_batches(log, batches, producer):
                    appended[partition] = extent
                if log.take_rolled() and log.config.expires:
                    self._keep_house([(info.name, partition)], is_append=True)
        except PylogError as error:
            raise _with_appended(error, info.name, appended) from error
        return appended

    def _append_batches(
        self, log: Log, batches: Iterator[memoryview], producer: Producing | None
    ) -> Iterator[OffsetRange]:
        """Append under one lock, so that the range has no one else's records in it; yields it as it grows."""
        with log.lock():
            start = None
            for records in batches:
                done = log.append_as_leader(records, guard=producer.guard if producer else None)
                start = done.first_offset if start is None else start
                yield OffsetRange(start, done.next_offset)

    def transaction(self, name: str = "", *, batch_id: int | None = None) -> Transaction:
        """Return a transaction: what is appended with it is visible at once when its `with` block ends, or never.

        ::

            with store.transaction() as transaction:
                store.append("orders", rows, transaction=transaction)
                store.append("payments", more, transaction=transaction)

        Under a name, a batch id that was committed before is not written again; ids only grow.

        Raises: BatchConflictError: a later batch was committed under this name, or (at the end) another of this id.
        """
        self._check_writable()
        return self.transactions.begin(name, batch_id)

    def read(  # noqa: PLR0913  each of them is one choice of the caller
        self,
        topic: str,
        *,
        partition: int,
        start: int | None = None,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        isolation: Isolation = "read_committed",
        batch_bytes: int = READ_BYTES,
    ) -> pa.RecordBatchReader:
        """Return the records with start <= offset < end (from the first, to the last now there) as a RecordBatchReader.

        Schema: `records.arrow.RECORD_SCHEMA`, or those of its `columns`. CRCs are checked. A batch is about
        `batch_bytes` of log, or one record; memory is twice that, whatever the range. Offsets may have gaps. With
        "read_committed" data of transactions is there when they are committed: reading ends where the first undecided
        one begins, and aborted ones are left out.

        Raises: OffsetOutOfRangeError; CorruptLogError (while iterating: file, position, reason).
        """
        import pyarrow as pa

        log, outcomes = self.log(topic, partition), self.outcomes()
        extent = self._extent(log)
        start = extent.start if start is None else as_int(start, "start")
        end = extent.end if end is None else as_int(end, "end")
        for offset in (start, end):
            if not extent.start <= offset <= extent.end:
                raise OffsetOutOfRangeError(offset, extent.start, extent.end, log.directory.name)
        if start > end:
            raise InvalidRequestError(f"start={start} is behind end={end}")
        found = read_isolated(log, start, end, columns, checked(isolation), outcomes, batch_bytes=batch_bytes)
        return pa.RecordBatchReader.from_batches(schema_of(columns), found)

    def tail(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: Position | Mapping[int, int] = "latest",
        poll_ms: int = 100,
        timeout_ms: int | None = None,
        isolation: Isolation = "read_committed",
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches as they are appended, with a first column `partition`; new partitions are picked up.

        With "read_committed" those of a transaction come when it is committed.

        Ends when nothing came for `timeout_ms` (never, without it).
        """
        # It knows where it begins now, not at the first batch.
        follower = TopicTail(self, topic, partitions, start, checked(isolation))
        return follower.batches(self._env.clock, poll_ms=poll_ms, timeout_ms=timeout_ms)

    def offsets(self, topic: str, *, isolation: Isolation = "read_committed") -> dict[int, OffsetRange]:
        """The offsets [log start, end) of every partition, as they are now.

        The end is that of the log, or with "read_committed" that of what is decided.
        """
        wanted = checked(isolation)

        def look() -> dict[int, OffsetRange]:
            return {p: self._extent(self.log(topic, p), wanted) for p in range(self.topic(topic).partitions)}

        return look() if wanted == "read_uncommitted" else self.transactions.settled(look)

    def outcomes(self) -> Outcomes:
        """How transactions ended whose markers may not be in the log yet, as of now: for readers."""
        return self.transactions.outcomes()

    def offsets_for_times(
        self, topic: str, timestamps_ms: int | Mapping[int, int]
    ) -> dict[int, OffsetAndTimestamp | None]:
        """The first record at or after a time (one for all partitions, or one each); None when there is none."""
        if not isinstance(timestamps_ms, Mapping):
            timestamp_ms = as_int(timestamps_ms, "timestamps_ms")
            timestamps_ms = dict.fromkeys(range(self.topic(topic).partitions), timestamp_ms)
        return {p: self.log(topic, p).offset_for_time(ms) for p, ms in timestamps_ms.items()}

    def flush(self, topic: str | None = None) -> None:
        """Make every append of this store (to this topic) durable: fsync, then note how far."""
        self._check_open()
        if topic is not None:
            self.topic(topic)
        with self._mutex:
            wanted = sorted(key for key in self._appended if topic in (None, key[0]))
        points = {}
        try:
            for name, partition in wanted:
                # Another thread may be at it: only a flush of one's own is known to be over.
                with suppress(UnknownTopicError, UnknownPartitionError, StaleLogError):  # deleted since
                    log = self.log(name, partition)
                    points[name, partition] = log.topic_id, log.flush()
        finally:
            self._log_dir.advance_recovery_points(points)

    # ------------------------------------------------------------ keeping house

    def expire(self, topic: str, partition: int, *, dry_run: bool = False) -> RetentionReport:
        """Apply the topic's retention to a partition now; `dry_run`: say what would go."""
        if not dry_run:
            self._check_writable()
        expire = partial(expiry.expire, self.log(topic, partition), dry_run=dry_run)
        return expire() if dry_run else self._log_dir.reserve.despite_full_disk(expire)

    def compact(
        self,
        topic: str,
        partition: int,
        *,
        dry_run: bool = False,
        key_map_bytes: int = KEY_MAP_BYTES,
        progress: Progress = no_progress,
    ) -> CompactionReport:
        """Compact a partition now, if that is due; `dry_run`: say whether it is.

        The last offsets of the keys are held in at most `key_map_bytes`; if they do not fit, the pass takes several
        rounds. `progress` is told the bytes done, of how many, in each round. Appends and reads go on.
        """
        if not dry_run:
            self._check_writable()
        log = self.log(topic, partition)
        report = compaction.compact(log, dry_run=dry_run, key_map_bytes=key_map_bytes, progress=progress)
        if report.rounds:
            self._log_dir.advance_recovery_points({(topic, partition): (log.topic_id, log.recovery_point)})
        return report

    def delete_records(self, topic: str, offsets: Mapping[int, int]) -> dict[int, OffsetRange]:
        """Delete the records below these offsets (-1: all) for good; return the offsets that are left.

        Raises: OffsetOutOfRangeError, UnknownPartitionError: before anything is deleted;
        InvalidRequestError: the topic is only compacted.
        """
        self._check_writable()
        logs = {p: self.log(topic, p) for p in offsets}
        ends = {p: expiry.deletable_to(logs[p], as_int(o, "offset")) for p, o in offsets.items()}
        move = self._log_dir.reserve.despite_full_disk
        starts = {p: move(partial(log.advance_start, ends[p])) for p, log in logs.items()}
        return {p: OffsetRange(starts[p], log.log_end_offset) for p, log in logs.items()}

    def housekeep(self) -> list[RetentionReport]:
        """Apply retention everywhere, remove files whose delay is over; return what went, where something did.

        Opening and closing a store do this for what they touch. A partition that fails is logged.
        """
        self._check_writable()
        self._topics.finish_deletions()
        return self._keep_house((info.name, p) for info in self.topics() for p in range(info.partitions))

    def _keep_house(
        self, partitions: Iterable[tuple[str, int]], *, is_append: bool = False
    ) -> list[RetentionReport]:
        """The same for these partitions. Nothing here is worth failing an open or a close."""
        reports = []
        for topic, partition in partitions:
            try:
                expire = partial(expiry.expire, self.log(topic, partition), is_append=is_append)
                reports.append(self._log_dir.reserve.despite_full_disk(expire))
            except PylogError as error:
                logger.warning("%s-%d: retention did not run: %s", topic, partition, error)
        return [report for report in reports if report.removed]

    # ------------------------------------------------------------------- logs

    def log(self, topic: str, partition: int) -> Log:
        """The log of one partition: for planning, tools and tests. It belongs to the store: do not close it."""
        info, partition = self.topic(topic), as_int(partition, "partition")
        if not 0 <= partition < info.partitions:
            raise UnknownPartitionError(topic, partition, info.partitions)
        with self._mutex:
            log = self._logs.get((topic, partition))
            if log is not None and log.topic_id != info.topic_id:
                log.close()
                log = None
            if log is None:
                log = self._open_log(info, partition)
                self._logs[topic, partition] = log
            elif log.config is not info.config:
                log.reconfigure(info.config)
            return log

    def _open_log(self, info: TopicInfo, partition: int) -> Log:
        directory = self._log_dir.partition(info.name, partition)
        if self._env.files.stat(directory) is None:
            if self._catalog.topic(info.name).topic_id != info.topic_id:
                raise StaleLogError(f"{directory.name} was created anew; look the topic up again")
            raise StoreError(
                f"{directory}: the directory of {info.name}-{partition} is missing; restore it from a backup, or "
                "delete the topic and create it again"
            )
        try:
            return Log.open(
                directory,
                topic_id=info.topic_id,
                config=info.config,
                env=self._env,
                recovery_point=self._log_dir.recovery_points().get((info.name, partition), 0),
                read_only=self.read_only,
            )
        except StaleLogError:
            if self._catalog.topic(info.name).topic_id != info.topic_id:
                raise
            remedy = f"it should say `topic_id: {info.topic_id}`"
            raise CorruptLogError(directory / METADATA, 0, "it names another topic", remedy) from None

    # ---------------------------------------------------------------- opening, closing

    def take_over(self) -> None:
        """What the only process on the directory does first: recover it unless it was closed well, finish deletions."""
        if not self._log_dir.is_clean:
            for report in self._recoveries():
                if isinstance(report, PylogError):
                    self._is_recovered = False
                    # The other partitions are fine; this one says it again to whoever writes there.
                    logger.error("not recovered: %s", report)
        self._end_transactions()
        self._topics.finish_deletions()
        self._keep_house(
            (info.name, p)
            for info in self._catalog.topics()
            if info.config.expires
            for p in range(info.partitions)
        )

    def _end_transactions(self) -> None:
        """End the transactions that nobody will end."""
        try:
            if self._log_dir.is_clean:
                self.transactions.tend()
            else:
                self.transactions.recover()
        except PylogError as error:
            logger.error("transactions are not ended: %s", error)

    def recover(self, progress: Progress = no_progress) -> list[RecoveryReport]:
        """Check and mend what lies above the recovery point of every partition; return what was found in each.

        If this process is alone with the store, it is in service again after a failed fsync.

        Raises: CorruptLogError: flushed data is damaged; nothing of it was dropped. StoreError: a topic's description
        is, or is gone; the other topics were recovered.
        """
        self._check_open()
        if self.read_only:
            raise self._read_only()
        self._log_dir.mark_dirty()
        found = list(self._recoveries(progress))
        errors = [report for report in found if isinstance(report, PylogError)]
        errors += self._topics.recover()
        self._is_recovered = not errors
        # A topic that nobody can use is in no other's way, unless an fsync failed, of it perhaps.
        for error in errors:
            if not isinstance(error, StoreError) or is_marked(self._env, self.path):
                raise error
        if self._log_dir.is_alone:
            # Before transactions are ended, which writes to logs that are whole now.
            clear_mark(self._env, self.path)
        self.transactions.recover(mend=True)
        if errors:
            raise errors[0]
        return [report for report in found if not isinstance(report, PylogError)]

    def _recoveries(self, progress: Progress = no_progress) -> Iterator[RecoveryReport | PylogError]:
        """Recover partition by partition; one that cannot be recovered does not keep the others from it."""
        partitions = []
        for name in self._catalog.names():
            try:
                partitions += [(name, p) for p in range(self._catalog.topic(name).partitions)]
            except StoreError as error:
                yield error
        for done, (topic, partition) in enumerate(partitions):
            progress(done, len(partitions))
            try:
                yield self._log_dir.reserve.despite_full_disk(self.log(topic, partition).recover)
            except PylogError as error:
                yield error
        progress(len(partitions), len(partitions))

    def close(self) -> None:
        """Flush, and note a clean end when no other process has the store open. Closing twice is fine."""
        with self._mutex:
            if self._closed:
                return
            try:
                if not self.read_only and self._log_dir.belongs_to_this_process:
                    self._close_transactions()
                    self.flush()
                    touched = sorted(key for key in self._appended if key in self._logs)
                    self._keep_house(key for key in touched if self._logs[key].config.expires)
                    self._mark_clean()
            finally:
                self._closed = True
                for log in self._logs.values():
                    log.close()
                self._logs.clear()
                self._log_dir.close()

    def _close_transactions(self) -> None:
        try:
            self.transactions.close()
        except PylogError as error:
            logger.warning("path=%s transactions are not ended: %s", self.path, error)

    def _mark_clean(self) -> None:
        """Note a clean end, if nobody else is here: what a killed process left unflushed is flushed first."""
        is_known = self._is_recovered and not self._appending
        if not is_known or self._log_dir.is_clean or not self._log_dir.try_alone():
            return
        try:
            self._appended.update((info.name, p) for info in self.topics() for p in range(info.partitions))
            self.flush()
            check_mark(self._env, self.path)
            self._log_dir.mark_clean()
        except PylogError as error:
            logger.warning("path=%s not closed cleanly: %s", self.path, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ helpers

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequestError(f"the store {self.path} is closed; open it again")
        if not self._log_dir.belongs_to_this_process:
            with self._mutex:
                if not self._log_dir.belongs_to_this_process:
                    self._log_dir.reopen_after_fork()

    def _check_writable(self) -> None:
        self._check_open()
        if self.read_only:
            raise self._read_only()
        check_mark(self._env, self.path)
        self._log_dir.mark_dirty()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """No clean end is noted while a thread is inside, and nobody enters while one is being noted."""
        with self._mutex:
            self._check_writable()
            self._appending += 1
        try:
            yield
        finally:
            with self._mutex:
                self._appending -= 1

    def _read_only(self) -> ReadOnlyStoreError:
        return ReadOnlyStoreError(f"{self.path} {self._log_dir.why_read_only()}")

    def _extent(self, log: Log, isolation: Isolation = "read_uncommitted") -> OffsetRange:
        end = end_of(log, isolation, self.outcomes())
        return OffsetRange(min(log.log_start_offset, end), end)


def _codec(config: LogConfig, compression: str | None) -> Codec:
    """The topic's codec; where it leaves the choice to the writer, the one asked for."""
    from logstore.records.compression import Codec

    if config.compression_type != "producer":
        return Codec.from_name(config.compression_type)
    return Codec.from_name(compression or "none")


def _with_appended(error: PylogError, topic: str, appended: Mapping[int, OffsetRange]) -> PylogError:
    """The same error, saying what had been appended before it."""
    if not appended:
        return error
    done = ", ".join(f"{topic}-{p} offsets {r.start} to {r.end - 1}" for p, r in sorted(appended.items()))
    error.args = (f"{error}; appended before that: {done}",)
    error.__dict__["appended"] = dict(appended)
    return error
