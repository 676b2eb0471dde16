"""The writers that Spark drives: Arrow batches in, appends out, one fsync per task.

Rows are in the log as soon as they are appended: a task that fails or is tried again leaves what it had
appended. A batch write that fails says what that was.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from datasource.columns import check_write_schema, rows_to_append
from datasource.options import WriteOptions
from datasource.planning import Range
from datasource.target import Target, reading, writing
from logstore import InvalidRecordError, InvalidRequestError, PylogError

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

# Enough for batches of full size in each of some dozen partitions; little against a worker's memory.
PORTION_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Appended(WriterCommitMessage):
    """What one task appended, fsynced."""

    ranges: tuple[Range, ...]


class _Appender:
    """What batch and stream share: the checks before any task runs, and the work of a task."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequestError(
                "a log is append-only: write with .mode('append') or outputMode('append'); to start afresh "
                "delete the topic and create it again"
            )
        check_write_schema(schema, has_topic=options.topic is not None)
        self._options = options
        target = reading(options.path)
        topics = target.topics() if options.topic is None else [target.topic(options.topic)]
        self._before = {info.name: _ends(target, info.name) for info in topics}

        from logstore.records.kernels import warm_up

        warm_up()  # compiled once here, not by every worker at once

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Appended:
        """Append the rows; on return they are on disk."""
        target = writing(self._options.path)
        ranges: list[Range] = []
        for batches in _portions(iterator):
            rows = rows_to_append(batches, with_headers=self._options.include_headers)
            for topic, part in _by_topic(rows, self._options.topic):
                done = target.append(
                    topic,
                    part,
                    partitioner=self._options.partitioner,
                    compression=self._options.compression,
                )
                ranges += [Range(topic, p, extent.start, extent.end) for p, extent in done.items()]
        target.flush()
        return Appended(tuple(merged(ranges)))

    def _left(self) -> str:
        """What was appended to the topics of this write since it was planned."""
        target = reading(self._options.path)
        there = {info.name for info in target.topics()}
        left = [
            Range(topic, p, ends.get(p, 0), now)
            for topic, ends in self._before.items()
            if topic in there
            for p, now in _ends(target, topic).items()
            if now > ends.get(p, 0)
        ]
        return ", ".join(map(str, left)) or "nothing"


class BatchWriter(_Appender, DataSourceArrowWriter):
    """Appends a DataFrame."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Appended:
        """Append the rows; on return they are on disk. An error says what all tasks left so far."""
        try:
            return super().write(iterator)
        except PylogError as error:
            left = self._left()
            error.args = (f"{error}; left in the log since the write began: {left}",)
            raise

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Say what the failed write left in the log, now that all its tasks have ended.

        Raising here would hide the cause behind "Writing job failed".
        """
        logger.warning("the write failed; left in the log since it began: %s", self._left())


class StreamWriter(_Appender, DataSourceStreamArrowWriter):
    """Appends each micro-batch; one that is tried again is appended again."""


def _ends(target: Target, topic: str) -> Mapping[int, int]:
    return {p: extent.end for p, extent in target.offsets(topic).items()}


def _portions(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Some batches at a time: few appends, little memory."""
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
    """The rows of each topic, in their order; the option beats the column."""
    import pyarrow.compute as pc

    if topic is not None:
        yield topic, rows.drop_columns("topic") if "topic" in rows.column_names else rows
        return
    names = rows.column("topic")
    if names.null_count:
        raise InvalidRecordError(
            f"column 'topic' is null in {names.null_count:,} rows; set it, or option 'topic'"
        )
    rows = rows.drop_columns("topic")
    found = pc.unique(names).to_pylist()
    for name in found:
        yield name, rows if len(found) == 1 else rows.filter(pc.equal(names, name))


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return the ranges sorted, those that touch joined."""
    result: list[Range] = []
    for r in sorted(ranges):
        last = result[-1] if result else None
        if last and (last.topic, last.partition, last.end) == (r.topic, r.partition, r.start):
            result[-1] = Range(r.topic, r.partition, last.start, r.end)
        else:
            result.append(r)
    return result
