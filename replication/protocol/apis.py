"""The APIs and their versions; requests out of frames, responses into frames, and the reverse.

A frame is what follows the four bytes of its size. Produce and Fetch are values of `messages`, some requests values of
`small_messages`, all others entities of `kio` or `interbroker`. The handlers of a broker decide which of the APIs it
serves and advertises.
"""

from __future__ import annotations

import enum
import io
import re
import struct
import sys
from collections.abc import Callable, Collection, Generator, Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple, Self

from kio.schema.index import api_key_map

from replication.errors import ErrorCode, ProtocolError
from replication.protocol import (
    decoding,
    encoding,
    interbroker,
    kio_newer,
    kio_pieces,
    kio_reader,
    kio_requests,
    small_messages,
    told_partitions,
)
from replication.protocol.features import DEFAULT_FEATURES, Features, fields_of
from replication.protocol.kio_entities import build, encode_entity
from replication.protocol.wire import COMPACT, INT32, ITEMS_MAX, LEGACY, MALFORMED, Buffer


class Versions(NamedTuple):
    first: int
    last: int  # included


class Bound(NamedTuple):
    """The limits of one request. `items_max` counts the items of all its arrays, nested ones included."""

    bytes_max: int
    items_max: int


MIB = 1 << 20
_SMALL = Bound(MIB, 100)  # a few strings
_LOGIN = Bound(64 * 1024, 10)  # of a client that nobody knows yet
_NAMES = Bound(8 * MIB, 10_000)  # groups, members
_CONFIGS = Bound(8 * MIB, 20_000)
_TOPICS = Bound(8 * MIB, 50_000)
_PARTITIONS = Bound(16 * MIB, 50_000)  # where replicas are assigned, each of them counts, too
_ORDERS = Bound(32 * MIB, 200_000)  # the same, for the 10,000 partitions that a controller names at once


class ApiKey(enum.IntEnum):
    """An API: its number, the first and the last version that is served, and the bound of a request."""

    versions: Versions
    bound: Bound

    def __new__(cls, number: int, first: int = 0, last: int = 0, bound: Bound = _SMALL) -> Self:
        key = int.__new__(cls, number)
        key._value_ = number
        key.versions, key.bound = Versions(first, last), bound
        return key

    PRODUCE = 0, 3, 13, Bound(sys.maxsize, 30_000)  # socket.request.max.bytes is its bound
    FETCH = 1, 4, 18, Bound(16 * MIB, 30_000)
    LIST_OFFSETS = 2, 1, 11, _PARTITIONS
    METADATA = 3, 0, 13, _TOPICS
    LEADER_AND_ISR = 4, 5, 5, _ORDERS
    STOP_REPLICA = 5, 3, 3, _ORDERS
    UPDATE_METADATA = 6, 7, 7, _ORDERS
    CONTROLLED_SHUTDOWN = 7, 3, 3, _SMALL
    OFFSET_COMMIT = 8, 2, 10, Bound(16 * MIB, 20_000)
    OFFSET_FETCH = 9, 1, 10, Bound(16 * MIB, 30_000)
    FIND_COORDINATOR = 10, 0, 6, _NAMES
    JOIN_GROUP = 11, 0, 9, Bound(8 * MIB, 1000)
    HEARTBEAT = 12, 0, 4, _SMALL
    LEAVE_GROUP = 13, 0, 5, _NAMES
    SYNC_GROUP = 14, 0, 5, Bound(16 * MIB, 10_000)
    DESCRIBE_GROUPS = 15, 0, 6, _NAMES
    LIST_GROUPS = 16, 0, 5, _SMALL
    SASL_HANDSHAKE = 17, 0, 1, _LOGIN
    API_VERSIONS = 18, 0, 5, _SMALL
    CREATE_TOPICS = 19, 2, 7, _PARTITIONS
    DELETE_TOPICS = 20, 1, 6, Bound(8 * MIB, 20_000)
    DELETE_RECORDS = 21, 0, 2, Bound(8 * MIB, 20_000)
    INIT_PRODUCER_ID = 22, 0, 6, _SMALL
    OFFSET_FOR_LEADER_EPOCH = 23, 2, 4, _PARTITIONS
    ADD_PARTITIONS_TO_TXN = 24, 0, 5, _PARTITIONS
    ADD_OFFSETS_TO_TXN = 25, 0, 4, _SMALL
    END_TXN = 26, 0, 5, _SMALL
    WRITE_TXN_MARKERS = 27, 1, 2, _ORDERS
    TXN_OFFSET_COMMIT = 28, 0, 6, Bound(16 * MIB, 20_000)
    DESCRIBE_ACLS = 29, 1, 3, _SMALL
    CREATE_ACLS = 30, 1, 3, _NAMES
    DELETE_ACLS = 31, 1, 3, Bound(MIB, 1000)
    DESCRIBE_CONFIGS = 32, 1, 4, _CONFIGS
    ALTER_CONFIGS = 33, 0, 2, _CONFIGS
    DESCRIBE_LOG_DIRS = 35, 1, 5, _PARTITIONS
    SASL_AUTHENTICATE = 36, 0, 2, _LOGIN
    CREATE_PARTITIONS = 37, 0, 3, _PARTITIONS
    DELETE_GROUPS = 42, 0, 3, _NAMES
    ELECT_LEADERS = 43, 0, 2, _PARTITIONS
    INCREMENTAL_ALTER_CONFIGS = 44, 0, 1, _CONFIGS
    ALTER_PARTITION_REASSIGNMENTS = 45, 0, 1, _PARTITIONS
    LIST_PARTITION_REASSIGNMENTS = 46, 0, 0, _PARTITIONS
    OFFSET_DELETE = 47, 0, 0, Bound(8 * MIB, 20_000)
    DESCRIBE_CLIENT_QUOTAS = 48, 0, 1, _SMALL
    ALTER_CLIENT_QUOTAS = 49, 0, 1, _CONFIGS
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50, 0, 0, _NAMES
    ALTER_USER_SCRAM_CREDENTIALS = 51, 0, 0, _NAMES
    DESCRIBE_QUORUM = 55, 0, 0, _SMALL
    UPDATE_FEATURES = 57, 0, 2, _SMALL
    DESCRIBE_CLUSTER = 60, 0, 2, _SMALL
    DESCRIBE_PRODUCERS = 61, 0, 0, _PARTITIONS
    DESCRIBE_TRANSACTIONS = 65, 0, 0, _NAMES
    LIST_TRANSACTIONS = 66, 0, 2, _SMALL
    CONSUMER_GROUP_HEARTBEAT = 68, 0, 1, _TOPICS
    CONSUMER_GROUP_DESCRIBE = 69, 0, 1, _NAMES
    LIST_CONFIG_RESOURCES = 74, 0, 1, _SMALL
    DESCRIBE_TOPIC_PARTITIONS = 75, 0, 0, _TOPICS
    SHARE_GROUP_HEARTBEAT = 76, 1, 1, _TOPICS
    SHARE_GROUP_DESCRIBE = 77, 1, 1, _NAMES
    SHARE_FETCH = 78, 1, 2, Bound(16 * MIB, 100_000)  # a record that is acknowledged alone is an item
    SHARE_ACKNOWLEDGE = 79, 1, 2, Bound(16 * MIB, 100_000)
    INITIALIZE_SHARE_GROUP_STATE = 83, 0, 0, _PARTITIONS
    READ_SHARE_GROUP_STATE = 84, 0, 0, _PARTITIONS
    WRITE_SHARE_GROUP_STATE = 85, 0, 1, _PARTITIONS
    DELETE_SHARE_GROUP_STATE = 86, 0, 0, _PARTITIONS
    READ_SHARE_GROUP_STATE_SUMMARY = 87, 0, 1, _PARTITIONS
    DESCRIBE_SHARE_GROUP_OFFSETS = 90, 0, 1, _PARTITIONS
    ALTER_SHARE_GROUP_OFFSETS = 91, 0, 0, _PARTITIONS
    DELETE_SHARE_GROUP_OFFSETS = 92, 0, 0, _TOPICS


# Requests that our client sends to other Kafkas.
_ASKED = frozenset(
    {
        ApiKey.DESCRIBE_QUORUM,
    }
)
SERVED: Mapping[ApiKey, Versions] = {key: key.versions for key in ApiKey if key not in _ASKED}
INTERBROKER = frozenset(ApiKey(key) for key in interbroker.MESSAGES)
# librdkafka below 2.1 compresses only if Produce begins at 0, although it sends version 3 or later.
_ADVERTISED_FIRST = {ApiKey.PRODUCE: 0}
# Clients take the newest version that ApiVersions names: this one is for two-phase commits (KIP-939).
_TWO_PHASE = {ApiKey.INIT_PRODUCER_ID: 6}

_COPIED_BYTES_MAX = 64 * 1024  # a smaller body is sent in one piece with its header
_HEAD = struct.Struct(">hhi")
UNREADABLE = (OverflowError, *MALFORMED)  # bytes that are not such a message
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class Request(NamedTuple):
    """A decoded request. `body` is None for ApiVersions of an unknown version."""

    key: ApiKey
    version: int
    correlation_id: int
    client_id: str | None
    body: Any


# Those that Kafka has named since kio 0.9 did.
_NAMED_LATER = {93: "STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE", 94: "UNREGISTER_CONTROLLER"}


def name_of(number: int) -> str:
    """Kafka's name of an API, whether or not it is spoken here; "UNKNOWN": a later Kafka has it."""
    return _NAMED_LATER.get(number) or api_key_map.get(number, "unknown").upper()


class Identity(NamedTuple):
    """One broker of one cluster."""

    cluster_id: str | None
    node_id: int


class EncodedBody(NamedTuple):
    parts: list[Buffer]


# ---------------------------------------------------------------- server side


def decode_request(frame: memoryview, *, items_max: int = ITEMS_MAX) -> Request:
    """Decode a frame. Views of the frame in the request stay valid as long as they are held.

    Raises: ProtocolError: not a request, or not an API and version in `SERVED`; TooManyItemsError: its arrays have
    more than `items_max` items together.
    """
    try:
        number, version, correlation_id = _HEAD.unpack_from(frame)
        key, has_tags = _known(number, version)
        if key is None:
            return Request(ApiKey.API_VERSIONS, version, correlation_id, None, None)
        client_id, at = LEGACY.nullable_string(frame, _HEAD.size)  # in this form in every version
        if has_tags:
            if frame[at]:
                _, at = COMPACT.tags(frame, at)
            else:
                at += 1
        body = decode_request_body(key, version, frame, at, items_max)
        return Request(key, version, correlation_id, client_id, body)
    except UNREADABLE as exc:
        raise ProtocolError(f"not a request: {exc or type(exc).__name__}") from exc


@cache
def _known(number: int, version: int) -> tuple[ApiKey | None, bool]:
    """Return the API of a request, and whether its header has tags; None for ApiVersions of an unknown version.

    Raises: ProtocolError.
    """
    key = _KEYS.get(number)
    if key is None:
        raise ProtocolError(f"API key {number} is not served here")
    first, last = SERVED[key]
    if first <= version <= last:
        return key, is_flexible(key, version)
    if key is ApiKey.API_VERSIONS:
        return None, False
    raise ProtocolError(f"{key.name} version {version} is not served here: {first} to {last} are")


_KEYS = {key.value: key for key in SERVED}


def decode_request_body(key: ApiKey, version: int, frame: memoryview, at: int, items_max: int = ITEMS_MAX) -> Any:
    if key in _REPEATED and len(frame) - at <= min(items_max, REPEATED_BYTES_MAX):  # an item has a byte at least
        return _repeated_body(key, version, bytes(frame[at:]))
    walk = _REQUEST_WALKS.get(key)
    if walk is not None:
        return walk(version, frame, at, items_max)
    return kio_reader.read(request_class(key, version), frame, at, items_max)[0]


# Bodies that a client sends again and again with the same bytes: decoded once.
_REPEATED = frozenset({ApiKey.METADATA, ApiKey.HEARTBEAT, ApiKey.API_VERSIONS})
REPEATED_BYTES_MAX, REPEATED_MAX = 300, 5000


@lru_cache(maxsize=REPEATED_MAX)
def _repeated_body(key: ApiKey, version: int, data: bytes) -> Any:
    """Decode a body that is all of `data`. The value is frozen."""
    if key is ApiKey.METADATA:
        return small_messages.metadata_request(version, data, 0)
    return kio_reader.read(request_class(key, version), data, 0)[0]


_REQUEST_WALKS: Mapping[ApiKey, Callable[[int, memoryview, int, int], Any]] = {
    ApiKey.PRODUCE: decoding.produce_request,
    ApiKey.FETCH: decoding.fetch_request,
    ApiKey.METADATA: small_messages.metadata_request,
    ApiKey.OFFSET_COMMIT: small_messages.offset_commit_request,
}
# Those whose requests have a class in `requests`.
ENTITIES = SERVED.keys() - INTERBROKER - _REQUEST_WALKS.keys()


@cache
def is_flexible(key: ApiKey, version: int) -> bool:
    if key is ApiKey.PRODUCE:
        return version >= decoding.PRODUCE_FLEXIBLE
    if key is ApiKey.FETCH:
        return version >= decoding.FETCH_FLEXIBLE
    return bool(request_class(key, version).__flexible__)


@cache
def request_class(key: ApiKey, version: int) -> Any:
    """Return kio's class, with the fields of all versions, or ours in its form. Loading one takes about 10 ms, once."""
    if key in INTERBROKER:
        return interbroker.MESSAGES[key][0]
    cls = kio_newer.request_schema(key, version)
    return kio_requests.completed(cls) if key in ENTITIES else cls


@cache
def response_class(key: ApiKey, version: int) -> Any:
    if key in INTERBROKER:
        return interbroker.MESSAGES[key][1]
    return kio_newer.response_schema(key, version)


def encode_response(key: ApiKey, version: int, correlation_id: int, response: Any) -> list[Buffer]:
    """Return a response as buffers to send in order, its size in front.

    `response` is a value of `messages` for Produce and Fetch; for the others an entity, a mapping for `build`, or an
    EncodedBody.
    """
    return _sized(_response_header(key, version, correlation_id), _response_body(key, version, response))


def _response_header(key: ApiKey, version: int, correlation_id: int) -> bytes:
    has_tags = is_flexible(key, version) and key is not ApiKey.API_VERSIONS
    return INT32.pack(correlation_id) + b"\x00" if has_tags else INT32.pack(correlation_id)


def response_steps(
    key: ApiKey, version: int, correlation_id: int, response: Any
) -> Generator[None, None, list[Buffer]]:
    """Encode a response item by item, as `kio_pieces.write` does; not for Produce and Fetch."""
    head = _response_header(key, version, correlation_id)
    body = yield from body_steps(key, version, response)
    if len(body) <= _COPIED_BYTES_MAX:
        return [b"".join((INT32.pack(len(head) + len(body)), head, body))]
    return [INT32.pack(len(head) + len(body)) + head, body]


def body_steps(key: ApiKey, version: int, response: Any) -> Generator[None, None, memoryview]:
    """Encode the body of a response item by item, for an EncodedBody that is sent more than once."""
    out = io.BytesIO()
    yield from kio_pieces.write(response_class(key, version), response, out)
    return out.getbuffer()


def _response_body(key: ApiKey, version: int, response: Any) -> list[Buffer]:
    if isinstance(response, EncodedBody):
        return response.parts
    if key is ApiKey.PRODUCE:
        return encoding.produce_response(version, response)
    if key is ApiKey.FETCH:
        return encoding.fetch_response(version, response)
    if isinstance(response, Mapping):
        response = build(response_class(key, version), response)
    return [encode_entity(response)]


def _sized(header: bytes, body: list[Buffer]) -> list[Buffer]:
    size = len(header) + sum(map(len, body))
    return [b"".join((INT32.pack(size), header, body[0])), *body[1:]]


# ---------------------------------------------------------------- ApiVersions


def advertised(keys: Collection[ApiKey], *, has_two_phase_commit: bool = False) -> tuple[tuple[int, int, int], ...]:
    """Return (key, first, last) of the APIs that clients see: those of `keys` that are not between brokers only."""
    shown = ({*keys, ApiKey.API_VERSIONS} & SERVED.keys()) - INTERBROKER
    withheld = {} if has_two_phase_commit else _TWO_PHASE
    return tuple(
        (key, _ADVERTISED_FIRST.get(key, SERVED[key].first), withheld.get(key, SERVED[key].last + 1) - 1)
        for key in sorted(shown)
    )


def answer_api_versions(
    request: Request,
    keys: Collection[ApiKey],
    *,
    has_two_phase_commit: bool = False,
    features: Features = DEFAULT_FEATURES,
    own: Identity | None = None,
) -> tuple[int, EncodedBody]:
    """Return (version, answer): version 0 for a request of an unknown version.

    A client that means another broker than `own`, or another cluster's, is to begin anew (KIP-1242).
    """
    served = frozenset(keys), has_two_phase_commit, features
    if request.body is None:
        return 0, _api_versions(0, ErrorCode.UNSUPPORTED_VERSION, *served)
    error = ErrorCode.NONE
    if request.version >= 3:
        names = (request.body.client_software_name, request.body.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in names):
            error = ErrorCode.INVALID_REQUEST
    if request.version >= 5 and error is ErrorCode.NONE:
        meant = Identity(request.body.cluster_id, request.body.node_id)
        if (meant.cluster_id is None) != (meant.node_id == -1):
            error = ErrorCode.INVALID_REQUEST
        elif meant.cluster_id is not None and own is not None and meant != own:
            error = ErrorCode.REBOOTSTRAP_REQUIRED
    return request.version, _api_versions(request.version, error, *served)


@cache
def _api_versions(
    version: int, error: ErrorCode, keys: frozenset[ApiKey], has_two_phase_commit: bool, features: Features
) -> EncodedBody:
    is_shown = error in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION)
    shown = advertised(keys, has_two_phase_commit=has_two_phase_commit) if is_shown else ()
    rows = [{"api_key": key, "min_version": first, "max_version": last} for key, first, last in shown]
    values: dict[str, Any] = {"error_code": error, "api_keys": rows}
    if any(key == ApiKey.END_TXN for key, *_ in shown):
        values |= fields_of(features, version)
    return EncodedBody([encode_entity(build(response_class(ApiKey.API_VERSIONS, version), values))])


# ---------------------------------------------------------------- client side


def encode_request(key: ApiKey, version: int, correlation_id: int, client_id: str, request: Any) -> list[Buffer]:
    """Return a request as buffers, its size in front; `request` as in `encode_response`."""
    header = _HEAD.pack(key, version, correlation_id) + LEGACY.put_string(client_id)
    if is_flexible(key, version):
        header += b"\x00"
    return _sized(header, _request_body(key, version, request))


def _request_body(key: ApiKey, version: int, request: Any) -> list[Buffer]:
    if key is ApiKey.PRODUCE:
        return encoding.produce_request(version, request)
    if key is ApiKey.FETCH:
        return encoding.fetch_request(version, request)
    if isinstance(request, Mapping):
        request = build(request_class(key, version), request)
    if key in _TOLD:
        return [told_partitions.request(request)]
    return [encode_entity(request)]


_TOLD = (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA)


def decode_response(key: ApiKey, version: int, frame: memoryview) -> tuple[int, Any]:
    """Return (correlation id, response) of a frame that answers this API and version. Raises: ProtocolError."""
    try:
        (correlation_id,) = INT32.unpack_from(frame)
        at = INT32.size
        if is_flexible(key, version) and key is not ApiKey.API_VERSIONS:
            _, at = COMPACT.tags(frame, at)
        walk = _RESPONSE_WALKS.get(key)
        if walk is not None:
            return correlation_id, walk(version, frame, at)
        return correlation_id, kio_reader.read(response_class(key, version), frame, at)[0]
    except UNREADABLE as exc:
        raise ProtocolError(f"no {key.name} response: {exc or type(exc).__name__}") from exc


_RESPONSE_WALKS: Mapping[ApiKey, Callable[[int, Buffer, int], Any]] = {
    ApiKey.PRODUCE: decoding.produce_response,
    ApiKey.FETCH: decoding.fetch_response,
}
