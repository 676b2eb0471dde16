"""The records of `__share_group_state`: Kafka's binary keys and values, byte for byte.

A key is its version (0: ShareSnapshot, 1: ShareUpdate), the group's id, the 16 bytes of the topic's id, and the
partition. A value is of version 0, and ends with tagged fields (`delivery_complete_count` 0, left out at its default)::

    ShareSnapshot: snapshot epoch int32, state epoch int32, leader epoch int32, start offset int64, created int64 ms,
                   written int64 ms, [first offset int64, last offset int64, state int8, delivery count int16]
    ShareUpdate:   snapshot epoch int32, leader epoch int32, start offset int64, [as above]

A ShareSnapshot without a value deletes the state. Fields that a later release adds are skipped.
"""

from __future__ import annotations

import struct
import uuid
from collections import Counter
from typing import NamedTuple

from replication.coordinators import binary
from replication.coordinators.share_state.machine.batches import Batches, StateBatch, combined
from replication.coordinators.share_state.machine.state import (
    NO_COUNT,
    Record,
    SharePartitionKey,
    Snapshot,
    Update,
)
from replication.coordinators.share_state.machine.step import applied
from replication.model.cluster import topic_id_of, topic_uuid

SNAPSHOT, UPDATE, VALUE_VERSION = 0, 1, 0
_COUNT_TAG = 0
_SNAPSHOT, _UPDATE, _BATCH = struct.Struct(">hiiiqqq"), struct.Struct(">hiiq"), struct.Struct(">qqbhB")


class LoadedState(NamedTuple):
    """`position` is the offset of the last snapshot: earlier records of the share partition say nothing more."""

    stored: Snapshot
    updates: int
    position: int


class Loaded:
    """The states of a partition of the topic. Every record counts, since updates add to what was before."""

    def __init__(self) -> None:
        self.states: dict[SharePartitionKey, LoadedState] = {}
        self.unknown: Counter[str] = Counter()
        self._end = 0

    def apply(self, position: int, key: bytes, value: bytes | None) -> None:
        """Take a record in; one that was taken before is not taken twice. Raises: UnknownRecordError."""
        if position < self._end:
            return
        try:
            kind, name = read_key(key)
        except binary.UnknownTypeError as error:
            self.unknown[str(error)] += 1
            return
        record = None if value is None else read_value(kind, value)
        before = self.states.get(name)
        stored, updates = applied(record, *(before[:2] if before is not None else (None, 0)))
        if stored is None:
            self.states.pop(name, None)
        else:
            at = before.position if before is not None and not isinstance(record, Snapshot) else position
            self.states[name] = LoadedState(stored, updates, at)
        self._end = position + 1

    def apply_open(self, producer_id: int, position: int, key: bytes, value: bytes | None) -> None:
        """Brokers write nothing in transactions here."""
        self.unknown["in a transaction"] += 1


def key_of(name: SharePartitionKey, record: Record) -> bytes:
    topic_id = topic_uuid(name.topic_id)
    assert topic_id is not None, "a share partition is of a topic with an id"
    kind = UPDATE if isinstance(record, Update) else SNAPSHOT
    head = binary.SHORT.pack(kind) + binary.string(name.group_id)
    return head + topic_id.bytes + binary.INT.pack(name.partition)


def read_key(data: bytes) -> tuple[int, SharePartitionKey]:
    at = binary.Cursor(data)
    kind = at.take_key_version(SNAPSHOT, UPDATE)
    group_id, topic_id = at.take_string(), uuid.UUID(bytes=at.take(16))
    return kind, SharePartitionKey(group_id, topic_id_of(topic_id), at.take_int())


def value_of(record: Snapshot | Update) -> bytes:
    if isinstance(record, Snapshot):
        head = _SNAPSHOT.pack(
            VALUE_VERSION,
            record.snapshot_epoch,
            record.state_epoch,
            record.leader_epoch,
            record.start_offset,
            record.created_ms,
            record.written_ms,
        )
    else:
        head = _UPDATE.pack(VALUE_VERSION, record.snapshot_epoch, record.leader_epoch, record.start_offset)
    count, rows = record.delivery_complete_count, (_BATCH.pack(*one, 0) for one in record.batches)
    tags = b"\x00" if count == NO_COUNT else bytes((1, _COUNT_TAG, 4)) + binary.INT.pack(count)
    return b"".join((head, binary.varint(len(record.batches) + 1), *rows, tags))


def read_value(kind: int, data: bytes) -> Snapshot | Update:
    at = binary.Cursor(data)
    version = at.take_short()
    if version != VALUE_VERSION:
        raise binary.UnknownRecordError(f"value version {version}")
    if kind == UPDATE:
        snapshot_epoch, leader_epoch, start_offset = at.take_int(), at.take_int(), at.take_long()
        batches = _read_batches(at, start_offset)
        return Update(
            snapshot_epoch=snapshot_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            batches=batches,
            delivery_complete_count=_read_count(at),
        )
    snapshot_epoch, state_epoch, leader_epoch = at.take_int(), at.take_int(), at.take_int()
    start_offset, created_ms, written_ms = at.take_long(), at.take_long(), at.take_long()
    batches = _read_batches(at, start_offset)
    return Snapshot(
        snapshot_epoch=snapshot_epoch,
        state_epoch=state_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        created_ms=created_ms,
        written_ms=written_ms,
        batches=batches,
        delivery_complete_count=_read_count(at),
    )


def _read_batches(at: binary.Cursor, start_offset: int) -> Batches:
    found = []
    for _ in range(at.take_varint() - 1):
        first, last, state, count = at.take_long(), at.take_long(), at.take_byte(), at.take_short()
        at.take_tags()
        found.append(StateBatch(first, last, state, count))
    return combined((), found, start_offset)


def _read_count(at: binary.Cursor) -> int:
    data = at.take_tags().get(_COUNT_TAG)
    return NO_COUNT if data is None else int.from_bytes(data, "big", signed=True)
