"""One partition: most Produces, Fetches and OffsetCommits name one, and are decoded here in less time than in `apis`.

`apis.decode_request` reads every request; a test holds both to the same values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeAlias
from uuid import UUID

from replication.errors import ProtocolError
from replication.protocol import decoding, small_messages
from replication.protocol.apis import SERVED, UNREADABLE, ApiKey, Request
from replication.protocol.decoding import PRODUCE_FLEXIBLE, TOPIC_IDS
from replication.protocol.messages import ProduceOne
from replication.protocol.small_messages import CommitOne
from replication.protocol.wire import INT16, INT32, uvarint

COMMIT_BYTES_MIN = 32
# Client id, acks, timeout, topic and partition, the topic's id.
_Constant: TypeAlias = tuple[str, int, int, tuple[str, int], UUID | None]
_new = tuple.__new__  # half the time of a NamedTuple's own call; a test compares what both ways make
FETCH_ONE = 11  # the first version that is read at once
_ONE_HEAD = struct.Struct(">hhih")  # API key, version, correlation id, size of the client's id
_PRODUCE, _PRODUCE_FIRST, _PRODUCE_LAST = ApiKey.PRODUCE, *SERVED[ApiKey.PRODUCE]  # (a member takes time to look up)
_COMMIT = ApiKey.OFFSET_COMMIT
_TOPIC = struct.Struct(">hhiih")  # no transactional id, acks, timeout, topics, length of the name
_PARTITION = struct.Struct(">ii")  # partitions, index
# The same behind the header's tags; lengths are one more, and below 128.
_COMPACT_TOPIC, _COMPACT_PARTITION = struct.Struct(">BBhiBB"), struct.Struct(">Bi")
_NO_TAGS = bytes(3)  # of the partition, the topic, the request
# Where the length of the topic's name is, and the size of the records, in a frame without a client's id and a topic.
_NAME_AT, _RECORDS_AT = _ONE_HEAD.size + _TOPIC.size - 2, _ONE_HEAD.size + _TOPIC.size + _PARTITION.size
_COMPACT_NAME_AT = _ONE_HEAD.size + _COMPACT_TOPIC.size - 1
_COMPACT_RECORDS_AT = _COMPACT_NAME_AT + _COMPACT_PARTITION.size
# The same with the topic's id.
_ID_TOPIC = struct.Struct(">BBhiB16s")
_ID_RECORDS_AT = _ONE_HEAD.size + _ID_TOPIC.size + _COMPACT_PARTITION.size


def decode_one(frame: memoryview) -> Request | None:
    """Decode a request for one partition as most Produces, Fetches and OffsetCommits are: faster than `decode_request`.

    None: it is another one: `decode_request` reads it, or says what is wrong with it. Both agree: a test compares them.
    """
    decode = _DECODES_ONE.get(frame[1]) if not frame[0] else None
    try:
        return decode(frame) if decode is not None else None
    except (ProtocolError, *UNREADABLE):  # of what is read as if it were such a request
        return None


def _body_begin(frame: memoryview, first: int, last: int, flexible: int) -> tuple[int, int, str | None, int] | None:
    """Return version, correlation id, the client's id, and where the body begins; None: `decode_request` knows."""
    _, version, correlation_id, size = _ONE_HEAD.unpack_from(frame)
    if not first <= version <= last:
        return None
    at = _ONE_HEAD.size + max(0, size)
    client_id = str(frame[_ONE_HEAD.size : at], "ascii") if size >= 0 else None  # what is not may be no UTF-8
    if version >= flexible:
        if frame[at]:
            return None  # tags
        at += 1
    return version, correlation_id, client_id, at


def _decode_produce(frame: memoryview) -> Request | None:
    """Producers send the same before the records again and again: that is decoded once, whoever asks."""
    _, version, correlation_id, size = _ONE_HEAD.unpack_from(frame)
    if not _PRODUCE_FIRST <= version <= _PRODUCE_LAST:
        return None
    has_id = False
    if is_compact := version >= PRODUCE_FLEXIBLE:
        # Behind the partition's index, if all is as `_read_constant` reads it.
        has_id = version >= TOPIC_IDS
        end = size + (_ID_RECORDS_AT if has_id else frame[size + _COMPACT_NAME_AT] + _COMPACT_RECORDS_AT)
        records_size, first = frame[end], end + 1
        if records_size >= 0x80:
            records_size, first = (records_size & 0x7F) | frame[first] << 7, end + 2
            if records_size >= 0x4000:
                records_size, first = uvarint(frame, end)
        last = first + records_size - 1
        is_whole = records_size > 0 and frame[last:] == _NO_TAGS
    else:
        end = size + (frame[size + _NAME_AT] << 8 | frame[size + _NAME_AT + 1]) + _RECORDS_AT
        (records_size,) = INT32.unpack_from(frame, end)
        first, last = end + INT32.size, len(frame)
        is_whole = records_size == last - first
    if not is_whole:
        return None
    known, constant = _produces[is_compact + has_id], frame[8:end].tobytes()
    if (found := known.get(constant)) is None:
        read = _read_constant_of_id(constant) if has_id else _read_constant(constant, is_compact=is_compact)
        if (found := read) is None:
            return None
        if len(constant) <= REMEMBERED_BYTES:
            if len(known) >= REMEMBERED:
                known.clear()
            known[constant] = found
    client_id, acks, timeout_ms, tp, topic_id = found
    body = _new(ProduceOne, (acks, timeout_ms, tp, frame[first:last], topic_id))
    return _new(Request, (_PRODUCE, version, correlation_id, client_id, body))


def _read_constant(data: bytes, *, is_compact: bool) -> _Constant | None:
    """Return client id, acks, timeout, and topic and partition of a Produce of one batch, without a transaction."""
    (size,) = INT16.unpack_from(data)
    at = 2 + size
    if size < 0:
        return None
    client_id = str(data[2:at], "ascii")  # what is not may be no UTF-8
    if is_compact:
        tags, no_id, acks, timeout_ms, topics, size = _COMPACT_TOPIC.unpack_from(data, at)
        at += _COMPACT_TOPIC.size
        end = at + size - 1
        partitions, index = _COMPACT_PARTITION.unpack_from(data, end)
        is_one = topics == partitions == 2 and 0 < size < 0x80 and not tags and not no_id
    else:
        no_id, acks, timeout_ms, topics, size = _TOPIC.unpack_from(data, at)
        at += _TOPIC.size
        end = at + size
        partitions, index = _PARTITION.unpack_from(data, end)
        is_one = topics == partitions == 1 and size >= 0 and no_id == -1
    return (client_id, acks, timeout_ms, (str(data[at:end], "utf-8"), index), None) if is_one else None


def _read_constant_of_id(data: bytes) -> _Constant | None:
    """The same of a Produce that names its topic by the id."""
    (size,) = INT16.unpack_from(data)
    at = 2 + size
    if size < 0:
        return None
    tags, no_id, acks, timeout_ms, topics, raw = _ID_TOPIC.unpack_from(data, at)
    partitions, index = _COMPACT_PARTITION.unpack_from(data, at + _ID_TOPIC.size)
    if not topics == partitions == 2 or tags or no_id:
        return None
    topic_id = UUID(bytes=raw) if any(raw) else None
    return str(data[2:at], "ascii"), acks, timeout_ms, ("", index), topic_id


def _decode_fetch(frame: memoryview) -> Request | None:
    head = _body_begin(frame, FETCH_ONE, SERVED[ApiKey.FETCH].last, decoding.FETCH_FLEXIBLE)
    if head is None:
        return None
    version, correlation_id, client_id, at = head
    body = decoding.fetch_one(version, frame, at)
    return None if body is None else _new(Request, (ApiKey.FETCH, version, correlation_id, client_id, body))


def _decode_commit(frame: memoryview) -> Request | None:
    """Consumers commit for the same partitions again and again: the constant part is decoded once, whoever asks."""
    if not COMMIT_BYTES_MIN < len(frame) <= REMEMBERED_BYTES or frame[3] >= len(_COMMIT_ENDS):
        return None
    # Frames of one partition without a text whose constant parts are equal decode alike.
    layout, rest = _COMMIT_ENDS[frame[3]]
    data, end = bytes(frame), len(frame) - rest - layout.size
    constant = data[:4] + data[8:end] + data[-rest:]
    if (known := _commits.get(constant)) is not None:
        version, client_id, group_id, generation, member_id, retention_ms, tp = known
        (correlation_id,), fields = INT32.unpack_from(data, 4), layout.unpack_from(data, end)
        offset, leader_epoch = fields if len(fields) > 1 else (*fields, -1)
        commit = _new(CommitOne, (group_id, generation, member_id, retention_ms, tp, offset, leader_epoch))
        return _new(Request, (_COMMIT, version, correlation_id, client_id, commit))
    head = _body_begin(frame, *SERVED[ApiKey.OFFSET_COMMIT], small_messages.COMMIT_FLEXIBLE)
    if head is None:
        return None
    version, correlation_id, client_id, at = head
    found = small_messages.offset_commit_request(version, frame, at, items_max=2)  # a topic, a partition
    match found:
        case (group_id, generation, member_id, None, retention_ms, ((topic, ((partition, _, _, ""),), _),)):
            texts = len((group_id + member_id + topic).encode())
            if len(frame) == at + _COMMIT_BYTES[version] + texts:  # no tags, nothing behind it
                if len(_commits) >= REMEMBERED:
                    _commits.clear()
                constants = version, client_id, group_id, generation, member_id, retention_ms, (topic, partition)
                _commits[constant] = constants
    return Request(ApiKey.OFFSET_COMMIT, version, correlation_id, client_id, found)


REMEMBERED, REMEMBERED_BYTES = 4096, 512  # constant parts; and how long they are at most
# By the constant part of a frame. It is not asked who sent it: what a client may do is decided behind the decoding.
# Commits: version, client's id, and what `CommitOne` begins with. Produces: legacy, compact, and with ids.
_commits: dict[bytes, tuple[int, str | None, str, int, str, int, tuple[str, int]]] = {}
_produces: tuple[dict[bytes, _Constant], ...] = ({}, {}, {})
_DECODES_ONE: dict[int, Callable[[memoryview], Request | None]] = {
    ApiKey.PRODUCE: _decode_produce,
    ApiKey.FETCH: _decode_fetch,
    ApiKey.OFFSET_COMMIT: _decode_commit,
}


# Behind the partition: offset, leader epoch; then what says that there is no text, and no tags.
_COMMIT_ENDS = tuple(
    (struct.Struct(">q" if version < small_messages.EPOCHS_FROM else ">qi"), rest)
    for version, rest in enumerate([2] * small_messages.COMMIT_FLEXIBLE + [4] * 2)
)
# The bytes of such a body without its names: the sizes of those; generation, counts, partition, offset, metadata.
_COMMIT_BYTES = tuple(
    30
    if version >= small_messages.COMMIT_FLEXIBLE
    else 32 + 8 * (version < 5) + 4 * (version >= small_messages.EPOCHS_FROM) + 2 * (version >= 7)
    for version in range(len(_COMMIT_ENDS))
)
