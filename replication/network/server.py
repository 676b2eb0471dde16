"""The network side of a broker: connections, requests in, responses out. What is answered is up to the handlers.

One event loop does what Kafka's acceptor and network threads do; slow work belongs on the handlers' own executor. A
request has two stages. *Dispatched*: its handler was called, in the order of the requests. *Responded*: what the
handler returned is known; if that is an awaitable, whenever it is done. Responses leave in the order of the requests.

- Requests of one connection are dispatched one after the other, each once the one before it is answered, as Kafka does
  it; but Produces that follow each other at once. A handler does what must be in order before it returns its awaitable;
  the first steps of coroutines run in the order of the requests, too.
- A handler returns None for a request that gets no response (acks=0), and raises ProtocolError to close the
  connection. Any other exception closes it as well, and is logged: a failure that has a code is a response.
- A handler that only waits from here on (for replicas, say) calls `context.park()`: the request no longer counts as
  queued. Fetch, JoinGroup, SyncGroup and what brokers say to each other never count.
- When a client goes away, its parked Fetch is cancelled. Everything else runs to its end.

Bounds: connections, so that logs always find a file descriptor; size of a request; requests in work, in all and per
connection; bytes of large requests; nothing is read from a client that does not read its responses; idle connections
are closed, and large requests that stall while others wait for the bytes that they may come to.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

from replication.errors import ProtocolError
from replication.network.admission import SocketServerSettings
from replication.network.long_requests import LongRequests
from replication.network.request import Handler, RequestContext
from replication.network.work import PARKING, Encoded, RequestObserver, Work, encoding
from replication.protocol import apis, bounds
from replication.protocol.apis import ApiKey, Request
from replication.protocol.framing import LARGE_BYTES, Frame, FrameReader, ResponseOrder
from replication.protocol.wire import Buffer

logger = logging.getLogger(__name__)

# Requests of one connection in work at a time. Idempotent producers send 5 at most; more only costs memory.
PIPELINE_MAX = 16
# What one read call takes, for all connections: they read in turn, and leave nothing in it.
SCRATCH_BYTES = 256 * 1024
SENT_AT_ONCE = 16  # answers of one connection; what is larger than `LARGE_BYTES` waits for no others
BACKLOG = 1024  # connections that wait to be accepted
# While others wait for room, a large request that is coming brings STALL_BYTES in every STALL_S, or is given up.
STALL_S = 10.0
STALL_BYTES = 64 * 1024


class Server:
    """Listens, and owns its connections. `close` may be called more than once."""

    def __init__(
        self,
        handlers: Mapping[ApiKey, Handler],
        limits: SocketServerSettings | None = None,
        *,
        observer: RequestObserver | None = None,
    ) -> None:
        self.handlers = handlers
        self.limits = limits or SocketServerSettings()
        self.observer = observer
        self.connections: set[_Connection] = set()
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.held_bytes = 0  # of large requests, from their first byte to their answer
        self.in_work = 0  # requests that count
        self.unsent_bytes = 0  # of answers, for clients that do not read as fast as they ask
        self.is_closing = False
        self._is_full = False  # since the last connection that found a place
        self.ids = itertools.count(1)
        self.long = LongRequests()
        self.begun: Work | None = None  # the last request whose handler was called
        self._for_room: OrderedDict[_Connection, None] = OrderedDict()  # who waits, in their turn
        self._for_bytes: OrderedDict[_Connection, None] = OrderedDict()
        self._is_waking = False
        self._sending: list[_Connection] = []
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._stall_sweeper: asyncio.TimerHandle | None = None
        self._all_gone = asyncio.Event()

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port (another one than given only for 0)."""
        self.loop = asyncio.get_running_loop()
        self._connections_max = self.limits.places()
        made = partial(_Connection, self)
        self._listener = await self.loop.create_server(made, host, port, backlog=BACKLOG)
        self._sweep()
        return int(self._listener.sockets[0].getsockname()[1])

    async def close(self, *, grace_s: float = 5.0) -> None:
        """Take no more requests, answer those in work for up to `grace_s`, and let go of all connections."""
        self.is_closing = True
        for sweeper in (self._sweeper, self._stall_sweeper):
            if sweeper is not None:
                sweeper.cancel()
        if self._listener is not None:
            self._listener.close()
        for connection in tuple(self.connections):
            connection.wind_up()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self.connections:
                    self._all_gone.clear()
                    await self._all_gone.wait()
        if self.connections:
            logger.warning("connections=%d cut off at close", len(self.connections))
        for connection in tuple(self.connections):
            connection.abort()
        self.long.close()

    def admit(self, connection: _Connection) -> bool:
        """May it stay? That there are too many is said once, and again after there was room in between."""
        self.connections.add(connection)
        was_full, self._is_full = self._is_full, len(self.connections) > self._connections_max
        if self._is_full and not was_full:
            logger.warning(
                "connections=%d are all that there may be (max.connections, or ulimit -n): others are turned away",
                self._connections_max,
            )
        return not self._is_full and not self.is_closing

    def send_later(self, connection: _Connection) -> None:
        """Have it send at the end of this turn, with the others: a client is then woken once, and not for each."""
        self._sending.append(connection)
        if len(self._sending) == 1:
            self.loop.call_soon(self._send)

    def _send(self) -> None:
        sending, self._sending = self._sending, []
        for connection in sending:
            connection.send()

    def release(self) -> None:
        """A request no longer counts."""
        self.in_work -= 1
        self.wake()

    def forget(self, connection: _Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        self._for_room.pop(connection, None)
        self._for_bytes.pop(connection, None)
        if not self.connections:
            self._all_gone.set()

    def wait(self, connection: _Connection) -> None:
        """Have `connection` go on when there is room for a request."""
        self._for_room.setdefault(connection)

    def wait_for_bytes(self, connection: _Connection) -> None:
        """Have it go on when there is room for the bytes of a large one; see that those who have them use them."""
        self._for_bytes.setdefault(connection)
        if self._stall_sweeper is None and not self.is_closing:
            for other in self.connections:
                other.measure()
            self._stall_sweeper = self.loop.call_later(STALL_S, self._sweep_stalled)

    def wake(self) -> None:
        """There is room: let those who wait go on, in the next turn of the loop."""
        if not self._is_waking and (self._for_room or self._for_bytes):
            self._is_waking = True
            self.loop.call_soon(self._wake_waiting)

    def _wake_waiting(self) -> None:
        """As many as there is room for. Whoever cannot go on remains the first."""
        self._is_waking = False
        while self._for_room and self.has_room:
            self._for_room.popitem(last=False)[0].go_on()
        while self._for_bytes:
            connection, _ = self._for_bytes.popitem(last=False)
            connection.go_on()
            if connection in self._for_bytes:
                self._for_bytes.move_to_end(connection, last=False)
                return

    @property
    def has_room(self) -> bool:
        """May a request that counts be dispatched?"""
        return self.in_work < self.limits.queued_max_requests

    def may_hold(self, size: int) -> bool:
        """Is there room for so many more bytes? One request is always let in, however large."""
        return self.held_bytes == 0 or self.held_bytes + size <= self.limits.queued_max_request_bytes

    def hold(self, size: int) -> None:
        """Count `size` more bytes; fewer if negative."""
        self.held_bytes += size
        if size < 0:
            self.wake()

    def _sweep_stalled(self) -> None:
        self._stall_sweeper = None
        for connection in tuple(self.connections):
            connection.close_if_stalled()
        if self._for_bytes:
            self.wait_for_bytes(next(iter(self._for_bytes)))

    def _sweep(self) -> None:
        """Close the connections that were idle for too long; look again soon enough to be late by a quarter at most."""
        idle_s = self.limits.connections_max_idle_ms / 1000
        for connection in tuple(self.connections):
            connection.close_if_idle(idle_s)
        self._sweeper = self.loop.call_later(max(idle_s / 4, 0.01), self._sweep)


class _Connection(asyncio.BufferedProtocol):
    """One client."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.id = next(server.ids)
        self._frames = FrameReader(server.limits.socket_request_max_bytes, bounds.bytes_max)
        self._pending: deque[tuple[Frame, int]] = deque()  # (frame, bytes of it that are held)
        self._order = ResponseOrder()
        self._ready: list[Buffer] = []  # answers that go at the end of this turn
        self.work: set[Work] = set()
        self._exclusive = 0  # requests in work behind which nothing may start
        self._held_bytes = 0  # for the large frame that is coming
        self._came_bytes = 0  # of it, since it was measured
        self._is_reading = self._may_write = True
        self._in_room = self._is_winding_up = self._is_pumping = False
        self._last_active_s = server.loop.time()
        self._unsent_bytes = self._counted_bytes = 0

    # ------------------------------------------------------------------- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came; it is turned away if there are too many, or if the server is closing."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's only behaves like one
        peer = transport.get_extra_info("peername")
        self.host = peer[0] if isinstance(peer, tuple) else "?"
        self.server.limits.size_buffers(transport.get_extra_info("socket"))
        if not self.server.admit(self):
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: nobody waits for its fetch any more."""
        self._stop()
        self._count_unsent(0)
        self.server.hold(-self._held_bytes)
        self._held_bytes = 0
        self.server.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        room = self._frames.room()
        self._in_room = room is not None
        return room if room is not None else self.server.scratch

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
        self._last_active_s = self.server.loop.time()
        self._came_bytes += nbytes
        if self._is_winding_up:
            return
        try:
            taken = self.server.scratch[:nbytes]
            frames = self._frames.filled(nbytes) if self._in_room else self._frames.take(taken)
        except ProtocolError as exc:
            self._fail(str(exc))
            return
        for frame in frames:  # only the first can be the large one that was waited for
            self._pending.append((frame, self._held_bytes))
            self._held_bytes = 0
        self.go_on()

    def pause_writing(self) -> None:
        """The client does not read as fast as it asks."""
        self._may_write = False
        self._count_unsent(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It has read."""
        self._may_write = True
        self._count_unsent(0)
        self.go_on()

    def _count_unsent(self, size: int) -> None:
        self.server.unsent_bytes += size - self._counted_bytes
        self._counted_bytes = size

    # ------------------------------------------------------------------- requests

    def go_on(self) -> None:
        """Dispatch what may be dispatched; read on if there is room for more."""
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while self._pending and self._may_start():
                self._start(*self._pending.popleft())
        finally:
            self._is_pumping = False
        self._read_if(not self._pending and not self._is_winding_up and self._has_bytes())

    def _may_start(self) -> bool:
        if self._is_winding_up or not self._may_write or self._exclusive or len(self._order) >= PIPELINE_MAX:
            return False
        key = int.from_bytes(self._pending[0][0][:2], "big")
        if self.work and key != ApiKey.PRODUCE:
            return False
        if key in PARKING or self.server.has_room:
            return True
        self.server.wait(self)
        return False

    def _has_bytes(self) -> bool:
        """Is there room for the large request that is coming, if one is? Then it is counted."""
        size = self._frames.large_bytes
        if size == 0 or self._held_bytes:
            return True
        if not self.server.may_hold(size):
            self.server.wait_for_bytes(self)
            return False
        self._held_bytes, self._came_bytes = size, STALL_BYTES
        self.server.hold(size)
        return True

    def _read_if(self, wanted: bool) -> None:
        if wanted == self._is_reading or self._transport.is_closing():
            return
        self._is_reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _start(self, frame: Frame, held_bytes: int) -> None:
        try:
            request = bounds.decode_short(memoryview(frame))
            handler = self._handler(request)
        except bounds.LongRequest:
            key = ApiKey(int.from_bytes(frame[:2], "big"))
            work = self._begin(key, None, len(frame), held_bytes)
            self._wait_for(work, self._serve_long(work, frame))
            return
        except ProtocolError as exc:
            self.server.hold(-held_bytes)
            self._fail(str(exc))
            return
        work = self._begin(request.key, request, len(frame), held_bytes)
        try:
            self.server.begun = work
            result = handler(self._context(work, request), request.body)
        except Exception as exc:  # noqa: BLE001  what a handler did not foresee must not stop the others
            self._done(work)
            self._broke(work, exc)
            return
        if hasattr(result, "__await__"):
            self._wait_for(work, result)
        else:
            self._answer(work, result)

    def _begin(self, key: ApiKey, request: Request | None, frame_bytes: int, held_bytes: int) -> Work:
        work = Work(self.server, key, request, self._order.begin(), frame_bytes, held_bytes)
        work.client_host = self.host
        self.work.add(work)
        if work.counts:
            self.server.in_work += 1
        if work.is_exclusive:
            self._exclusive += 1
        return work

    def _wait_for(self, work: Work, result: Any) -> None:
        work.future = asyncio.ensure_future(result)
        work.future.add_done_callback(partial(self._settled, work))

    def _context(self, work: Work, request: Request) -> RequestContext:
        return RequestContext(request, self.host, self.id, work.park, lambda: self.server.unsent_bytes)

    async def _serve_long(self, work: Work, frame: Frame) -> Encoded | None:
        """Decode, handle and encode: nothing of it takes a long turn of the loop."""
        long = self.server.long
        if work.counts:
            await long.places.acquire()
            work.has_place = True
        request = work.request = await long.decode(frame)
        if request.key is not ApiKey.PRODUCE:
            del frame  # else its records are views of it
        response = self._handler(request)(self._context(work, request), request.body)
        if hasattr(response, "__await__"):
            response = await response
        return None if response is None else Encoded(await long.encode(request, response))

    def _handler(self, request: Request) -> Handler:
        if request.key is ApiKey.API_VERSIONS:
            return lambda context, body: apis.answer_api_versions(request, self.server.handlers.keys())
        handler = self.server.handlers.get(request.key)
        if handler is None:
            raise ProtocolError(f"API {request.key.name} is not served here")
        return handler

    def _settled(self, work: Work, future: asyncio.Future[Any]) -> None:
        if future.cancelled():  # nobody wants the answer any more
            self._done(work)
            self._order.finish(work.slot, ())
        elif (error := future.exception()) is not None:
            self._done(work)
            self._broke(work, error)
        else:
            self._answer(work, future.result())
        self.go_on()
        self._finish_if_done()

    def _done(self, work: Work) -> None:
        """The request is no longer in work."""
        self.work.discard(work)
        work.park()
        if work.is_exclusive:
            self._exclusive -= 1
        if work.held_bytes:
            self.server.hold(-work.held_bytes)

    def _answer(self, work: Work, response: Any) -> None:
        """Send it, or go on with it in steps if it is a long one."""
        try:
            parts = work.parts_of(response)
        except Exception as exc:  # noqa: BLE001  a response that cannot be said is the handler's fault, as above
            self._done(work)
            self._broke(work, exc)
            return
        if not isinstance(parts, Sequence):  # a long one
            self._wait_for(work, encoding(parts))
            return
        self._done(work)
        if ready := self._order.finish(work.slot, parts):
            if not self._ready:
                self.server.send_later(self)
            self._ready += ready
            if len(self._ready) > SENT_AT_ONCE or any(len(part) > LARGE_BYTES for part in ready):
                self.send()
        self._last_active_s = now_s = self.server.loop.time()
        if self.server.observer is not None:
            self.server.observer.request_done(
                work.key, now_s - work.started_s, work.frame_bytes, sum(map(len, parts))
            )

    def send(self) -> None:
        """Give the socket what is ready."""
        ready, self._ready = self._ready, []
        if ready and not self._transport.is_closing():
            if len(ready) == 1:
                self._transport.write(ready[0])
            else:
                self._transport.writelines(ready)
            if not self._may_write:
                self._count_unsent(self._transport.get_write_buffer_size())

    def _broke(self, work: Work, error: BaseException) -> None:
        if isinstance(error, ProtocolError):
            self._fail(str(error))
            return
        request = work.request
        logger.error(
            "client=%s id=%s api=%s version=%s failed, connection closed",
            self.host,
            request.client_id if request is not None else "?",
            work.key.name,
            request.version if request is not None else "?",
            exc_info=error,
        )
        self.abort()

    # ------------------------------------------------------------------- the end

    def _fail(self, reason: str) -> None:
        """The client broke the protocol: one line, and no more of it."""
        if not self._is_winding_up:
            logger.warning("client=%s connection closed: %s", self.host, reason)
        self.abort()

    def wind_up(self) -> None:
        """Start nothing more; close once what is in work is answered and sent."""
        self._stop()
        self._read_if(False)
        self._finish_if_done()

    def _stop(self) -> None:
        """Start nothing more; what only waits for news need not wait."""
        self._is_winding_up = True
        while self._pending:
            self.server.hold(-self._pending.popleft()[1])
        for work in tuple(self.work):
            if work.key is ApiKey.FETCH and work.future is not None:
                work.future.cancel()

    def _finish_if_done(self) -> None:
        if self._is_winding_up and not self.work:
            self.send()
            self._transport.close()

    def abort(self) -> None:
        """Let go at once."""
        self._stop()
        self._transport.abort()

    def close_if_idle(self, idle_s: float) -> None:
        """Close if nothing came and nothing went for so long, and nothing is in work."""
        unsent_bytes = self._transport.get_write_buffer_size()
        now_s = self.server.loop.time()
        if unsent_bytes != self._unsent_bytes:
            self._unsent_bytes, self._last_active_s = unsent_bytes, now_s
        if not self.work and now_s - self._last_active_s >= idle_s:
            logger.debug("client=%s closed after %g idle seconds", self.host, idle_s)
            self.abort()

    def measure(self) -> None:
        """Begin to count what comes of a large request."""
        self._came_bytes = 0

    def close_if_stalled(self) -> None:
        """Close if a large request was let in, and hardly anything of it came since `measure`."""
        if self._held_bytes and self._came_bytes < STALL_BYTES:
            self._fail(f"a request of {self._held_bytes} bytes stalled while others waited")
