"""Write records of a topic as Parquet files into the place of a Delta table: what the tasks of tiering do.

A task makes its files durable before it describes them to the driver, which commits them. A task that dies leaves files
that no version of the table names; another attempt writes new ones.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from datasource.delta.columns import BAD, HEADERS, KEY, PLACE, RAW, typed_schema
from datasource.delta.storage import TableStorage
from datasource.delta.table import DATE, OUR_SUFFIX
from datasource.topics.interface import NO_EPOCH, PartitionRange
from datasource.topics.locations import Location
from datasource.topics.timestamps import Clamped, microseconds
from logstore.env import SYSTEM
from logstore.env.failures import mapped
from logstore.errors import PylogError, UnreadableBatchError
from logstore.schemas.documents import parse
from logstore.store.reading import read_round

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from deltalake.transaction import AddAction

    from datasource.delta.registered import Beside

logger = logging.getLogger(__name__)

# A row group: large enough to be read fast, small enough to be in a worker's memory twice for a moment.
ROW_GROUP_BYTES = 64 * 1024 * 1024
FILE_BYTES = 512 * 1024 * 1024  # of rows in memory; Parquet makes less of it
FILES_OPEN_MAX = 16  # days: with records of more days mixed, files get small
FIRST_DAY, LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31, what Spark and Delta can write


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSlice:
    """Offsets [start, end) of a partition, to be written to a table.

    Without `fields` values stay bytes, with the columns of `beside` next to them.
    """

    location: Location
    topic: str
    partition: int
    start: int
    end: int
    table: TableStorage
    leader_epoch: int = NO_EPOCH
    fields: tuple[pa.Field, ...] = ()
    beside: Beside | None = None
    bad_table: TableStorage | None = None
    bad_start: int = 0  # bad rows below this offset are in their table already


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A finished file, as a commit describes it; `name` is relative to the table."""

    name: str
    day: str
    size_bytes: int
    rows: int
    partition: int
    offsets: tuple[int, int]
    timestamps_us: tuple[int, int]

    def action(self) -> AddAction:
        from deltalake.transaction import AddAction

        return AddAction(
            path=self.name,
            size=self.size_bytes,
            partition_values={DATE: self.day},
            modification_time=SYSTEM.clock.now_ms(),
            data_change=True,
            stats=self.stats(),
        )

    def stats(self) -> str:
        low, high = (_iso(us) for us in self.timestamps_us)
        times = (low, high) if low and high else ()
        bounds = [
            {"partition": self.partition, "offset": offset} | ({"timestamp": times[i]} if times else {})
            for i, offset in enumerate(self.offsets)
        ]
        nulls = dict.fromkeys(bounds[0], 0)
        return json.dumps({"numRecords": self.rows, "minValues": bounds[0], "maxValues": bounds[1], "nullCount": nulls})


@dataclass(slots=True, kw_only=True)
class Written:
    files: list[DataFile] = field(default_factory=list)
    bad_files: list[DataFile] = field(default_factory=list)
    rows: int = 0
    bad_rows: int = 0
    file_count: int = 0
    size_bytes: int = 0
    clamped: Clamped = field(default_factory=Clamped)


def write_piece(piece: OffsetSlice) -> Written:
    """Write the records of the piece, and those that cannot be parsed to the bad table; on return both are durable."""
    schema = typed_schema(piece.fields) if piece.fields else piece.beside.schema if piece.beside else RAW
    good = TableWriter(piece.table, schema)
    bad = TableWriter(piece.bad_table, BAD) if piece.fields and piece.bad_table else None
    done = Written()
    format = piece.beside.format(piece.location.read().schemas) if piece.beside else None
    try:
        for rows, refused in converted(piece, done.clamped):
            if piece.beside and format:
                rows, misfits = piece.beside.decoded(rows, format)  # noqa: PLW2901
                done.bad_rows += misfits
            done.rows += rows.num_rows
            good.write(rows)
            if bad is not None and refused is not None and refused.num_rows:
                done.bad_rows += refused.num_rows
                bad.write(refused)
        done.files = good.finish()
        done.bad_files = bad.finish() if bad else []
        done.file_count = len(done.files) + len(done.bad_files)
        done.size_bytes = sum(f.size_bytes for f in (*done.files, *done.bad_files))
    except BaseException:
        good.discard()
        if bad:
            bad.discard()
        raise
    return done


def converted(piece: OffsetSlice, clamped: Clamped) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | None]]:
    """Yield the piece's records as rows of the table, each with the bad ones (None: values stay bytes)."""
    target = piece.location.read()
    wanted = PartitionRange(piece.topic, piece.partition, piece.start, piece.end, leader_epoch=piece.leader_epoch)
    stored = ["offset", "timestamp", "timestampType", "key", "value", "headers"]

    def read(start: int) -> Iterator[pa.RecordBatch]:
        return target.read(replace(wanted, start=start), stored)

    def skipped(error: UnreadableBatchError) -> None:
        logger.warning("%s-%d: not in the table: %s", piece.topic, piece.partition, error)

    for records in read_round(read, wanted.start, wanted.end, skipped):
        rows = _as_stored(records, piece.topic, piece.partition, clamped)
        if piece.fields:
            yield split(rows, piece.fields, bad_start=piece.bad_start)
        else:
            yield rows, None


def split(
    rows: pa.RecordBatch, fields: Sequence[pa.Field], *, bad_start: int = 0
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the rows (of RAW) that could be parsed, with typed columns, and the others from `bad_start` on, as BAD."""
    parsed = parse(rows.column("value"), fields)
    good = rows.take(pa.array(parsed.good)) if parsed.reasons else rows
    before = [good.column(f.name) for f in (*PLACE, KEY, HEADERS)]
    typed = pa.RecordBatch.from_arrays([*before, *parsed.columns, good.column(DATE)], schema=typed_schema(fields))
    lost = sorted(parsed.reasons)
    bad = rows.take(pa.array(lost, pa.int64()))
    reasons = pa.array([parsed.reasons[row] for row in lost], pa.string())
    bad = pa.RecordBatch.from_arrays([*bad.columns[:-1], reasons, bad.column(DATE)], schema=BAD)
    return typed, bad.filter(pc.greater_equal(bad.column("offset"), bad_start))


def _as_stored(records: pa.RecordBatch, topic: str, partition: int, clamped: Clamped) -> pa.RecordBatch:
    timestamps = microseconds(records, clamped)
    columns = {
        "topic": pa.repeat(pa.scalar(topic), records.num_rows),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), records.num_rows),
        "timestamp": timestamps,
        DATE: days(timestamps),
        "headers": records.column("headers").cast(HEADERS.type),
    }
    return pa.RecordBatch.from_arrays(
        [columns[name] if name in columns else records.column(name) for name in RAW.names], schema=RAW
    )


def days(timestamps: pa.Array) -> pa.Array:
    """Return the day (UTC) of each timestamp, within the years 1 to 9999."""
    return pc.min_element_wise(pc.max_element_wise(timestamps.cast(pa.date32()), date.min), date.max)


class TableWriter:
    """Writes rows into files of a table, one per day. `finish` makes them durable; `discard` removes them."""

    def __init__(self, table: TableStorage, schema: pa.Schema) -> None:
        self._table = table
        self._schema = schema
        self._stored = pa.schema([f for f in schema if f.name != DATE])
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._open: dict[date, _File] = {}  # least recently written first
        self._done: list[DataFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._waiting.append(rows)
            self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._spill()

    def finish(self) -> list[DataFile]:
        """Close all files, make them durable, and return them."""
        self._spill()
        for day in list(self._open):
            self._close(day)
        if self._done:
            self._table.make_durable((), {f.name.rpartition("/")[0] for f in self._done})
        return self._done

    def discard(self) -> None:
        """Remove what was written; a file that cannot be removed becomes an orphan."""
        names = [f.name for f in self._done]
        for file in self._open.values():
            with suppress(OSError, PylogError):
                file.close()
            names.append(file.name)
        remove(self._table, names)

    def _spill(self) -> None:
        """Write the rows that wait, as one row group per day."""
        if not self._waiting:
            return
        rows = pa.Table.from_batches(self._waiting, self._schema)
        self._waiting, self._waiting_bytes = [], 0
        found = pc.unique(rows.column(DATE))
        for day in found:
            part = rows if len(found) == 1 else rows.filter(pc.equal(rows.column(DATE), day))
            self._write(day.as_py(), part)

    def _write(self, day: date, rows: pa.Table) -> None:
        file = self._open.pop(day, None) or _File(self._table, day, rows, self._stored)
        self._open[day] = file
        file.write(rows.select(self._stored.names))
        if file.memory_bytes >= FILE_BYTES:
            self._close(day)
        if len(self._open) > FILES_OPEN_MAX:
            self._close(next(iter(self._open)))

    def _close(self, day: date) -> None:
        file = self._open.pop(day)
        file.close()
        self._done.append(file.described(self._table.finished(file.name)))


class _File:
    def __init__(self, table: TableStorage, day: date, rows: pa.Table, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self.day = day
        self.partition: int = rows.column("partition")[0].as_py()
        first = rows.column("offset")[0].as_py()
        unique = f"{SYSTEM.random.getrandbits(64):016x}"
        self.name = f"{DATE}={day.isoformat()}/{self.partition:05d}-{first:020d}-{unique}{OUR_SUFFIX}"
        self.memory_bytes = 0
        self._rows = 0
        self._bounds: dict[str, tuple[Any, Any]] = {}
        self._failures = mapped("write", f"{table}/{self.name}")
        with self._failures:
            self._sink = table.create(self.name)
            self._writer: pq.ParquetWriter = pq.ParquetWriter(
                self._sink,
                schema,
                compression="snappy",
                use_dictionary=["topic", "partition", "timestampType"],
                write_statistics=["partition", "offset", "timestamp"],
            )

    def write(self, rows: pa.Table) -> None:
        with self._failures:
            self._writer.write_table(rows, row_group_size=rows.num_rows)
        self.memory_bytes += rows.nbytes
        self._rows += rows.num_rows
        for name in ("offset", "timestamp"):
            found = pc.min_max(rows.column(name).cast(pa.int64()))
            low, high = found["min"].as_py(), found["max"].as_py()
            old = self._bounds.get(name, (low, high))
            self._bounds[name] = min(low, old[0]), max(high, old[1])

    def close(self) -> None:
        with self._failures:
            try:
                self._writer.close()
            finally:
                self._sink.close()

    def described(self, size_bytes: int) -> DataFile:
        return DataFile(
            name=self.name,
            day=self.day.isoformat(),
            size_bytes=size_bytes,
            rows=self._rows,
            partition=self.partition,
            offsets=self._bounds["offset"],
            timestamps_us=self._bounds["timestamp"],
        )


def remove(table: TableStorage, names: Sequence[str]) -> None:
    """Remove files that nobody committed; one that cannot be removed becomes an orphan."""
    for name in names:
        with suppress(OSError, PylogError):
            table.remove(name)


def _iso(timestamp_us: int) -> str | None:
    """Return the time as Delta's statistics write it; None outside of the years that they can."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=timestamp_us)
    except OverflowError:
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
