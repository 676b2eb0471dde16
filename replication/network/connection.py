"""Connection: the transport of one client: bytes from its socket into frames, responses to it.

The order of requests and responses is `exchange`'s, what a request is answered is up to `pipeline` and its handlers.
When a client goes away, its parked Fetch is cancelled. Everything else runs to its end.

Bounds: size of a request; open requests; nothing is read from a client that does not read its responses; idle
connections are closed. All connections share `admission`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from typing import Any, cast

from replication.errors import ProtocolError, UninformedError
from replication.network.admission import STALL_BYTES, Admission
from replication.network.exchange import Exchange
from replication.network.gate import FRAME_BYTES_MAX, LOGIN_S, Gate, Named
from replication.network.mute import Mute
from replication.network.outbox import Outbox, PacedOutbox
from replication.network.pipeline import Pipeline, encode_long
from replication.network.work import PARKING, Encoded, Work, encoding
from replication.protocol import bounds
from replication.protocol.apis import ApiKey, Request
from replication.protocol.framing import Frame, FrameReader
from replication.protocol.wire import INT32, Buffer
from replication.security.access import ANONYMOUS, Authorizer, Context, Principal

logger = logging.getLogger(__name__)

# The buffer of one read call, for all connections: they read in turn, and leave nothing in it.
SCRATCH_BYTES = 256 * 1024
LOGIN_BYTES_MIN = 2  # of a message of a login, which may come as it is
LOGIN_READ_BYTES = 4096  # before a login: few frames are in memory at a time, however small they are
LOGINS = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})


class Service:
    """Shared by the connections of one server."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.ids = itertools.count(1)


class Connection(Named):
    """A client at a listener where nobody needs a name. `principal`: whose certificate it showed."""

    is_gone = False

    def __init__(self, service: Service, gate: Gate, principal: Principal = ANONYMOUS) -> None:
        super().__init__(gate)
        self._principal = principal
        self._pipeline = pipeline = service.pipeline
        self.admission: Admission = pipeline.admission
        self.authorizer: Authorizer = pipeline.authorizer
        self._scratch = service.scratch
        self._time = self.admission.loop.time
        self._id = next(service.ids)
        self._frames = FrameReader(self.admission.limits.socket_request_max_bytes, bounds.bytes_max)
        self._exchange = Exchange()
        self._held_bytes = 0  # for the large frame that is coming
        self._came_bytes = 0  # of it, since it was measured
        self._is_reading = True
        self.mute = Mute(self.admission.loop, self.go_on)
        self._in_room = self._is_winding_up = self._is_broken = False
        self._last_active_s = self._time()
        self._unsent_bytes = 0

    def works(self) -> Sequence[Work]:
        """Return the open requests."""
        return cast("Sequence[Work]", tuple(self._exchange.open))

    # ------------------------------------------------------------------- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came; it is turned away if there are too many, or if the server is closing."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's only behaves like one
        if self._gate.tls is None:
            self._outbox = Outbox(self.admission, self._transport)
        else:
            self._outbox = PacedOutbox(self.admission, self._transport, self.go_on)
        peer = transport.get_extra_info("peername")
        self.context = Context(peer[0] if isinstance(peer, tuple) else "?", self._id, self._principal, self._gate.name)
        self.admission.limits.size_buffers(transport.get_extra_info("socket"))
        if not self.admission.admit(self):
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: nobody waits for its fetch any more."""
        self.is_gone = True
        self.begin_nothing()
        self._outbox.count(0)
        self.admission.hold(-self._held_bytes)
        self._held_bytes = 0
        self.admission.forget(self)
        self.admission.on_closed(self._id)

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._frames.room() if self._frames.large_bytes else None
        self._in_room = room is not None
        return room if room is not None else self._scratch

    def pause_writing(self) -> None:
        self._outbox.pause()

    def resume_writing(self) -> None:
        self._outbox.resume()
        self.go_on()

    # ------------------------------------------------------------------- requests

    def buffer_updated(self, nbytes: int) -> None:
        """Take what came, and begin the requests that may begin; read on if there is room."""
        now_s, exchange = self._time(), self._exchange
        if nbytes:
            frame = self._only_frame(nbytes)
            if frame is not None:
                self._last_active_s = now_s
                self._begin(frame, 0, now_s)
                return
            if not self._take(nbytes, now_s):
                return
        while self._may_begin():
            self._begin(*exchange.waiting.popleft(), now_s)
        wanted = not (exchange.waiting or self._is_winding_up or self.mute.is_on)
        wanted = wanted and (not self._frames.large_bytes or self._has_bytes())
        if wanted != self._is_reading:
            self._read_if(wanted)

    def go_on(self) -> None:
        self.buffer_updated(0)
        self._finish_if_done()

    def _only_frame(self, nbytes: int) -> bytearray | None:
        """The one small frame that came, as most do, if it may begin at once."""
        exchange = self._exchange
        if exchange.open or exchange.waiting or self._in_room or self._is_winding_up or not self._outbox.may_write:
            return None
        if self.mute.is_on:
            return None
        return self._frames.only(self._scratch, nbytes) if self.admission.has_room else None

    def _take(self, nbytes: int, now_s: float) -> bool:
        """Take the frames that are whole with what came. False: there will be no more."""
        self._last_active_s = now_s
        self._came_bytes += nbytes
        if self._is_winding_up:
            return False
        reader = self._frames
        try:
            frames = reader.filled(nbytes) if self._in_room else reader.take(self._scratch[:nbytes])
        except ProtocolError as exc:
            self._misused(str(exc))
            return False
        for frame in frames:  # only the first can be the large one that was waited for
            self._exchange.waiting.append((frame, self._held_bytes))
            self._held_bytes = 0
        return True

    def _may_begin(self) -> bool:
        if self._is_winding_up or self.mute.is_on or not self._outbox.may_write:
            return False
        if (key := self._exchange.next_key()) is None:
            return False
        if key in PARKING or self.admission.has_room:
            return True
        self.admission.wait(self)
        return False

    def _begin(self, frame: Frame, held_bytes: int, now_s: float) -> None:
        """Decode a request, and give it to the pipeline."""
        pipeline = self._pipeline
        try:
            request = bounds.decode_short(memoryview(frame))
            if request.key not in pipeline.endpoints:
                raise ProtocolError(f"API {request.key.name} is not served here")
        except bounds.LongRequest:
            key = ApiKey(int.from_bytes(frame[:2], "big"))
            work = Work(self, Request(key, -1, -1, None, None), held_bytes, now_s)
            self._exchange.begin(work)
            pipeline.serve_long(work, frame)
        except ProtocolError as exc:
            self.admission.hold(-held_bytes)
            self._misused(str(exc))
        else:
            work = Work(self, request, held_bytes, now_s)
            self._exchange.begin(work)
            pipeline.gather(work, len(frame))

    def _has_bytes(self) -> bool:
        """Is there room for the large request that is coming? Then it is counted."""
        if self._held_bytes:
            return True
        size = self._frames.large_bytes
        if not self.admission.may_hold(size):
            self.admission.wait_for_bytes(self)
            return False
        self._held_bytes, self._came_bytes = size, STALL_BYTES
        self.admission.hold(size)
        return True

    def _read_if(self, wanted: bool) -> None:
        if wanted == self._is_reading or self._transport.is_closing():
            return
        self._is_reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # ------------------------------------------------------------------- responses

    def answer(self, work: Work, response: Any) -> None:
        """Send the response with the others of this turn, or go on with it in steps if it is a long one."""
        parts: Sequence[Buffer]
        if type(response) is bytes:
            parts = (response,)
        elif type(response) is Encoded:
            parts = response
        elif work.is_long and response is not None:
            work.reply(encode_long(self.admission.long, work, response))
            return
        else:
            try:
                found = work.parts_of(response)
            except Exception as exc:  # noqa: BLE001  a response that cannot be encoded is the handler's fault
                self.fail(work, exc)
                return
            if not isinstance(found, list | tuple):  # a long one
                work.reply(encoding(cast("Any", found)))
                return
            parts = found
        if work.is_begun or work.held_bytes:
            work.end()
        exchange = self._exchange
        ready = exchange.respond(work, parts)
        if ready:
            self._outbox.add(ready, is_last=not exchange.open and not exchange.waiting)
        self._last_active_s = now_s = self._time()
        if self._pipeline.observer is not None:
            self._pipeline.observer(work.key, now_s - work.started_s)
        if exchange.waiting or self._is_winding_up:
            self.go_on()

    def fail(self, work: Work, error: BaseException) -> None:
        """Close, since the request cannot be answered; log what no handler foresaw."""
        work.end()
        if isinstance(error, ProtocolError):
            self._misused(str(error))
            return
        who = "client=%s id=%s api=%s version=%s", self.context.host, work.client_id, work.key.name, work.version
        if isinstance(error, UninformedError):
            logger.info(f"{who[0]} connection closed: %s", *who[1:], error)
        elif not self._is_broken:  # one line, also where several requests fail together
            self._is_broken = True
            logger.error(f"{who[0]} failed, connection closed", *who[1:], exc_info=error)
        self.abort()

    # ------------------------------------------------------------------- the end

    def _misused(self, reason: str) -> None:
        """The client broke the protocol: one line, and no more of it."""
        if not self._is_winding_up:
            self.admission.misused += 1
            logger.warning("client=%s connection closed: %s", self.context.host, reason)
        self.abort()

    def wind_up(self) -> None:
        self.begin_nothing()
        self._read_if(False)
        self._finish_if_done()

    def begin_nothing(self) -> None:
        """See `Named`; what only waits for news need not wait."""
        self._is_winding_up = True
        self.mute.end()
        while self._exchange.waiting:
            self.admission.hold(-self._exchange.waiting.popleft()[1])
        for work in self.works():
            if work.key is ApiKey.FETCH and work.future is not None:
                work.future.cancel()

    def _finish_if_done(self) -> None:
        if self._is_winding_up and not self._exchange.open:
            self._outbox.send()
            if self._outbox.has_all_gone:
                self._transport.close()

    def abort(self) -> None:
        self.begin_nothing()
        self._transport.abort()

    def close_if_idle(self, idle_s: float) -> None:
        unsent_bytes = self._transport.get_write_buffer_size()
        now_s = self._time()
        if unsent_bytes != self._unsent_bytes:
            self._unsent_bytes, self._last_active_s = unsent_bytes, now_s
        if not self._exchange.open and now_s - self._last_active_s >= idle_s:
            logger.debug("client=%s closed after %g idle seconds", self.context.host, idle_s)
            self.abort()

    def measure(self) -> None:
        self._came_bytes = 0

    def close_if_stalled(self) -> None:
        if self._held_bytes and self._came_bytes < STALL_BYTES:
            self._misused(f"a request of {self._held_bytes} bytes stalled while others waited")


class LoginConnection(Connection):
    """A client at a listener where everybody logs in. Nothing else is served before, or once a login has ended.

    Bounds until then: frames of FRAME_BYTES_MAX, LOGIN_S in all, and the number of such connections. A client that
    begins with version 0 of SaslHandshake sends its messages as they are, without a request around them.
    """

    _is_raw = False
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._frames = FrameReader(FRAME_BYTES_MAX, bytes_min=LOGIN_BYTES_MIN)
        self._scratch, self._shared = self._scratch[:LOGIN_READ_BYTES], self._scratch
        super().connection_made(transport)
        if not self._transport.is_closing() and self.admission.meet(self):
            self._deadline = self.admission.loop.call_later(LOGIN_S, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_no_stranger()
        super().connection_lost(exc)

    def logged_in(self) -> None:
        super().logged_in()
        if self.login.principal is not None and self._is_no_stranger():
            self._frames.allow(self.admission.limits.socket_request_max_bytes, bounds.bytes_max)
            self._scratch = self._shared

    def _is_no_stranger(self) -> bool:
        """Note that its client is known, or gone. False: that was noted before."""
        if self._deadline is not None:
            self._deadline.cancel()
        return self.admission.part(self)

    def _late(self) -> None:
        if self.admission.part(self):
            self._misused(f"no login within {LOGIN_S:g} s")

    def _begin(self, frame: Frame, held_bytes: int, now_s: float) -> None:
        if self._is_raw:
            self._take_message(bytes(frame))
            return
        login = self.login
        key = int.from_bytes(frame[:2], "big")
        if key not in LOGINS:
            if login.principal is None or now_s >= login.ends_s:
                self.admission.hold(-held_bytes)
                ended = "its login has ended" if login.principal is not None else "it has not logged in"
                self._misused(f"API key {key} is refused: {ended}")
                return
        elif key == ApiKey.SASL_HANDSHAKE and not int.from_bytes(frame[2:4], "big") and login.principal is None:
            self._is_raw = True  # from the next frame on; the pipeline answers this one
        super()._begin(frame, held_bytes, now_s)

    def _take_message(self, message: bytes) -> None:
        """Answer a message of a mechanism that came as it is: with another one, or by closing."""
        login = self.login
        if not login.mechanism:
            self._misused("a message of a login that has not begun")
            return
        found = login.step(message)
        if found.error:
            self.begin_nothing()
            logger.warning("client=%s login refused (%s)%s", self.context.host, found.state.mechanism, login.why)
            self.admission.loop.call_later(self._gate.failure_delay_ms / 1000, self.abort)
            return
        if login.principal is not None:
            self._is_raw = False
            self.logged_in()
        self._outbox.add([INT32.pack(len(found.answer)) + found.answer], is_last=True)
        self.go_on()
