"""Pipeline: the one door. Every request, of every client and of the broker itself, passes `serve`.

The requests of one turn of the event loop are gathered and served together: a log takes ten small batches in one write
for little more than one of them, and the answers to a client are one write to its socket.

A request passes, in this order: its bounds and its turn on the connection (`connection`, `exchange`, `admission`), the
authorizer over the needs that its API declares, and the handler, for what is granted: `refusals` answers the rest
with the API's own error. Clients that have quotas are charged with the answer (`counted`). No request that no
authorizer saw reaches a handler: an `Endpoint` cannot be made without its needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from replication.errors import ProtocolError
from replication.network import counted, gate, refusals
from replication.network.admission import Admission
from replication.network.long_requests import LongRequests
from replication.network.steps import begin, in_steps
from replication.network.throttle import Throttle
from replication.network.work import Encoded, Handler, Work
from replication.protocol import apis
from replication.protocol.apis import ApiKey, Identity, Request
from replication.protocol.features import Features
from replication.protocol.framing import Frame
from replication.security.access import ALLOW_ALL, BROKER, OWN_CONNECTION, Authorizer, Context, Need

# Gathered requests take memory, and serving them keeps the loop: with more, they are served at once.
BYTES_MAX, REQUESTS_MAX = 1024 * 1024, 200
ASKED_AT_ONCE = 200  # needs of a long request

# Answers, each once, the requests of one turn, in their order.
TurnHandler: TypeAlias = Callable[[Sequence[Work]], None]
# Called for every answered request: the seconds from its last byte to the response given to the socket.
RequestObserver: TypeAlias = Callable[[ApiKey, float], None]

OWN = Context("localhost", OWN_CONNECTION, BROKER, "")  # of the broker itself

Needs: TypeAlias = Callable[[Work], Sequence[Need]]


class Endpoint(NamedTuple):
    """An API as a broker serves it. `needs` names the rights that a request takes, one a row.

    A handler returns a response, or an awaitable of one; None for a request that gets none (acks=0). It raises
    ProtocolError or UninformedError to close the connection. Any other exception closes it as well, and is logged. It
    does what must be in order before it returns its awaitable; the first steps of coroutines run in the order of the
    requests, too. A handler that only waits from here on calls `park`.
    """

    needs: Needs
    handle: Handler
    answers_refused: bool = False  # the handler does, by `Work.refuses`


class TurnEndpoint(NamedTuple):
    """The same for an API whose requests of one turn are handled together.

    `handle` gets what is granted of a request that is refused in part. None: `handle_all` answers such requests, too.
    """

    needs: Needs
    handle_all: TurnHandler
    handle: Handler | None = None

    @property
    def answers_refused(self) -> bool:
        return self.handle is None


Endpoints: TypeAlias = Mapping[ApiKey, Endpoint | TurnEndpoint]


def no_needs(work: Work) -> Sequence[Need]:
    """For an API that everybody may use."""
    return ()


class Pipeline:
    """Belongs to the event loop."""

    def __init__(  # noqa: PLR0913  each is a part of the door
        self,
        endpoints: Endpoints,
        admission: Admission,
        *,
        features: Callable[[], Features],
        own: Identity | None = None,
        authorizer: Authorizer = ALLOW_ALL,
        observer: RequestObserver | None = None,
        throttle: Throttle | None = None,
    ) -> None:
        self.admission = admission
        self.throttle = throttle or Throttle()
        self.authorizer = authorizer
        self.observer = observer
        self.begun: Work | None = None  # the last one
        keys = frozenset((*endpoints, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE))
        self.endpoints: dict[ApiKey, Endpoint | TurnEndpoint] = {
            **endpoints,
            ApiKey.API_VERSIONS: Endpoint(
                no_needs,
                lambda work, body: apis.answer_api_versions(
                    Request(work.key, work.version, work.correlation_id, work.client_id, body),
                    keys,
                    has_two_phase_commit=admission.limits.transaction_two_phase_commit_enable,
                    features=features(),
                    own=own,
                ),
            ),
            ApiKey.SASL_HANDSHAKE: Endpoint(no_needs, gate.handshake),
            ApiKey.SASL_AUTHENTICATE: Endpoint(no_needs, gate.authenticate),
        }
        self._gathered: list[Work] = []
        self._size_bytes = 0
        self._is_serving = False

    # ------------------------------------------------------------------ ways in

    def gather(self, work: Work, size_bytes: int) -> None:
        """Serve it at the end of this turn of the loop, some microseconds away."""
        if not self._gathered:
            self.admission.loop.call_soon(self._end_turn)
        self._gathered.append(work)
        if self.throttle.is_on:
            work.size_bytes = size_bytes
        self.admission.gathered += 1
        self._size_bytes += size_bytes
        if (len(self._gathered) >= REQUESTS_MAX or self._size_bytes >= BYTES_MAX) and not self._is_serving:
            self._end_turn()

    def serve_long(self, work: Work, frame: Frame) -> None:
        """Decode a long request aside, then serve it."""
        work.is_long = True
        work.size_bytes = len(frame)
        work.begin()
        work.future = asyncio.ensure_future(self._decode(work, frame))
        work.future.add_done_callback(partial(_check_decoded, work))

    async def call(self, key: ApiKey, body: Any, correlation_id: int = 0) -> Any:
        """Serve a request of the broker itself; return its response as the handler made it."""
        return await self._response(OWN, Request(key, key.versions.last, correlation_id, None, body))

    async def serve_again(self, work: Work) -> Any:
        """Serve a request whose handler has only waited; return its response as the handler made it."""
        request = Request(work.key, work.version, work.correlation_id, work.client_id, work.body)
        return await self._response(work.origin.context, request)

    async def _response(self, context: Context, request: Request) -> Any:
        inside = _Inside(context, self.admission, self.authorizer)
        self.serve((Work(inside, request, 0, 0.0),))
        return await inside.response

    def _end_turn(self) -> None:
        works, self._gathered, self._size_bytes = self._gathered, [], 0
        if works:
            self.admission.gathered = 0
            self.serve(works)
            self.admission.wake()

    async def _decode(self, work: Work, frame: Frame) -> None:
        long = self.admission.long
        if work.is_counted:
            await long.places.acquire()
            work.has_place = True
        work.decoded(await long.decode(frame))
        if work.key not in self.endpoints:
            raise ProtocolError(f"API {work.key.name} is not served here")
        await self._ask_ahead(work)
        self.serve((work,))

    async def _ask_ahead(self, work: Work) -> None:
        """Have the authorizer look at the needs of a long request in steps: it knows most of them in `serve` then."""
        if self.authorizer.has_rights:
            async for some in in_steps(self.endpoints[work.key].needs(work), ASKED_AT_ONCE):
                work.refused_of(_same, some)

    # -------------------------------------------------------------------- the door

    def serve(self, works: Sequence[Work]) -> None:  # noqa: C901  the one loop over all requests
        """Authorize and handle these requests, of APIs in `endpoints`, in their order."""
        self._is_serving = self.admission.is_serving = True
        refused = self.authorizer.refused
        endpoints: Mapping[ApiKey, Endpoint | TurnEndpoint] = self.endpoints
        if self.throttle.is_on:
            endpoints = counted.count(self.throttle, works, endpoints)
        together: dict[ApiKey, list[Work]] = {}
        for work in works:
            endpoint = endpoints[work.key]
            try:
                if found := refused(work.origin.context, endpoint.needs, work):
                    work.refused = found
                    if (handler := endpoint.handle) is not None and not endpoint.answers_refused:
                        work.reply(begin(refusals.answer(work, endpoint.needs, handler)))
                        continue
                if type(endpoint) is Endpoint:
                    self.begun = work
                    work.reply(endpoint.handle(work, work.body))
                elif work.key in together:
                    together[work.key].append(work)
                else:
                    together[work.key] = [work]
            except Exception as error:  # noqa: BLE001  what a handler did not foresee must not stop the others
                work.fail(error)
        for key, group in together.items():
            self.begun = group[0]
            try:
                endpoints[key].handle_all(group)  # type: ignore[union-attr]  # as sorted above
            except Exception as error:  # noqa: BLE001  as above
                for work in group:
                    work.fail(error)
        self._is_serving = self.admission.is_serving = False
        self.admission.send()


def _same(needs: Sequence[Need]) -> Sequence[Need]:
    return needs


def _check_decoded(work: Work, decoded: asyncio.Future[None]) -> None:
    """Close the connection of a long request that is none; what is cancelled meanwhile gets no response."""
    if decoded.cancelled():
        work.answer(None)
    elif (error := decoded.exception()) is not None:
        work.fail(error)


async def encode_long(long: LongRequests, work: Work, response: Any) -> Encoded:
    """Encode the response to a long request: nothing of it takes a long turn of the loop."""
    named = Request(work.key, work.version, work.correlation_id, None, None)
    return Encoded(await long.encode(named, response))


class _Inside:
    """The origin of one request whose response this process awaits."""

    is_gone = False

    def __init__(self, context: Context, admission: Admission, authorizer: Authorizer) -> None:
        self.context = context
        self.admission = admission
        self.authorizer = authorizer
        self.response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answer(self, work: Work, response: Any) -> None:
        work.end()
        if not self.response.done():
            self.response.set_result(response)

    def fail(self, work: Work, error: BaseException) -> None:
        work.end()
        if not self.response.done():
            self.response.set_exception(error)
