"""machine: the calls that not every Unix has, and the next best where one is missing.

Linux has all of them. macOS has neither /proc nor `posix_fallocate`, `posix_fadvise`, `memfd_create` and
`RWF_NOWAIT`, and its fsync leaves data in the cache of the disk. Nothing else in the project uses these or asks which
system it runs on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import mmap
import os
import resource
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from logstore.env.failures import StrPath

BOOT_ID, MOUNTS = "/proc/sys/kernel/random/boot_id", "/proc/self/mounts"
SCHEDSTAT = "/proc/thread-self/schedstat"  # of the thread that opens it: ns on a CPU, ns ready to run, slices of time
RWF_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)  # macOS
NO_FULL_SYNC = frozenset({errno.ENOTSUP, errno.ENOTTY, errno.EINVAL})  # a disk of the network, say
# glibc's mallopt: from which size memory is mapped, and how much that is free is kept.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
_ZEROS = bytes(1 << 20)


class Identified(Protocol):
    @property
    def inode(self) -> int: ...


class Named(Protocol):
    @property
    def names(self) -> Sequence[str]: ...


class Files(Protocol):
    """OsFiles, as far as it is needed here."""

    def read_all(self, path: StrPath) -> bytes: ...

    def stat(self, path: StrPath) -> Identified | None: ...

    def list(self, path: StrPath) -> Named: ...


class Process(NamedTuple):
    """A process that is alive. `started` is only compared: another process with this id has another one."""

    command: str
    parent: int
    started: str


def read_into(fd: int, space: memoryview, position: int) -> int:
    """Fill `space` from `position` in one call; return the number of bytes."""
    if hasattr(os, "preadv"):
        return os.preadv(fd, [space], position)
    data = os.pread(fd, len(space), position)
    space.cast("B")[: len(data)] = data
    return len(data)


def read_cached(fd: int, position: int, size: int) -> bytearray | None:
    """Return these bytes, if the system has all of them in memory; None: it has not, or does not tell.

    Raises: OSError: it has none of them.
    """
    if RWF_NOWAIT is None:
        return None
    data = bytearray(size)
    return data if os.preadv(fd, [data], position, RWF_NOWAIT) == size else None


def allocate(fd: int, size: int) -> None:
    """Give the file room for `size` bytes on the disk: by zeros behind its end, if nothing else does it."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    position = os.fstat(fd).st_size
    while position < size:
        position += os.pwrite(fd, _ZEROS[: size - position], position)


def sync(fd: int) -> None:
    """Make the file (or directory) durable, beyond the disk's own cache."""
    if FULL_SYNC is not None:
        try:
            fcntl.fcntl(fd, FULL_SYNC)
            return
        except OSError as error:
            if error.errno not in NO_FULL_SYNC:
                raise
    os.fsync(fd)


def drop_cache(fd: int) -> None:
    """Let the next reads of the file come from the disk, if the system can do that."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def prefer_huge_pages(memory: mmap.mmap) -> None:
    """Let the system back this memory by huge pages, if it has such."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)


def keep_memory(mapped_bytes_min: int, kept_bytes: int) -> None:
    """Let malloc keep free memory for later, and map only what is larger; nothing changes without glibc."""
    import ctypes  # brokers only

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, mapped_bytes_min)
        mallopt(M_TRIM_THRESHOLD, kept_bytes)


@contextlib.contextmanager
def secret_file(content: str) -> Iterator[str]:
    """Name a file with this content, on no disk if possible, else its owner's alone; it is gone afterwards."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("secret"), "wb") as file:
            file.write(content.encode())
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as named:
            named.write(content)
            named.flush()
            yield named.name


def boot_id(files: Files) -> str:
    """The id of this boot of the machine; "" where the system does not say."""
    return _text(files, BOOT_ID).strip() or ("" if _has_proc(files) else _boot_session())


def mounts(files: Files) -> str:
    """The mounted file systems, in the lines of /proc/mounts; "" where the system does not say."""
    return _text(files, MOUNTS)


def resident_bytes(files: Files) -> int | None:
    """Memory of this process; None where the system does not say."""
    words = _text(files, "/proc/self/statm").split()
    return int(words[1]) * resource.getpagesize() if words else None


def open_descriptors(files: Files) -> int | None:
    """How many files and sockets this process has open; None where the system does not say."""
    try:
        return len(files.list("/dev/fd").names)
    except OSError:
        return None


def process_space(files: Files) -> str | None:
    """The container that process ids belong to; "" without containers, None where the system does not say."""
    if (space := files.stat("/proc/self/ns/pid")) is not None:
        return str(space.inode)
    return None if _has_proc(files) else ""


def process(files: Files, pid: int) -> Process | None:
    """The process; None if it is gone or a zombie."""
    if (text := _text(files, f"/proc/{pid}/stat")) or _has_proc(files):
        return _of_stat(text)
    return _of_ps(_said("ps", "-o", "stat=,ppid=,lstart=,comm=", "-p", str(pid)))


def command_line(files: Files, pid: int) -> str:
    """Its arguments, with blanks between; "" where the system does not say."""
    return _text(files, f"/proc/{pid}/cmdline").replace("\0", " ").strip()


def is_stopped(files: Files, pid: int) -> bool:
    """True if a signal or a debugger holds the process, and the system says so."""
    return _text(files, f"/proc/{pid}/stat").rpartition(") ")[2][:1] in ("T", "t")


def lock_holder(files: Files, inode: int, byte: int) -> int:
    """A process that has this byte of the file locked; 0 if there is none, or the system does not say.

    Taking the lock would not do: closing a file releases all locks that this process holds on it.
    """
    for line in _text(files, "/proc/locks").splitlines():
        words = line.split()
        if len(words) == 8 and words[1] == "POSIX" and words[5].rpartition(":")[2] == str(inode):
            begin, end = int(words[6]), words[7]
            if begin <= byte and (end == "EOF" or int(end) >= byte):
                return int(words[4])
    return 0


def _of_stat(text: str) -> Process | None:
    """Read a line of /proc/PID/stat."""
    command, _, rest = text.partition("(")[2].rpartition(")")
    words = rest.split()
    if len(words) < 20 or words[0] in ("Z", "X"):
        return None
    return Process(command, int(words[1]), words[19])


def _of_ps(text: str) -> Process | None:
    """Read a line of ps: state, parent, the five words of a date, and the path of the command."""
    words = text.split(None, 7)
    if len(words) < 8 or words[0].startswith("Z"):
        return None
    return Process(os.path.basename(words[7].strip()), int(words[1]), "-".join(words[2:7]))


def _has_proc(files: Files) -> bool:
    return bool(_text(files, "/proc/self/stat"))


def _text(files: Files, path: str) -> str:
    """Return what the system says there; "" where it does not."""
    try:
        return files.read_all(path).decode("utf-8", "replace")
    except OSError:
        return ""


@functools.cache
def _boot_session() -> str:
    return _said("sysctl", "-n", "kern.bootsessionuuid")  # macOS


def _said(*command: str) -> str:
    """Return what a tool of the system prints; "" where there is no such tool, or it says nothing."""
    import subprocess  # only where /proc is missing

    try:
        done = subprocess.run(command, env=os.environ | {"LC_ALL": "C"}, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()
