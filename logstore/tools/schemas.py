"""Schemas as rows, and from the texts, files and columns that people write."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from logstore.env import SYSTEM
from logstore.errors import InvalidRequestError
from logstore.schemas import ddl
from logstore.schemas.declared import Declaration, fields_of, schema_from
from logstore.schemas.inference import inferred
from logstore.schemas.registry import Schemas, UnknownSchemaError
from logstore.schemas.subjects import Registered, Schema

Row = dict[str, Any]


def summaries(schemas: Schemas, subject: str | None, *, with_deleted: bool = False) -> list[Row]:
    """All versions of a subject, or the last one of each. Raises: UnknownSchemaError."""
    if subject is not None:
        return [_summary(each) for each in schemas.versions(subject, with_deleted=with_deleted)]
    names = schemas.subjects(with_deleted=with_deleted)
    return [_summary(schemas.versions(name, with_deleted=with_deleted)[-1]) for name in names]


def _summary(entry: Registered) -> Row:
    return {
        "subject": entry.subject,
        "version": entry.version,
        "id": entry.id,
        "type": entry.schema.type,
        "deleted": entry.is_deleted,
    }


def whole(schemas: Schemas, entry: Registered) -> Row:
    """A version with its text, references and, if it has any, columns."""
    return {**_summary(entry), **described(schemas, entry.schema)}


def described(schemas: Schemas, schema: Schema) -> Row:
    try:
        columns = ddl.text_of(fields_of(schema, lambda r: version_of(schemas, r.subject, r.version).schema))
    except InvalidRequestError:
        columns = None
    return {
        "type": schema.type,
        "columns": columns,
        "schema": schema.text,
        "references": [each._asdict() for each in schema.references],
    }


def version_of(schemas: Schemas, subject: str, version: int | None) -> Registered:
    """A version, the last one without a number; also a deleted one, if it is named. Raises: UnknownSchemaError."""
    if version is None:
        return schemas.latest(subject)
    found = schemas.versions(subject, with_deleted=True)
    for entry in found:
        if entry.version == version:
            return entry
    numbers = ", ".join(str(entry.version) for entry in found)
    raise UnknownSchemaError(f"subject {subject!r} has no version {version}, but {numbers}")


def columns_in(given: str, kind: str | None = None) -> str:
    """The columns that an option says: the text of that file, or itself.

    Raises: InvalidRequestError: a file has none in this format, or there is no such file; StorageError.
    """
    if len(given.split()) > 1 or given.lstrip()[:1] in ('"', "{", "["):
        return given
    try:
        text = SYSTEM.files.read_all(given).decode()
    except FileNotFoundError:
        raise InvalidRequestError(f"schema {given}: no such file, nor columns as 'id bigint, who string'") from None
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"schema {given}: byte {error.start} is not UTF-8 text") from None
    try:
        schema_from(text, kind)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{given}: {error}") from None
    return text


def schema_in(given: str, kind: str | None) -> Schema:
    """The schema that an option says, in this format, or in that of its text. Raises: InvalidRequestError."""
    return schema_from(columns_in(given, kind), kind)


def declaration(
    value_schema: str | None,
    value_format: str | None,
    key_schema: str | None,
    key_format: str | None,
    subject_name_strategy: str | None,
) -> Declaration:
    """The options of a topic's columns, as `create_topic` takes them. Raises: InvalidRequestError, StorageError."""
    found: Declaration = {
        "schema": None if value_schema is None else columns_in(value_schema, value_format),
        "format": value_format,
        "key_schema": None if key_schema is None else columns_in(key_schema, key_format),
        "key_format": key_format,
    }
    if subject_name_strategy is not None:
        found["subject_name_strategy"] = subject_name_strategy
    return found


def inferred_row(values: Iterable[bytes | None]) -> Row:
    """The columns of JSON values, and the schema that says them. Raises: InvalidRequestError."""
    found = list(values)
    columns = ddl.text_of(inferred(found))
    return {"values": len(found), "columns": columns, "schema": schema_from(columns, "json").text}


def pretty(text: str) -> str:
    """The text of a schema on several lines, if it is JSON."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text
