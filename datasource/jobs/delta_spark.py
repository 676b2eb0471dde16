"""Tiering through Delta's own Spark writer, in sessions that have its jar (`spark_session(delta=True)`).

The writer's options `txnAppId` and `txnVersion` put the boundary into the commit: Delta skips a write whose version is
not above the table's. Jobs of one store exclude each other by the lock of the topic, and look at the boundary under it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema

from datasource.jobs.parquet import BAD, FIRST_DAY, LAST_DAY, RAW, Piece, Written, split, typed_schema
from datasource.jobs.tasks import Done, reason
from datasource.lake import DATE, Lake, app_id
from datasource.session import DELTA_EXTENSION
from logstore.env import SYSTEM
from logstore.errors import StorageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def has_delta(spark: SparkSession) -> bool:
    """Does the session know Delta Lake?"""
    return DELTA_EXTENSION in str(spark.conf.get("spark.sql.extensions", ""))


def write(spark: SparkSession, piece: Piece, topic_id: str) -> Done[Piece, Written]:
    """Append the piece to its tables, that of bad rows first; what goes wrong is in the result."""
    start_ms = SYSTEM.clock.monotonic_ms()
    done, error = None, None
    try:
        done = _write(spark, piece, topic_id)
    except Exception as failure:  # noqa: BLE001  it becomes the row of the partition
        error = reason(failure)
    return Done(piece, done, error, (SYSTEM.clock.monotonic_ms() - start_ms) / 1000)


def _write(spark: SparkSession, piece: Piece, topic_id: str) -> Written:
    rows, done = _records(spark, piece), Written()
    if piece.fields:
        if piece.bad_start < piece.end:
            bad = rows.mapInArrow(partial(_bad, piece.fields, piece.bad_start), from_arrow_schema(BAD))
            done.bad_rows = _append(bad, Path(piece.bad_table), piece, topic_id, done)
        rows = rows.mapInArrow(partial(_typed, piece.fields), from_arrow_schema(typed_schema(piece.fields)))
    done.rows = _append(rows, Path(piece.table), piece, topic_id, done)
    return done


def _records(spark: SparkSession, piece: Piece) -> DataFrame:
    """The piece's records with the columns of RAW."""
    number = f"greatest({FIRST_DAY}, least({LAST_DAY}, floor(unix_micros(timestamp) / 86400000000)))"
    day = f"date_from_unix_date(CAST({number} AS INT)) AS date"
    place = (
        {piece.topic: {str(piece.partition): piece.start}},
        {piece.topic: {str(piece.partition): piece.end}},
    )
    frame = (
        spark.read.format("pylog")
        .option("path", piece.path)
        .option("assign", json.dumps({piece.topic: [piece.partition]}))
        .option("startingOffsets", json.dumps(place[0]))
        .option("endingOffsets", json.dumps(place[1]))
        .option("includeHeaders", True)
        .load()
    )
    return frame.selectExpr(*(day if name == DATE else name for name in RAW.names))


def _append(rows: DataFrame, table: Path, piece: Piece, topic_id: str, done: Written) -> int:
    """Append in one commit that moves the boundary; return how many rows that were."""
    before = {file.path for file in Lake(table, topic_id, piece.path).files()}
    try:
        (
            rows.write.format("delta")
            .mode("append")
            .option("txnAppId", app_id(topic_id, piece.partition))
            .option("txnVersion", piece.end)
            .save(str(table))
        )
    except PySparkException as error:
        raise StorageError(f"{table}: {str(error).strip().splitlines()[0]}") from error
    after = Lake(table, topic_id, piece.path)
    if after.boundary(piece.partition) != piece.end:
        raise StorageError(f"{table}: Delta Lake did not note offset {piece.end} of the commit")
    after.make_durable(since=0)
    added = [file for file in after.files() if file.path not in before]
    done.file_count += len(added)
    done.size_bytes += sum(file.size_bytes for file in added)
    return sum(file.records or 0 for file in added)


def _typed(fields: Sequence[pa.Field], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield split(batch.cast(RAW), fields)[0]


def _bad(
    fields: Sequence[pa.Field], bad_start: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield split(batch.cast(RAW), fields, bad_start=bad_start)[1]
