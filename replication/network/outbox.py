"""Outbox: the responses of one connection on their way to its socket, together those of one turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from replication.network.admission import Admission
from replication.protocol.framing import LARGE_BYTES
from replication.protocol.wire import Buffer

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
