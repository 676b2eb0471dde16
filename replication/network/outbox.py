"""Outbox: the responses of one connection on their way to its socket, together those of one turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from replication.network.admission import Admission
from replication.protocol.framing import LARGE_BYTES
from replication.protocol.wire import Buffer

PACE_BYTES = 128 * 1024  # encrypted in one turn of the event loop, which takes some 0.1 ms
SENT_AT_ONCE = 16  # buffers of one connection; one that is larger than `LARGE_BYTES` waits for no others


class Outbox:
    """Belongs to the event loop. `may_write`: the client reads as fast as it asks."""

    __slots__ = ("_admission", "_counted_bytes", "_ready", "_transport", "may_write")

    def __init__(self, admission: Admission, transport: asyncio.Transport) -> None:
        self.may_write = True
        self._admission = admission
        self._transport = transport
        self._ready: list[Buffer] = []
        self._counted_bytes = 0

    @property
    def has_all_gone(self) -> bool:
        """Was all that was sent given to the socket?"""
        return True

    def add(self, parts: Sequence[Buffer], *, is_last: bool) -> None:
        """Send these, at the end of this turn if others may follow: to wake a client costs more than a small answer."""
        if is_last and not self._ready:
            self._write(parts)
            return
        if not self._ready:
            self._admission.send_later(self)
        self._ready += parts
        if len(self._ready) > SENT_AT_ONCE or max(map(len, parts)) > LARGE_BYTES:
            self.send()

    def send(self) -> None:
        """Give the socket what is ready."""
        ready, self._ready = self._ready, []
        if ready:
            self._write(ready)

    def _write(self, ready: Sequence[Buffer]) -> None:
        transport = self._transport
        if not transport.is_closing():
            if len(ready) == 1:
                transport.write(ready[0])
            else:
                transport.writelines(ready)
            if not self.may_write:
                self.count(transport.get_write_buffer_size())

    def pause(self) -> None:
        """Note that the client reads too slowly, and count what it leaves."""
        self.may_write = False
        self.count(self._transport.get_write_buffer_size())

    def resume(self) -> None:
        self.may_write = True
        self.count(0)

    def count(self, unsent_bytes: int) -> None:
        self._admission.unsent_bytes += unsent_bytes - self._counted_bytes
        self._counted_bytes = unsent_bytes


class PacedOutbox(Outbox):
    """Responses through TLS, PACE_BYTES in a turn of the event loop: to encrypt a long one at once would hold it up.

    `on_gone` is called once all has been given to the socket, if that took more than a turn.
    """

    __slots__ = ("_is_pumping", "_is_slow", "_on_gone", "_queue")

    def __init__(self, admission: Admission, transport: asyncio.Transport, on_gone: Callable[[], None]) -> None:
        super().__init__(admission, transport)
        self._queue: deque[Buffer] = deque()
        self._is_pumping = False
        self._is_slow = False  # the client reads too slowly
        self._on_gone = on_gone

    @property
    def has_all_gone(self) -> bool:
        return not self._queue

    def _write(self, ready: Sequence[Buffer]) -> None:
        size = sum(map(len, ready))
        if self._queue or self._is_slow or size > PACE_BYTES:
            self._queue += ready
            self.may_write = False
            if not self._is_pumping and not self._is_slow:
                self._pump()
        elif not self._transport.is_closing():
            self._transport.write(ready[0] if len(ready) == 1 else b"".join(ready))

    def _pump(self) -> None:
        self._is_pumping, left = False, PACE_BYTES
        if self._transport.is_closing():
            self._queue.clear()
            return
        while self._queue and left > 0 and not self._is_slow:
            part = self._queue.popleft()
            if len(part) > left:
                view = memoryview(part)
                self._queue.appendleft(view[left:])
                part = view[:left]
            left -= len(part)
            self._transport.write(part)
        if self._queue:
            self.count(sum(map(len, self._queue)) + self._transport.get_write_buffer_size())
            if not self._is_slow:
                self._is_pumping = True
                self._admission.loop.call_soon(self._pump)
        elif not self._is_slow:
            self.may_write = True
            self.count(0)
            self._admission.loop.call_soon(self._on_gone)

    def pause(self) -> None:
        self._is_slow = True
        super().pause()

    def resume(self) -> None:
        self._is_slow = False
        if not self._queue:
            super().resume()
        elif not self._is_pumping:
            self._pump()
