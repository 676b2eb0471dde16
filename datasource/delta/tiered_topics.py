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

from datasource.delta.owner import TierConfig, owner_of, read_note
from datasource.delta.snapshots import Snapshot, newest
from datasource.delta.storage_options import NONE, StorageOptions, scheme_of
from datasource.delta.table import TableFile
from datasource.delta.topic_tables import table_of
from datasource.errors import report
from datasource.topics.interface import Found, PartitionRange
from datasource.topics.locations import Location
from logstore import InvalidRequestError, OffsetOutOfRangeError, OffsetRange, TopicInfo
from logstore.config import INT64_MAX
from logstore.schemas.registry import Schemas


class TieredTopics:
    """Committed records of topics whose older ones are in tables; over a cluster `table` names those.

    A topic of a directory that was never tiered is just its log. A table that lost rows by RESTORE raises
    DataLossError, or logs a warning.
    """

    def __init__(
        self, location: Location, table: str = "", storage: StorageOptions = NONE, *, fail_on_data_loss: bool
    ) -> None:
        self._log = location.read()
        self._location = location
        self._named = table
        self._storage = storage
        self._fail = fail_on_data_loss

    @property
    def identity(self) -> str:
        return self._log.identity

    @property
    def schemas(self) -> Schemas:
        return self._log.schemas

    def is_pylog(self) -> bool:
        return self._log.is_pylog()

    def topics(self) -> list[TopicInfo]:
        return self._log.topics()

    def topic(self, name: str) -> TopicInfo:
        return self._log.topic(name)

    def offsets(self, topic: str) -> Mapping[int, OffsetRange]:
        # First: what retention deletes now is in the table that is loaded next.
        log = self._log.offsets(topic)
        # Records that are tiered and deleted since the last look are found by the read.
        found = self._snapshot(topic, may_rest=True)
        if found is None:
            return log
        ends = {p: found.boundary(p) or 0 for p in log}
        if any(end > log[p].end for p, end in ends.items()):  # tiered since the log was looked at, or it was cut
            log = self._log.offsets(topic)
            cut = {p: _cut(topic, p, end, log[p].end) for p, end in ends.items() if end > log[p].end}
            found.tell({f"{topic}-{p}": line for p, line in cut.items()}, fail=self._fail)
        return {p: _joined(found.boundary(p), found.first(p), extent) for p, extent in log.items()}

    def extent(self, topic: str, partition: int) -> OffsetRange:
        return self.offsets(topic)[partition]

    def wait_for_more(self, ends: Mapping[str, Mapping[int, int]], wait_ms: int) -> bool:
        return self._log.wait_for_more(ends, wait_ms)

    def epoch_ends(self, topic: str, epochs: Mapping[int, int]) -> Mapping[int, int]:
        """Return what the log says; no election cuts what retention has deleted from the log."""
        ends = self._log.epoch_ends(topic, epochs)
        if not ends:
            return ends
        log = self._log.offsets(topic)
        return {p: max(end, log[p].start) for p, end in ends.items()}

    def settled(self, look: Callable[[], Found]) -> Found:
        return self._log.settled(look)

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        tiered, _, found = self._parts(PartitionRange(topic, partition, 0, INT64_MAX))
        if tiered.count and found is not None:
            offsets = [
                pc.min(batch.filter(_since(batch, timestamp_ms)).column("offset")).as_py()
                for batch in found.rows(tiered, ["offset", "timestamp"])
            ]
            if later := [int(offset) for offset in offsets if offset is not None]:
                return min(later)
        return self._log.offset_for_time(topic, partition, timestamp_ms)

    def floor_batch(self, r: PartitionRange, offset: int) -> int:
        """Where to cut at `offset`: at a batch in the log, anywhere in the table."""
        tiered, _, _ = self._parts(replace(r, start=offset, end=offset + 1))
        return offset if tiered.count else self._log.floor_batch(r, offset)

    def size_bytes(self, r: PartitionRange) -> int:
        old, new, found = self._parts(r)
        size = self._log.size_bytes(new) if new.count else 0
        if found is not None and old.count:
            size += sum(_share(file, old) for file in found.held(old))
        return size

    def offset_after_bytes(self, r: PartitionRange, max_bytes: int) -> int:
        old, new, _ = self._parts(r)
        if not old.count:
            return self._log.offset_after_bytes(new, max_bytes)
        size = self.size_bytes(old)
        return old.end if size <= max_bytes else old.start + max(1, old.count * max_bytes // size)

    def offset_before_bytes(self, r: PartitionRange, max_bytes: int) -> int:
        """Where that is in the log; in the table, where a file begins: a file that is cut is read twice."""
        old, new, found = self._parts(r)
        if new.count:
            return self._log.offset_before_bytes(new, max_bytes)
        start, size = old.end, 0
        for file in sorted(found.held(old) if found else (), key=lambda file: file.first, reverse=True):
            size += _share(file, old)
            if size > max_bytes and start < old.end:
                return start
            start = max(old.start, min(start, file.first))
        return old.start

    def read(self, r: PartitionRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the records of `r`: those of the table, then those of the log.

        Raises: DataLossError: some are in neither.
        """
        while r.count:
            old, new, found = self._parts(r)
            if found is not None and old.count:
                yield from found.rows(old, columns)
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

    def _parts(self, r: PartitionRange) -> tuple[PartitionRange, PartitionRange, Snapshot | None]:
        """Return the range below the boundary of the newest snapshot, the rest, and that snapshot."""
        found = self._snapshot(r.topic)
        boundary = 0 if found is None else found.boundary(r.partition) or 0
        cut = min(max(r.start, boundary), r.end)
        return replace(r, end=cut), replace(r, start=cut), found

    def _snapshot(self, topic: str, *, may_rest: bool = False) -> Snapshot | None:
        """Return the newest snapshot of the topic's table; None: it was never tiered, which a directory notes."""
        table = table_of(topic, self._named, self._storage) if self._named else None
        owner = owner_of(self._location, self._log.topic(topic), table, self._storage)
        note = TierConfig(table) if table else read_note(owner)
        if note is None:
            return None
        self._storage.check_scheme(scheme_of(str(note.table)))
        found = newest(owner, note, may_rest=may_rest)
        found.tell({}, fail=self._fail)
        if not found.is_raw:
            raise InvalidRequestError(
                f"topic {topic!r} is tiered with a schema, so {note.table} has no bytes of values: read that table "
                "itself (format delta), and the log without includeTiered"
            )
        return found


def _joined(boundary: int | None, first: int | None, log: OffsetRange) -> OffsetRange:
    """Return the offsets of table and log: from the first row in a file that may hold the partition.

    A partition that the table does not know begins at 0: a read of what the log deleted says that it is lost.
    """
    if boundary is None:
        return replace(log, start=0)
    start = log.start if first is None else min(first, log.start)
    return replace(log, start=start, end=max(boundary, log.end))


def _cut(topic: str, partition: int, boundary: int, end: int) -> str:
    why = "restored from an older copy, or cut by an unclean leader election"
    return f"{topic}-{partition}: the table holds offsets up to {boundary}, and the log ends at {end}: {why}"


def _share(file: TableFile, r: PartitionRange) -> int:
    """Return the bytes of a file that belong to the range, as if its offsets were spread evenly."""
    if file.bounds.offsets is None:
        return file.size_bytes
    low, high = file.bounds.offsets
    return file.size_bytes * (min(high + 1, r.end) - max(low, r.start)) // (high + 1 - low)


def _since(batch: pa.RecordBatch, timestamp_ms: int) -> Any:
    return pc.greater_equal(batch.column("timestamp").cast(pa.int64()), timestamp_ms)
