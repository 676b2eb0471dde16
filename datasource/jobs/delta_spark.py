"""Tiering through Delta's own Spark writer, in sessions that have its jar (`spark_session(delta=True)`).

The writer's options `txnAppId` and `txnVersion` put the boundary into the commit: Delta skips a write whose version is
not above the table's. The jobs of a store exclude each other by the topic's lock, and check the boundary under it right
before they write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from datasource.delta.columns import BAD, RAW, typed_schema
from datasource.delta.owner import Owner
from datasource.delta.parquet import FIRST_DAY, LAST_DAY, OffsetSlice, Written, split
from datasource.delta.storage import TableStorage
from datasource.delta.table import DATE, TableConflictError, TopicTable, app_id
from datasource.jobs.tasks import Done, guarded
from datasource.session import DELTA_EXTENSION, delta_settings
from logstore.errors import PylogError, StorageError


def has_delta(spark: SparkSession) -> bool:
    return DELTA_EXTENSION in str(spark.conf.get("spark.sql.extensions", ""))


def write(spark: SparkSession, piece: OffsetSlice, owner: Owner) -> Done[OffsetSlice, Written]:
    """Append the piece to its tables, that of bad rows first; an error is in the result.

    Raises: TableConflictError: the tables have changed since the piece was planned: plan again.
    """
    return guarded(partial(_write, spark, owner), piece, fatal=(TableConflictError,))


def _write(spark: SparkSession, owner: Owner, piece: OffsetSlice) -> Written:
    with settings(spark, delta_settings(str(spark.sparkContext.master))):
        rows, done = _records(spark, piece), Written()
        if piece.fields:
            if piece.bad_table and piece.bad_start < piece.end:
                bad = rows.mapInArrow(partial(_bad, piece.fields, piece.bad_start), from_arrow_schema(BAD))
                done.bad_rows = _append(bad, piece.bad_table, piece, piece.bad_start, owner, done)
            rows = rows.mapInArrow(partial(_typed, piece.fields), from_arrow_schema(typed_schema(piece.fields)))
        done.rows = _append(rows, piece.table, piece, piece.start, owner, done)
        return done


def _records(spark: SparkSession, piece: OffsetSlice) -> DataFrame:
    number = f"greatest({FIRST_DAY}, least({LAST_DAY}, floor(unix_micros(timestamp) / 86400000000)))"
    day = f"date_from_unix_date(CAST({number} AS INT)) AS date"
    start, end = (json.dumps({piece.topic: {str(piece.partition): at}}) for at in (piece.start, piece.end))
    frame = (
        spark.read.format("pylog")
        .options(**piece.location.options)
        .option("assign", json.dumps({piece.topic: [piece.partition]}))
        .option("startingOffsets", start)
        .option("endingOffsets", end)
        .option("includeHeaders", True)
        .load()
    )
    return frame.selectExpr(*(day if name == DATE else name for name in RAW.names))


def _append(rows: DataFrame, table: TableStorage, piece: OffsetSlice, begin: int, owner: Owner, done: Written) -> int:
    """Append in one durable commit that moves the boundary from `begin`; return the number of rows."""
    before = TopicTable(table, owner)
    before.check_boundary(piece.partition, begin)
    try:
        (
            rows.write.format("delta")
            .mode("append")
            .option("txnAppId", app_id(owner.topic_id, piece.partition))
            .option("txnVersion", piece.end)
            .save(str(table))
        )
    except (PySparkException, Py4JJavaError) as error:
        raise failure(table, error) from error
    after = TopicTable(table, owner)
    commit = after.committed(before.version, piece.partition, piece.end)
    if commit is None or after.boundary(piece.partition) != piece.end:
        raise StorageError(f"{table}: the Delta table's log does not have offset {piece.end} of the commit")
    known = {file.name for file in before.files()}
    after.make_durable(since=before.version, files=[f for f in after.files() if f.name not in known])
    done.file_count += commit.files
    done.size_bytes += commit.size_bytes
    return commit.records


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Give the session these settings during the block, except those that its user has set."""
    own = spark.conf.getAll
    missing = {name: value for name, value in wanted.items() if name not in own}
    for name, value in missing.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in missing:
            spark.conf.unset(name)


# The base classes of Delta's exceptions that say that another commit came first, in Java and in delta-spark.
_CONFLICT = "java.util.ConcurrentModificationException"
_CONFLICT_IN_PYTHON = "DeltaConcurrentModificationException"
_DELTA_S = ("io.delta.", "org.apache.spark.sql.delta.")
_CAUSES_MAX = 20


def failure(table: TableStorage, error: PySparkException | Py4JJavaError) -> PylogError:
    """Return Delta's own message as an error: a TableConflictError if another commit came first."""
    causes = list(_causes(error))
    by_delta = [cause for cause in causes if cause.getClass().getName().startswith(_DELTA_S)]
    if by_delta:
        message = by_delta[0].getMessage()
    else:
        message = causes[-1].toString() if isinstance(error, Py4JJavaError) else str(error)
    is_conflict = any(kind.__name__ == _CONFLICT_IN_PYTHON for kind in type(error).__mro__) or any(
        is_instance_of(SparkContext._gateway, cause, _CONFLICT) for cause in causes
    )
    text = f"{table}: {str(message).strip().splitlines()[0]}"
    return TableConflictError(text) if is_conflict else StorageError(text)


def _causes(error: PySparkException | Py4JJavaError) -> Iterator[Any]:
    """Yield the Java exception and its causes, outermost first; nothing for an exception of Python."""
    found = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    for _ in range(_CAUSES_MAX):
        if found is None:
            return
        yield found
        found = found.getCause()


def _typed(fields: Sequence[pa.Field], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield split(batch.cast(RAW), fields)[0]


def _bad(fields: Sequence[pa.Field], bad_start: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield split(batch.cast(RAW), fields, bad_start=bad_start)[1]
