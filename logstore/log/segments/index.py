"""The indexes of a segment: small sorted files that say where in it to start looking, and what was aborted.

Entries are big-endian and of fixed width, as Kafka's, keyed by their first field::

    .index       int32 offset - base offset      int32 position    of a batch: its last offset, its first byte
    .timeindex   int64 max timestamp so far, ms  int32 offset - base offset    last offset of the batch that
    has it
    .txnindex    int16 version = 0, int64 producer id, int64 first offset, int64 last offset, int64 last stable offset
    of a transaction that an ABORT marker, at the last offset, ended; there if the segment has transactional batches
    .txncheck    uint32 CRC-32C of the entry of the same number in .txnindex (pylog's own)

An index is a hint and never an authority: whoever uses an entry checks it against the batch header it leads to, and an
index that is damaged, short, or of another file costs time and no correctness. Files grow by whole entries and are
never allocated ahead; a partial entry at the end does not count.

A look-up costs O(log n) small reads: no index is ever loaded whole, so a large partition is read like a small one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

from logstore.env import Env
from logstore.records.batch import BatchHeader


class AbortedTransaction(NamedTuple):
    """A transaction that the ABORT marker at `last_offset` ended; `last_stable_offset` is the LSO behind the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def holds(self, batch: BatchHeader) -> bool:
        return (
            batch.producer_id == self.producer_id
            and self.first_offset <= batch.base_offset < self.last_offset
            and batch.is_transactional
        )


# Below this many entries one read (of a page or two) is cheaper than halving by reads.
BLOCK_ENTRIES = 512

Entry = tuple[int, ...]


class SortedEntries:
    """A file of entries of integers, sorted by the fields that look-ups use."""

    __slots__ = ("_entry", "_env", "path")

    def __init__(self, env: Env, path: str, entry: struct.Struct) -> None:
        self._env = env
        self._entry = entry
        self.path = path

    def count(self) -> int:
        """How many whole entries there are; 0 if there is no file."""
        stat = self._env.files.stat(self.path)
        return 0 if stat is None else stat.size // self._entry.size

    def last(self) -> Entry | None:
        return self._last_of(self.count())

    def floor(self, key: int, *, by: int = 0) -> Entry | None:
        """Return the last entry whose first field (second with by=1) is <= `key`; None if there is none."""
        return self._last_of(self._count_below(key + 1, by))

    def entries(self) -> list[Entry]:
        """Every entry: for checks and tools."""
        return self._read(0, self.count())

    def append(self, entries: Iterable[Entry], *, behind: int | None = None) -> None:
        """Add entries behind the last whole one, in one write. `behind`: how many there are, if the caller knows."""
        data = b"".join([self._entry.pack(*entry) for entry in entries])
        if behind is None:
            stat = self._env.files.stat(self.path)
            if stat is None:
                self._env.files.create(self.path)
            behind = 0 if stat is None else stat.size // self._entry.size
        self._env.files.write(self.path, behind * self._entry.size, data)

    def truncate_below(self, key: int, *, by: int = 0) -> None:
        """Keep the entries whose first field (second with by=1) is below `key`."""
        if self._env.files.stat(self.path) is not None:
            self._env.files.truncate(self.path, self._count_below(key, by) * self._entry.size)

    def rewrite(self, entries: Iterable[Entry]) -> None:
        """Replace everything, in place: other processes have the file open."""
        self._env.files.create(self.path)
        self._env.files.truncate(self.path, 0)
        self.append(entries)

    def _count_below(self, key: int, by: int) -> int:
        low, high = 0, self.count()
        while high - low > BLOCK_ENTRIES:
            middle = (low + high) // 2
            found = self._read(middle, middle + 1)
            if found and found[0][by] < key:
                low = middle + 1
            else:
                high = middle
        block = self._read_bytes(low, high)
        width, unpack = self._entry.size, self._entry.unpack_from
        first, last = 0, len(block) // width
        while first < last:
            middle = (first + last) // 2
            if unpack(block, middle * width)[by] < key:
                first = middle + 1
            else:
                last = middle
        return low + first

    def _last_of(self, count: int) -> Entry | None:
        return next(iter(self._read(count - 1, count)), None) if count else None

    def _read(self, low: int, high: int) -> list[Entry]:
        """Entries [low, high), fewer if the file has been cut meanwhile."""
        return list(self._entry.iter_unpack(self._read_bytes(low, high)))

    def _read_bytes(self, low: int, high: int) -> bytes:
        if high <= low:
            return b""
        width = self._entry.size
        try:
            data = self._env.files.read(self.path, low * width, (high - low) * width)
        except FileNotFoundError:
            return b""
        return data[: len(data) - len(data) % width]


_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_TRANSACTION_ENTRY = struct.Struct(">hqqqq")
_LAST_OFFSET_FIELD = 3  # of a transaction's entry: what they are sorted by
_CHECKSUM_ENTRY = struct.Struct(">I")
OFFSET_ENTRY_BYTES = _OFFSET_ENTRY.size
TIME_ENTRY_BYTES = _TIME_ENTRY.size


def offset_index(env: Env, path: str) -> SortedEntries:
    """Pairs (last offset of a batch - base offset of the segment, position of the batch)."""
    return SortedEntries(env, path, _OFFSET_ENTRY)


def time_index(env: Env, path: str) -> SortedEntries:
    """Pairs (max timestamp so far, offset that has it - base offset of the segment)."""
    return SortedEntries(env, path, _TIME_ENTRY)


class TransactionIndex:
    """The aborted transactions of one segment, by the offset of their marker, and a checksum of each.

    Only a walk over the segment could replace a damaged entry. Kafka's entries have no checksum: a second file has
    them, which is written first.
    """

    __slots__ = ("_entries", "_env", "_sums")

    def __init__(self, env: Env, stem: str, suffix: str = "") -> None:
        self._env = env
        self._entries = SortedEntries(env, stem + ".txnindex" + suffix, _TRANSACTION_ENTRY)
        self._sums = SortedEntries(env, stem + ".txncheck" + suffix, _CHECKSUM_ENTRY)

    @property
    def paths(self) -> tuple[str, str]:
        return self._entries.path, self._sums.path

    def create(self) -> None:
        """Make both files, empty; those that are there stay."""
        for path in reversed(self.paths):
            self._env.files.create(path)

    def remove(self) -> None:
        for path in self.paths:
            self._env.files.unlink(path)

    def append(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Add these, before their markers are written."""
        added = [(0, *transaction) for transaction in transactions]
        count = self._entries.count()
        self._env.files.create(self._sums.path)
        self._env.files.truncate(self._sums.path, count * _CHECKSUM_ENTRY.size)
        self._sums.append((crc32c(_TRANSACTION_ENTRY.pack(*entry)),) for entry in added)
        self._entries.append(added)

    def transactions(self) -> list[AbortedTransaction] | None:
        """All of them; None if the two files disagree: then read the log."""
        entries, sums = self._entries.entries(), self._sums.entries()
        if [crc32c(_TRANSACTION_ENTRY.pack(*entry)) for entry in entries] != [s for (s,) in sums]:
            return None
        if not entries and not all(self._env.files.stat(path) for path in self.paths):
            return None
        return [AbortedTransaction(*entry[1:]) for entry in entries]

    def truncate(self, end: int) -> None:
        """Keep the transactions whose marker lies below `end`."""
        for path in self.paths:
            if self._env.files.stat(path) is None:
                return
        self._entries.truncate_below(end, by=_LAST_OFFSET_FIELD)
        self._env.files.truncate(self._sums.path, self._entries.count() * _CHECKSUM_ENTRY.size)

    def last_marker(self) -> int:
        """The offset of the last marker; -1 if there is none."""
        last = self._entries.last()
        return last[_LAST_OFFSET_FIELD] if last else -1

    def rewrite(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Replace everything, in place."""
        self.create()
        for path in self.paths:
            self._env.files.truncate(path, 0)
        self.append(transactions)
