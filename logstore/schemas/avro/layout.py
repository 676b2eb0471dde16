"""The columns of a schema as the kernels have them, and as Arrow's arrays: which buffers each has, what they count.

A counter is of a level (the rows, or the items of one array), or of the bytes of one column of texts. The buffers of a
counter have room for as many items, and grow together. Validity is a byte per item, until it becomes Arrow's bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import numpy as np
import pyarrow as pa

from logstore.errors import InvalidRecordError
from logstore.records.columns import bits
from logstore.schemas.avro.schema import Schema
from logstore.schemas.avro.types import Shape, field_of, fields_of, shape_of
from logstore.schemas.parsed import as_map

_ROOM_MAX = (1 << 31) - 1  # Arrow's offsets have 32 bits
_ROOM_MIN = 64
# The items or the text of one column may take so much for one value. Without defaults of the reader, 100 MiB of
# decimals take less.
VALUE_BYTES_MAX = (1 << 31) - 1
_FIRST_OFFSET = bytes(4)
_ALIGNED = 64
_SHARED_MAX = 1024 * 1024  # bytes of small batches lie side by side; a larger column does not keep others alive


@dataclass
class Column:
    """A column of the reader; numbers of counters and buffers, -1 for none."""

    type: pa.DataType
    schema: Schema
    shape: Shape
    level: int
    is_nullable: bool = True  # where there is a row at all
    validity: int = -1
    buffer: int = -1  # values, or offsets
    counter: int = -1  # what offsets count: the items or the bytes
    content: int = -1  # the bytes
    children: list[Column] = field(default_factory=list)

    @cached_property
    def is_null(self) -> bool:
        return bool(pa.types.is_null(self.type))

    @cached_property
    def is_struct(self) -> bool:
        return bool(pa.types.is_struct(self.type))

    @cached_property
    def is_boolean(self) -> bool:
        return bool(pa.types.is_boolean(self.type))

    @cached_property
    def is_map(self) -> bool:
        return bool(pa.types.is_map(self.type))

    @cached_property
    def null_width(self) -> int:
        """Bytes of a value; 0: it has none, -1: it has an offset."""
        if self.counter >= 0:
            return -1
        if self.is_struct or self.is_null:
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
        for each in self.columns:
            each.is_nullable = each.shape.nullable
        whole = Column(pa.struct(self.fields), reader, Shape(reader, nullable=False), 0, children=self.columns)
        self.root = whole if reader.kind == "record" else self.columns[0]

    @cached_property
    def offset_buffers(self) -> list[int]:
        return [number for number, (_, _, beside) in enumerate(self.buffers) if beside]

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
    """The memory of a layout for some rows, and their bytes in all; `counts` are those of its counters.

    `has_nulls`: a row may be none at all.
    """

    def __init__(self, layout: Layout, counts: np.ndarray, rows: int, total_bytes: int, *, has_nulls: bool) -> None:
        self._layout, self._counts, self._has_nulls = layout, counts, has_nulls
        rooms = [max(rows, 1)] * layout.counters
        for counter in layout.text_counters:
            rooms[counter] = min(max(_ROOM_MIN, 2 * total_bytes // len(layout.text_counters)), _ROOM_MAX)
        self.rooms = np.array(rooms, np.int64)
        sizes = [width * (rooms[counter] + beside) for counter, width, beside in layout.buffers]
        ends = [*accumulate(size + _ALIGNED - 1 & -_ALIGNED for size in sizes)]
        self._parts = [*zip([0, *ends], sizes, strict=False)]
        self._own: dict[int, pa.Buffer] = {}
        self.addresses = np.array([0, *ends], np.int64)
        if ends and ends[-1] <= _SHARED_MAX:
            self._shared = pa.allocate_buffer(ends[-1])
            self.addresses += self._shared.address
            memory = memoryview(self._shared).cast("B")
            for number in layout.offset_buffers:
                at = self._parts[number][0]
                memory[at : at + 4] = _FIRST_OFFSET
        else:
            for number in range(len(sizes)):
                self._allocate(number)

    def _allocate(self, number: int) -> None:
        counter, width, beside = self._layout.buffers[number]
        self._own[number] = made = pa.allocate_buffer(width * (int(self.rooms[counter]) + beside))
        if beside:
            memoryview(made).cast("B")[:4] = _FIRST_OFFSET
        self.addresses[number] = made.address

    def _held(self, number: int) -> pa.Buffer:
        found = self._own.get(number)
        return self._shared.slice(*self._parts[number]) if found is None else found

    def grow(self, counter: int, needed: int) -> bool:
        """Make room for so many, unless the value that is read takes too much by itself.

        Raises: InvalidRecordError: more than a column can have.
        """
        own = needed - int(self._counts[counter])
        if own * sum(width for at, width, _ in self._layout.buffers if at == counter) > VALUE_BYTES_MAX:
            return False
        if needed > _ROOM_MAX:
            raise InvalidRecordError("a column would have more than 2 GiB, or items: read fewer records at once")
        self.rooms[counter] = min(max(2 * int(self.rooms[counter]), needed, _ROOM_MIN), _ROOM_MAX)
        for number, buffer in enumerate(self._layout.buffers):
            if buffer[0] == counter:
                before = self._held(number)
                self._allocate(number)
                memoryview(self._own[number]).cast("B")[: before.size] = memoryview(before).cast("B")
        return True

    def arrays(self) -> list[pa.Array]:
        """Return the columns as far as they were written."""
        return [self._array(column) for column in self._layout.columns]

    def _array(self, column: Column) -> pa.Array:
        count, kind = int(self._counts[column.level]), column.type
        if column.is_null:
            return pa.nulls(count)
        valid, nulls = self._bits(column, count)
        children = [self._array(child) for child in column.children]
        if column.is_struct:
            return pa.Array.from_buffers(kind, count, [valid], nulls, 0, children)
        data = self._held(column.buffer)
        if column.is_boolean:
            data = bits(np.frombuffer(data, np.uint8, count))
        if column.content >= 0:
            return pa.Array.from_buffers(kind, count, [valid, data, self._held(column.content)], nulls)
        if column.is_map:
            return as_map(kind, valid, np.diff(np.frombuffer(data, np.int32, count + 1)), *children)
        return pa.Array.from_buffers(kind, count, [valid, data], nulls, 0, children)

    def _bits(self, column: Column, count: int) -> tuple[pa.Buffer | None, int]:
        if column.validity < 0 or not (column.is_nullable or self._has_nulls):
            return None, 0
        valid = np.frombuffer(self._held(column.validity), np.uint8, count)
        nulls = count - int(np.count_nonzero(valid))
        return (bits(valid) if nulls else None), nulls
