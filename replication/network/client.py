"""Client: what a broker asks of another one, over one connection that is opened when it is needed.

Laws: requests leave in the order of the calls, and are answered in it. A call whose time is over, and anything that is
not the answer to the oldest request, ends the connection, and all that wait on it; the next call opens another one.
Nothing is repeated here. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from typing import Any, NamedTuple, cast

from replication.errors import ProtocolError
from replication.protocol import apis
from replication.protocol.apis import SERVED, ApiKey
from replication.protocol.framing import Frame, FrameReader

logger = logging.getLogger(__name__)

SCRATCH_BYTES = 64 * 1024
FRAME_BYTES_MAX = 2**31 - 1
ANSWER_BYTES_MIN = 4  # a correlation id
CONNECT_TIMEOUT_S = 5.0


class _Call(NamedTuple):
    key: ApiKey
    version: int
    correlation_id: int
    answer: asyncio.Future[Any]


class Client:
    """One broker as another one sees it. `close` ends it for good; it may be called again."""

    def __init__(self, host: str, port: int, client_id: str, *, timeout_ms: int) -> None:
        self._address = host, port
        self._client_id = client_id
        self._timeout_s = timeout_ms / 1000
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._is_closed = False

    async def call(self, key: ApiKey, request: Any, *, timeout_ms: int | None = None) -> Any:
        """Send the request in the newest version that is known here; return the answer.

        Raises: OSError (no connection, or it ended), TimeoutError, ProtocolError.
        """
        timeout_s = self._timeout_s if timeout_ms is None else timeout_ms / 1000
        connection = await self._connected()
        answer = connection.send(key, SERVED[key].last, self._client_id, request)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            connection.end(TimeoutError(f"{self._where} did not answer {key.name} within {timeout_s:g} s"))
            raise

    def close(self) -> None:
        self._is_closed = True
        if self._connection is not None:
            self._connection.end(ConnectionAbortedError(f"the connection to {self._where} was closed"))

    @property
    def _where(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"

    async def _connected(self) -> Connection:
        if self._connection is not None and not self._connection.is_over:
            return self._connection
        async with self._connecting:
            if self._connection is None or self._connection.is_over:
                self._connection = await connect(*self._address, timeout_s=self._timeout_s)
            if self._is_closed:
                self.close()
            if self._connection.is_over:
                raise ConnectionAbortedError(f"the connection to {self._where} was closed")
            return self._connection


async def connect(
    host: str,
    port: int,
    *,
    timeout_s: float,
    answer_bytes_max: int = FRAME_BYTES_MAX,
    tls: ssl.SSLContext | None = None,
) -> Connection:
    """Open a connection, over TLS if its context is given. Raises: OSError (ssl.SSLError), TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(min(CONNECT_TIMEOUT_S, timeout_s)):
        _, connection = await loop.create_connection(
            lambda: Connection(answer_bytes_max), host, port, ssl=tls, server_hostname=host if tls else None
        )
    return connection


class Connection(asyncio.BufferedProtocol):
    def __init__(self, answer_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.is_over = False
        self._frames = FrameReader(answer_bytes_max, bytes_min=ANSWER_BYTES_MIN, are_answers=True)
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._in_room = False
        self._calls: deque[_Call] = deque()
        self._last_id = 0

    def send(self, key: ApiKey, version: int, client_id: str, request: Any) -> asyncio.Future[Any]:
        self.tell(key, version, client_id, request)
        call = _Call(key, version, self._last_id, asyncio.get_running_loop().create_future())
        self._calls.append(call)
        return call.answer

    def tell(self, key: ApiKey, version: int, client_id: str, request: Any) -> None:
        """Send a request that nobody answers."""
        if self.is_over:
            raise ConnectionAbortedError("the connection has ended")
        self._last_id = (self._last_id + 1) % 2**31
        self._transport.writelines(apis.encode_request(key, version, self._last_id, client_id, request))

    def end(self, error: BaseException) -> None:
        self.is_over = True
        self._transport.abort()
        calls, self._calls = self._calls, deque()
        for call in calls:
            if not call.answer.done():
                call.answer.set_exception(error)

    async def drain(self) -> None:
        """Close it when every call is answered, or has failed; what was told leaves before."""
        if answers := [call.answer for call in self._calls]:
            await asyncio.wait(answers)
        if not self.is_over:
            self.is_over = True
            self._transport.close()

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
        if not call.answer.done():
            call.answer.set_result(response)


class Clients:
    def __init__(self, client_id: str, *, timeout_ms: int) -> None:
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._clients: dict[tuple[str, int], Client] = {}

    async def call(self, host: str, port: int, key: ApiKey, request: Any) -> Any:
        client = self._clients.get((host, port))
        if client is None:
            client = Client(host, port, self._client_id, timeout_ms=self._timeout_ms)
            self._clients[host, port] = client
        return await client.call(key, request)

    def keep(self, addresses: set[tuple[str, int]]) -> None:
        """Close the connections to others than these."""
        for address in self._clients.keys() - addresses:
            self._clients.pop(address).close()

    def close(self) -> None:
        self.keep(set())
