"""Work: one request, from its first byte to its response, and the context of its handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from replication.network import steps
from replication.network.admission import Admission
from replication.network.long_requests import is_value
from replication.protocol import apis
from replication.protocol.apis import INTERBROKER, ApiKey, Request
from replication.protocol.wire import Buffer
from replication.security.access import NOTHING, Authorizer, Context, Need, Operation, Resource, of_each

Asked = TypeVar("Asked")
Response: TypeAlias = Mapping[str, Any]  # by the names of its fields, for every version
# Takes the work and its body, which is of its API's type; returns the response, now or later.
Handler: TypeAlias = "Callable[[Work, Any], Awaitable[Any] | Any]"
# Requests that may wait for others without an end: they never count as queued.
PARKING = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}) | INTERBROKER
# Bytes of answers that may wait for slow readers; above that, answers hold little more than a batch.
UNSENT_BYTES_MAX, ROOM_BYTES_MIN = 256 << 20, 64 << 10


class Encoded(tuple[Buffer, ...]):
    """A response, encoded: its buffers, to be sent in order. One of a single buffer may be its bytes."""

    __slots__ = ()


class Origin(Protocol):
    """Sends requests and takes their responses: a connection of a client, or the broker itself."""

    context: Context
    admission: Admission
    authorizer: Authorizer
    is_gone: bool  # nobody takes answers any more

    def answer(self, work: Work, response: Any) -> None:
        """Take the response, as a handler returns it; None: the request gets none."""

    def fail(self, work: Work, error: BaseException) -> None:
        """Take the failure of a handler: the request has no response."""


class Work:
    """A request and the context of its handler. Rarely set fields are the class's: one object is made per request.

    The handler answers it once, by what it returns, or by `reply`, `answer` or `fail`.
    """

    parts: Sequence[Buffer] | None = None  # the response, while earlier ones are not known
    future: asyncio.Future[Any] | None = None
    refused: Collection[Need] = NOTHING  # by the authorizer: their rows are answered with an error
    is_begun = False  # it was not answered before its handler returned
    is_long = False
    is_counted = False  # as queued
    is_parked = False
    has_place = False  # among the long ones
    size_bytes = 0  # of the request, while somebody has a quota
    throttle_ms = 0  # which its client is to wait, by what its handler has done

    def __init__(self, origin: Origin, request: Request, held_bytes: int, started_s: float) -> None:
        self.key, self.version, self.correlation_id, self.client_id, self.body = request
        self.origin = origin
        self.held_bytes = held_bytes
        self.started_s = started_s

    @property
    def client_host(self) -> str:
        return self.origin.context.host

    @property
    def listener(self) -> str:
        """The listener that was asked: answers have addresses of listeners of this name."""
        return self.origin.context.listener

    @property
    def connection_id(self) -> int:
        return self.origin.context.connection_id

    @property
    def is_gone(self) -> bool:
        """Is the connection closed? A request that came before may be served afterwards."""
        return self.origin.is_gone

    def room_bytes(self) -> int:
        """How much memory an answer may take, beside those that clients do not read as fast as they ask."""
        return max(ROOM_BYTES_MIN, UNSENT_BYTES_MAX - self.origin.admission.unsent_bytes)

    def refuses(self, need: Need) -> bool:
        return bool(self.refused) and need in self.refused

    def refused_of(self, needs: Callable[[Asked], Sequence[Need]], asked: Asked) -> Collection[Need]:
        """Return those of `needs(asked)` that the client does not have."""
        return self.origin.authorizer.refused(self.origin.context, needs, asked)

    def hidden(
        self, operation: Operation, resource: Resource, names: Iterable[str], instead: Need | None = None
    ) -> frozenset[str]:
        """Return those names for which the client lacks this right: an answer that lists what there is omits them."""
        needs = partial(of_each, operation, resource, instead=instead)
        return frozenset(need.name for need in self.refused_of(needs, names))

    async def hidden_of_many(
        self, operation: Operation, resource: Resource, names: Iterable[str], instead: Need | None = None
    ) -> frozenset[str]:
        """Return the same of many names, in steps."""
        found: set[str] = set()
        async for some in steps.in_steps(names):
            found |= self.hidden(operation, resource, some, instead)
        return frozenset(found)

    def may(self, need: Need) -> bool:
        return not self.refused_of(lambda need: (need,), need)

    def reply(self, found: Awaitable[Any] | Any) -> None:
        """Answer with a response, or with that of an awaitable once it is done."""
        if type(found) is Encoded or not hasattr(found, "__await__"):
            self.origin.answer(self, found)
            return
        self.begin()
        self.future = asyncio.ensure_future(found)
        self.future.add_done_callback(self._settled)

    def _settled(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled():  # nobody wants the answer any more
            self.answer(None)
        elif (error := future.exception()) is not None:
            self.fail(error)
        else:
            self.reply(future.result())

    def answer(self, response: Any) -> None:
        self.origin.answer(self, response)

    def fail(self, error: BaseException) -> None:
        self.origin.fail(self, error)

    def begin(self) -> None:
        """Count it as queued from now on, unless it is parked. More than once does no harm."""
        if not self.is_begun:
            self.is_begun = True
            if not self.is_parked and self.key not in PARKING:
                self.is_counted = True
                self.origin.admission.in_work += 1

    def park(self) -> None:
        """The request only waits from now on: make room for others. More than once does no harm."""
        self.is_parked = True
        if self.is_counted:
            self.is_counted = False
            self.origin.admission.release()
        if self.has_place:
            self.has_place = False
            self.origin.admission.long.places.release()

    def end(self) -> None:
        """Give back what it holds. More than once does no harm."""
        if self.is_begun:
            self.park()
        if self.held_bytes:
            self.origin.admission.hold(-self.held_bytes)
            self.held_bytes = 0

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


def running(loop: asyncio.AbstractEventLoop, works: Iterable[Work], begun: Work | None) -> str:
    """Say what the loop is doing, as far as that is known. From any thread: the loop may be stuck."""
    task = asyncio.current_task(loop)
    for work in works if task is not None else ():
        if work.future is task:
            return f"in {work.key.name} of client {work.client_host}"
    if task is not None or begun is None:
        return "in no request"
    return f"the last request that was begun is {begun.key.name} of client {begun.client_host}"
