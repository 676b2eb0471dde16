"""Columns to Avro data of one schema, many rows at once, without a Python object per record."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import InvalidRecordError
from logstore.records.kernels import avro_writing as kernel
from logstore.schemas.avro.assembly import Run
from logstore.schemas.avro.layout import Column, Layout
from logstore.schemas.avro.schema import Schema
from logstore.schemas.avro.writing import writing
from logstore.schemas.ddl import type_name
from logstore.schemas.misfits import UnwritableError

_ROOM_MAX = (1 << 31) - 1
_ROW_BYTES, _ROW_BYTES_MAX = 64, 4096  # a guess, for the first room

_REASONS = {
    kernel.MISSING: "null, and the schema has no null there",
    kernel.BAD_SYMBOL: "no symbol of the enum",
    kernel.BAD_SIZE: "not as many bytes as the fixed type has",
    kernel.BAD_DECIMAL: "the decimal has too many digits",
    kernel.NO_MEMBER: "no member of the union is there",
}


class Encoder:
    """Writes rows of a schema: a program, made once, for any number of calls and threads. `fields` are the columns.

    Times are rounded down to milliseconds where the schema has these, as Spark does it.
    """

    def __init__(self, schema: Schema, column: str = "value") -> None:
        self._schema, self._column = schema, column
        self._row_bytes = _ROW_BYTES  # of the rows that were written last
        self._layout = Layout(schema, column, each_validity=True)
        self.fields = self._layout.fields
        self._instructions = writing(self._layout)
        self._code = self._instructions.finished(self._layout.counters)

    def __reduce__(self) -> tuple[object, ...]:
        return Encoder, (self._schema, self._column)

    def encode(self, columns: pa.RecordBatch, before: bytes = b"") -> pa.Array:
        """Return a value (binary) for each row of these columns, with these bytes before each.

        Raises: UnwritableError: a row that the schema cannot carry; InvalidRecordError: a column of another type, or
            more than 2 GiB in all.
        """
        sources = _Sources(self._layout)
        for column, array, field in zip(self._layout.columns, columns.columns, self.fields, strict=True):
            sources.bind(column, array, field.name)
        return self._run(sources, columns.num_rows, before)

    def _run(self, sources: _Sources, rows: int, before: bytes) -> pa.Array:
        run, prefix = Run(self._code), np.frombuffer(before or b"\x00", np.uint8)
        run.fill("buffer", sources.addresses)
        offsets = np.zeros(rows + 1, np.int32)
        data = np.empty(min((self._row_bytes + len(before)) * (rows + 1), _ROOM_MAX), np.uint8)
        work = kernel.Output(
            run.program,
            run.counters_at,
            0,
            rows,
            offsets.ctypes.data,
            data.ctypes.data,
            len(data),
            prefix.ctypes.data,
            len(before),
        )
        while True:
            row, error, at = kernel.write_rows(work)
            if row == rows:
                break
            if error != kernel.NO_ROOM:
                raise UnwritableError(row, f"{self._instructions.paths[at]}: {_REASONS[error]}")
            data = _more(data)
            work = work._replace(begin=row, data=data.ctypes.data, room=len(data))
        self._row_bytes = min(max(_ROW_BYTES, int(offsets[-1]) // max(rows, 1) * 9 // 8), _ROW_BYTES_MAX)
        return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)], 0)


def _more(data: np.ndarray) -> np.ndarray:
    if len(data) == _ROOM_MAX:
        raise InvalidRecordError("the values would have more than 2 GiB: write fewer rows at once")
    found = np.empty(min(2 * len(data), _ROOM_MAX), np.uint8)
    found[: len(data)] = data
    return found


class _Sources:
    """The addresses of the buffers of a layout, in the arrays that are bound to its columns."""

    def __init__(self, layout: Layout) -> None:
        self.addresses = np.zeros(len(layout.buffers), np.int64)
        self._kept: list[object] = []

    def bind(self, column: Column, array: pa.Array, path: str) -> None:
        """Raises: InvalidRecordError: an array of another type."""
        if column.is_null:
            return
        if not column.children and array.type != column.type:
            array = _cast(array, column.type, path)
        if array.null_count:
            self._put(column.validity, _valid(array))
        if column.counter >= 0 and column.content < 0:
            self._bind_items(column, array, path)
        elif column.is_struct:
            self._bind_struct(column, array, path)
        elif column.shape.schema.kind == "enum":
            found = pc.index_in(array, value_set=pa.array(column.shape.schema.symbols, pa.string()))
            self._put(column.buffer, found.fill_null(-1).to_numpy())
        elif column.is_boolean:
            self._put(column.buffer, _unpacked(array.buffers()[1], array))
        elif column.content >= 0:
            _, offsets, data = array.buffers()
            self._kept.append(array)
            self.addresses[column.buffer] = offsets.address + 4 * array.offset if offsets else 0
            self.addresses[column.content] = data.address if data else 0
        else:
            self._kept.append(array)
            data = array.buffers()[1]
            self.addresses[column.buffer] = data.address + column.null_width * array.offset if data else 0

    def _bind_struct(self, column: Column, array: pa.Array, path: str) -> None:
        shape = column.shape
        names = [f"member{i}" for i in range(len(shape.members))] or [f.name for f in shape.schema.fields]
        if not pa.types.is_struct(array.type) or [f.name for f in array.type] != names:
            raise InvalidRecordError(f"column {path!r} is {type_name(array.type)}: it must be {type_name(column.type)}")
        for number, (child, name) in enumerate(zip(column.children, names, strict=True)):
            self.bind(child, array.field(number), f"{path}.{name}")

    def _bind_items(self, column: Column, array: pa.Array, path: str) -> None:
        is_map = column.is_map
        if not (pa.types.is_map(array.type) if is_map else pa.types.is_list(array.type)):
            raise InvalidRecordError(f"column {path!r} is {type_name(array.type)}: it must be {type_name(column.type)}")
        offsets = np.zeros(1, np.int32)
        if len(array):
            offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
        first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
        self._put(column.buffer, offsets - offsets[0])
        parts = [array.keys, array.items] if is_map else [array.values]
        for child, part in zip(column.children, parts, strict=True):
            self.bind(child, part.slice(first, count), f"{path}[]")

    def _put(self, buffer: int, data: np.ndarray) -> None:
        kept = np.ascontiguousarray(data)
        self._kept.append(kept)
        self.addresses[buffer] = kept.ctypes.data


def _valid(array: pa.Array) -> np.ndarray:
    bits = array.buffers()[0]
    return np.zeros(len(array), np.uint8) if bits is None else _unpacked(bits, array)


def _unpacked(bits: pa.Buffer, array: pa.Array) -> np.ndarray:
    """Return the bits of an array, a byte each."""
    until = array.offset + len(array)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=until, bitorder="little")[array.offset :]


def _cast(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowException as error:
        raise InvalidRecordError(
            f"column {path!r} is {type_name(array.type)}: it must be {type_name(kind)} ({error})"
        ) from None
