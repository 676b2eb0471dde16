"""Heartbeat, OffsetCommit and Metadata, of which clients send very many: requests as values, answers by hand.

One value serves all versions of a request. Kio's classes would take more time than all the rest of it; Metadata is
read as one, for a repeated request is decoded once (`apis`). `buffer` and `at` are as in `decoding`.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from kio.index import load_request_schema

from replication.errors import ProtocolError
from replication.protocol import kio_reader
from replication.protocol.wire import COMPACT, INT32, INT64, ITEMS_MAX, LEGACY, Buffer, Form, check_items

HEARTBEAT_FLEXIBLE, COMMIT_FLEXIBLE, METADATA_FLEXIBLE = 4, 8, 9  # the first versions that are
# The range of a time, as in every other message: the milliseconds that a timedelta takes.
TIME_MS_MIN, TIME_MS_MAX = -86_399_999_913_600_000, 86_399_999_999_999_999
_NO_TAGS = b"\x00"


_HEARD = (struct.Struct(">iih"), struct.Struct(">iiih"), struct.Struct(">iibihb"))  # size, correlation id, …


def heartbeat_response(version: int, correlation_id: int, error_code: int) -> bytes:
    """The whole answer, its size in front."""
    if version == 0:
        return _HEARD[0].pack(6, correlation_id, error_code)
    if version < HEARTBEAT_FLEXIBLE:
        return _HEARD[1].pack(10, correlation_id, 0, error_code)
    return _HEARD[2].pack(12, correlation_id, 0, 0, error_code, 0)


class CommitPartition(NamedTuple):
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


class CommitTopic(NamedTuple):
    """Named by its name, or by its id from version 10 on: `name` is "" then until it is looked up."""

    name: str
    partitions: Sequence[CommitPartition]
    topic_id: uuid.UUID | None = None


class OffsetCommitRequest(NamedTuple):
    """`retention_ms` is of old clients; -1: as long as the broker keeps offsets."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    retention_ms: int
    topics: Sequence[CommitTopic]


class CommitOne(NamedTuple):
    """An OffsetCommitRequest for one partition, by no static member, without metadata: made in less time."""

    group_id: str
    generation_id: int
    member_id: str
    retention_ms: int
    tp: tuple[str, int]  # topic and partition
    committed_offset: int
    committed_leader_epoch: int

    @property
    def group_instance_id(self) -> None:
        """None: a request of a static member is another value."""
        return

    @property
    def topics(self) -> tuple[CommitTopic, ...]:
        topic, partition = self.tp
        row = CommitPartition(partition, self.committed_offset, self.committed_leader_epoch, "")
        return (CommitTopic(topic, (row,)),)

    def with_rows(self) -> OffsetCommitRequest:
        """Return the same request with topics and partitions."""
        return OffsetCommitRequest(
            self.group_id, self.generation_id, self.member_id, None, self.retention_ms, self.topics
        )


_OFFSET = (struct.Struct(">iq"), struct.Struct(">iqi"))  # partition, offset, (leader epoch)
EPOCHS_FROM, _INSTANCES_FROM, _RETENTION_BELOW, COMMIT_IDS_FROM = 6, 7, 5, 10


def offset_commit_request(version: int, buffer: Buffer, at: int, items_max: int = ITEMS_MAX) -> OffsetCommitRequest:
    """Decode versions 2 to 10. Raises: TooManyItemsError: more topics and partitions than `items_max`."""
    form, data = COMPACT if version >= COMMIT_FLEXIBLE else LEGACY, bytes(buffer)
    group_id, at = form.string(data, at)
    (generation_id,) = INT32.unpack_from(data, at)
    member_id, at = form.string(data, at + 4)
    instance_id, retention_ms = None, -1
    if version >= _INSTANCES_FROM:
        instance_id, at = form.nullable_string(data, at)
    elif version < _RETENTION_BELOW:
        (retention_ms,) = INT64.unpack_from(data, at)
        at += 8
        if not TIME_MS_MIN <= retention_ms <= TIME_MS_MAX:
            raise ProtocolError(f"a time of {retention_ms} ms")
    total, at = form.count(data, at, 6 if form is LEGACY else 18 if version >= COMMIT_IDS_FROM else 3)
    check_items(total, items_max)
    topics = []
    for _ in range(total):
        topic, at = _commit_topic(version, form, data, at)
        total += len(topic.partitions)
        check_items(total, items_max)
        topics.append(topic)
    form.tags(data, at)
    return OffsetCommitRequest(group_id, generation_id, member_id, instance_id, retention_ms, tuple(topics))


def _commit_topic(version: int, form: Form, data: bytes, at: int) -> tuple[CommitTopic, int]:
    has_epoch, is_flexible = version >= EPOCHS_FROM, form is COMPACT
    layout = _OFFSET[has_epoch]
    unpack, size = layout.unpack_from, layout.size
    name, topic_id = "", None
    if version >= COMMIT_IDS_FROM:
        topic_id, at = uuid.UUID(bytes=data[at : at + 16]), at + 16
    else:
        name, at = form.string(data, at)
    count, at = form.count(data, at, size + 2)
    partitions = []
    for _ in range(count):
        fields = unpack(data, at)
        metadata, at = form.nullable_string(data, at + size)
        if is_flexible:
            _, at = form.tags(data, at)
        index, offset, epoch = fields if has_epoch else (*fields, -1)
        partitions.append(CommitPartition(index, offset, epoch, metadata))
    if is_flexible:
        _, at = form.tags(data, at)
    return CommitTopic(name, tuple(partitions), topic_id), at


_STORED = struct.Struct(">ih")  # partition, error code


def offset_commit_response(
    version: int, correlation_id: int, topics: Sequence[CommitTopic], error_code: int = 0
) -> bytes:
    """The whole answer to a request for these topics, its size in front: all is stored, or nothing."""
    is_flexible = version >= COMMIT_FLEXIBLE
    end = _NO_TAGS if is_flexible else b""
    parts = [_commit_head(version, len(topics))]
    for name, rows, topic_id in topics:
        parts.append(_topic_head(is_flexible, name if version < COMMIT_IDS_FROM else topic_id, len(rows)))
        for row in rows:
            parts.append(_STORED.pack(row[0], error_code) + end)
        parts.append(end)
    parts.append(end)
    body = b"".join(parts)
    return _HEAD.pack(4 + len(body), correlation_id) + body


def one_offset_committed(version: int, correlation_id: int, tp: tuple[str, int], error_code: int = 0) -> bytes:
    """The same for a commit of one partition."""
    name, partition = tp
    layout, size, begin, end = _one_committed(version, name, error_code)
    return layout.pack(size, correlation_id, begin, partition, end)


@lru_cache(maxsize=4096)
def _one_committed(version: int, name: str, error_code: int) -> tuple[struct.Struct, int, bytes, bytes]:
    """Return the layout of such a response, its size, and the bytes of it that are always the same."""
    whole = offset_commit_response(version, 0, (CommitTopic(name, (CommitPartition(0, 0, 0, None),)),), error_code)
    end = len(whole) - (2 if version < COMMIT_FLEXIBLE else 5)  # the error code, and the tags of all three
    begin = whole[_HEAD.size : end - INT32.size]
    layout = struct.Struct(f">ii{len(begin)}si{len(whole) - end}s")
    return layout, layout.size - INT32.size, begin, whole[end:]


_HEAD = struct.Struct(">ii")  # size, correlation id


@lru_cache(maxsize=256)
def _commit_head(version: int, topics: int) -> bytes:
    form = COMPACT if version >= COMMIT_FLEXIBLE else LEGACY
    head = _NO_TAGS if form is COMPACT else b""
    if version >= 3:
        head += bytes(4)  # no throttling
    return head + form.put_count(topics)


@lru_cache(maxsize=4096)
def _topic_head(is_flexible: bool, named: str | uuid.UUID | None, partitions: int) -> bytes:
    form = COMPACT if is_flexible else LEGACY
    name = form.put_string(named) if isinstance(named, str) else named.bytes if named is not None else bytes(16)
    return name + form.put_count(partitions)


class MetadataTopic(NamedTuple):
    """Named by its name, or by its id from version 10 on."""

    name: str | None
    topic_id: uuid.UUID | None


class MetadataRequest(NamedTuple):
    """`topics` None: all of them. The last two: does the client ask what it may do?"""

    topics: tuple[MetadataTopic, ...] | None
    allow_auto_topic_creation: bool = True
    include_cluster_authorized_operations: bool = False
    include_topic_authorized_operations: bool = False


def metadata_request(version: int, buffer: Buffer, at: int, items_max: int = ITEMS_MAX) -> MetadataRequest:
    """Decode versions 0 to 12. Raises: TooManyItemsError: more topics than `items_max`."""
    body, _ = kio_reader.read(load_request_schema(_METADATA, version), buffer, at, items_max)
    topics = body.topics and tuple(MetadataTopic(each.name, getattr(each, "topic_id", None)) for each in body.topics)
    # Version 4 brought the first of the others, version 8 the other two, and version 11 dropped the middle one.
    return MetadataRequest(topics, **{name: getattr(body, name) for name in _METADATA_FLAGS if hasattr(body, name)})


_METADATA, _METADATA_FLAGS = 3, MetadataRequest._fields[1:]
