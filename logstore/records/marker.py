"""Control markers: the batch of one record that ends a transaction, COMMIT or ABORT."""

from __future__ import annotations

import struct
from typing import NamedTuple

from logstore.records.batch import CONTROL, TRANSACTIONAL, Record, build, records
from logstore.records.compression import Buffer

_KEY, _VALUE = struct.Struct(">hh"), struct.Struct(">hi")


class Marker(NamedTuple):
    """The end of a producer's transaction. `is_above`: its epoch is above that of the batches that it ends."""

    producer_id: int
    producer_epoch: int
    commits: bool
    coordinator_epoch: int
    is_above: bool


class ControlMarker(NamedTuple):
    kind: str
    coordinator_epoch: int


def control_marker(record: Record) -> ControlMarker:
    """Return the contents of a control record; an unknown type has the kind 'UNKNOWN'."""
    key, value = record.key or b"", record.value or b""
    kind = {0: "ABORT", 1: "COMMIT"}.get(int.from_bytes(key[2:4], "big", signed=True), "UNKNOWN")
    epoch = int.from_bytes(value[2:6], "big", signed=True) if len(value) >= 6 else -1
    return ControlMarker(kind if len(key) >= 4 else "UNKNOWN", epoch)


def marker_of(buffer: Buffer, position: int = 0) -> ControlMarker | None:
    """Return the marker in the control batch at `position`; None if compaction has emptied it.

    Raises: InvalidBatchError: damage of any kind.
    """
    return next((control_marker(record) for record in records(buffer, position)), None)


def end_marker(producer: tuple[int, int], *, commit: bool, coordinator_epoch: int, now_ms: int) -> bytearray:
    """Return the control batch that ends a transaction of this (producer id, epoch)."""
    key, value = _KEY.pack(0, int(commit)), _VALUE.pack(0, coordinator_epoch)
    return build([Record(0, now_ms, key, value)], attributes=CONTROL | TRANSACTIONAL, producer=(*producer, -1))
