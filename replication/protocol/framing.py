"""Frames out of a stream of bytes. No socket here.

A frame is four bytes of size, and that number of bytes. Small frames are copied out of the buffer in which the bytes
came. The next bytes of a large, incomplete frame are received directly into its `room`, so that they are copied once.
Memory grows with the received bytes, not with the promised size: at most to four times them, and never above the
size; the system provides the pages of a very large frame as they are written. A caller that asked for a frame has its
memory at once, in huge pages where the system has them: growing costs five times as much as receiving.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import TypeAlias

from logstore.env import machine
from replication.errors import ProtocolError
from replication.protocol.wire import INT32

LARGE_BYTES = 64 * 1024  # smaller frames are received into a shared buffer and copied, which costs about 5 µs
FRAME_BYTES_MIN = 8  # the header of a request; Kafka closes the connection on less, too
TLS_BEGIN = 0x1603  # the first bytes of every TLS handshake; no request has 352 MiB
KEY_BYTES = 2  # the API key at the begin of a frame
# A larger frame has memory of its own, which returns to the system with it and does not grow by copies.
MAPPED_BYTES = 4 * 1024 * 1024
HUGE_PAGE_BYTES = 2 * 1024 * 1024
_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

Frame: TypeAlias = bytearray | mmap.mmap | memoryview


class FrameReader:
    """The frames of one connection. `max_bytes` limits a frame without its size, `limit_of` a frame per API.

    `large_bytes` is the size of the large frame that is being received; 0 if there is none. `are_answers`: they were
    asked for.
    """

    __slots__ = (
        "_are_answers",
        "_bytes_min",
        "_frame",
        "_have",
        "_limit_of",
        "_max_bytes",
        "_size",
        "_size_bytes",
        "large_bytes",
    )

    def __init__(
        self,
        max_bytes: int,
        limit_of: Callable[[int], int] | None = None,
        *,
        bytes_min: int = FRAME_BYTES_MIN,
        are_answers: bool = False,
    ) -> None:
        self._are_answers = are_answers
        self._max_bytes = max_bytes
        self._bytes_min = bytes_min
        self._limit_of = limit_of
        self._size_bytes = b""  # the received part of the size
        self._frame: Frame | None = None
        self._have = self._size = self.large_bytes = 0

    def allow(self, max_bytes: int, limit_of: Callable[[int], int] | None) -> None:
        """Have other limits for the frames to come."""
        self._max_bytes, self._limit_of, self._bytes_min = max_bytes, limit_of, FRAME_BYTES_MIN

    def take(self, data: memoryview) -> list[Frame]:
        """Return the frames that are complete with `data`, which is copied.

        Raises: ProtocolError: a frame is too small or too large; nothing more can be read then.
        """
        at, end = 0, len(data)
        frames: list[Frame] = []
        while at < end:
            if self._frame is None:
                at = self._begin(data, at)
            if self._frame is not None:
                wanted = self._size - self._have
                self._append(data[at : at + wanted])
                at = min(at + wanted, end)
                frames += self._whole()
        return frames

    def only(self, data: memoryview, nbytes: int) -> bytearray | None:
        """Return the one small frame that the first `nbytes` of `data` are, copied; None, and nothing: `take` them."""
        if self._frame is not None or self._size_bytes or not FRAME_BYTES_MIN + INT32.size <= nbytes <= LARGE_BYTES:
            return None
        (size,) = INT32.unpack_from(data)
        return bytearray(data[INT32.size : nbytes]) if size == nbytes - INT32.size <= self._max_bytes else None

    def room(self) -> memoryview | None:
        """Return where to receive the next bytes of a large frame; then call `filled`. None: use `take`."""
        if self._frame is None or not self.large_bytes:
            return None
        capacity = min(self._size, max(LARGE_BYTES, 4 * self._have))
        if isinstance(self._frame, bytearray) and capacity > len(self._frame):
            self._frame.extend(bytes(capacity - len(self._frame)))
        return memoryview(self._frame)[self._have : capacity]

    def filled(self, count: int) -> list[Frame]:
        """Return the frame, if it is complete with the `count` bytes received into `room`. Raises: ProtocolError."""
        before, self._have = self._have, self._have + count
        if before < KEY_BYTES:
            self._check_kind()
        return self._whole()

    def _begin(self, data: memoryview, at: int) -> int:
        """Read the size of the next frame, or a part of it; return where that ends."""
        head = self._size_bytes + bytes(data[at : at + INT32.size - len(self._size_bytes)])
        at += len(head) - len(self._size_bytes)
        if len(head) < INT32.size:
            self._size_bytes = head
            return at
        self._size_bytes = b""
        (size,) = INT32.unpack(head)
        if not self._bytes_min <= size <= self._max_bytes:
            kind = "an answer" if self._are_answers else "a request"
            hint = "; it speaks TLS, and this listener does not" if size >> 16 == TLS_BEGIN else ""
            raise ProtocolError(f"{kind} of {size} bytes: {self._bytes_min} to {self._max_bytes} are allowed{hint}")
        self._frame, self._have, self._size = _memory(size, at_once=self._are_answers), 0, size
        self.large_bytes = size if size > LARGE_BYTES else 0
        return at

    def _append(self, data: memoryview) -> None:
        assert self._frame is not None
        before = self._have
        self._frame[before : before + len(data)] = data
        self._have += len(data)
        if self._size > LARGE_BYTES and before < KEY_BYTES:
            self._check_kind()

    def _check_kind(self) -> None:
        """Check the limit of a large frame's API, once its first bytes have come."""
        assert self._frame is not None
        if self._limit_of is not None and self._have >= KEY_BYTES:
            key = int.from_bytes(self._frame[:KEY_BYTES], "big")
            if self._size > (limit := self._limit_of(key)):
                raise ProtocolError(f"a request of {self._size} bytes: with API key {key}, {limit} are allowed")

    def _whole(self) -> list[Frame]:
        frame = self._frame
        if frame is None or self._have < self._size:
            return []
        self._frame, self.large_bytes = None, 0
        return [frame]


def _memory(size: int, *, at_once: bool) -> Frame:
    if at_once and size > HUGE_PAGE_BYTES // 2:
        memory = mmap.mmap(-1, -(-size // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, flags=_ANONYMOUS)
        machine.prefer_huge_pages(memory)
        return memoryview(memory)[:size]
    if at_once and size > LARGE_BYTES:
        return bytearray(size)
    return bytearray() if size <= MAPPED_BYTES else mmap.mmap(-1, size, flags=_ANONYMOUS)
