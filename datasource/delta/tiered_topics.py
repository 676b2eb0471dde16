"""The union of a log and of the Delta table that holds its older records: one topic, each offset once.

Below the boundary in the table's snapshot, rows come from the table; from there on, from the log. A reader takes both
from one snapshot, so later commits do not matter. If retention has deleted records behind the snapshot's boundary, they
are in the table by now, and the reader takes a new snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from datasource.delta.owner import TierConfig, owner_of, read_note
from datasource.delta.table import RestoredError, TableFile, TopicTable
from datasource.delta.topic_tables import table_of
from datasource.errors import report
from datasource.topics.interface import Found, PartitionRange
from datasource.topics.locations import Location
from logstore import InvalidRequestError, OffsetOutOfRangeError, OffsetRange, StorageError, TopicInfo
from logstore.store.reading import schema_of


class TieredTopics:
    """Committed records of topics whose older ones are in tables; over a cluster `table` names those.

    A topic of a directory that was never tiered is just its log. A table that lost rows by RESTORE raises
    DataLossError, or logs a warning.
    """

    def __init__(self, location: Location, table: str = "", *, fail_on_data_loss: bool) -> None:
        self._log = location.read()
        self._location = location
        self._named = table
        self._fail = fail_on_data_loss
        self._looked_through: dict[str, int] = {}  # topic: version of its table

    @property
    def identity(self) -> str:
        return self._log.identity

    def topics(self) -> list[TopicInfo]:
        return self._log.topics()

    def topic(self, name: str) -> TopicInfo:
        return self._log.topic(name)

    def offsets(self, topic: str) -> Mapping[int, OffsetRange]:
        # First: what retention deletes now is in the table that is loaded next.
        log = self._log.offsets(topic)
        table = self._table(topic)
        if table is None:
            return log
        files = table.files()
        return {p: _joined(files, table.boundary(p), p, extent) for p, extent in log.items()}

    def extent(self, topic: str, partition: int) -> OffsetRange:
        return self.offsets(topic)[partition]

    def epoch_ends(self, topic: str, epochs: Mapping[int, int]) -> Mapping[int, int]:
        return self._log.epoch_ends(topic, epochs)

    def settled(self, look: Callable[[], Found]) -> Found:
        return self._log.settled(look)

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        table = self._table(topic)
        boundary = 0 if table is None else table.boundary(partition) or 0
        if table is not None and boundary:
            offsets = [
                pc.min(batch.filter(_since(batch, timestamp_ms)).column("offset")).as_py()
                for batch in rows(table, PartitionRange(topic, partition, 0, boundary), ["offset", "timestamp"])
            ]
            if found := [int(offset) for offset in offsets if offset is not None]:
                return min(found)
        return self._log.offset_for_time(topic, partition, timestamp_ms)

    def floor_batch(self, r: PartitionRange, offset: int) -> int:
        """Where to cut at `offset`: at a batch in the log, anywhere in the table."""
        table = self._table(r.topic)
        if table is not None and offset < (table.boundary(r.partition) or 0):
            return offset
        return self._log.floor_batch(r, offset)

    def size_bytes(self, r: PartitionRange) -> int:
        old, new, table = self._parts(r)
        size = self._log.size_bytes(new) if new.count else 0
        if table is not None and old.count:
            size += sum(_share(file, old) for file in table.files() if _may_hold(file, old))
        return size

    def offset_after_bytes(self, r: PartitionRange, max_bytes: int) -> int:
        old, new, _ = self._parts(r)
        if not old.count:
            return self._log.offset_after_bytes(new, max_bytes)
        size = self.size_bytes(old)
        return old.end if size <= max_bytes else old.start + max(1, old.count * max_bytes // size)

    def read(self, r: PartitionRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the records of `r`: those of the table, then those of the log.

        Raises: DataLossError: some are in neither.
        """
        while r.count:
            old, new, table = self._parts(r)
            if table is not None and old.count:
                yield from rows(table, old, columns)
            try:
                for batch, after in self._log_batches(new, columns):
                    yield batch
                    new = replace(new, start=after)
                return
            except OffsetOutOfRangeError:
                # Tiered and deleted since the snapshot; or deleted, and never tiered.
                r = new if self._parts(new)[0].count else self._behind_the_hole(new)

    def count(self, r: PartitionRange) -> int:
        """Return how many records `read` yields: offsets are read, those of the log, too."""
        return sum(batch.num_rows for batch in self.read(r, ["offset"]))

    def _behind_the_hole(self, r: PartitionRange) -> PartitionRange:
        """Return what is left of a range whose begin is neither in the table nor in the log."""
        start = self._log.offsets(r.topic)[r.partition].start
        lost = replace(r, end=min(start, r.end))
        report([f"{lost} is lost: it was deleted from the log before it was tiered"], fail=self._fail)
        return replace(r, start=lost.end)

    def _log_batches(self, r: PartitionRange, columns: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield batches of the log, each with the offset behind it."""
        if not r.count:
            return
        names = list(columns)
        with_offset = names if "offset" in names else [*names, "offset"]
        for batch in self._log.read(r, with_offset):
            yield batch.select(names), batch.column("offset")[-1].as_py() + 1

    def _parts(self, r: PartitionRange) -> tuple[PartitionRange, PartitionRange, TopicTable | None]:
        """Return the range below the boundary of the newest snapshot, the rest, and that snapshot."""
        table = self._table(r.topic)
        boundary = 0 if table is None else table.boundary(r.partition) or 0
        cut = min(max(r.start, boundary), r.end)
        return replace(r, end=cut), replace(r, start=cut), table

    def _table(self, topic: str) -> TopicTable | None:
        """Return the newest snapshot of the topic's table; None: it was never tiered, which a directory notes."""
        owner = owner_of(self._location, self._log.topic(topic), table_of(topic, self._named))
        note = read_note(owner)
        if note is None and owner.is_store:
            return None
        note = note or TierConfig(owner.base)
        table = TopicTable(note.table, owner)
        try:
            table.check_history(since=max(note.version, self._looked_through.get(topic, -1)))
            self._looked_through[topic] = table.version
        except RestoredError as error:
            report([str(error)], fail=self._fail)
        if not is_raw(table.schema()):
            raise InvalidRequestError(
                f"topic {topic!r} is tiered with a schema, so {note.table} has no bytes of values: read that table "
                "itself (format delta), and the log without includeTiered"
            )
        return table


def is_raw(schema: pa.Schema) -> bool:
    """Does the table hold values as bytes?"""
    return "value" in schema.names and pa.types.is_binary(schema.field("value").type)


def rows(table: TopicTable, r: PartitionRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the table's records of `r`, with the columns and types of a read of the log.

    Raises: StorageError: VACUUM removed a file of the snapshot; a retry takes a newer one.
    """
    files = sorted((f for f in table.files() if _may_hold(f, r)), key=lambda f: f.offsets or (0, 0))
    schema = schema_of(columns)
    # Spark writes INT96, which would be read as nanoseconds: those end in 2262.
    parquet = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
    wanted = (pc.field("partition") == r.partition) & (pc.field("offset") >= r.start) & (pc.field("offset") < r.end)
    for file in files:
        try:
            batches = ds.dataset(str(file.path), format=parquet).to_batches(
                columns=list(columns), filter=wanted, use_threads=False
            )
            for batch in batches:
                if batch.num_rows:
                    yield batch.cast(schema)
        except FileNotFoundError as error:
            raise StorageError(f"{file.path} was removed while the table was read: read again") from error


def _may_hold(file: TableFile, r: PartitionRange) -> bool:
    return file.may_hold(r.partition, r.start, r.end)


def _joined(files: Sequence[TableFile], boundary: int | None, partition: int, log: OffsetRange) -> OffsetRange:
    """Return the offsets of table and log: from the first row in a file that may hold the partition.

    A partition that the table does not know begins at 0: a read of what the log deleted says that it is lost.
    """
    if boundary is None:
        return replace(log, start=0)
    firsts = [file.offsets[0] if file.offsets else 0 for file in files if file.may_hold(partition, 0, boundary)]
    return replace(log, start=min([*firsts, log.start]), end=max(boundary, log.end))


def _share(file: TableFile, r: PartitionRange) -> int:
    """Return the bytes of a file that belong to the range, as if its offsets were spread evenly."""
    if file.offsets is None:
        return file.size_bytes
    low, high = file.offsets
    return file.size_bytes * (min(high + 1, r.end) - max(low, r.start)) // (high + 1 - low)


def _since(batch: pa.RecordBatch, timestamp_ms: int) -> Any:
    return pc.greater_equal(batch.column("timestamp").cast(pa.int64()), timestamp_ms)
