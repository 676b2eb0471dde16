"""Choice: which columns a topic has, and in which formats, as a caller or the topic's registered schemas say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypedDict

import pyarrow as pa

from logstore.errors import InvalidConfigError, InvalidRequestError, did_you_mean
from logstore.records.tables import Tabular
from logstore.schemas import ddl
from logstore.schemas.avro import types
from logstore.schemas.avro.format import AvroFormat, ConfluentAvroFormat
from logstore.schemas.avro.schema import Reference, parse
from logstore.schemas.avro.schema import Schema as AvroSchema
from logstore.schemas.declared import Columns, fields_of, subject_of
from logstore.schemas.fitting import as_columns
from logstore.schemas.formats import RESCUED, Format, JsonFormat, RawFormat
from logstore.schemas.misfits import CORRUPT_RECORD, Mode
from logstore.schemas.registry import Schemas, UnknownSchemaError
from logstore.schemas.subjects import AVRO, JSON, Schema
from logstore.schemas.typed import KEY, METADATA, TypedRecords

FORMATS = ("json", "raw", "avro", "avro-confluent")
Include: TypeAlias = Literal["ALL", "EXCEPT_KEY"]


class Typing(TypedDict, total=False):
    """How records are rows of columns: either `typed`, by the topic's schemas, or the columns of `schema`.

    `schema`: Spark's DDL, as "user string, amount decimal(10,2)", or Arrow's. `value_format`: one of FORMATS, json
    by default. `key_fields`: the columns that are in the key, whose format is `key_format`, raw by default. They are in
    the value, too, unless `value_fields_include` is EXCEPT_KEY. `key_fields_prefix`: their names begin with it, but not
    in the key. `mode`: as a misfit is read (`logstore.schemas.misfits.Mode`). `metadata`: with `_topic`, `_partition`,
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
    mode: str
    metadata: bool
    rescued: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """Where the columns of a topic are, and in which formats."""

    value: str = "json"
    key: str = "raw"
    key_fields: tuple[str, ...] = ()
    key_prefix: str = ""
    is_key_in_value: bool = True
    mode: Mode = Mode.FAILFAST
    is_rescuing: bool = False

    def records(self, columns: Sequence[pa.Field], schemas: Callable[[], Schemas] | None = None) -> TypedRecords:
        """Return how records are these columns, of which those of METADATA and `_corrupt_record` are in no format.

        Raises: InvalidConfigError: the formats do not go with the columns.
        """
        given = {field.name: field for field in columns if field.name not in (*METADATA, CORRUPT_RECORD)}
        keys = self.key_fields
        if missing := [name for name in keys if name not in given]:
            raise InvalidConfigError(f"key.fields: there is no column {missing[0]!r}{did_you_mean(missing[0], given)}")
        if strange := [name for name in keys if not name.startswith(self.key_prefix)]:
            raise InvalidConfigError(f"key.fields: {strange[0]!r} does not begin with the prefix {self.key_prefix!r}")
        if self.key_prefix and self.is_key_in_value:
            raise InvalidConfigError("a prefix of the key's columns needs value.fields-include=EXCEPT_KEY")
        in_value = [field for name, field in given.items() if self.is_key_in_value or name not in keys]
        if self.value == "raw" and self.is_key_in_value and keys and len(in_value) > 1:
            raise InvalidConfigError("value.format=raw: a value is one column; set value.fields-include=EXCEPT_KEY")
        in_key = [given[name].with_name(name.removeprefix(self.key_prefix)) for name in keys]
        return TypedRecords(
            columns=tuple(columns),
            key=made(self.key, in_key, schemas or _no_schemas) if in_key else None,
            value=made(self.value, in_value, schemas or _no_schemas) if in_value else None,
            mode=self.mode,
            key_prefix=self.key_prefix,
        )


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


def chosen(topic: str, typing: Typing, schemas: Callable[[], Schemas]) -> TypedRecords:
    """Return how records of the topic are columns. `schemas` gives the registry, if the topic's own schemas count.

    Raises: InvalidRequestError: no columns are asked for, or the choices exclude each other; UnknownSchemaError.
    """
    formats = _formats(typing)
    if typing.get("typed"):
        if without := [name for name in ("schema", "value_format", "key_format") if name in typing]:
            raise InvalidRequestError(f"{without[0]} does not go with typed, which takes it from the topic's schemas")
        records = registered(topic, schemas(), formats)
    elif "schema" in typing:
        if "rescued" in typing:
            raise InvalidRequestError(f"rescued goes with typed; in a schema, name the column '{RESCUED} string'")
        records = formats.records(ddl.as_fields(typing["schema"]), schemas)
    else:
        raise InvalidRequestError("which columns? Say schema='user string, …', or typed=True for those of the topic")
    return _with_metadata(records) if typing.get("metadata") else records


def encoded(topic: str, data: Tabular, typing: Typing, schemas: Callable[[], Schemas]) -> pa.Table:
    """Return rows of columns as records to append: `TypedRecords.encode`. Raises: as that, and as `chosen`."""
    if reading := [name for name in ("mode", "metadata") if name in typing]:
        raise InvalidRequestError(f"{reading[0]} says how records are read, and nothing of those that are written")
    records = chosen(topic, typing, schemas)
    metadata = [pa.field(name, kind) for name, (_, kind) in METADATA.items()]
    return records.encode(as_columns(data, [*records.columns, *metadata]))


def registered(topic: str, schemas: Schemas, formats: Formats) -> TypedRecords:
    """Return how records of the topic are columns by its latest schemas; `formats` says all but the formats.

    Raises: UnknownSchemaError: the topic's values have no schema; InvalidRequestError: it has no columns here.
    """
    try:
        value = _registered(schemas, subject_of(topic, "value"), "value")
    except UnknownSchemaError as error:
        raise UnknownSchemaError(f"topic {topic!r} has no columns of its own: {error}; or give a schema") from None
    if formats.is_rescuing:
        if not isinstance(value, JsonFormat):
            raise InvalidRequestError(f"rescued goes with JSON, and the values of {topic!r} are {value.name}")
        value = JsonFormat((*value.fields, pa.field(RESCUED, pa.string())))
    shown = list(value.fields)
    if formats.mode is Mode.PERMISSIVE:
        shown.append(pa.field(CORRUPT_RECORD, pa.string()))
    try:
        key: Format | None = _registered(schemas, subject_of(topic, "key"), "key")
    except UnknownSchemaError:
        key = formats.records(value.fields, lambda: schemas).key
    names = {field.name for field in shown}
    own = [field.with_name(formats.key_prefix + field.name) for field in key.fields] if key else []
    columns = (*(field for field in own if field.name not in names), *shown)
    return TypedRecords(columns=columns, key=key, value=value, mode=formats.mode, key_prefix=formats.key_prefix)


def _registered(schemas: Schemas, subject: str, column: str) -> Format:
    """Return the format of a subject's latest schema; `column` is the name of the only one, where it has no names."""
    entry = schemas.latest(subject)
    return format_of(schemas, entry.schema, entry.id, column=column)


def format_of(schemas: Schemas, schema: Schema, schema_id: int, *, column: str) -> Format:
    """Return the format of values of a registered schema; `column` names the only one, where it has no names."""
    if schema.type == JSON:
        return JsonFormat(fields_of(schema))
    avro = _AvroSchemas(schemas)
    return ConfluentAvroFormat(avro.parsed(schema), avro, schema_id, column=column)


def _formats(typing: Typing) -> Formats:
    """Raises: InvalidRequestError: a word that is none."""
    if strange := [name for name in typing if name not in Typing.__annotations__]:
        raise InvalidRequestError(f"no argument {strange[0]!r}{did_you_mean(strange[0], Typing.__annotations__)}")
    keys = typing.get("key_fields", ())
    include = _word("value_fields_include", typing.get("value_fields_include", "ALL"), ("ALL", "EXCEPT_KEY"))
    found = Formats(
        value=_word("value_format", typing.get("value_format", "json"), FORMATS),
        key=_word("key_format", typing.get("key_format", "raw"), FORMATS),
        key_fields=tuple(keys.replace(",", ";").split(";") if isinstance(keys, str) else keys),
        key_prefix=typing.get("key_fields_prefix", ""),
        is_key_in_value=include == "ALL",
        is_rescuing=typing.get("rescued", False),
        mode=Mode(_word("mode", typing.get("mode", "FAILFAST").upper(), [mode.value for mode in Mode])),
    )
    if "key_format" in typing and not found.key_fields:
        raise InvalidRequestError("key_format needs key_fields: which columns are in the key?")
    return found


def _word(name: str, word: str, words: Sequence[str]) -> str:
    if word not in words:
        raise InvalidRequestError(f"no {name} {word!r}{did_you_mean(word, words)}")
    return word


def _with_metadata(records: TypedRecords) -> TypedRecords:
    names = {field.name for field in records.columns}
    left_out = {*names, KEY} if records.key else names
    more = [pa.field(name, kind) for name, (_, kind) in METADATA.items() if name not in left_out]
    return replace(records, columns=(*records.columns, *more))
