"""Env: the clock and the files of a store, as arguments, so that tests can move time and break disks.

Only this module touches `time`, file descriptors, fsync and flock. It promises:

- `Files.write` writes everything or raises; what was written of it then is for the caller to cut.
- Errors of the system become StorageError here, once: DiskFullError when there is no room, FailedStoreError when an
  fsync fails. A missing file is an answer and no failure: FileNotFoundError passes.
- `OsFiles` keeps a bounded number of descriptors open, whatever the number of partitions. A descriptor that leaves the
  pool is closed when its last user lets go, so that no other thread reads from a closed or reused one.
- After a fork the child shares no lock with its parent: see `reset_after_fork`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, NamedTuple, Protocol

from logstore.errors import DiskFullError, FailedStoreError, StorageError
from logstore.worker import Worker

StrPath = str | Path
Bytes = bytes | bytearray | memoryview

BOOT_ID = "/proc/sys/kernel/random/boot_id"
# Enough for the files that one Spark task works on; far below the usual limit of 1,024. Brokers take more.
OPEN_FILES_MAX = 256
PASSED = 8  # see `OsFiles._descriptor`
RWF_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)  # Linux
# A directory that changed less than this before it was listed may change again within the same time stamp.
SETTLED_NS = 100_000_000
_random = SystemRandom()
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Where flock may be missing or local to one host. Magic numbers of statfs(2).
NETWORK_FILE_SYSTEMS = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "lustre", "glusterfs", "gpfs", "beegfs", "afs")
) | {"fuse.sshfs"}


class FileStat(NamedTuple):
    """Identifies a file's content cheaply."""

    inode: int
    size: int
    mtime_ns: int


class Listing(NamedTuple):
    """A directory's names, and whether a later change is sure to change `stat` too."""

    names: tuple[str, ...]
    stat: FileStat
    settled: bool


class Clock:
    """Wall time for records, monotonic time for waits."""

    def now_ms(self) -> int:
        """Milliseconds since 1970; may jump."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds since some time; never goes back."""
        return time.monotonic_ns() // 1_000_000

    def sleep_ms(self, duration_ms: float) -> None:
        time.sleep(duration_ms / 1000)


class _Descriptor:
    """An open file, closed when its last user lets go."""

    __slots__ = ("fd", "writable")

    def __init__(self, path: str, flags: int, *, writable: bool) -> None:
        self.fd = -1
        self.fd = os.open(path, flags, 0o644)
        self.writable = writable

    def __del__(self, close: Any = os.close) -> None:
        if self.fd >= 0:
            close(self.fd)


class Lock:
    """A flock on a descriptor of its own, so that neither a fork nor another thread shares it."""

    __slots__ = ("__weakref__", "_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        reset_after_fork(self)

    def release(self) -> None:
        """Let others in; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # Unlock before closing: a child that is just being forked may hold a copy of the descriptor.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def after_fork(self) -> None:
        """Close the child's copy without unlocking: the lock belongs to the parent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsFiles:
    """Files of the operating system, through a pool of at most `open_files_max` descriptors, and one more.

    Tests put crashing, full and lying ones with the same methods in its place.
    """

    def __init__(self, open_files_max: int = OPEN_FILES_MAX) -> None:
        self.open_files_max = open_files_max
        self._open: dict[str, _Descriptor] = {}  # least recently used first
        self._open_in: dict[str, set[str]] = {}  # directory -> what is open of it
        self._syncing: set[int] = set()  # threads
        self._passed = 0  # files that were opened while the pool was full
        self._last_passed: tuple[str, _Descriptor] | None = None  # mostly it is used again at once
        self._mutex = threading.Lock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        self._syncing = set()
        self._mutex = threading.Lock()

    def read_into(self, path: StrPath, position: int, space: memoryview) -> int:
        """Fill `space` from `position`; return the number of bytes, short only at the end of the file."""
        file = self._descriptor(str(path))
        try:
            count = os.preadv(file.fd, [space], position)
            while 0 < count < len(space):
                more = os.preadv(file.fd, [space[count:]], position + count)
                if more == 0:
                    break
                count += more
        except OSError as error:
            raise _failure("read", path, error) from error
        return count

    def read(self, path: StrPath, position: int, size: int) -> bytes:
        """Return `size` bytes from `position`, fewer at the end of the file."""
        file = self._descriptor(str(path))
        try:
            return os.pread(file.fd, size, position)
        except OSError as error:
            raise _failure("read", path, error) from error

    def read_cached(self, path: StrPath, position: int, size: int) -> bytearray | None:
        """The same, if the system has all of it in memory; None: it has not, or does not tell."""
        if RWF_NOWAIT is None:
            return None
        data = bytearray(size)
        try:
            count = os.preadv(self._descriptor(str(path)).fd, [data], position, RWF_NOWAIT)
        except OSError:  # `read` says what there is to say
            return None
        return data if count == size else None

    def read_all(self, path: StrPath) -> bytes:
        """Return what is at `path` now (the file is opened anew: for small files that others replace)."""
        with _mapped("read", path), open(path, "rb", buffering=0) as file:
            return file.readall()

    def write(self, path: StrPath, position: int, data: Bytes) -> None:
        """Write all of `data` at `position`. The file must exist (`create`)."""
        file = self._descriptor(str(path), writable=True)
        try:
            written = os.pwrite(file.fd, data, position)
            while written < len(data):
                rest = memoryview(data)[written:]
                written += os.pwrite(file.fd, rest, position + written)
        except OSError as error:
            raise _failure("write", path, error) from error

    def create(self, path: StrPath) -> None:
        """Make an empty file, or leave the one that is there."""
        with _mapped("create", path):
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))

    def truncate(self, path: StrPath, size: int) -> None:
        with _mapped("truncate", path):
            file = self._descriptor(str(path), writable=True)  # held until the call is over
            os.ftruncate(file.fd, size)

    def allocate(self, path: StrPath, size: int) -> None:
        """Give the file room for `size` bytes on the disk, without writing them."""
        with _mapped("take room for", path):
            file = self._descriptor(str(path), writable=True)
            os.posix_fallocate(file.fd, 0, size)

    def set_time(self, path: StrPath, mtime_ns: int) -> None:
        """Set the time of the last write, of a file that replaces another one."""
        with _mapped("set the time of", path):
            os.utime(path, ns=(mtime_ns, mtime_ns))

    def stat(self, path: StrPath) -> FileStat | None:
        """Identity and size of what is at `path` now; None when there is nothing."""
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _failure("look at", path, error) from error
        return FileStat(found.st_ino, found.st_size, found.st_mtime_ns)

    def list(self, path: StrPath) -> Listing:
        now_ns = time.time_ns()
        before = self.stat(path)  # first, so that a change while listing shows in the next stat
        if before is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        with _mapped("list", path):
            names = tuple(os.listdir(path))
        return Listing(names, before, now_ns - before.mtime_ns >= SETTLED_NS)

    def settle(self, path: StrPath) -> FileStat | None:
        """Give the directory a time of the past, which no other change gives it; return its stat, as of a settled list.

        None where that cannot be: it belongs to another user, or the file system's times are coarse.
        """
        mtime_ns = time.time_ns() - SETTLED_NS - _random.getrandbits(30)
        try:
            os.utime(path, ns=(mtime_ns, mtime_ns))
        except OSError:
            return None
        stat = self.stat(path)
        return stat if stat is not None and stat.mtime_ns == mtime_ns else None

    @property
    def is_syncing(self) -> bool:
        """True while a thread is in `fsync`: writes may have to wait for it."""
        return bool(self._syncing)

    def fsync(self, path: StrPath) -> None:
        """Make the file (or directory) durable.

        Raises: FailedStoreError: it failed, so what is on disk is unknown from now on.
        """
        self._syncing.add(threading.get_ident())
        try:
            if Path(path).is_dir():
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
            else:
                file = self._descriptor(str(path))  # held: another thread may drop it from the pool meanwhile
                os.fsync(file.fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise FailedStoreError(
                f"{path}: fsync failed ({error.strerror}), so what is on disk is unknown; "
                "check the disk, then run `pylog recover`",
                path=str(path),
                reason=error.strerror,
            ) from error
        finally:
            self._syncing.discard(threading.get_ident())

    def restrict(self, path: StrPath) -> None:
        """Let nobody but this user read the file."""
        with _mapped("restrict", path):
            os.chmod(path, 0o600)

    def rename(self, source: StrPath, target: StrPath) -> None:
        """Atomically put `source` in the place of `target`."""
        with _mapped("rename", source):
            os.rename(source, target)
        self.forget(source)
        self.forget(target)

    def link(self, source: StrPath, target: StrPath) -> None:
        """Give the file a second name; nothing happens if `target` is there already."""
        with _mapped("link", source), contextlib.suppress(FileExistsError):
            os.link(source, target)

    def unlink(self, path: StrPath) -> None:
        """Remove a file; nothing happens if it is gone already."""
        with _mapped("remove", path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self.forget(path)

    def mkdir(self, path: StrPath) -> None:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:  # also FileNotFoundError: where nobody can make anything (/proc)
            raise _failure("create", path, error) from error

    def rmdir(self, path: StrPath) -> None:
        """Remove an empty directory; nothing happens if it is gone already."""
        with _mapped("remove", path), contextlib.suppress(FileNotFoundError):
            os.rmdir(path)

    def lock(self, path: StrPath, *, shared: bool = False, wait: bool = True) -> Lock | None:
        """Hold a file lock until it is released or the process dies; None if it is taken and `wait` is false.

        Other processes and other threads of this one are kept out alike. The lock file is made when it is missing;
        where it cannot be made (a read-only directory), a shared lock raises FileNotFoundError.
        """
        mode = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        with _mapped("lock", path):
            fd = _open_to_lock(path, shared=shared)
        try:
            fcntl.flock(fd, mode)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError):
                raise _failure("lock", path, error) from error
            raise
        return Lock(fd)

    def is_writable(self, path: StrPath) -> bool:
        return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)

    def network_file_system(self, path: StrPath) -> str | None:
        """Name of the network file system that holds `path`; None on a local one."""
        mounts = ""
        with contextlib.suppress(OSError):
            mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
        kind = file_system_of(os.path.realpath(path), mounts)
        return kind if kind in NETWORK_FILE_SYSTEMS else None

    def drop_cache(self, path: StrPath) -> None:
        """Read the file from the disk from now on, but for what is still to be written there."""
        with _mapped("read", path):
            file = self._descriptor(str(path))
            os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def forget(self, path: StrPath) -> None:
        """Open a file, or those in a directory, anew at their next use: the names may stand for other files now."""
        with self._mutex:
            self._last_passed = None
            for name in (str(path), *self._open_in.get(str(path), ())):
                if name in self._open:
                    self._drop(name)

    def _descriptor(self, path: str, *, writable: bool = False) -> _Descriptor:
        """The pooled descriptor of `path`, opened if need be.

        A full pool drops the least recently used for every eighth file that is opened, and of the others only the last
        is kept: where more files than there is room for are used in turn, most of those that are kept are used again.
        """
        with self._mutex:
            file = self._open.pop(path, None)
            is_new = file is None
            if is_new and self._last_passed is not None and self._last_passed[0] == path:
                file = self._last_passed[1]
                if file.writable or not writable:
                    return file
            if file is None or (writable and not file.writable):
                with _mapped("open", path):
                    file = _Descriptor(path, os.O_RDWR if writable else os.O_RDONLY, writable=writable)
            if is_new and len(self._open) >= self.open_files_max:
                self._passed += 1
                if self._passed % PASSED:
                    self._last_passed = path, file
                    return file
                self._drop(next(iter(self._open)))
            self._open[path] = file
            if is_new:
                self._open_in.setdefault(os.path.dirname(path), set()).add(path)
        return file

    def _drop(self, path: str) -> None:
        """Under the mutex: close what is open at `path` once nobody uses it."""
        del self._open[path]
        directory = os.path.dirname(path)
        self._open_in[directory].discard(path)
        if not self._open_in[directory]:
            del self._open_in[directory]


@dataclass(frozen=True, slots=True)
class Env:
    clock: Clock = field(default_factory=Clock)
    files: OsFiles = field(default_factory=OsFiles)
    random: Random = field(default_factory=SystemRandom)  # forked children draw different numbers
    worker: Callable[[Callable[[], None], str, float | None], Worker] = Worker


class _HasLocks(Protocol):
    def after_fork(self) -> None: ...


def wait_lock(files: OsFiles, path: StrPath, *, shared: bool = False) -> Lock:
    """Return the file lock, held, however long others have it."""
    lock = files.lock(path, shared=shared)
    assert lock is not None, "a lock that is waited for is granted"
    return lock


@contextlib.contextmanager
def locked(files: OsFiles, path: StrPath) -> Iterator[None]:
    """Hold a file lock inside, however long others have it."""
    lock = wait_lock(files, path)
    try:
        yield
    finally:
        lock.release()


def boot_id(files: OsFiles) -> str:
    """The id of this boot of the machine; "" where the system does not say."""
    try:
        return files.read_all(BOOT_ID).decode("ascii", "replace").strip()
    except (FileNotFoundError, StorageError):
        return ""


_has_locks: weakref.WeakSet[_HasLocks] = weakref.WeakSet()


def reset_after_fork(owner: _HasLocks) -> None:
    """Call `owner.after_fork()` in every forked child for as long as `owner` lives.

    A lock that another thread of the parent holds at the fork would never be released in the child.
    """
    _has_locks.add(owner)


def _reset_all() -> None:
    for owner in list(_has_locks):
        owner.after_fork()


os.register_at_fork(after_in_child=_reset_all)


def _open_to_lock(path: StrPath, *, shared: bool) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        if shared and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return os.open(path, os.O_RDONLY)
        raise


class _mapped:  # noqa: N801  reads like the context manager it is
    """Raise the environment's errors as StorageError; a missing file stays FileNotFoundError."""

    __slots__ = ("_action", "_path")

    def __init__(self, action: str, path: StrPath) -> None:
        self._action = action
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError | StorageError):
            raise _failure(self._action, self._path, error) from error


def _failure(action: str, path: StrPath, error: OSError) -> StorageError:
    reason = error.strerror or str(error)
    if error.errno in NO_ROOM:
        return DiskFullError(f"{path}: cannot {action}: {reason}; free some space", path=str(path), reason=reason)
    return StorageError(f"{path}: cannot {action}: {reason}", path=str(path), reason=reason)


def file_system_of(path: str, mounts: str) -> str:
    """The type of the file system mounted at, or nearest above, `path`; '' where the system does not say."""
    kind, longest = "", -1
    for line in mounts.splitlines():
        _device, mount, name, *_rest = line.split(" ")
        point = mount.encode().decode("unicode_escape").rstrip("/") + "/"
        if len(point) >= longest and (path + "/").startswith(point):
            kind, longest = name, len(point)
    return kind


SYSTEM = Env()
