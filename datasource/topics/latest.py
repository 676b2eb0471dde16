"""A partition as a table of the latest values of its keys: each key once, with its last record, unless that deletes it.

The partition is read from its end, piece by piece: the first record of a key that is met is its last one. So each
record is read once, and memory holds one piece and the keys. Keys that do not fit come in two rounds, half of them in
each, and so on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from datasource.topics.interface import PartitionRange, ReadableTopics
from logstore.errors import InvalidRequestError

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.records.key_map import Share

logger = logging.getLogger(__name__)

KEYS_BYTES = 256 * 1024 * 1024
PIECE_BYTES = 16 * 1024 * 1024  # as stored
GROWTH_MAX = 64
HELD_BYTES = 64 * 1024 * 1024  # of records in memory; a piece with more is read twice
_KEY_COLUMNS = ("key", "offset")

Read = Callable[[PartitionRange, Sequence[str]], "Iterator[pa.RecordBatch]"]


class _FullError(Exception):
    """The keys of this share do not fit; its records from offset `done` on are yielded."""

    def __init__(self, done: int) -> None:
        super().__init__(done)
        self.done = done


class LatestValues:
    """Reads the latest values of a range; `read` gives its records. `keyless`: how many had no key, which is logged."""

    def __init__(
        self,
        topics: ReadableTopics,
        read: Read,
        *,
        keys_bytes: int = KEYS_BYTES,
        held_bytes: int = HELD_BYTES,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        from logstore.records.key_map import KeyMap

        self.keyless = 0
        self._topics = topics
        self._read = read
        self._keys = KeyMap(keys_bytes)
        self._keys_bytes = keys_bytes
        self._held_bytes = held_bytes
        self._piece_bytes = piece_bytes
        self._growth = 1.0  # bytes in memory of a stored byte, the most so far

    def rows(self, r: PartitionRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the last record of each key in the range that has a value, a piece of the range at a time.

        The pieces come from the end; in each, offsets ascend. Raises: InvalidRequestError: a 256th of the keys has no
        room; as `read`.
        """
        from logstore.records.key_map import SHARES_MAX, Share

        waiting = [(Share(), r.end)]
        while waiting:
            share, done = waiting.pop()
            try:
                yield from self._share(r, share, done, columns)
            except _FullError as full:
                if share.mask + 1 >= SHARES_MAX:
                    raise InvalidRequestError(
                        f"{r}: the keys do not fit into {SHARES_MAX} times {self._keys_bytes:,} bytes: read the topic "
                        "without the option 'view', and aggregate"
                    ) from None
                waiting += [(half, full.done) for half in share.halves()]
        if self.keyless:
            logger.warning("%s: not in the view of latest values, without a key: %d records", r, self.keyless)

    def _share(self, r: PartitionRange, share: Share, done: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        self._keys.clear(0, 0, expected=r.count // (share.mask + 1))
        for rows in self._read(replace(r, start=done), _KEY_COLUMNS) if done < r.end else ():
            self._collect(rows, share, done)
        end = done
        while end > r.start:
            size = min(self._piece_bytes, int(self._held_bytes / (2 * self._growth)))
            start = self._topics.offset_before_bytes(replace(r, end=end), max(1, size))
            piece = replace(r, start=max(r.start, min(start, end - 1)), end=end)
            yield from self._piece(piece, share, columns)
            end = piece.start

    def _piece(self, piece: PartitionRange, share: Share, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece; nothing before the keys of all of it are there."""
        names = list(dict.fromkeys((*columns, *_KEY_COLUMNS, "value")))
        self._keys.watch(piece.start, piece.end)
        held = self._collected(piece, share, names)
        for rows in self._read(piece, names) if held is None else held:
            if share.bits == 0:  # of the rounds, one reads this piece with these bits
                self.keyless += rows.column("key").null_count
            newest = self._keys.newest(rows, share)
            if newest.num_rows:
                yield newest.select(list(columns))

    def _collected(self, piece: PartitionRange, share: Share, names: Sequence[str]) -> list[pa.RecordBatch] | None:
        """Collect the keys of a piece, and return its records; None: there are too many of them to be held."""
        held: list[pa.RecordBatch] = []
        held_bytes, stored_bytes = 0, max(1, self._topics.size_bytes(piece))
        is_held = stored_bytes * self._growth <= self._held_bytes
        for rows in self._read(piece, names if is_held else _KEY_COLUMNS):
            self._collect(rows, share, piece.end)
            held_bytes += rows.nbytes
            if is_held:
                held.append(rows)
                self._growth = min(max(self._growth, held_bytes / stored_bytes), GROWTH_MAX)
            if is_held and held_bytes > self._held_bytes:
                is_held = False
                held.clear()
        return held if is_held else None

    def _collect(self, rows: pa.RecordBatch, share: Share, done: int) -> None:
        if not self._keys.collect_rows(rows, share):
            raise _FullError(done)
