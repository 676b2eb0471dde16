"""Confluent's framing: a byte 0, the id of the writer's schema in four bytes, big-endian, then the data."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from logstore.records.columns import Cells, cells
from logstore.records.framing import FRAMING_BYTES
from logstore.records.kernels import avro_reading as kernel

ID_MAX = (1 << 31) - 1
_REASONS = {
    -2: "no schema id: the first byte is not 0",
    -3: f"too short for a schema id: fewer than {FRAMING_BYTES} bytes",
}


class Framed(NamedTuple):
    """Values without their headers: the id of each, -1 of a null, and the reason of each that has none, by row."""

    ids: np.ndarray
    data: Cells
    reasons: dict[int, str]


def header(schema_id: int) -> bytes:
    """Return what comes before the data."""
    return struct.pack(">bI", 0, schema_id)


def split(values: pa.Array) -> Framed:
    """Return the ids of the values (binary), and where their data is; nothing is copied."""
    found = cells(values, "value")
    ids = np.empty(len(values), np.int64)
    kernel.wire_ids(*found.pointers(), len(ids), ids.ctypes.data)
    reasons = {int(row): _REASONS[int(ids[row])] for row in np.flatnonzero(ids < -1)}
    is_framed = ids >= 0
    data = Cells(found.addresses + FRAMING_BYTES * is_framed, found.sizes - FRAMING_BYTES * is_framed, found)
    return Framed(ids, data, reasons)
