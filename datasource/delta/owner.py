"""Whose records the Delta table of a topic holds, and the note that jobs keep about the table.

::

    <store>/tiering/<topic id>.json, .lock     the note and the lock, of a store
    <table>/_pylog/<topic id>.json, .lock      of a cluster, whose brokers' directories are theirs alone

The note says where the table is, which schema was declared, and up to where the table was checked and is on disk. How
far it holds the topic it says itself. Delta leaves alone what begins with an underscore.

A copy of a store has the same topics, with the same ids. A table inside the store is copied with it, and the note has
its relative path. A table elsewhere belongs to one store or cluster, whose name is a property of the table; it refuses
others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from datasource.topics.locations import Location
from logstore import TopicInfo
from logstore.checkpoint import make_directory, write_atomic
from logstore.env import SYSTEM
from logstore.errors import StoreError

NOTES = "tiering"  # directory of the store: a note per tiered topic
TABLES = "tiered"  # directory of the store: where tables are by default
_BESIDE = "_pylog"  # directory of a table: the note, if there is no store


@dataclass(frozen=True, slots=True)
class Owner:
    """A topic of a store or of a cluster; `base` is the directory that notes name tables from."""

    name: str
    topic: str
    topic_id: str
    base: Path
    notes: str

    @property
    def note(self) -> Path:
        return self.base / self.notes / f"{self.topic_id}.json"

    @property
    def lock(self) -> Path:
        """The file that a job keeps locked while it tiers the topic."""
        return self.note.with_suffix(".lock")

    @property
    def is_store(self) -> bool:
        return self.notes == NOTES

    def has_inside(self, table: Path) -> bool:
        """Is the table copied and moved with the store?"""
        return self.is_store and table.resolve().is_relative_to(self.base.resolve())


def of_store(path: str | Path, topic: str, topic_id: str) -> Owner:
    """Return the owner of the table of a store's topic."""
    return Owner(str(Path(path).resolve()), topic, topic_id, Path(path), NOTES)


def owner_of(location: Location, info: TopicInfo, table: Path) -> Owner:
    """Return the owner of a topic's table; over a cluster it must be `table`. Raises: UnreachableError."""
    if location.path:
        return of_store(location.path, info.name, info.topic_id)
    name = location.read().identity
    # Kafka before 2.8 has no topic ids.
    topic_id = info.topic_id or f"{name.removeprefix('kafka:')}.{info.name}"
    return Owner(name, info.name, topic_id, table, _BESIDE)


@dataclass(frozen=True, slots=True)
class TierConfig:
    """The note of a topic's table: where it is, and its declared schema as DDL ("": values are bytes).

    The history of the table is checked and on disk up to `version`, that of the table of bad rows up to `bad_version`.
    `tiered` is how far the partitions of a cluster were on disk then (a store notes that in its logs), each with the
    epoch of the leader that named this offset.
    """

    table: Path
    schema: str = ""
    version: int = -1
    bad_version: int = -1
    tiered: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def tables(self) -> list[tuple[Path, int]]:
        """The tables, each with the version up to which it was checked."""
        bad = [(bad_table(self.table), self.bad_version)] if self.schema else []
        return [(self.table, self.version), *bad]


def bad_table(table: Path) -> Path:
    return table.with_name(f"{table.name}__dlq")


def read_note(owner: Owner) -> TierConfig | None:
    """Return the note of the topic's table; None if it was never tiered."""
    try:
        note = json.loads(SYSTEM.files.read_all(owner.note))
        return TierConfig(
            table=owner.base / note["table"],
            schema=str(note.get("schema", "")),
            version=int(note.get("version", -1)),
            bad_version=int(note.get("dlqVersion", -1)),
            tiered={int(p): (int(end), int(epoch)) for p, (end, epoch) in note.get("tiered", {}).items()},
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{owner.note} is damaged; remove it, and run the tiering job with the table's directory"
        ) from error


def write_note(owner: Owner, note: TierConfig) -> None:
    """Replace the note; it is durable on return."""
    table, base = note.table.resolve(), owner.base.resolve()
    body = {
        "topic": owner.topic,
        "table": str(table.relative_to(base) if table.is_relative_to(base) else note.table),
        "schema": note.schema,
        "version": note.version,
        "dlqVersion": note.bad_version,
        "tiered": note.tiered,
    }
    make_directory(SYSTEM, owner.note.parent)
    write_atomic(SYSTEM, owner.note, json.dumps(body).encode())
