"""A disk in memory that can lose power: a `Files` that knows what was synced and what was not.

It counts the calls that change it. The call number `crash_at` is done in part only, and raises `PowerCut`.
What is left then depends on the kind of crash:

- KILLED: the process died; everything that was written is there (the page cache survives).
- LOST: the power failed; only what was fsynced is there.
- TORN: the power failed; of what was not fsynced, some blocks, sizes and directory entries are there, in no
  order.
"""

from __future__ import annotations

import copy
import enum
import errno
import random
from dataclasses import dataclass, field
from pathlib import Path

from logstore.env import FileStat, Listing
from logstore.errors import DiskFullError, FailedStoreError, StorageError

BLOCK_BYTES = 64  # a tear may go through any batch of the tests


class Crash(enum.Enum):
    KILLED = enum.auto()
    LOST = enum.auto()
    TORN = enum.auto()


class PowerCut(BaseException):
    """Not an Exception: nothing that the engine does about errors may run."""


@dataclass
class Inode:
    number: int
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    mtime_ns: int = 0


class FreeLock:
    def release(self) -> None:
        pass


class Disk:
    def __init__(self, *, crash_at: int | None = None, seed: int = 0) -> None:
        self.names: dict[str, Inode] = {}
        self.synced_names: dict[str, Inode] = {}
        self.directories: dict[str, int] = {}
        self.calls = 0
        self.crash_at = crash_at
        self.free_bytes: int | None = None
        self.fsync_fails: str | None = None
        self.random = random.Random(seed)
        self.ticks = 0

    # ------------------------------------------------------------------ crash

    def after_crash(self, kind: Crash) -> Disk:
        """The disk as the next process finds it."""
        found = copy.deepcopy(self)
        found.crash_at = None
        if kind is not Crash.KILLED:
            chance = 0.0 if kind is Crash.LOST else 0.5
            paths = sorted(found.names.keys() | found.synced_names.keys())
            entries = {}
            for path in paths:
                new, old = found.names.get(path), found.synced_names.get(path)
                inode = new if new is old or self.random.random() < chance else old
                if inode is not None:
                    entries[path] = inode
            found.names = entries
            for inode in {id(i): i for i in entries.values()}.values():
                inode.data = self._survived(inode, chance)
        for inode in found.names.values():
            inode.synced = bytes(inode.data)
        found.synced_names = dict(found.names)
        return found

    def _survived(self, inode: Inode, chance: float) -> bytearray:
        sizes = sorted((len(inode.synced), len(inode.data)))
        size = len(inode.synced) if self.random.random() >= chance else self.random.randint(*sizes)
        data = bytearray(size)
        for start in range(0, size, BLOCK_BYTES):
            source = inode.data if self.random.random() < chance else inode.synced
            block = source[start : min(start + BLOCK_BYTES, size)]
            data[start : start + len(block)] = block
        return data

    def state(self) -> dict[str, bytes]:
        return {path: bytes(inode.data) for path, inode in self.names.items()}

    def _changes(self) -> bool:
        """Count a call; True if it is the one that is cut."""
        self.calls += 1
        self.ticks += 1
        return self.crash_at is not None and self.calls >= self.crash_at

    def _inode(self, path) -> Inode:
        try:
            return self.names[str(path)]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path)) from None

    def _touch(self, path) -> None:
        self.directories[str(Path(path).parent)] = self.ticks

    # ------------------------------------------------------------------ Files

    def read_into(self, path, position, space):
        block = self._inode(path).data[position : position + len(space)]
        space[: len(block)] = block
        return len(block)

    def read(self, path, position, size):
        return bytes(self._inode(path).data[position : position + size])

    def read_all(self, path):
        return bytes(self._inode(path).data)

    def write(self, path, position, data):
        inode, data = self._inode(path), bytes(data)
        cut = self._changes()
        if cut:
            data = data[: self.random.randint(0, len(data))]
        grows = max(0, position + len(data) - len(inode.data))
        full = self.free_bytes is not None and grows > self.free_bytes
        if full:
            data = data[: len(data) - (grows - self.free_bytes)]
        inode.data[position : position + len(data)] = data
        inode.mtime_ns = self.ticks
        if cut:
            raise PowerCut
        if full:
            raise DiskFullError(f"{path}: no space")
        if self.free_bytes is not None:
            self.free_bytes -= grows

    def create(self, path):
        if self._changes():
            raise PowerCut
        if str(path) not in self.names:
            if str(Path(path).parent) not in self.directories:
                raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
            self.names[str(path)] = Inode(self.ticks)
            self._touch(path)

    def truncate(self, path, size):
        inode = self._inode(path)
        if self._changes():
            raise PowerCut
        if self.free_bytes is not None:
            self.free_bytes += max(0, len(inode.data) - size)
        del inode.data[size:]
        inode.data.extend(bytes(size - len(inode.data)))
        inode.mtime_ns = self.ticks

    def stat(self, path):
        if str(path) in self.directories:
            return FileStat(0, 0, self.directories[str(path)])
        inode = self.names.get(str(path))
        return None if inode is None else FileStat(inode.number, len(inode.data), inode.mtime_ns)

    def list(self, path):
        if str(path) not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        names = tuple(Path(name).name for name in self.names if str(Path(name).parent) == str(path))
        return Listing(names, self.stat(path), settled=True)

    def fsync(self, path):
        if self._changes():
            raise PowerCut
        if self.fsync_fails and str(path).endswith(self.fsync_fails):
            raise FailedStoreError(f"{path}: fsync failed (EIO)")
        if str(path) in self.directories:
            for name in self.names.keys() | self.synced_names.keys():
                if str(Path(name).parent) == str(path):
                    if name in self.names:
                        self.synced_names[name] = self.names[name]
                    else:
                        del self.synced_names[name]
        else:
            inode = self._inode(path)
            inode.synced = bytes(inode.data)

    def rename(self, source, target):
        inode = self._inode(source)
        if self._changes():
            raise PowerCut
        del self.names[str(source)]
        self.names[str(target)] = inode
        self._touch(target)

    def unlink(self, path):
        if self._changes():
            raise PowerCut
        if self.names.pop(str(path), None) is not None:
            self._touch(path)

    def mkdir(self, path):
        for directory in (Path(path), *Path(path).parents):
            self.directories.setdefault(str(directory), self.ticks)

    def rmdir(self, path):
        raise StorageError("not needed here")

    def lock(self, path, *, shared=False, wait=True):
        return FreeLock()

    def is_writable(self, path):
        return True

    def network_file_system(self, path):
        return None

    def drop_cache(self, path):
        pass

    def forget(self, prefix):
        pass


class StillClock:
    """A clock that moves when it is told to."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_ms(self) -> int:
        return self.time_ms

    def sleep_ms(self, duration_ms: float) -> None:
        self.time_ms += int(duration_ms)
