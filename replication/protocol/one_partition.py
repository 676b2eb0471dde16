"""One partition: most Produces, Fetches and OffsetCommits name one, and are decoded here in less time than in `apis`.

`apis.decode_request` reads every request; a test holds both to the same values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from replication.protocol import decoding, small_messages
from replication.protocol.apis import SERVED, UNREADABLE, ApiKey, Request
from replication.protocol.small_messages import CommitPartition, CommitTopic, OffsetCommitRequest

COMMIT_BYTES_MIN = 32
_new = tuple.__new__  # half the time of a NamedTuple's own call; a test compares what both ways make
FETCH_ONE = 11  # the first version that is read at once
_ONE_HEAD = struct.Struct(">hhih")  # API key, version, correlation id, size of the client's id


def decode_one(frame: memoryview) -> Request | None:
    """Decode a request for one partition as most Produces, Fetches and OffsetCommits are: faster than `decode_request`.

    None: it is another one: `decode_request` reads it, or says what is wrong with it. Both agree: a test compares them.
    """
    decode = _DECODES_ONE.get(frame[1]) if not frame[0] else None
    try:
        return decode(frame) if decode is not None else None
    except UNREADABLE:
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
    head = _body_begin(frame, *SERVED[ApiKey.PRODUCE], decoding.PRODUCE_FLEXIBLE)
    if head is None:
        return None
    version, correlation_id, client_id, at = head
    body = decoding.produce_one(version, frame, at)
    return None if body is None else _new(Request, (ApiKey.PRODUCE, version, correlation_id, client_id, body))


def _decode_fetch(frame: memoryview) -> Request | None:
    head = _body_begin(frame, FETCH_ONE, SERVED[ApiKey.FETCH].last, decoding.FETCH_FLEXIBLE)
    if head is None:
        return None
    version, correlation_id, client_id, at = head
    body = decoding.fetch_one(version, frame, at)
    return None if body is None else _new(Request, (ApiKey.FETCH, version, correlation_id, client_id, body))


def _decode_commit(frame: memoryview) -> Request | None:
    """Consumers commit for the same partitions again and again: the constant part is decoded once, whoever asks."""
    split = split_commit(bytes(frame)) if len(frame) <= REMEMBERED_BYTES else None
    known = None if split is None else _commits.get(split[0])
    if split is not None and known is not None:
        version, client_id, body, topic, partition = known
        _, correlation_id, offset, leader_epoch = split
        row = _new(CommitTopic, (topic, (_new(CommitPartition, (partition, offset, leader_epoch, "")),)))
        commit = _new(OffsetCommitRequest, (*body, (row,)))
        return _new(Request, (ApiKey.OFFSET_COMMIT, version, correlation_id, client_id, commit))
    head = _body_begin(frame, *SERVED[ApiKey.OFFSET_COMMIT], small_messages.COMMIT_FLEXIBLE)
    if head is None:
        return None
    version, correlation_id, client_id, at = head
    found = small_messages.commit_one(version, frame, at)
    if found is None:
        return None
    ((topic, ((partition, _, _, text),)),) = found.topics
    if split is not None and not text:
        if len(_commits) >= REMEMBERED:
            _commits.clear()
        _commits[split[0]] = version, client_id, found[:-1], topic, partition
    return Request(ApiKey.OFFSET_COMMIT, version, correlation_id, client_id, found)


REMEMBERED, REMEMBERED_BYTES = 4096, 512  # commits; and how long they are at most
# By the constant part of a frame: version, client's id, all but the topics, topic, partition. It is not asked who sent
# it: what a client may do is decided behind the decoding.
_commits: dict[bytes, tuple[int, str | None, tuple[Any, ...], str, int]] = {}
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


def split_commit(frame: bytes) -> tuple[bytes, int, int, int] | None:
    """Split an OffsetCommit frame into its constant part (a cache key), its correlation id, offset and leader epoch.

    Frames of one partition without metadata whose constant parts are equal decode alike. None: the frame is too short.
    """
    if len(frame) <= COMMIT_BYTES_MIN or frame[3] >= len(_COMMIT_ENDS):
        return None
    layout, rest = _COMMIT_ENDS[frame[3]]
    at = len(frame) - rest - layout.size
    fields = layout.unpack_from(frame, at)
    same = frame[:4] + frame[8:at] + frame[-rest:]
    return same, int.from_bytes(frame[4:8], "big", signed=True), fields[0], fields[1] if len(fields) > 1 else -1
