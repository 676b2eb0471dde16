"""SegmentSource: the bytes and indexes of one segment, wherever they are stored; LocalSource: in files of this machine.

All that reads records asks a source, so that a segment that is stored elsewhere is read by the same code.
"""

from __future__ import annotations

from typing import Protocol

from logstore.env import Env, FileStat
from logstore.log.segments.index import (
    AbortedTransaction,
    Entry,
    SortedEntries,
    TransactionIndex,
    offset_index,
    time_index,
)

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"


class Index(Protocol):
    """Sorted entries: hints where to look (`logstore.log.segments.index`). An index that is missing has none."""

    def count(self) -> int: ...

    def last(self) -> Entry | None: ...

    def floor(self, key: int, *, by: int = 0) -> Entry | None:
        """Return the last entry whose first field (second with by=1) is <= `key`; None if there is none."""

    def entries(self) -> list[Entry]: ...


class SegmentSource(Protocol):
    """One segment, for readers. `path` names it in messages; positions and sizes are bytes of its batches.

    Safe for threads. Every method raises FileNotFoundError if the segment has left the log.
    """

    @property
    def base_offset(self) -> int: ...

    @property
    def path(self) -> str: ...

    @property
    def index(self) -> Index: ...

    @property
    def time_index(self) -> Index: ...

    def extent(self) -> FileStat:
        """Return which bytes these are, and how many; the same as before, if nothing was changed or added."""

    def read(self, position: int, size: int) -> bytes:
        """Return `size` bytes from `position`, fewer at the end."""

    def read_into(self, position: int, space: memoryview) -> int:
        """Fill `space` from `position`; return the number of bytes, short only at the end."""

    def read_cached(self, position: int, size: int) -> bytearray | None:
        """Return all of these bytes, if that takes no waiting; else None."""

    def aborted(self) -> list[AbortedTransaction] | None:
        """Return the aborted transactions that the segment's index names; None: only its batches tell."""


class LocalSource:
    """A SegmentSource: files in the directory of a log. `suffix`: of the files, while they are not of the log yet.

    Paths are text: a Path per call would cost more than the read.
    """

    __slots__ = ("_env", "base_offset", "index", "path", "time_index")

    def __init__(self, env: Env, directory: str, base_offset: int, suffix: str = "") -> None:
        stem = f"{directory}/{base_offset:020d}"
        self._env = env
        self.base_offset = base_offset
        self.path = stem + LOG_SUFFIX + suffix
        self.index: SortedEntries = offset_index(env, stem + INDEX_SUFFIX + suffix)
        self.time_index: SortedEntries = time_index(env, stem + TIME_INDEX_SUFFIX + suffix)

    @property
    def transactions(self) -> TransactionIndex:
        """Made at each use: most segments have no transactions."""
        stem, _, suffix = self.path.rpartition(LOG_SUFFIX)
        return TransactionIndex(self._env, stem, suffix)

    def extent(self) -> FileStat:
        stat = self._env.files.stat(self.path)
        if stat is None:
            raise FileNotFoundError(self.path)
        return stat

    def read(self, position: int, size: int) -> bytes:
        return self._env.files.read(self.path, position, size)

    def read_into(self, position: int, space: memoryview) -> int:
        return self._env.files.read_into(self.path, position, space)

    def read_cached(self, position: int, size: int) -> bytearray | None:
        return self._env.files.read_cached(self.path, position, size)

    def aborted(self) -> list[AbortedTransaction] | None:
        return self.transactions.transactions()
