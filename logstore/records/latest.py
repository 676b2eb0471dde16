"""A partition as a table of the latest values of its keys: each key once, with its last record, unless that deletes it.

The partition is read from its end, piece by piece: the first record of a key that is met is its last one. So each
record is read once, and memory holds one piece and the keys. Keys that do not fit come in two rounds, half of them in
each, and so on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

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


class Partition(Protocol):
    """Records of one partition. Its text names it in messages."""

    def read(self, start: int, end: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the records of [start, end), offsets ascending."""

    def size_bytes(self, start: int, end: int) -> int:
        """Return about the stored bytes of [start, end)."""

    def offset_before_bytes(self, start: int, end: int, max_bytes: int) -> int:
        """Return the start of about the last `max_bytes` of [start, end), not before `start`."""


def check_view(view: str | None, start: object = None) -> None:
    """Raise InvalidRequestError for a view that there is not, and for a start, which would hide values."""
    if view not in (None, "latest"):
        raise InvalidRequestError(f"view={view!r}: there is 'latest', the last value of each key")
    if view is not None and start is not None:
        raise InvalidRequestError(
            f"start={start}: view='latest' reads from the beginning: leave it out; 'end' bounds it"
        )


class _FullError(Exception):
    """The keys of this share do not fit; its records from offset `done` on are yielded."""

    def __init__(self, done: int) -> None:
        super().__init__(done)
        self.done = done


class LatestValues:
    """Reads the latest values of a partition. `keyless`: how many records had no key, which is logged."""

    def __init__(
        self,
        partition: Partition,
        *,
        keys_bytes: int = KEYS_BYTES,
        held_bytes: int = HELD_BYTES,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        from logstore.records.key_map import KeyMap

        self.keyless = 0
        self._partition = partition
        self._keys = KeyMap(keys_bytes)
        self._keys_bytes = keys_bytes
        self._held_bytes = held_bytes
        self._piece_bytes = piece_bytes
        self._growth = 1.0  # bytes in memory of a stored byte, the most so far

    def rows(self, start: int, end: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the last record of each key in [start, end) that has a value, a piece of the range at a time.

        The pieces come from the end; in each, offsets ascend. Raises: InvalidRequestError: a 256th of the keys has no
        room; as `Partition.read`.
        """
        from logstore.records.key_map import SHARES_MAX, Share

        waiting = [(Share(), end)]
        while waiting:
            share, done = waiting.pop()
            try:
                yield from self._share(start, end, share, done, columns)
            except _FullError as full:
                if share.mask + 1 >= SHARES_MAX:
                    raise InvalidRequestError(
                        f"{self._partition}: the keys do not fit into {SHARES_MAX} times {self._keys_bytes:,} bytes: "
                        "read the topic without 'view', and aggregate"
                    ) from None
                waiting += [(half, full.done) for half in share.halves()]
        if self.keyless:
            logger.warning(
                "%s: not in the view of latest values, without a key: %d records", self._partition, self.keyless
            )

    def _share(self, start: int, end: int, share: Share, done: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        self._keys.clear(0, 0, expected=(end - start) // (share.mask + 1))
        for rows in self._partition.read(done, end, _KEY_COLUMNS) if done < end else ():
            self._collect(rows, share, done)
        end = done
        while end > start:
            size = min(self._piece_bytes, int(self._held_bytes / (2 * self._growth)))
            found = self._partition.offset_before_bytes(start, end, max(1, size))
            piece_start = max(start, min(found, end - 1))
            yield from self._piece(piece_start, end, share, columns)
            end = piece_start

    def _piece(self, start: int, end: int, share: Share, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece; nothing before the keys of all of it are there."""
        names = list(dict.fromkeys((*columns, *_KEY_COLUMNS, "value")))
        self._keys.watch(start, end)
        held = self._collected(start, end, share, names)
        for rows in self._partition.read(start, end, names) if held is None else held:
            if share.bits == 0:  # of the rounds, one reads this piece with these bits
                self.keyless += rows.column("key").null_count
            newest = self._keys.newest(rows, share)
            if newest.num_rows:
                yield newest.select(list(columns))

    def _collected(self, start: int, end: int, share: Share, names: Sequence[str]) -> list[pa.RecordBatch] | None:
        """Collect the keys of a piece, and return its records; None: there are too many of them to be held."""
        held: list[pa.RecordBatch] = []
        held_bytes, stored_bytes = 0, max(1, self._partition.size_bytes(start, end))
        is_held = stored_bytes * self._growth <= self._held_bytes
        for rows in self._partition.read(start, end, names if is_held else _KEY_COLUMNS):
            self._collect(rows, share, end)
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
