"""PartitionDirectory: what is in a partition's directory now, and where its log ends, for as few reads as possible.

A `DirectoryView` rests on the stats of the directory and of the active file: while those are the same, so is the log.
Two stats thus tell any thread whether another process changed something. A listing made at the moment of the last
change does not count, since two changes may share a time stamp. The holder of the lock, who has seen the directory,
knows what it adds, and gives the directory a time that no other change can have: a new segment costs no listing.

The end of the log is found by a walk over headers, from the last index entry that its batch confirms, or from the end
known before if the file has only grown.
"""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from logstore.checkpoint import CheckpointError, read_checkpoint, write_atomic
from logstore.env import Env, FileStat, reset_after_fork, wait_lock
from logstore.errors import ReadOnlyStoreError, StaleLogError
from logstore.log.segments import offset_checkpoints
from logstore.log.segments.closed import Bases, ClosedSegments
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

KAFKAS_STARTS = "log-start-offset-checkpoint"

# How often a look may be overtaken by other processes before it is taken under the lock.
LOOKS_MAX = 5
# Paths take a kilobyte: those of a log with many more segments are made anew.
SEGMENTS_KEPT = 64


class DirectoryView(NamedTuple):
    """The result of one look at the directory: segments by base offset, and the end of the last, the active one.

    `directory` and `active` are the stats that this rests on; None: look again before relying on it. `start_mark` is
    the checkpoint of the log start; `aside` are files on their way into the log, or out of it. `snapshots` are the
    offsets of producer snapshots, `transactional` the segments with a transaction index: both are made before the first
    batch that needs them. `was_compacted`: offsets may have gaps, whatever the topic's policy is now. Nothing changes
    `bases`; `closed` gets to know more.
    """

    directory: FileStat | None
    bases: Bases
    active: FileStat | None
    tail: SegmentEnd
    closed: ClosedSegments
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
    def local_start(self) -> int:
        """The local log start offset: the first that is read from segments here. All are here now, so it is `start`."""
        return self.start

    @property
    def end(self) -> int:
        return self.tail.next_offset


_new = tuple.__new__  # of a value that has all its fields: a third of the time of its class
NOTHING = DirectoryView(None, array("q"), None, SegmentEnd(0, 0), ClosedSegments())


def are_same(bases: Bases, others: Bases) -> bool:
    """True if they are equal: mostly they are one array, or not as long."""
    return bases is others or (len(bases) == len(others) and bases == others)


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
        self.root = sys.intern(str(path.parent))  # one text for all partitions there
        self.name = path.name
        self._topic_id = topic_id
        self._read_only = read_only
        self.env = env
        self.is_compacted = True  # by its topic's policy
        self.is_kafkas = False
        self._segments: dict[int, Segment] = {}
        self.view = NOTHING
        self._held: DirectoryView | None = None  # the view, if the holder of the lock has seen it, or made it since
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        self._mutex = threading.RLock()
        self._view_mutex = threading.Lock()
        self._is_locked = self._is_alone = False
        self._holder = 0  # a thread

    @property
    def may_have_gaps(self) -> bool:
        """Compaction may have left some: by the topic's policy, or by an earlier one."""
        return self.is_compacted or self.view.was_compacted

    def segment(self, base_offset: int) -> Segment:
        """The segment of this base offset, there or not."""
        segment = self._segments.get(base_offset)
        if segment is None:
            if len(self._segments) >= SEGMENTS_KEPT:
                self._segments.clear()
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
                raise _stale(self.path) from None
            self._is_locked, self._holder, self._held = True, threading.get_ident(), None
            try:
                yield True
            finally:
                self._is_locked, self._holder = False, 0
                lock.release()

    @contextmanager
    def hold_shared(self) -> Iterator[None]:
        """Keep the log from being changed, for readers; may be nested in `hold`.

        Where there is no lock file and none can be made, nobody changes anything.
        """
        with self._mutex:
            lock = None
            if not self._is_locked and not self.is_kafkas:
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

    def take_as_kafkas(self) -> None:
        """A Kafka made it, and may go on: it is only read, without our locks, and its own files say what ours would.

        Segments may have gaps between them. Which producers there are, and what they aborted, the batches say.
        """
        self.is_kafkas = True
        self.view = NOTHING

    def read_names(self) -> tuple[str, ...]:
        """Read the names only, and return them: cheap, for opening many logs."""
        names, self.view = self._list()
        return names

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
            _, after = self._list()
            if (after.bases, after.transactional) == (view.bases, view.transactional):
                return view
            view = self.refresh()
        with self.hold_shared():
            return self.refresh()

    def reread(self) -> DirectoryView:
        """Return the log as the disk shows it, trusting nothing that is remembered."""
        self.env.files.forget(self.path)
        return self._publish(self.view, self._look(NOTHING))

    def check_topic(self) -> None:
        """Raise StaleLogError if the directory belongs to another topic by now."""
        directory = self.view.directory
        if directory is None or self.env.files.stat(self.path) != directory:
            _check_id(self.path, self._topic_id, self.env)

    def publish(self, bases: Bases, tail: SegmentEnd) -> None:
        """Under the lock: this thread has made the log so. `bases` are as before, fewer, or one more."""
        view = self.view
        has_same = are_same(bases, view.bases)
        if self._is_alone and has_same and view.active is not None:
            # The next look sees another time, and reads again.
            grown = _new(FileStat, (view.active.inode, tail.position, view.active.mtime_ns))
            self._set(view, _new(DirectoryView, (view.directory, bases, grown, tail, *view[4:])))
            return
        active = self.env.files.stat(self.segment(bases[-1]).path) if bases else None
        directory, closed, transactional = view.directory, view.closed, view.transactional
        if not has_same:  # a new segment has no index yet, whatever one of its name had
            grows = len(bases) > len(view.bases)
            directory = self._settled(view) if grows else None
            closed = closed if grows and view.bases else ClosedSegments()
            changed = bases[-1:] if grows else {*bases} ^ {*view.bases}
            transactional = tuple(base for base in transactional if base not in changed)
        rest = view.start_mark, view.aside, view.snapshots, transactional, view.was_compacted
        self._set(view, DirectoryView(directory, bases, active, tail, closed, *rest))

    def put_back(self, view: DirectoryView) -> None:
        """Under the lock, after a change that failed half way: this view counts until the next look at the disk."""
        with self._view_mutex:
            self._held, self.view = None, view._replace(directory=None, active=None)

    def publish_names(self, *, snapshots: Iterable[int], transactional: Iterable[int]) -> None:
        """Under the lock: this thread has made these snapshots and transaction indexes, or removed others."""
        view, names = self.view, (tuple(sorted(snapshots)), tuple(sorted(transactional)))
        directory = self._settled(view)
        self._set(view, view._replace(directory=directory, snapshots=names[0], transactional=names[1]))

    def _settled(self, view: DirectoryView) -> FileStat | None:
        """The stat of the directory that the holder has added to; None: list it, it may have what `view` has not."""
        return self.env.files.settle(self.path) if view is self._held else None

    def _set(self, view: DirectoryView, made: DirectoryView) -> None:
        """Under the lock: put the view that this thread has made of `view` in the place of any."""
        with self._view_mutex:
            self._held = made if view is self._held else None
            self.view = made

    def _publish(self, known: DirectoryView, seen: DirectoryView) -> DirectoryView:
        """Remember the view, unless another thread has published one: a writer knows better."""
        if seen is not known:
            with self._view_mutex:
                if self.view is known:
                    self.view = seen
        if self._holder and self._holder == threading.get_ident() and self.view is seen:
            self._held = seen
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
        """Look once. Raises: FileNotFoundError: another process changed the log between two looks."""
        now = known
        if known.directory is None or self.env.files.stat(self.path) != known.directory:
            _, now = self._list(known)
        if not now.bases:
            return now
        active = self.segment(now.bases[-1]).source.extent()
        if now is known and active == known.active:
            return known
        return self._look_at_end(known, now._replace(active=active))

    def _look_at_end(self, known: DirectoryView, now: DirectoryView) -> DirectoryView:
        """`now` with its end: walk on from the known one if the active file has only grown."""
        assert now.active is not None
        segment, tail = self.segment(now.bases[-1]), None
        active = known.active
        if active is not None and active.inode == now.active.inode and are_same(known.bases, now.bases):
            if active == now.active:
                return now._replace(tail=known.tail)
            if active.size < now.active.size:
                tail = segment.tail(now.active.size, known.tail)
                if tail.damage:  # perhaps it was cut and has grown again
                    tail = None
        tail = tail or segment.tail(now.active.size)
        return now._replace(tail=tail)

    def _list(self, known: DirectoryView = NOTHING) -> tuple[tuple[str, ...], DirectoryView]:
        """The names, and a view by them, without an end; its stat is None if the directory changed just now."""
        try:
            listing = self.env.files.list(self.path)
        except FileNotFoundError:
            raise _stale(self.path) from None
        _check_id(self.path, self._topic_id, self.env)
        self.env.files.forget(self.path)  # a name may stand for another file now
        bases, snapshots, transactional = (
            sorted({int(name[:20]) for name in listing.names if pattern.fullmatch(name)})
            for pattern in (LOG_FILE, SNAPSHOT_FILE, TRANSACTION_FILE)
        )
        mark = (
            offset_checkpoints.read(self.env, self.path, offset_checkpoints.LOG_START)
            if offset_checkpoints.LOG_START in listing.names
            else 0
        )
        if self.is_kafkas:
            mark, snapshots, transactional = _kafkas_start(self.env, self.path), [], bases
        return listing.names, DirectoryView(
            directory=listing.stat if listing.settled else None,
            bases=array("q", bases),
            active=None,
            tail=SegmentEnd(0, 0 if bases else mark),
            closed=ClosedSegments(known.bases, known.closed),
            start_mark=mark,
            aside=tuple(name for name in listing.names if name.endswith(ASIDE_SUFFIXES)),
            snapshots=tuple(snapshots),
            transactional=tuple(transactional),
            was_compacted=offset_checkpoints.CLEANED in listing.names,
        )


def _check_id(path: str, topic_id: str, env: Env) -> None:
    if (topic_id_of(path, env) or "") != topic_id:  # a Kafka before 2.8 gave none
        raise _stale(path)


def _stale(path: str) -> StaleLogError:
    name = path.rpartition("/")[2]
    return StaleLogError(f"{name} was deleted, or recreated, since it was opened; look the topic up again", path=path)


def _kafkas_start(env: Env, path: str) -> int:
    """Return the log start that Kafka noted, for all its partitions in one file."""
    root, _, name = path.rpartition("/")
    topic, _, partition = name.rpartition("-")
    try:
        entries = read_checkpoint(env, f"{root}/{KAFKAS_STARTS}")
    except (FileNotFoundError, CheckpointError):
        return 0
    return next((int(each[2]) for each in entries if each[:2] == [topic, partition]), 0)
