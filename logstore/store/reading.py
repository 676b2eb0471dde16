"""Reading records of a log as Arrow batches: `Log.read` (whole batches, as stored) → `records.arrow.decode_pieces`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from logstore.config import Isolation
from logstore.errors import InvalidRequestError, OffsetOutOfRangeError, UnreadableBatchError, did_you_mean
from logstore.log.isolation import ONLY_MARKERS, Outcomes, committed, end_of, kept
from logstore.log.log import Log
from logstore.log.segments.index import AbortedTransaction
from logstore.log.segments.segment_reader import READ_BYTES_MIN, Space
from logstore.records.batch import BatchHeader
from logstore.records.counting import Range
from logstore.records.times import Time
from logstore.store.description import as_int, as_ms

if TYPE_CHECKING:
    import pyarrow as pa

# One read, and one Arrow batch: large enough to amortise the calls, small enough to be decoded out of the caches.
# The first is smaller, for those who want a few records.
READ_BYTES, FIRST_READ_BYTES = 2 * 1024 * 1024, 512 * 1024


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end)."""

    start: int
    end: int

    @property
    def count(self) -> int:
        """The number of offsets; records may be fewer."""
        return self.end - self.start


def extent_of(log: Log, isolation: Isolation = "read_uncommitted", outcomes: Outcomes = ONLY_MARKERS) -> OffsetRange:
    """The offsets that a reader of this isolation may read now."""
    end = end_of(log, isolation, outcomes)
    return OffsetRange(min(log.log_start_offset, end), end)


def read_batches(
    log: Log,
    start: int,
    end: int,
    columns: Sequence[str] | None = None,
    aborted: Sequence[AbortedTransaction] = (),
    batch_bytes: int = READ_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield the records with start <= offset < end, at most about `batch_bytes` of log at a time.

    Those of `aborted` transactions are left out.
    """
    import pyarrow as pa

    from logstore.records.arrow import decode_pieces, whole_bytes

    batch_bytes = max(batch_bytes, READ_BYTES_MIN)
    size_bytes = min(FIRST_READ_BYTES, batch_bytes)
    # Arrow's memory is on huge pages where there are some: the system fills it in two thirds of the time.
    space = Space(memoryview(pa.allocate_buffer(batch_bytes)), whole_bytes)
    while start < end:
        result = log.read(start, max_bytes=size_bytes, upper=end, space=space)
        size_bytes = min(2 * size_bytes, batch_bytes)
        if not result.data:
            return
        for part in kept(result, aborted) if aborted else (result,):
            where = (part.path, part.position)
            for batch in decode_pieces(part.data, start=start, end=end, columns=columns, where=where):
                if batch.num_rows:
                    yield batch
        start = result.next_offset


def read_round(
    read: Callable[[int], Iterator[pa.RecordBatch]],
    start: int,
    end: int,
    skipped: Callable[[UnreadableBatchError], object],
) -> Iterator[pa.RecordBatch]:
    """Yield what `read` yields from an offset on, and go round the batches below `end` that nobody can decode.

    `skipped` gets the error of each, and raises to stop there.
    """
    while start < end:
        try:
            yield from read(start)
            return
        except UnreadableBatchError as error:
            skipped(error)
            start = error.next_offset


class ReadingOn(Iterator["pa.RecordBatch"]):
    """Yield from `begin()`, and from another `begin()` behind a batch that nobody can decode, if the reader asks on.

    `begin` goes on where it was, and behind the batch whose error it raised.
    """

    def __init__(self, begin: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        self._begin = begin
        self._found = begin()

    def __next__(self) -> pa.RecordBatch:
        try:
            return next(self._found)
        except UnreadableBatchError:
            self._found = self._begin()
            raise


def read_isolated(  # noqa: PLR0913  as `LogStore.read`
    log: Log,
    start: int,
    end: int,
    columns: Sequence[str] | None,
    isolation: Isolation,
    outcomes: Outcomes = ONLY_MARKERS,
    *,
    batch_bytes: int = READ_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range that a reader of this isolation may see."""
    aborted: Sequence[AbortedTransaction] = ()
    if isolation != "read_uncommitted":
        end, aborted = committed(log, start, end, outcomes)
    return read_batches(log, start, end, columns, aborted, batch_bytes)


def records_between(  # noqa: PLR0913  as `LogStore.read`
    log: Log,
    start: Time | None,
    end: Time | None,
    columns: Sequence[str],
    isolation: Isolation,
    outcomes: Outcomes,
    *,
    batch_bytes: int,
    is_latest: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield the records between these places, or the last one of each key there; None: the first, or behind the last.

    Raises, at once: OffsetOutOfRangeError; InvalidRequestError: `start` is behind `end`.
    """
    extent = extent_of(log)
    start = extent.start if start is None else offset_at(log, start, extent, "start")
    end = extent.end if end is None else offset_at(log, end, extent, "end")
    for offset in (start, end):
        if not extent.start <= offset <= extent.end:
            raise OffsetOutOfRangeError(offset, extent.start, extent.end, log.directory.name)
    if start > end:
        raise InvalidRequestError(f"start={start} is behind end={end}")
    read = partial(read_isolated, log, isolation=isolation, outcomes=outcomes, batch_bytes=batch_bytes)
    if not is_latest:
        return read(start, end, columns)
    from logstore.records.latest import LatestValues

    return LatestValues(_Partition(log, read)).rows(start, end, columns)


class _Partition(NamedTuple):
    """`logstore.records.latest.Partition` of a log."""

    log: Log
    read: Callable[[int, int, Sequence[str]], Iterator[pa.RecordBatch]]

    def __str__(self) -> str:
        return self.log.directory.name

    def size_bytes(self, start: int, end: int) -> int:
        return self.log.reader.bytes_between(start, end)

    def offset_before_bytes(self, start: int, end: int, max_bytes: int) -> int:
        return max(start, self.log.reader.offset_before_bytes(end, max_bytes))


def count_isolated(log: Log, start: int, end: int, isolation: Isolation, outcomes: Outcomes = ONLY_MARKERS) -> int:
    """Return how many records `read_isolated` yields, by the headers of batches.

    Only a batch that the range cuts, and that has gaps, is decoded, and of that the offsets. CRCs are not checked.
    """
    aborted: Sequence[AbortedTransaction] = ()
    if isolation != "read_uncommitted":
        end, aborted = committed(log, start, end, outcomes)

    def is_left_out(batch: BatchHeader) -> bool:
        return any(transaction.holds(batch) for transaction in aborted)

    return log.reader.count(Range(start, end, is_left_out if aborted else None))


def offset_at(log: Log, place: Time, extent: OffsetRange, name: str) -> int:
    """Return the offset that a reader's bound stands for: itself, or that of the first record at or after a time.

    The end of the extent if there is no such record. Raises: InvalidRequestError: the datetime has no time zone.
    """
    if not isinstance(place, datetime):
        return as_int(place, name)
    found = log.reader.offset_for_time(as_ms(place, name))
    return extent.end if found is None else min(max(found.offset, extent.start), extent.end)


def at_least_one(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches, or one without rows if there are none."""
    import pyarrow as pa

    first = next(batches, None)
    if first is None:
        yield pa.RecordBatch.from_pylist([], schema)
        return
    yield first
    yield from batches


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """The schema of what is read: that of all columns, or of these. Raises: InvalidRequestError: an unknown one."""
    import pyarrow as pa

    from logstore.records.schema import RECORD_SCHEMA

    names = RECORD_SCHEMA.names if columns is None else columns
    for name in names:
        if name not in RECORD_SCHEMA.names:
            raise InvalidRequestError(f"no column {name!r}{did_you_mean(name, RECORD_SCHEMA.names)}")
    return pa.schema([RECORD_SCHEMA.field(name) for name in names])


def with_partition(batch: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    """The batch with a first column `partition`."""
    import pyarrow as pa

    column = pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows)
    return pa.RecordBatch.from_arrays([column, *batch.columns], names=["partition", *batch.schema.names])
