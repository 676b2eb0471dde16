"""Counted: requests whose clients have quotas, from their handlers to their answers.

Each has a `Counted` origin, which takes the answer first: it charges the client for what the request has taken, tells
the time to wait in the answer, and has the connection read nothing for so long. A Fetch that is held back is answered
without records, which the client asks for again; so nothing is charged for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from functools import cache
from typing import Any, Self, TypeVar, cast

from replication.network.admission import Admission
from replication.network.throttle import Throttle
from replication.network.work import Encoded, Handler, Origin, Work
from replication.protocol import apis, kio_reader
from replication.protocol.apis import INTERBROKER, ApiKey, EncodedBody
from replication.protocol.kio_entities import encode_entity
from replication.protocol.messages import FetchRequest, FetchResponse, ProduceResponse
from replication.protocol.wire import INT32, Buffer
from replication.security.access import BROKER, Authorizer, Context
from replication.security.quotas import Limit, Quota

Found = TypeVar("Found")

LEADERS_FROM = 4  # AddPartitionsToTxn: leaders ask, and no clients
OF_BROKERS = INTERBROKER | {
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
}
CONSUMING = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH})
_NS_PER_PERCENT = 10_000_000  # of a second


def count(throttle: Throttle, works: Sequence[Work], endpoints: Mapping[ApiKey, Any]) -> Mapping[ApiKey, Any]:
    """Have the answers to these requests charged, but for those of brokers; return the endpoints that serve them."""
    for work in works:
        origin = work.origin
        if hasattr(origin, "mute") and origin.context.principal.kind != BROKER.kind and not _is_of_brokers(work):
            work.origin = cast("Origin", Counted(throttle, origin))
    if not throttle.limits.has(Quota.REQUESTS):
        return endpoints
    return {work.key: _timed(endpoints[work.key]) for work in works}


def _is_of_brokers(work: Work) -> bool:
    key = work.key
    if key is ApiKey.FETCH:
        request: FetchRequest = work.body
        return request.replica_id >= 0
    return key in OF_BROKERS or (key is ApiKey.ADD_PARTITIONS_TO_TXN and work.version >= LEADERS_FROM)


class Counted:
    """The origin of a request whose answer is charged; then the request has its own origin again."""

    busy_ns = 0  # of the event loop, for this request

    def __init__(self, throttle: Throttle, origin: Any) -> None:
        self._throttle = throttle
        self._origin = origin
        self._since_ns = 0  # a handler is at work

    def __getattr__(self, name: str) -> Any:
        return getattr(self._origin, name)

    @property
    def context(self) -> Context:
        found: Context = self._origin.context
        return found

    @property
    def admission(self) -> Admission:
        found: Admission = self._origin.admission
        return found

    @property
    def authorizer(self) -> Authorizer:
        found: Authorizer = self._origin.authorizer
        return found

    @property
    def is_gone(self) -> bool:
        return bool(self._origin.is_gone)

    def begin(self) -> None:
        """Count the time from now on."""
        self._since_ns = self._throttle.clock.monotonic_ns()

    def pause(self) -> None:
        if self._since_ns:
            self.busy_ns += self._throttle.clock.monotonic_ns() - self._since_ns
            self._since_ns = 0

    def answer(self, work: Work, response: Any) -> None:
        """Charge the client, and answer."""
        origin: Origin = self._origin
        work.origin = origin
        self.pause()
        try:
            response, wait_ms = _charged(self._throttle, work, response, self.busy_ns)
        except Exception as error:  # noqa: BLE001  a response that cannot be encoded is the handler's fault
            origin.fail(work, error)
            return
        if wait_ms:
            origin.admission.throttled += 1
            origin.admission.throttled_ms += wait_ms
            self._origin.mute.hold(wait_ms)
        origin.answer(work, response)

    def fail(self, work: Work, error: BaseException) -> None:
        work.origin = self._origin
        work.origin.fail(work, error)


def _charged(throttle: Throttle, work: Work, response: Any, busy_ns: int) -> tuple[Any, int]:
    """Charge a client for a request; return the answer that it gets, and how long it is to wait."""
    context, client_id, key = work.origin.context, work.client_id, work.key
    moved_ms = 0
    consumed: Limit | None = None
    size_bytes = 0
    is_given = False
    if key is ApiKey.PRODUCE:
        moved_ms = throttle.charge(
            Quota.PRODUCED, throttle.limit_of(Quota.PRODUCED, context, client_id), work.size_bytes
        )
    elif key in CONSUMING and (consumed := throttle.limit_of(Quota.CONSUMED, context, client_id)) is not None:
        response, size_bytes = _sized(work, response)
        # Some batch is larger than all that a quota allows: it goes out once nothing else has.
        is_given = key is not ApiKey.FETCH or not throttle.has_taken(Quota.CONSUMED, consumed)
        moved_ms = throttle.charge(Quota.CONSUMED, consumed, size_bytes)
    busy_ms = 0
    if response is not None:
        limit = throttle.limit_of(Quota.REQUESTS, context, client_id)
        busy_ms = throttle.charge(Quota.REQUESTS, limit, busy_ns / _NS_PER_PERCENT)
        busy_ms = min(busy_ms, throttle.window.sample_ms)
    wait_ms = max(moved_ms, busy_ms, work.throttle_ms)
    if not wait_ms:
        return response, 0
    if key is ApiKey.FETCH and not is_given:
        throttle.give_back(Quota.CONSUMED, consumed, size_bytes)
        return FetchResponse((), wait_ms), wait_ms
    return told(work, response, wait_ms), wait_ms


def _sized(work: Work, response: Any) -> tuple[Any, int]:
    """Return the answer to a Fetch or a ShareFetch, encoded if that takes no long turn, and its bytes as Kafka's."""
    if isinstance(response, EncodedBody):
        return response, INT32.size + sum(map(len, response.parts))
    if isinstance(response, FetchResponse):
        if work.is_long:
            return response, sum(len(row.records) for topic in response.topics for row in topic.partitions)
        response = Encoded(apis.encode_response(work.key, work.version, work.correlation_id, response))
    if not isinstance(response, Encoded):
        return response, 0
    header_bytes = INT32.size + apis.is_flexible(work.key, work.version)
    return response, sum(map(len, response)) - header_bytes


# ------------------------------------------------------------- the time to wait


def told(work: Work, response: Any, wait_ms: int) -> Any:
    """Return an answer of any form with its throttle_time_ms; as it is, where the version has none."""
    key, version = work.key, work.version
    if isinstance(response, ProduceResponse | FetchResponse):
        return response._replace(throttle_time_ms=wait_ms)
    if response is None:
        return None
    if key is ApiKey.API_VERSIONS:
        version, body = response  # it may be another one than the request's
        return version, EncodedBody(_with_time(key, version, body.parts, wait_ms))
    if isinstance(response, EncodedBody):
        return EncodedBody(_with_time(key, version, response.parts, wait_ms))
    if isinstance(response, bytes | Encoded):  # whole
        parts = (response,) if isinstance(response, bytes) else response
        _, decoded = apis.decode_response(key, version, memoryview(b"".join(parts))[INT32.size :])
        return told(work, decoded, wait_ms)
    if isinstance(response, Mapping):
        return {**response, "throttle_time": wait_ms}
    if is_dataclass(response) and hasattr(response, "throttle_time"):
        return replace(response, throttle_time=timedelta(milliseconds=wait_ms))  # type: ignore[type-var]
    return response


def _with_time(key: ApiKey, version: int, parts: Sequence[Buffer], wait_ms: int) -> list[Buffer]:
    """Return the body of an answer with the time, most of which begin with it."""
    cls, names = apis.response_class(key, version), _names(key, version)
    if names[0] == "throttle_time":
        return [INT32.pack(wait_ms) + bytes(parts[0][INT32.size :]), *parts[1:]]
    if "throttle_time" not in names:
        return list(parts)
    value, _ = kio_reader.read(cls, memoryview(b"".join(parts)), 0)
    return [encode_entity(replace(value, throttle_time=timedelta(milliseconds=wait_ms)))]


@cache
def _names(key: ApiKey, version: int) -> tuple[str, ...]:
    return tuple(field.name for field in fields(apis.response_class(key, version)))


# -------------------------------------------------------------- the time it takes


def _timed(endpoint: Any) -> Any:
    """Return an endpoint whose handlers note the time that they take of the event loop."""
    if hasattr(endpoint, "handle_all"):
        handle = None if endpoint.handle is None else _timed_handler(endpoint.handle)
        return endpoint._replace(handle=handle, handle_all=_timed_turn(endpoint.handle_all))
    return endpoint._replace(handle=_timed_handler(endpoint.handle))


def _timed_turn(handle_all: Callable[[Sequence[Work]], None]) -> Callable[[Sequence[Work]], None]:
    """Return the same, one request after the other: each is charged for its own time."""

    def handle(works: Sequence[Work]) -> None:
        for work in works:
            _note_time(work, lambda work=work: handle_all((work,)))  # type: ignore[misc]

    return handle


def _timed_handler(handle: Handler) -> Handler:
    def handled(work: Work, body: Any) -> Awaitable[Any] | Any:
        found = _note_time(work, lambda: handle(work, body))
        return _Timed(work, found) if asyncio.iscoroutine(found) else found

    return handled


def _note_time(work: Work, act: Callable[[], Found]) -> Found:
    counted: Any = work.origin
    if type(counted) is not Counted:
        return act()
    counted.begin()
    try:
        return act()
    finally:
        counted.pause()


class _Timed(Coroutine[Any, Any, Found]):
    """A coroutine whose steps are counted as the time of its request."""

    __slots__ = ("_rest", "_work")

    def __init__(self, work: Work, rest: Coroutine[Any, Any, Found]) -> None:
        self._work, self._rest = work, rest

    def send(self, value: Any) -> Any:
        return _note_time(self._work, lambda: self._rest.send(value))

    def throw(self, *error: Any) -> Any:
        return _note_time(self._work, lambda: self._rest.throw(*error))

    def close(self) -> None:
        self._rest.close()

    def __await__(self) -> Self:
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self.send(None)
