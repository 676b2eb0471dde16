"""ClosedSegments: size and times of the segments that are not active, looked up once.

Whatever changes one of them makes, renames or removes a file of the directory. So what is known of them goes with the
views between two listings. After a listing, one whose file is still there, of the same size and time, is the same.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from logstore.config import INT64_MAX
from logstore.log.segments.segment_reader import SegmentReader

Bases: TypeAlias = "array[int]"  # the base offsets of segments, 8 bytes each


class ClosedSegment(NamedTuple):
    """One of them: its file, and the times of its first batch and of its newest record, in milliseconds."""

    inode: int
    size_bytes: int
    mtime_ns: int
    first_ms: int
    newest_ms: int


_WIDTH = len(ClosedSegment._fields)


class Table:
    """Closed segments by their number, in 56 bytes each. Safe for threads: rows are only added, the same by each.

    `unsound`: the numbers of those that are damaged, or of another format, whose times are of what is before that.
    """

    __slots__ = ("_ends", "_newest", "_rows", "unsound")

    def __init__(self) -> None:
        self.unsound: list[int] = []
        self._rows: array[int] = array("q")
        self._ends: array[int] = array("q")  # the bytes of each and of those before it
        self._newest: array[int] = array("q")  # the largest time, likewise

    def __len__(self) -> int:
        return len(self._newest)

    def __getitem__(self, number: int) -> ClosedSegment:
        return ClosedSegment(*self._rows[number * _WIDTH : (number + 1) * _WIDTH])

    def size_bytes(self, count: int) -> int:
        """The bytes of the first so many."""
        return self._ends[count - 1] if count else 0

    def first_reaching(self, timestamp_ms: int, count: int) -> int:
        """The number of the first one with a record of this time or a later one; `count` if none of so many has."""
        return bisect_left(self._newest, timestamp_ms, 0, count)

    def copy(self) -> Table:
        copied = Table()
        copied._rows, copied._ends, copied._newest = self._rows[:], self._ends[:], self._newest[:]
        return copied

    def put(self, number: int, row: ClosedSegment) -> None:
        """Add the row behind the last one, or once more. The number of rows grows last."""
        self._rows[number * _WIDTH : (number + 1) * _WIDTH] = array("q", row)
        self._ends[number : number + 1] = array("q", [self.size_bytes(number) + row.size_bytes])
        newest_ms = max(self._newest[number - 1], row.newest_ms) if number else row.newest_ms
        self._newest[number : number + 1] = array("q", [newest_ms])


class ClosedSegments:
    """The known facts about the closed segments of one view, and about those that a lock holder derives from it.

    `bases` and `known` are of the view before, which a listing has replaced.
    """

    __slots__ = ("_earlier", "_table")

    def __init__(self, bases: Bases | None = None, known: ClosedSegments | None = None) -> None:
        self._table: Table | None = None  # most partitions have one segment
        self._earlier: tuple[Bases, Table] | None = None
        if bases and known is not None:
            self._earlier = (bases, known._table) if known._table else known._earlier

    def table(self, bases: Bases, segment_of: Callable[[int], SegmentReader]) -> Table:
        """The table that has those of a view with these bases, or more.

        Raises: FileNotFoundError: one of them is gone.
        """
        if self._table is None:
            self._table = Table()
        table, is_kept = self._table, True
        for number in range(len(table), len(bases) - 1):
            row, is_sound = self._look(bases[number], segment_of)
            if is_kept and not is_sound:  # it may be mended in place: look again each time
                table, is_kept = table.copy(), False
            if not is_sound:
                table.unsound.append(number)
            table.put(number, row)
        if is_kept:
            self._earlier = None
        return table

    def _look(self, base: int, segment_of: Callable[[int], SegmentReader]) -> tuple[ClosedSegment, bool]:
        """A row, and whether the segment is sound."""
        segment = segment_of(base)
        stat = segment.source.extent()  # first: it is of the times that follow, or of earlier ones
        file = stat.inode & INT64_MAX, stat.size, stat.mtime_ns
        known = self._known_before(base)
        if known is not None and known[:3] == file:
            return known, True
        tail = segment.tail(stat.size)
        return ClosedSegment(*file, tail.first_timestamp_ms, tail.max_timestamp_ms), tail.position == stat.size

    def _known_before(self, base: int) -> ClosedSegment | None:
        if self._earlier is None:
            return None
        bases, table = self._earlier
        number = bisect_left(bases, base)
        return table[number] if number < min(len(bases), len(table)) and bases[number] == base else None
