"""LogDir: a store directory as a whole: whose it is, who may use it now, and what of it is known to be on disk.

::

    meta.properties                       format version and id of the directory, and the broker that it belongs to
    .lock                                 shared by who may write, exclusive for a broker or `pylog recover`
    .reserve                              room that is given back when the disk is full
    .kafka_cleanshutdown                  everything was flushed and nobody had it open: written last, removed first
    recovery-point-offset-checkpoint      per partition: below this offset everything was fsynced
    topics/                               the catalog
    <topic>-<partition>/                  the logs
    broker/                               what a broker notes about itself: its text logs, its session
    <topic>-<partition>.<id>.deleted/     a deleted partition that may still be read

A process alone with the directory (it got `.lock` for itself) may do what nobody may watch: recover it after a crash,
and note a clean end.
"""

from __future__ import annotations

import logging
import os
import uuid
import zlib
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from logstore.checkpoint import (
    TEMPORARY_SUFFIX,
    CheckpointError,
    fsync_or_mark,
    marking_failure,
    read_checkpoint,
    write_atomic,
    write_checkpoint,
)
from logstore.env import SETTLED_NS, Env, FileStat, Lock
from logstore.errors import DiskFullError, NotAStoreError, StorageError, StoreLockedError
from logstore.log.segments.directory import topic_id_of
from logstore.store.disk_reserve import DiskReserve

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
META = "meta.properties"
BROKER_ID, CLUSTER_ID = _OWNED = "broker.id", "cluster.id"
LOCK = ".lock"
BROKER = "broker"
CLEAN_MARKER = ".kafka_cleanshutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
# A last entry of that file, with its checksum: a flipped digit would pass for damage of the log. No topic has this
# name, so who does not know it reads past it.
CHECKSUM = "#crc32"

# So has the journal of transactions an entry, with the number of its lines that are on disk.
JOURNAL = ("#journal", 0)

# Another process may be recovering the store as it opens it: waiting beats failing. Reading is about 1 GB/s.
LOCK_WAIT_MS = 60_000
LOCK_POLL_MS = 20

# Who holds the lock for long, as `.lock` says it.
_LONG_HOLDERS = ("broker", "recovery")

# What else an empty directory may hold when it becomes a store.
_HARMLESS = frozenset({LOCK, BROKER, "lost+found", ".DS_Store"})


class DirectoryOwner(NamedTuple):
    """The broker that a directory belongs to."""

    broker_id: int
    cluster_id: str


class LogDir:
    """One store directory, opened by this process.

    Invariant: who may write holds `.lock`, shared or (while `is_alone`) exclusively, from `open` to `close`.
    """

    def __init__(self, path: Path, *, read_only: bool, env: Env) -> None:
        self.path = path
        self.read_only = read_only
        self.is_alone = False
        self.owner: DirectoryOwner | None = None  # others may only read then
        self.reserve = DiskReserve(env, path)
        self._lock: Lock | None = None
        self._env = env
        self._pid = os.getpid()
        self._may_be_clean = True
        self._points: tuple[FileStat, dict[tuple[str, int], int]] | None = None

    @classmethod
    def open(cls, path: Path, *, read_only: bool, create: bool, env: Env, alone_for: str = "") -> LogDir:
        """Return the directory, locked: for this process alone if nobody else has it (`is_alone`), else shared.

        `alone_for` names a purpose that needs it alone (shown to others who ask).

        Raises: NotAStoreError, StoreLockedError.
        """
        path = path.absolute()
        files = env.files
        if files.stat(path) is None:
            if read_only or not create:
                raise NotAStoreError(f"{path}: no such directory; create a topic there first")
            files.mkdir(path)
        _check_directory(path, env)
        if kind := files.network_file_system(path):
            logger.warning(
                "path=%s is on a network file system (%s): locks and fsync may not hold between hosts; "
                "let the processes of one host only write here",
                path,
                kind,
            )
        log_dir = cls(path, read_only=read_only or not files.is_writable(path), env=env)
        log_dir._check_ours(create)
        log_dir.owner = owner_of(path, env)
        if log_dir.owner is not None and not alone_for:
            log_dir.read_only = True
        try:
            log_dir._enter(alone_for)
            log_dir._check_meta()
        except BaseException:
            log_dir.close()
            raise
        return log_dir

    @classmethod
    def check_free(cls, path: Path, *, env: Env, alone_for: str) -> None:
        """Refuse what `open` with `alone_for` would refuse now, before anything is written there.

        Raises: NotAStoreError, StoreLockedError.
        """
        path = path.absolute()
        if env.files.stat(path) is None:
            return
        _check_directory(path, env)
        log_dir = cls(path, read_only=False, env=env)
        log_dir._check_ours(create=True)
        if env.files.stat(path / LOCK) is not None:
            lock = env.files.lock(path / LOCK, wait=False)
            if lock is None:
                raise log_dir._taken(alone_for)
            lock.release()

    def _enter(self, alone_for: str) -> None:
        """Take the lock: exclusively if that can be had at once, else shared, waiting for short holders.

        A reader waits for them too, and then holds nothing: who reads for a week would keep others from recovering
        the store for as long.
        """
        if self.read_only:
            self._wait_for(self._nobody_alone)
        elif not alone_for:
            self._wait_for(lambda: self._take_exclusive("opening") or self._take_shared())
        elif not self._take_exclusive(alone_for):
            raise self._taken(alone_for)

    def _taken(self, purpose: str) -> StoreLockedError:
        return StoreLockedError(
            f"{self.path} is open in another process; {purpose} needs it alone: close it there"
        )

    def _wait_for(self, entered: Callable[[], bool]) -> None:
        waited_ms = 0
        while not entered():
            holder = self._holder()
            if waited_ms >= LOCK_WAIT_MS or holder.startswith(_LONG_HOLDERS):
                raise StoreLockedError(
                    f"{self.path} is held by another process ({holder or 'unknown'}); "
                    "if that is a broker, go through it, else wait until it has finished"
                )
            self._env.clock.sleep_ms(LOCK_POLL_MS)
            waited_ms += LOCK_POLL_MS

    def _take_exclusive(self, purpose: str) -> bool:
        self._lock = self._env.files.lock(self.path / LOCK, wait=False)
        self.is_alone = self._lock is not None
        if self.is_alone:
            self._note(f"{purpose}, process {os.getpid()}")
        return self.is_alone

    def _take_shared(self) -> bool:
        self._lock = self._env.files.lock(self.path / LOCK, shared=True, wait=False)
        return self._lock is not None

    def _nobody_alone(self) -> bool:
        """Who is alone says so in the lock file, unless it was killed: only then the lock itself is tried.

        (Tried each time, it would now and then keep the first writer from being alone.)
        """
        if not self._holder():
            return True
        lock = self._env.files.lock(self.path / LOCK, shared=True, wait=False)
        if lock is not None:
            lock.release()
        return lock is not None

    def share(self) -> None:
        """Let other processes in."""
        if self.is_alone:
            self._leave()
            self._wait_for(self._take_shared)

    def try_alone(self) -> bool:
        """Give up the shared lock for the exclusive one, if nobody else has the directory open. For the way out."""
        self._leave()
        try:
            return self._take_exclusive("closing")
        except FileNotFoundError:  # the whole directory was removed: there is nothing to be alone with
            return False

    def _leave(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            if self.is_alone:
                self._note("")
            self.is_alone = False
            lock.release()

    def _note(self, text: str) -> None:
        """Say who holds the lock, for those who must wait. A full disk may be opened, too."""
        path = self.path / LOCK
        with suppress(StorageError):
            self._env.files.truncate(path, 0)
            self._env.files.write(path, 0, text.encode())

    def _holder(self) -> str:
        try:
            return self._env.files.read(self.path / LOCK, 0, 200).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def why_read_only(self) -> str:
        """What to tell who would write, behind the name of the directory."""
        if self.owner is not None:
            return f"is broker {self.owner.broker_id}'s: write through it; here one can read"
        if self._env.files.is_writable(self.path):
            return "is open for reading only; open it with mode='auto'"
        try:
            self._env.files.create(self.path / LOCK)  # for the system to say why not
        except StorageError as error:
            return f"can only be read: {getattr(error, 'reason', error)}"
        except FileNotFoundError:
            return "is there no more"
        return "can only be read: this user may not write there"

    @property
    def belongs_to_this_process(self) -> bool:
        """False in a forked child, until `reopen_after_fork`."""
        return os.getpid() == self._pid

    def reopen_after_fork(self) -> None:
        """A forked child has its parent's lock, not one of its own: take one."""
        self._lock = None
        self.is_alone = False
        self._may_be_clean = True  # the parent may have closed the store since
        if not self.read_only:
            self._wait_for(self._take_shared)
        self._pid = os.getpid()

    def close(self) -> None:
        """Let go of the directory."""
        if self.belongs_to_this_process:
            self._leave()

    # ------------------------------------------------------------ clean marker

    @property
    def is_clean(self) -> bool:
        """True if the last process that had the directory open closed it, with everything on disk."""
        return self._env.files.stat(self.path / CLEAN_MARKER) is not None

    def mark_dirty(self) -> None:
        """Remove the clean marker, before the first change. It cannot come back while this process is here."""
        if self._may_be_clean:
            if self.is_clean:
                self._env.files.unlink(self.path / CLEAN_MARKER)
                fsync_or_mark(self._env, self.path, self.path)
            self._may_be_clean = False

    def mark_clean(self) -> None:
        """Note that everything is on disk. Only while alone."""
        assert self.is_alone, "the clean marker is written by a process that is alone with the directory"
        with marking_failure(self._env, self.path):
            self.reserve.despite_full_disk(lambda: write_atomic(self._env, self.path / CLEAN_MARKER, b""))
        self._may_be_clean = True

    # --------------------------------------------------------- recovery points

    def partition(self, topic: str, partition: int) -> Path:
        """Where a partition lives."""
        return self.path / f"{topic}-{partition}"

    def recovery_points(self) -> dict[tuple[str, int], int]:
        """Per (topic, partition): below this offset everything was fsynced.

        Empty when the file is missing or unreadable: then all of a log is checked when it is recovered.
        """
        path = self.path / RECOVERY_POINTS
        stat = self._env.files.stat(path)
        if stat is None:
            return {}
        if self._points is not None and self._points[0] == stat:
            return self._points[1]
        try:
            points = _checked_points(read_checkpoint(self._env, path))
        except FileNotFoundError:
            return {}
        except (CheckpointError, ValueError) as error:
            logger.warning("path=%s unreadable (%s): logs are checked from their start", path, error)
            return {}
        if self._env.clock.now_ms() * 1_000_000 - stat.mtime_ns >= SETTLED_NS:
            self._points = stat, points
        return points

    def journal_lines(self) -> int:
        """So many lines of the journal of transactions are on disk for sure; 0 if nobody has noted it."""
        return self.recovery_points().get(JOURNAL, 0)

    def advance_recovery_points(
        self,
        points: Mapping[tuple[str, int], tuple[str, int]],
        *,
        journal_lines: int = 0,
        was_cut: Callable[[tuple[str, int]], bool] = lambda tp: False,
    ) -> None:
        """Note how far these partitions (of the topic of this id), and the journal of transactions, are on disk.

        Later points than these are kept; nothing is noted of a partition that `was_cut` meanwhile, which is asked when
        no point can be lowered any more.

        A partition that was deleted since has none: its points would be missed in the next one of its name. Without
        room on the disk nothing is noted, which only makes a recovery slower.
        """

        def advanced(known: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
            journal = {JOURNAL: journal_lines} if journal_lines > known.get(JOURNAL, 0) else {}
            return (
                known
                | journal
                | {
                    tp: offset
                    for tp, (topic_id, offset) in points.items()
                    if offset > known.get(tp, 0)
                    and not was_cut(tp)
                    and topic_id_of(self.partition(*tp), self._env) == topic_id
                }
            )

        if points or journal_lines:
            try:
                self.reserve.despite_full_disk(lambda: self._change_recovery_points(advanced))
            except DiskFullError as error:
                logger.warning("recovery points are not noted: %s", error)

    def lower_recovery_point(self, topic: str, partition: int, offset: int) -> None:
        """Nothing is known of this partition from `offset` on: its log is about to be cut there."""

        def lowered(known: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
            tp = (topic, partition)
            return known | {tp: offset} if known.get(tp, 0) > offset else known

        self.reserve.despite_full_disk(lambda: self._change_recovery_points(lowered))

    def forget_recovery_points(self, partitions: Container[tuple[str, int]]) -> None:
        """Nothing is known of these partitions: they are new, and earlier ones of the same name are gone."""
        self._change_recovery_points(lambda known: {tp: o for tp, o in known.items() if tp not in partitions})

    def _change_recovery_points(
        self, change: Callable[[dict[tuple[str, int], int]], dict[tuple[str, int], int]]
    ) -> None:
        lock = self._env.files.lock(self.path / "topics" / ".recovery-points.lock")
        assert lock is not None, "a lock that is waited for is granted"
        try:
            known = self.recovery_points()
            merged = change(known)
            if merged != known:
                entries = [(topic, p, offset) for (topic, p), offset in sorted(merged.items())]
                entries.append((CHECKSUM, 0, _checksum(entries)))
                with marking_failure(self._env, self.path):
                    write_checkpoint(self._env, self.path / RECOVERY_POINTS, entries)
        finally:
            lock.release()

    # --------------------------------------------------------------------- meta

    def _check_ours(self, create: bool) -> None:
        """Refuse a directory of something else, before a lock file is put there."""
        if self._env.files.stat(self.path / META) is not None:
            return
        names = self._env.files.list(self.path).names
        foreign = sorted(n for n in names if n not in _HARMLESS and not n.endswith(TEMPORARY_SUFFIX))
        if foreign:
            raise NotAStoreError(
                f"{self.path} is not a pylog store: it has no {META}, and other files ({', '.join(foreign[:3])}); "
                "give a new or empty directory"
            )
        if self.read_only or not create:
            raise NotAStoreError(f"{self.path} is not a pylog store: it is empty; create a topic there first")

    def _check_meta(self) -> None:
        path = self.path / META
        if self._env.files.stat(path) is None:
            text = f"version=0\npylog.format={FORMAT_VERSION}\ndirectory.id={uuid.uuid4()}\n"
            write_atomic(self._env, path, text.encode())
        if not self.read_only:
            self._env.files.mkdir(self.path / "topics")
        version = _properties(self._env, path).get("pylog.format", "").strip()
        if not version.isdecimal():
            raise NotAStoreError(
                f"{path} has no pylog.format: this is not a pylog store, or the file is damaged; "
                f"if it is one, add the line pylog.format={FORMAT_VERSION}"
            )
        if int(version) > FORMAT_VERSION:
            raise NotAStoreError(
                f"{self.path} has format {version}; this version of pylog knows up to {FORMAT_VERSION}: upgrade pylog"
            )

    def claim(self, owner: DirectoryOwner) -> None:
        """Give the directory to this broker, for good."""
        path = self.path / META
        lines = "".join(
            f"{key}={value}\n" for key, value in _properties(self._env, path).items() if key not in _OWNED
        )
        lines += f"{BROKER_ID}={owner.broker_id}\n{CLUSTER_ID}={owner.cluster_id}\n"
        write_atomic(self._env, path, lines.encode())
        self.owner = owner


def _check_directory(path: Path, env: Env) -> None:
    if env.files.stat(f"{path}/.") is None:
        raise NotAStoreError(f"{path} is a file; a store is a directory")


def owner_of(path: Path, env: Env) -> DirectoryOwner | None:
    """The broker that the store at `path` belongs to; None if none has taken it."""
    properties = _properties(env, path / META)
    broker_id = properties.get(BROKER_ID, "").strip()
    return (
        DirectoryOwner(int(broker_id), properties.get(CLUSTER_ID, "").strip())
        if broker_id.isdecimal()
        else None
    )


def _properties(env: Env, path: Path) -> dict[str, str]:
    try:
        lines = env.files.read_all(path).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return {}
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def _checksum(entries: Iterable[Iterable[object]]) -> int:
    return zlib.crc32("\n".join(" ".join(map(str, entry)) for entry in entries).encode())


def _checked_points(entries: list[list[str]]) -> dict[tuple[str, int], int]:
    """The points of these entries. Raises: ValueError: they are not what was written."""
    if entries and entries[-1][0] == CHECKSUM:
        check = int(entries.pop()[-1])
        if check != _checksum(entries):
            raise ValueError(f"its checksum is not {check}")
    return {(topic, int(partition)): int(offset) for topic, partition, offset in entries}
