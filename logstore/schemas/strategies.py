"""Strategies: which subject has the schema of a topic's keys or values, and which ids these may bear therefore.

`Demand` is the rule of `value.schema.validation` and `key.schema.validation`: by the id alone, so a value may still be
no data of its schema. An id counts while a version that is not deleted has it, in the subject that the strategy names.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from typing import NamedTuple

from logstore.config import STRATEGY, Part, without_class
from logstore.config import SUBJECT_NAME_STRATEGIES as STRATEGIES
from logstore.errors import InvalidRequestError, did_you_mean
from logstore.records.framing import NO_ID, SHORT
from logstore.schemas.subjects import AVRO, Registered, Schema, Subjects

_SAID = {NO_ID: "has no schema id: its first byte is not 0", SHORT: "has no schema id: it is shorter than 5 bytes"}
_IDS_SHOWN_MAX = 5


def subject_of(topic: str, part: Part) -> str:
    """Return the subject of a topic's keys or values: by the strategy TopicName, or what that one stands for."""
    return f"{topic}-{part}"


def subject_by(strategy: str, topic: str, part: Part, schema: Schema) -> str:
    """Return the subject of a schema by one of STRATEGIES; RecordName: of the record, whatever the topic.

    Raises: InvalidRequestError: there is no such strategy, or the schema has no name (of Avro, or a title of JSON).
    """
    short = without_class(strategy, STRATEGY)
    if short not in STRATEGIES:
        raise InvalidRequestError(f"strategy {strategy!r}{did_you_mean(short, STRATEGIES)}")
    if short == "TopicName":
        return subject_of(topic, part)
    if not (name := _record_name(schema)):
        raise InvalidRequestError(f"the strategy {short} needs a schema with a name: of a record of Avro, or a title")
    return name if short == "RecordName" else f"{topic}-{name}"


def _record_name(schema: Schema) -> str:
    try:
        found = json.loads(schema.text)
    except ValueError:  # Protobuf
        return ""
    if not isinstance(found, dict):
        return ""
    name, namespace = found.get("name" if schema.type == AVRO else "title"), found.get("namespace")
    if not isinstance(name, str):
        return ""
    return f"{namespace}.{name}" if schema.type == AVRO and namespace and "." not in name else name


class Demand(NamedTuple):
    """The ids that the keys, or the values, of a topic may bear, in order. Null bears none, and passes."""

    part: Part
    subject: str
    ids: array[int]

    def reason(self, schema_id: int) -> str:
        """Why this id (or NO_ID, or SHORT) may not be borne, and the way out."""
        if (said := _SAID.get(schema_id)) is not None:
            return f"its {self.part} {said}; serializers with a registry write one ({self.part}.format=avro-confluent)"
        if not self.ids:
            register = f"register one with `pylog schemas register {self.subject}`"
            return f"its {self.part} bears id {schema_id}, and subject {self.subject!r} has no schema: {register}"
        shown = "…, " * (len(self.ids) > _IDS_SHOWN_MAX) + ", ".join(map(str, self.ids[-_IDS_SHOWN_MAX:]))
        return f"its {self.part} bears id {schema_id}, which is none of subject {self.subject!r} ({shown})"


def demand_of(state: Subjects, topic: str, part: Part, strategy: str) -> Demand:
    """Return what a registry in this state demands of a topic's keys or values."""
    if strategy == "TopicName":
        subject = state.alias(subject_of(topic, part)) or subject_of(topic, part)
        return Demand(part, subject, _sorted(entry.id for entry in state.versions(subject)))
    ids = set()
    for subject in state.subjects():
        if strategy == "RecordName" or subject.startswith(f"{topic}-"):
            ids |= {entry.id for entry in state.versions(subject) if _is_named(strategy, topic, part, entry)}
    shown = f"{topic}-RECORD" if strategy == "TopicRecordName" else "RECORD"
    return Demand(part, shown, _sorted(ids))


def _is_named(strategy: str, topic: str, part: Part, entry: Registered) -> bool:
    name = _record_name(entry.schema)
    return bool(name) and entry.subject == subject_by(strategy, topic, part, entry.schema)


def _sorted(ids: Iterable[int]) -> array[int]:
    return array("q", sorted(set(ids)))


def nothing_known(topic: str, part: Part) -> Demand:
    """Return what is demanded before `_schemas` was looked at: everything."""
    return Demand(part, subject_of(topic, part), array("q"))
