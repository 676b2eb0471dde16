"""The limits of one request per API: its bytes and items, and how it is decoded within them.

Honest clients stay far below these limits. Without them an item of a few bytes would become an object of some
hundred, and work: with them a request costs at most its own size and some tens of megabytes. A larger request closes
the connection. A *short* request is decoded in one turn of the event loop; others are `decode`d in a thread, piece by
piece.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NamedTuple

from replication.errors import TooManyItemsError
from replication.protocol import apis
from replication.protocol.apis import ApiKey, Request

MIB = 1 << 20
# A short request has at most so many items, and, unless it brings records, so many bytes. Those of Produce and Fetch
# cost 1 to 2 µs each, others up to 5.
SHORT_PARTITIONS, SHORT_ITEMS, SHORT_BYTES = 1000, 500, 64 * 1024


class Bound(NamedTuple):
    """The limits of one request. `items_max` counts the items of all its arrays, nested ones included."""

    bytes_max: int
    items_max: int


_SMALL = Bound(MIB, 100)  # a few strings
_NAMES = Bound(8 * MIB, 10_000)  # groups, members
_CONFIGS = Bound(8 * MIB, 20_000)
_TOPICS = Bound(8 * MIB, 50_000)
_PARTITIONS = Bound(16 * MIB, 50_000)
_ASSIGNMENTS = Bound(16 * MIB, 50_000)  # a partition and each of its replicas count
_ORDERS = Bound(32 * MIB, 200_000)  # the same, for the 10,000 partitions that a controller names at once

BOUNDS: Mapping[ApiKey, Bound] = {
    ApiKey.PRODUCE: Bound(sys.maxsize, 30_000),  # socket.request.max.bytes is its bound
    ApiKey.FETCH: Bound(16 * MIB, 30_000),
    ApiKey.LIST_OFFSETS: _PARTITIONS,
    ApiKey.METADATA: _TOPICS,
    ApiKey.LEADER_AND_ISR: _ORDERS,
    ApiKey.STOP_REPLICA: _ORDERS,
    ApiKey.UPDATE_METADATA: _ORDERS,
    ApiKey.CONTROLLED_SHUTDOWN: _SMALL,
    ApiKey.OFFSET_COMMIT: Bound(16 * MIB, 20_000),
    ApiKey.OFFSET_FETCH: Bound(16 * MIB, 30_000),
    ApiKey.FIND_COORDINATOR: _NAMES,
    ApiKey.JOIN_GROUP: Bound(8 * MIB, 1000),
    ApiKey.HEARTBEAT: _SMALL,
    ApiKey.LEAVE_GROUP: _NAMES,
    ApiKey.SYNC_GROUP: Bound(16 * MIB, 10_000),
    ApiKey.DESCRIBE_GROUPS: _NAMES,
    ApiKey.LIST_GROUPS: _SMALL,
    ApiKey.API_VERSIONS: _SMALL,
    ApiKey.CREATE_TOPICS: _ASSIGNMENTS,
    ApiKey.DELETE_TOPICS: Bound(8 * MIB, 20_000),
    ApiKey.DELETE_RECORDS: Bound(8 * MIB, 20_000),
    ApiKey.INIT_PRODUCER_ID: _SMALL,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _PARTITIONS,
    ApiKey.DESCRIBE_CONFIGS: _CONFIGS,
    ApiKey.ALTER_CONFIGS: _CONFIGS,
    ApiKey.DESCRIBE_LOG_DIRS: _PARTITIONS,
    ApiKey.CREATE_PARTITIONS: _ASSIGNMENTS,
    ApiKey.DELETE_GROUPS: _NAMES,
    ApiKey.ELECT_LEADERS: _PARTITIONS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _CONFIGS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _ASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _PARTITIONS,
    ApiKey.OFFSET_DELETE: Bound(8 * MIB, 20_000),
    ApiKey.DESCRIBE_CLUSTER: _SMALL,
}


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
