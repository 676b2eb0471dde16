"""Records that fit their columns, and dead letters of those that do not: both of a micro-batch exactly once.

The tasks of a source may run again, and write a dead letter at least once. Here a query reads bytes, and a micro-batch
makes rows and dead letters of them in one transaction, under the query's id and the batch's number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamWriter

from datasource.connector.batch_writes import check_stream, options_of, query_of
from datasource.connector.one_line import one_line
from datasource.connector.options import read_options, write_options
from datasource.connector.typed import DeadLetters, TypedRows, TypedShape, prepare, typed_records
from datasource.connector.typed_options import FORMAT_OPTIONS, DeadLetterTopic, TypedOptions
from datasource.schema import HEADERS, spark_schema
from datasource.topics.locations import Location, location_at
from logstore.errors import InvalidConfigError, InvalidRequestError
from logstore.records.schema import RECORD_SCHEMA
from logstore.schemas import ddl

_RECORD = ("key", "value", HEADERS, "timestamp", "offset")
_READ = (*_RECORD, "topic", "partition")
_WRITTEN = ("key", "value", HEADERS, "timestamp", "partition", "topic")
_PARTITION_BITS = 32


def sift(  # noqa: PLR0913  each of them is one choice of the caller
    stream: DataFrame,
    place: str | os.PathLike[str],
    *,
    schema: str,
    topic: str,
    dlq_topic: str,
    checkpoint: str | os.PathLike[str],
    rows: Callable[[DataFrame], DataFrame] | None = None,
    write: Mapping[str, object] | None = None,
    **options: object,
) -> DataStreamWriter:
    """Return the writer of a query that writes the records which fit, and dead letters of the others. Start it.

    ::

        read = spark.readStream.format("pylog").options(path="data", subscribe="orders", includeHeaders=True)
        query = sift(
            read.load(), "data", schema="user string, amount decimal(10,2)", topic="large", dlq_topic="misfits",
            rows=lambda orders: orders.where("amount > 10"), checkpoint="checkpoint",
        ).start()

    Exactly once: the rows and the dead letters of a micro-batch are in their topics as a whole or not at all, and a
    micro-batch that Spark repeats after a crash is not written again.

    `stream` has the columns of records, headers included, as a read of pylog or of Spark's own Kafka source has them.
    `schema` says which columns their values have, and keys, in the formats of `options` (JSON by default; the options
    of typed topics). `rows` makes of these columns the rows to write to `topic`, in the same formats, or in those of
    `write`: `{"typed": True}` for the topic's own schemas. `place` is a directory, or a cluster as `HOST:PORT,...`;
    both topics are there, and `dlq_topic`, which is compacted, is made if it is missing. Other `options` are those of
    a write, and `dlq.name`, which names the dead letters in place of the query's id.

    Errors, at once: InvalidRequestError: `stream` is no stream of records; UnknownTopicError; InvalidConfigError: an
    option, or a column that a format has not. In the query: InvalidRecordError: a row that cannot be written;
    BatchConflictError, as `upsert`.
    """
    given = options_of(options, topic, checkpoint)
    check_stream(stream, given)
    if missing := [name for name in _READ if name not in stream.columns]:
        hint = ": read with includeHeaders=true, so that a dead letter is whole" * (missing[0] == HEADERS)
        raise InvalidRequestError(f"the stream has no column {missing[0]!r}{hint}")
    at = location_at(place).options
    formats = {"value.format": "json"} | {name: given.pop(name) for name in FORMAT_OPTIONS if name in given}
    named = {"dlq.topic": dlq_topic, "dlq.name": given.pop("dlq.name", "") or "query"}
    registry = {name: value for name, value in given.items() if name.startswith("schema.registry.")}
    reading = read_options(at | formats | registry | named | {"subscribe": topic}, streaming=True)
    assert reading.typed is not None, "there is a format"
    if dlq_topic == topic:
        raise InvalidConfigError(f"dlq_topic={dlq_topic!r} is the topic of the rows: choose another")
    out = {name: str(value) for name, value in write.items()} if write is not None else formats
    writing = write_options(at | given | out | {"txnId": given.get("txnId", "query"), "txnVersion": "0"})
    if writing.typed is None:
        raise InvalidConfigError("write: say typed=True, or a value.format")
    writing.location.read().topic(topic)
    columns = pa.schema(ddl.parse(schema))
    typed_records(reading.typed, columns, reading.location)
    prepare(reading.typed, reading.location)
    name = str(options.get("dlq.name", ""))
    kept = {name: text for name, text in (at | given).items() if name != "topic" and name not in registry}
    sifted = _Sifted(reading.location, reading.typed, columns, writing.typed, topic, dlq_topic, kept, rows, name)
    writer = stream.writeStream.foreachBatch(sifted)
    return writer.option("checkpointLocation", given["checkpointLocation"])


@dataclass(frozen=True)
class _Sifted:
    """The work of foreachBatch: called with each micro-batch and its number."""

    location: Location
    reading: TypedOptions
    columns: pa.Schema
    writing: TypedOptions
    topic: str
    dlq_topic: str
    options: dict[str, str]
    rows: Callable[[DataFrame], DataFrame] | None
    name: str

    def __call__(self, frame: DataFrame, number: int) -> None:
        query = self.options.get("txnId") or query_of(frame, self.options["checkpointLocation"])
        records, raw = frame.select(*_READ).persist(), spark_schema(_WRITTEN)
        try:
            fitting = records.mapInArrow(
                _Fitting(self.location, replace(self.reading, dead_letters=None), self.columns),
                from_arrow_schema(self.columns, prefer_timestamp_ntz=True),
            )
            rows = fitting if self.rows is None else self.rows(fitting)
            encode = TypedRows(self.writing, rows.schema, self.location, self.topic, with_headers=True)
            kept = DeadLetters(DeadLetterTopic(self.dlq_topic, self.name), self.location, query)
            letters = _Letters(self.location, self.reading, self.columns, kept)
            written = rows.mapInArrow(_Encoded(encode, self.topic), raw).union(records.mapInArrow(letters, raw))
            write = written.write.format("pylog").mode("append").options(**self.options)
            write.options(txnId=query, txnVersion=str(number)).save()
        finally:
            records.unpersist()


@dataclass(frozen=True)
class _Fitting:
    """Records to the rows of those that fit; runs in tasks."""

    location: Location
    reading: TypedOptions
    columns: pa.Schema

    @one_line
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shape = cache(partial(TypedShape, self.reading, self.columns, self.location))
        for batch in batches:
            for topic, partition, records in _by_partition(batch):
                yield shape(topic).batch(records, topic, partition)


@dataclass(frozen=True)
class _Letters:
    """Records to the dead letters of those that do not fit; runs in tasks."""

    location: Location
    reading: TypedOptions
    columns: pa.Schema
    kept: DeadLetters

    @one_line
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        typed = cache(partial(typed_records, self.reading, self.columns, self.location))
        for batch in batches:
            for topic, partition, records in _by_partition(batch):
                if misfits := typed(topic).decode(records, topic, partition).misfits:
                    yield _raw(self.kept.of(records, misfits, topic, partition), self.kept.topic)


@dataclass(frozen=True)
class _Encoded:
    """Rows of columns to records of their topic; runs in tasks."""

    encode: TypedRows
    topic: str

    @one_line
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from (_raw(part, self.topic) for part in self.encode([batch]).to_batches())


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """Yield the records of a batch, those of one partition that stand together at a time."""
    topics = batch.column("topic").dictionary_encode()
    names, numbers = topics.dictionary.to_pylist(), topics.indices.to_numpy().astype(np.int64)
    codes = numbers << _PARTITION_BITS | batch.column("partition").to_numpy()
    records = pa.RecordBatch.from_arrays(
        [batch.column(name).cast(RECORD_SCHEMA.field(name).type, safe=False) for name in _RECORD], names=list(_RECORD)
    )
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(codes)], strict=True):
        code = int(codes[start])
        partition = code & ((1 << _PARTITION_BITS) - 1)
        yield names[code >> _PARTITION_BITS], partition, records.slice(start, end - start)


_TYPES = {
    **{name: RECORD_SCHEMA.field(name).type for name in ("key", "value", HEADERS)},
    "timestamp": pa.timestamp("us", tz="UTC"),
    "partition": pa.int32(),
    "topic": pa.string(),
}


def _raw(rows: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    """Return the rows with all columns that a write takes."""
    count = rows.num_rows
    found = {name: rows.column(name) if name in rows.schema.names else pa.nulls(count) for name in _WRITTEN}
    if "topic" not in rows.schema.names:
        found["topic"] = pa.array([topic] * count, pa.string())
    return pa.RecordBatch.from_arrays([found[name].cast(kind) for name, kind in _TYPES.items()], names=list(_TYPES))
