"""The columns of topics by their registered schemas: of a read and of a write, and when there are newer ones."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from datasource.connector.places import Assign, Subscribe, Topics
from datasource.connector.typed_options import TopicColumns, TypedOptions
from datasource.topics.interface import ReadableTopics
from datasource.topics.locations import Location
from logstore.env import SYSTEM
from logstore.errors import InvalidConfigError, InvalidRequestError, did_you_mean
from logstore.schemas.choice import registered, subjects_of
from logstore.schemas.declared import fields_of
from logstore.schemas.formats import Format
from logstore.schemas.layout import Mode
from logstore.schemas.registry import Schemas
from logstore.schemas.typed import KEY, METADATA, TypedRecords

LOOK_EACH_MS = 1_000  # at the schemas, while a stream runs

logger = logging.getLogger(__name__)


def columns_of(options: TypedOptions, location: Location, topics: Topics) -> TopicColumns:
    """Return the columns that all of these topics have.

    Raises: UnknownSchemaError: one has none; InvalidRequestError: two have other columns, or there is no topic.
    """
    target = location.read()
    names = _named(target, topics)
    found = {topic: _columns(options, target.schemas, topic) for topic in names}
    first = found[names[0]]
    for topic, each in found.items():
        if each._replace(versions={}) != first._replace(versions={}):
            raise InvalidRequestError(
                f"topics {names[0]!r} and {topic!r} have different columns: read them one by one, or name the columns "
                "by 'value.format' and .schema(...)"
            )
    return first._replace(versions={subject: v for each in found.values() for subject, v in each.versions.items()})


def schema_of(options: TypedOptions, topic: TopicColumns) -> pa.Schema:
    """Return what a read shows, any of it may be null. Raises: InvalidConfigError: `columns` names another."""
    metadata = [pa.field(name, kind) for name, (_, kind) in METADATA.items() if name != KEY or not topic.key]
    corrupt = pa.field(options.corrupt_record, pa.string())
    known = {field.name: field for field in (*topic.columns, corrupt, *metadata)}
    names = [field.name for field in topic.columns]
    if options.columns is not None:
        if strange := [name for name in options.columns if name not in known]:
            raise InvalidConfigError(f"option columns: no column {strange[0]!r}{did_you_mean(strange[0], known)}")
        names = list(options.columns)
    names += [corrupt.name] if options.layout.mode is Mode.PERMISSIVE else []
    names += [field.name for field in metadata] if options.has_metadata else []
    return pa.schema([_sparks(known[name]) for name in dict.fromkeys(names)])


def formats_of(options: TypedOptions, schemas: Schemas, topic: str) -> TypedRecords:
    """Return how the topic's records are columns by its latest schemas. Raises: as `choice.registered`."""
    return registered(topic, schemas, replace(options.layout, mode=Mode.FAILFAST))


def _named(target: ReadableTopics, topics: Topics) -> Sequence[str]:
    match topics:
        case Subscribe(names):
            found: Iterable[str] = names
        case Assign(partitions):
            found = partitions
        case _:
            found = [info.name for info in target.topics() if topics.matches(info.name)]
            if not found:
                raise InvalidRequestError(f"no topic matches {topics.pattern!r} yet, so there are no columns")
    return [target.topic(name).name for name in found]


def _columns(options: TypedOptions, schemas: Schemas, topic: str) -> TopicColumns:
    records, layout = formats_of(options, schemas, topic), options.layout
    subjects = subjects_of(topic, layout)
    value, key = subjects["value"], subjects["key"]
    versions, in_key = {value: schemas.latest(value).version}, frozenset(layout.key_fields)
    if records.key is not None and not in_key:
        in_key = frozenset(layout.key_prefix + name for name in _names(schemas, key, records.key))
        versions[key] = schemas.latest(key).version
    assert records.value is not None, "values have a schema"
    in_value = _names(schemas, value, records.value)
    key_format = records.key.name if records.key is not None else ""
    return TopicColumns(records.columns, in_key, in_value, key_format, records.value.name, versions)


def _names(schemas: Schemas, subject: str, latest: Format) -> frozenset[str]:
    """Return the names of all versions that can be told without schemas that they refer to."""
    found = {field.name for field in latest.fields}
    for each in schemas.versions(subject):
        with suppress(InvalidRequestError):
            found |= {field.name for field in fields_of(each.schema)}
    return frozenset(found)


def _sparks(field: pa.Field) -> pa.Field:
    kind = pa.timestamp("us", tz="UTC") if field.name == "_timestamp" else field.type
    return pa.field(field.name, kind)


class Evolution:
    """Notices, while a stream runs, that its topics have newer schemas; may be pickled."""

    def __init__(self, options: TypedOptions, location: Location) -> None:
        assert options.registered is not None, "they were looked up"
        self._versions: Mapping[str, int] = options.registered.versions
        self._ends, self._location = options.ends_at_new_schema, location
        self._looked_ms = -LOOK_EACH_MS

    def look(self) -> None:
        """Say so once. Raises: InvalidRequestError: the query is to end then."""
        now_ms = SYSTEM.clock.monotonic_ms()
        if now_ms - self._looked_ms < LOOK_EACH_MS:
            return
        self._looked_ms = now_ms
        schemas = self._location.read().schemas
        newer = {subject: schemas.latest(subject).version for subject in self._versions}
        if newer == self._versions:
            return
        said = ", ".join(f"{subject} has version {v}" for subject, v in newer.items() if v != self._versions[subject])
        self._versions = newer
        if self._ends:
            raise InvalidRequestError(f"{said}, which is newer than this query: start it again, with the new columns")
        logger.warning("%s: the query keeps its columns until it is started again", said)
