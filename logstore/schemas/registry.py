"""Schemas: the registry of a directory or a cluster, in its topic `_schemas`, and how a version is registered there.

`TopicSchemas` follows the topic and keeps what it adds up to. Writers are optimistic: a new record is appended only
where the topic still ends at the offset that its writer has seen; else the writer reads on and decides again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from logstore.config import Part
from logstore.errors import InvalidRequestError, ReadOnlyStoreError, did_you_mean
from logstore.schemas.avro import schema as avro
from logstore.schemas.strategies import Demand, demand_of
from logstore.schemas.subjects import (
    AVRO,
    JSON,
    LEVELS,
    MARK,
    TOPIC,
    Record,
    Reference,
    Registered,
    Schema,
    Subjects,
    UnknownKeyError,
    config_record,
    is_ours,
    schema_record,
)

logger = logging.getLogger(__name__)

FORMATS = ("json", "avro", "avro-confluent")  # of keys and values whose columns can be registered
COLUMNS_OF_TOPICS = frozenset(  # `declared.Declaration`
    {"schema", "format", "key_schema", "key_format", "subject_name_strategy"}
)
REASONS_SHOWN_MAX = 3
TRIES_MAX = 1000  # another writer was faster, each time


class UnknownSchemaError(InvalidRequestError):
    """No such subject, version or id."""


class NoAliasError(InvalidRequestError):
    """This registry knows no aliases."""


class Schemas(Protocol):
    """A registry of schemas. Calls may be made from any thread; each sees what was registered before it.

    A subject with an alias stands for that one: its versions are found there, and registered there.
    """

    def subjects(self, *, with_deleted: bool = False) -> list[str]:
        """The names of all subjects."""
        ...

    def versions(self, subject: str, *, with_deleted: bool = False) -> list[Registered]:
        """The versions of a subject in their order. Raises: UnknownSchemaError."""
        ...

    def latest(self, subject: str) -> Registered:
        """The last version. Raises: UnknownSchemaError."""
        ...

    def by_id(self, schema_id: int) -> Schema:
        """The schema that data with this id was written with, also a deleted one. Raises: UnknownSchemaError."""
        ...

    def register(self, subject: str, schema: Schema) -> Registered:
        """Return the version of the subject that has this schema, a new one if none has.

        Raises: InvalidRequestError: it is no schema, or does not fit the versions before; ReadOnlyStoreError.
        """
        ...

    def check(self, subject: str, schema: Schema) -> list[str]:
        """Return why the subject cannot get this schema, by its level; none: it can.

        Raises: InvalidRequestError: it is no schema.
        """
        ...

    def delete(self, subject: str, version: int | None = None, *, permanently: bool = False) -> list[int]:
        """Delete a version, or (None) a subject; return the numbers of the versions.

        A deleted version is not shown any more; data that bears its id can be read until it is deleted `permanently`,
        which it must be deleted before.

        Raises: UnknownSchemaError; InvalidRequestError: another schema refers to it; ReadOnlyStoreError.
        """
        ...

    def level(self, subject: str | None = None) -> str:
        """The compatibility level of a subject, one of `LEVELS`, or (None) that of subjects without their own."""
        ...

    def set_level(self, level: str | None, subject: str | None = None) -> None:
        """Set a level; None: the subject takes that of all again. Raises: InvalidRequestError, ReadOnlyStoreError."""
        ...

    def alias(self, subject: str) -> str | None:
        """The subject that this one stands for; None: itself."""
        ...

    def set_alias(self, subject: str, other: str | None) -> None:
        """Let a subject stand for another one; None: for itself again.

        Raises: UnknownSchemaError: there is no such subject; InvalidRequestError: it has an alias itself;
        NoAliasError; ReadOnlyStoreError.
        """
        ...


def schema_of(kind: str, text: str, references: Sequence[Reference] = ()) -> Schema:
    """Return a schema as registries compare it: white space outside of texts says nothing.

    Raises: InvalidRequestError: another type, or no JSON.
    """
    if kind.upper() not in (AVRO, JSON):
        raise InvalidRequestError(f"schema type {kind!r}: AVRO or JSON")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        if kind.upper() == AVRO and text.strip().isalnum():  # `string`, as some write it
            found = text.strip()
        else:
            raise InvalidRequestError(f"no {kind.upper()} schema: {error}") from None
    if not isinstance(found, dict | str | list):
        raise InvalidRequestError(f"no {kind.upper()} schema: {text.strip()[:40]}")
    return Schema(kind.upper(), json.dumps(found, separators=(",", ":"), ensure_ascii=False), tuple(references))


class Stored(NamedTuple):
    """A record as it was read from the topic."""

    offset: int
    key: bytes | None
    value: bytes | None
    is_ours: bool


class Found(NamedTuple):
    """The records of [begin, end) that are left. `begin` is not where reading was to begin: read anew from there."""

    begin: int
    end: int
    records: Sequence[Stored]


COLUMNS = ("offset", "key", "value", "headers")


def stored(rows: Iterable[Mapping[str, Any]]) -> list[Stored]:
    """Return rows of the topic, with these COLUMNS, as records."""
    return [
        Stored(
            row["offset"],
            row["key"],
            row["value"],
            is_ours((header["key"], header["value"]) for header in row["headers"] or ()),
        )
        for row in rows
    ]


def rows_of(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return records as rows to append, with our mark."""
    mark = [{"key": MARK.decode(), "value": b""}]
    return [{"key": each.key, "value": each.value, "headers": mark, "partition": 0} for each in records]


class SchemaTopic(Protocol):
    """The topic `_schemas` of one place. `where` names the place in messages, `if_unknown` says what to do there."""

    where: str
    if_unknown: str  # of an id

    def turn(self) -> AbstractContextManager[object]:
        """One thread of this process at a time."""
        ...

    def read(self, start: int) -> Found:
        """Return what is there from this offset on. Without a topic: nothing."""
        ...

    def append(self, records: Sequence[Record], end: int) -> bool:
        """Append these in one batch, durably, if the topic ends at `end`; False: it did not. It is made if need be.

        Raises: ReadOnlyStoreError: nobody may write here, with the way out.
        """
        ...


class TopicSchemas:
    """`Schemas` in a topic."""

    def __init__(self, topic: SchemaTopic) -> None:
        self._topic = topic
        self._state = Subjects()
        self._end = 0

    def subjects(self, *, with_deleted: bool = False) -> list[str]:
        with self._topic.turn():
            return self._now().subjects(with_deleted=with_deleted)

    def versions(self, subject: str, *, with_deleted: bool = False) -> list[Registered]:
        with self._topic.turn():
            return self._versions(subject, with_deleted=with_deleted)

    def latest(self, subject: str) -> Registered:
        return self.versions(subject)[-1]

    def by_id(self, schema_id: int) -> Schema:
        with self._topic.turn():
            found = self._state.schema(schema_id) or self._now().schema(schema_id)  # an id never changes
            if found is None:
                raise UnknownSchemaError(
                    f"no schema has id {schema_id} in {TOPIC} of {self._topic.where}; {self._topic.if_unknown}"
                )
            return found

    def register(self, subject: str, schema: Schema) -> Registered:
        if not subject:
            raise InvalidRequestError("a subject needs a name, as orders-value")
        with self._topic.turn():
            for _ in range(TRIES_MAX):
                state = self._writable()
                named = state.alias(subject) or subject
                if (known := state.registered(named, schema)) is not None:
                    return known
                self._check(named, schema)
                entry = state.to_register(named, schema)
                if self._topic.append([schema_record(entry)], self._end):
                    return entry
        raise self._busy()

    def check(self, subject: str, schema: Schema) -> list[str]:
        with self._topic.turn():
            state = self._now()
            named = state.alias(subject) or subject
            return [] if state.registered(named, schema) is not None else self._reasons(named, schema)

    def delete(self, subject: str, version: int | None = None, *, permanently: bool = False) -> list[int]:
        with self._topic.turn():
            for _ in range(TRIES_MAX):
                state = self._writable()
                if (other := state.alias(subject)) is not None:
                    raise InvalidRequestError(f"subject {subject!r} stands for {other!r}: delete that")
                gone = self._to_delete(subject, version, permanently=permanently)
                records = (state.to_remove if permanently else state.to_delete)(subject, version)
                if self._topic.append(records, self._end):
                    return gone
        raise self._busy()

    def level(self, subject: str | None = None) -> str:
        with self._topic.turn():
            return self._now().level(subject)

    def set_level(self, level: str | None, subject: str | None = None) -> None:
        if level is not None and level.upper() not in LEVELS:
            raise InvalidRequestError(f"compatibility level {level!r}{did_you_mean(level.upper(), LEVELS)}")
        with self._topic.turn():
            for _ in range(TRIES_MAX):
                alias = self._writable().alias(subject)
                if self._topic.append([config_record(subject, level and level.upper(), alias)], self._end):
                    return
        raise self._busy()

    def alias(self, subject: str) -> str | None:
        with self._topic.turn():
            return self._now().alias(subject)

    def set_alias(self, subject: str, other: str | None) -> None:
        with self._topic.turn():
            for _ in range(TRIES_MAX):
                state = self._writable()
                if state.alias(subject) == other:
                    return
                if other is not None:
                    self._versions(other)
                    if other == subject or state.alias(other) is not None:
                        raise InvalidRequestError(f"subject {subject!r} cannot stand for {other!r}, which is an alias")
                if self._topic.append([config_record(subject, state.own_level(subject), other)], self._end):
                    return
        raise self._busy()

    def demand(self, topic: str, part: Part, strategy: str) -> Demand:
        """Return which ids the keys or values of a topic may bear now."""
        with self._topic.turn():
            return demand_of(self._now(), topic, part, strategy)

    # ---------------------------------------------------------------- private

    def _now(self) -> Subjects:
        """Return the state at the end of the topic."""
        found = self._topic.read(self._end)
        if found.begin != self._end:  # the topic was made again, or its end was cut
            self._state, self._end = Subjects(), 0
        for record in found.records:
            try:
                self._state.apply(record.key, record.value, is_ours=record.is_ours)
            except UnknownKeyError as error:
                logger.warning("topic=%s offset=%d is passed over: %s", TOPIC, record.offset, error)
        self._end = found.end
        return self._state

    def _writable(self) -> Subjects:
        state = self._now()
        if state.is_foreign:
            raise ReadOnlyStoreError(
                f"{TOPIC} of {self._topic.where} is written by another registry, which hands out its ids: "
                "register and delete through it, by its address in schema.registry.url"
            )
        return state

    def _versions(self, subject: str, *, with_deleted: bool = False) -> list[Registered]:
        state = self._now()
        subject = state.alias(subject) or subject
        found = state.versions(subject, with_deleted=with_deleted)
        if not found:
            if state.versions(subject, with_deleted=True):
                raise UnknownSchemaError(f"subject {subject!r} is deleted in {TOPIC} of {self._topic.where}")
            known = state.subjects(with_deleted=with_deleted)
            hint = did_you_mean(subject, known) if known else "; it has none yet"
            raise UnknownSchemaError(f"subject {subject!r} is not in {TOPIC} of {self._topic.where}{hint}")
        return found

    def _check(self, subject: str, schema: Schema) -> None:
        if found := self._reasons(subject, schema):
            shown = "; ".join(found[:REASONS_SHOWN_MAX]) + "; …" * (len(found) > REASONS_SHOWN_MAX)
            level = self._state.level(subject)
            raise InvalidRequestError(
                f"subject {subject!r}, level {level}: {shown}; set the level to NONE to register it all the same"
            )

    def _reasons(self, subject: str, schema: Schema) -> list[str]:
        from logstore.schemas.compatibility import Version, reasons

        for each in schema.references:
            if each.version not in [entry.version for entry in self._state.versions(each.subject)]:
                raise UnknownSchemaError(f"the schema refers to version {each.version} of {each.subject!r}: not there")
        if schema.type == AVRO:
            avro.parse(schema.text, schema.references, self._referred)
        earlier = [Version(entry.version, entry.schema) for entry in self._state.versions(subject)]
        return reasons(self._state.level(subject), schema, earlier, self._referred)

    def _referred(self, reference: Reference) -> Schema:
        for entry in self._state.versions(reference.subject, with_deleted=True):
            if entry.version == reference.version:
                return entry.schema
        raise UnknownSchemaError(f"version {reference.version} of {reference.subject!r} is not there")

    def _to_delete(self, subject: str, version: int | None, *, permanently: bool) -> list[int]:
        """Return the versions that this deletes."""
        found = self._versions(subject, with_deleted=permanently)
        chosen = [entry for entry in found if version in (None, entry.version)]
        if not chosen:
            raise UnknownSchemaError(f"subject {subject!r} has no version {version}, but {_numbers(found)}")
        for entry in chosen:
            if permanently and not entry.is_deleted:
                raise InvalidRequestError(
                    f"version {entry.version} of {subject!r} is not deleted: delete it first, and then permanently"
                )
            if users := self._state.referring(subject, entry.version):
                raise InvalidRequestError(
                    f"version {entry.version} of {subject!r} is referred to by version {users[0].version} "
                    f"of {users[0].subject!r}: delete that first"
                )
        return [entry.version for entry in chosen]

    def _busy(self) -> InvalidRequestError:
        return InvalidRequestError(f"{TOPIC} of {self._topic.where} changed {TRIES_MAX} times meanwhile: try again")


def _numbers(entries: Sequence[Registered]) -> str:
    return ", ".join(str(entry.version) for entry in entries)
