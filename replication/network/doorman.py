"""Doorman: a connection at a listener with TLS, until the handshake is over.

Bounds: the time of a handshake, and how many are open; the oldest gives way to another one. A handshake that fails ends
with one line of the log, and nothing of it reaches the pipeline.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from typing import cast

from replication.network.admission import Admission
from replication.network.gate import TLS_HANDSHAKE_S, Gate
from replication.network.steps import begin
from replication.security.access import Principal

logger = logging.getLogger(__name__)

_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG")
EARLY_BYTES_MAX = 1024 * 1024  # of a client that speaks before its connection is made


class Doorman(asyncio.Protocol):
    """`make` makes the connection behind it, for the client whose certificate was checked."""

    def __init__(self, admission: Admission, gate: Gate, make: Callable[[Principal], asyncio.BufferedProtocol]) -> None:
        self._admission = admission
        self._gate = gate
        self._make = make
        self._early = bytearray()
        self._is_lost = False
        self._shaking: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._host = peer[0] if isinstance(peer, tuple) else "?"
        if not self._admission.meet(self, is_shaking=True):
            self.abort()
            return
        rest = begin(self._shake())  # now: uvloop reads from here on, and the first bytes are TLS's
        if isinstance(rest, Coroutine):
            self._shaking = self._admission.loop.create_task(rest)

    def data_received(self, data: bytes) -> None:
        """Keep what came right behind the handshake."""
        self._early += data
        if len(self._early) > EARLY_BYTES_MAX:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True

    def abort(self) -> None:
        self._admission.part(self)
        self._transport.abort()

    async def _shake(self) -> None:
        loop, gate = self._admission.loop, self._gate
        assert gate.tls is not None, "it is a listener with TLS"
        try:
            secured = await loop.start_tls(
                self._transport, self, gate.tls(), server_side=True, ssl_handshake_timeout=TLS_HANDSHAKE_S
            )
        except (OSError, TimeoutError) as error:
            self._end(_why(error))
            return
        if secured is None or self._is_lost:
            self._end(None)
            return
        principal = gate.principal_of(secured.get_extra_info("peercert") or {})
        if principal is None:
            self._transport = secured
            self._end("no rule of ssl.principal.mapping.rules says anything about its certificate")
            return
        self._admission.part(self)
        connection = self._make(principal)
        secured.set_protocol(connection)
        connection.connection_made(secured)
        early, at = memoryview(bytes(self._early)), 0
        while at < len(early) and not secured.is_closing():
            room = cast("memoryview", connection.get_buffer(len(early) - at))
            count = min(len(room), len(early) - at)
            room[:count] = early[at : at + count]
            at += count
            connection.buffer_updated(count)

    def _end(self, why: str | None) -> None:
        """Close it, with a line; None: the client went away, as those do that only look whether a port is open."""
        if self._admission.part(self) and why is not None:  # else it gave way to another one
            self._admission.misused += 1
            logger.warning("client=%s connection to listener %s closed: %s", self._host, self._gate.name, why)
        self._transport.abort()


def _why(error: Exception) -> str | None:
    cause = error.__cause__ if isinstance(error.__cause__, ssl.SSLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not believed: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        said = (cause.reason or "it failed").lower().replace("_", " ")
        hint = "; does the client speak TLS?" if cause.reason in _NO_TLS else ""
        return f"TLS handshake: {said}{hint}"
    if isinstance(error, (TimeoutError, ConnectionAbortedError)):
        return f"TLS handshake: not done within {TLS_HANDSHAKE_S:g} s"
    return None
