"""A plan of resolution as a program for the kernel `avro_reading`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from logstore.records.kernels import avro_reading as ops
from logstore.schemas.avro.assembly import Program, Ref, Word, halves
from logstore.schemas.avro.layout import Column, Layout
from logstore.schemas.avro.resolution import Branches, Chosen, Constant, Items, Mismatch, Plan, Record, Skip, Value
from logstore.schemas.avro.schema import Schema

_LONG_MAX = (1 << 63) - 1


class Reading(NamedTuple):
    """The program that reads a row; `null_at`: the instruction from which on it notes a null."""

    program: Program
    null_at: int


def reading(plan: Plan, layout: Layout) -> Reading:
    """Return the program that reads a row into the columns of this layout."""
    program = Program()
    reader = _Reader(program)
    reader.read(plan, layout.root, "")
    program.add("", ops.DONE)
    null_at = program.next
    for column in layout.columns:
        reader.null(column, "")
    program.add("", ops.DONE)
    return Reading(program, null_at)


class _Reader:
    def __init__(self, program: Program) -> None:
        self._instructions = program

    def read(self, plan: Plan, column: Column, path: str) -> None:
        """Read what comes into the column."""
        match plan:
            case Mismatch(reason):
                self._instructions.reasons[self._instructions.add(path, ops.FAIL)] = reason
            case Skip(writer):
                self._skip(writer, path)
            case Value(writer, reader):
                self._value(writer, reader, column, path)
            case Constant(data, inner):
                kept = np.frombuffer(data or b"\x00", np.uint8)
                at = self._instructions.keep(kept)
                self._instructions.add(path, ops.CONSTANT, at, at + len(data))
                self.read(inner, column, path)
                self._instructions.add(path, ops.BACK)
            case Record():
                self._record(plan, column, path)
            case Items(writer, _):
                self._items(plan, column, path)
            case Branches(_, plans):
                self._branch(len(plans), path, lambda number: self.read(plans[number], column, path))
            case Chosen():
                self._chosen(plan, column, path)

    def null(self, column: Column, path: str) -> None:
        """Write a null, and something at the same place in the columns within."""
        self._put(ops.NULL, column, path, 4, column.null_width)
        if column.is_struct:
            for child in column.children:
                self.null(child, path)

    def _put(self, op: int, column: Column, path: str, *more: Word) -> int:
        """Add an instruction for a column; `more`: words and what they are, two by two."""
        words: list[Word] = [op, Ref("counter", column.level), 0, 0, 0, 0, 0, 0]
        if column.buffer >= 0:
            words[2] = Ref("buffer", column.buffer)
        if column.validity >= 0:
            words[3] = Ref("buffer", column.validity)
        if column.counter >= 0:
            words[5] = Ref("counter", column.counter)
        if column.content >= 0:
            words[4], words[6] = Ref("buffer", column.content), Ref("room", column.counter)
        for number, word in zip(more[::2], more[1::2], strict=True):
            assert isinstance(number, int)
            words[number] = word
        return self._instructions.add(path, *words)

    def _record(self, plan: Record, column: Column, path: str) -> None:
        if column.validity >= 0:
            self._put(ops.VALID, column, path)
        for name, number, part in plan.parts:
            within = f"{path}.{name}" if path else name
            self.read(part, column if number < 0 else column.children[number], within)

    def _chosen(self, plan: Chosen, column: Column, path: str) -> None:
        members = column.shape.members
        if not members:
            self.read(plan.plan, column, path)
        elif plan.branch.kind == "null":
            self.null(column, path)
        else:
            self._put(ops.VALID, column, path)
            chosen = members.index(plan.branch)
            for number, child in enumerate(column.children):
                if number != chosen:
                    self.null(child, path)
            self.read(plan.plan, column.children[chosen], path)

    def _items(self, plan: Items, column: Column, path: str) -> None:
        *keys, item = column.children
        within = f"{path}[]"

        def body() -> None:
            for key in keys:
                self._put(ops.TEXT, key, within)
            self.read(plan.item, item, within)

        self._blocks(plan.writer, path, body, column.counter)
        self._put(ops.LIST, column, path)

    def _blocks(self, writer: Schema, path: str, body: Callable[[], None], counter: int = -1) -> None:
        least = writer.items[0].least_bytes + (1 if writer.kind == "map" else 0)
        left = self._instructions.place()
        items: tuple[Word, Word] = (0, 0) if counter < 0 else (Ref("counter", counter), Ref("room", counter))
        block = self._instructions.add(path, ops.BLOCK, left, least, 0, *items)
        begin = self._instructions.next
        body()
        step = self._instructions.add(path, ops.NEXT, left, 0, 0, items[0])
        self._instructions.aim(step, 2, begin)
        self._instructions.aim(step, 3, block)
        self._instructions.aim(block, 3, self._instructions.next)

    def _branch(self, count: int, path: str, body: Callable[[int], None]) -> None:
        at = self._instructions.add(path, ops.BRANCH, count)
        targets: list[int] = []
        jumps: list[int] = []
        for number in range(count):
            targets.append(self._instructions.next)
            body(number)
            if number < count - 1:
                jumps.append(self._instructions.add(path, ops.JUMP))
        self._instructions.branches(at, targets)
        for jump in jumps:
            self._instructions.aim(jump, 1, self._instructions.next)

    def _value(self, writer: Schema, reader: Schema, column: Column, path: str) -> None:
        if writer.kind == "null":
            self.null(column, path)
        elif writer.kind in ("int", "long"):
            self._number(writer, reader, column, path)
        elif writer.kind == "enum":
            self._put(ops.ENUM, column, path, 7, self._symbols(writer, reader))
        elif writer.kind in ("bytes", "string", "fixed"):
            self._bytes(writer, column, path)
        elif writer.kind == "float":
            self._put(ops.FLOAT_DOUBLE if pa.types.is_float64(column.type) else ops.COPY4, column, path)
        else:
            self._put(ops.BOOLEAN if writer.kind == "boolean" else ops.COPY8, column, path)

    def _number(self, writer: Schema, reader: Schema, column: Column, path: str) -> None:
        is_long = 1 if writer.kind == "long" else 0
        if pa.types.is_float32(column.type):
            self._put(ops.INT_FLOAT, column, path, 6, is_long)
        elif pa.types.is_float64(column.type):
            self._put(ops.INT_DOUBLE, column, path, 6, is_long)
        elif column.null_width == 4:
            self._put(ops.INT32, column, path)
        else:
            in_millis = pa.types.is_timestamp(column.type) and (writer.logical or reader.logical).endswith("millis")
            factor = 1000 if in_millis else 1
            self._put(ops.INT64, column, path, 4, factor, 5, _LONG_MAX // factor, 6, is_long)

    def _bytes(self, writer: Schema, column: Column, path: str) -> None:
        if pa.types.is_decimal(column.type):
            low, high = halves(10**column.type.precision)
            size = writer.size if writer.kind == "fixed" else -1
            self._put(ops.DECIMAL, column, path, 4, size, 5, low, 6, high)
        elif writer.kind == "fixed":
            self._put(ops.FIXED, column, path, 7, writer.size)
        else:
            self._put(ops.TEXT if pa.types.is_string(column.type) else ops.BYTES, column, path)

    def _symbols(self, writer: Schema, reader: Schema) -> int:
        """Return the address of a table: what the reader has for each of the writer's symbols."""
        table = [len(writer.symbols)]
        for symbol in writer.symbols:
            is_known = reader.kind != "enum" or symbol in reader.symbols
            shown = symbol if is_known else reader.default
            data = np.frombuffer((shown or " ").encode(), np.uint8)
            table += [self._instructions.keep(data), -1 if shown is None else len(data)]
        return self._instructions.keep(np.array(table, np.int64))

    def _skip(self, writer: Schema, path: str) -> None:
        kind = writer.kind
        if kind == "record":
            for f in writer.fields:
                self._skip(f.schema, path)
        elif kind == "union":
            self._branch(len(writer.items), path, lambda number: self._skip(writer.items[number], path))
        elif kind in ("array", "map"):
            self._blocks(writer, path, lambda: self._skip_item(writer, path))
        elif kind != "null":
            self._instructions.add(path, _SKIPPED.get(kind, ops.SKIP_FIXED), writer.least_bytes)

    def _skip_item(self, writer: Schema, path: str) -> None:
        if writer.kind == "map":
            self._instructions.add(path, ops.SKIP_BYTES)
        self._skip(writer.items[0], path)


_SKIPPED = {
    "boolean": ops.SKIP_BOOLEAN,
    "int": ops.SKIP_NUMBER,
    "long": ops.SKIP_NUMBER,
    "enum": ops.SKIP_NUMBER,
    "bytes": ops.SKIP_BYTES,
    "string": ops.SKIP_BYTES,
}
