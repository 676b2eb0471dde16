"""Whose records the Delta table of a topic holds, and the note that jobs keep about the table.

::

    <store>/tiering/<topic id>.json, .lock      the note and the lock, of a store
    <table>/_pylog/<topic id>.json, .lock       of a cluster, whose brokers' directories are theirs alone
    <table>/_pylog/<topic id>.<random>.json     of a cluster, if the table is in an object store

The note says where the table is, which schema was declared, and up to where the table was checked and is on disk. How
far it holds the topic it says itself. Delta leaves alone what begins with an underscore. In an object store jobs that
run at once leave notes of their own, and the next one takes what they say together.

A copy of a store has the same topics, with the same ids. A table inside the store is copied with it, and the note has
its relative path. A table elsewhere belongs to one store or cluster, whose name is a property of the table; it refuses
others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from datasource.delta.storage import TableDirectory, TableStorage, storage_of
from datasource.delta.storage_options import NONE, StorageOptions, scheme_of
from datasource.topics.locations import Location
from logstore import TopicInfo
from logstore.errors import InvalidConfigError, StoreError

NOTES = "tiering"  # directory of the store: a note per tiered topic
TABLES = "tiered"  # directory of the store: where tables are by default
_BESIDE = "_pylog"  # directory of a table: the note, if there is no store


@dataclass(frozen=True, slots=True)
class Owner:
    """A topic of a store or of a cluster; `base` is the place that notes are in, and name tables from.

    `storage` are the options by which a table in an object store is reached.
    """

    name: str
    topic: str
    topic_id: str
    base: TableStorage
    notes: str
    storage: StorageOptions = NONE

    @property
    def note(self) -> str:
        """The name of the note in `base`, and of the lock that a job keeps while it tiers the topic."""
        return f"{self.notes}/{self.topic_id}"

    @property
    def shown_note(self) -> str:
        return self.base.name_of_note(self.note)

    @property
    def is_store(self) -> bool:
        return self.notes == NOTES

    def has_inside(self, table: TableStorage) -> bool:
        """Is the table copied and moved with the store?"""
        return self.is_store and table.relative_to(self.base) is not None

    def table_named(self, text: str) -> TableStorage:
        """Return the table that a note names. Raises: InvalidConfigError."""
        directory = self.base.directory
        if directory is None:
            return self.base / text
        # A job has one set of options for all topics of a store; those with a directory need none.
        return storage_of(text, self.storage if scheme_of(text) else NONE, base=directory)


def of_store(path: str | Path, topic: str, topic_id: str, storage: StorageOptions = NONE) -> Owner:
    """Return the owner of the table of a store's topic."""
    return Owner(str(Path(path).resolve()), topic, topic_id, TableDirectory(Path(path)), NOTES, storage)


def owner_of(location: Location, info: TopicInfo, table: TableStorage | None, storage: StorageOptions = NONE) -> Owner:
    """Return the owner of a topic's table; over a cluster it must be `table`. Raises: UnreachableError."""
    if location.path:
        return of_store(location.path, info.name, info.topic_id, storage)
    assert table is not None, "the options were checked"
    name = location.read().identity
    # Kafka before 2.8 has no topic ids.
    topic_id = info.topic_id or f"{name.removeprefix('kafka:')}.{info.name}"
    return Owner(name, info.name, topic_id, table, _BESIDE, storage)


REGISTERED = "registered"  # in place of a schema: that of the topic


@dataclass(frozen=True, slots=True)
class TierConfig:
    """The note of a topic's table: where it is, and its declared schema as DDL ("": values are bytes).

    The word REGISTERED in place of it: values are bytes, with the columns of the topic's schema beside.

    The history of the table is checked and on disk up to `version`, that of the table of bad rows up to `bad_version`.
    `tiered` is how far the partitions of a cluster were on disk then (a store notes that in its logs), each with the
    epoch of the leader that named this offset. `sources` are the files that it was read from.
    """

    table: TableStorage
    schema: str = ""
    version: int = -1
    bad_version: int = -1
    tiered: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    sources: tuple[str, ...] = field(default=(), compare=False)

    @property
    def tables(self) -> list[tuple[TableStorage, int]]:
        """The tables, each with the version up to which it was checked."""
        bad = [(bad_table(self.table), self.bad_version)] if self.schema not in ("", REGISTERED) else []
        return [(self.table, self.version), *bad]


def bad_table(table: TableStorage) -> TableStorage:
    return table.beside("__dlq")


def read_note(owner: Owner) -> TierConfig | None:
    """Return the note of the topic's table; None if it was never tiered. Raises: StoreError: it is damaged."""
    found = [_parsed(owner, file, content) for file, content in owner.base.notes(owner.note).items()]
    return _together(found) if found else None


def _parsed(owner: Owner, file: str, content: bytes) -> TierConfig:
    try:
        note = json.loads(content)
        return TierConfig(
            table=owner.table_named(note["table"]),
            schema=str(note.get("schema", "")),
            version=int(note.get("version", -1)),
            bad_version=int(note.get("dlqVersion", -1)),
            tiered={int(p): (int(end), int(epoch)) for p, (end, epoch) in note.get("tiered", {}).items()},
            sources=(file,),
        )
    except InvalidConfigError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{owner.base / file} is damaged; remove it, and run the tiering job with the table's directory"
        ) from error


def _together(notes: Sequence[TierConfig]) -> TierConfig:
    """Return what jobs noted that did not know of each other: the newest, and how far each partition was tiered."""
    tiered: dict[int, tuple[int, int]] = {}
    for note in notes:
        for partition, end in note.tiered.items():
            tiered[partition] = max(end, tiered.get(partition, end))
    newest = max(notes, key=lambda note: (note.version, note.bad_version))
    return replace(newest, tiered=tiered, sources=tuple(file for note in notes for file in note.sources))


def write_note(owner: Owner, note: TierConfig) -> TierConfig:
    """Write the note in place of those that it was made from, durably; return it as it is read then."""
    body = {
        "topic": owner.topic,
        "table": note.table.relative_to(owner.base) or str(note.table),
        "schema": note.schema,
        "version": note.version,
        "dlqVersion": note.bad_version,
        "tiered": note.tiered,
    }
    file = owner.base.write_note(owner.note, json.dumps(body).encode(), note.sources)
    return replace(note, sources=(file,))
