"""Choice: which columns a topic has, and in which formats, as a caller or the topic's registered schemas say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, TypedDict

import pyarrow as pa

from logstore.config import Part
from logstore.errors import InvalidConfigError, InvalidRequestError, did_you_mean
from logstore.records.tables import Tabular
from logstore.schemas import ddl
from logstore.schemas.avro import types
from logstore.schemas.avro.format import AvroFormat, ConfluentAvroFormat
from logstore.schemas.avro.schema import Reference, parse
from logstore.schemas.avro.schema import Schema as AvroSchema
from logstore.schemas.declared import Columns, fields_of
from logstore.schemas.fitting import as_columns
from logstore.schemas.formats import RESCUED, Format, JsonFormat, RawFormat
from logstore.schemas.layout import CORRUPT_RECORD, FORMATS, Layout, Mode, layout_of, same
from logstore.schemas.registry import Schemas, UnknownSchemaError
from logstore.schemas.strategies import subject_of
from logstore.schemas.subjects import AVRO, JSON, Schema
from logstore.schemas.typed import KEY, METADATA, TypedRecords

Include: TypeAlias = Literal["ALL", "EXCEPT_KEY"]


class Typing(TypedDict, total=False):
    """How records are rows of columns: either `typed`, by the topic's schemas, or the columns of `schema`.

    `schema`: Spark's DDL, as "user string, amount decimal(10,2)", or Arrow's. `value_format`: one of FORMATS, json
    by default. `key_fields`: the columns that are in the key, whose format is `key_format`, raw by default. They are in
    the value, too, unless `value_fields_include` is EXCEPT_KEY. `key_fields_prefix`: their names begin with it, but not
    in the key. `value_subject`, `key_subject`: with `typed`, where the topic's schemas are, if not in the subjects of
    its name. `mode`: as a misfit is read (`logstore.schemas.layout.Mode`). `metadata`: with `_topic`, `_partition`,
    `_offset`, `_timestamp`, `_headers`, and `_key` if the key has no columns. `rescued`: with `_rescued`, members of
    JSON that are not declared; in a `schema` name it.
    """

    typed: bool
    schema: Columns
    value_format: str
    key_format: str
    key_fields: Sequence[str] | str
    key_fields_prefix: str
    value_fields_include: Include
    value_subject: str
    key_subject: str
    mode: str
    metadata: bool
    rescued: bool


def records(layout: Layout, columns: Sequence[pa.Field], schemas: Callable[[], Schemas] | None = None) -> TypedRecords:
    """Return how records are these columns, of which those of METADATA and `_corrupt_record` are in no format.

    Raises: InvalidConfigError: the layout does not go with the columns.
    """
    given = [field for field in columns if field.name not in (*METADATA, CORRUPT_RECORD)]
    keys, registry = layout.key_fields, schemas or _no_schemas
    key = _key(layout, given, registry)
    in_value = [field for field in given if layout.is_key_in_value or field.name not in keys]
    if layout.value == "raw" and layout.is_key_in_value and keys and len(in_value) > 1:
        include = layout.spelt("value_fields_include")
        raise InvalidConfigError(f"{layout.spelt('value_format')}=raw: a value is one column; set {include}=EXCEPT_KEY")
    value = made(layout.value, in_value, registry) if in_value else None
    return TypedRecords(columns=tuple(columns), key=key, value=value, mode=layout.mode, key_prefix=layout.key_prefix)


def _key(layout: Layout, fields: Sequence[pa.Field], schemas: Callable[[], Schemas]) -> Format | None:
    """Return the format of those of the columns that are in the key; None: there are none."""
    given = {field.name: field for field in fields}
    if missing := [name for name in layout.key_fields if name not in given]:
        hint = did_you_mean(missing[0], given)
        raise InvalidConfigError(f"{layout.spelt('key_fields')}: there is no column {missing[0]!r}{hint}")
    inside = [given[name].with_name(name.removeprefix(layout.key_prefix)) for name in layout.key_fields]
    return made(layout.key, inside, schemas) if inside else None


def _no_schemas() -> Schemas:
    raise InvalidConfigError("format avro-confluent needs the registry that has the ids of its schemas")


def made(name: str, fields: Sequence[pa.Field], schemas: Callable[[], Schemas] = _no_schemas) -> Format:
    """Return the format of this name for these columns; `schemas` gives the registry, if it needs one.

    Raises: InvalidConfigError: there is none of this name, or not for these columns.
    """
    match name:
        case "json":
            return JsonFormat(tuple(fields))
        case "raw":
            return RawFormat(tuple(fields))
        case "avro":
            return AvroFormat(types.schema_of(fields))
        case "avro-confluent":
            return ConfluentAvroFormat(types.schema_of(fields), _AvroSchemas(schemas()))
    raise InvalidConfigError(f"no format {name!r}{did_you_mean(name, FORMATS)}")


class _AvroSchemas:
    """The schemas of Avro in a registry, by id."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas

    def __call__(self, schema_id: int) -> AvroSchema:
        return self.parsed(self._schemas.by_id(schema_id))

    def parsed(self, schema: Schema) -> AvroSchema:
        if schema.type != AVRO:
            raise InvalidRequestError(f"it is of type {schema.type}, and no Avro")
        return parse(schema.text, schema.references, self._referred)

    def _referred(self, reference: Reference) -> Schema:
        for entry in self._schemas.versions(reference.subject, with_deleted=True):
            if entry.version == reference.version:
                return entry.schema
        raise UnknownSchemaError(f"subject {reference.subject!r} has no version {reference.version}")


def chosen(
    topic: str,
    typing: Typing,
    schemas: Callable[[], Schemas],
    known: Callable[[str], object] | None = None,
    spelt: Callable[[str], str] = same,
) -> TypedRecords:
    """Return how records of the topic are columns. `schemas` gives the registry, if the topic's own schemas count.

    `known` raises for a topic that there is not: it is called before a topic is said to have no schema.

    Raises: InvalidRequestError: no columns are asked for, or the choices exclude each other; UnknownSchemaError.
    """
    if strange := [name for name in typing if name not in Typing.__annotations__]:
        raise InvalidRequestError(f"no argument {strange[0]!r}{did_you_mean(strange[0], Typing.__annotations__)}")
    layout = layout_of(typing, spelt=spelt)
    if typing.get("typed"):
        if "schema" in typing:
            raise InvalidRequestError(
                f"{spelt('schema')} does not go with {spelt('typed')}, which takes it from the topic's schemas"
            )
        try:
            found = registered(topic, schemas(), layout)
        except UnknownSchemaError:
            if known is not None:
                known(topic)
            raise
    elif "schema" in typing:
        if "rescued" in typing:
            raise InvalidRequestError(f"rescued goes with typed; in a schema, name the column '{RESCUED} string'")
        found = records(layout, ddl.as_fields(typing["schema"]), schemas)
    else:
        raise InvalidRequestError(
            f"which columns? Name them by {spelt('schema')}, as 'user string, amount double', or take those of the "
            f"topic by {spelt('typed')}"
        )
    return _with_metadata(found) if typing.get("metadata") else found


def encoded(
    topic: str,
    data: Tabular,
    typing: Typing,
    schemas: Callable[[], Schemas],
    known: Callable[[str], object] | None = None,
) -> pa.Table:
    """Return rows of columns as records to append: `TypedRecords.encode`. Raises: as that, and as `chosen`."""
    if reading := [name for name in ("mode", "metadata") if name in typing]:
        raise InvalidRequestError(f"{reading[0]} says how records are read, and nothing of those that are written")
    found = chosen(topic, typing, schemas, known)
    metadata = [pa.field(name, kind) for name, (_, kind) in METADATA.items()]
    return found.encode(as_columns(data, [*found.columns, *metadata]))


def registered(topic: str, schemas: Schemas, layout: Layout) -> TypedRecords:
    """Return how records of the topic are columns by its latest schemas; `layout` says all but the formats.

    Raises: UnknownSchemaError: the topic's values have no schema; InvalidRequestError: it has no columns here.
    """
    subjects = subjects_of(topic, layout)
    try:
        value = _registered(schemas, subjects["value"], "value")
    except UnknownSchemaError as error:
        said = str(error).rstrip("?")
        if not layout.value_subject:  # nobody has mistyped this name
            said = said.partition("; ")[0]
        raise UnknownSchemaError(
            f"topic {topic!r} has no columns of its own: {said}; register a schema there, name the subject of the "
            f"records by {layout.spelt('value_subject')}, or their columns by {layout.spelt('schema')}"
        ) from None
    if layout.is_rescuing:
        if not isinstance(value, JsonFormat):
            raise InvalidRequestError(
                f"{layout.spelt('rescued')} goes with JSON, and the values of {topic!r} are {value.name}"
            )
        value = JsonFormat((*value.fields, pa.field(RESCUED, pa.string())))
    shown = list(value.fields)
    if layout.mode is Mode.PERMISSIVE:
        shown.append(pa.field(CORRUPT_RECORD, pa.string()))
    try:
        key: Format | None = _registered(schemas, subjects["key"], "key")
    except UnknownSchemaError:
        if layout.key_subject:
            raise
        key = _key(layout, value.fields, lambda: schemas)
    else:
        if layout.key_fields:
            rule = f"keys of {topic!r} have a schema, {subjects['key']!r}: leave it away"
            raise InvalidConfigError(f"{layout.spelt('key_fields')}: {rule}")
    names = {field.name for field in shown}
    own = [field.with_name(layout.key_prefix + field.name) for field in key.fields] if key else []
    columns = (*(field for field in own if field.name not in names), *shown)
    return TypedRecords(columns=columns, key=key, value=value, mode=layout.mode, key_prefix=layout.key_prefix)


def subjects_of(topic: str, layout: Layout) -> dict[Part, str]:
    """Return the subjects of a topic's values and keys."""
    named: dict[Part, str] = {"value": layout.value_subject, "key": layout.key_subject}
    return {part: name or subject_of(topic, part) for part, name in named.items()}


def _registered(schemas: Schemas, subject: str, column: str) -> Format:
    """Return the format of a subject's latest schema; `column` is the name of the only one, where it has no names."""
    entry = schemas.latest(subject)
    try:
        return format_of(schemas, entry.schema, entry.id, column=column)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"version {entry.version} of subject {subject!r} has no columns: {error}") from None


def format_of(schemas: Schemas, schema: Schema, schema_id: int, *, column: str) -> Format:
    """Return the format of values of a registered schema; `column` names the only one, where it has no names."""
    if schema.type == JSON:
        return JsonFormat(fields_of(schema))
    avro = _AvroSchemas(schemas)
    return ConfluentAvroFormat(avro.parsed(schema), avro, schema_id, column=column)


def _with_metadata(found: TypedRecords) -> TypedRecords:
    names = {field.name for field in found.columns}
    left_out = {*names, KEY} if found.key else names
    more = [pa.field(name, kind) for name, (_, kind) in METADATA.items() if name not in left_out]
    return replace(found, columns=(*found.columns, *more))
