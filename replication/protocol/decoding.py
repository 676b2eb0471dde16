"""Decoding of Produce and Fetch by hand: in some microseconds, and without copying records.

`buffer` is a memoryview of a frame; `at` is the begin of the message behind its header. Records are slices of it. A
hostile length raises ProtocolError.
"""

from __future__ import annotations

import struct
import uuid
from functools import lru_cache

from replication.protocol import messages
from replication.protocol.wire import (
    COMPACT,
    INT32,
    INT64,
    ITEMS_MAX,
    LEGACY,
    Buffer,
    Form,
    Tags,
    check_items,
    cut,
    text,
)

PRODUCE_FLEXIBLE = 9
FETCH_FLEXIBLE = 12
TOPIC_IDS = 13  # Fetch and Produce: topics are named by their ids from this version on

_ACKS_TIMEOUT = struct.Struct(">hi")
_TWO_INTS = struct.Struct(">ii")
_INT_LONG = struct.Struct(">iq")
_LONG_LONG = struct.Struct(">qq")


def fetch_partition_layout(version: int) -> struct.Struct:
    if version >= FETCH_FLEXIBLE:
        return struct.Struct(">iiqiqi")  # index, leader epoch, offset, last fetched epoch, log start, bytes
    if version >= 9:
        return struct.Struct(">iiqqi")  # index, leader epoch, offset, log start, bytes
    return struct.Struct(">iqqi" if version >= 5 else ">iqi")  # index, offset, (log start,) bytes


_FETCH_PARTITION = {version: fetch_partition_layout(version) for version in range(4, 19)}


def produce_request(version: int, buffer: memoryview, at: int, items_max: int = ITEMS_MAX) -> messages.ProduceRequest:
    """Decode versions 3 to 13. Raises: TooManyItemsError: more topics and partitions than `items_max`."""
    form = COMPACT if version >= PRODUCE_FLEXIBLE else LEGACY
    flexible = form is COMPACT
    transactional_id, at = form.nullable_string(buffer, at)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(buffer, at)
    topics = []
    count, at = form.count(buffer, at + 6, 2)
    check_items(count, items_max)
    total = count
    for _ in range(count):
        name, topic_id, at = topic_key(version, form, buffer, at)
        partitions = []
        partition_count, at = form.count(buffer, at, 5)
        total += partition_count
        check_items(total, items_max)
        for _ in range(partition_count):
            (index,) = INT32.unpack_from(buffer, at)
            records, at = form.nullable_bytes(buffer, at + 4)
            if flexible:
                total, at = form.counted_tags(buffer, at, total, items_max)
            partitions.append(messages.ProducePartition(index, records))
        if flexible:
            total, at = form.counted_tags(buffer, at, total, items_max)
        topics.append(messages.ProduceTopic(name or "", tuple(partitions), topic_id))
    form.tags(buffer, at)
    return messages.ProduceRequest(acks, timeout_ms, tuple(topics), transactional_id)


_new = tuple.__new__  # half the time of a NamedTuple's own call; a test compares what both ways make

# A consumer's request for one partition, without a rack, tags and partitions that leave a session: what is before the
# topic's name (or with its id), and what is behind it.
_ONE_FETCH_HEAD = {
    version: struct.Struct(">iiiibiiih" if version < FETCH_FLEXIBLE else ">iiiibiiBB" if version < TOPIC_IDS
                           else ">iiiibiiB16s" if version < 15 else ">iiibiiB16s")
    for version in range(11, 19)
}  # fmt: skip
_ONE_FETCH, _ONE_FETCH_COMPACT = struct.Struct(">iiiqqiih"), struct.Struct(">BiiqiqiBBBBB")
_ONE_FETCH_LENGTHS = (2, 0, 0, 1, 1, 0)  # partitions, tags of it and of the topic, forgotten topics, rack, tags


def fetch_one(version: int, buffer: Buffer, at: int) -> messages.FetchRequest | None:
    """Decode versions 11 to 18, for one partition, in two pieces; None: it is another request, see `fetch_request`."""
    layout = _ONE_FETCH_HEAD[version]
    if len(buffer) < at + layout.size:
        return None
    fields = layout.unpack_from(buffer, at)
    at += layout.size
    replica_id, fields = (-1, fields) if version >= 15 else (fields[0], fields[1:])
    max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics, key = fields
    if isolation not in (0, 1) or topics != (2 if version >= FETCH_FLEXIBLE else 1):
        return None
    name = topic_id = None
    if version < TOPIC_IDS:
        end = at + (key - 1 if version >= FETCH_FLEXIBLE else key)
        if end < at or key >= 0x80:
            return None
        name, at = text(buffer[at:end]), end
    else:
        topic_id = _uuid(key)
    if version >= FETCH_FLEXIBLE:
        if len(buffer) != at + _ONE_FETCH_COMPACT.size:
            return None
        count, index, epoch, offset, last_epoch, log_start, limit, *lengths = _ONE_FETCH_COMPACT.unpack_from(buffer, at)
        if (count, *lengths) != _ONE_FETCH_LENGTHS:
            return None
    else:
        if len(buffer) != at + _ONE_FETCH.size:
            return None
        count, index, epoch, offset, log_start, limit, forgotten, rack = _ONE_FETCH.unpack_from(buffer, at)
        if count != 1 or forgotten or rack:
            return None
        last_epoch = -1
    row = _new(messages.FetchPartition, (index, offset, limit, epoch, last_epoch, log_start))
    topics = (_new(messages.FetchTopic, (name, topic_id, (row,))),)
    isolated, epoch = _ISOLATIONS[isolation], session_epoch
    return _new(
        messages.FetchRequest,
        (max_wait_ms, min_bytes, topics, max_bytes, isolated, replica_id, -1, session_id, epoch, "", ()),
    )


@lru_cache(maxsize=4096)
def _uuid(raw: bytes) -> uuid.UUID | None:
    number = int.from_bytes(raw, "big")
    return uuid.UUID(int=number) if number else None


def fetch_request(version: int, buffer: Buffer, at: int, items_max: int = ITEMS_MAX) -> messages.FetchRequest:
    """Decode versions 4 to 18. Raises: TooManyItemsError: more topics and partitions than `items_max`."""
    form = COMPACT if version >= FETCH_FLEXIBLE else LEGACY
    replica_id = replica_epoch = -1
    if version < 15:
        (replica_id,) = INT32.unpack_from(buffer, at)
        at += 4
    max_wait_ms, min_bytes, max_bytes, isolation = _FETCH_HEAD.unpack_from(buffer, at)
    at += 13
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _TWO_INTS.unpack_from(buffer, at)
        at += 8
    topics, count, at = _fetch_topics(version, form, buffer, at, items_max)
    forgotten: tuple[messages.ForgottenTopic, ...] = ()
    if version >= 7:
        forgotten, at = _forgotten(version, form, buffer, at, items_max - count)
    rack = ""
    if version >= 11:
        rack, at = form.string(buffer, at)
    tags, at = form.tags(buffer, at)
    if version >= 15 and 1 in tags:
        replica_id, replica_epoch = _INT_LONG.unpack_from(tags[1], 0)
    return messages.FetchRequest(
        max_wait_ms,
        min_bytes,
        topics,
        max_bytes,
        _ISOLATIONS[isolation] if isolation in messages.ISOLATIONS else None,
        replica_id,
        replica_epoch,
        session_id,
        session_epoch,
        rack,
        forgotten,
    )


_FETCH_HEAD = struct.Struct(">iiib")
_ISOLATIONS = tuple(messages.Isolation)


def _fetch_topics(
    version: int, form: Form, buffer: Buffer, at: int, items_max: int
) -> tuple[tuple[messages.FetchTopic, ...], int, int]:
    layout = _FETCH_PARTITION[version]
    flexible = form is COMPACT
    topics = []
    count, at = form.count(buffer, at, 2)
    check_items(count, items_max)
    total = count
    for _ in range(count):
        name, topic_id, at = topic_key(version, form, buffer, at)
        partitions = []
        partition_count, at = form.count(buffer, at, layout.size)
        total += partition_count
        check_items(total, items_max)
        for _ in range(partition_count):
            partitions.append(_fetch_partition(version, layout.unpack_from(buffer, at)))
            at += layout.size
            if flexible:
                total, at = form.counted_tags(buffer, at, total, items_max)
        if flexible:
            total, at = form.counted_tags(buffer, at, total, items_max)
        topics.append(messages.FetchTopic(name, topic_id, tuple(partitions)))
    return tuple(topics), total, at


def _fetch_partition(version: int, fields: tuple[int, ...]) -> messages.FetchPartition:
    if version >= FETCH_FLEXIBLE:
        index, epoch, offset, last_epoch, log_start, max_bytes = fields
        return messages.FetchPartition(index, offset, max_bytes, epoch, last_epoch, log_start)
    if version >= 9:
        index, epoch, offset, log_start, max_bytes = fields
        return messages.FetchPartition(index, offset, max_bytes, epoch, -1, log_start)
    if version >= 5:
        index, offset, log_start, max_bytes = fields
        return messages.FetchPartition(index, offset, max_bytes, -1, -1, log_start)
    index, offset, max_bytes = fields
    return messages.FetchPartition(index, offset, max_bytes)


def topic_key(version: int, form: Form, buffer: Buffer, at: int) -> tuple[str | None, uuid.UUID | None, int]:
    """Return a topic's name or, in a version with ids, its id (None for the zero id); and its end."""
    if version >= TOPIC_IDS:
        raw, at = cut(buffer, at, 16)
        return None, _uuid(bytes(raw)), at
    name, at = form.string(buffer, at)
    return name, None, at


def _forgotten(
    version: int, form: Form, buffer: Buffer, at: int, items_max: int
) -> tuple[tuple[messages.ForgottenTopic, ...], int]:
    topics = []
    count, at = form.count(buffer, at, 2)
    check_items(count, items_max)
    total = count
    for _ in range(count):
        name, topic_id, at = topic_key(version, form, buffer, at)
        partition_count, at = form.count(buffer, at, 4)
        total += partition_count
        check_items(total, items_max)
        partitions = struct.unpack_from(f">{partition_count}i", buffer, at)
        total, at = form.counted_tags(buffer, at + 4 * partition_count, total, items_max)
        topics.append(messages.ForgottenTopic(name, topic_id, partitions))
    return tuple(topics), at


def fetch_response(version: int, buffer: Buffer, at: int) -> messages.FetchResponse:
    """Decode versions 4 to 18: a leader's answer to a follower."""
    form = COMPACT if version >= FETCH_FLEXIBLE else LEGACY
    (throttle_ms,) = INT32.unpack_from(buffer, at)
    at += 4
    error_code = session_id = 0
    if version >= 7:
        error_code, session_id = _CODE_SESSION.unpack_from(buffer, at)
        at += 6
    topics = []
    count, at = form.count(buffer, at, 2)
    for _ in range(count):
        name, topic_id, at = topic_key(version, form, buffer, at)
        partitions = []
        partition_count, at = form.count(buffer, at, 26)
        for _ in range(partition_count):
            fetched, at = _partition_fetched(version, form, buffer, at)
            partitions.append(fetched)
        _, at = form.tags(buffer, at)
        topics.append(messages.TopicFetched(name, topic_id, tuple(partitions)))
    tags, at = form.tags(buffer, at)
    return messages.FetchResponse(tuple(topics), throttle_ms, error_code, session_id, _node_endpoints(form, tags))


_CODE_SESSION = struct.Struct(">hi")
_FETCHED_HEAD = struct.Struct(">ihqq")


def _partition_fetched(version: int, form: Form, buffer: Buffer, at: int) -> tuple[messages.PartitionFetched, int]:
    index, error_code, high_watermark, last_stable = _FETCHED_HEAD.unpack_from(buffer, at)
    at += 22
    log_start = -1
    if version >= 5:
        (log_start,) = INT64.unpack_from(buffer, at)
        at += 8
    aborted, at = _aborted(form, buffer, at)
    preferred = -1
    if version >= 11:
        (preferred,) = INT32.unpack_from(buffer, at)
        at += 4
    records, at = form.nullable_bytes(buffer, at)
    tags, at = form.tags(buffer, at)
    fetched = messages.PartitionFetched(
        index,
        error_code,
        high_watermark,
        last_stable,
        log_start,
        aborted,
        records if records is not None else b"",
        preferred_read_replica=preferred,
    )
    if 1 in tags:
        fetched = fetched._replace(current_leader=messages.CurrentLeader(*_TWO_INTS.unpack_from(tags[1], 0)))
    return fetched, at


def _aborted(form: Form, buffer: Buffer, at: int) -> tuple[tuple[messages.Aborted, ...] | None, int]:
    count, at = form.nullable_count(buffer, at, 16)
    if count is None:
        return None, at
    found = []
    for _ in range(count):
        found.append(messages.Aborted(*_LONG_LONG.unpack_from(buffer, at)))
        _, at = form.tags(buffer, at + 16)
    return tuple(found), at


def produce_response(version: int, buffer: Buffer, at: int) -> messages.ProduceResponse:
    form = COMPACT if version >= PRODUCE_FLEXIBLE else LEGACY
    topics = []
    count, at = form.count(buffer, at, 2)
    for _ in range(count):
        name, topic_id, at = topic_key(version, form, buffer, at)
        partitions = []
        partition_count, at = form.count(buffer, at, 22)
        for _ in range(partition_count):
            produced, at = _partition_produced(version, form, buffer, at)
            partitions.append(produced)
        _, at = form.tags(buffer, at)
        topics.append(messages.TopicProduced(name or "", tuple(partitions), topic_id))
    (throttle_ms,) = INT32.unpack_from(buffer, at)
    tags, at = form.tags(buffer, at + 4)
    return messages.ProduceResponse(tuple(topics), throttle_ms, _node_endpoints(form, tags))


_PRODUCED_HEAD = struct.Struct(">ihqq")


def _partition_produced(version: int, form: Form, buffer: Buffer, at: int) -> tuple[messages.PartitionProduced, int]:
    index, error_code, base_offset, append_ms = _PRODUCED_HEAD.unpack_from(buffer, at)
    at += 22
    log_start, errors, message = -1, [], None
    if version >= 5:
        (log_start,) = INT64.unpack_from(buffer, at)
        at += 8
    if version >= 8:
        count, at = form.count(buffer, at, 5)
        for _ in range(count):
            (batch_index,) = INT32.unpack_from(buffer, at)
            text, at = form.nullable_string(buffer, at + 4)
            _, at = form.tags(buffer, at)
            errors.append(messages.RecordError(batch_index, text))
        message, at = form.nullable_string(buffer, at)
    tags, at = form.tags(buffer, at)
    leader = messages.CurrentLeader(*_TWO_INTS.unpack_from(tags[0], 0)) if 0 in tags else None
    rows = tuple(errors)
    return messages.PartitionProduced(index, error_code, base_offset, append_ms, log_start, rows, message, leader), at


def _node_endpoints(form: Form, tags: Tags) -> tuple[messages.NodeEndpoint, ...]:
    if 0 not in tags:
        return ()
    buffer, found = tags[0], []
    count, at = form.count(buffer, 0, 10)
    for _ in range(count):
        (node_id,) = INT32.unpack_from(buffer, at)
        host, at = form.string(buffer, at + 4)
        (port,) = INT32.unpack_from(buffer, at)
        rack, at = form.nullable_string(buffer, at + 4)
        _, at = form.tags(buffer, at)
        found.append(messages.NodeEndpoint(node_id, host, port, rack))
    return tuple(found)
