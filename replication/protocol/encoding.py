"""Encoding of Produce and Fetch by hand.

A message becomes a list of buffers: records are sent from where they are, and only the bytes between them are built.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from functools import lru_cache

from replication.protocol import messages
from replication.protocol.decoding import FETCH_FLEXIBLE, PRODUCE_FLEXIBLE, TOPIC_IDS, fetch_partition_layout
from replication.protocol.wire import COMPACT, INT16, INT32, LEGACY, Buffer, Form, put_uvarint

# Records up to this size are copied into the head of the message: the copy costs less than another buffer.
COPIED_BYTES_MAX = 4096

_PRODUCED = struct.Struct(">ihqq")
_PRODUCED_V5 = struct.Struct(">ihqqq")
_FETCHED = struct.Struct(">ihqq")
_FETCHED_V5 = struct.Struct(">ihqqq")
_LEADER = struct.Struct(">iib")  # leader, epoch, no tags
_TWO_INTS = struct.Struct(">ii")
_ABORTED = struct.Struct(">qq")
_REPLICA_STATE = struct.Struct(">iqb")
_NO_TAGS = b"\x00"


def produce_response(version: int, response: messages.ProduceResponse) -> list[Buffer]:
    form = COMPACT if version >= PRODUCE_FLEXIBLE else LEGACY
    end = _NO_TAGS if form is COMPACT else b""
    parts = [form.put_count(len(response.topics))]
    for topic in response.topics:
        parts += (
            _put_topic_key(version, form, topic.name, topic.topic_id),
            form.put_count(len(topic.partitions)),
        )
        for partition in topic.partitions:
            _put_produced(version, form, partition, parts)
        parts.append(end)
    parts.append(INT32.pack(response.throttle_time_ms))
    parts.append(_put_endpoints(form, version >= 10, response.node_endpoints))
    return [b"".join(parts)]


def produced_one(
    version: int,
    correlation_id: int,
    tp: tuple[str | uuid.UUID, int],
    base_offset: int,
    append_ms: int,
    log_start: int,
) -> bytes:
    """The whole ProduceResponse, its size in front, to a request of one batch that was appended, as most are.

    `tp`: the topic as the request names it, and the partition.
    """
    named, index = tp
    layout, size, topic, end = _produced_one(version, named)
    if version < 5:
        return layout.pack(size, correlation_id, topic, index, 0, base_offset, append_ms, end)
    return layout.pack(size, correlation_id, topic, index, 0, base_offset, append_ms, log_start, end)


@lru_cache(maxsize=4096)
def _produced_one(version: int, named: str | uuid.UUID) -> tuple[struct.Struct, int, bytes, bytes]:
    """Return the layout of such a response, its size, and the bytes of it that are always the same."""
    name, topic_id = (named, None) if isinstance(named, str) else ("", named)
    response = messages.ProduceResponse([messages.TopicProduced(name, [messages.PartitionProduced(0, 0)], topic_id)])
    form = COMPACT if version >= PRODUCE_FLEXIBLE else LEGACY
    fields = _PRODUCED if version < 5 else _PRODUCED_V5
    topic = form.put_count(1) + _put_topic_key(version, form, name, topic_id) + form.put_count(1)
    (body,) = produce_response(version, response)
    end = bytes(body[len(topic) + fields.size :])
    if form is COMPACT:
        topic = _NO_TAGS + topic  # of the header
    layout = struct.Struct(f">ii{len(topic)}s{fields.format[1:]}{len(end)}s")
    return layout, layout.size - INT32.size, topic, end


def _put_produced(version: int, form: Form, produced: messages.PartitionProduced, parts: list[bytes]) -> None:
    index, error_code, base_offset, append_ms, log_start, errors, message, leader = produced
    if version < 5:
        parts.append(_PRODUCED.pack(index, error_code, base_offset, append_ms))
        return
    parts.append(_PRODUCED_V5.pack(index, error_code, base_offset, append_ms, log_start))
    if version >= 8:
        parts.append(form.put_count(len(errors)))
        for error in errors:
            parts += (INT32.pack(error.batch_index), form.put_string(error.message), form.put_tags(()))
        parts.append(form.put_string(message))
    if form is COMPACT:
        if version >= 10 and leader is not None:
            parts.append(form.put_tags([(0, _LEADER.pack(leader.leader_id, leader.leader_epoch, 0))]))
        else:
            parts.append(_NO_TAGS)


def fetched_one(
    version: int,
    correlation_id: int,
    topic: tuple[str | None, uuid.UUID | None],
    row: tuple[int, int, int, int],
    records: Buffer,
    *,
    is_committed: bool,
) -> list[Buffer]:
    """The whole FetchResponse of versions 11 to 18, its size in front, to a request for one partition that has records.

    `row`: partition, high watermark, last stable offset, log start offset. `is_committed`: read_committed was asked
    for, and no transaction was aborted.
    """
    key, size_bytes = _fetched_topic(version, *topic), len(records)
    index, high_watermark, stable_end, log_start = row
    if version >= FETCH_FLEXIBLE:
        size, end = put_uvarint(size_bytes + 1), _FETCHED_END
        fields = _FETCHED_COMPACT.pack(index, 0, high_watermark, stable_end, log_start, is_committed, -1)
        length = _FETCHED_COMPACT_HEAD.size - 4 + len(key) + len(fields) + len(size) + size_bytes + len(end)
        head = _FETCHED_COMPACT_HEAD.pack(length, correlation_id, 0, 0, 0, 0)
    else:
        size, end = INT32.pack(size_bytes), b""
        fields = _FETCHED_V11.pack(index, 0, high_watermark, stable_end, log_start, is_committed - 1, -1)
        length = _FETCHED_HEAD.size - 4 + len(key) + len(fields) + len(size) + size_bytes
        head = _FETCHED_HEAD.pack(length, correlation_id, 0, 0, 0)
    if size_bytes <= COPIED_BYTES_MAX:
        return [b"".join((head, key, fields, size, records, end))]
    first = b"".join((head, key, fields, size))
    return [first, records, end] if end else [first, records]


_FETCHED_HEAD = struct.Struct(">iiihi")  # size, correlation id, throttle time, error, session
_FETCHED_COMPACT_HEAD = struct.Struct(">iibihi")
_FETCHED_V11 = struct.Struct(">ihqqqii")  # as above, the number of aborted transactions, the preferred replica
_FETCHED_COMPACT = struct.Struct(">ihqqqBi")
_FETCHED_END = bytes(3)  # no tags of the partition, the topic, the response


@lru_cache(maxsize=4096)
def _fetched_topic(version: int, name: str | None, topic_id: uuid.UUID | None) -> bytes:
    form = COMPACT if version >= FETCH_FLEXIBLE else LEGACY
    return form.put_count(1) + _put_topic_key(version, form, name, topic_id) + form.put_count(1)


def fetch_response(version: int, response: messages.FetchResponse) -> list[Buffer]:
    """Encode the body of versions 4 to 18. Large records are buffers of their own, not copied."""
    form = COMPACT if version >= FETCH_FLEXIBLE else LEGACY
    end = _NO_TAGS if form is COMPACT else b""
    parts: list[Buffer] = [INT32.pack(response.throttle_time_ms)]
    if version >= 7:
        parts.append(_CODE_SESSION.pack(response.error_code, response.session_id))
    parts.append(form.put_count(len(response.topics)))
    out: list[Buffer] = []
    for topic in response.topics:
        parts += (
            _put_topic_key(version, form, topic.name, topic.topic_id),
            form.put_count(len(topic.partitions)),
        )
        for partition in topic.partitions:
            parts.append(_put_fetched(version, form, partition))
            if len(partition.records) > COPIED_BYTES_MAX:
                out += (b"".join(parts), partition.records)
                parts = []
            else:
                parts.append(partition.records)
            if form is COMPACT:
                leader = partition.current_leader
                parts.append(form.put_tags([(1, _LEADER.pack(*leader, 0))]) if leader else _NO_TAGS)
        parts.append(end)
    parts.append(_put_endpoints(form, version >= 16, response.node_endpoints))
    out.append(b"".join(parts))
    return out


_CODE_SESSION = struct.Struct(">hi")


def _put_fetched(version: int, form: Form, fetched: messages.PartitionFetched) -> bytes:
    index, error_code, high_watermark, last_stable, log_start, aborted, records = fetched[:7]
    if version >= 5:
        head = _FETCHED_V5.pack(index, error_code, high_watermark, last_stable, log_start)
    else:
        head = _FETCHED.pack(index, error_code, high_watermark, last_stable)
    if aborted:
        rows = [_ABORTED.pack(*row) + form.put_tags(()) for row in aborted]
        head += form.put_count(len(rows)) + b"".join(rows)
    else:
        head += form.put_count(None if aborted is None else 0)
    if version >= 11:
        head += INT32.pack(fetched.preferred_read_replica)
    return head + form.put_size(len(records))


def _put_topic_key(version: int, form: Form, name: str | None, topic_id: uuid.UUID | None) -> bytes:
    if version >= TOPIC_IDS:
        return topic_id.bytes if topic_id is not None else bytes(16)
    return form.put_string(name)


def _put_endpoints(form: Form, is_served: bool, endpoints: Sequence[messages.NodeEndpoint]) -> bytes:
    """Encode the tags of a whole response: the addresses of leaders, in versions that have them."""
    if form is LEGACY:
        return b""
    if not (is_served and endpoints):
        return _NO_TAGS
    rows = [
        INT32.pack(node.node_id)
        + form.put_string(node.host)
        + INT32.pack(node.port)
        + form.put_string(node.rack)
        + _NO_TAGS
        for node in endpoints
    ]
    return form.put_tags([(0, form.put_count(len(rows)) + b"".join(rows))])


def fetch_request(version: int, request: messages.FetchRequest) -> list[Buffer]:
    """Encode the body of versions 4 to 18: a follower's request to its leader."""
    form = COMPACT if version >= FETCH_FLEXIBLE else LEGACY
    parts = [] if version >= 15 else [INT32.pack(request.replica_id)]
    parts.append(_FETCH_HEAD.pack(request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation))
    if version >= 7:
        parts.append(_TWO_INTS.pack(request.session_id, request.session_epoch))
    parts.append(form.put_count(len(request.topics)))
    layout = fetch_partition_layout(version)
    for topic in request.topics:
        parts += (
            _put_topic_key(version, form, topic.name, topic.topic_id),
            form.put_count(len(topic.partitions)),
        )
        for partition in topic.partitions:
            parts += (layout.pack(*_fetch_fields(version, partition)), form.put_tags(()))
        parts.append(form.put_tags(()))
    if version >= 7:
        parts.append(form.put_count(len(request.forgotten)))
        for gone in request.forgotten:
            parts += (
                _put_topic_key(version, form, gone.name, gone.topic_id),
                form.put_count(len(gone.partitions)),
                struct.pack(f">{len(gone.partitions)}i", *gone.partitions),
                form.put_tags(()),
            )
    if version >= 11:
        parts.append(form.put_string(request.rack))
    is_replica = version >= 15 and (request.replica_id, request.replica_epoch) != (-1, -1)
    state = _REPLICA_STATE.pack(request.replica_id, request.replica_epoch, 0)
    parts.append(form.put_tags([(1, state)] if is_replica else ()))
    return [b"".join(parts)]


_FETCH_HEAD = struct.Struct(">iiib")


def _fetch_fields(version: int, partition: messages.FetchPartition) -> tuple[int, ...]:
    index, offset, max_bytes, epoch, last_epoch, log_start = partition
    if version >= FETCH_FLEXIBLE:
        return index, epoch, offset, last_epoch, log_start, max_bytes
    if version >= 9:
        return index, epoch, offset, log_start, max_bytes
    return (index, offset, log_start, max_bytes) if version >= 5 else (index, offset, max_bytes)


def produce_request(version: int, request: messages.ProduceRequest) -> list[Buffer]:
    """Encode the body of versions 3 to 13; records are buffers of their own, not copied."""
    form = COMPACT if version >= PRODUCE_FLEXIBLE else LEGACY
    end = form.put_tags(())
    parts: list[bytes] = [
        form.put_string(request.transactional_id),
        INT16.pack(request.acks),
        INT32.pack(request.timeout_ms),
        form.put_count(len(request.topics)),
    ]
    out: list[Buffer] = []
    for topic in request.topics:
        parts += (
            _put_topic_key(version, form, topic.name, topic.topic_id),
            form.put_count(len(topic.partitions)),
        )
        for partition in topic.partitions:
            records = partition.records
            parts += (
                INT32.pack(partition.partition),
                form.put_size(None if records is None else len(records)),
            )
            if records is not None:
                out += (b"".join(parts), records)
                parts = []
            parts.append(end)
        parts.append(end)
    parts.append(end)
    out.append(b"".join(parts))
    return out
