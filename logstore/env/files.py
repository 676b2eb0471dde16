"""OsFiles: the files of the operating system, and what else of it a store asks for."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom
from typing import NamedTuple

from logstore.env import machine
from logstore.env.descriptors import Descriptors
from logstore.env.failures import StrPath, failure, mapped
from logstore.env.locks import Lock, flock
from logstore.errors import FailedStoreError

Bytes = bytes | bytearray | memoryview

# Enough for the files that one Spark task works on; far below the usual limit of 1,024. Brokers take more.
OPEN_FILES_MAX = 256
# A directory that changed less than this before it was listed may change again within the same time stamp.
SETTLED_NS = 100_000_000
_random = SystemRandom()
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


class OsFiles:
    """Files of the operating system, through a pool of at most `open_files_max` descriptors, and one more.

    Tests put crashing, full and lying ones with the same methods in its place.
    """

    def __init__(self, open_files_max: int = OPEN_FILES_MAX) -> None:
        self.descriptors = Descriptors(open_files_max)

    def read_into(self, path: StrPath, position: int, space: memoryview) -> int:
        """Fill `space` from `position`; return the number of bytes, short only at the end of the file."""
        file = self.descriptors.at(str(path))
        try:
            count = machine.read_into(file.fd, space, position)
            while 0 < count < len(space):
                more = machine.read_into(file.fd, space[count:], position + count)
                if more == 0:
                    break
                count += more
        except OSError as error:
            raise failure("read", path, error) from error
        return count

    def read(self, path: StrPath, position: int, size: int) -> bytes:
        """Return `size` bytes from `position`, fewer at the end of the file."""
        file = self.descriptors.at(str(path))
        try:
            return os.pread(file.fd, size, position)
        except OSError as error:
            raise failure("read", path, error) from error

    def read_cached(self, path: StrPath, position: int, size: int) -> bytearray | None:
        """The same, if the system has all of it in memory; None: it has not, or does not tell."""
        try:
            return machine.read_cached(self.descriptors.at(str(path)).fd, position, size)
        except OSError:  # `read` says what there is to say
            return None

    def read_all(self, path: StrPath) -> bytes:
        """Return what is at `path` now (the file is opened anew: for small files that others replace)."""
        with mapped("read", path), open(path, "rb", buffering=0) as file:
            return file.readall()

    def write(self, path: StrPath, position: int, data: Bytes) -> None:
        """Write all of `data` at `position`. The file must exist (`create`)."""
        file = self.descriptors.at(str(path), writable=True)
        try:
            written = os.pwrite(file.fd, data, position)
            while written < len(data):
                rest = memoryview(data)[written:]
                written += os.pwrite(file.fd, rest, position + written)
        except OSError as error:
            raise failure("write", path, error) from error

    def create(self, path: StrPath) -> None:
        """Make an empty file, or leave the one that is there."""
        with mapped("create", path):
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))

    def truncate(self, path: StrPath, size: int) -> None:
        with mapped("truncate", path):
            file = self.descriptors.at(str(path), writable=True)  # held until the call is over
            os.ftruncate(file.fd, size)

    def allocate(self, path: StrPath, size: int) -> None:
        """Give the file room for `size` bytes on the disk, without writing them."""
        with mapped("take room for", path):
            file = self.descriptors.at(str(path), writable=True)
            machine.allocate(file.fd, size)

    def set_time(self, path: StrPath, mtime_ns: int) -> None:
        """Set the time of the last write, of a file that replaces another one."""
        with mapped("set the time of", path):
            os.utime(path, ns=(mtime_ns, mtime_ns))

    def stat(self, path: StrPath) -> FileStat | None:
        """Identity and size of what is at `path` now; None when there is nothing."""
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise failure("look at", path, error) from error
        return FileStat(found.st_ino, found.st_size, found.st_mtime_ns)

    def list(self, path: StrPath) -> Listing:
        now_ns = time.time_ns()
        before = self.stat(path)  # first, so that a change while listing shows in the next stat
        if before is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        with mapped("list", path):
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
        return bool(self.descriptors.syncing)

    def fsync(self, path: StrPath) -> None:
        """Make the file (or directory) durable.

        Raises: FailedStoreError: it failed, so the content of the disk is unknown from now on.
        """
        self.descriptors.syncing.add(threading.get_ident())
        try:
            if Path(path).is_dir():
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    machine.sync(fd)
                finally:
                    os.close(fd)
            else:
                file = self.descriptors.at(str(path))  # held: another thread may drop it from the pool meanwhile
                machine.sync(file.fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise FailedStoreError(
                f"{path}: fsync failed ({error.strerror}), so the content of the disk is unknown; "
                "check the disk, then run `pylog recover`",
                path=str(path),
                reason=error.strerror,
            ) from error
        finally:
            self.descriptors.syncing.discard(threading.get_ident())

    def restrict(self, path: StrPath) -> None:
        """Let nobody but this user read the file."""
        with mapped("restrict", path):
            os.chmod(path, 0o600)

    def rename(self, source: StrPath, target: StrPath) -> None:
        """Atomically put `source` in the place of `target`."""
        with mapped("rename", source):
            os.rename(source, target)
        self.forget(source)
        self.forget(target)

    def link(self, source: StrPath, target: StrPath) -> None:
        """Give the file a second name; nothing happens if `target` is there already."""
        with mapped("link", source), contextlib.suppress(FileExistsError):
            os.link(source, target)

    def unlink(self, path: StrPath) -> None:
        """Remove a file; nothing happens if it is gone already."""
        with mapped("remove", path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self.forget(path)

    def mkdir(self, path: StrPath) -> None:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:  # also FileNotFoundError: where nobody can make anything (/proc)
            raise failure("create", path, error) from error

    def rmdir(self, path: StrPath) -> None:
        """Remove an empty directory; nothing happens if it is gone already."""
        with mapped("remove", path), contextlib.suppress(FileNotFoundError):
            os.rmdir(path)

    def lock(self, path: StrPath, *, shared: bool = False, wait: bool = True) -> Lock | None:
        """Hold a file lock until it is released or the process dies; None if it is taken and `wait` is false.

        Other processes and other threads of this one are kept out alike. The lock file is made when it is missing;
        where it cannot be made (a read-only directory), a shared lock raises FileNotFoundError.
        """
        return flock(path, shared=shared, wait=wait)

    def is_writable(self, path: StrPath) -> bool:
        return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)

    def drop_cache(self, path: StrPath) -> None:
        """Read the file from the disk from now on, but for what is still to be written there, if the system can."""
        with mapped("read", path):
            file = self.descriptors.at(str(path))
            machine.drop_cache(file.fd)

    def forget(self, path: StrPath) -> None:
        """Open a file, or those in a directory, anew at their next use: the names may stand for other files now."""
        self.descriptors.forget(str(path))


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


def network_file_system(files: OsFiles, path: StrPath) -> str | None:
    """Name of the network file system that holds `path`; None on a local one."""
    kind = file_system_of(os.path.realpath(path), machine.mounts(files))
    return kind if kind in NETWORK_FILE_SYSTEMS else None


def file_system_of(path: str, mounts: str) -> str:
    """The type of the file system mounted at, or nearest above, `path`; '' where the system does not say."""
    kind, longest = "", -1
    for line in mounts.splitlines():
        _device, mount, name, *_rest = line.split(" ")
        point = mount.encode().decode("unicode_escape").rstrip("/") + "/"
        if len(point) >= longest and (path + "/").startswith(point):
            kind, longest = name, len(point)
    return kind
