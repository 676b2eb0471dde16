"""The limits of one request per API: its bytes and items, and how it is decoded within them.

Honest clients stay far below these limits. Without them an item of a few bytes would become an object of some
hundred, and work: with them a request costs at most its own size and some tens of megabytes. A larger request closes
the connection. A *short* request is decoded in one turn of the event loop; others are `decode`d in a thread, piece by
piece.
"""

from __future__ import annotations

from collections.abc import Mapping

from replication.errors import TooManyItemsError
from replication.protocol import apis
from replication.protocol.apis import ApiKey, Bound, Request
from replication.protocol.one_partition import decode_one

# A short request has at most so many items, and, unless it brings records, so many bytes. Those of Produce and Fetch
# cost 1 to 2 µs each, others up to 5; to append to a partition takes some 30 µs.
SHORT_BATCHES, SHORT_PARTITIONS, SHORT_ITEMS, SHORT_BYTES = 100, 1000, 500, 64 * 1024

BOUNDS: Mapping[ApiKey, Bound] = {key: key.bound for key in apis.SERVED}


class LongRequest(Exception):  # noqa: N818  (an event, not an error)
    """The request is too long for one turn of an event loop: `decode` it elsewhere."""


def bytes_max(number: int) -> int:
    """Return how large a request with this API key may be. Decoding refuses an unknown key."""
    bound = BOUNDS.get(number)  # type: ignore[call-overload]  # (an ApiKey is an int)
    return SHORT_BYTES if bound is None else bound.bytes_max


def short_items(key: int) -> int:
    return {ApiKey.PRODUCE: SHORT_BATCHES, ApiKey.FETCH: SHORT_PARTITIONS}.get(key, SHORT_ITEMS)  # type: ignore[call-overload, no-any-return]  # (an ApiKey is an int)


# API key and version of requests whose classes are not loaded yet. That takes some 10 ms, on a busy machine much more:
# too long for a turn of an event loop. Produce, Fetch and what brokers say to each other have no such classes;
# ApiVersions is left out because it is answered in another version than it is asked in, and its classes are small.
_UNLOADED = {
    (int(key) << 16) + version
    for key, (first, last) in apis.SERVED.items()
    if key not in (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.API_VERSIONS) and key not in apis.INTERBROKER
    for version in range(first, last + 1)
}


def decode_short(frame: memoryview) -> Request:
    """Decode a short request, as `apis.decode_request`. Raises: LongRequest, ProtocolError.

    The first request of an API and version counts as long.
    """
    if (one := decode_one(frame)) is not None:
        return one
    head = int.from_bytes(frame[:4], "big")
    key = head >> 16
    if (len(frame) > SHORT_BYTES and key != ApiKey.PRODUCE and key in BOUNDS) or head in _UNLOADED:
        raise LongRequest
    try:
        return apis.decode_request(frame, items_max=short_items(key))
    except TooManyItemsError:
        raise LongRequest from None


def decode(frame: memoryview) -> Request:
    """Decode a long request: in a thread. Raises: ProtocolError."""
    head = int.from_bytes(frame[:4], "big")
    key, version = ApiKey(head >> 16), head & 0xFFFF
    if head in _UNLOADED:
        apis.request_class(key, version)
        apis.response_class(key, version)
        _UNLOADED.discard(head)
    return apis.decode_request(frame, items_max=BOUNDS[key].items_max)
