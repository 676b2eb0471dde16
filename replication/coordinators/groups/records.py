"""The records of `__consumer_offsets`: Kafka's binary keys and values, byte for byte.

Keys (all numbers big-endian; a string is an int16 length and UTF-8)::

    version 0, 1   group, topic, partition int32      a committed offset
    version 2      group                              a group of the classic protocol
    version 3 on   group, perhaps a member            parts of a consumer or a share group, see `keys`

Values: an offset is written as version 3 (offset int64, leader epoch int32, text, commit time int64), or as version 1
(offset, text, commit time, expiry int64) if the client gave an expiry; a group as version 3. Values of earlier
brokers are read, too. A record without a value deletes the key.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

from replication.coordinators import binary
from replication.coordinators.groups import keys
from replication.coordinators.groups.classic.events import AppendGroup
from replication.coordinators.groups.classic.state import Group, Member, Phase
from replication.coordinators.groups.consumer import records as consumer_records
from replication.coordinators.groups.kinds import AnyGroup
from replication.coordinators.groups.messages import Append
from replication.coordinators.groups.offsets.events import AppendOffsets
from replication.coordinators.groups.offsets.state import NO_TIME, Committed, NewOffset
from replication.coordinators.groups.parts.events import AppendParts
from replication.coordinators.groups.share import records as share_records
from replication.model.cluster import TopicPartition

OFFSET_KEY, GROUP_KEY = 1, 2  # the versions of keys that are written
PARTS = tuple(kind.value for kind in keys.Kind if kind is not keys.Kind.CLASSIC)
OFFSET_VERSION, EXPIRING_OFFSET_VERSION, GROUP_VERSION = 3, 1, 3

_OFFSET_HEAD = struct.Struct(">hqi")
_PLAIN_OFFSET = struct.Struct(">hqihq")  # without a text


class OffsetKey(NamedTuple):
    group: str
    tp: TopicPartition


class GroupKey(NamedTuple):
    group: str


class PartKey(NamedTuple):
    """A part of a consumer or a share group; None: one that is of no use any more."""

    group: str
    key: keys.Key | None


Key: TypeAlias = OffsetKey | GroupKey | PartKey


def records_of(group: str, append: Append) -> list[tuple[bytes, bytes | None]]:
    if isinstance(append, AppendGroup):
        gone = rows_of(group, dict.fromkeys(append.group.unstored))
        return [(group_key(group), group_value(append.group)), *gone]
    if isinstance(append, AppendParts):
        return rows_of(group, append.values)
    assert isinstance(append, AppendOffsets), "nothing else is stored"
    rows: list[tuple[bytes, bytes | None]] = [
        (offset_key(group, tp), None if stored is None else offset_value(stored))
        for tp, stored in append.offsets.items()
    ]
    return rows + rows_of(group, dict.fromkeys(append.gone_keys))


def rows_of(group: str, values: Mapping[keys.Key, Any]) -> list[tuple[bytes, bytes | None]]:
    return [
        (keys.encode_key(group, key), None if value is None else _codec(key).encode(value))
        for key, value in values.items()
    ]


def _codec(key: keys.Key) -> ModuleType:
    return share_records if key.kind.is_of_share else consumer_records


class Loaded:
    """The result of the records of a partition; the last value of a key counts.

    Records of an unknown type are left alone. Raises: UnknownRecordError: a record of a known type cannot be read, so
    that nobody can say what is stored under its key.
    """

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.parts: dict[str, dict[keys.Key, Any]] = {}
        # Parts that count no more, since a classic group was stored later; nobody has deleted them.
        self._stale: dict[str, set[keys.Key]] = {}
        self.offsets: dict[str, dict[TopicPartition, Committed]] = {}
        # group -> producer id -> offsets in its open transaction
        self.uncommitted: dict[str, dict[int, dict[TopicPartition, Committed]]] = {}
        self.unknown: Counter[str] = Counter()
        self._deleted: dict[Key, int] = {}  # the places of deletions in the log

    def apply(self, position: int, key: bytes | None, value: bytes | None) -> None:
        name = self._name(key or b"")
        if name is None:
            return
        self._wipe(name)
        if value is None:
            self._deleted[name] = position
        elif isinstance(name, GroupKey):
            self.groups[name.group] = read_group(name.group, value)
            self._stale.setdefault(name.group, set()).update(self.parts.pop(name.group, ()))
        elif isinstance(name, PartKey):
            if name.key is not None:
                self.parts.setdefault(name.group, {})[name.key] = _codec(name.key).decode(name.key, value)
        else:
            offsets = self.offsets.setdefault(name.group, {})
            offsets[name.tp] = read_offset(value, position)

    def apply_open(self, producer_id: int, position: int, key: bytes, value: bytes | None) -> None:
        """Take a record of a transaction that has no marker yet, unless it is deleted later in the log."""
        name = self._name(key)
        if isinstance(name, OffsetKey) and value is not None and self._deleted.get(name, -1) <= position:
            offsets = self.uncommitted.setdefault(name.group, {}).setdefault(producer_id, {})
            offsets[name.tp] = read_offset(value, position)

    def _name(self, key: bytes) -> Key | None:
        try:
            return read_key(key)
        except binary.UnknownTypeError as error:
            self.unknown[str(error)] += 1
            return None

    def _wipe(self, name: Key) -> None:
        if isinstance(name, GroupKey):
            self.groups.pop(name.group, None)
        elif isinstance(name, PartKey):
            if name.key is not None:
                self.parts.get(name.group, {}).pop(name.key, None)
                self._stale.get(name.group, set()).discard(name.key)
        elif name.group in self.offsets:
            self.offsets[name.group].pop(name.tp, None)

    def names(self) -> Iterable[str]:
        with_offsets = (name for name, offsets in self.offsets.items() if offsets)
        modern = (name for parts in (self.parts, self._stale) for name, values in parts.items() if values)
        return dict.fromkeys((*self.groups, *modern, *with_offsets, *self.uncommitted))

    def group(self, name: str) -> AnyGroup:
        """Return the group without its offsets; `resume` begins the sessions of its members.

        Where one protocol's records were not all deleted before those of the other, the later ones count. The others go
        with the next write: later records would make them count again.
        """
        values, stale = self.parts.get(name, {}), frozenset(self._stale.get(name, ()))
        if keys.Key(keys.Kind.HEADER) in values:
            group = consumer_records.group_of(name, values)
            left = stale | {keys.Key(keys.Kind.CLASSIC)} if name in self.groups else stale
            return replace(group, unstored=group.unstored | left)
        if any(key.kind.is_of_share for key in values):
            share = share_records.group_of(name, values)
            return replace(share, unstored=share.unstored | stale)
        return replace(self.groups.get(name, Group(id=name)), unstored=stale | values.keys())


@lru_cache(maxsize=8192)  # most groups commit offsets of the same partitions again and again
def offset_key(group: str, tp: TopicPartition) -> bytes:
    return (
        binary.SHORT.pack(OFFSET_KEY) + binary.string(group) + binary.string(tp.topic) + binary.INT.pack(tp.partition)
    )


def group_key(group: str) -> bytes:
    return binary.SHORT.pack(GROUP_KEY) + binary.string(group)


def read_key(data: bytes) -> Key:
    at = binary.Cursor(data)
    version = at.take_key_version(0, OFFSET_KEY, GROUP_KEY, consumer_records.DEPRECATED, *PARTS)
    if version in PARTS:
        return PartKey(*keys.read_key(at, version))
    group = at.take_string()
    if version == consumer_records.DEPRECATED:
        return PartKey(group, None)
    return (
        GroupKey(group) if version == GROUP_KEY else OffsetKey(group, TopicPartition(at.take_string(), at.take_int()))
    )


def offset_value(stored: Committed | NewOffset) -> bytes:
    if not stored.metadata and stored.expire_ms == NO_TIME:
        return _PLAIN_OFFSET.pack(OFFSET_VERSION, stored.offset, stored.leader_epoch, 0, stored.commit_ms)
    text = binary.string(stored.metadata)
    if stored.expire_ms != NO_TIME:
        head = binary.SHORT.pack(EXPIRING_OFFSET_VERSION) + binary.LONG.pack(stored.offset)
        return head + text + binary.LONG.pack(stored.commit_ms) + binary.LONG.pack(stored.expire_ms)
    head = _OFFSET_HEAD.pack(OFFSET_VERSION, stored.offset, stored.leader_epoch)
    return head + text + binary.LONG.pack(stored.commit_ms)


def read_offset(data: bytes, position: int) -> Committed:
    at = binary.Cursor(data)
    version = at.take_short()
    if not 0 <= version <= OFFSET_VERSION:
        raise binary.UnknownRecordError(f"offset version {version}")
    offset = at.take_long()
    leader_epoch = at.take_int() if version >= 3 else -1
    metadata, commit_ms = at.take_string(), at.take_long()
    expire_ms = at.take_long() if version == EXPIRING_OFFSET_VERSION else NO_TIME
    return Committed(offset, leader_epoch, metadata, commit_ms, expire_ms, position)


def group_value(group: Group) -> bytes:
    parts = [
        binary.SHORT.pack(GROUP_VERSION),
        binary.string(group.protocol_type or ""),
        binary.INT.pack(group.generation),
        binary.nullable(group.protocol),
        binary.nullable(group.leader),
        binary.LONG.pack(group.since_ms),
        binary.INT.pack(len(group.members)),
    ]
    for member in group.members.values():
        subscription = member.metadata(group.protocol or "")
        parts += (
            binary.string(member.id),
            binary.nullable(member.instance_id),
            binary.string(member.client_id),
            binary.string(member.client_host),
            binary.INT.pack(member.rebalance_timeout_ms),
            binary.INT.pack(member.session_timeout_ms),
            binary.INT.pack(len(subscription)) + subscription,
            binary.INT.pack(len(member.assignment)) + member.assignment,
        )
    return b"".join(parts)


def read_group(group: str, data: bytes) -> Group:
    """Return the group without its offsets; `resume` begins the sessions of its members."""
    at = binary.Cursor(data)
    version = at.take_short()
    if not 0 <= version <= GROUP_VERSION:
        raise binary.UnknownRecordError(f"group version {version}")
    protocol_type, generation = at.take_string() or None, at.take_int()
    protocol, leader = at.take_nullable(), at.take_nullable()
    since_ms = at.take_long() if version >= 2 else NO_TIME
    members = [_read_member(at, version, protocol or "") for _ in range(at.take_int())]
    return Group(
        id=group,
        phase=Phase.STABLE if members else Phase.EMPTY,
        since_ms=since_ms,
        protocol_type=protocol_type,
        generation=generation,
        protocol=protocol,
        leader=leader,
        members={member.id: member for member in members},
    )


def _read_member(at: binary.Cursor, version: int, protocol: str) -> Member:
    member_id = at.take_string()
    instance_id = at.take_nullable() if version >= 3 else None
    client_id, client_host = at.take_string(), at.take_string()
    rebalance_timeout_ms = at.take_int() if version >= 1 else None
    session_timeout_ms = at.take_int()
    return Member(
        id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms is None else rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        protocols=((protocol, at.take_bytes()),),
        deadline_ms=0,
        assignment=at.take_bytes(),
    )
