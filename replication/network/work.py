"""Work: one request that a server has in work, from its first byte to its answer's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from replication.network import steps
from replication.network.long_requests import LongRequests, is_value
from replication.protocol import apis
from replication.protocol.apis import INTERBROKER, ApiKey, Request
from replication.protocol.framing import Slot
from replication.protocol.wire import Buffer

# What may wait for others without an end: it never counts as queued.
PARKING = frozenset({ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}) | INTERBROKER


class Host(Protocol):
    """What a request needs of its server."""

    loop: asyncio.AbstractEventLoop
    long: LongRequests

    def release(self) -> None:
        """A request no longer counts."""


class RequestObserver(Protocol):
    """Is told of every request that was answered."""

    def request_done(self, key: ApiKey, seconds: float, request_bytes: int, response_bytes: int) -> None:
        """From the last byte of the request to the response given to the socket."""


class Encoded(NamedTuple):
    """An answer in bytes, its size in front."""

    parts: Sequence[Buffer]


class Work:
    """A request in work. `request` is None while it is being decoded: it is a long one then."""

    __slots__ = (
        "_host",
        "client_host",
        "counts",
        "frame_bytes",
        "future",
        "has_place",
        "held_bytes",
        "is_exclusive",
        "key",
        "request",
        "slot",
        "started_s",
    )

    def __init__(
        self, host: Host, key: ApiKey, request: Request | None, slot: Slot, frame_bytes: int, held_bytes: int
    ) -> None:
        self._host = host
        self.client_host = "?"
        self.key = key
        self.request = request
        self.slot = slot
        self.frame_bytes = frame_bytes
        self.held_bytes = held_bytes
        self.counts = key not in PARKING
        self.is_exclusive = key is not ApiKey.PRODUCE or request is None  # nothing may start behind it
        self.has_place = False  # among the long ones
        self.future: asyncio.Future[Any] | None = None
        self.started_s = host.loop.time()

    def park(self) -> None:
        """It only waits from now on."""
        if self.counts:
            self.counts = False
            self._host.release()
        if self.has_place:
            self.has_place = False
            self._host.long.places.release()

    def parts_of(self, response: Any) -> Sequence[Buffer] | Iterator[None]:
        """The answer's bytes; the rest of the steps that they come in, if it is a long one."""
        request = self.request
        if response is None:
            return ()
        if isinstance(response, Encoded):
            return response.parts
        assert request is not None, "long ones come encoded"
        version = request.version
        if request.key is ApiKey.API_VERSIONS:
            version, response = response
        if is_value(request.key, response):
            return apis.encode_response(request.key, version, request.correlation_id, response)
        made = apis.response_steps(request.key, version, request.correlation_id, response)
        is_over, parts = steps.advance(made)
        if not is_over:
            return made
        found: Sequence[Buffer] = parts
        return found


async def encoding(made: Iterator[None]) -> Encoded:
    """Go on with a long answer."""
    return Encoded(await steps.run(made))


class _Connected(Protocol):
    host: str
    work: set[Work]


def running(loop: asyncio.AbstractEventLoop, connections: Iterable[_Connected], begun: Work | None) -> str:
    """What the loop is doing, as far as that is known. From any thread: the loop may be stuck."""
    task = asyncio.current_task(loop)
    for connection in connections if task is not None else ():
        for work in tuple(connection.work):
            if work.future is task:
                return f"in {work.key.name} of client {connection.host}"
    if task is not None or begun is None:
        return "in no request"
    return f"the last request that was begun is {begun.key.name} of client {begun.client_host}"
