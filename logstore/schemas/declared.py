"""Declared: the columns that a topic is made with, as schemas of its subjects `orders-value` and `orders-key`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, TypedDict

import pyarrow as pa

from logstore.errors import InvalidRequestError, did_you_mean
from logstore.schemas import ddl, json_schema
from logstore.schemas.registry import FORMATS, Schemas, schema_of
from logstore.schemas.subjects import JSON, Registered, Schema

# Columns in Spark's DDL or as an Arrow schema, or the text of a schema in the topic's format, which begins with {.
Columns: TypeAlias = str | pa.Schema | Sequence[pa.Field]
Part = Literal["key", "value"]


class Declaration(TypedDict, total=False):
    """The columns of a topic's values and keys, and the formats that hold them: json, which is the default."""

    schema: Columns | None
    format: str | None
    key_schema: Columns | None
    key_format: str | None


def subject_of(topic: str, part: Part) -> str:
    """Return the subject of a topic's keys or values, by the strategy TopicName."""
    return f"{topic}-{part}"


def declared(
    topic: str,
    *,
    schema: Columns | None = None,
    format: str | None = None,
    key_schema: Columns | None = None,
    key_format: str | None = None,
) -> dict[str, Schema]:
    """Return the schema of each subject of the topic that is given. Raises: InvalidRequestError."""
    found = {}
    given: dict[Part, tuple[Columns | None, str | None]] = {"value": (schema, format), "key": (key_schema, key_format)}
    for part, (columns, kind) in given.items():
        if columns is not None:
            found[subject_of(topic, part)] = schema_from(columns, kind or "json")
        elif kind is not None:
            raise InvalidRequestError(f"the format {kind!r} of the {part} needs its schema")
    return found


def schema_from(columns: Columns, kind: str) -> Schema:
    """Return columns as a schema of this format. Raises: InvalidRequestError: the format has no such columns."""
    if kind not in FORMATS:
        raise InvalidRequestError(f"no schema has the format {kind!r}{did_you_mean(kind, FORMATS)}")
    if isinstance(columns, str) and columns.lstrip().startswith("{"):
        json_schema.fields_of(columns)
        return schema_of(JSON, columns)
    fields = ddl.parse(columns) if isinstance(columns, str) else tuple(columns)
    return schema_of(JSON, json_schema.text_of(fields))


def fields_of(schema: Schema) -> tuple[pa.Field, ...]:
    """Return a schema's columns. Raises: InvalidRequestError: it has none."""
    if schema.type != JSON:
        raise InvalidRequestError(f"schemas of type {schema.type} have no columns here")
    return json_schema.fields_of(schema.text)


def register(schemas: Schemas, subjects: Mapping[str, Schema]) -> list[Registered]:
    """Register each; one that is the latest already stays. Raises: as `Schemas.register`."""
    return [schemas.register(subject, schema) for subject, schema in subjects.items()]
