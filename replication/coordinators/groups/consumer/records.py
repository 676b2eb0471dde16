"""The records of a group of the consumer protocol: Kafka's keys of types 3 to 8 and 16, and their values.

Keys are an int16 type, the group, and a member or a regular expression. Values are of version 0: an int16, fields with
compact strings and arrays, and tagged fields. Tagged fields that are not known here are skipped: they are those of a
member of the classic protocol, of racks, and of the epochs of assignments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any
from uuid import UUID

from replication.coordinators import binary
from replication.coordinators.groups.consumer.state import (
    ConsumerGroup,
    Current,
    Header,
    Matched,
    Member,
    Piece,
    Pieces,
    Progress,
    contents,
)
from replication.coordinators.groups.keys import Key, Kind
from replication.model.cluster import topic_id_of, topic_uuid

DEPRECATED = 4  # partitions of subscribed topics: written by Kafka before 4.1, and of no use here
OF_MEMBERS = (Kind.MEMBER, Kind.TARGET, Kind.CURRENT, Kind.REGEX)  # keys with a second text
KINDS = tuple(kind.value for kind in Kind if kind is not Kind.CLASSIC)
_NO_TAGS, _VERSION = b"\x00", binary.SHORT.pack(0)
_HASH_TAG = b"\x01\x00\x08"  # one tagged field: number 0, of eight bytes


def rows_of(group_id: str, values: Mapping[Key, Any]) -> list[tuple[bytes, bytes | None]]:
    return [(encode_key(group_id, key), None if value is None else encode(value)) for key, value in values.items()]


def encode_key(group_id: str, key: Key) -> bytes:
    of = binary.string(key.of) if key.kind in OF_MEMBERS else b""
    return binary.SHORT.pack(key.kind) + binary.string(group_id) + of


def read_key(at: binary.Cursor, kind: int) -> tuple[str, Key]:
    """Return the group and the key of a record, behind its type."""
    group_id = at.take_string()
    return group_id, Key(Kind(kind), at.take_string() if kind in OF_MEMBERS else "")


# -------------------------------------------------------------------- values


def encode(value: Any) -> bytes:
    match value:
        case Header(epoch, topics_hash):
            tags = _HASH_TAG + binary.LONG.pack(topics_hash) if topics_hash else _NO_TAGS
            return _VERSION + binary.INT.pack(epoch) + tags
        case Member():
            return _VERSION + _member(value) + _NO_TAGS
        case Matched(topics, at_ms):
            version, names = 0, _array(map(_text, topics), len(topics))
            return _VERSION + names + binary.LONG.pack(version) + binary.LONG.pack(at_ms) + _NO_TAGS
        case Current():
            head = binary.INT.pack(value.epoch) + binary.INT.pack(value.previous_epoch) + bytes((value.progress,))
            return _VERSION + head + _pieces(value.assigned) + _pieces(value.revoking) + _NO_TAGS
        case int():
            return _VERSION + binary.INT.pack(value) + _NO_TAGS
    return _VERSION + _pieces(value) + _NO_TAGS


def _member(member: Member) -> bytes:
    return b"".join(
        (
            _text(member.instance_id),
            _text(member.rack_id),
            _text(member.client_id),
            _text(member.client_host),
            _array(map(_text, member.topics), len(member.topics)),
            _text(member.regex),
            binary.INT.pack(member.rebalance_timeout_ms),
            _text(member.assignor),
        )
    )


def _text(text: str | None) -> bytes:
    if text is None:
        return b"\x00"
    data = text.encode()
    return binary.varint(len(data) + 1) + data


def _array(items: Iterable[bytes], count: int) -> bytes:
    return binary.varint(count + 1) + b"".join(items)


def _pieces(pieces: Pieces) -> bytes:
    by_topic = [
        (topic, [piece.partition for piece in found])
        for topic, found in groupby(sorted(pieces), key=lambda piece: piece.topic_id)
    ]
    rows = (
        _id_bytes(topic) + _array(map(binary.INT.pack, numbers), len(numbers)) + _NO_TAGS for topic, numbers in by_topic
    )
    return _array(rows, len(by_topic))


def _id_bytes(topic_id: str) -> bytes:
    number = topic_uuid(topic_id)
    assert number is not None, "assigned topics have ids"
    return number.bytes


def decode(key: Key, data: bytes) -> Any:
    """Return the value of a record. Raises: UnknownRecordError."""
    at = binary.Cursor(data)
    version = at.take_short()
    if version != 0:
        raise binary.UnknownRecordError(f"version {version} of a {key.kind.name.lower()} of a consumer group")
    match key.kind:
        case Kind.HEADER:
            epoch = at.take_int()
            return Header(epoch, dict(_tags(at)).get(0, 0))
        case Kind.TARGET_EPOCH:
            return at.take_int()
        case Kind.MEMBER:
            return _read_member(key.of, at)
        case Kind.REGEX:
            names = tuple(_read_text(at) or "" for _ in range(at.take_varint() - 1))
            at.take_long()
            return Matched(names, at.take_long())
        case Kind.CURRENT:
            epoch, previous, progress = at.take_int(), at.take_int(), at.take_byte()
            if progress not in tuple(Progress):
                raise binary.UnknownRecordError(f"state {progress} of a member")
            return Current(
                epoch=epoch,
                previous_epoch=previous,
                progress=Progress(progress),
                assigned=_read_pieces(at),
                revoking=_read_pieces(at),
            )
    return _read_pieces(at)


def _read_member(member_id: str, at: binary.Cursor) -> Member:
    instance_id, rack_id = _read_text(at), _read_text(at)
    client_id, client_host = _read_text(at) or "", _read_text(at) or ""
    topics = tuple(_read_text(at) or "" for _ in range(at.take_varint() - 1))
    return Member(
        id=member_id,
        instance_id=instance_id,
        rack_id=rack_id,
        client_id=client_id,
        client_host=client_host,
        topics=topics,
        regex=_read_text(at),
        rebalance_timeout_ms=at.take_int(),
        assignor=_read_text(at),
    )


def _read_text(at: binary.Cursor) -> str | None:
    size = at.take_varint()
    return None if size == 0 else at.take_text(size - 1)


def _read_pieces(at: binary.Cursor) -> Pieces:
    found: set[Piece] = set()
    for _ in range(at.take_varint() - 1):
        topic_id = topic_id_of(UUID(bytes=at.take(16)))
        found.update(Piece(topic_id, at.take_int()) for _ in range(at.take_varint() - 1))
        _skip_tags(at)
    return frozenset(found)


def _tags(at: binary.Cursor) -> Iterator[tuple[int, int]]:
    """Yield the number of each tagged field, and its bytes as a number."""
    for _ in range(at.take_varint()):
        number = at.take_varint()
        yield number, int.from_bytes(at.take(at.take_varint()), "big", signed=True)


def _skip_tags(at: binary.Cursor) -> None:
    for _ in _tags(at):
        pass


# --------------------------------------------------------------------- loads


def group_of(group_id: str, values: Mapping[Key, Any]) -> ConsumerGroup:
    """Return the group of these values; those that belong to no member go with the next write. Members lack nothing."""
    header: Header = values.get(Key(Kind.HEADER), Header(0, 0))
    of: dict[Kind, dict[str, Any]] = {kind: {} for kind in OF_MEMBERS}
    for key, value in values.items():
        if key.kind in of:
            of[key.kind][key.of] = value
    members = of[Kind.MEMBER]
    used = {member.regex for member in members.values()}
    group = ConsumerGroup(
        id=group_id,
        epoch=header.epoch,
        topics_hash=header.topics_hash,
        members=members,
        currents={name: of[Kind.CURRENT].get(name, Current()) for name in members},
        target_epoch=values.get(Key(Kind.TARGET_EPOCH), 0),
        targets={name: pieces for name, pieces in of[Kind.TARGET].items() if name in members},
        regexes={regex: found for regex, found in of[Kind.REGEX].items() if regex in used},
    )
    return replace(group, unstored=frozenset(values.keys() - contents(group).keys()))
