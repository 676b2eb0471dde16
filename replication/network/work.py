"""Work: one request of a connection, from its first byte to its answer's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from replication.network import steps
from replication.network.admission import Admission
from replication.network.long_requests import is_value
from replication.protocol import apis
from replication.protocol.apis import INTERBROKER, ApiKey, Request
from replication.protocol.wire import Buffer

# (Work, body) -> response, now or later
Handler: TypeAlias = Callable[[Any, Any], Awaitable[Any] | Any]
# What may wait for others without an end: it never counts as queued.
PARKING = frozenset({ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}) | INTERBROKER
_PRODUCE = ApiKey.PRODUCE
# What may wait for slow readers; above that, answers hold little more than a batch.
UNSENT_BYTES_MAX, ROOM_BYTES_MIN = 256 << 20, 64 << 10


class Encoded(NamedTuple):
    parts: Sequence[Buffer]


class Work:
    """A request, and the context of its handler. Values that few requests change are the class's: one is made of each.

    `begin` it if it is not answered before its handler returns.
    """

    parts: Sequence[Buffer] | None = None  # the response, while earlier ones are not known
    future: asyncio.Future[Any] | None = None
    is_begun = False
    is_long = False
    is_counted = False  # as queued
    has_place = False  # among the long ones

    def __init__(
        self,
        admission: Admission,
        request: Request,
        client_host: str,
        connection_id: int,
        held_bytes: int,
        started_s: float,
    ) -> None:
        self.key, self.version, self.correlation_id, self.client_id, self.body = request
        self.client_host = client_host
        self.connection_id = connection_id
        self.held_bytes = held_bytes
        self.started_s = started_s
        self.counts = self.key not in PARKING
        self._admission = admission

    @property
    def is_exclusive(self) -> bool:
        return self.is_long or self.key is not _PRODUCE

    def room_bytes(self) -> int:
        """How much memory an answer may take, beside those that clients do not read as fast as they ask."""
        return max(ROOM_BYTES_MIN, UNSENT_BYTES_MAX - self._admission.unsent_bytes)

    def begin(self) -> None:
        self.is_begun = True
        if self.counts:
            self.is_counted = True
            self._admission.in_work += 1

    def park(self) -> None:
        """The request only waits from now on: make room for others. More than once does no harm."""
        self.counts = False
        if self.is_counted:
            self.is_counted = False
            self._admission.release()
        if self.has_place:
            self.has_place = False
            self._admission.long.places.release()

    def decoded(self, request: Request) -> None:
        self.key, self.version, self.correlation_id, self.client_id, self.body = request

    def parts_of(self, response: Any) -> Sequence[Buffer] | Iterator[None]:
        """The response's bytes; the rest of the steps that they come in, if it is a long one."""
        if response is None:
            return ()
        key, version, correlation_id = self.key, self.version, self.correlation_id
        if key is ApiKey.API_VERSIONS:
            version, response = response
        if is_value(key, response):
            return apis.encode_response(key, version, correlation_id, response)
        made = apis.response_steps(key, version, correlation_id, response)
        is_over, parts = steps.advance(made)
        if not is_over:
            return made
        found: Sequence[Buffer] = parts
        return found


async def encoding(made: Iterator[None]) -> Encoded:
    return Encoded(await steps.run(made))


def running(loop: asyncio.AbstractEventLoop, works: Sequence[Work], begun: tuple[ApiKey, str] | None) -> str:
    """What the loop is doing, as far as that is known. From any thread: the loop may be stuck."""
    task = asyncio.current_task(loop)
    for work in works if task is not None else ():
        if work.future is task:
            return f"in {work.key.name} of client {work.client_host}"
    if task is not None or begun is None:
        return "in no request"
    return f"the last request that was begun is {begun[0].name} of client {begun[1]}"
