"""Rows: the columns of one append as the kernels take them, found once however many partitions they go to."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import InvalidRecordError, RecordTooLargeError, did_you_mean
from logstore.records import addresses
from logstore.records.batch import HEADER_BYTES, NO_TIMESTAMP
from logstore.records.columns import (
    Cells,
    HeaderCells,
    cells,
    header_cells,
    stored_field_bytes,
    timestamps_ms,
    varint_bytes,
)
from logstore.records.framing import id_of

COLUMNS = ("key", "value", "headers", "timestamp", "partition")

_FIXED_BYTES = 3  # attributes and the two deltas of a first record
# A batch of one record beside key, value and headers: at most 5 bytes for each of its three lengths.
_FRAMING_BYTES_MAX = HEADER_BYTES + _FIXED_BYTES + 3 * 5


class Rows:
    """The rows of `data`, with what their columns point to kept alive.

    Columns: `value`, and if there `key`, `headers`, `timestamp` (null or none: `now_ms`) and `partition`.

    Raises: InvalidRecordError: a column of a type that cannot be stored.
    """

    def __init__(self, data: pa.RecordBatch | pa.Table, *, now_ms: int) -> None:
        self._data: Any = data
        self.count = data.num_rows
        self.names = data.schema.names
        self.key = cells(data.column("key"), "key") if "key" in self.names else Cells.none()
        self.partition = data.column("partition") if "partition" in self.names else None
        self._value = cells(data.column("value"), "value") if "value" in self.names else Cells.none()
        self._headers = header_cells(data.column("headers")) if "headers" in self.names else None
        self._timestamps = timestamps_ms(data, now_ms)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of these one after the other, to encode: without `partition`, and without a copy of their bytes."""
        whole = cls.__new__(cls)
        whole._data, whole.names, whole.partition = parts, [], None
        whole.count = sum(part.count for part in parts)
        whole.key = Cells.joined([(part.key, part.count) for part in parts])
        whole._value = Cells.joined([(part._value, part.count) for part in parts])
        whole._headers = HeaderCells.joined([(part._headers, part.count) for part in parts])
        whole._timestamps = np.concatenate([part._timestamps for part in parts])
        return whole

    def check(self, *, batch_bytes_max: int, keys_required: bool) -> None:
        """Raise unless every row can be appended: names of the columns, keys where needed, times, sizes.

        Raises: InvalidRecordError, RecordTooLargeError: with the column or the row.
        """
        for name in self.names:
            if name not in COLUMNS:
                raise InvalidRecordError(f"no column {name!r} can be stored{did_you_mean(name, COLUMNS)}")
        if len(set(self.names)) < len(self.names):
            raise InvalidRecordError(f"a column appears twice: {', '.join(self.names)}")
        if "value" not in self.names:
            raise InvalidRecordError("column 'value' is missing (binary or string)")
        if keys_required and len(without := np.flatnonzero(self.key.sizes_of(self.count) < 0)):
            raise InvalidRecordError(
                f"row {without[0]}: no key, and the topic needs keys (cleanup.policy=compact)",
                row=int(without[0]),
            )
        if self._timestamps.min(initial=0) < NO_TIMESTAMP:
            row = int(np.argmax(self._timestamps < NO_TIMESTAMP))
            raise InvalidRecordError(
                f"row {row}: timestamp {self._timestamps[row]} ms is before 1970, and Kafka's clients refuse such; "
                "leave it null (now), set -1 (none), or keep that time in the value",
                row=row,
            )
        fields = self._fields()
        if sum(int(sizes.max(initial=0)) for sizes in fields) + _FRAMING_BYTES_MAX <= batch_bytes_max:
            return
        sizes = _stored_bytes(*fields)
        if len(too_large := np.flatnonzero(sizes > batch_bytes_max)):
            row = int(too_large[0])
            raise RecordTooLargeError(int(sizes[row]), batch_bytes_max, f"row {row}: a record")

    def check_times(self, allowed: range) -> None:
        """Raise unless every timestamp is allowed. Raises: InvalidRecordError: with the row."""
        times = self._timestamps
        # Python numbers, because the bounds may be beyond int64.
        if not self.count or (int(times.min()) >= allowed.start and int(times.max()) < allowed.stop):
            return
        late = times.astype(object) >= allowed.stop
        row = int(np.flatnonzero(late | (times.astype(object) < allowed.start))[0])
        setting = "after" if late[row] else "before"
        raise InvalidRecordError(
            f"row {row} has the timestamp {times[row]}, further from now than "
            f"message.timestamp.{setting}.max.ms allows",
            row=row,
        )

    def first_strange(self, part: str, ids: array[int]) -> tuple[int, int] | None:
        """Return the first row whose value, or key, bears no schema id of `ids`, which are in order, and `id_of` it."""
        from logstore.records import kernels

        column = self.key if part == "key" else self._value
        if column.sizes is None:
            return None
        row = kernels.strange_row(*column.pointers(), self.count, *ids.buffer_info())
        if row < 0:
            return None
        found = self._data.column(part)[row].as_py()
        return row, id_of(found.encode() if isinstance(found, str) else found)

    def _fields(self) -> tuple[Any, Any, Any]:
        """For every row the sizes of key and value (-1: null), and the bytes of the stored headers."""
        headers = self._headers.stored_bytes() if self._headers else np.ones(self.count, np.int64)
        return self.key.sizes_of(self.count), self._value.sizes_of(self.count), headers

    def digest(self, topic: str) -> int:
        """The sum, modulo 2^64, of a hash of every row: equal for the same rows of a topic, in any order.

        Only what the columns give a row counts, not the time or partition that the log gives it.
        """
        from logstore.records import kernels

        given = [_given(self._data, name) for name in ("timestamp", "partition")]
        places = (0 if column is None else column.ctypes.data for column in given)
        seed = zlib.crc32(topic.encode())
        return kernels.digest(self.addresses(None), self.count, seed, *places) & (2**64 - 1)

    def addresses(self, order: Any) -> addresses.Rows:
        """The arguments of the kernel; `order` lists the rows to take (int64), None: all."""
        headers = self._headers.addresses() if self._headers else (0,) * 6
        return addresses.Rows(
            0 if order is None else order.ctypes.data,
            *self.key.pointers(),
            *self._value.pointers(),
            self._timestamps.ctypes.data,
            *headers,
        )


def _given(data: pa.RecordBatch | pa.Table, name: str) -> Any:
    """A column of numbers as int64, -1 where it is null; None if there is none."""
    if name not in data.schema.names:
        return None
    if name == "timestamp":
        return timestamps_ms(data, -1)
    numbers = pc.fill_null(data.column(name).cast(pa.int64()), -1)
    return np.ascontiguousarray(numbers.combine_chunks() if isinstance(numbers, pa.ChunkedArray) else numbers)


def _stored_bytes(key_sizes: Any, value_sizes: Any, header_bytes: Any) -> Any:
    """Bytes of a batch that holds a row alone, uncompressed, for every row."""
    sizes = stored_field_bytes(key_sizes) + stored_field_bytes(value_sizes) + header_bytes
    sizes += _FIXED_BYTES
    return sizes + HEADER_BYTES + varint_bytes(sizes)
