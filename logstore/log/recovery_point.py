"""RecoveryPoint: the offset below which a log is on disk.

`flush` moves it up, a cut moves it back. A look at the log that ends below it has found damage: flushed records do not
go away. Flushes take no lock, so that several processes wait for the disk at the same time; one that a cut overtakes
keeps the offset of the cut.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import TypeVar

from logstore.checkpoint import check_mark, fsync_or_mark
from logstore.config import INT64_MAX, LogConfig
from logstore.errors import CorruptLogError
from logstore.log.producers.tracker import ProducerTracker
from logstore.log.recovery import cut_short
from logstore.log.segments import lookup
from logstore.log.segments.directory import DirectoryView, PartitionDirectory
from logstore.log.segments.formats import foreign_at, named

Found = TypeVar("Found")


class RecoveryPoint:
    """The recovery point of one log; see the module. Safe for threads."""

    def __init__(self, files: PartitionDirectory, producers: ProducerTracker) -> None:
        self.offset = 0
        self.last_flush_ms = files.env.clock.monotonic_ms()
        self._files = files
        self._producers = producers
        self._env = files.env
        self._cuts, self._cut_at, self._mutex = 0, INT64_MAX, threading.Lock()
        self._durable_names: object = None  # of files whose directory entries are known to be on disk

    def view(self, *, reread: bool = False) -> DirectoryView:
        """Return the log as it is now: two stats if nothing changed. `reread`: trust nothing that is remembered.

        Raises: CorruptLogError: what was flushed is missing, or a message that pylog does not read is behind the end.
        """
        flushed = self.offset  # before the look: other threads append and flush meanwhile, or cut
        view = self._files.reread() if reread else self._files.refresh()
        if view.active is not None and view.tail.position < view.active.size:
            self._check_format(view)
        if view.end < min(flushed, self.offset):
            raise CorruptLogError(*cut_short(self._files, view.bases, view.tail, flushed))
        return view

    def _check_format(self, view: DirectoryView) -> None:
        """Raise unless what is behind the last batch may be half a batch. Such a log has no end that anybody knows."""
        foreign = foreign_at(self._env, self._files.segment(view.bases[-1]).path, view.tail.position)
        if foreign is not None:
            raise foreign

    def look_up(
        self, find: Callable[[DirectoryView], Found], *, with_names: bool = False, reread: bool = False
    ) -> Found:
        """Return what `find` finds in a view; `with_names`: in one with every transaction index below its end.

        Segments may come and go meanwhile: what does not fit the view is looked up again in a view from the disk, and
        then under a shared lock, before it counts as damage.
        """

        def found(is_reread: bool) -> Found:
            view = self.view(reread=is_reread)
            return find(self._files.refresh_names(view) if with_names else view)

        for is_second in (False, True)[reread:]:
            with suppress(CorruptLogError, FileNotFoundError):
                return found(is_second)
        with self._files.hold_shared():
            try:
                return found(True)
            except CorruptLogError as error:
                raise named(self._env, error) from None

    def flush(self) -> int:
        """Fsync the log up to its end of now; return the recovery point.

        Raises: FailedStoreError: nobody knows what is on disk; a mark in the store says so.
        """
        cuts = self._cuts  # before the view: files may leave it that are made again since
        view = self.look_up(partial(self._sync, cuts), with_names=True)
        if view.end > self.offset:
            # Another process may have met the failure: the disk tells it once only.
            check_mark(self._env, self._files.root)
            with self._mutex:
                if cuts == self._cuts:
                    self.offset = max(self.offset, min(view.end, self._cut_at))
        self.last_flush_ms = self._env.clock.monotonic_ms()
        return min(view.end, self.offset)

    def flush_if_due(self, end: int, config: LogConfig) -> None:
        """Flush a log that ends at `end`, if flush.messages or flush.ms say so."""
        if end - self.offset >= config.flush_messages or self.is_time_to_flush(config):
            self.flush()

    def is_time_to_flush(self, config: LogConfig) -> bool:
        return self._env.clock.monotonic_ms() - self.last_flush_ms >= config.flush_ms

    def begin_cut(self, end: int) -> None:
        """Move back to `end`, before the log is cut there. A flush that ends meanwhile stays below it."""
        with self._mutex:
            self._cut_at, self.offset = end, min(self.offset, end)
            self._durable_names = None

    def end_cut(self, end: int) -> None:
        """The cut is done, and the log ends here: perhaps lower than planned, if there was a gap before the cut."""
        with self._mutex:
            self._cuts, self._cut_at = self._cuts + 1, INT64_MAX
            self.offset = min(self.offset, end)

    def forget_names(self) -> None:
        """Files were removed: if others get their names, those names are not on disk yet."""
        with self._mutex:
            self._cuts += 1
            self._durable_names = None

    def _sync(self, cuts: int, view: DirectoryView) -> DirectoryView:
        """Fsync from the segment of the last durable record on, which may have been closed since; return the view.

        `cuts`: their number before the view was made.

        Raises: FileNotFoundError: a segment left the log.
        """
        if view.end <= self.offset:
            return view
        for base in view.bases[lookup.number_of(view, self.offset - 1) :]:
            segment = self._files.segment(base)
            files = [segment.path] if base == view.bases[-1] else [*segment.paths]
            if base in view.transactional:
                files += segment.transactions.paths
            for path in files:
                with suppress(FileNotFoundError) if path != segment.path else nullcontext():
                    fsync_or_mark(self._env, path, self._files.root)
        for offset in view.snapshots:
            if offset >= self.offset:
                with suppress(FileNotFoundError):  # replaced by a newer one
                    fsync_or_mark(self._env, self._producers.snapshots.path(offset), self._files.root)
        names = (view.bases[-1:], view.snapshots, view.transactional)
        if view.bases and names != self._durable_names:
            fsync_or_mark(self._env, self._files.path, self._files.root)
            with self._mutex:
                if cuts == self._cuts and self._cut_at == INT64_MAX:
                    self._durable_names = names
        return view
