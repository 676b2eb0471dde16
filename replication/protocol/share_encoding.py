"""The response to ShareFetch: records are not copied on their way. All other messages of share groups are kio's."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Generator, Sequence
from typing import NamedTuple

from replication.protocol.encoding import COPIED_BYTES_MAX
from replication.protocol.messages import CurrentLeader, NodeEndpoint
from replication.protocol.wire import COMPACT, INT16, INT32, Buffer

_HEAD, _LEADER, _ACQUIRED = struct.Struct(">ih"), struct.Struct(">iix"), struct.Struct(">qqhx")
_NO_TAGS = b"\x00"
NO_LEADER = CurrentLeader(-1, -1)


class ShareFetched(NamedTuple):
    """The row of a partition. `acquired`: the first offset, the last one and the delivery count of each range."""

    partition: int
    error_code: int = 0
    error_message: str | None = None
    acknowledge_error_code: int = 0
    acknowledge_error_message: str | None = None
    current_leader: CurrentLeader | None = None
    records: Buffer = b""
    acquired: Sequence[tuple[int, int, int]] = ()


class ShareFetchResponse(NamedTuple):
    topics: Sequence[tuple[uuid.UUID | None, Sequence[ShareFetched]]] = ()
    error_code: int = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()


def share_fetch_steps(response: ShareFetchResponse) -> Generator[None, None, list[Buffer]]:
    """Encode the body of versions 1 and 2, row by row. Large records are buffers of their own."""
    form = COMPACT
    out: list[Buffer] = []
    parts: list[Buffer] = [
        _HEAD.pack(0, response.error_code),
        form.put_string(response.error_message),
        INT32.pack(response.acquisition_lock_timeout_ms),
        form.put_count(len(response.topics)),
    ]
    for topic_id, rows in response.topics:
        parts += (topic_id.bytes if topic_id is not None else bytes(16), form.put_count(len(rows)))
        for row in rows:
            parts += (
                _HEAD.pack(row.partition, row.error_code),
                form.put_string(row.error_message),
                INT16.pack(row.acknowledge_error_code),
                form.put_string(row.acknowledge_error_message),
                _LEADER.pack(*(row.current_leader or NO_LEADER)),
                form.put_size(len(row.records)),
            )
            if len(row.records) > COPIED_BYTES_MAX:
                out += (b"".join(parts), row.records)
                parts = []
            else:
                parts.append(row.records)
            parts.append(form.put_count(len(row.acquired)))
            parts += [_ACQUIRED.pack(*each) for each in row.acquired]
            parts.append(_NO_TAGS)
            yield
        parts.append(_NO_TAGS)
    parts.append(form.put_count(len(response.node_endpoints)))
    for node in response.node_endpoints:
        where = form.put_string(node.host) + INT32.pack(node.port) + form.put_string(node.rack)
        parts += (INT32.pack(node.node_id), where, _NO_TAGS)
    parts.append(_NO_TAGS)
    return [*out, b"".join(parts)]
