"""The columns of a schema as the kernels have them, and as Arrow's arrays: which buffers each has, what they count.

A counter is of a level (the rows, or the items of one array), or of the bytes of one column of texts. The buffers of a
counter have room for as many items, and grow together. Validity is a byte per item, until it becomes Arrow's bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from logstore.errors import InvalidRecordError
from logstore.schemas.avro.schema import Schema
from logstore.schemas.avro.types import Shape, field_of, fields_of, shape_of

_ROOM_MAX = (1 << 31) - 1  # Arrow's offsets have 32 bits
_ROOM_MIN = 64


@dataclass
class Column:
    """A column of the reader; numbers of counters and buffers, -1 for none."""

    type: pa.DataType
    schema: Schema
    shape: Shape
    level: int
    validity: int = -1
    buffer: int = -1  # values, or offsets
    counter: int = -1  # what offsets count: the items or the bytes
    content: int = -1  # the bytes
    children: list[Column] = field(default_factory=list)

    @property
    def is_struct(self) -> bool:
        return bool(pa.types.is_struct(self.type))

    @property
    def null_width(self) -> int:
        """Bytes of a value; 0: it has none, -1: it has an offset."""
        if self.counter >= 0:
            return -1
        if self.is_struct or pa.types.is_null(self.type):
            return 0
        return max(1, int(self.type.bit_width) // 8)


class Layout:
    """Columns of the reader's schema, below a root that is no column; `buffers`: (counter, width, items beside).

    `each_validity`: columns that cannot be null have a buffer of validity, too.
    """

    def __init__(self, reader: Schema, column: str = "value", *, each_validity: bool = False) -> None:
        self.fields = tuple(f.with_nullable(True) for f in fields_of(reader, column))  # a value may be none at all
        self._each_validity = each_validity
        self.counters = 1
        self.buffers: list[tuple[int, int, int]] = []
        self.text_counters: list[int] = []
        parts = [f.schema for f in reader.fields] if reader.kind == "record" else [reader]
        self.columns = [self._column(part, 0, nullable=True) for part in parts]
        whole = Column(pa.struct(self.fields), reader, Shape(reader, nullable=False), 0, children=self.columns)
        self.root = whole if reader.kind == "record" else self.columns[0]

    def _add_buffer(self, counter: int, width: int, beside: int = 0) -> int:
        self.buffers.append((counter, width, beside))
        return len(self.buffers) - 1

    def _add_counter(self) -> int:
        self.counters += 1
        return self.counters - 1

    def _column(self, schema: Schema, level: int, *, nullable: bool = False) -> Column:
        shape, kind = shape_of(schema), field_of("", schema).type
        found = Column(kind, schema, shape, level)
        if (nullable or shape.nullable or self._each_validity) and not pa.types.is_null(kind):
            found.validity = self._add_buffer(level, 1)
        if shape.members:
            found.children = [self._column(member, level, nullable=True) for member in shape.members]
        elif found.is_struct:
            found.children = [self._column(f.schema, level) for f in shape.schema.fields]
        elif shape.schema.kind in ("array", "map"):
            found.buffer, found.counter = self._add_buffer(level, 4, 1), self._add_counter()
            parts = [Schema("string")] if shape.schema.kind == "map" else []
            found.children = [self._column(part, found.counter) for part in (*parts, *shape.schema.items)]
        elif pa.types.is_string(kind) or pa.types.is_binary(kind):
            found.buffer, found.counter = self._add_buffer(level, 4, 1), self._add_counter()
            found.content = self._add_buffer(found.counter, 1)
            self.text_counters.append(found.counter)
        elif found.null_width:
            found.buffer = self._add_buffer(level, found.null_width)
        return found


class Buffers:
    """The memory of a layout for some rows, and their bytes in all."""

    def __init__(self, layout: Layout, rows: int, total_bytes: int) -> None:
        self._layout = layout
        self.counts = np.zeros(layout.counters, np.int64)
        self.rooms = np.full(layout.counters, max(rows, 1), np.int64)
        if layout.text_counters:
            text_room = max(_ROOM_MIN, 2 * total_bytes // len(layout.text_counters))
            self.rooms[layout.text_counters] = min(text_room, _ROOM_MAX)
        self._arrays = [self._allocated(number) for number in range(len(layout.buffers))]

    def _allocated(self, number: int) -> np.ndarray:
        counter, width, beside = self._layout.buffers[number]
        made = np.empty(width * (int(self.rooms[counter]) + beside), np.uint8)
        if beside:
            made[:4] = 0  # the first offset
        return made

    def addresses(self) -> np.ndarray:
        return np.array([array.ctypes.data for array in self._arrays], np.int64)

    def grow(self, counter: int, needed: int) -> None:
        """Make room for so many.

        Raises: InvalidRecordError: more than a column can have.
        """
        if needed > _ROOM_MAX:
            raise InvalidRecordError("a column would have more than 2 GiB, or items: read fewer records at once")
        self.rooms[counter] = min(max(2 * int(self.rooms[counter]), needed, _ROOM_MIN), _ROOM_MAX)
        for number, (owner, _, _) in enumerate(self._layout.buffers):
            if owner == counter:
                before, self._arrays[number] = self._arrays[number], self._allocated(number)
                self._arrays[number][: len(before)] = before

    def arrays(self) -> list[pa.Array]:
        """Return the columns as far as they were written."""
        return [self._array(column) for column in self._layout.columns]

    def _array(self, column: Column) -> pa.Array:
        count, kind = int(self.counts[column.level]), column.type
        if pa.types.is_null(kind):
            return pa.nulls(count)
        valid, nulls = self._bits(column.validity, count)
        children = [self._array(child) for child in column.children]
        if column.is_struct:
            return pa.Array.from_buffers(kind, count, [valid], nulls, 0, children)
        if pa.types.is_boolean(kind):
            data = pa.py_buffer(np.packbits(self._arrays[column.buffer][:count], bitorder="little"))
        else:
            data = pa.py_buffer(self._arrays[column.buffer])
        if column.content >= 0:
            return pa.Array.from_buffers(kind, count, [valid, data, pa.py_buffer(self._arrays[column.content])], nulls)
        if pa.types.is_map(kind):
            pairs = pa.StructArray.from_arrays(children, fields=[kind.key_field, kind.item_field])
            children = [pairs]
        return pa.Array.from_buffers(kind, count, [valid, data], nulls, 0, children)

    def _bits(self, validity: int, count: int) -> tuple[pa.Buffer | None, int]:
        if validity < 0:
            return None, 0
        valid = self._arrays[validity][:count]
        nulls = count - int(np.count_nonzero(valid))
        return (pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None), nulls
