"""Segment: one .log file of whole batches in offset order, and the two indexes that say where to look in it.

A batch has, as in Kafka, an index entry if it begins more than index.interval.bytes behind the batch of the last entry;
the time index gets one more when the segment is closed. A Segment adds to its reader what changes the files.
"""

from __future__ import annotations

from logstore.env import Env
from logstore.log.segments.end import NO_TIME, SegmentEnd, step
from logstore.log.segments.index import Entry, SortedEntries, TransactionIndex
from logstore.log.segments.segment_reader import SegmentReader
from logstore.log.segments.source import LocalSource


class Segment(SegmentReader):
    """One segment in the directory of its log; see the module, and `LocalSource` for `suffix`."""

    __slots__ = ("_env",)

    source: LocalSource
    index: SortedEntries
    time_index: SortedEntries

    def __init__(self, env: Env, directory: str, base_offset: int, suffix: str = "") -> None:
        super().__init__(LocalSource(env, directory, base_offset, suffix))
        self._env = env

    @property
    def transactions(self) -> TransactionIndex:
        return self.source.transactions

    @property
    def paths(self) -> tuple[str, str, str]:
        return self.path, self.index.path, self.time_index.path

    def create(self) -> None:
        """Make the three files, empty. Stale indexes of an earlier segment of this name are emptied."""
        for index in (self.index, self.time_index):
            self._env.files.create(index.path)
            self._env.files.truncate(index.path, 0)
        self.transactions.remove()
        self._env.files.create(self.path)

    def append_entries(self, end: SegmentEnd, entries: list[Entry], times: list[Entry]) -> SegmentEnd:
        """Add the entries to both indexes, the time index first; return the end that knows of them.

        A walk from the last offset entry then finds every timestamp that the time index lacks, wherever the process
        died.
        """
        if end.timed_entries < 0:
            end = self._counted(end, len(entries))
        end = self._append_times(times, end)
        self.index.append(entries, behind=end.indexed_entries - len(entries))
        return end

    def seal(self, tail: SegmentEnd) -> None:
        """Note the largest timestamp: nothing will be appended any more."""
        if tail.position:
            newest = (tail.max_timestamp_ms, tail.max_timestamp_offset - self.base_offset)
            self._append_times([newest], tail if tail.timed_entries >= 0 else self._counted(tail))

    def _append_times(self, times: list[Entry], tail: SegmentEnd) -> SegmentEnd:
        """Add the entries whose time is newer than all before; return the end with them."""
        newest, added = tail.timed_ms, []
        for entry in times:
            if entry[0] > newest:
                newest = entry[0]
                added.append(entry)
        if not added:
            return tail
        self.time_index.append(added, behind=tail.timed_entries)
        return SegmentEnd(*tail[:9], tail.timed_entries + len(added), newest)

    def _counted(self, tail: SegmentEnd, more: int = 0) -> SegmentEnd:
        """The end with the entries of both indexes counted; `more` offset entries follow."""
        for index in (self.index, self.time_index):
            self._env.files.create(index.path)
        last = self.time_index.last()
        return tail._replace(
            indexed_entries=self.index.count() + more,
            timed_entries=self.time_index.count(),
            timed_ms=last[0] if last else NO_TIME,
        )

    def truncate(self, position: int, next_offset: int) -> None:
        """Cut everything from `position` on, where `next_offset` follows.

        Indexes go first: entries behind the end are wrong. Transaction indexes go last: an entry without its marker
        does no harm, a marker without its entry does.
        """
        self.index.truncate_below(position, by=1)
        self.time_index.truncate_below(next_offset - self.base_offset, by=1)
        self._env.files.truncate(self.path, position)
        self.transactions.truncate(next_offset)

    def remove(self) -> None:
        """Remove the files, the log first: recovery removes indexes without one."""
        for path in (*self.paths, *self.transactions.paths):
            self._env.files.unlink(path)

    def rebuild_indexes(self, size_bytes: int, interval_bytes: int) -> SegmentEnd:
        """Rebuild both indexes from the batches in the first `size_bytes`; return the end there."""
        start = SegmentEnd(position=0, next_offset=self.base_offset, timed_entries=0)
        steps = (step(batch, position) for position, batch in self.headers(0, size_bytes))
        tail, entries, times = start.behind_all(steps, self.base_offset, interval_bytes)
        self.index.rewrite(entries)
        self.time_index.rewrite(())
        return self._append_times(times, tail)
