"""The Delta table of a topic: where it is, up to which offset it holds each partition, and which files hold which rows.

The table itself says how far it goes: each commit that adds records carries, per partition, a `txn` action with the app
id `pylog:<topic id>:<partition>` and, as its version, the offset behind the last record. Rows and offset thus appear
together or not at all, and every snapshot of the table agrees with itself. Nothing else is believed; what stands in
the store (`tiering/<topic id>.json`) only says where the table is, and which schema was declared.

A copy of a store has the same topics, with the same ids. A table inside the store is copied with it, and is noted
relative to it. A table elsewhere is of one store, whose path is a property of the table: another store is refused.

Two commits that were prepared from one snapshot and name the same app id exclude each other: the second one fails.

Needs the package `deltalake` (pip install "pyspark-pylog[delta]"); no jar. Tables are directories that this machine
sees.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from logstore.checkpoint import write_atomic
from logstore.env import SYSTEM
from logstore.errors import InvalidRequestError, PylogError, StoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

NOTES = "tiering"  # of the store: a note per tiered topic
TABLES = "tiered"  # of the store: where tables are if nothing else is said
TOPIC_ID = "pylog.topicId"  # property of a table: whose records it holds
STORE = "pylog.store"  # property of a table: which store fills it, should it be outside of that store
DATE = "date"  # the partition column

# What a reader must know of a table beyond plain Parquet files, and need not care about here.
_HARMLESS_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
_FORBIDDEN_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")


class TableConflictError(PylogError):
    """Another job put records of these partitions into the table first: nothing was committed."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file, and what its statistics say of the rows in it; None: they do not say."""

    path: Path
    size_bytes: int
    records: int | None
    partitions: tuple[int, int] | None
    offsets: tuple[int, int] | None

    def may_hold(self, partition: int, start: int, end: int) -> bool:
        """May there be rows of this partition with start <= offset < end?"""
        return (self.partitions is None or self.partitions[0] <= partition <= self.partitions[1]) and (
            self.offsets is None or (self.offsets[0] < end and start <= self.offsets[1])
        )


# ------------------------------------------------------------------------------- where a topic's table is


@dataclass(frozen=True, slots=True)
class Note:
    """Where the table of a topic is, and its declared schema as DDL; "": values are bytes."""

    table: Path
    schema: str


def noted(root: str | Path, topic_id: str) -> Note | None:
    """Return what the store notes of the topic's table; None if it was never tiered."""
    try:
        note = json.loads(SYSTEM.files.read_all(_note(root, topic_id)))
        return Note(Path(root) / note["table"], str(note.get("schema", "")))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{_note(root, topic_id)} is damaged; remove it, and run the tiering job with the table's directory"
        ) from error


def write_note(root: str | Path, topic: str, topic_id: str, note: Note) -> None:
    """Write the note, durably."""
    table = note.table.resolve().relative_to(_owner(root)) if _is_inside(note.table, root) else note.table
    text = json.dumps({"topic": topic, "table": str(table), "schema": note.schema})
    SYSTEM.files.mkdir(Path(root) / NOTES)
    write_atomic(SYSTEM, _note(root, topic_id), text.encode())
    SYSTEM.files.fsync(Path(root))


def _owner(root: str | Path) -> str:
    """What a table outside of the store knows the store by."""
    return str(Path(root).resolve())


def _is_inside(table: Path, root: str | Path) -> bool:
    return table.resolve().is_relative_to(_owner(root))


def _note(root: str | Path, topic_id: str) -> Path:
    return Path(root) / NOTES / f"{topic_id}.json"


def lock_path(root: str | Path, topic_id: str) -> Path:
    """Return the file that who tiers a topic holds locked: a second job has nothing to do there."""
    return Path(root) / NOTES / f"{topic_id}.lock"


# ------------------------------------------------------------------------------------------------ the table


def app_id(topic_id: str, partition: int) -> str:
    """Return the name under which a table keeps how far it holds a partition."""
    return f"pylog:{topic_id}:{partition}"


class Lake:
    """One snapshot of the table of one topic. `boundary` and `files` agree with each other; `commit` builds on both."""

    def __init__(self, path: Path, topic_id: str, root: str) -> None:
        """Load the newest snapshot. Raises: StoreError: there is no such table of this topic of the store at `root`."""
        self.path = path
        self.topic_id = topic_id
        self.root = root
        self._table = _load(path)
        self._check()

    def boundary(self, partition: int) -> int | None:
        """Return the offset behind the last that was tiered; None: nothing was, yet."""
        return self._table.transaction_version(app_id(self.topic_id, partition))

    @property
    def version(self) -> int:
        """The version of the snapshot."""
        return self._table.version()

    def schema(self) -> pa.Schema:
        """The columns."""
        import pyarrow as pa

        return pa.schema(self._table.schema().to_arrow())

    def files(self) -> list[TableFile]:
        """Return the data files of the snapshot."""
        import pyarrow as pa

        rows = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return [
            TableFile(
                path=self.path / unquote(row["path"]),
                size_bytes=row["size_bytes"],
                records=row.get("num_records"),
                partitions=_bounds(row, "partition"),
                offsets=_bounds(row, "offset"),
            )
            for row in rows
        ]

    def commit(self, adds: Sequence[AddAction], boundaries: Mapping[int, int]) -> Lake:
        """Add the files and move the boundaries, together; return the snapshot behind it, durable.

        Raises: TableConflictError: since this snapshot another job moved one of them. Nothing was committed.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError

        now_ms = SYSTEM.clock.now_ms()
        ours = [Transaction(app_id(self.topic_id, p), end, now_ms) for p, end in sorted(boundaries.items())]
        try:
            self._table.create_write_transaction(
                list(adds),
                "append",
                self._table.schema(),
                partition_by=[DATE],
                commit_properties=CommitProperties(app_transactions=ours),
            )
        except DeltaError as error:
            after = Lake(self.path, self.topic_id, self.root)
            if not after._holds(adds, boundaries):  # it failed after the commit: writing a checkpoint, say
                raise TableConflictError(f"{self.path}: {error}; the next run of the job goes on") from error
        else:
            after = Lake(self.path, self.topic_id, self.root)
        after.make_durable(since=self.version)
        return after

    def _holds(self, adds: Sequence[AddAction], boundaries: Mapping[int, int]) -> bool:
        there = {file.path for file in self.files()}
        return all(self.path / add.path in there for add in adds) and all(
            (self.boundary(p) or 0) >= end for p, end in boundaries.items()
        )

    def make_durable(self, *, since: int) -> None:
        """Let the commits behind version `since` survive a loss of power: the log is removed on their word."""
        log = self.path / "_delta_log"
        for number in range(since + 1, self.version + 1):
            with suppress(FileNotFoundError):  # removed with other old entries
                SYSTEM.files.fsync(log / f"{number:020d}.json")
                SYSTEM.files.forget(log / f"{number:020d}.json")
        SYSTEM.files.fsync(log)

    def orphans(self, *, age_hours: int) -> list[Path]:
        """Return files that are in no version of the table and older than this: what killed runs left."""

        def vacuumed(*, full: bool) -> list[str]:
            return self._table.vacuum(
                retention_hours=age_hours, dry_run=True, enforce_retention_duration=False, full=full
            )

        referenced_once = set(vacuumed(full=False))
        everything = vacuumed(full=True)
        return [
            self.path / unquote(name)
            for name in sorted(everything)
            if name not in referenced_once and name.endswith(OUR_SUFFIX)
        ]

    def _check(self) -> None:
        about = self._table.metadata()
        topic_id, store = about.configuration.get(TOPIC_ID), about.configuration.get(STORE)
        if topic_id != self.topic_id:
            whose = f"another (or an earlier) topic {about.name!r}" if topic_id else "something else"
            raise StoreError(
                f"{self.path} is a table of {whose}; give another directory with --table (table=)"
            )
        if store != _owner(self.root) and not _is_inside(self.path, self.root):
            raise StoreError(
                f"{self.path} is a table of the store {store}, not of {_owner(self.root)}: if that one was moved here, "
                f"set the property {STORE} of the table to {_owner(self.root)}; a copy needs tables of its own: remove "
                f"{_note(self.root, self.topic_id)} and give another directory with --table (table=)"
            )
        features = set(self._table.protocol().reader_features or ())
        if strange := features - _HARMLESS_FEATURES:
            raise StoreError(
                f"{self.path} uses {', '.join(sorted(strange))}, which pylog cannot read; "
                "read the table with Delta Lake itself"
            )


OUR_SUFFIX = ".pylog.parquet"


def exists(path: Path) -> bool:
    """Is there a Delta table?"""
    return SYSTEM.files.stat(path / "_delta_log") is not None and bool(_deltalake().is_deltatable(str(path)))


def create(path: Path, root: str, name: str, topic_id: str, schema: pa.Schema) -> None:
    """Make the (empty) table of a topic of the store at `root`; nothing happens if it is there.

    Raises: InvalidRequestError: a column has a name that Delta does not take.
    """
    if bad := [column for column in schema.names if _FORBIDDEN_IN_NAMES.search(column)]:
        raise InvalidRequestError(f"column {bad[0]!r}: Delta Lake allows none of ' ,;{{}}()=' in a name")
    SYSTEM.files.mkdir(path)
    _deltalake().create(
        str(path),
        schema,
        mode="ignore",
        partition_by=[DATE],
        name=name,
        configuration={TOPIC_ID: topic_id, STORE: _owner(root)},
        raise_if_key_not_exists=False,
    )
    for directory in (path / "_delta_log", path, path.parent):
        SYSTEM.files.fsync(directory)


def _load(path: Path) -> DeltaTable:
    from_package = _deltalake()
    from deltalake.exceptions import DeltaError

    try:
        return from_package(str(path))
    except DeltaError as error:
        reason = str(error).splitlines()[0]
        raise StoreError(
            f"{path} cannot be read as a Delta table: {reason}; restore it from a copy"
        ) from error


def _deltalake() -> type[DeltaTable]:
    try:
        from deltalake import DeltaTable
    except ImportError:
        raise PylogError('this needs the package deltalake: pip install "pyspark-pylog[delta]"') from None
    return DeltaTable


def _bounds(row: Mapping[str, Any], column: str) -> tuple[int, int] | None:
    low, high = row.get(f"min.{column}"), row.get(f"max.{column}")
    return None if low is None or high is None else (low, high)
