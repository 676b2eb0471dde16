"""LogDir: a store directory as a whole: who owns it, and who may use it now.

::

    meta.properties                       format version and id of the directory, and the broker that owns it
    .lock                                 shared by who may write, exclusive for a broker or `pylog recover`
    .reserve                              room that is given back when the disk is full
    .kafka_cleanshutdown                  everything was flushed and nobody had it open: written last, removed first
    recovery-point-offset-checkpoint      per partition: below this offset everything was fsynced
    topics/                               the catalog
    <topic>-<partition>/                  the logs
    broker/                               what a broker notes about itself: its text logs, its session
    <topic>-<partition>.<id>.deleted/     a deleted partition that may still be read

Only a process alone with the directory (it holds `.lock` exclusively) may recover it after a crash, or note a clean
end.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from logstore import checkpoint
from logstore.env import Env, Lock, network_file_system
from logstore.errors import NotAStoreError, StorageError, StoreLockedError
from logstore.store import meta_properties
from logstore.store.disk_reserve import DiskReserve
from logstore.store.meta_properties import META, DirectoryOwner, is_kafkas, owner_of
from logstore.store.recovery_points import RecoveryPoints

logger = logging.getLogger(__name__)

LOCK = ".lock"
BROKER = "broker"
SERVER_LOG = "server.log"  # in it
CLEAN_MARKER = ".kafka_cleanshutdown"
# Another process may be recovering the store as it opens it: waiting beats failing. Reading is about 1 GB/s.
LOCK_WAIT_MS = 60_000
LOCK_POLL_MS = 20

# Processes that hold the lock for long, by the words of `.lock`.
_LONG_HOLDERS = ("broker", "recovery")

# Other files that an empty directory may hold when it becomes a store.
_HARMLESS = frozenset({LOCK, BROKER, checkpoint.FSYNC_FAILED, "lost+found", ".DS_Store"})


_IF_NOT_WRITABLE = "make it writable, or work on a copy elsewhere"
# Behind the name of a directory.
KAFKAS = (
    "is the directory of a Kafka: pylog only reads it (logstore.open with read_only=True, Spark, `pylog dump-log`), "
    "best while that Kafka is stopped; to write, copy its topics with `pylog mirror`"
)


class LogDir:
    """One store directory, opened by this process.

    Invariant: a process that may write holds `.lock`, shared or (while `is_alone`) exclusively, from `open` to `close`.
    """

    def __init__(self, path: Path, *, read_only: bool, env: Env) -> None:
        self.path = path
        self.read_only = read_only
        self.is_alone = False
        self.owner: DirectoryOwner | None = None  # others may only read then
        self.is_kafkas = is_kafkas(path, env)
        self.reserve = DiskReserve(env, path)
        self.recovery_points = RecoveryPoints(env, path, self.reserve)
        self._lock: Lock | None = None
        self._env = env
        self._pid = os.getpid()
        self._may_be_clean = True

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
            with checkpoint.marking_failure(env, path):
                checkpoint.make_directory(env, path)
        _check_directory(path, env)
        if kind := network_file_system(files, path):
            logger.warning(
                "path=%s is on a network file system (%s): locks and fsync may not hold between hosts; "
                "let the processes of one host only write here",
                path,
                kind,
            )
        log_dir = cls(path, read_only=read_only or not files.is_writable(path), env=env)
        log_dir._check_ours(create)
        log_dir.owner = None if log_dir.is_kafkas else owner_of(path, env)
        if log_dir.is_kafkas and alone_for:
            raise NotAStoreError(f"{path} {KAFKAS}")
        if log_dir.is_kafkas or (log_dir.owner is not None and not alone_for):
            log_dir.read_only = True
        try:
            log_dir._enter(alone_for)
            if not log_dir.read_only:
                meta_properties.make(env, path)
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
        if log_dir.is_kafkas:
            raise NotAStoreError(f"{path} {KAFKAS}")
        if env.files.stat(path / LOCK) is not None:
            lock = env.files.lock(path / LOCK, wait=False)
            if lock is None:
                raise log_dir._taken(alone_for)
            lock.release()

    def _enter(self, alone_for: str) -> None:
        """Take the lock: exclusively if that can be had at once, else shared, waiting for short holders.

        A reader waits for them too, and then holds nothing: a read of a week would keep others from recovering the
        store.
        """
        if self.read_only:
            self._wait_for(self._nobody_alone)
        elif not alone_for:
            self._wait_for(lambda: self._take_exclusive("opening") or self._take_shared())
        elif not self._take_exclusive(alone_for):
            raise self._taken(alone_for)

    def _taken(self, purpose: str) -> StoreLockedError:
        return StoreLockedError(f"{self.path} is open in another process; {purpose} needs it alone: close it there")

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
        """True unless a process holds the lock exclusively.

        The lock file names that process. The lock itself is tried only if it does: that would now and then keep the
        first writer from being alone.
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
        """Take the exclusive lock for the shared one, if no other process has the directory open. Before `close`."""
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
        """Write into the lock file who holds it; on a full disk, nothing."""
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
        """The end of an error message that begins with the directory."""
        if self.is_kafkas:
            return KAFKAS
        if self.owner is not None:
            return f"is broker {self.owner.broker_id}'s: write through it; here one can read"
        if self._env.files.is_writable(self.path):
            return "is open for reading only; open it with mode='auto'"
        try:
            self._env.files.create(self.path / LOCK)  # for the system to say why not
        except StorageError as error:
            return f"can only be read: {getattr(error, 'reason', error)}; {_IF_NOT_WRITABLE}"
        except FileNotFoundError:
            return "is there no more"
        return f"can only be read: this user may not write there; {_IF_NOT_WRITABLE}"

    @property
    def belongs_to_this_process(self) -> bool:
        """False in a forked child, until `reopen_after_fork`."""
        return os.getpid() == self._pid

    def reopen_after_fork(self) -> None:
        """Take a lock for a forked child: the one it has is its parent's."""
        self._lock = None
        self.is_alone = False
        self._may_be_clean = True  # the parent may have closed the store since
        if not self.read_only:
            self._wait_for(self._take_shared)
        self._pid = os.getpid()

    def close(self) -> None:
        if self.belongs_to_this_process:
            self._leave()
        self._env.files.forget(self.path)

    @property
    def is_clean(self) -> bool:
        """True if the last process closed the directory with everything on disk."""
        return self._env.files.stat(self.path / CLEAN_MARKER) is not None

    def mark_dirty(self) -> None:
        """Remove the clean marker, before the first change. It cannot come back while this process is here."""
        if self._may_be_clean:
            if self.is_clean:
                self._env.files.unlink(self.path / CLEAN_MARKER)
                checkpoint.fsync_or_mark(self._env, self.path, self.path)
            self._may_be_clean = False

    def clean_note(self) -> bytes:
        """The note that `mark_clean` stored, if the directory is clean and the note can be read."""
        try:
            return self._env.files.read_all(self.path / CLEAN_MARKER)
        except (FileNotFoundError, StorageError):
            return b""

    def mark_clean(self, note: bytes = b"") -> None:
        """Note that everything is on disk, and what else the next process may want to know. Only while alone."""
        assert self.is_alone, "the clean marker is written by a process that is alone with the directory"
        with checkpoint.marking_failure(self._env, self.path):
            self.reserve.despite_full_disk(lambda: checkpoint.write_atomic(self._env, self.path / CLEAN_MARKER, note))
        self._may_be_clean = True

    def partition(self, topic: str, partition: int) -> Path:
        return self.path / f"{topic}-{partition}"

    def _check_ours(self, create: bool) -> None:
        """Refuse a directory of something else, before a lock file is put there."""
        if self._env.files.stat(self.path / META) is not None:
            if not self.is_kafkas:
                meta_properties.check_version(self._env, self.path)
            return
        names = self._env.files.list(self.path).names
        foreign = sorted(n for n in names if n not in _HARMLESS and not n.endswith(checkpoint.TEMPORARY_SUFFIX))
        if foreign:
            raise NotAStoreError(
                f"{self.path} is not a pylog store: it has no {META}, and other files ({', '.join(foreign[:3])}); "
                "give a new or empty directory"
            )
        if self.read_only or not create:
            raise NotAStoreError(f"{self.path} is not a pylog store: it is empty; create a topic there first")

    def claim(self, owner: DirectoryOwner) -> None:
        """Make this broker the owner, for good."""
        meta_properties.write_owner(self._env, self.path, owner)
        self.owner = owner


def _check_directory(path: Path, env: Env) -> None:
    if env.files.stat(f"{path}/.") is None:
        raise NotAStoreError(f"{path} is a file; a store is a directory")
