"""SegmentReader: the batches of one segment, found and read, wherever its source has them.

Invariant: offsets increase, every batch starts where the one before it ends, and every index entry was written after
its batch. The log keeps what is known of the end (`SegmentEnd`), so a reader has no state, and any thread may read
while one appends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from logstore.config import INT32_MAX
from logstore.errors import CorruptLogError
from logstore.log.segments.end import SegmentEnd
from logstore.log.segments.index import Entry
from logstore.log.segments.source import SegmentSource
from logstore.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    InvalidBatchError,
    WrongChecksumError,
    header_at,
    out_of_order,
    records,
    whole_bytes,
)

# A walk over headers reads this much at a time: a few pages cost little more than one header does.
WINDOW_BYTES = 16 * 1024
TORN = "the file ends within a batch"
OFFSET_BYTES = 8  # what a batch begins with: its base offset

Walk = Callable[..., tuple[int, int]]  # `whole_bytes`, or what does the same faster


class Slice(NamedTuple):
    """Whole batches as stored, from `position`; `next_offset` follows the last one."""

    data: memoryview
    position: int
    next_offset: int


class Space(NamedTuple):
    """The buffer of a reader, used again and again, and the function that finds the batches in it."""

    buffer: bytearray | memoryview
    walk: Walk = whole_bytes

    def first(self, size_bytes: int) -> memoryview | None:
        return memoryview(self.buffer)[:size_bytes] if len(self.buffer) >= size_bytes else None


NO_SPACE, NOTHING = Space(bytearray()), memoryview(b"")
# Reading less costs as much.
READ_BYTES_MIN = 16 * 1024


class Request(NamedTuple):
    """Whole batches from the one that holds `offset`, with base offsets below `upper`: at most `max_bytes`, or one.

    They are put into `space` if they fit there; `walk` finds where batches end.
    """

    offset: int
    max_bytes: int
    upper: int
    space: memoryview | None
    walk: Walk = whole_bytes


class SegmentReader:
    """Reads one segment; see the module. Paths, offsets and indexes are the source's."""

    __slots__ = ("base_offset", "index", "path", "source", "time_index")

    def __init__(self, source: SegmentSource) -> None:
        self.source = source
        self.base_offset = source.base_offset
        self.path = source.path
        self.index = source.index
        self.time_index = source.time_index

    def size_bytes(self) -> int:
        """The bytes of the batches now. Raises: FileNotFoundError: the segment has left the log."""
        return self.source.extent().size

    def headers(self, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of the whole batches in [position, end); a partial one ends the walk.

        About 2 µs per batch, a read per 16 KiB of small batches or per large batch. CRCs are not checked.

        Raises: CorruptLogError: a header that no batch has, or offsets that go back.
        """
        window, window_at, next_offset = b"", position, self.base_offset
        while position + HEADER_BYTES <= end:
            if position + HEADER_BYTES > window_at + len(window):
                window, window_at = self.source.read(position, WINDOW_BYTES), position
                if len(window) < HEADER_BYTES:
                    return
            header = self._valid(window, position - window_at, window_at)
            if header.base_offset < next_offset:
                raise CorruptLogError(
                    self.path,
                    position,
                    f"offset {header.base_offset} where {next_offset} or more must follow",
                )
            if position + header.size_bytes > end:
                return
            yield position, header
            position += header.size_bytes
            next_offset = header.next_offset

    def tail(self, size_bytes: int, known: SegmentEnd | None = None) -> SegmentEnd:
        """Return how far the first `size_bytes` are whole batches, going on from what is known or indexed."""
        # Another writer of the batches behind the known end may have added to the indexes.
        tail = known._replace(damage=None, timed_entries=-1) if known else self._indexed_tail(size_bytes)
        try:
            for position, batch in self.headers(tail.position, size_bytes):
                if batch.base_offset < tail.next_offset:
                    raise CorruptLogError(self.path, position, f"offset {batch.base_offset} appears twice")
                self.check_reach(position, batch)
                tail = tail.behind(batch, position)
        except CorruptLogError as error:
            return tail._replace(damage=error.reason)
        return tail

    def check_reach(self, position: int, batch: BatchHeader) -> None:
        """Raise CorruptLogError if the batch ends farther from where the segment begins than an index can say."""
        if batch.last_offset - self.base_offset > INT32_MAX:
            too_far = f"offset {batch.last_offset} is too far from where the segment begins"
            raise CorruptLogError(self.path, position, too_far)

    def _indexed_tail(self, size_bytes: int) -> SegmentEnd:
        """The end before the batch of the last index entry, to walk on from."""
        tail = SegmentEnd(position=0, next_offset=self.base_offset)
        entry = self.index.last()
        if entry is None:
            return tail
        batch = self._agreeing(entry, size_bytes)
        if batch is None:
            return tail._replace(index_ok=False)
        newest, first = self.time_index.last(), self.header(0)
        if newest is None or first is None or not self._agreeing_time(newest):
            return tail._replace(index_ok=False)
        return SegmentEnd(
            position=entry[1],
            next_offset=batch.base_offset,
            indexed_position=entry[1],
            indexed_entries=self.index.count(),
            first_timestamp_ms=first.max_timestamp,
            max_timestamp_ms=newest[0],
            max_timestamp_offset=newest[1] + self.base_offset,
        )

    def indexed_batch_before(self, offset: int) -> tuple[int, int]:
        """Return (position, base offset) of an indexed batch at or before `offset`, or of the start."""
        entry = self.index.floor(offset - self.base_offset) if offset > self.base_offset else None
        batch = self._agreeing(entry, self.size_bytes()) if entry else None
        return (entry[1], batch.base_offset) if entry and batch else (0, self.base_offset)

    def _agreeing(self, entry: Entry, size_bytes: int) -> BatchHeader | None:
        """The batch that an index entry points to, if it has the offset of the entry."""
        last_offset, position = entry[0] + self.base_offset, entry[1]
        batch = self.header(position) if 0 < position <= size_bytes - HEADER_BYTES else None
        return batch if batch and batch.last_offset == last_offset else None

    def _agreeing_time(self, entry: Entry) -> bool:
        """True if the batch that a time index entry points to has that time."""
        try:
            found = self.batch_at(entry[1] + self.base_offset) if entry[1] >= 0 else None
        except CorruptLogError:
            return False  # the walk from the start finds where, and says it
        return found is not None and found[1].max_timestamp == entry[0]

    def resume_behind(self, position: int, size_bytes: int, end: int) -> tuple[int, int] | None:
        """(position, offset) of the first batch that can be found behind the damaged one at `position`; None: none.

        `end` is the offset that the file must reach: it tells whether the damaged batch was the last one.
        """
        damaged = self.header(position)
        if damaged is not None:
            after = position + damaged.size_bytes
            if after == size_bytes and damaged.next_offset == end:
                return after, end
            following = self.header(after) if after <= size_bytes - HEADER_BYTES else None
            if following is not None and following.base_offset >= damaged.next_offset:
                return after, following.base_offset
        for entry in self.index.entries():
            if entry[1] > position and (batch := self._agreeing(entry, size_bytes)) is not None:
                return entry[1], batch.base_offset
        return None

    def header(self, position: int) -> BatchHeader | None:
        try:
            return header_at(self.source.read(position, HEADER_BYTES))
        except InvalidBatchError:
            return None

    def floor_position(self, offset: int) -> int:
        """Return where a batch begins, at or shortly before the one that holds `offset`."""
        entry = self.index.floor(offset - self.base_offset)
        if entry is None:
            return 0
        batch = self._agreeing(entry, self.size_bytes())
        if batch is None:
            return 0  # the index is damaged: slow, but right
        return entry[1] if batch.last_offset >= offset else entry[1] + batch.size_bytes

    def batch_at(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Return (position, batch) of the one that holds `offset`, in a gap of the next; None at the end."""
        for position, batch in self.headers(self.floor_position(offset), self.size_bytes()):
            if batch.last_offset >= offset:
                return position, batch
        return None

    def offset_at(self, position: int) -> int:
        """Return the offset behind the last batch that ends at or before `position`."""
        entry = self.index.floor(position, by=1)
        known = self._agreeing(entry, self.size_bytes()) if entry else None
        start, offset = (entry[1], known.base_offset) if entry and known else (0, self.base_offset)
        for _, batch in self.headers(start, position):
            offset = batch.next_offset
        return offset

    def first_since(
        self, timestamp_ms: int, size_bytes: int, limit: int, *, start: int = 0, or_marker: bool = False
    ) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record from `start` on, not older than `timestamp_ms`, if any.

        `limit` is where the next segment begins, or the log ends. `or_marker`: a transaction's marker counts, too.

        Raises: CorruptLogError: a batch that had to be decoded is damaged.
        """
        # All headers of a small segment are one read, too.
        entry = self.time_index.floor(timestamp_ms) if size_bytes > WINDOW_BYTES else None
        first = self.floor_position(entry[1] + self.base_offset) if entry and self._agreeing_time(entry) else 0
        for position, batch in self.headers(first, size_bytes):
            if batch.max_timestamp < timestamp_ms or batch.last_offset < start:
                continue
            if batch.is_control and not or_marker:
                continue
            try:
                found = records(self.source.read(position, batch.size_bytes))
                for record in found:
                    if record.timestamp >= timestamp_ms and record.offset >= start:
                        for _ in found:  # no reader gets a record of a batch that cannot be decoded to its end
                            pass
                        self._check_end(position, position + batch.size_bytes, batch.next_offset, limit)
                        return record.offset, record.timestamp
            except WrongChecksumError as error:
                raise CorruptLogError(self.path, position, error.reason) from error
            except InvalidBatchError:
                continue  # records that nobody can decode have no times
        return None

    def read(self, request: Request, position: int, limit: int) -> Slice | None:
        """Return what is asked for; None if the file ends before it; empty if a gap reaches to `upper`.

        `position` is where a batch begins, at or before the one that holds the offset; `limit` is where the next
        segment begins, or the log ends. Reads a dozen bytes of each batch twice, and no record.

        Raises: CorruptLogError: there is something else than a batch.
        """
        offset, max_bytes, upper, own_space, walk = request
        size_bytes = max(max_bytes, READ_BYTES_MIN) if own_space is None else len(own_space)
        while True:
            if own_space is None:  # as much memory as there is to read, not cleared first
                space = memoryview(self.source.read(position, size_bytes))
                count = len(space)
            else:
                space, count = own_space, self.source.read_into(position, own_space)
            end, floor = walk(space, count, upper=offset + 1)
            begin = floor if end and self._valid(space, floor, position).last_offset >= offset else end
            if begin and (at := out_of_order(space, min(count, begin + HEADER_BYTES))) is not None:
                raise CorruptLogError(self.path, position + at, "offsets go back")
            stop, last = walk(space, min(count, begin + max_bytes), start=begin, upper=upper)
            if stop > begin:
                next_offset = self._valid(space, last, position).next_offset
                self._check_end(position + last, position + stop, next_offset, limit, space[stop:count])
                return Slice(space[begin:stop], position + begin, next_offset)
            if begin == count < size_bytes:
                return None
            position += begin
            if begin == 0:  # more than was asked for, or than there is space for: take this batch alone
                batch = self._large_batch(position, space[:count])
                if batch.base_offset >= upper:
                    end = position + batch.size_bytes
                    self._check_end(position, end, batch.next_offset, limit, space[batch.size_bytes : count])
                    return Slice(space[:0], position, upper)
                if batch.last_offset < offset:
                    position += batch.size_bytes
                    continue
                if own_space is not None:
                    own_space = own_space[: batch.size_bytes] if batch.size_bytes <= size_bytes else None
                max_bytes = size_bytes = batch.size_bytes

    def read_cached(self, offset: int, upper: int, max_bytes: int, position: int, tail: SegmentEnd) -> Slice | None:
        """Read from memory, as `read` does, if a batch at `position` has the offset; None: call `read`.

        There are whole batches up to `tail`, and this is the last segment of its log.
        """
        size_bytes, limit = tail[:2]
        wanted_bytes = min(max_bytes + OFFSET_BYTES, size_bytes - position)
        data = self.source.read_cached(position, wanted_bytes)
        if not data:
            return None
        stop, last = whole_bytes(data, min(len(data), max_bytes), upper=upper)
        if not stop:
            return None
        following = int.from_bytes(data[stop : stop + OFFSET_BYTES], "big") if position + stop < size_bytes else limit
        try:
            first = header_at(data)
            next_offset = (header_at(data, last) if last else first).next_offset
        except InvalidBatchError:
            return None
        if not first.base_offset <= offset <= first.last_offset or next_offset > following:
            return None
        return Slice(memoryview(data)[:stop], position, next_offset)

    def _check_end(
        self, position: int, end: int, next_offset: int, limit: int, behind: memoryview | bytes = b""
    ) -> None:
        """Raise unless the batch behind [position, end) has higher offsets. `behind`: the bytes from `end` on.

        Base offsets are outside the CRC: only its neighbours show a damaged one, which would hide records.
        """
        if next_offset < limit:
            if len(behind) < OFFSET_BYTES:
                behind = self.source.read(end, OFFSET_BYTES)
            if len(behind) < OFFSET_BYTES:
                return  # the last one here
            limit = int.from_bytes(behind[:OFFSET_BYTES], "big")
        if next_offset > limit:
            reason = f"offsets up to {next_offset - 1} where {limit} follows"
            raise CorruptLogError(self.path, position, reason)

    def _valid(self, data: bytes | memoryview, at: int, position: int) -> BatchHeader:
        try:
            return header_at(data, at)
        except InvalidBatchError as error:
            raise CorruptLogError(self.path, position + at, error.reason) from error

    def _large_batch(self, position: int, start: memoryview) -> BatchHeader:
        """The header of the batch that begins with `start`, of which no more was read."""
        batch = self._valid(start, 0, position)
        if position + batch.size_bytes > self.size_bytes():
            raise CorruptLogError(self.path, position, f"{TORN} of {batch.size_bytes} bytes")
        return batch
