"""The last state of each key in a compacted topic: streams in update and complete mode, exactly once.

Spark asks a table, not a Python data source, whether it takes these modes. So each micro-batch is a batch write of
foreachBatch, under the query's id and the batch's number: one that comes again is not written again.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import BinaryType, StringType

from datasource.connector.batch_writes import check_stream, options_of, query_of
from datasource.connector.checkpoints import directory_of
from datasource.connector.connect import is_connect
from datasource.connector.options import write_options
from datasource.connector.written import Written, is_all
from datasource.topics.locations import location_at
from logstore.errors import InvalidRecordError, InvalidRequestError, did_you_mean
from logstore.records.partitioner import BY_KEY


def upsert(
    stream: DataFrame,
    place: str | os.PathLike[str],
    *,
    topic: str,
    key: str | Sequence[str],
    checkpoint: str | os.PathLike[str],
    value: str | None = None,
    **options: object,
) -> DataStreamWriter:
    """Return the writer of a query in update mode: each micro-batch writes the keys that it changed. Start it.

    ::

        counts = orders.groupBy("user").count()
        query = upsert(counts, "data", topic="counts", key="user", checkpoint="checkpoint").start()

    Exactly once: a micro-batch is in the topic as a whole or not at all, and one that Spark repeats after a crash is
    not written again. The last record of a key is its state.

    `place` is a directory, or a cluster as `HOST:PORT,...`. `topic` is compacted (cleanup.policy=compact). `key` names
    the column with the key, or several: then it is their JSON. A column of another type than string or binary is cast
    to string, a struct to JSON. `value` names a column of strings or binary, in which null deletes the key; without it
    the value is the JSON of the whole row. `options` are those of a write.

    Errors, at once: InvalidRequestError: `stream` is no stream, there is no such column, the topic is not compacted;
    UnknownTopicError; InvalidConfigError: an option. In the query: InvalidRecordError: a micro-batch has a row
    without a key, or two of one key, of which nobody knows the later one (aggregate, with max_by for example);
    BatchConflictError: the checkpoint is an older copy, or a batch that comes again has other rows, which is only
    noticed where the checkpoint is not in a local or mounted directory.
    """
    given = options_of(options, topic, checkpoint)
    batch = _Batch(given | _placed(stream, place, given), _keys(stream, key), value, is_whole=False)
    return batch.writer(stream, "update")


def replace(
    stream: DataFrame,
    place: str | os.PathLike[str],
    *,
    topic: str,
    key: str | Sequence[str],
    checkpoint: str | os.PathLike[str],
    value: str | None = None,
    **options: object,
) -> DataStreamWriter:
    """Return the writer of a query in complete mode: after each micro-batch the topic has its keys, and no others.

    ::

        best = orders.groupBy("user").count().orderBy(desc("count")).limit(10)
        query = replace(best, "data", topic="best", key="user", checkpoint="checkpoint").start()

    Each micro-batch writes all of its rows, and a tombstone (a null value) for each key that the topic has and the
    batch has not. Nobody else may write to the topic. A batch reads what the batch before it wrote. The whole topic is
    read by the first two of a run, by the next ones after partitions were added or a leader changed, and by all if
    `partitioner` is sticky or round_robin and there are several partitions. Guarantee, arguments and errors are those
    of `upsert`.

    Errors, in addition: InvalidRequestError: `checkpoint` is not in a local or mounted directory. Without it a batch
    that comes again could not be recognised: its tombstones are in the topic, and are not written again.
    """
    given = options_of(options, topic, checkpoint)
    if not directory_of(given["checkpointLocation"]):
        raise InvalidRequestError(
            f"checkpoint {given['checkpointLocation']!r}: replace needs it in a local or mounted directory, where it "
            "finds the input of a batch"
        )
    batch = _Batch(given | _placed(stream, place, given), _keys(stream, key), value, is_whole=True)
    return batch.writer(stream, "complete")


@dataclasses.dataclass
class _Batch:
    """The work of foreachBatch: called with each micro-batch and its number. `last`: what it wrote last, if whole."""

    options: dict[str, str]
    keys: tuple[str, ...]
    value: str | None
    is_whole: bool
    last: Written | None = None

    def writer(self, stream: DataFrame, mode: str) -> DataStreamWriter:
        if self.value is not None and not isinstance(stream.schema[_column(stream, self.value)].dataType, _STORED):
            raise InvalidRequestError(f"column {self.value!r} must be string or binary: cast it, or leave 'value' away")
        writer = stream.writeStream.outputMode(mode).foreachBatch(self)
        return writer.option("checkpointLocation", self.options["checkpointLocation"])

    def __call__(self, frame: DataFrame, number: int) -> None:
        changed = frame.select(
            self._key(frame).cast("binary").alias("key"),
            (functions.to_json(functions.struct("*")) if self.value is None else functions.col(_quoted(self.value)))
            .cast("binary")
            .alias("value"),
            functions.lit(None).cast("int").alias("partition"),
        ).persist()
        try:
            if not _checked(changed, number) and not self.is_whole:
                return
            if self.is_whole:
                self._write_whole(frame, changed, number)
            else:
                self._write(frame, changed, number)
        finally:
            changed.unpersist()

    def _key(self, frame: DataFrame) -> Column:
        if len(self.keys) > 1:
            return functions.to_json(functions.struct(*map(_quoted, self.keys)))
        column, kind = functions.col(_quoted(self.keys[0])), frame.schema[self.keys[0]].dataType
        if isinstance(kind, _STORED):
            return column
        return functions.to_json(column) if kind.typeName() in ("struct", "map", "array") else column.cast("string")

    def _write(self, frame: DataFrame, rows: DataFrame, number: int) -> None:
        name = self.options.get("txnId") or query_of(frame, self.options["checkpointLocation"])
        write = rows.write.format("pylog").mode("append").options(**self.options)
        write.options(txnId=name, txnVersion=str(number)).save()

    def _write_whole(self, frame: DataFrame, rows: DataFrame, number: int) -> None:
        """Write the rows, and a tombstone for each key that lives in the topic and has no row, where it lives."""
        options = write_options(self.options | {"txnId": "query", "txnVersion": str(number)})
        topics, topic = options.location.read(), self.options["topic"]
        now = Written(_run_of(frame), number, topics.topic(topic).topic_id, topics.offsets(topic))
        before, self.last = self.last, None
        starts = now.starts(before)
        has_all = starts is not None and before is not None and before.has_all
        living = self._living(frame, starts if has_all else None).persist()
        try:
            if starts is not None and not has_all:
                has_all = is_all(_oldest(living), starts)
            gone = living.join(rows.select("key"), "key", "left_anti")
            tombstones = gone.select("key", functions.lit(None).cast("binary").alias("value"), "partition")
            self._write(frame, rows.unionByName(tombstones), number)
        finally:
            living.unpersist()
        stays = options.partitioner in BY_KEY or len(now.extents) == 1
        self.last = dataclasses.replace(now, has_all=has_all and stays)

    def _living(self, frame: DataFrame, starts: dict[int, int] | None) -> DataFrame:
        """Key, partition and offset of what lives in the topic, or of that from these offsets on."""
        place = {n: text for n, text in self.options.items() if n == "path" or n.startswith("kafka.")}
        topic = self.options["topic"]
        read: dict[str, str] = {"subscribe": topic}
        if starts is not None:
            offsets = {str(p): offset for p, offset in starts.items()}
            read = {"assign": json.dumps({topic: list(starts)}), "startingOffsets": json.dumps({topic: offsets})}
        asked = place | read | {"columns": "key,value,partition,offset"}
        there = frame.sparkSession.read.format("pylog").options(**asked).load()
        last = there.groupBy("key", "partition").agg(
            functions.max_by(functions.col("value").isNotNull(), "offset").alias("is_there"),
            functions.max("offset").alias("offset"),
        )
        return last.where("is_there and key is not null").select("key", "partition", "offset")


_STORED = (StringType, BinaryType)


def _placed(stream: DataFrame, place: str | os.PathLike[str], given: dict[str, str]) -> dict[str, str]:
    """Return the options of the place, where the topic is there and compacted."""
    check_stream(stream, given)
    options = location_at(place).options
    location = write_options(given | options | {"txnId": given.get("txnId", "query"), "txnVersion": "0"}).location
    topic = given["topic"]
    location.read().topic(topic)
    if not location.write().is_compacted(topic):
        raise InvalidRequestError(
            f"topic {topic!r} is not compacted, and would hold every state of a key for ever or for some days: "
            f"pylog topics alter {topic} --config cleanup.policy=compact"
        )
    return options


def _keys(stream: DataFrame, key: str | Sequence[str]) -> tuple[str, ...]:
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not keys:
        raise InvalidRequestError("key: name a column, or several")
    return tuple(_column(stream, name) for name in keys)


def _column(stream: DataFrame, name: str) -> str:
    if name not in stream.columns:
        raise InvalidRequestError(f"no column {name!r}{did_you_mean(name, stream.columns)}")
    return name


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _checked(rows: DataFrame, number: int) -> int:
    """Return how many rows there are. Raises: InvalidRecordError: one has no key, or two have the same."""
    count, with_key, keys = rows.agg(
        functions.count(functions.lit(1)), functions.count("key"), functions.count_distinct("key")
    ).first() or (0, 0, 0)
    if with_key < count:
        raise InvalidRecordError(f"batch {number} has {count - with_key:,} rows without a key: filter them out")
    if keys < count:
        raise InvalidRecordError(
            f"batch {number} has {count:,} rows of {keys:,} keys, and nobody knows which row of a key is the last one: "
            "aggregate the stream by key, with max_by(value, time) for example"
        )
    return int(count)


def _oldest(living: DataFrame) -> dict[int, int]:
    """By partition, the least offset of what lives there."""
    rows = living.groupBy("partition").agg(functions.min("offset").alias("oldest")).collect()
    return {row["partition"]: row["oldest"] for row in rows}


def _run_of(frame: DataFrame) -> str:
    """Return the id of the query's run; "" if Spark does not say.

    Over Spark Connect each run has its own copy of the function, in a process of its own.
    """
    if is_connect(frame.sparkSession):
        return "of this process"
    return frame.sparkSession.sparkContext.getLocalProperty("spark.jobGroup.id") or ""
