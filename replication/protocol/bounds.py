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

# A short request has at most so many items, and, unless it brings records, so many bytes. Those of Produce and Fetch
# cost 1 to 2 µs each, others up to 5.
SHORT_PARTITIONS, SHORT_ITEMS, SHORT_BYTES = 1000, 500, 64 * 1024

BOUNDS: Mapping[ApiKey, Bound] = {key: key.bound for key in ApiKey}


class LongRequest(Exception):  # noqa: N818  (an event, not an error)
    """The request is too long for one turn of an event loop: `decode` it elsewhere."""


def bytes_max(number: int) -> int:
    """Return how large a request with this API key may be. Decoding refuses an unknown key."""
    bound = BOUNDS.get(number)  # type: ignore[call-overload]  # (an ApiKey is an int)
    return SHORT_BYTES if bound is None else bound.bytes_max


def short_items(key: int) -> int:
    return SHORT_PARTITIONS if key in (ApiKey.PRODUCE, ApiKey.FETCH) else SHORT_ITEMS


def decode_short(frame: memoryview) -> Request:
    """Decode a short request, as `apis.decode_request`. Raises: LongRequest, ProtocolError."""
    key = int.from_bytes(frame[:2], "big")
    if len(frame) > SHORT_BYTES and key != ApiKey.PRODUCE and key in BOUNDS:
        raise LongRequest
    try:
        return apis.decode_request(frame, items_max=short_items(key))
    except TooManyItemsError:
        raise LongRequest from None


def decode(frame: memoryview) -> Request:
    bound = BOUNDS[ApiKey(int.from_bytes(frame[:2], "big"))]
    return apis.decode_request(frame, items_max=bound.items_max)
