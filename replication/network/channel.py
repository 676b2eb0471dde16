"""Channel: one connection to a broker: requests out, answers in.

Laws: requests leave in the order of the calls, and are answered in it. Anything that is not the answer to the oldest
request ends the channel, and all that wait on it. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from typing import Any, NamedTuple, cast

from replication.errors import ProtocolError
from replication.protocol import apis
from replication.protocol.apis import ApiKey
from replication.protocol.framing import Frame, FrameReader

logger = logging.getLogger(__name__)

SCRATCH_BYTES = 64 * 1024
ANSWER_BYTES_MIN = 4  # a correlation id
FRAME_BYTES_MAX = 2**31 - 1
CONNECT_TIMEOUT_S = 5.0


async def connect(
    host: str,
    port: int,
    *,
    timeout_s: float,
    answer_bytes_max: int = FRAME_BYTES_MAX,
    tls: ssl.SSLContext | None = None,
) -> Channel:
    """Open a channel, over TLS if its context is given. Raises: OSError (ssl.SSLError), TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(min(CONNECT_TIMEOUT_S, timeout_s)):
        _, channel = await loop.create_connection(
            lambda: Channel(loop, answer_bytes_max), host, port, ssl=tls, server_hostname=host if tls else None
        )
    return channel


class _Call(NamedTuple):
    key: ApiKey
    version: int
    correlation_id: int
    answer: asyncio.Future[Any]


class Channel(asyncio.BufferedProtocol):
    """See the module; made by `connect`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, answer_bytes_max: int) -> None:
        self.is_over = False
        self._loop = loop
        self._frames = FrameReader(answer_bytes_max, bytes_min=ANSWER_BYTES_MIN, are_answers=True)
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._in_room = False
        self._calls: deque[_Call] = deque()
        self._last_id = 0
        self._answered_at = 0.0  # when the last answer came, or the first of the waiting calls left

    def send(self, key: ApiKey, version: int, client_id: str, request: Any) -> asyncio.Future[Any]:
        """Send a request; its answer comes in the future. Raises: ConnectionAbortedError: the channel is over."""
        self.tell(key, version, client_id, request)
        if not self._calls:
            self._answered_at = self._loop.time()
        call = _Call(key, version, self._last_id, self._loop.create_future())
        self._calls.append(call)
        return call.answer

    def tell(self, key: ApiKey, version: int, client_id: str, request: Any) -> None:
        """Send a request that nobody answers. Raises: as `send`."""
        if self.is_over:
            raise ConnectionAbortedError("the connection has ended")
        self._last_id = (self._last_id + 1) % 2**31
        self._transport.writelines(apis.encode_request(key, version, self._last_id, client_id, request))

    @property
    def silent_s(self) -> float:
        """For how long calls have waited here without any answer."""
        return self._loop.time() - self._answered_at if self._calls else 0.0

    def end(self, error: BaseException) -> None:
        """Close the channel at once; every call that waits on it raises the error."""
        self.is_over = True
        self._transport.abort()
        calls, self._calls = self._calls, deque()
        for call in calls:
            if not call.answer.done():
                call.answer.set_exception(error)

    async def drain(self) -> None:
        """Close the channel when every call is answered, or has failed; requests without an answer leave before."""
        if answers := [call.answer for call in self._calls]:
            await asyncio.wait(answers)
        if not self.is_over:
            self.is_over = True
            self._transport.close()

    # ------------------------------------------------------------------ asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def connection_lost(self, exc: Exception | None) -> None:
        lost = ConnectionResetError(f"the connection has ended: {exc or 'the other side closed it'}")
        lost.__cause__ = exc
        self.end(lost)

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._frames.room()
        self._in_room = room is not None
        return room if room is not None else self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        try:
            taken = self._scratch[:nbytes]
            for frame in self._frames.filled(nbytes) if self._in_room else self._frames.take(taken):
                self._answer(frame)
        except ProtocolError as error:
            logger.info("peer=%s %s", self._transport.get_extra_info("peername"), error)
            self.end(error)

    def _answer(self, frame: Frame) -> None:
        if not self._calls:
            raise ProtocolError("an answer to no request")
        call = self._calls[0]
        correlation_id, response = apis.decode_response(call.key, call.version, memoryview(frame))
        if correlation_id != call.correlation_id:
            raise ProtocolError(f"an answer to request {correlation_id} where {call.correlation_id} is next")
        self._calls.popleft()
        self._answered_at = self._loop.time()
        if not call.answer.done():
            call.answer.set_result(response)
