"""The newest snapshot of a topic's table, and the records in its files.

A stream looks many times a second, so a process keeps snapshots as long as nothing is committed behind them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

# Not `pyarrow.dataset`, nor pyarrow's scalars: they import pandas, which takes a new worker a quarter of a second.
import pyarrow.parquet as pq

from datasource.delta.owner import Owner, TierConfig, read_note
from datasource.delta.storage import TableStorage
from datasource.delta.table import RestoredError, RowBounds, TableFile, TopicTable
from datasource.errors import report
from datasource.topics.interface import PartitionRange
from logstore import StorageError
from logstore.env import SYSTEM
from logstore.store.reading import schema_of

SNAPSHOTS_MAX = 8
BATCH_ROWS = 16_384  # the first row does not wait for many others


class Snapshot:
    """The newest snapshot of a topic's table when it was loaded."""

    def __init__(self, table: TopicTable, since: int) -> None:
        self.table, self._loss = table, ""
        self.looked_ms = SYSTEM.clock.monotonic_ms()
        self._firsts: dict[int, int | None] = {}
        self._told: set[str] = set()
        try:
            table.check_history(since=since)
        except RestoredError as error:
            self._loss = str(error)

    @property
    def is_whole(self) -> bool:
        """Has RESTORE taken no rows out of the table?"""
        return not self._loss

    @cached_property
    def is_raw(self) -> bool:
        """Does the table hold values as bytes?"""
        schema = self.table.schema()
        return "value" in schema.names and pa.types.is_binary(schema.field("value").type)

    @cached_property
    def files(self) -> Sequence[TableFile]:
        return self.table.files()

    def boundary(self, partition: int) -> int | None:
        """Return the offset behind the last tiered record; None: none is."""
        return self.table.boundary(partition)

    def first(self, partition: int) -> int | None:
        """Return the first offset in a file that may hold rows of the partition; None: there is no such file."""
        if partition not in self._firsts:
            held = self.held(PartitionRange("", partition, 0, self.boundary(partition) or 0))
            self._firsts[partition] = min((file.first for file in held), default=None)
        return self._firsts[partition]

    def tell(self, losses: Mapping[str, str], *, fail: bool) -> None:
        """Report what RESTORE took, and these losses, by what is lost. A warning comes once, and not at each look.

        Raises: DataLossError: some records are lost, and `fail`.
        """
        found = {"": self._loss, **losses}
        report([line for lost, line in found.items() if fail or lost not in self._told], fail=fail)
        self._told.update(found)

    def rows(self, r: PartitionRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the records of `r`, file by file, with the columns and types of a read of the log.

        Raises: StorageError: VACUUM removed a file; a retry takes a newer snapshot.
        """
        schema = schema_of(columns)
        for file in sorted(self.held(r), key=lambda file: file.first):
            try:
                for batch in _rows(self.table.place, file.name, r, columns):
                    yield batch.cast(schema)
            except FileNotFoundError as error:
                raise StorageError(
                    f"{self.table.place / file.name} was removed while the table was read: read again"
                ) from error

    def held(self, r: PartitionRange) -> list[TableFile]:
        """Return the files that may hold records of the range."""
        return [file for file in self.files if file.bounds.may_hold(r.partition, r.start, r.end)]


_snapshots: dict[tuple[int, Owner, TableStorage], Snapshot] = {}


def newest(owner: Owner, note: TierConfig, *, may_rest: bool = False) -> Snapshot:
    """Return the newest snapshot of the table that the note names; if it `may_rest`, that of the last look will do.

    Raises: StoreError: it is none of this topic, or cannot be read; ObjectStoreError.
    """
    key = os.getpid(), owner, note.table
    known, now_ms = _snapshots.pop(key, None), SYSTEM.clock.monotonic_ms()
    if known is not None and may_rest and known.is_whole and now_ms - known.looked_ms < note.table.rest_ms:
        pass
    elif known is not None and known.table.is_newest():
        known.looked_ms = now_ms
    else:
        checked = known.table.version if known and known.is_whole else -1
        note = read_note(owner) or note
        table = TopicTable(note.table, owner)
        known = Snapshot(table, max(note.version, checked) if checked <= table.version else note.version)
    _snapshots[key] = known
    for old in list(_snapshots)[:-SNAPSHOTS_MAX]:
        _snapshots.pop(old, None)
    return known


def _rows(place: TableStorage, name: str, r: PartitionRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the range in one file, from the row groups that may hold some."""
    names = [*columns, *(name for name in ("partition", "offset") if name not in columns)]
    # Spark writes INT96, which would be read as nanoseconds: those end in 2262.
    with (
        place.open_input(name) as source,
        pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=place.reads_ahead) as file,
    ):
        about = (file.metadata.row_group(i) for i in range(file.num_row_groups))
        groups = [i for i, group in enumerate(about) if _bounds(group).may_hold(r.partition, r.start, r.end)]
        for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=names, use_threads=False):
            partition, offset = (np.from_dlpack(batch.column(name)) for name in ("partition", "offset"))
            is_in = (partition == r.partition) & (offset >= r.start) & (offset < r.end)
            found = np.flatnonzero(is_in)
            if not len(found):
                continue
            first, last = int(found[0]), int(found[-1])
            is_one_piece = last - first + 1 == len(found)
            chosen = batch.slice(first, len(found)) if is_one_piece else batch.filter(pa.array(is_in))
            yield chosen.select(list(columns))


def _bounds(group: pq.RowGroupMetaData) -> RowBounds:
    columns = {(column := group.column(i)).path_in_schema: column for i in range(group.num_columns)}

    def bounds(name: str) -> tuple[int, int] | None:
        known = columns[name].statistics
        return (known.min, known.max) if known is not None and known.has_min_max else None

    return RowBounds(partitions=bounds("partition"), offsets=bounds("offset"))
