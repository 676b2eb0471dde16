"""The records of a group of the consumer protocol: Kafka's keys of types 3 to 8 and 16, and their values.

Values are of version 0: an int16, fields, and tagged fields. Those that are not known here are of racks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from replication.coordinators import binary
from replication.coordinators.groups import fields
from replication.coordinators.groups.consumer.state import (
    ClassicMember,
    ConsumerGroup,
    Current,
    Matched,
    Member,
    Progress,
)
from replication.coordinators.groups.keys import Key, Kind
from replication.coordinators.groups.parts.state import Header, contents, fields_of, named

DEPRECATED = 4  # partitions of subscribed topics: written by Kafka before 4.1, and of no use here
_HASH_TAG = b"\x01\x00\x08"  # one tagged field: number 0, of eight bytes


def encode(value: Any) -> bytes:
    match value:
        case Header(epoch, topics_hash):
            tags = _HASH_TAG + binary.LONG.pack(topics_hash) if topics_hash else fields.NO_TAGS
            return fields.VERSION + binary.INT.pack(epoch) + tags
        case Member():
            return fields.VERSION + _member(value) + _classic_tag(value.classic)
        case Matched(topics, at_ms):
            version, names = 0, fields.texts(topics)
            return fields.VERSION + names + binary.LONG.pack(version) + binary.LONG.pack(at_ms) + fields.NO_TAGS
        case Current():
            head = binary.INT.pack(value.epoch) + binary.INT.pack(value.previous_epoch) + bytes((value.progress,))
            assigned, revoking = (fields.pieces(held, value.since) for held in (value.assigned, value.revoking))
            return fields.VERSION + head + assigned + revoking + fields.NO_TAGS
        case int():
            return fields.VERSION + binary.INT.pack(value) + fields.NO_TAGS
    return fields.VERSION + fields.pieces(value) + fields.NO_TAGS


def _member(member: Member) -> bytes:
    return b"".join(
        (
            fields.text(member.instance_id),
            fields.text(member.rack_id),
            fields.text(member.client_id),
            fields.text(member.client_host),
            fields.texts(member.topics),
            fields.text(member.regex),
            binary.INT.pack(member.rebalance_timeout_ms),
            fields.text(member.assignor),
        )
    )


def _classic_tag(side: ClassicMember | None) -> bytes:
    """Return the tagged fields of a member: number 0 is its part of the classic protocol, behind a byte "not null"."""
    if side is None:
        return fields.NO_TAGS
    rows = (fields.text(name) + binary.varint(len(data) + 1) + data + fields.NO_TAGS for name, data in side.protocols)
    protocols = fields.array(rows, len(side.protocols))
    part = b"\x01" + binary.INT.pack(side.session_timeout_ms) + protocols + fields.NO_TAGS
    return b"\x01\x00" + binary.varint(len(part)) + part


def decode(key: Key, data: bytes) -> Any:
    """Return the value of a record. Raises: UnknownRecordError."""
    at = binary.Cursor(data)
    fields.check_version(at, f"a {key.kind.name.lower()} of a consumer group")
    match key.kind:
        case Kind.HEADER:
            epoch = at.take_int()
            return Header(epoch, dict(fields.tags(at)).get(0, 0))
        case Kind.TARGET_EPOCH:
            return at.take_int()
        case Kind.MEMBER:
            return _read_member(key.of, at)
        case Kind.REGEX:
            names = fields.read_texts(at)
            at.take_long()
            return Matched(names, at.take_long())
        case Kind.CURRENT:
            epoch, previous, progress = at.take_int(), at.take_int(), at.take_byte()
            if progress not in tuple(Progress):
                raise binary.UnknownRecordError(f"state {progress} of a member")
            assigned, revoking = (fields.read_pieces_since(at, max(epoch, 0)) for _ in range(2))
            return Current(
                epoch=epoch,
                previous_epoch=previous,
                progress=Progress(progress),
                assigned=frozenset(assigned),
                revoking=frozenset(revoking),
                since=assigned | revoking,
            )
    return fields.read_pieces(at)


def _read_member(member_id: str, at: binary.Cursor) -> Member:
    instance_id, rack_id = fields.read_text(at), fields.read_text(at)
    client_id, client_host = fields.read_text(at) or "", fields.read_text(at) or ""
    topics = fields.read_texts(at)
    return Member(
        id=member_id,
        instance_id=instance_id,
        rack_id=rack_id,
        client_id=client_id,
        client_host=client_host,
        topics=topics,
        regex=fields.read_text(at),
        rebalance_timeout_ms=at.take_int(),
        assignor=fields.read_text(at),
        classic=_read_classic(at.take_tags().get(0, b"")),
    )


def _read_classic(data: bytes) -> ClassicMember | None:
    if not data or not data[0]:
        return None
    at = binary.Cursor(data[1:])
    return ClassicMember(at.take_int(), tuple(fields.read_array(at, _read_protocol)))


def _read_protocol(at: binary.Cursor) -> tuple[str, bytes]:
    protocol = fields.read_text(at) or "", at.take(at.take_varint() - 1)
    fields.skip_tags(at)
    return protocol


# --------------------------------------------------------------------- loads


def group_of(group_id: str, values: Mapping[Key, Any]) -> ConsumerGroup:
    """Return the group of these values; those that belong to no member go with the next write. Members lack nothing."""
    found = fields_of(ConsumerGroup.kinds, values, Current())
    used = {member.regex for member in found["members"].values()}
    regexes = {regex: matched for regex, matched in named(Kind.REGEX, values).items() if regex in used}
    group = ConsumerGroup(id=group_id, regexes=regexes, **found)
    return replace(group, unstored=frozenset(values.keys() - contents(group).keys()))
