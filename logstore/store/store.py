"""LogStore: one directory of topics, used in process. `logstore.open(path)` returns one.

The append path: `LogStore.append` (which partition does each row go to?) → `appending.append_parts` (rows to batches) →
`Log.append_as_leader` (offsets) → `LogWriter.append` (one write). The read path: `LogStore.read` → `Log.read` (whole
batches, as stored) → `records.arrow.decode`.

Threads, processes and forks may share a directory: each `LogStore` belongs to one process, and notices a fork.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from logstore.config import Isolation
from logstore.env import SYSTEM, Env
from logstore.errors import InvalidRequestError, PylogError
from logstore.log.isolation import checked
from logstore.log.log import Log
from logstore.log.producers.state import Producing
from logstore.log.recovery import RecoveryReport
from logstore.log.segments.lookup import OffsetAndTimestamp
from logstore.maintenance import compaction, retention
from logstore.maintenance.compaction import KEY_MAP_BYTES, CompactionReport
from logstore.maintenance.retention import RetentionReport
from logstore.progress import Progress, no_progress
from logstore.records.latest import check_view
from logstore.records.tables import Tabular, as_arrow
from logstore.records.times import Time
from logstore.store import recovery
from logstore.store.appending import append_parts, codec_of
from logstore.store.description import TopicDescription, as_int, as_ms
from logstore.store.log_dir import LogDir
from logstore.store.log_manager import LogManager
from logstore.store.reading import (
    READ_BYTES,
    OffsetRange,
    at_least_one,
    extent_of,
    records_between,
    schema_of,
    with_partition,
)
from logstore.store.schemas import check_ids, declare, demands_of, schemas_of
from logstore.store.topic_tail import Position, TopicTail
from logstore.store.transactions.coordinator import Transactions
from logstore.store.transactions.transaction import Part, Transaction
from logstore.store.typed import as_records, read_typed

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.schemas.choice import Typing
    from logstore.schemas.declared import Declaration
    from logstore.schemas.registry import Schemas

logger = logging.getLogger(__name__)


def open_store(
    path: str | os.PathLike[str],
    *,
    mode: Literal["auto", "r"] = "auto",
    read_only: bool = False,
    create: bool = True,
    env: Env = SYSTEM,
) -> LogStore:
    """Return the store in this directory, which is made if it is not there.

    With `read_only` (or mode "r"), where the directory may only be read, and where it is a Kafka's, the store can only
    be read. The first process to open a
    store after a crash recovers it (tails that were not flushed are checked, torn ones cut).

    Raises: NotAStoreError: other files are there, or a newer format; StoreLockedError: a broker has it.
    """
    if mode not in ("auto", "r"):
        raise InvalidRequestError(f"mode={mode!r}: 'auto', or 'r' for reading only")
    log_dir = LogDir.open(Path(path), read_only=read_only or mode == "r", create=create, env=env)
    store = LogStore(log_dir, env)
    try:
        if log_dir.is_alone:
            recovery.take_over(store.logs, store.transactions)
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
        return store.recover(progress)


class LogStore:
    """The topics of one directory. Use it in a `with` block, or call `close()`: that makes everything durable.

    An append is in the page cache when `append` returns (it survives the process, not the power) and on disk after
    `flush()`, `close()`, or as `flush.messages` and `flush.ms` say.
    """

    def __init__(self, log_dir: LogDir, env: Env) -> None:
        self.env = env
        self.logs = LogManager(log_dir, env)
        self.transactions = Transactions(self.logs)
        self._log_dir = log_dir
        # Where rows without a key begin: in turn, and elsewhere in every process.
        self._turns = itertools.count(os.getpid())
        self._topic_schemas = schemas_of(self)

    @property
    def path(self) -> Path:
        return self._log_dir.path

    @property
    def read_only(self) -> bool:
        return self._log_dir.read_only

    @property
    def schemas(self) -> Schemas:
        """The schemas of this directory, in its topic `_schemas`."""
        return self._topic_schemas

    def topics(self) -> list[TopicDescription]:
        """Every topic, by name. One whose description is damaged has `damage`; it can be neither read nor written."""
        self.logs.check_open()
        return self.logs.topics.catalog.topics()

    def topic(self, name: str) -> TopicDescription:
        """One topic. Raises: UnknownTopicError (with the names that look alike)."""
        return self.logs.topic(name)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        config: Mapping[str, Any] | None = None,
        if_not_exists: bool = False,
        **columns: Unpack[Declaration],
    ) -> TopicDescription:
        """Create a topic; on return it is durable.

        Its columns (`logstore.schemas.declared`) are registered before the topic is there.

        Raises: TopicExistsError (unless `if_not_exists`), InvalidTopicError, InvalidConfigError, ReadOnlyStoreError;
        InvalidRequestError: the columns are none, or do not fit those of before.
        """
        self.logs.check_writable()
        self._log_dir.reserve.keep()
        if columns:
            if not if_not_exists:
                self.logs.topics.catalog.check_new(name)
            declare(self.schemas, name, columns)
        return self.logs.topics.create(name, partitions, config or {}, if_not_exists=if_not_exists)

    def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        config: Mapping[str, Any] | None = None,
        **columns: Unpack[Declaration],
    ) -> TopicDescription:
        """Change settings (a value of None removes the override), columns as in `create_topic`, or add partitions.

        Partitions never become fewer. Keys hash over their number: after it has grown, new records of a key may go
        elsewhere.
        """
        self.logs.check_writable()
        self._log_dir.reserve.keep()
        if columns:
            declare(self.schemas, self.topic(name).name, columns)
        return self.logs.topics.alter(name, partitions, config or {})

    def delete_topic(self, name: str) -> None:
        """Delete a topic: it is gone at once, its files after `file.delete.delay.ms`."""
        self.logs.check_writable()
        self.logs.drop(self.logs.topics.delete(name))

    def append(  # noqa: PLR0913  each of them is one choice of the caller
        self,
        topic: str,
        data: Tabular,
        *,
        partitioner: str = "murmur3",
        compression: str | None = None,
        flush: bool = False,
        producer: Producing | None = None,
        transaction: Transaction | None = None,
        **typing: Unpack[Typing],
    ) -> dict[int, OffsetRange]:
        """Append rows; return the offsets that they got, per partition. Rows of one partition keep their order.

        The rows: an Arrow Table or RecordBatch, a DataFrame of pandas or polars, a dict of columns, or a list of dicts.
        Columns: `value` (binary or string), and optionally `key`, `headers` (list of struct key, value), `timestamp`
        (any Arrow timestamp, of UTC if it has no zone; datetimes with a zone; or int64 milliseconds; null: now) and
        `partition` (null: `partitioner` decides, by key).
        Each partition gets its rows as one unbroken range. Nothing is appended when a row is not acceptable. Batches of
        a `producer` bear its stamp and follow the rules of `logstore.log.producers.state`; those of a `transaction`
        become visible when it is committed. With `schema` or `typed`, see `logstore.schemas.choice.Typing`, the rows
        have typed columns instead, as `TypedRecords.encode` takes them.

        Raises: InvalidRecordError (column, row), RecordTooLargeError, UnknownTopicError, DiskFullError: `appended` then
        holds the ranges that were written before, and the message names them.
        """
        from logstore.records.partitioner import group_by_partition, partition_ids
        from logstore.records.rows import Rows

        data = as_arrow(as_records(self, topic, data, typing))
        demands = demands_of(self._topic_schemas, self.logs.topic(topic))  # may read, so not under a lock
        with self.logs.changing():
            self._log_dir.reserve.keep()
            info = self.logs.topic(topic)
            codec, limit = codec_of(info.config, compression), info.config.batch_bytes_max
            rows = Rows(data, now_ms=self.env.clock.now_ms())
            rows.check(batch_bytes_max=limit, keys_required=info.config.is_compacted)
            if allowed := info.config.timestamps_at(self.env.clock.now_ms()):
                rows.check_times(allowed)
            check_ids(rows, demands)
            ids = partition_ids(rows, info.partitions, partitioner=partitioner, start=next(self._turns))
            parts: Sequence[Part] = group_by_partition(ids, info.partitions)
            if transaction is not None:
                parts = transaction.enlist(info, parts)
            appended = append_parts(self.logs, info, rows, parts, codec, transaction or producer)
            if transaction is not None:
                transaction.wrote(info, rows)
            if flush:
                self.flush(topic)
            return appended

    def transaction(self, name: str = "", *, batch_id: int | None = None) -> Transaction:
        """Return a transaction: what is appended with it is visible at once when its `with` block ends, or never.

        ::

            with store.transaction() as transaction:
                store.append("orders", rows, transaction=transaction)
                store.append("payments", more, transaction=transaction)

        Under a name, a batch id that was committed before is not written again; ids only grow.

        Raises: BatchConflictError: a later batch was committed under this name, or (at the end) another of this id.
        """
        self.logs.check_writable()
        return self.transactions.begin(name, batch_id)

    def read(  # noqa: PLR0913  each of them is one choice of the caller
        self,
        topic: str,
        *,
        partition: int | None = None,
        start: Time | None = None,
        end: Time | None = None,
        columns: Sequence[str] | None = None,
        isolation: Isolation = "read_committed",
        batch_bytes: int = READ_BYTES,
        view: Literal["latest"] | None = None,
        **typing: Unpack[Typing],
    ) -> pa.RecordBatchReader:
        """Return the records with start <= offset < end (from the first, to the last now there) as a RecordBatchReader.

        A datetime stands for the first record at or after it, or for the end if there is none; it needs a time zone.
        Without a partition: all records of the topic, partition by partition, with a first column `partition`. Schema:
        `records.arrow.RECORD_SCHEMA`, or those of its `columns`. CRCs are checked. A batch is about
        `batch_bytes` of log, or one record; memory is twice that, whatever the range. If there is no record, one batch
        without rows comes: some libraries take a schema from batches only. Offsets may have gaps. With
        "read_committed", reading ends where the first open transaction begins, and aborted ones are left out. With
        `schema` or `typed`, see `logstore.schemas.choice.Typing`, the rows have typed columns instead. `view="latest"`
        leaves the last record of each key before `end`, unless it is a tombstone; a partition is read from its end.

        Raises: OffsetOutOfRangeError; while iterating: CorruptLogError (file, position, reason), MisfitError.
        """
        import pyarrow as pa

        check_view(view, start)
        options: dict[str, Any] = {"isolation": isolation, "batch_bytes": batch_bytes, "start": start, "end": end}
        options["view"] = view
        if typing:
            return read_typed(self, topic, partition, columns, typing, **options)
        if partition is None:
            if not all(place is None or isinstance(place, datetime) for place in (start, end)):
                raise InvalidRequestError(
                    "start and end are offsets of one partition: say which, by partition=0, or give times"
                )
            parts = [
                self.read(topic, partition=p, columns=columns, **options) for p in range(self.topic(topic).partitions)
            ]
            rows = (with_partition(batch, p) for p, part in enumerate(parts) for batch in part)
            fields = [("partition", pa.int32()), *((field.name, field.type) for field in schema_of(columns))]
            return pa.RecordBatchReader.from_batches(pa.schema(fields), rows)
        log, outcomes, schema = self.logs.log(topic, partition), self.transactions.outcomes(), schema_of(columns)
        found = records_between(
            log, start, end, schema.names, checked(isolation), outcomes, batch_bytes=batch_bytes, is_latest=bool(view)
        )
        return pa.RecordBatchReader.from_batches(schema, at_least_one(found, schema))

    def tail(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: Position | Mapping[int, Time] = "latest",
        poll_ms: int = 100,
        timeout_ms: int | None = None,
        isolation: Isolation = "read_committed",
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches as they are appended, with a first column `partition`; new partitions are picked up.

        `start` is a place of all partitions or of each: a datetime stands for the first record at or after it, or for
        the end if there is none; it needs a time zone.
        With "read_committed" those of a transaction come when it is committed. Ends when nothing came for `timeout_ms`
        (never, without it).

        Raises: UnreadableBatchError, once for each: who asks on gets what follows; CorruptLogError.
        """
        # It knows where it begins now, not at the first batch.
        tail = TopicTail(self.logs, self.transactions.outcomes, topic, partitions, start, checked(isolation))
        return tail.batches(self.env.clock, poll_ms=poll_ms, timeout_ms=timeout_ms)

    def offsets(self, topic: str, *, isolation: Isolation = "read_committed") -> dict[int, OffsetRange]:
        """The offsets [log start, end) of every partition, as they are now.

        With "read_committed" the end is that of what is decided.
        """
        wanted = checked(isolation)

        def look() -> dict[int, OffsetRange]:
            outcomes, partitions = self.transactions.outcomes, range(self.topic(topic).partitions)
            return {p: extent_of(self.logs.log(topic, p), wanted, outcomes()) for p in partitions}

        return look() if wanted == "read_uncommitted" else self.transactions.settled(look)

    def offsets_for_times(self, topic: str, times: Time | Mapping[int, Time]) -> dict[int, OffsetAndTimestamp | None]:
        """The first record at or after a time (one for all partitions, or one each); None when there is none.

        A time is a datetime with a time zone, or milliseconds since 1970.
        """
        if not isinstance(times, Mapping):
            times = dict.fromkeys(range(self.topic(topic).partitions), as_ms(times, "times"))
        return {p: self.logs.log(topic, p).reader.offset_for_time(as_ms(time, "times")) for p, time in times.items()}

    def flush(self, topic: str | None = None) -> None:
        """Make every append of this store (to this topic) durable."""
        self.logs.check_open()
        if topic is not None:
            self.topic(topic)
        self.logs.flush(topic)

    def expire(self, topic: str, partition: int, *, dry_run: bool = False) -> RetentionReport:
        """Apply the topic's retention to a partition now; `dry_run`: only report what would go."""
        if not dry_run:
            self.logs.check_writable()
        expire = partial(retention.expire, self.logs.log(topic, partition), dry_run=dry_run)
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
        """Compact a partition now, if that is due; `dry_run`: only report whether it is.

        The last offsets of the keys are held in at most `key_map_bytes`; if they do not fit, the pass takes several
        rounds. `progress` gets the bytes done, of how many, in each round. Appends and reads go on.
        """
        if not dry_run:
            self.logs.check_writable()
        log = self.logs.log(topic, partition)
        report = compaction.compact(log, dry_run=dry_run, key_map_bytes=key_map_bytes, progress=progress)
        if report.rounds:
            points = {(topic, partition): (log.topic_id, log.point.offset)}
            self._log_dir.recovery_points.advance(points)
        return report

    def delete_records(self, topic: str, offsets: Mapping[int, int]) -> dict[int, OffsetRange]:
        """Delete the records below these offsets (-1: all) for good; return the offsets that are left.

        Raises: OffsetOutOfRangeError, UnknownPartitionError: before anything is deleted; InvalidRequestError: the topic
        is only compacted.
        """
        self.logs.check_writable()
        logs = {p: self.logs.log(topic, p) for p in offsets}
        ends = {p: retention.deletable_to(logs[p], as_int(o, "offset")) for p, o in offsets.items()}
        move = self._log_dir.reserve.despite_full_disk
        starts = {p: move(partial(log.advance_start, ends[p])) for p, log in logs.items()}
        return {p: OffsetRange(starts[p], log.log_end_offset) for p, log in logs.items()}

    def log(self, topic: str, partition: int) -> Log:
        """The log of one partition: for planning, tools and tests. It belongs to the store: do not close it."""
        return self.logs.log(topic, partition)

    def recover(self, progress: Progress = no_progress) -> list[RecoveryReport]:
        """Check and mend what lies above the recovery point of every partition; return what was found in each.

        If this process is alone with the store, it is in service again after a failed fsync.

        Raises: CorruptLogError: flushed data is damaged; nothing of it was dropped. StoreError: a topic's description
        is, or is gone; the other topics were recovered.
        """
        self.logs.check_open(writable=True)
        return recovery.recover(self.logs, self.transactions, progress)

    def close(self) -> None:
        """Flush, and note a clean end when no other process has the store open. Closing twice is fine."""
        with self.logs.closing() as is_writer:
            if is_writer:
                try:
                    self.transactions.close()
                except PylogError as error:
                    logger.warning("path=%s transactions are not ended: %s", self.path, error)
                self.logs.flush()
                self.logs.expire_appended()
                self.logs.mark_clean()

    def __repr__(self) -> str:
        return f"LogStore({str(self.path)!r}{', read-only' * self.read_only}{', closed' * self.logs.is_closed})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
