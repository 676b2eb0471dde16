"""BatchCache: the last appends to a log, as they came, so that who reads at its end needs no disk.

Invariant: what is kept is one unbroken range of offsets that ends at the last append noted, and has at most
`RECENT_BYTES`, or one append. The cache returns the bytes of the log.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from replication.protocol.wire import Buffer

# Per partition: some appends of a busy producer.
RECENT_BYTES = 256 * 1024
# A larger append is not worth its memory: reading it back costs little beside sending it.
APPEND_BYTES_MAX = 128 * 1024


class _Append(NamedTuple):
    first_offset: int
    next_offset: int
    data: bytes


class BatchCache:
    __slots__ = ("_appends", "_size_bytes")

    def __init__(self) -> None:
        self._appends: deque[_Append] | None = None  # until the first: an empty one takes 760 bytes
        self._size_bytes = 0

    def note(self, first_offset: int, next_offset: int, data: Buffer) -> None:
        if self._appends and self._appends[-1].next_offset != first_offset:
            self.clear()
        if len(data) > APPEND_BYTES_MAX:
            self.clear()
            return
        if self._appends is None:
            self._appends = deque()
        # A copy: a view keeps the whole request alive that it was cut out of, however large that is.
        self._appends.append(_Append(first_offset, next_offset, bytes(data)))
        self._size_bytes += len(data)
        while self._size_bytes > RECENT_BYTES:
            self._size_bytes -= len(self._appends.popleft().data)

    def clear(self) -> None:
        """Forget everything: the log was changed otherwise."""
        self._appends, self._size_bytes = None, 0

    def read(self, offset: int, *, upper: int, max_bytes: int) -> tuple[Buffer, int] | None:
        """Whole appends from the one that holds `offset`, all of them below `upper`; and the offset behind them.

        At least one, even if it is larger than `max_bytes`. None: the log must be read.
        """
        if not self._appends or offset < self._appends[0].first_offset:
            return None
        found: list[Buffer] = []
        next_offset, left_bytes = offset, max_bytes
        for append in self._appends:
            if append.next_offset <= offset:
                continue
            if append.next_offset > upper or (found and len(append.data) > left_bytes):
                break
            found.append(append.data)
            next_offset = append.next_offset
            left_bytes -= len(append.data)
        if not found:
            return None
        return found[0] if len(found) == 1 else b"".join(found), next_offset
