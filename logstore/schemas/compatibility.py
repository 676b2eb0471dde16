"""Whether a schema may follow those that a subject has, and why not: Avro by its resolution, JSON by columns and types.

JSON columns are judged as `documents` reads them: a missing member is null, one that is not declared is dropped, a
number fits wider ones. A schema that cannot be columns cannot be judged, and is refused with that reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from logstore.errors import InvalidRequestError
from logstore.schemas import ddl, json_schema
from logstore.schemas.avro.resolution import problems, resolve
from logstore.schemas.avro.schema import parse
from logstore.schemas.subjects import AVRO, JSON, Reference, Schema

Referred = Callable[[Reference], Schema]
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}


class Version(NamedTuple):
    version: int
    schema: Schema


def reasons(level: str, new: Schema, earlier: Sequence[Version], referred: Referred) -> list[str]:
    """Return why the schema may not follow these, oldest first, by a level of `subjects.LEVELS`; none: it may.

    BACKWARD: the new schema reads what the last one wrote. FORWARD: the last one reads what the new one writes. FULL:
    both. With _TRANSITIVE: all earlier ones. `referred` gives the schemas that others refer to.
    """
    if level == "NONE" or not earlier:
        return []
    found = []
    for version, schema in earlier if level.endswith("_TRANSITIVE") else earlier[-1:]:
        if schema.type != new.type:
            hint = f": give the format {schema.type.lower()}" if schema.type in (AVRO, JSON) else ""
            found.append(f"version {version} is of type {schema.type}, and not {new.type}{hint}")
            continue
        if level.startswith(("BACKWARD", "FULL")):
            found += [f"it cannot read version {version}: {r}" for r in reading_reasons(new, schema, referred)]
        if level.startswith(("FORWARD", "FULL")):
            found += [f"version {version} cannot read it: {r}" for r in reading_reasons(schema, new, referred)]
    return found


def reading_reasons(reader: Schema, writer: Schema, referred: Referred) -> list[str]:
    """Return why a reader cannot read what the writer writes, of the same type; none: it can."""
    try:
        if reader.type == AVRO:
            given, wanted = (parse(each.text, each.references, referred) for each in (writer, reader))
            return [str(problem) for problem in problems(resolve(given, wanted))]
        if reader.type == JSON:
            return list(_columns(json_schema.fields_of(reader.text), json_schema.fields_of(writer.text), ""))
    except InvalidRequestError as error:
        return [f"it cannot be judged: {error}"]
    return [f"schemas of type {reader.type} cannot be judged"]


def _columns(reader: Sequence[pa.Field], writer: Sequence[pa.Field], path: str) -> Iterator[str]:
    written = {f.name: f for f in writer}
    for f in reader:
        if f.name in written:
            yield from _field(f, written[f.name], path + f.name)
        elif not f.nullable:
            yield f"{path}{f.name}: new, and declared NOT NULL"


def _field(reader: pa.Field, writer: pa.Field, path: str) -> Iterator[str]:
    if writer.nullable and not reader.nullable:
        yield f"{path}: may be null, and is declared NOT NULL"
    kind, given = reader.type, writer.type
    if pa.types.is_struct(kind) and pa.types.is_struct(given):
        yield from _columns(_parts(kind), _parts(given), f"{path}.")
    elif pa.types.is_list(kind) and pa.types.is_list(given):
        yield from _field(kind.value_field, given.value_field, f"{path}[]")
    elif pa.types.is_map(kind) and pa.types.is_map(given):
        yield from _field(kind.item_field, given.item_field, f"{path}[]")
    elif kind != given and not _is_wider(kind, given):
        yield f"{path}: {ddl.type_text(given)} is no {ddl.type_text(kind)}"


def _parts(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(i) for i in range(kind.num_fields)]


def _is_wider(kind: pa.DataType, given: pa.DataType) -> bool:
    """Whether each value of the given type, as JSON has it, is one of the other type, too."""
    types = pa.types
    if types.is_integer(given):
        if types.is_decimal(kind):
            return bool(kind.precision - kind.scale >= _INTEGER_DIGITS[given.bit_width])
        return bool(types.is_floating(kind) or (types.is_integer(kind) and kind.bit_width > given.bit_width))
    if types.is_decimal(given) and types.is_decimal(kind):
        return bool(kind.scale >= given.scale and kind.precision - kind.scale >= given.precision - given.scale)
    if types.is_string(kind):
        return bool(types.is_temporal(given) or types.is_binary(given))
    return bool(types.is_float32(given) and types.is_float64(kind))
