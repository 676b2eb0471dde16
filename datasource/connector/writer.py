"""The writers that Spark drives: Arrow batches in, appends out, one fsync per task and partition.

With `exactlyOnce` (the default) every task attempt writes its part of a transaction. The driver commits the attempts
that count: the whole micro-batch, or batch write, or nothing of it; a directory shows it at once. Without
`exactlyOnce` rows are in the log once they are appended: a failed or repeated task leaves what it appended, and a
failed batch write says what.

Spark recreates a stream's writer in each process, so `commit` and `abort` know only what the messages bring.
"""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from datasource.connector import sail
from datasource.connector.checkpoints import QUERY_ID, origin_of, query_id_of
from datasource.connector.garbage import exempt_loaded
from datasource.connector.one_line import one_line
from datasource.connector.options import WriteOptions
from datasource.schema import check_write_schema, rows_to_append
from datasource.topics.interface import (
    Batch,
    BatchTransactions,
    Part,
    PartitionRange,
    PreparedPart,
    TransactionSettings,
    WritableTopics,
    quietly,
)
from logstore import InvalidRecordError, InvalidRequestError, PylogError
from logstore.records import compiled_code

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

# Enough for full batches in some dozen partitions, and little of a worker's memory.
PORTION_BYTES = 16 * 1024 * 1024
# The process that commits a stream has this loaded; it needs no checks and no kernels.
_COMMITTING = "pyspark.sql.worker.python_streaming_sink_runner"
_GIVEN_UP = "the driver gave the batch up"


@dataclass(frozen=True)
class Appended(WriterCommitMessage):
    """The ranges that one task appended, on disk; the driver commits `prepared`."""

    ranges: tuple[PartitionRange, ...]
    prepared: PreparedPart | None = None


Messages = Sequence[WriterCommitMessage | None]


class _Appender:
    """Shared by batch and stream: the checks before any task runs, and the work of a task."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequestError(
                "a log is append-only: write with .mode('append') or outputMode('append'); to keep only the rows of "
                "the last batch (outputMode 'complete') use datasource.replace(stream, ...); to start afresh delete "
                "the topic and create it again"
            )
        self._options = options
        self._driver = sail.driver()
        if _COMMITTING in sys.modules:
            return
        self._as_rows = self._rows(schema)
        target = options.location.read()
        if options.topic is not None:
            target.topic(options.topic)
        if not compiled_code.is_kept():
            import logstore.records.kernels  # noqa: F401 - compiled once here, not in every worker at once

    @one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Appended:
        """Append the rows; on return they are on disk."""
        _refuse_new_table()
        options = self._options
        target = options.location.write()
        ranges: list[PartitionRange] = []
        with self._begun(target) as transaction:
            for batches in _portions(iterator):
                for topic, part in _by_topic(self._as_rows(batches), options.topic):
                    done = target.append(
                        topic,
                        part,
                        partitioner=options.partitioner,
                        compression=options.compression,
                        transaction=transaction,
                    )
                    ranges += [PartitionRange(topic, p, new.start, new.end) for p, new in done.items()]
                    exempt_loaded("append")
            if transaction is not None:
                return Appended(tuple(merged(ranges)), transaction.prepare())
        target.flush()
        return Appended(tuple(merged(ranges)))

    def _rows(self, schema: StructType) -> Callable[[Sequence[pa.RecordBatch]], pa.Table]:
        """Return what makes rows of the log of Spark's. Raises: InvalidRecordError, InvalidConfigError: none can be."""
        options = self._options
        with_headers = options.include_headers
        if options.typed is None:
            check_write_schema(schema, has_topic=options.topic is not None)
            return partial(rows_to_append, with_headers=with_headers)
        from datasource.connector.typed import TypedRows

        return TypedRows(options.typed, schema, options.location, options.topic, with_headers=with_headers)

    def _begun(self, target: WritableTopics) -> AbstractContextManager[Part | None]:
        """The transaction of this task, which an error aborts; None: none is asked for."""
        if not self._options.exactly_once:
            return nullcontext()
        batch = self._batch()
        return self._transactions(target).begun(batch, sail.task_number(batch.run, self._driver))

    def _transactions(self, target: WritableTopics) -> BatchTransactions:
        options = self._options
        settings = TransactionSettings(
            driver=self._driver, timeout_ms=options.transaction_timeout_ms, decision_topic=options.decision_topic
        )
        return target.transactions(settings)

    def _batch(self) -> Batch:
        raise AssertionError("BatchWriter and StreamWriter define it")

    def _commit(self, messages: Messages, *, origin: str = "") -> None:
        if prepared := _prepared(messages):
            self._transactions(self._options.location.write()).commit(prepared, origin=origin)
        exempt_loaded("commit")

    def _abort(self, batches: Iterable[Batch]) -> None:
        """Abort what tasks wrote, also what killed tasks left.

        An error is only logged, or it would hide why the write failed: the next process that comes by aborts the rest.
        """
        with quietly():
            transactions = self._transactions(self._options.location.write())
            for batch in batches:
                transactions.abort(batch, reason=_GIVEN_UP)


class BatchWriter(_Appender, DataSourceArrowWriter):
    """Appends a DataFrame. One instance goes to the tasks, and to the process that commits."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        self._run = uuid.uuid4().hex
        self._name, self._before = "", dict[str, Mapping[int, int]]()
        if options.exactly_once:
            self._name = self._transactions(options.location.write()).claim(options.transaction, self._run)
        else:
            self._before = _all_ends(options)

    def _batch(self) -> Batch:
        is_once, batch_id = self._options.transaction is None, self._options.batch_id or 0
        return Batch(name=self._name, batch_id=batch_id, run=self._run, is_claimed=True, is_once=is_once)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Appended:
        """Append the rows; on return they are on disk. The error of a plain write says what all tasks left so far."""
        try:
            return super().write(iterator)
        except PylogError as error:
            if not self._options.exactly_once:
                error.args = (f"{error}; left in the log since the write began: {self._left()}",)
            raise

    @one_line
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the write. One of foreachBatch that names its checkpoint is known by its input, as a stream's is."""
        batch_id = self._options.batch_id
        self._commit(messages, origin="" if batch_id is None else origin_of(self._options.checkpoint, batch_id))

    @one_line
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give up the transaction; for a plain write, log what it left, now that all its tasks have ended.

        An error here would hide the cause behind "Writing job failed".
        """
        if self._options.exactly_once:
            self._abort([self._batch()])
        else:
            logger.warning("the write failed; left in the log since it began: %s", self._left())

    def _left(self) -> str:
        """Return what was appended to the topics of this write since it was planned."""
        left = [
            PartitionRange(topic, p, self._before.get(topic, {}).get(p, 0), now)
            for topic, ends in _all_ends(self._options).items()
            for p, now in ends.items()
            if topic in self._before and now > self._before[topic].get(p, 0)
        ]
        return ", ".join(map(str, left)) or "nothing"


class StreamWriter(_Appender, DataSourceStreamArrowWriter):
    """Appends each micro-batch. A micro-batch that is replayed after its commit is not written again."""

    def _batch(self) -> Batch:
        task = TaskContext.get()
        assert task is not None, "a stream is written by tasks"
        query = self._options.transaction or task.getLocalProperty(QUERY_ID)
        batch_id = task.getLocalProperty("streaming.sql.batchId")
        if query is None or batch_id is None:
            raise InvalidRequestError(
                "Spark does not say which query and batch a task belongs to; set option exactlyOnce=false"
            )
        return Batch(name=query, batch_id=int(batch_id), run=task.getLocalProperty("spark.jobGroup.id") or "")

    @one_line
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._commit(messages, origin=origin_of(self._options.checkpoint, batchId))

    @one_line
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Give the micro-batch up. Spark also calls this after a failed commit: what is decided stays.

        Stopped tasks have sent no message. So the query's id comes from its checkpoint, and all attempts of this driver
        are aborted; without a readable checkpoint, what was prepared waits for its timeout.
        """
        if not self._options.exactly_once:
            return
        runs = {(p.name, p.run) for p in _prepared(messages)}
        if query := self._options.transaction or query_id_of(self._options.checkpoint):
            runs.add((query, ""))
        self._abort(Batch(name=name, batch_id=batchId, run=run) for name, run in sorted(runs, reverse=True))


def _refuse_new_table() -> None:
    """Raise InvalidRequestError in a task that fills a table which this command made, before it writes a row.

    Spark 4.2 would not hand the table's options to its reads: the rows would be in the topic, and the table could not
    be read. No callback of the driver knows of the table. The tasks do: the write is a command within a command, or
    the query was started by `toTable`.
    """
    if (task := TaskContext.get()) is None:
        return
    if task.getLocalProperty(QUERY_ID) is not None:
        makes = (task.getLocalProperty("callSite.short") or "").startswith("toTable ")
        instead = ".start()"
    else:
        makes = task.getLocalProperty("spark.sql.execution.id") != task.getLocalProperty("spark.sql.execution.root.id")
        instead = ".mode('append').save()"
    if makes:
        raise InvalidRequestError(
            f"no row was written: Spark would not give the options of a new table to its reads. Write with {instead}, "
            "and read and write in SQL through the views of datasource.register(spark, place)"
        )


def _prepared(messages: Messages) -> list[PreparedPart]:
    return [m.prepared for m in messages if isinstance(m, Appended) and m.prepared is not None]


def _all_ends(options: WriteOptions) -> dict[str, Mapping[int, int]]:
    target = options.location.read("read_uncommitted")
    topics = [info.name for info in target.topics() if options.topic in (None, info.name) and not info.damage]
    return {topic: {p: extent.end for p, extent in target.offsets(topic).items()} for topic in topics}


def _portions(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Yield batches in groups of about PORTION_BYTES: few appends, little memory."""
    portion: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        portion.append(batch)
        size += batch.nbytes
        if size >= PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _by_topic(rows: pa.Table, topic: str | None) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each topic, in their order. The option goes before the column."""
    import pyarrow.compute as pc

    if topic is not None:
        yield topic, rows.drop_columns("topic") if "topic" in rows.column_names else rows
        return
    names = rows.column("topic")
    if names.null_count:
        raise InvalidRecordError(f"column 'topic' is null in {names.null_count:,} rows; set it, or option 'topic'")
    rows = rows.drop_columns("topic")
    found = pc.unique(names).to_pylist()
    for name in found:
        yield name, rows if len(found) == 1 else rows.filter(pc.equal(names, name))


def merged(ranges: Iterable[PartitionRange]) -> list[PartitionRange]:
    result: list[PartitionRange] = []
    for r in sorted(ranges):
        last = result[-1] if result else None
        if last and (last.topic, last.partition, last.end) == (r.topic, r.partition, r.start):
            result[-1] = PartitionRange(r.topic, r.partition, last.start, r.end)
        else:
            result.append(r)
    return result
