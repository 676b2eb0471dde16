"""Frames out of a stream of bytes, and responses in the order of their requests. No socket here.

A frame is four bytes of size and so many bytes. Small frames are copied out of the buffer that the bytes came in. Of
a large one that has not come whole, `room` is where its next bytes are to be received, so that they are copied once.
Memory grows with what has come, not with what a size promises: at most four times that, and never above the size; of a
very large frame, the system gives pages as they are written to.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from replication.errors import ProtocolError
from replication.protocol.wire import INT32, Buffer

# What is below this is received into a shared buffer and copied: 64 KiB cost some 5 us.
LARGE_BYTES = 64 * 1024
# The header of a request; Kafka closes the connection on less, too.
FRAME_BYTES_MIN = 8
KEY_BYTES = 2  # what a frame begins with: the API's number
# What is above this is in memory of its own, which goes back to the system with it, and does not grow by copies.
MAPPED_BYTES = 4 * 1024 * 1024

Frame: TypeAlias = bytearray | mmap.mmap


class FrameReader:
    """The frames of one connection. `max_bytes` bounds a frame, its size not counted; `limit_of` those of one API."""

    __slots__ = ("_frame", "_have", "_limit_of", "_max_bytes", "_size", "_size_bytes")

    def __init__(self, max_bytes: int, limit_of: Callable[[int], int] | None = None) -> None:
        self._max_bytes = max_bytes
        self._limit_of = limit_of
        self._size_bytes = b""  # of the size, as long as it is not whole
        self._frame: Frame | None = None
        self._have = self._size = 0

    @property
    def large_bytes(self) -> int:
        """The size of the frame that is being received, if it is a large one; else 0."""
        return self._size if self._frame is not None and self._size > LARGE_BYTES else 0

    def take(self, data: memoryview) -> list[Frame]:
        """The frames that are whole with `data`, which is copied.

        Raises: ProtocolError: a frame would be smaller or larger than may be; nothing more can be read then.
        """
        frames: list[Frame] = []
        at, end = 0, len(data)
        while at < end:
            if self._frame is None:
                at = self._begin(data, at)
            if self._frame is not None:
                wanted = self._size - self._have
                self._append(data[at : at + wanted])
                at = min(at + wanted, end)
                frames += self._whole()
        return frames

    def room(self) -> memoryview | None:
        """Where the next bytes of a large frame go: tell `filled` how many came. None: use `take`."""
        if self._frame is None or self._size <= LARGE_BYTES:
            return None
        capacity = min(self._size, max(LARGE_BYTES, 4 * self._have))
        if isinstance(self._frame, bytearray) and capacity > len(self._frame):
            self._frame.extend(bytes(capacity - len(self._frame)))
        return memoryview(self._frame)[self._have : capacity]

    def filled(self, count: int) -> list[Frame]:
        """The frame, if it is whole with the `count` bytes that are now in `room`.

        Raises: ProtocolError: as `take`.
        """
        before, self._have = self._have, self._have + count
        if before < KEY_BYTES:
            self._check_kind()
        return self._whole()

    def _begin(self, data: memoryview, at: int) -> int:
        """Read the size of the next frame, or as much of it as there is; return where that ends."""
        head = self._size_bytes + bytes(data[at : at + INT32.size - len(self._size_bytes)])
        at += len(head) - len(self._size_bytes)
        if len(head) < INT32.size:
            self._size_bytes = head
            return at
        self._size_bytes = b""
        (size,) = INT32.unpack(head)
        if not FRAME_BYTES_MIN <= size <= self._max_bytes:
            raise ProtocolError(
                f"a request of {size} bytes: {FRAME_BYTES_MIN} to {self._max_bytes} are allowed"
            )
        self._frame, self._have, self._size = _memory(size), 0, size
        return at

    def _append(self, data: memoryview) -> None:
        assert self._frame is not None
        before = self._have
        self._frame[before : before + len(data)] = data
        self._have += len(data)
        if self._size > LARGE_BYTES and before < KEY_BYTES:
            self._check_kind()

    def _check_kind(self) -> None:
        """A large frame's first bytes have come: they say of which API it is."""
        assert self._frame is not None
        if self._limit_of is not None and self._have >= KEY_BYTES:
            key = int.from_bytes(self._frame[:KEY_BYTES], "big")
            if self._size > (limit := self._limit_of(key)):
                raise ProtocolError(
                    f"a request of {self._size} bytes: with API key {key}, {limit} are allowed"
                )

    def _whole(self) -> list[Frame]:
        frame = self._frame
        if frame is None or self._have < self._size:
            return []
        self._frame = None
        return [frame]


def _memory(size: int) -> Frame:
    if size <= MAPPED_BYTES:
        return bytearray()
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


@dataclass(slots=True, eq=False)
class Slot:
    """The place of one response. `parts` is None until it is known."""

    parts: Sequence[Buffer] | None = None


class ResponseOrder:
    """Responses of one connection leave in the order of their requests, whenever they become known."""

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: deque[Slot] = deque()

    def __len__(self) -> int:
        return len(self._slots)

    def begin(self) -> Slot:
        """The place of the next request's response."""
        slot = Slot()
        self._slots.append(slot)
        return slot

    def finish(self, slot: Slot, parts: Sequence[Buffer]) -> list[Buffer]:
        """What may leave now that this response is known; `parts` is empty for a request that gets none."""
        slot.parts = parts
        ready: list[Buffer] = []
        while self._slots and self._slots[0].parts is not None:
            ready += self._slots.popleft().parts or ()
        return ready
