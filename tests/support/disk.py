"""A disk in memory that can lose power: `OsFiles` that knows what was synced and what was not.

It counts the calls that change it. The call number `crash_at` is done in part only, and raises `PowerCut`.
With `watch`, a copy in which the call is done in part is handed over before each call instead: a workload then
runs once for all its crash points. The kind of crash decides what is left:

- KILLED: the process died; everything that was written is there (the page cache survives).
- LOST: the power failed; only what was fsynced is there.
- TORN: the power failed; of what was not fsynced, some blocks, sizes and directory entries are there, in no
  order (a directory that was renamed is at its old place or at its new one).
- REORDERED: the power failed; every file is whole, as it was synced or as it was last written, whatever came before.

A crash frees all locks. One that would have to be waited for is a mistake of the test: there is one thread.
"""

from __future__ import annotations

import enum
import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from logstore.env import FileStat, Listing
from logstore.errors import DiskFullError, FailedStoreError, StorageError

BLOCK_BYTES = 64  # a tear may go through any batch of the tests


class Crash(enum.Enum):
    KILLED = enum.auto()
    LOST = enum.auto()
    TORN = enum.auto()
    REORDERED = enum.auto()


class PowerCut(BaseException):
    """Not an Exception: nothing that the engine does about errors may run."""


@dataclass
class Inode:
    number: int
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    mtime_ns: int = 0
    is_dropped: bool = False  # an fsync of it failed: what was written is in no place but the cache


def _parent(path: str | Path) -> str:
    """The parent as pathlib returns it, ten times as fast: simulations ask a lot."""
    return str(path).rpartition("/")[0] or "/"


def _moved(path: str, source: str, target: str) -> str:
    """The new name of `path` when `source`, a directory, is renamed to `target`."""
    return target + path[len(source) :] if path == source or path.startswith(source + "/") else path


def _put(data: bytearray, position: int, written: bytes) -> None:
    """Bytes between the end and a write behind it read as zeros."""
    data.extend(bytes(max(0, position - len(data)) if written else 0))
    data[position : position + len(written)] = written


class HeldLock:
    def __init__(self, holders: list, *, shared: bool) -> None:
        self.holders, self.shared = holders, shared
        holders.append(self)

    def release(self) -> None:
        if self in self.holders:
            self.holders.remove(self)


class Disk:
    def __init__(self, *, crash_at: int | None = None, seed: int = 0) -> None:
        self.names: dict[str, Inode] = {}
        self.synced_names: dict[str, Inode] = {}
        self.directories: dict[str, int] = {}
        self.synced_directories: set[str] = set()
        self.moves: list[tuple[str, str]] = []  # renamed directories whose parent was not synced since
        self.calls = 0
        self.crash_at = crash_at
        self.free_bytes: int | None = None
        self.fsync_fails: str | None = None
        self.fsyncs = 0
        self.fsync_fails_at = -1  # the number of the one that does; from then on the kernel says that all is well
        self.random = random.Random(seed)
        self.ticks = 0
        self.epoch_ns = 0  # when the first tick was
        self.locks: dict[str, list[HeldLock]] = {}
        self.watch: Callable[[Disk], None] | None = None
        self.watch_every = 1

    # ------------------------------------------------------------------ crash

    def after_crash(self, kind: Crash) -> Disk:
        """The disk as the next process finds it."""
        found = self.copy()
        if kind is not Crash.KILLED:
            chance = 0.0 if kind is Crash.LOST else 0.5
            found._settle_moves(self.random, chance)
            found._settle_directories(self.random, chance)
            paths = sorted(found.names.keys() | found.synced_names.keys())
            entries = {}
            for path in paths:
                new, old = found.names.get(path), found.synced_names.get(path)
                inode = new if new is old or self.random.random() < chance else old
                if inode is not None and _parent(path) in found.directories:
                    entries[path] = inode
            found.names = entries
            for inode in {id(i): i for i in entries.values()}.values():
                inode.data = self._survived(inode, kind, chance)
        for inode in found.names.values():
            inode.synced = bytes(inode.data)
            inode.is_dropped &= kind is Crash.KILLED
        found.synced_names = dict(found.names)
        found.synced_directories = set(found.directories)
        found.moves = []
        return found

    def copy(self) -> Disk:
        """The same disk, on its own, with no locks held; nothing cuts or watches it."""
        other = type(self)()
        inodes = {
            id(i): Inode(i.number, bytearray(i.data), i.synced, i.mtime_ns, i.is_dropped)
            for i in (*self.names.values(), *self.synced_names.values())
        }
        other.names = {path: inodes[id(inode)] for path, inode in self.names.items()}
        other.synced_names = {path: inodes[id(inode)] for path, inode in self.synced_names.items()}
        other.directories = dict(self.directories)
        other.synced_directories = set(self.synced_directories)
        other.moves = list(self.moves)
        other.calls, other.ticks, other.epoch_ns = self.calls, self.ticks, self.epoch_ns
        other.free_bytes, other.fsync_fails = self.free_bytes, self.fsync_fails
        other.random.setstate(self.random.getstate())
        return other

    def _settle_moves(self, chance_of: random.Random, chance: float) -> None:
        """Each renamed directory that was not synced is at its new place, with all in it, or was never moved."""
        for source, target in self.moves:
            if chance_of.random() < chance:
                self._move_synced(source, target)
            else:
                self.names = {_moved(path, target, source): inode for path, inode in self.names.items()}
                self.directories = {_moved(path, target, source): t for path, t in self.directories.items()}

    def _settle_directories(self, chance_of: random.Random, chance: float) -> None:
        kept: dict[str, int] = {}
        for path in sorted(self.directories.keys() | self.synced_directories):
            is_new, is_old = path in self.directories, path in self.synced_directories
            is_there = is_new if is_new == is_old or chance_of.random() < chance else is_old
            if is_there and (_parent(path) in kept or path == "/"):
                kept[path] = self.directories.get(path, self.ticks)
        self.directories = kept

    def _move_synced(self, source: str, target: str) -> None:
        self.synced_names = {_moved(path, source, target): i for path, i in self.synced_names.items()}
        self.synced_directories = {_moved(path, source, target) for path in self.synced_directories}

    def _survived(self, inode: Inode, kind: Crash, chance: float) -> bytearray:
        if kind is Crash.REORDERED:
            return bytearray(inode.data if self.random.random() < chance else inode.synced)
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

    def _changes(self, in_part: Callable[[Disk], None] = lambda _: None) -> bool:
        """Count a call; True if it is the one that is cut. `in_part` does a part of it."""
        self.calls += 1
        self.ticks += 1
        if self.watch is not None and self.calls % self.watch_every == 0:
            image = self.copy()
            in_part(image)
            self.watch(image)
        return self.crash_at is not None and self.calls >= self.crash_at

    def _inode(self, path) -> Inode:
        try:
            return self.names[str(path)]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path)) from None

    def _touch(self, path) -> None:
        self.directories[_parent(path)] = self.ticks

    # ------------------------------------------------------------------ Files

    def read_into(self, path, position, space):
        block = self._inode(path).data[position : position + len(space)]
        space.cast("B")[: len(block)] = block
        return len(block)

    def read(self, path, position, size):
        return bytes(self._inode(path).data[position : position + size])

    def read_cached(self, path, position, size):
        data = self._inode(path).data[position : position + size]
        return data if len(data) == size else None

    def read_all(self, path):
        return bytes(self._inode(path).data)

    def write(self, path, position, data):
        inode, data = self._inode(path), bytes(data)

        def in_part(image: Disk) -> None:
            part = data[: self.random.randint(0, len(data))]
            there = image._inode(path)
            _put(there.data, position, part)
            there.mtime_ns = self.epoch_ns + self.ticks

        cut = self._changes(in_part)
        if cut:
            data = data[: self.random.randint(0, len(data))]
        grows = max(0, position + len(data) - len(inode.data))
        full = self.free_bytes is not None and grows > self.free_bytes
        if full:
            data = data[: len(data) - (grows - self.free_bytes)]
        _put(inode.data, position, data)
        inode.mtime_ns = self.epoch_ns + self.ticks
        if cut:
            raise PowerCut
        if full:
            raise DiskFullError(f"{path}: no space")
        self._take(grows)

    def allocate(self, path, size):
        inode = self._inode(path)
        if self._changes():
            raise PowerCut
        self._take(size - len(inode.data), path)
        inode.data.extend(bytes(size - len(inode.data)))
        inode.mtime_ns = self.epoch_ns + self.ticks

    def _take(self, size_bytes, path=""):
        """Room for so many bytes more (or less)."""
        if self.free_bytes is not None:
            if size_bytes > self.free_bytes:
                raise DiskFullError(f"{path}: no space")
            self.free_bytes -= size_bytes

    def create(self, path):
        if self._changes():
            raise PowerCut
        if str(path) not in self.names:
            if _parent(path) not in self.directories:
                raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
            self.names[str(path)] = Inode(self.ticks, mtime_ns=self.epoch_ns + self.ticks)
            self._touch(path)

    def truncate(self, path, size):
        inode = self._inode(path)
        if self._changes():
            raise PowerCut
        self._take(-max(0, len(inode.data) - size))
        del inode.data[size:]
        inode.data.extend(bytes(size - len(inode.data)))
        inode.mtime_ns = self.epoch_ns + self.ticks

    def set_time(self, path, mtime_ns):
        self._inode(path).mtime_ns = mtime_ns

    def stat(self, path):
        path = str(path).removesuffix("/.")
        if path in self.directories:
            return FileStat(0, 0, self.directories[path])
        inode = self.names.get(path)
        return None if inode is None else FileStat(inode.number, len(inode.data), inode.mtime_ns)

    def list(self, path):
        parent = str(path)
        if parent not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", parent)
        names = tuple(name.rpartition("/")[2] for name in (*self.names, *self.directories) if _parent(name) == parent)
        return Listing(names, self.stat(path), settled=True)

    def settle(self, path):
        return self.stat(path)  # each change has a time of its own

    is_syncing = False

    def fsync(self, path):
        if self._changes():
            raise PowerCut
        self.fsyncs += 1
        if (self.fsync_fails and str(path).endswith(self.fsync_fails)) or self.fsyncs == self.fsync_fails_at:
            if str(path) in self.names:
                self.names[str(path)].is_dropped = True
            raise FailedStoreError(f"{path}: fsync failed (EIO)")
        if str(path) in self.directories:
            parent = str(path)
            for name, inode in self.names.items():
                if self.synced_names.get(name) is not inode and _parent(name) == parent:
                    self.synced_names[name] = inode
            for name in self.synced_names.keys() - self.names.keys():
                if _parent(name) == parent:
                    del self.synced_names[name]
            self._sync_directories(parent)
        else:
            inode = self._inode(path)
            if not inode.is_dropped:
                inode.synced = bytes(inode.data)

    def _sync_directories(self, parent):
        for source, target in self.moves:
            if _parent(target) == parent:
                self._move_synced(source, target)
        self.moves = [move for move in self.moves if _parent(move[1]) != parent]
        children = {d for d in self.directories if _parent(d) == parent}
        gone = {d for d in self.synced_directories if _parent(d) == parent and d not in self.directories}
        # Its own name is in its parent, which is synced by itself.
        self.synced_directories = (self.synced_directories | children) - gone

    def rename(self, source, target):
        source, target = str(source), str(target)
        if source in self.directories:
            if self._changes():
                raise PowerCut
            self.names = {_moved(path, source, target): inode for path, inode in self.names.items()}
            self.directories = {_moved(path, source, target): t for path, t in self.directories.items()}
            self.moves.append((source, target))
            self._touch(target)
            return
        inode = self._inode(source)
        if self._changes():
            raise PowerCut
        if self.names.get(target) is inode:  # two names of one file: POSIX leaves both
            return
        del self.names[source]
        self._free(self.names.get(target))
        self.names[target] = inode
        self._touch(target)

    def _free(self, inode):
        self._take(-len(inode.data) if inode else 0)

    def link(self, source, target):
        inode = self._inode(source)
        if self._changes():
            raise PowerCut
        self.names.setdefault(str(target), inode)
        self._touch(target)

    def unlink(self, path):
        if self._changes():
            raise PowerCut
        inode = self.names.pop(str(path), None)
        if inode is not None:
            self._free(inode)
            self._touch(path)

    def mkdir(self, path):
        for directory in (*reversed(Path(path).parents), Path(path)):
            if str(directory) not in self.directories:
                if directory.parent in (directory, Path("/")):
                    self.synced_directories.add(str(directory))  # where the store is to be: it was always there
                elif self._changes():
                    raise PowerCut
                self.directories[str(directory)] = self.ticks
                self._touch(directory)

    def rmdir(self, path):
        if any(_parent(name) == str(path) for name in self.names):
            raise StorageError(f"{path}: cannot remove: Directory not empty")
        if self._changes():
            raise PowerCut
        if self.directories.pop(str(path), None) is not None:
            self._touch(path)

    def lock(self, path, *, shared=False, wait=True):
        if str(path) not in self.names:
            if _parent(path) not in self.directories:
                raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
            self.names[str(path)] = Inode(self.ticks, mtime_ns=self.epoch_ns + self.ticks)
            self._touch(path)
        holders = self.locks.setdefault(str(path), [])
        if not holders or (shared and all(holder.shared for holder in holders)):
            return HeldLock(holders, shared=shared)
        assert not wait, f"{path} is held: this would wait for ever"
        return None

    def restrict(self, path):
        self._inode(path)

    def is_writable(self, path):
        return True

    def drop_cache(self, path):
        inode = self._inode(path)
        if inode.is_dropped:
            inode.data, inode.is_dropped = bytearray(inode.synced), False

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
