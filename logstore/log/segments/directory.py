"""PartitionDirectory: what is in a partition's directory now, and where its log ends, for as few reads as possible.

A `DirectoryView` rests on the stats of the directory and of the active file: while those are the same, so is the log.
Two stats thus tell any thread whether another process changed something. A listing made at the moment of the last
change does not count, since two changes may share a time stamp.

The end of the log is found by a walk over headers, from the last index entry that its batch confirms, or from the end
known before if the file has only grown.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from logstore.checkpoint import write_atomic
from logstore.env import Env, FileStat, reset_after_fork, wait_lock
from logstore.errors import ReadOnlyStoreError, StaleLogError
from logstore.log.segments import offset_checkpoints
from logstore.log.segments.end import SegmentEnd
from logstore.log.segments.names import (
    ASIDE_SUFFIXES,
    LOCK,
    LOG_FILE,
    METADATA,
    SNAPSHOT_FILE,
    SWAP_SUFFIX,
    TRANSACTION_FILE,
)
from logstore.log.segments.segment import Segment

# How often a look may be overtaken by other processes before it is taken under the lock.
LOOKS_MAX = 5


class DirectoryView(NamedTuple):
    """What one look showed: segments by base offset, and the end of the last one, the active segment.

    `directory` and `active` are the stats that this rests on; None: look again before relying on it. `start_mark` is
    the checkpoint of the log start; `aside` are files on their way into the log, or out of it. `snapshots` are the
    offsets of producer snapshots, `transactional` the segments with a transaction index: both are made before the first
    batch that needs them. `was_compacted`: offsets may have gaps, whatever the topic's policy is now.
    """

    directory: FileStat | None
    bases: tuple[int, ...]
    active: FileStat | None
    tail: SegmentEnd
    start_mark: int = 0
    aside: tuple[str, ...] = ()
    snapshots: tuple[int, ...] = ()
    transactional: tuple[int, ...] = ()
    was_compacted: bool = False

    @property
    def is_swapping(self) -> bool:
        """True while a rewritten segment replaces others: it may reach over some that are still there."""
        return any(name.endswith(SWAP_SUFFIX) for name in self.aside)

    @property
    def start(self) -> int:
        """The log start offset: segments below it may still be there."""
        first = self.bases[0] if self.bases else self.tail.next_offset
        return max(first, min(self.start_mark, self.tail.next_offset))

    @property
    def end(self) -> int:
        return self.tail.next_offset


NOTHING = DirectoryView(None, (), None, SegmentEnd(0, 0))


def create(directory: Path, *, topic_id: str, env: Env) -> None:
    """Make the directory of an empty partition, durable but for the entry in its parent."""
    env.files.mkdir(directory)
    write_atomic(env, directory / METADATA, f"version: 0\ntopic_id: {topic_id}\n".encode())


def topic_id_of(directory: Path | str, env: Env) -> str | None:
    """Return the id of the topic that this partition belongs to; None if the directory is no partition."""
    try:
        text = env.files.read_all(f"{directory}/{METADATA}").decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    return fields.get("topic_id")


class PartitionDirectory:
    """The directory of one partition; see the module. Only its log changes it."""

    def __init__(self, path: Path, *, topic_id: str, env: Env, read_only: bool = False) -> None:
        self.path = str(path)
        self.name = path.name
        self._topic_id = topic_id
        self._read_only = read_only
        self.env = env
        self.may_have_gaps = True
        self._segments: dict[int, Segment] = {}
        self.view = NOTHING
        self.newest_so_far: tuple[FileStat | None, Sequence[int]] | None = None  # see `lookup`
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        self._mutex = threading.RLock()
        self._view_mutex = threading.Lock()
        self._is_locked = self._is_alone = False

    def segment(self, base_offset: int) -> Segment:
        """The segment of this base offset, there or not."""
        segment = self._segments.get(base_offset)
        if segment is None:
            segment = self._segments[base_offset] = Segment(self.env, self.path, base_offset)
        return segment

    def close(self) -> None:
        self.env.files.forget(self.path)

    @contextmanager
    def hold(self) -> Iterator[bool]:
        """Keep other threads and processes out; may be nested in a thread. Yields whether it is outermost.

        The lock file is opened at each hold: so a forked child shares no lock with its parent, and after a topic was
        recreated the new partition is locked.

        Raises: StaleLogError; ReadOnlyStoreError.
        """
        if self._read_only:
            raise ReadOnlyStoreError(f"{self.path} is open for reading only")
        with self._mutex:
            if self._is_locked:
                yield False
                return
            try:
                lock = wait_lock(self.env.files, f"{self.path}/{LOCK}")
            except FileNotFoundError:
                raise self._stale() from None
            self._is_locked = True
            try:
                yield True
            finally:
                self._is_locked = False
                lock.release()

    @contextmanager
    def hold_shared(self) -> Iterator[None]:
        """Keep the log from being changed, for readers; may be nested in `hold`.

        Where there is no lock file and none can be made, nobody changes anything.
        """
        with self._mutex:
            lock = None
            if not self._is_locked:
                with suppress(FileNotFoundError):
                    lock = self.env.files.lock(f"{self.path}/{LOCK}", shared=True)
            try:
                yield
            finally:
                if lock is not None:
                    lock.release()

    def try_hold(self) -> bool:
        """Keep other threads out, if that takes no waiting; `release` must follow. For the owner of the directory."""
        if not self._mutex.acquire(blocking=False):
            return False
        if self._is_locked:  # by this thread itself
            self._mutex.release()
            return False
        self._is_alone = True
        return True

    def release(self) -> None:
        self._is_alone = False
        self._mutex.release()

    def read_names(self) -> None:
        """Read the names only: cheap, for opening many logs."""
        self.view = self._list()

    def refresh(self) -> DirectoryView:
        """Return the log as it is now: the known view, if two stats confirm it."""
        known = self.view
        return self._publish(known, self._look(known))

    def refresh_names(self, view: DirectoryView) -> DirectoryView:
        """Return `view`, just refreshed, or a newer one whose names were listed after its end was found.

        Writers make a transaction index before they write the first transactional batch into a segment: a reader who
        lists first and finds the end later could see the batch and miss the index.
        """
        for _ in range(LOOKS_MAX):
            if view.directory is not None and self.env.files.stat(self.path) == view.directory:
                return view
            after = self._list()
            if (after.bases, after.transactional) == (view.bases, view.transactional):
                return view
            view = self.refresh()
        with self.hold_shared():
            return self.refresh()

    def reread(self) -> DirectoryView:
        """Return the log as the disk shows it, trusting nothing that is remembered."""
        self.env.files.forget(self.path)
        self.newest_so_far = None
        return self._publish(self.view, self._look(NOTHING))

    def check_topic(self) -> None:
        """Raise StaleLogError if the directory belongs to another topic by now."""
        directory = self.view.directory
        if directory is None or self.env.files.stat(self.path) != directory:
            self._check_id()

    def publish(self, bases: tuple[int, ...], tail: SegmentEnd) -> None:
        """Under the lock: this thread has made the log so."""
        view = self.view
        if self._is_alone and bases == view.bases and view.active is not None:
            # The next look sees another time, and reads again.
            grown = FileStat(view.active.inode, tail.position, view.active.mtime_ns)
            with self._view_mutex:
                self.view = DirectoryView(view.directory, bases, grown, tail, *view[4:])
            return
        active = self.env.files.stat(self.segment(bases[-1]).path) if bases else None
        with self._view_mutex:
            directory, transactional = view.directory, view.transactional
            if bases != view.bases:  # a new segment has no index yet, whatever one of its name had
                directory = None
                transactional = tuple(b for b in transactional if b in bases and b in view.bases)
            rest = view.start_mark, view.aside, view.snapshots, transactional, view.was_compacted
            self.view = DirectoryView(directory, bases, active, tail, *rest)

    def publish_names(self, *, snapshots: Iterable[int], transactional: Iterable[int]) -> None:
        """Under the lock: this thread has made these snapshots and transaction indexes, or removed others."""
        with self._view_mutex:
            self.view = self.view._replace(
                directory=None,
                snapshots=tuple(sorted(snapshots)),
                transactional=tuple(sorted(transactional)),
            )

    def _publish(self, known: DirectoryView, seen: DirectoryView) -> DirectoryView:
        """Remember the view, unless another thread has published one: a writer knows better."""
        if seen is not known:
            with self._view_mutex:
                if self.view is known:
                    self.view = seen
        return seen

    def _look(self, known: DirectoryView) -> DirectoryView:
        """Return `known` if it still holds, else a new view."""
        for _ in range(LOOKS_MAX):
            with suppress(FileNotFoundError):  # another process removed it between listing and stat
                return self._look_once(known)
            known = NOTHING
        with self.hold_shared():
            return self._look_once(NOTHING)

    def _look_once(self, known: DirectoryView) -> DirectoryView:
        """As `_look`; FileNotFoundError: others changed the log between two looks at it."""
        now = known
        if known.directory is None or self.env.files.stat(self.path) != known.directory:
            now = self._list()
        if not now.bases:
            return known if now is known or known == now else now
        active = self.segment(now.bases[-1]).stat()
        names = now.start_mark, now.aside, now.snapshots, now.transactional, now.was_compacted
        return self._look_at_end(known, DirectoryView(now.directory, now.bases, active, known.tail, *names))

    def _look_at_end(self, known: DirectoryView, now: DirectoryView) -> DirectoryView:
        """`now` with its end: walk on from the known one if the active file has only grown."""
        assert now.active is not None
        segment, tail = self.segment(now.bases[-1]), None
        if known.active is not None and known.bases == now.bases and known.active.inode == now.active.inode:
            if known.active == now.active:
                return known if known == now else now
            if known.active.size < now.active.size:
                tail = segment.tail(now.active.size, known.tail, may_have_gaps=self.may_have_gaps)
                if tail.damage:  # perhaps it was cut and has grown again
                    tail = None
        tail = tail or segment.tail(now.active.size, may_have_gaps=self.may_have_gaps)
        return now._replace(tail=tail)

    def _list(self) -> DirectoryView:
        """A view by the names, without an end; its stat is None if the directory changed just now."""
        try:
            listing = self.env.files.list(self.path)
        except FileNotFoundError:
            raise self._stale() from None
        self._check_id()
        self.env.files.forget(self.path)  # a name may stand for another file now
        bases, snapshots, transactional = (
            tuple(sorted({int(name[:20]) for name in listing.names if pattern.fullmatch(name)}))
            for pattern in (LOG_FILE, SNAPSHOT_FILE, TRANSACTION_FILE)
        )
        mark = (
            offset_checkpoints.read(self.env, self.path, offset_checkpoints.LOG_START)
            if offset_checkpoints.LOG_START in listing.names
            else 0
        )
        aside = tuple(name for name in listing.names if name.endswith(ASIDE_SUFFIXES))
        directory = listing.stat if listing.settled else None
        tail = SegmentEnd(0, 0 if bases else mark)
        compacted = offset_checkpoints.CLEANED in listing.names
        return DirectoryView(directory, bases, None, tail, mark, aside, snapshots, transactional, compacted)

    def _check_id(self) -> None:
        if topic_id_of(self.path, self.env) != self._topic_id:
            raise self._stale()

    def _stale(self) -> StaleLogError:
        return StaleLogError(
            f"{self.name} was deleted, or recreated, since it was opened; look the topic up again",
            path=self.path,
        )
