"""How data of a writer's schema is read as a reader's: Avro's rules, as a plan that is a value.

Fields match by name, then by the reader's aliases; one that the writer has not takes the reader's default, one that the
reader has not is skipped. Numbers are promoted (int, long, float, double), and strings and bytes are one another's. An
enum's symbol that the reader has not becomes the reader's default. Records, enums and fixed types match by the last
part of their names, or by the reader's aliases. A reader's union takes the first branch of the same type, else the
first that fits.

A reader that is made of columns has no names of types, so that any record, enum or fixed type is taken; an enum is text
for it, and a fixed type bytes.

Logical types: a time is a time in any unit, an instant is no local time; a decimal keeps its scale, and loses no digit;
a plain type is read as the logical type that is made of it, and the other way round. A reader that is made of columns
takes no plain type so: nobody said in which unit a number is a time, or of which scale bytes are a decimal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from logstore.schemas.avro.defaults import datum
from logstore.schemas.avro.schema import MISSING, Field, Schema

_PROMOTIONS = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
_PLAIN = {"int": "int", "long": "bigint", "bytes": "binary", "fixed": "binary", "string": "string"}
_OF_COLUMNS = {"enum": "string", "fixed": "bytes"}
_INSTANTS = frozenset({"timestamp-millis", "timestamp-micros"})
_LOCAL = frozenset({"local-timestamp-millis", "local-timestamp-micros"})


@dataclass(frozen=True)
class Mismatch:
    """Data that cannot be read so; a record that has it does not fit."""

    reason: str


@dataclass(frozen=True)
class Value:
    """A value of the writer's type, which has no parts, as one of the reader's."""

    writer: Schema
    reader: Schema


@dataclass(frozen=True)
class Skip:
    writer: Schema


@dataclass(frozen=True)
class Constant:
    """The reader's default: a datum of its own schema, which takes nothing from the record."""

    data: bytes
    plan: Plan


class Part(NamedTuple):
    """A field as it comes in the data; `number`: of the reader's field, -1 if it is skipped."""

    name: str
    number: int
    plan: Plan


@dataclass(frozen=True)
class Record:
    parts: tuple[Part, ...]
    reader: Schema


@dataclass(frozen=True)
class Items:
    """An array or a map."""

    writer: Schema
    item: Plan


@dataclass(frozen=True)
class Branches:
    """A writer's union: a plan for each of its branches."""

    writer: Schema
    plans: tuple[Plan, ...]


@dataclass(frozen=True)
class Chosen:
    """The branch of a reader's union that a value goes to."""

    branch: Schema
    plan: Plan


Plan = Mismatch | Value | Skip | Constant | Record | Items | Branches | Chosen


class Problem(NamedTuple):
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


def resolve(writer: Schema, reader: Schema) -> Plan:
    """Return how data of the writer's schema is read as the reader's; what cannot be read is a `Mismatch` in it."""
    if writer.kind == "union":
        return Branches(writer, tuple(resolve(branch, reader) for branch in writer.items))
    if reader.kind == "union":
        return _chosen(writer, reader)
    if writer.kind == reader.kind == "record":
        return _record(writer, reader)
    if writer.kind == reader.kind and writer.kind in ("array", "map"):
        return Items(writer, resolve(writer.items[0], reader.items[0]))
    if reason := _leaf_mismatch(writer, reader):
        return Mismatch(reason)
    return Value(writer, reader)


def problems(plan: Plan, path: str = "") -> Iterator[Problem]:
    """Every reason for which some data of the writer's schema cannot be read, and where; none: all data can."""
    if isinstance(plan, Mismatch):
        yield Problem(path, plan.reason)
    elif isinstance(plan, Record):
        for part in plan.parts:
            yield from problems(part.plan, f"{path}.{part.name}" if path else part.name)
    elif isinstance(plan, Items):
        yield from problems(plan.item, f"{path}[]")
    elif isinstance(plan, Branches):
        for each in plan.plans:
            yield from problems(each, path)
    elif isinstance(plan, Chosen | Constant):
        yield from problems(plan.plan, path)
    elif isinstance(plan, Value) and (lost := _lost_symbols(plan)):
        yield Problem(path, f"{plan.reader} lacks {', '.join(lost[:3])}, and has no default")


def _lost_symbols(plan: Value) -> list[str]:
    if plan.writer.kind != "enum" or plan.reader.kind != "enum" or plan.reader.default is not None:
        return []
    return [symbol for symbol in plan.writer.symbols if symbol not in plan.reader.symbols]


def _chosen(writer: Schema, reader: Schema) -> Plan:
    best: Plan = Mismatch(f"{writer} is none of {reader}")
    has_one = sum(branch.kind != "null" for branch in reader.items) == 1
    for branch in sorted(reader.items, key=lambda b: b.kind != writer.kind or not _same_name(writer, b)):
        plan = resolve(writer, branch)
        if next(problems(plan), None) is None:
            return Chosen(branch, plan)
        tells_more = not isinstance(plan, Mismatch) or (branch.is_column and has_one)
        if isinstance(best, Mismatch) and tells_more:
            best = Chosen(branch, plan)
    return best


def _same_name(writer: Schema, reader: Schema) -> bool:
    if not writer.name or not reader.name:
        return True
    return writer.short_name == reader.short_name or writer.name in reader.aliases


def _record(writer: Schema, reader: Schema) -> Plan:
    if not _same_name(writer, reader):
        return Mismatch(f"{writer} is not {reader}")
    numbers = _numbers(writer, reader)
    parts: list[Part] = []
    for f in writer.fields:
        number = numbers.get(f.name, -1)
        plan = Skip(f.schema) if number < 0 else resolve(f.schema, reader.fields[number].schema)
        parts.append(Part(f.name, number, plan))
    for number, missing in enumerate(reader.fields):
        if number not in numbers.values():
            parts.append(Part(missing.name, number, _default(missing)))
    return Record(tuple(parts), reader)


def _numbers(writer: Schema, reader: Schema) -> dict[str, int]:
    """The number of the reader's field by the name of the writer's."""
    names = {f.name for f in writer.fields}
    found = {f.name: number for number, f in enumerate(reader.fields) if f.name in names}
    for number, f in enumerate(reader.fields):
        if f.name not in names:
            old = next((alias for alias in f.aliases if alias in names and alias not in found), None)
            if old is not None:
                found[old] = number
    return found


def _default(f: Field) -> Plan:
    if f.default is MISSING:
        return Mismatch("the writer has no such field, and the reader no default for it")
    try:
        data = datum(f.schema, f.default)
    except ValueError as error:
        return Mismatch(f"the default of the reader is no {f.schema}: {error}")
    return Constant(data, resolve(f.schema, f.schema))


def _leaf_mismatch(writer: Schema, reader: Schema) -> str:
    if reader.is_column and _OF_COLUMNS.get(writer.kind) == reader.kind:
        return _logical_mismatch(writer, reader)
    if writer.kind != reader.kind and reader.kind not in _PROMOTIONS.get(writer.kind, ()):
        return f"{writer} is no {reader}"
    if writer.name and reader.name and not _same_name(writer, reader):
        return f"{writer} is not {reader}"
    if writer.kind == "fixed" and writer.size != reader.size:
        return f"fixed of {writer.size} bytes is no fixed of {reader.size}"
    return _logical_mismatch(writer, reader)


def _logical_mismatch(writer: Schema, reader: Schema) -> str:
    if reader.is_column and reader.logical and not writer.logical:
        return f"{writer} is no {reader}: its writer named no logical type; declare {_PLAIN[writer.kind]}"
    if not reader.logical or not writer.logical or reader.logical == writer.logical != "decimal":
        return ""
    if writer.logical == reader.logical:
        if writer.scale != reader.scale:
            return f"{writer} is no {reader}: the scale is another"
        return f"{writer} is no {reader}: digits would be lost" if writer.precision > reader.precision else ""
    pair = {writer.logical, reader.logical}
    return "" if pair <= _INSTANTS or pair <= _LOCAL else f"{writer} is no {reader}"
