"""The peer of the Spark tables: the ceiling of Spark's own Python data source API.

`CeilingSource` does nothing but hand over Arrow batches that it built before; `BytesSink` writes the same column bytes
to one file per task and fsyncs. Neither has a log, an offset, a CRC: nothing can be faster through the same API.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

FLOOR_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
ARROW = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)


@cache
def prebuilt(rows: int, value_bytes: int, number: int) -> pa.RecordBatch:
    """A batch, made once per worker process for every `number`."""
    value = (b"0123456789abcdef" * (value_bytes // 16 + 1))[:value_bytes]
    columns = [
        pa.array([b"key-%012d" % i for i in range(rows)], pa.binary()),
        pa.array([value] * rows, pa.binary()),
        pa.array(["bench"] * rows, pa.string()),
        pa.array([0] * rows, pa.int32()),
        pa.array(range(rows), pa.int64()),
        pa.array([1_700_000_000_000_000] * rows, pa.timestamp("us", tz="UTC")),
        pa.array([0] * rows, pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW)


@dataclass
class Share(InputPartition):
    """How many rows one task hands over."""

    rows: int


class CeilingReader(DataSourceReader):
    """Yields the same `distinct` batches again and again; with a `file`, reads as many bytes of it, and drops them."""

    def __init__(
        self, rows: int, value_bytes: int, batch_rows: int, tasks: int, distinct: int = 1, file: str = ""
    ) -> None:
        self.rows, self.value_bytes, self.batch_rows, self.tasks = rows, value_bytes, batch_rows, tasks
        self.distinct, self.file = distinct, file

    def partitions(self) -> list[InputPartition]:
        return [Share(self.rows // self.tasks) for _ in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        batches = [prebuilt(self.batch_rows, self.value_bytes, i) for i in range(self.distinct)]
        handed = (batches[number % self.distinct] for number in range(partition.rows // self.batch_rows))
        if self.file:
            space = bytearray(batches[0].nbytes)
            with Path(self.file).open("rb", buffering=0) as file:
                for batch in handed:
                    file.readinto(space)
                    yield batch
        else:
            yield from handed
        if rest := partition.rows % self.batch_rows:
            yield batches[0].slice(0, rest)


class CeilingSource(DataSource):
    """`spark.read.format("ceiling").option("rows", …).option("valueBytes", …)`."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> CeilingReader:
        option = self.options
        return CeilingReader(
            int(option["rows"]),
            int(option["valueBytes"]),
            int(option["batchRows"]),
            int(option["tasks"]),
            int(option["distinct"]),
            option.get("file", ""),
        )


class BytesWriter(DataSourceArrowWriter):
    """One file per task: the columns' buffers, as they are, then fsync."""

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with Path(self.path, uuid.uuid4().hex).open("wb", buffering=0) as file:
            for batch in iterator:
                for column in batch.columns:
                    for buffer in column.buffers():
                        if buffer is not None:
                            file.write(buffer)
            os.fsync(file.fileno())
        return WriterCommitMessage()


class BytesSink(DataSource):
    """`df.write.format("bytesink").mode("append").save(directory)`."""

    @classmethod
    def name(cls) -> str:
        return "bytesink"

    def writer(self, schema: StructType, overwrite: bool) -> BytesWriter:
        return BytesWriter(self.options["path"])


def write_floor(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """Write batches to a file for `FloorSource`, with times as Spark has them."""
    writer = None
    with path.open("wb") as file:
        for batch in batches:
            times = [f.with_type(FLOOR_TIME) if pa.types.is_timestamp(f.type) else f for f in batch.schema]
            rows = batch.cast(pa.schema(times))
            writer = writer or pa.ipc.new_file(file, rows.schema)
            writer.write_batch(rows)
        assert writer is not None
        writer.close()


@cache
def floor_batches(path: str) -> list[pa.RecordBatch]:
    with pa.ipc.open_file(path) as file:
        return [file.get_batch(i) for i in range(file.num_record_batches)]


class FloorReader(DataSourceReader):
    """Task i hands over the batches of the file `floor<i>`."""

    def __init__(self, path: str, tasks: int) -> None:
        self.path, self.tasks = path, tasks

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(i) for i in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(floor_batches(f"{self.path}/floor{partition.value}"))


class FloorWriter(DataSourceArrowWriter):
    """Drops the rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class FloorSource(DataSource):
    """A source of columns that are there already, and a sink that drops them: the rest is what Spark costs."""

    @classmethod
    def name(cls) -> str:
        return "floor"

    def reader(self, schema: StructType) -> FloorReader:
        return FloorReader(self.options["path"], int(self.options["tasks"]))

    def writer(self, schema: StructType, overwrite: bool) -> FloorWriter:
        return FloorWriter()
