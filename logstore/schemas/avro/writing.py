"""A schema as a program for the kernel `avro_writing`: rows of its columns to Avro data."""

from __future__ import annotations

import pyarrow as pa

from logstore.records.kernels import avro_writing as ops
from logstore.schemas.avro.assembly import Program, Ref, Word, halves
from logstore.schemas.avro.layout import Column, Layout

_PLAIN = {"int": ops.INT32, "enum": ops.INT32, "boolean": ops.BOOLEAN, "float": ops.COPY4, "double": ops.COPY8}


def writing(layout: Layout) -> Program:
    """Return the program that writes a row of the columns of this layout."""
    program = Program()
    writer = _Writer(program)
    for column, field in zip(layout.columns, layout.fields, strict=True):
        writer.write(column, field.name)
    program.add("", ops.DONE)
    return program


class _Writer:
    def __init__(self, program: Program) -> None:
        self._instructions = program

    def write(self, column: Column, path: str) -> None:
        """Write the value of a column."""
        if column.schema.kind == "union":
            self._union(column, path)
        else:
            self._plain(column, path, checked=False)

    def _union(self, column: Column, path: str) -> None:
        branches, shape = column.schema.items, column.shape
        null = next((number for number, branch in enumerate(branches) if branch.kind == "null"), -1)
        if shape.schema.kind == "null":
            self._put(
                ops.NULLABLE, column, path, 4, null, 5, null, 6, Ref("at", ops.WORDS * (self._instructions.next + 1))
            )
            return
        chosen = -1 if shape.members else branches.index(shape.schema)
        begin = self._put(ops.NULLABLE, column, path, 4, chosen, 5, null)
        if shape.members:
            self._members(column, path)
        else:
            self._plain(column, path, checked=True)
        self._instructions.aim(begin, 6, self._instructions.next)

    def _members(self, column: Column, path: str) -> None:
        jumps = []
        for child, member in zip(column.children, column.shape.members, strict=True):
            test = self._put(ops.MEMBER, child, path, 4, column.schema.items.index(member))
            self._plain(child, path, checked=True)
            jumps.append(self._instructions.add(path, ops.JUMP))
            self._instructions.aim(test, 6, self._instructions.next)
        self._instructions.add(path, ops.FAIL)
        for jump in jumps:
            self._instructions.aim(jump, 6, self._instructions.next)

    def _plain(self, column: Column, path: str, *, checked: bool) -> None:
        """Write a value that is no union; `checked`: it is there."""
        schema, put = column.shape.schema, self._put
        without = (3, 0) if checked else ()
        if schema.kind == "record":
            if not checked:
                put(ops.REQUIRED, column, path)
            for child, f in zip(column.children, schema.fields, strict=True):
                self.write(child, f"{path}.{f.name}")
        elif schema.kind in ("array", "map"):
            self._items(column, path, without)
        elif schema.kind in ("bytes", "string", "fixed"):
            self._bytes(column, path, without)
        elif schema.kind == "long":
            put(ops.INT64, column, path, 4, 1000 if schema.logical.endswith("millis") else 1, *without)
        elif schema.kind != "null":
            put(_PLAIN[schema.kind], column, path, 4, 1 if schema.kind == "enum" else 0, *without)

    def _bytes(self, column: Column, path: str, without: tuple[int, ...]) -> None:
        schema = column.shape.schema
        size = schema.size if schema.kind == "fixed" else -1
        if pa.types.is_decimal(column.type):
            low, high = halves(10**schema.precision)
            self._put(ops.DECIMAL, column, path, 4, size, 5, low, 6, high, *without)
        elif schema.kind == "fixed":
            self._put(ops.FIXED, column, path, 5, size, *without)
        else:
            self._put(ops.BYTES, column, path, *without)

    def _items(self, column: Column, path: str, without: tuple[int, ...]) -> None:
        items, end = Ref("counter", column.counter), self._instructions.place()
        block = self._put(ops.BLOCK, column, path, 4, items, 5, end, *without)
        begin = self._instructions.next
        for child in column.children:
            self.write(child, f"{path}[]")
        step = self._instructions.add(path, ops.NEXT, 0, 0, 0, items, end)
        self._instructions.aim(step, 6, begin)
        self._instructions.aim(block, 6, self._instructions.next)

    def _put(self, op: int, column: Column, path: str, *more: Word) -> int:
        """Add an instruction for a column; `more`: words and what they are, two by two."""
        words: list[Word] = [op, Ref("counter", column.level), 0, 0, 0, 0, 0, 0]
        if column.buffer >= 0:
            words[2] = Ref("buffer", column.buffer)
        if column.validity >= 0:
            words[3] = Ref("buffer", column.validity)
        if column.content >= 0:
            words[4] = Ref("buffer", column.content)
        for number, word in zip(more[::2], more[1::2], strict=True):
            assert isinstance(number, int)
            words[number] = word
        return self._instructions.add(path, *words)
