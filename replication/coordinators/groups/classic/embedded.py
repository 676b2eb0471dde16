"""The bytes that consumers of the classic protocol have in its metadata and assignments: Kafka's consumer protocol.

All numbers are big-endian; a string is an int16 length and UTF-8; partitions are a topic and its int32 numbers::

    subscription: version int16, topics, user data, owned partitions (1), generation int32 (2), rack (3)
    assignment: version int16, partitions, user data

A field with a number comes with that version. Later versions only add fields behind these.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from replication.coordinators import binary
from replication.model.cluster import TopicPartition

OWNED_FROM, GENERATION_FROM, RACK_FROM = 1, 2, 3
ASSIGNMENT_VERSION_MAX = 3
NOTHING: frozenset[TopicPartition] = frozenset()


class Subscription(NamedTuple):
    """`owned`: the partitions that the member reads as it joins; one that gives up all of them first has none."""

    version: int
    topics: tuple[str, ...]
    owned: frozenset[TopicPartition] = NOTHING
    rack_id: str | None = None


def read_subscription(data: bytes) -> Subscription | None:
    """Return the subscription; None: these bytes are none."""
    at = binary.Cursor(data)
    try:
        version = at.take_short()
        topics = tuple(sorted({at.take_string() for _ in range(at.take_int())}))
        _skip_user_data(at)
        owned = _take_partitions(at) if version >= OWNED_FROM else NOTHING
        if version >= GENERATION_FROM:
            at.take_int()
        rack_id = at.take_nullable() if version >= RACK_FROM else None
    except binary.UnknownRecordError:
        return None
    return Subscription(version, topics, owned, rack_id) if version >= 0 else None


def read_assignment(data: bytes) -> frozenset[TopicPartition] | None:
    """Return the assigned partitions; None: these bytes are no assignment. No bytes are no partitions."""
    at = binary.Cursor(data)
    try:
        if data:
            at.take_short()
        return _take_partitions(at) if data else NOTHING
    except binary.UnknownRecordError:
        return None


def encode_assignment(tps: Iterable[TopicPartition], version: int) -> bytes:
    """Return an assignment for a member whose subscription has this version."""
    rows = [(topic, [tp.partition for tp in found]) for topic, found in groupby(sorted(tps), key=lambda tp: tp.topic)]
    head = binary.SHORT.pack(min(version, ASSIGNMENT_VERSION_MAX)) + binary.INT.pack(len(rows))
    parts = (
        binary.string(topic) + binary.INT.pack(len(numbers)) + b"".join(map(binary.INT.pack, numbers))
        for topic, numbers in rows
    )
    return head + b"".join(parts) + binary.INT.pack(-1)


def _take_partitions(at: binary.Cursor) -> frozenset[TopicPartition]:
    found: set[TopicPartition] = set()
    for _ in range(at.take_int()):
        topic = at.take_string()
        found.update(TopicPartition(topic, at.take_int()) for _ in range(at.take_int()))
    return frozenset(found)


def _skip_user_data(at: binary.Cursor) -> None:
    size = at.take_int()
    if size > 0:
        at.take(size)
