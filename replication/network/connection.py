"""Connection: the requests of one client, and their responses. What is answered is up to the handlers.

A request has two stages. *Dispatched*: its handler was called, in the order of the requests. *Responded*: what the
handler returned is known; if that is an awaitable, whenever it is done. Responses leave in the order of the requests,
those of one turn of the event loop together.

- Requests of one connection are dispatched one after the other, each once the one before it is answered, as Kafka does
  it; but Produces that follow each other at once. A handler does what must be in order before it returns its awaitable;
  the first steps of coroutines run in the order of the requests, too.
- What writes to logs and comes in one turn of the event loop is *gathered*, and handled together: see `turn`.
- A handler returns None for a request that gets no response (acks=0), and raises ProtocolError or UninformedError to
  close the connection. Any other exception closes it as well, and is logged: a failure that has a code is a response.
- A handler that only waits from here on (for replicas, say) calls `context.park()`: the request no longer counts as
  queued. Fetch, JoinGroup, SyncGroup and what brokers say to each other never count.
- When a client goes away, its parked Fetch is cancelled. Everything else runs to its end.

Bounds: size of a request; requests in work; nothing is read from a client that does not read its responses; idle
connections are closed. What all connections share of them is in `admission`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

from replication.errors import ProtocolError, UninformedError
from replication.network.admission import STALL_BYTES, Admission
from replication.network.turn import Gathered, Turn, TurnHandler
from replication.network.work import PARKING, Encoded, Handler, Work, encoding
from replication.protocol import apis, bounds
from replication.protocol.apis import ApiKey, Request
from replication.protocol.features import Features
from replication.protocol.framing import LARGE_BYTES, Frame, FrameReader
from replication.protocol.wire import Buffer

logger = logging.getLogger(__name__)

# Requests of one connection in work at a time. Idempotent producers send 5 at most; more only costs memory.
PIPELINE_MAX = 16
# What one read call takes, for all connections: they read in turn, and leave nothing in it.
SCRATCH_BYTES = 256 * 1024
SENT_AT_ONCE = 16  # answers of one connection; what is larger than `LARGE_BYTES` waits for no others
_PRODUCE = ApiKey.PRODUCE


# Told of every answered request: the seconds from its last byte to the response given to the socket.
RequestObserver: TypeAlias = Callable[[ApiKey, float], None]


class Service:
    def __init__(
        self,
        handlers: Mapping[ApiKey, Handler],
        admission: Admission,
        observer: RequestObserver | None,
        turns: Mapping[ApiKey, TurnHandler],
        features: Callable[[], Features],
    ) -> None:
        self.admission = admission
        self.observer = observer
        self.turns = {int(key): Turn(key, handler) for key, handler in turns.items()}
        keys = frozenset(handlers)
        self.handlers: dict[ApiKey, Handler] = {
            **handlers,
            ApiKey.API_VERSIONS: lambda work, body: apis.answer_api_versions(
                Request(work.key, work.version, work.correlation_id, work.client_id, body),
                keys,
                has_two_phase_commit=admission.limits.transaction_two_phase_commit_enable,
                features=features(),
            ),
        }
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.ids = itertools.count(1)
        self.begun: tuple[ApiKey, str] | None = None  # what is in work since last, and of which host


class Connection(asyncio.BufferedProtocol):
    def __init__(self, service: Service) -> None:
        self._service = service
        self._admission = admission = service.admission
        self._time = admission.loop.time
        self.id = next(service.ids)
        self._frames = FrameReader(admission.limits.socket_request_max_bytes, bounds.bytes_max)
        self._pending: deque[tuple[Frame, int]] = deque()  # (frame, bytes of it that are held)
        self._order: deque[Work] = deque()  # whose responses go before any later one
        self._ready: list[Buffer] = []  # answers that go at the end of this turn
        self.work: set[Work] = set()
        self._exclusive = 0  # requests in work behind which nothing may start
        self._gathered = 0  # requests that are handled at the end of the turn
        self._held_bytes = 0  # for the large frame that is coming
        self._came_bytes = 0  # of it, since it was measured
        self._is_reading = self._may_write = True
        self._in_room = self._is_winding_up = False
        self._last_active_s = self._time()
        self._unsent_bytes = self._counted_bytes = 0

    # ------------------------------------------------------------------- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came; it is turned away if there are too many, or if the server is closing."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's only behaves like one
        peer = transport.get_extra_info("peername")
        self.host = peer[0] if isinstance(peer, tuple) else "?"
        self._admission.limits.size_buffers(transport.get_extra_info("socket"))
        if not self._admission.admit(self):
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: nobody waits for its fetch any more."""
        self._stop()
        self._count_unsent(0)
        self._admission.hold(-self._held_bytes)
        self._held_bytes = 0
        self._admission.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._frames.room() if self._frames.large_bytes else None
        self._in_room = room is not None
        return room if room is not None else self._service.scratch

    def pause_writing(self) -> None:
        self._may_write = False
        self._count_unsent(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._may_write = True
        self._count_unsent(0)
        self.go_on()

    def _count_unsent(self, size: int) -> None:
        self._admission.unsent_bytes += size - self._counted_bytes
        self._counted_bytes = size

    # ------------------------------------------------------------------- requests

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that came, and dispatch what may be dispatched; read on if there is room for more."""
        now_s, pending = self._time(), self._pending
        if nbytes:
            frame = self._only_frame(nbytes)
            if frame is not None:
                self._begin(frame, 0, now_s)
                return
            if not self._take(nbytes, now_s):
                return
        while pending and self._may_start():
            if not self._begin(*pending.popleft(), now_s):
                return
        wanted = not (pending or self._is_winding_up) and (not self._frames.large_bytes or self._has_bytes())
        if wanted != self._is_reading:
            self._read_if(wanted)

    def go_on(self) -> None:
        self.buffer_updated(0)
        self._finish_if_done()

    def _only_frame(self, nbytes: int) -> bytearray | None:
        """The one small frame that came, as most do, if it may start at once."""
        if self._pending or self.work or self._gathered or self._in_room or self._is_winding_up or not self._may_write:
            return None
        return self._frames.only(self._service.scratch, nbytes) if self._admission.has_room else None

    def _begin(self, frame: Frame, held_bytes: int, now_s: float) -> bool:
        """Dispatch a request, or gather it; False: there will be no more."""
        turn = self._service.turns.get(frame[0] << 8 | frame[1])
        if turn is None:
            return self._dispatch(frame, held_bytes, now_s)
        self._gathered += 1
        self._exclusive += turn.key is not _PRODUCE
        turn.gather(Gathered(self, turn.key, frame, held_bytes, now_s))
        return not self._is_winding_up

    def _dispatch(self, frame: Frame, held_bytes: int, now_s: float) -> bool:
        work = self._decoded(frame, held_bytes, now_s)
        if work is None:
            return True
        service = self._service
        try:
            service.begun = work.key, self.host
            response = service.handlers[work.key](work, work.body)
        except Exception as exc:  # noqa: BLE001  what a handler did not foresee must not stop the others
            self._done(work)
            self._broke(work, exc)
            return False
        if type(response) is not Encoded and hasattr(response, "__await__"):
            self._wait_for(work, response)
        else:
            self._answer(work, response)
        return True

    def _take(self, nbytes: int, now_s: float) -> bool:
        """Take the frames that are whole with what came. False: there will be no more."""
        self._last_active_s = now_s
        self._came_bytes += nbytes
        if self._is_winding_up:
            return False
        reader = self._frames
        try:
            frames = reader.filled(nbytes) if self._in_room else reader.take(self._service.scratch[:nbytes])
        except ProtocolError as exc:
            self._fail(str(exc))
            return False
        for frame in frames:  # only the first can be the large one that was waited for
            self._pending.append((frame, self._held_bytes))
            self._held_bytes = 0
        return True

    def _may_start(self) -> bool:
        if self._is_winding_up or not self._may_write:
            return False
        frame = self._pending[0][0]
        key = frame[0] << 8 | frame[1]
        if self.work or self._gathered:
            count = len(self._order) + self._gathered
            if self._exclusive or key != _PRODUCE or count >= PIPELINE_MAX:
                return False
        if key in PARKING or self._admission.has_room:
            return True
        self._admission.wait(self)
        return False

    def _has_bytes(self) -> bool:
        """Is there room for the large request that is coming? Then it is counted."""
        if self._held_bytes:
            return True
        size = self._frames.large_bytes
        if not self._admission.may_hold(size):
            self._admission.wait_for_bytes(self)
            return False
        self._held_bytes, self._came_bytes = size, STALL_BYTES
        self._admission.hold(size)
        return True

    def _read_if(self, wanted: bool) -> None:
        if wanted == self._is_reading or self._transport.is_closing():
            return
        self._is_reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _decoded(self, frame: Frame, held_bytes: int, now_s: float) -> Work | None:
        """The request in a frame. None: it is a long one, or none that can be answered."""
        try:
            request = bounds.decode_short(memoryview(frame))
            if request.key not in self._service.handlers:
                raise ProtocolError(f"API {request.key.name} is not served here")
        except bounds.LongRequest:
            key = ApiKey(int.from_bytes(frame[:2], "big"))
            request = Request(key, -1, -1, None, None)
            work = Work(self._admission, request, self.host, self.id, held_bytes, now_s)
            work.is_long = True
            self._wait_for(work, self._serve_long(work, frame))
            return None
        except ProtocolError as exc:
            self._admission.hold(-held_bytes)
            self._fail(str(exc))
            return None
        return Work(self._admission, request, self.host, self.id, held_bytes, now_s)

    def _wait_for(self, work: Work, response: Any) -> None:
        if not work.is_begun:
            work.begin()
            self.work.add(work)
            self._order.append(work)
            if work.is_exclusive:
                self._exclusive += 1
        work.future = asyncio.ensure_future(response)
        work.future.add_done_callback(partial(self._settled, work))

    async def _serve_long(self, work: Work, frame: Frame) -> Encoded | None:
        """Decode, handle and encode: nothing of it takes a long turn of the loop."""
        long = self._admission.long
        if work.is_counted:
            await long.places.acquire()
            work.has_place = True
        request = await long.decode(frame)
        work.decoded(request)
        if request.key is not ApiKey.PRODUCE:
            del frame  # else its records are views of it
        handler = self._service.handlers.get(request.key)
        if handler is None:
            raise ProtocolError(f"API {request.key.name} is not served here")
        response = handler(work, request.body)
        if hasattr(response, "__await__"):
            response = await response
        if response is None or type(response) is Encoded:
            return response
        return Encoded(await long.encode(request, response))

    def _settled(self, work: Work, future: asyncio.Future[Any]) -> None:
        if future.cancelled():  # nobody wants the answer any more
            self._done(work)
            self._in_order(work, ())
        elif (error := future.exception()) is not None:
            self._done(work)
            self._broke(work, error)
        else:
            self._answer(work, future.result())
        self.go_on()

    def _done(self, work: Work) -> None:
        if work.is_begun:
            self.work.discard(work)
            work.park()
            if work.is_exclusive:
                self._exclusive -= 1
        if work.held_bytes:
            self._admission.hold(-work.held_bytes)
            work.held_bytes = 0

    def _answer(self, work: Work, response: Any) -> None:
        """Send it with the others of this turn, or go on with it in steps if it is a long one."""
        if type(response) is Encoded:
            parts = response.parts
        else:
            try:
                found = work.parts_of(response)
            except Exception as exc:  # noqa: BLE001  a response that cannot be said is the handler's fault, as above
                self._done(work)
                self._broke(work, exc)
                return
            if not isinstance(found, list | tuple):  # a long one
                self._wait_for(work, encoding(cast("Any", found)))
                return
            parts = found
        if work.is_begun or work.held_bytes:
            self._done(work)
        if work.is_begun:
            parts = self._in_order(work, parts)
        elif self._order:
            self._order.append(work)
            work.parts, parts = parts, ()
        if parts:
            self._send(parts)
        self._last_active_s = now_s = self._time()
        if self._service.observer is not None:
            self._service.observer(work.key, now_s - work.started_s)

    # ------------------------------------------------------------------- handled together: see `turn.Asker`

    def dispatch(self, request: Gathered) -> None:
        """Have the handler of single requests do it."""
        self._gathered -= 1
        self._exclusive -= request.key is not _PRODUCE
        held_bytes, request.held_bytes = request.held_bytes, 0
        self._dispatch(request.frame, held_bytes, request.started_s)
        self._after_gathered()

    def answer(self, request: Gathered, data: Buffer) -> None:
        """Send the response behind those of earlier requests."""
        self._gathered -= 1
        self._exclusive -= request.key is not _PRODUCE
        if request.held_bytes:
            self._admission.hold(-request.held_bytes)
            request.held_bytes = 0
        transport = self._transport
        if self._order:
            work = self._work_of(request, 0, 0)
            work.parts = (data,)
            self._order.append(work)
        elif self._ready:
            self._send((data,))
        elif not transport.is_closing():
            transport.write(data)
            if not self._may_write:
                self._count_unsent(transport.get_write_buffer_size())
        self._last_active_s = now_s = self._time()
        if self._service.observer is not None:
            self._service.observer(request.key, now_s - request.started_s)
        self._after_gathered()

    def keep(self, request: Gathered, version: int, correlation_id: int, *, is_queued: bool = False) -> Work:
        """Note that the response follows: it is the argument of `answer_kept`."""
        self._gathered -= 1
        work = self._work_of(request, version, correlation_id)
        work.counts = is_queued
        work.begin()
        self.work.add(work)
        self._order.append(work)
        self._after_gathered()
        return work

    def answer_kept(self, work: Work, response: Any) -> None:
        """Send the response, or what follows from it; once for each that is kept."""
        self._answer(work, response)
        if self._pending or self._is_winding_up:
            self.go_on()

    def broke(self, request: Gathered, error: Exception) -> None:
        """Close, since nobody has foreseen this."""
        self._admission.hold(-request.held_bytes)
        request.held_bytes = self._gathered = 0
        if not self._is_winding_up:
            logger.error("client=%s api=%s failed, connection closed", self.host, request.key.name, exc_info=error)
        self.abort()

    def _work_of(self, request: Gathered, version: int, correlation_id: int) -> Work:
        named = Request(request.key, version, correlation_id, None, None)
        held_bytes, request.held_bytes = request.held_bytes, 0
        return Work(self._admission, named, self.host, self.id, held_bytes, request.started_s)

    def _after_gathered(self) -> None:
        if not self._gathered and (self._pending or self._is_winding_up):
            self._admission.loop.call_soon(self.go_on)

    def _in_order(self, work: Work, parts: Sequence[Buffer]) -> Sequence[Buffer]:
        """Return the buffers that may leave now; `parts` is empty for a request without a response."""
        work.parts = parts
        ready: list[Buffer] = []
        while self._order and self._order[0].parts is not None:
            ready += self._order.popleft().parts or ()
        return ready

    def _send(self, parts: Sequence[Buffer]) -> None:
        """At the end of this turn, with others: waking a client costs more than all the rest of a small answer."""
        if not self._ready:
            self._admission.send_later(self)
        self._ready += parts
        if len(self._ready) > SENT_AT_ONCE or max(map(len, parts)) > LARGE_BYTES:
            self.send()

    def send(self) -> None:
        ready, self._ready = self._ready, []
        transport = self._transport
        if ready and not transport.is_closing():
            if len(ready) == 1:
                transport.write(ready[0])
            else:
                transport.writelines(ready)
            if not self._may_write:
                self._count_unsent(self._transport.get_write_buffer_size())

    def _broke(self, work: Work, error: BaseException) -> None:
        if isinstance(error, ProtocolError):
            self._fail(str(error))
            return
        who = "client=%s id=%s api=%s version=%s", self.host, work.client_id, work.key.name, work.version
        if isinstance(error, UninformedError):
            logger.info(f"{who[0]} connection closed: %s", *who[1:], error)
        else:
            logger.error(f"{who[0]} failed, connection closed", *who[1:], exc_info=error)
        self.abort()

    # ------------------------------------------------------------------- the end

    def _fail(self, reason: str) -> None:
        """The client broke the protocol: one line, and no more of it."""
        if not self._is_winding_up:
            self._admission.misused += 1
            logger.warning("client=%s connection closed: %s", self.host, reason)
        self.abort()

    def wind_up(self) -> None:
        self._stop()
        self._read_if(False)
        self._finish_if_done()

    def _stop(self) -> None:
        """Start nothing more; what only waits for news need not wait."""
        self._is_winding_up = True
        while self._pending:
            self._admission.hold(-self._pending.popleft()[1])
        for work in tuple(self.work):
            if work.key is ApiKey.FETCH and work.future is not None:
                work.future.cancel()

    def _finish_if_done(self) -> None:
        if self._is_winding_up and not self.work and not self._gathered:
            self.send()
            self._transport.close()

    def abort(self) -> None:
        self._stop()
        self._transport.abort()

    def close_if_idle(self, idle_s: float) -> None:
        unsent_bytes = self._transport.get_write_buffer_size()
        now_s = self._time()
        if unsent_bytes != self._unsent_bytes:
            self._unsent_bytes, self._last_active_s = unsent_bytes, now_s
        if not self.work and now_s - self._last_active_s >= idle_s:
            logger.debug("client=%s closed after %g idle seconds", self.host, idle_s)
            self.abort()

    def measure(self) -> None:
        self._came_bytes = 0

    def close_if_stalled(self) -> None:
        if self._held_bytes and self._came_bytes < STALL_BYTES:
            self._fail(f"a request of {self._held_bytes} bytes stalled while others waited")
