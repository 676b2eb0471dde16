"""Arrow columns as the kernels take them: an address and a size per row, whatever the column's layout is.

String, binary, their large and view forms, fixed-size binary, slices, chunks and dictionaries all become the same two
int64 arrays, so that selecting and reordering rows costs no copy of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.config import INT64_MAX
from logstore.errors import InvalidRecordError

_NS_PER_MS = 1_000_000
# A zigzag varint needs one byte more from each of these on.
_VARINT_LIMITS = np.array([1 << 6, 1 << 13, 1 << 20, 1 << 27])
_PER_MS = {"us": 1_000, "ns": _NS_PER_MS}


def bits(flags: Any) -> pa.Buffer:
    """Return one bit for each of these, as Arrow says which rows are there, and which booleans are true."""
    return pa.py_buffer(np.packbits(np.asarray(flags, np.bool_), bitorder="little"))


class Cells:
    """The bytes of every row: `addresses` and `sizes` (-1: null), and what keeps them alive."""

    def __init__(self, addresses: Any, sizes: Any, owner: object) -> None:
        self.addresses = addresses
        self.sizes = sizes
        self._owner = owner

    @classmethod
    def none(cls) -> Cells:
        """A missing column."""
        return cls(None, None, None)

    @classmethod
    def joined(cls, parts: Sequence[tuple[Cells, int]]) -> Cells:
        """The cells of several columns, each with the count of its rows; a missing one gives nulls."""
        if all(part.sizes is None for part, _ in parts):
            return cls.none()
        addresses = [np.zeros(n, np.int64) if c.sizes is None else c.addresses for c, n in parts]
        return cls(np.concatenate(addresses), np.concatenate([c.sizes_of(n) for c, n in parts]), parts)

    def sizes_of(self, rows: int) -> Any:
        """The sizes; all null for a missing column."""
        return np.full(rows, -1, np.int64) if self.sizes is None else self.sizes

    def pointers(self) -> tuple[int, int]:
        return (0, 0) if self.sizes is None else (self.addresses.ctypes.data, self.sizes.ctypes.data)


_NO_CELLS = Cells(np.empty(0, np.int64), np.empty(0, np.int64), None)


class HeaderCells:
    """The headers of every row: index of the first and count, and the cells of all keys and values."""

    def __init__(self, first: Any, counts: Any, keys: Cells, values: Cells) -> None:
        self._first, self._counts, self._keys, self._values = first, counts, keys, values

    @classmethod
    def joined(cls, parts: Sequence[tuple[HeaderCells | None, int]]) -> HeaderCells | None:
        """The headers of several columns, each with the count of its rows; a missing one gives none."""
        if all(part is None for part, _ in parts):
            return None
        firsts, counts, keys, values, before = [], [], [], [], 0
        for part, rows in parts:
            found = part or cls(np.zeros(rows, np.int64), np.zeros(rows, np.int64), _NO_CELLS, _NO_CELLS)
            firsts.append(found._first + before)
            counts.append(found._counts)
            keys.append(found._keys)
            values.append(found._values)
            before += len(found._keys.sizes)
        return cls(_joined(firsts), _joined(counts), _joined_cells(keys), _joined_cells(values))

    def addresses(self) -> tuple[int, ...]:
        """The last six fields of `addresses.Rows`."""
        return (
            self._first.ctypes.data,
            self._counts.ctypes.data,
            *self._keys.pointers(),
            *self._values.pointers(),
        )

    def stored_bytes(self) -> Any:
        """Bytes that the headers of every row take in a record, their count included."""
        each = stored_field_bytes(self._keys.sizes) + stored_field_bytes(self._values.sizes)
        until = np.concatenate(([0], np.cumsum(each)))
        return varint_bytes(self._counts) + until[self._first + self._counts] - until[self._first]


_NO_HEADERS = HeaderCells(_NO_CELLS.sizes, _NO_CELLS.sizes, _NO_CELLS, _NO_CELLS)


def varint_bytes(sizes: Any) -> Any:
    """Bytes that each of these sizes (-1: null) takes as a zigzag varint."""
    return 1 + np.searchsorted(_VARINT_LIMITS, sizes, side="right")


def stored_field_bytes(sizes: Any) -> Any:
    """Bytes that fields of these sizes take in a record, their length included."""
    return varint_bytes(sizes) + np.maximum(sizes, 0)


def cells(column: pa.Array | pa.ChunkedArray, name: str) -> Cells:
    """Return the cells of a string or binary column.

    Raises: InvalidRecordError: a column of another type.
    """
    if pa.types.is_null(column.type):
        return Cells(np.zeros(len(column), np.int64), np.full(len(column), -1, np.int64), column)
    return _joined_cells([_cells(chunk, name) for chunk in _chunks(column)])


def header_cells(column: pa.Array | pa.ChunkedArray) -> HeaderCells:
    """Return the cells of a column list<struct<key: string, value: binary>>; a null row has no headers.

    Raises: InvalidRecordError: another type, a header that is null, or one without a key.
    """
    if pa.types.is_null(column.type):
        column = pa.nulls(len(column), pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    parts: list[tuple[HeaderCells | None, int]] = []
    for chunk in _chunks(column):
        first, count, pairs = _lists(chunk)
        if pairs.null_count:
            raise InvalidRecordError("column 'headers' has a header that is null")
        key, value = (cells(pairs.field(name), f"headers.{name}") for name in ("key", "value"))
        if (key.sizes < 0).any():
            raise InvalidRecordError("column 'headers' has a header whose key is null")
        parts.append((HeaderCells(first, count, key, value), len(chunk)))
    return HeaderCells.joined(parts) or _NO_HEADERS


def timestamps_ms(data: pa.RecordBatch | pa.Table, now_ms: int) -> Any:
    """Return the `timestamp` column as int64 milliseconds, rounded down; `now_ms` where null or missing.

    Raises: InvalidRecordError: neither a timestamp nor int64.
    """
    if "timestamp" not in data.schema.names:
        return np.full(data.num_rows, now_ms, dtype=np.int64)
    column = data.column("timestamp")
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(data.num_rows, now_ms, dtype=np.int64)
    if not (pa.types.is_timestamp(kind) or pa.types.is_int64(kind)):
        raise InvalidRecordError(f"column 'timestamp' is {kind}: it must be a timestamp, or int64 milliseconds")
    numbers = [_numbers(chunk, kind, now_ms) for chunk in _chunks(column)]
    return _joined(numbers)


def _numbers(chunk: pa.Array, kind: pa.DataType, now_ms: int) -> Any:
    raw = np.frombuffer(chunk.buffers()[1], dtype=np.int64)[chunk.offset : chunk.offset + len(chunk)]
    unit = kind.unit if pa.types.is_timestamp(kind) else "ms"
    nulls = _nulls(chunk) if chunk.null_count else np.False_
    if unit == "s" and (beyond := raw[(np.abs(raw) > INT64_MAX // 1_000) & ~nulls]).size:
        raise InvalidRecordError(f"column 'timestamp': {beyond[0]} s do not fit into 64 bits of milliseconds")
    ms = raw * 1_000 if unit == "s" else raw // _PER_MS[unit] if unit in _PER_MS else raw
    return np.ascontiguousarray(np.where(nulls, now_ms, ms) if chunk.null_count else ms)


def _chunks(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return [c for c in column.chunks if len(c)] if isinstance(column, pa.ChunkedArray) else [column]


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0, np.int64)])


def _joined_cells(parts: list[Cells]) -> Cells:
    addresses = _joined([p.addresses for p in parts])
    return Cells(addresses, _joined([p.sizes for p in parts]), parts)


def _nulls(array: pa.Array) -> Any:
    return pc.is_null(array).to_numpy(zero_copy_only=False)


def _cells(array: pa.Array, name: str) -> Cells:
    array = _plain(array, name)
    n = len(array)
    if not n:
        return Cells(np.empty(0, np.int64), np.empty(0, np.int64), array)
    _, offsets, data = array.buffers()
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    kind = np.int64 if wide else np.int32
    ends = np.frombuffer(offsets, dtype=kind)[array.offset : array.offset + n + 1].astype(np.int64)
    sizes = np.diff(ends)
    if array.null_count:
        sizes[_nulls(array)] = -1
    return Cells(ends[:-1] + (data.address if data else 0), sizes, array)


_WITH_OFFSETS = frozenset({pa.binary(), pa.string(), pa.large_binary(), pa.large_string()})


def _plain(array: pa.Array, name: str) -> pa.Array:
    """`array` as one of the four types with offsets."""
    kind, types = array.type, pa.types
    if kind in _WITH_OFFSETS:
        return array
    if types.is_dictionary(kind):
        return _plain(array.dictionary_decode(), name)
    if types.is_string_view(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return array.cast(pa.large_binary())
    raise InvalidRecordError(f"column {name!r} is {kind}: it must be string or binary")


def _lists(array: pa.Array) -> tuple[Any, Any, pa.Array]:
    """(index of the first header, count) of every row, and the headers of all rows; a null row has none."""
    kind = array.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    item = kind.value_type if is_list else kind
    if not (
        is_list and pa.types.is_struct(item) and item.get_field_index("key") >= 0 and item.get_field_index("value") >= 0
    ):
        raise InvalidRecordError(f"column 'headers' is {kind}: it must be list<struct<key: string, value: binary>>")
    counts = np.diff(array.offsets.to_numpy().astype(np.int64))
    if array.null_count:
        counts[_nulls(array)] = 0
    return np.cumsum(counts) - counts, counts, array.flatten()
