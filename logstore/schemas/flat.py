"""JSON documents of flat columns, straight to Arrow's buffers: the common ones, which are read as `conversion` says.

The kernel passes over each document that is not written as most are; `documents` reads those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from logstore.records.columns import bits, cells
from logstore.schemas.parsed import are_utf8

PIECE_BYTES = 16 * 1024 * 1024  # a column of texts has room for all that is read at once

_TESTS: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_string,
    pa.types.is_signed_integer,
    pa.types.is_float64,
    pa.types.is_boolean,
    pa.types.is_date32,
    pa.types.is_decimal128,
    lambda kind: pa.types.is_timestamp(kind) and kind.unit == "us",
)


class Read(NamedTuple):
    """The columns of the documents that were read, and which these are."""

    columns: list[pa.Array]
    is_read: np.ndarray


def is_flat(fields: Sequence[pa.Field]) -> bool:
    """Whether `read` takes these columns."""
    return bool(fields) and all(f.nullable and any(test(f.type) for test in _TESTS) for f in fields)


def read(values: pa.Array, fields: Sequence[pa.Field]) -> Read:
    """Return what can be read at once of these values (binary, JSON objects), as columns of these fields."""
    step = max(1, len(values) * PIECE_BYTES // max(values.nbytes, 1))
    pieces = [_read(values.slice(start, step), fields) for start in range(0, len(values), step)]
    if len(pieces) == 1:
        return pieces[0]
    columns = [pa.concat_arrays(parts) for parts in zip(*(piece.columns for piece in pieces), strict=True)]
    return Read(columns, np.concatenate([piece.is_read for piece in pieces]))


def _read(values: pa.Array, fields: Sequence[pa.Field]) -> Read:
    from logstore.records.kernels import json_columns as kernel

    found = cells(values, "value")
    is_text = are_utf8(values)
    if not is_text.all():
        found.sizes[~is_text] = -1
    room = int(np.maximum(found.sizes, 0).sum())
    columns = [_Column(f, len(values), room) for f in fields]
    names = cells(pa.array([f.name for f in fields], pa.string()), "name")
    words = np.array(
        [
            [address, size, *column.words()]
            for address, size, column in zip(names.addresses, names.sizes, columns, strict=True)
        ],
        np.int64,
    )
    is_read = np.empty(len(values), np.uint8)
    objects = kernel.Objects(*found.pointers(), len(values), words.ctypes.data, len(columns), is_read.ctypes.data)
    rows = kernel.read_objects(objects)
    return Read([column.array(rows) for column in columns], is_read.view(np.bool_))


class _Column:
    """The buffers of a column."""

    def __init__(self, field: pa.Field, rows: int, room: int) -> None:
        self._kind = field.type
        self._valid = np.empty(rows, np.uint8)
        is_text, is_double = pa.types.is_string(field.type), pa.types.is_float64(field.type)
        width = 0 if is_text else 1 if pa.types.is_boolean(field.type) else 16 if self._is_decimal else 8
        self._values = np.zeros(rows * width, np.uint8)  # of a null: 0
        self._ends = np.zeros(rows + 1, np.int32) if is_text or is_double else None
        self._text = np.empty(room if is_text or is_double else 0, np.uint8)

    @property
    def _is_decimal(self) -> bool:
        return bool(pa.types.is_decimal128(self._kind))

    def words(self) -> list[int]:
        ends = 0 if self._ends is None else self._ends.ctypes.data
        buffers = [self._values.ctypes.data, self._valid.ctypes.data, ends, self._text.ctypes.data]
        kind, *numbers = self._rule()
        return [kind, *buffers, *numbers]

    def _rule(self) -> tuple[int, int, int]:
        from logstore.records.kernels import json_columns as kernel

        kind = self._kind
        if pa.types.is_string(kind):
            return kernel.TEXT, 0, 0
        if pa.types.is_integer(kind):
            return kernel.INTEGER, (1 << kind.bit_width - 1) - 1, 0
        if self._is_decimal:
            return kernel.DECIMAL, kind.precision, kind.scale
        if pa.types.is_timestamp(kind):
            return kernel.MOMENT, int(kind.tz is not None), 0
        if pa.types.is_date(kind):
            return kernel.DAY, 0, 0
        return (kernel.BOOLEAN if pa.types.is_boolean(kind) else kernel.DOUBLE), 0, 0

    def array(self, rows: int) -> pa.Array:
        """Return the first rows."""
        is_valid = self._valid[:rows]
        validity = None if is_valid.all() else bits(is_valid)
        if pa.types.is_string(self._kind):
            return pa.Array.from_buffers(self._kind, rows, [validity, *self._texts(rows)])
        if pa.types.is_float64(self._kind):
            self._divide(rows)
        return pa.Array.from_buffers(self._kind, rows, [validity, self._data(rows)])

    def _data(self, rows: int) -> pa.Buffer:
        if pa.types.is_boolean(self._kind):
            return bits(self._values[:rows])
        width = int(self._kind.bit_width) // 8
        if width >= 8:
            return pa.py_buffer(self._values)
        return pa.py_buffer(self._values.view(np.int64)[:rows].astype(f"i{width}"))

    def _texts(self, rows: int) -> tuple[pa.Buffer, pa.Buffer]:
        assert self._ends is not None
        return pa.py_buffer(self._ends[: rows + 1]), pa.py_buffer(self._text[: self._ends[rows]])

    def _divide(self, rows: int) -> None:
        """Read the numbers that were left as texts."""
        assert self._ends is not None
        is_text = np.diff(self._ends[: rows + 1]) > 0
        if is_text.any():
            texts = pa.Array.from_buffers(pa.string(), rows, [None, *self._texts(rows)])
            numbers = texts.filter(pa.array(is_text)).cast(pa.float64())
            self._values.view(np.float64)[:rows][is_text] = numbers.to_numpy()
