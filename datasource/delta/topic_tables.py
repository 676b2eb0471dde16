"""A topic and its tables: which they are, and whether they are this topic's, with the declared columns."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from datasource.delta import log
from datasource.delta.columns import BAD, RAW, typed_schema
from datasource.delta.owner import REGISTERED, TABLES, Owner, TierConfig, bad_table, read_note
from datasource.delta.registered import Beside, beside
from datasource.delta.storage import TableStorage, storage_of
from datasource.delta.storage_options import NONE, StorageOptions
from datasource.delta.table import TopicTable
from datasource.topics.locations import Location
from logstore.errors import InvalidRequestError, StoreError
from logstore.schemas import ddl as delta_ddl


@dataclass(frozen=True, slots=True, kw_only=True)
class TieringTask:
    """A topic and its tables; `ddl` declares the fields of its values, or is REGISTERED, for the columns `beside`."""

    location: Location
    owner: Owner
    table: TableStorage
    note: TierConfig | None = None
    ddl: str = ""
    fields: tuple[pa.Field, ...] = ()
    beside: Beside | None = None

    @property
    def topic(self) -> str:
        return self.owner.topic

    @property
    def bad_table(self) -> TableStorage:
        return bad_table(self.table)

    @property
    def tables(self) -> list[tuple[TableStorage, pa.Schema]]:
        if not self.fields:
            return [(self.table, RAW)]
        return [(self.table, typed_schema(self.fields)), (self.bad_table, BAD)]

    def open_table(self) -> TopicTable:
        """Return the newest snapshot of the table. Raises: StoreError."""
        return TopicTable(self.table, self.owner)

    def open_bad_table(self) -> TopicTable | None:
        """Return that of the table of bad rows; None: there can be none. Raises: StoreError."""
        return TopicTable(self.bad_table, self.owner) if self.fields else None


def table_of(topic: str, table: str, storage: StorageOptions = NONE) -> TableStorage:
    """Return the place that option and argument name, `{topic}` being the topic's name. Raises: as `storage_of`."""
    return storage_of(table.replace("{topic}", topic), storage)


def find(location: Location, owner: Owner, asked: TableStorage | None, schema: str | None) -> TieringTask:
    """Return the topic with its table: the one in the note, else the one asked for, else the default (of a store).

    Raises: as `check`; InvalidRequestError: the note has another one.
    """
    note = read_note(owner)
    if note and asked and asked.relative_to(note.table) != ".":
        raise InvalidRequestError(
            f"topic {owner.topic!r} is tiered to {note.table} already: leave the table away, or name this one"
        )
    ddl = schema or (note.schema if note else "")
    is_registered = ddl.strip().lower() == REGISTERED
    task = TieringTask(
        location=location,
        owner=owner,
        table=note.table if note else asked or owner.table_named(f"{TABLES}/{owner.topic}"),
        note=note,
        ddl=REGISTERED if is_registered else ddl,
        fields=delta_ddl.parse(ddl) if ddl and not is_registered else (),
        beside=beside(location.read().schemas, owner.topic) if is_registered else None,
    )
    check(task)
    return task


def check(task: TieringTask) -> None:
    """Raise StoreError unless the tables are this topic's, with the declared columns, or missing without a note.

    Raises: RestoredError: a table lost rows by RESTORE.
    """
    check_histories(task.owner)
    for place, schema in task.tables:
        if task.note or log.exists(place):
            there = TopicTable(place, task.owner).schema()
            if task.beside:
                task.beside.missing(there)
            elif not there.equals(schema):
                wrong = [f.name for f in schema if f.name not in there.names or f.type != there.field(f.name).type]
                wrong += [name for name in there.names if name not in schema.names]
                raise StoreError(
                    f"{place} has other columns than declared ({', '.join(wrong) or 'in another order'}): give its "
                    "original schema, or change the table first"
                )


def check_histories(owner: Owner) -> None:
    """Raise RestoredError if a table of the topic lost rows by RESTORE, StoreError if it cannot be read."""
    note = read_note(owner)
    for place, version in note.tables if note else ():
        TopicTable(place, owner).check_history(since=version)
