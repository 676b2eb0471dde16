"""Declared: the columns that a topic is made with, as schemas of its subjects `orders-value` and `orders-key`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias, TypedDict

import pyarrow as pa

from logstore.config import SUBJECT_NAME_STRATEGIES as STRATEGIES
from logstore.config import Part
from logstore.errors import InvalidRequestError, did_you_mean
from logstore.schemas import ddl, json_schema
from logstore.schemas.avro import schema as avro
from logstore.schemas.avro import types as avro_types
from logstore.schemas.registry import FORMATS, NoAliasError, Schemas, schema_of
from logstore.schemas.strategies import subject_by, subject_of
from logstore.schemas.subjects import AVRO, JSON, Schema

logger = logging.getLogger(__name__)

# Columns in Spark's DDL or as an Arrow schema, or the text of a schema in the topic's format, which begins with {.
Columns: TypeAlias = str | pa.Schema | Sequence[pa.Field]


class Declaration(TypedDict, total=False):
    """The columns of a topic's values and keys, and the formats that hold them (`FORMATS`): json unless told.

    `subject_name_strategy`: where they are registered, one of STRATEGIES; by another than the first, that one's subject
    is an alias.
    """

    schema: Columns | None
    format: str | None
    key_schema: Columns | None
    key_format: str | None
    subject_name_strategy: str


class Declared(NamedTuple):
    """A schema of a topic's keys or values, and its subject; `name`: that of the strategy TopicName."""

    name: str
    subject: str
    schema: Schema


def declared(
    topic: str,
    *,
    schema: Columns | None = None,
    format: str | None = None,
    key_schema: Columns | None = None,
    key_format: str | None = None,
    subject_name_strategy: str = STRATEGIES[0],
) -> list[Declared]:
    """Return the schemas of the topic's keys and values that are given. Raises: InvalidRequestError."""
    found = []
    given: dict[Part, tuple[Columns | None, str | None]] = {"value": (schema, format), "key": (key_schema, key_format)}
    for part, (columns, kind) in given.items():
        if columns is not None:
            made = schema_from(columns, kind)
            subject = subject_by(subject_name_strategy, topic, part, made)
            found.append(Declared(subject_of(topic, part), subject, made))
        elif kind is not None:
            raise InvalidRequestError(f"the format {kind!r} of the {part} needs its schema")
    if not found:
        raise InvalidRequestError("a strategy of subjects needs a schema")
    return found


def schema_from(columns: Columns, kind: str | None = None) -> Schema:
    """Return columns as a schema of this format; without one, of that which a text is in, or json.

    Raises: InvalidRequestError: the format has no such columns.
    """
    is_text = isinstance(columns, str) and columns.lstrip()[:1] in ("{", "[", '"')
    kind = kind or ("avro" if is_text and _is_avro(str(columns)) else "json")
    if kind not in FORMATS:
        raise InvalidRequestError(f"no schema has the format {kind!r}{did_you_mean(kind, FORMATS)}")
    if is_text:
        schema = schema_of(JSON if kind == "json" else AVRO, str(columns))
        fields_of(schema)
        return schema
    fields = ddl.as_fields(columns)
    if kind == "json":
        return schema_of(JSON, json_schema.text_of(fields))
    return schema_of(AVRO, avro_types.schema_text(fields))


def _is_avro(text: str) -> bool:
    return re.search(r'"type"\s*:\s*"record"', text) is not None


def fields_of(schema: Schema, referred: avro.Referred | None = None) -> tuple[pa.Field, ...]:
    """Return a schema's columns; `referred` gives the schemas that it refers to.

    Raises: InvalidRequestError: it has none.
    """
    if schema.type == AVRO:
        return avro_types.fields_of(avro.parse(schema.text, schema.references, referred))
    if schema.type == JSON:
        return json_schema.fields_of(schema.text)
    raise InvalidRequestError(f"schemas of type {schema.type} have no columns here")


def register(schemas: Schemas, columns: Iterable[Declared]) -> None:
    """Register each, as what its topic has from now on; one that is the latest already stays.

    Raises: as `Schemas.register`, `set_alias`.
    """
    for name, subject, schema in columns:
        if subject == name and schemas.alias(name) is not None:
            schemas.set_alias(name, None)
        schemas.register(subject, schema)
        if subject != name:
            try:
                schemas.set_alias(name, subject)
            except NoAliasError as error:
                part = name.rpartition("-")[2]
                logger.warning(
                    "%s: each read and write of the topic names the subject %s of its %ss", error, subject, part
                )
