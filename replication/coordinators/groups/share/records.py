"""The records of a share group: Kafka's keys of types 10 to 15, and their values, all of version 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from replication.coordinators import binary
from replication.coordinators.groups import fields
from replication.coordinators.groups.keys import Key, Kind
from replication.coordinators.groups.parts.state import Header, contents, fields_of
from replication.coordinators.groups.share.state import NO_STATES, Current, Member, ShareGroup, States, TopicStates

_STABLE = 0  # the only state of a member


def encode(value: Any) -> bytes:
    match value:
        case Header(epoch, topics_hash):
            body = binary.INT.pack(epoch) + binary.LONG.pack(topics_hash)
        case Member():
            described = map(fields.text, (value.rack_id, value.client_id, value.client_host))
            body = b"".join(described) + fields.texts(value.topics)
        case Current(epoch=epoch, previous_epoch=previous, assigned=assigned):
            body = binary.INT.pack(epoch) + binary.INT.pack(previous) + bytes((_STABLE,)) + fields.pieces(assigned)
        case States(initializing, initialized, deleting):
            gone = (fields.id_bytes(topic) + fields.text(name) + fields.NO_TAGS for topic, name in deleting.items())
            body = _topics(initializing) + _topics(initialized) + fields.array(gone, len(deleting))
        case int():
            body = binary.INT.pack(value)
        case _:
            body = fields.pieces(value)
    return fields.VERSION + body + fields.NO_TAGS


def _topics(topics: Mapping[str, TopicStates]) -> bytes:
    rows = (
        fields.id_bytes(topic) + fields.text(found.name) + fields.numbers(sorted(found.partitions)) + fields.NO_TAGS
        for topic, found in topics.items()
    )
    return fields.array(rows, len(topics))


def decode(key: Key, data: bytes) -> Any:
    """Return the value of a record. Raises: UnknownRecordError."""
    at = binary.Cursor(data)
    fields.check_version(at, f"a {key.kind.name.lower()} of a share group")
    match key.kind:
        case Kind.SHARE_HEADER:
            return Header(at.take_int(), at.take_long())
        case Kind.SHARE_TARGET_EPOCH:
            return at.take_int()
        case Kind.SHARE_MEMBER:
            rack_id, client_id, client_host = (fields.read_text(at) for _ in range(3))
            return Member(
                id=key.of,
                rack_id=rack_id,
                client_id=client_id or "",
                client_host=client_host or "",
                topics=fields.read_texts(at),
            )
        case Kind.SHARE_CURRENT:
            epoch, previous = at.take_int(), at.take_int()
            at.take_byte()
            return Current(epoch=epoch, previous_epoch=previous, assigned=fields.read_pieces(at))
        case Kind.SHARE_STATES:
            initializing, initialized = (dict(fields.read_array(at, _read_topic)) for _ in range(2))
            return States(initializing, initialized, dict(fields.read_array(at, _read_gone)))
    return fields.read_pieces(at)


def _read_topic(at: binary.Cursor) -> tuple[str, TopicStates]:
    topic_id, name = fields.read_id(at), fields.read_text(at) or ""
    numbers = frozenset(fields.read_array(at, binary.Cursor.take_int))
    fields.skip_tags(at)
    return topic_id, TopicStates(name, numbers)


def _read_gone(at: binary.Cursor) -> tuple[str, str]:
    topic_id, name = fields.read_id(at), fields.read_text(at) or ""
    fields.skip_tags(at)
    return topic_id, name


def group_of(group_id: str, values: Mapping[Key, Any]) -> ShareGroup:
    """Return the group of these values; members lack nothing. Those that belong to no member go with the next write."""
    states = values.get(Key(Kind.SHARE_STATES), NO_STATES)
    group = ShareGroup(id=group_id, states=states, **fields_of(ShareGroup.kinds, values, Current()))
    return replace(group, unstored=frozenset(values.keys() - contents(group).keys()))
