"""Subjects: the records of the topic `_schemas`, in the form of Confluent's registry, and the state they add up to.

| key | value | says |
|---|---|---|
| `{"keytype":"SCHEMA","subject":S,"version":V,"magic":1}` | subject, version, id, schema, deleted | version V of S |
| the same | null (Karapace: empty) | that version is gone for good |
| `{"keytype":"DELETE_SUBJECT","subject":S,"magic":0}` | subject, version | all versions up to this one are deleted |
| `{"keytype":"CONFIG","subject":S,"magic":0}` | compatibilityLevel; alias, if S stands for it | S null: of all |
| `{"keytype":"NOOP","magic":0}` | null; ours: `{"id":N}` | ids up to N were handed out, and are gone for good |

One text has one id, whatever its subjects. Records of ours bear the header MARK, since a topic has writers of one kind:
pylog's, each of whose records is judged by `refusal`, or another registry, which hands out ids from its own memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

TOPIC = "_schemas"
MARK = b"pylog"
AVRO, JSON = "AVRO", "JSON"
LEVELS = ("BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE", "NONE")
LEVEL_DEFAULT = "BACKWARD"
ID_MAX = 2**31 - 1

_NOOP = b'{"keytype":"NOOP","magic":0}'
_AVRO_ALIASES = (None, "", AVRO)


class Reference(NamedTuple):
    """Another schema that a text names."""

    name: str
    subject: str
    version: int


class Schema(NamedTuple):
    """A text and its type (AVRO, JSON, PROTOBUF): what has one id. Equal if the registry says it is the same."""

    type: str
    text: str
    references: tuple[Reference, ...] = ()


class Registered(NamedTuple):
    """A version of a subject. `is_deleted`: it is not shown, and data that bears its id can still be read."""

    subject: str
    version: int
    id: int
    schema: Schema
    is_deleted: bool = False


class Record(NamedTuple):
    """A record for the topic; all of one change belong into one batch, in this order."""

    key: bytes
    value: bytes | None


def is_ours(headers: Iterable[tuple[str | bytes, Any]]) -> bool:
    """Whether a record with these headers was written by pylog."""
    return any(name in (MARK, MARK.decode()) for name, _ in headers)


# ------------------------------------------------------------------ records


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def schema_key(subject: str, version: int) -> bytes:
    return _json({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1})


def schema_record(entry: Registered) -> Record:
    """Return the record of a version, its members in the order of Confluent's."""
    kind, text, references = entry.schema
    value: dict[str, Any] = {"subject": entry.subject, "version": entry.version, "id": entry.id}
    if kind != AVRO:
        value["schemaType"] = kind
    if references:
        value["references"] = [each._asdict() for each in references]
    value |= {"schema": text, "deleted": entry.is_deleted}
    return Record(schema_key(entry.subject, entry.version), _json(value))


def config_record(subject: str | None, level: str | None, alias: str | None = None) -> Record:
    """Return the record of a compatibility level (None: the subject takes that of all), and of an alias."""
    key = _json({"keytype": "CONFIG", "subject": subject, "magic": 0})
    said = {name: word for name, word in (("alias", alias), ("compatibilityLevel", level)) if word is not None}
    return Record(key, _json(said) if said else None)


class UnknownKeyError(ValueError):
    """A record that has not the form of `_schemas`."""


def _decoded(data: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UnknownKeyError(f"its {what} is no JSON object")
    return found


def _number(found: Mapping[str, Any], name: str) -> int:
    value = found.get(name)
    if type(value) is not int or not 0 <= value <= ID_MAX:
        raise UnknownKeyError(f"{name} {value!r} is no number of 0 to {ID_MAX}")
    return value


def _text(found: Mapping[str, Any], name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str):
        raise UnknownKeyError(f"{name} {value!r} is no text")
    return value


def entry_of(key: Mapping[str, Any], value: bytes) -> Registered:
    """Return the version that a SCHEMA record with this key holds. Raises: UnknownKeyError."""
    found = _decoded(value, "value")
    kind = found.get("schemaType")
    references = found.get("references") or ()
    if not isinstance(references, list | tuple) or not all(isinstance(each, dict) for each in references):
        raise UnknownKeyError("its references are no list of objects")
    named = tuple(Reference(_text(r, "name"), _text(r, "subject"), _number(r, "version")) for r in references)
    schema = Schema(AVRO if kind in _AVRO_ALIASES else str(kind), _text(found, "schema"), named)
    where = _text(key, "subject"), _number(key, "version")
    if (found.get("subject"), found.get("version")) != where:
        raise UnknownKeyError("its key and its value name different versions")
    return Registered(*where, _number(found, "id"), schema, bool(found.get("deleted")))


# -------------------------------------------------------------------- state


class Subjects:
    """The state that the records of the topic add up to, applied in their order. Belongs to one thread at a time.

    `is_foreign`: a record without our mark came; another registry hands out the ids.
    """

    def __init__(self) -> None:
        self.is_foreign = False
        self.is_empty = True
        self.id_max = 0
        self._versions: dict[str, dict[int, Registered]] = {}
        self._ids: dict[Schema, int] = {}
        self._schemas: dict[int, Schema] = {}
        self._levels: dict[str | None, str] = {}
        self._aliases: dict[str, str] = {}

    def apply(self, key: bytes | None, value: bytes | None, *, is_ours: bool) -> None:
        """Take the next record of the topic. Raises: UnknownKeyError; then only its writer is known."""
        if not is_ours:
            self.is_empty, self.is_foreign = False, True
        found = _decoded(key or b"", "key")
        value = value or None  # Karapace deletes with an empty value
        match found.get("keytype"):
            case "SCHEMA" if value is None:
                self._remove(_text(found, "subject"), _number(found, "version"))
            case "SCHEMA":
                self._put(entry_of(found, value or b""))
            case "DELETE_SUBJECT" if value is not None:
                self._delete_up_to(_text(found, "subject"), _number(_decoded(value, "value"), "version"))
            case "CONFIG":
                self._configure(found.get("subject"), value)
            case "NOOP" if value is not None:
                self.id_max = max(self.id_max, _number(_decoded(value, "value"), "id"))
            case "NOOP" | "DELETE_SUBJECT" | "MODE" | "CLEAR_SUBJECT" | "CONTEXT":
                pass  # of other registries, about themselves
            case other:
                raise UnknownKeyError(f"keytype {other!r} is not known here")
        self.is_empty = False

    def _put(self, entry: Registered) -> None:
        self._versions.setdefault(entry.subject, {})[entry.version] = entry
        self._ids.setdefault(entry.schema, entry.id)
        self._schemas[entry.id] = entry.schema
        self.id_max = max(self.id_max, entry.id)

    def _remove(self, subject: str, version: int) -> None:
        entry = self._versions.get(subject, {}).pop(version, None)
        if entry is None:
            return
        if not self._versions[subject]:
            del self._versions[subject]
        if not any(entry.id == other.id for each in self._versions.values() for other in each.values()):
            self._schemas.pop(entry.id, None)
            if self._ids.get(entry.schema) == entry.id:
                del self._ids[entry.schema]

    def _delete_up_to(self, subject: str, version: int) -> None:
        versions = self._versions.get(subject, {})
        for number, entry in versions.items():
            if number <= version:
                versions[number] = entry._replace(is_deleted=True)

    def _configure(self, subject: Any, value: bytes | None) -> None:
        if subject is not None and not isinstance(subject, str):
            raise UnknownKeyError(f"subject {subject!r} is no text")
        said = {} if value is None else _decoded(value, "value")
        self._levels.pop(subject, None)
        if (level := said.get("compatibilityLevel")) is not None:
            self._levels[subject] = str(level)
        if subject is not None:
            self._aliases.pop(subject, None)
            if alias := said.get("alias"):
                self._aliases[subject] = str(alias)

    # ------------------------------------------------------------- questions

    def subjects(self, *, with_deleted: bool = False) -> list[str]:
        return sorted(s for s in self._versions if self.versions(s, with_deleted=with_deleted))

    def versions(self, subject: str, *, with_deleted: bool = False) -> list[Registered]:
        """The versions of a subject in their order; none if there is no such subject."""
        found = sorted(self._versions.get(subject, {}).items())
        return [entry for _, entry in found if with_deleted or not entry.is_deleted]

    def schema(self, schema_id: int) -> Schema | None:
        return self._schemas.get(schema_id)

    def id_of(self, schema: Schema) -> int | None:
        return self._ids.get(schema)

    def users(self, schema_id: int) -> list[Registered]:
        """The versions that bear an id, also deleted ones."""
        return [e for each in self._versions.values() for e in each.values() if e.id == schema_id]

    def referring(self, subject: str, version: int) -> list[Registered]:
        """The versions, but deleted ones, that refer to this one."""
        entries = (e for each in self._versions.values() for e in each.values() if not e.is_deleted)
        return [e for e in entries if any((r.subject, r.version) == (subject, version) for r in e.schema.references)]

    def level(self, subject: str | None) -> str:
        """The compatibility level of a subject, or of all (None)."""
        return self._levels.get(subject) or self._levels.get(None) or LEVEL_DEFAULT

    def own_level(self, subject: str | None) -> str | None:
        return self._levels.get(subject)

    def alias(self, subject: str | None) -> str | None:
        """The subject that this one stands for."""
        return None if subject is None else self._aliases.get(subject)

    # ------------------------------------------------------------- decisions

    def registered(self, subject: str, schema: Schema) -> Registered | None:
        """The version of a subject that has this schema, and is not deleted."""
        return next((entry for entry in self.versions(subject) if entry.schema == schema), None)

    def to_register(self, subject: str, schema: Schema) -> Registered:
        """Return the version that the subject gets for a schema that it has not: the next one; one text has one id."""
        last = max(self._versions.get(subject, {0: None}))
        known = self._ids.get(schema)
        return Registered(subject, last + 1, self.id_max + 1 if known is None else known, schema)

    def to_delete(self, subject: str, version: int | None) -> list[Record]:
        """Return the records that delete a version, or (None) all of a subject, so that it can be taken back."""
        if version is None:
            last = max(self._versions[subject])
            key = _json({"keytype": "DELETE_SUBJECT", "subject": subject, "magic": 0})
            return [Record(key, _json({"subject": subject, "version": last}))]
        return [schema_record(self._versions[subject][version]._replace(is_deleted=True))]

    def to_remove(self, subject: str, version: int | None) -> list[Record]:
        """Return the records that delete a version, or (None) all of a subject, for good.

        The last id is noted: a tombstone goes with compaction, and a new schema must not get the id of old data.
        """
        gone = [version] if version is not None else sorted(self._versions[subject])
        records = [Record(schema_key(subject, each), None) for each in gone]
        ids = {self._versions[subject][each].id for each in gone}
        return [Record(_NOOP, _json({"id": self.id_max})), *records] if self.id_max in ids else records


def refusal(state: Subjects, record: Record, *, is_ours: bool) -> str | None:
    """Return why a record may not be appended after those of this state; None: it may, and is applied to the state.

    Two writers who looked at one state cannot both be right: the second is refused, looks again and comes again.
    """
    if not is_ours:
        if state.is_empty or state.is_foreign:
            state.is_empty, state.is_foreign = False, True
            return None
        return f"pylog hands out the ids of {TOPIC} here: register with `pylog schemas`"
    if state.is_foreign:
        return f"another registry writes {TOPIC} here: register through its address, schema.registry.url"
    try:
        key = _decoded(record.key or b"", "key")
        if key.get("keytype") == "SCHEMA" and record.value:
            entry = entry_of(key, record.value)
            if (why := _contradiction(state, entry)) is not None:
                return why
        state.apply(record.key, record.value, is_ours=True)
    except UnknownKeyError as error:
        return f"no record of {TOPIC}: {error}"
    return None


def _contradiction(state: Subjects, entry: Registered) -> str | None:
    versions = {each.version: each for each in state.versions(entry.subject, with_deleted=True)}
    if (before := versions.get(entry.version)) is not None:
        if before._replace(is_deleted=entry.is_deleted) == entry:
            return None
        return f"subject {entry.subject!r} has another version {entry.version}"
    wanted = state.to_register(entry.subject, entry.schema)
    if entry.version != wanted.version:
        return f"version {entry.version} of subject {entry.subject!r} is not the next, {wanted.version}"
    if entry.id != wanted.id:
        return f"id {entry.id} is not that of this schema, {wanted.id}"
    if (same := state.registered(entry.subject, entry.schema)) is not None:
        return f"subject {entry.subject!r} has this schema already, as version {same.version}"
    return None
