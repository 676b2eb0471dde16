"""The Delta table of a topic: where it is, how far it holds each partition, and which files hold which rows.

The table itself says how far it goes: each commit that adds records carries, per partition, a `txn` action with the app
id `pylog:<topic id>:<partition>` and, as its version, the offset behind the last record. Rows and offset thus appear
together or not at all, in every snapshot. Whose records they are, `owner` says.

The second of two commits that were prepared from one snapshot and name the same app id fails.

Needs the package `deltalake` (pip install "pyspark-pylog[delta]") and no jar.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from datasource.delta import log
from datasource.delta.owner import Owner
from datasource.delta.storage import TableStorage
from datasource.delta.storage_options import one_line
from logstore.env import SYSTEM
from logstore.errors import InvalidRequestError, PylogError, StorageError, StoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

TOPIC_ID = "pylog.topicId"  # property of a table: whose records it holds
STORE = "pylog.store"  # property of a table: the name of its owner; not heeded inside of a store
COLUMNS_OF = "pylog.columnsOf"  # in a commit: the registered schema whose columns it adds beside the values
DATE = "date"  # the partition column

# Features of a table that a reader of its current rows may ignore.
_HARMLESS_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
_UNANSWERED = re.compile("Error performing|error sending request")  # deltalake's words about requests
_FORBIDDEN_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")


class TableConflictError(PylogError):
    """Another job put records of these partitions into the table first: nothing was committed."""


class UnknownCommitError(StorageError):
    """Nobody can say whether the commit was made: its files must stay, and the next run finds out."""


class RestoredError(StoreError):
    """RESTORE took rows out of the table that its transactions still claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBounds:
    """The first and the last of the rows of a file, or of a part of it, by statistics; None: these do not say."""

    partitions: tuple[int, int] | None
    offsets: tuple[int, int] | None

    def may_hold(self, partition: int, start: int, end: int) -> bool:
        """May there be rows of this partition with start <= offset < end?"""
        return (self.partitions is None or self.partitions[0] <= partition <= self.partitions[1]) and (
            self.offsets is None or (self.offsets[0] < end and start <= self.offsets[1])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    name: str
    size_bytes: int
    records: int | None
    bounds: RowBounds

    @property
    def first(self) -> int:
        """The first offset that it may hold."""
        return self.bounds.offsets[0] if self.bounds.offsets else 0


def app_id(topic_id: str, partition: int | str) -> str:
    """Return the app id by which a table says how far it holds a partition ("": the prefix of all partitions)."""
    return f"pylog:{topic_id}:{partition}"


class TopicTable:
    """One snapshot of the table of one topic. `boundary` and `files` agree with each other; `commit` builds on both."""

    def __init__(self, place: TableStorage, owner: Owner) -> None:
        """Load the newest snapshot.

        Raises: StoreError: there is no table of this topic of this store or cluster; ObjectStoreError.
        """
        self.place = place
        self._owner = owner
        self._table = _load(place)
        self._boundaries: dict[int, int | None] = {}
        self._entry = log.identity_of(place, self.version)
        self._check()

    def boundary(self, partition: int) -> int | None:
        """Return the offset behind the last tiered record; None: none is."""
        if partition not in self._boundaries:  # deltalake reads the table's log for each question
            app = app_id(self._owner.topic_id, partition)
            with self.place.told():
                self._boundaries[partition] = self._table.transaction_version(app)
        return self._boundaries[partition]

    def check_boundary(self, partition: int, start: int) -> None:
        """Raise TableConflictError if somebody tiered records from `start` on since that was planned."""
        if (self.boundary(partition) or 0) > start:
            raise TableConflictError(f"{self.place} moved on since the job was planned")

    @property
    def version(self) -> int:
        return self._table.version()

    def is_newest(self) -> bool:
        """Is nothing committed behind this snapshot, and the table still the one that was loaded?"""
        is_same = self._entry is not None and log.identity_of(self.place, self.version) == self._entry
        return is_same and log.identity_of(self.place, self.version + 1) is None

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema(self._table.schema().to_arrow())

    def files(self) -> list[TableFile]:
        import pyarrow as pa

        # Not `pa.table`: it imports pandas, which takes a process that starts a third of a second.
        with self.place.told():
            found = pa.RecordBatchReader.from_stream(self._table.get_add_actions(flatten=True)).read_all()
        # Not all columns: other statistics may hold what Python cannot, as the year 55840.
        rows = found.select([name for name in _OF_A_FILE if name in found.column_names]).to_pylist()
        return [
            TableFile(
                name=unquote(row["path"]),
                size_bytes=row["size_bytes"],
                records=row.get("num_records"),
                bounds=RowBounds(partitions=_bounds(row, "partition"), offsets=_bounds(row, "offset")),
            )
            for row in rows
        ]

    def commit(self, adds: Sequence[AddAction], boundaries: Mapping[int, int]) -> TopicTable:
        """Add files that are on disk and move the boundaries, in one durable commit; return the snapshot behind it.

        Raises: TableConflictError: others committed to the table since this snapshot; StoreError: it cannot be
        written, now or later. Nothing was committed then. UnknownCommitError: an object store gave no answer.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError

        now_ms = SYSTEM.clock.now_ms()
        ours = [Transaction(app_id(self._owner.topic_id, p), end, now_ms) for p, end in sorted(boundaries.items())]
        try:
            self._table.create_write_transaction(
                list(adds),
                "append",
                self._table.schema(),
                partition_by=[DATE],
                commit_properties=CommitProperties(app_transactions=ours),
            )
        except (DeltaError, OSError) as error:
            after = self._after(error)
            # Else it failed after the commit, writing a checkpoint, say.
            if not after._holds(adds, boundaries):
                raise self._refusal(after, error) from None
        else:
            after = TopicTable(self.place, self._owner)
        after.make_durable(since=self.version)
        return after

    def add_columns(self, fields: Sequence[pa.Field], columns_of: str) -> None:
        """Add columns, which are null in the rows that are there; on return that is durable.

        The commit says of what they are: a property of the table would do, but deltalake turns features on with it.

        Raises: InvalidRequestError: Delta does not allow a name; TableConflictError, StoreError, UnknownCommitError.
        """
        import pyarrow as pa
        from deltalake import CommitProperties, Schema
        from deltalake.exceptions import DeltaError

        check_names([field.name for field in fields])
        since = self.version
        try:
            self._table.alter.add_columns(
                list(Schema.from_arrow(pa.schema(fields)).fields),
                commit_properties=CommitProperties(custom_metadata={COLUMNS_OF: columns_of}, max_commit_retries=0),
            )
        except (DeltaError, OSError) as error:
            raise self._refusal(self._after(error), error) from None
        TopicTable(self.place, self._owner).make_durable(since=since)

    def _after(self, error: Exception) -> TopicTable:
        """Return the snapshot behind a commit that failed. Raises: UnknownCommitError: it cannot be loaded."""
        try:
            return TopicTable(self.place, self._owner)
        except (PylogError, OSError) as second:
            raise self._unknown(error) from second

    def _unknown(self, error: Exception) -> UnknownCommitError:
        reason = one_line(error, self._owner.storage)
        return UnknownCommitError(
            f"{self.place}: nobody knows whether the commit was made ({reason}); run the job again"
        )

    def _holds(self, adds: Sequence[AddAction], boundaries: Mapping[int, int]) -> bool:
        there = {file.name for file in self.files()}
        return all(add.path in there for add in adds) and all(
            (self.boundary(p) or 0) >= end for p, end in boundaries.items()
        )

    def _refusal(self, after: TopicTable, error: Exception) -> PylogError:
        """Return a conflict if the table has changed, else an error that would come again.

        A request that the object store did not answer may still be on its way.
        """
        reason = one_line(error, self._owner.storage)
        if isinstance(error, OSError) or _UNANSWERED.search(str(error)):
            return self._unknown(error)
        if after.version > self.version:
            return TableConflictError(f"{self.place}: {reason}; the next run of the job goes on")
        jar = "; run the job in a session with Delta Lake's jar, or drop them" if "feature" in reason else ""
        return StoreError(f"{self.place} cannot be written: {reason}{jar}")

    def committed(self, since: int, partition: int, end: int) -> log.Entry | None:
        """Return the commit after version `since` that moved the boundary to `end`; None: there is none."""
        for version in range(since + 1, self.version + 1):
            found = log.entry(self.place, version)
            if found and found.transactions.get(app_id(self._owner.topic_id, partition)) == end:
                return found
        return None

    def check_history(self, *, since: int) -> None:
        """Raise RestoredError if RESTORE took away rows that the boundaries still claim, after version `since`."""
        look = cache(partial(log.entry, self.place))
        found = log.undone(look, since=since, head=self.version, prefix=app_id(self._owner.topic_id, ""))
        if found is None:
            return
        to = "an earlier time" if found.restored < 0 else f"version {found.restored}"
        forward = "" if found.whole is None else f"RESTORE it to version {found.whole}, which has them; or "
        raise RestoredError(
            f"{self.place} was taken back to {to} by RESTORE (its version {found.version}): tiered rows "
            f"are missing. Tiering stops, and the log keeps its records, until you {forward}remove "
            f"{self._owner.shown_note} and give another directory with --table (table=): a new table "
            "begins at the log's start"
        )

    def make_durable(self, *, since: int, files: Iterable[TableFile] = ()) -> None:
        """Make durable the commits above version `since`, and these files: the log is deleted once they are tiered.

        Delta's own writer does not call fsync, nor deltalake for what it commits.
        """
        self.place.make_durable(file.name for file in files)
        log.make_durable(self.place, since=since)

    def orphans(self, *, age_hours: int) -> list[str]:
        """Return our files that are in no version of the table and older than this: killed runs left them."""

        def vacuumed(*, full: bool) -> list[str]:
            with self.place.told():
                return self._table.vacuum(
                    retention_hours=age_hours, dry_run=True, enforce_retention_duration=False, full=full
                )

        referenced_once = set(vacuumed(full=False))
        everything = vacuumed(full=True)
        return [
            unquote(name) for name in sorted(everything) if name not in referenced_once and name.endswith(OUR_SUFFIX)
        ]

    def _check(self) -> None:
        about = self._table.metadata()
        topic_id, store = about.configuration.get(TOPIC_ID), about.configuration.get(STORE)
        if topic_id != self._owner.topic_id:
            whose = f"another (or an earlier) topic {about.name!r}" if topic_id else "something else"
            raise StoreError(f"{self.place} is a table of {whose}; give another directory with --table (table=)")
        if store != self._owner.name and not self._owner.has_inside(self.place):
            raise StoreError(
                f"{self.place} is a table of the store {store}, not of {self._owner.name}: if that one was moved here, "
                f"set the property {STORE} of the table to {self._owner.name}; a copy needs tables of its own: remove "
                f"{self._owner.shown_note} and give another directory with --table (table=)"
            )
        features = set(self._table.protocol().reader_features or ())
        if strange := features - _HARMLESS_FEATURES:
            raise StoreError(
                f"{self.place} uses {', '.join(sorted(strange))}, which pylog cannot read; "
                "read the table with Delta Lake itself"
            )


OUR_SUFFIX = ".pylog.parquet"
_OF_A_FILE = (
    "path",
    "size_bytes",
    "num_records",
    "min.partition",
    "max.partition",
    "min.offset",
    "max.offset",
)


def create(place: TableStorage, owner: Owner, schema: pa.Schema) -> None:
    """Make an empty table of the topic, unless it exists; on return it is durable.

    Raises: InvalidRequestError: Delta does not allow the name of a column; ObjectStoreError.
    """
    check_names(schema.names)
    uri, from_package = place.uri, _deltalake()
    from deltalake import CommitProperties
    from deltalake.exceptions import DeltaError

    place.make()
    with place.told():
        try:
            from_package.create(
                uri,
                schema,
                mode="ignore",
                partition_by=[DATE],
                name=owner.topic,
                configuration={TOPIC_ID: owner.topic_id, STORE: owner.name},
                raise_if_key_not_exists=False,
                storage_options=place.options,
                # It would make the table once more in the version behind that of another job.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except (DeltaError, OSError):
            if not log.exists(place):  # else another job was a moment faster, or the answer got lost
                raise
    name_features(place)
    log.make_durable(place, since=-1)


def check_names(names: Iterable[str]) -> None:
    """Raise InvalidRequestError for a column that Delta does not allow."""
    if bad := [name for name in names if _FORBIDDEN_IN_NAMES.search(name)]:
        raise InvalidRequestError(f"column {bad[0]!r}: Delta Lake allows none of ' ,;{{}}()=' in a name")


def name_features(place: TableStorage) -> None:
    """Name `invariants` among the table's features if a column is NOT NULL: deltalake forgets it.

    Delta's Spark refuses a table that does not name each feature that its schema uses.
    """
    table = _load(place)
    from deltalake import TableFeatures

    named = table.protocol().writer_features
    if named is not None and "invariants" not in named and _has_required(table.schema().fields):
        table.alter.add_feature(TableFeatures.Invariants, allow_protocol_versions_increase=True)


def _has_required(fields: Iterable[Any]) -> bool:
    """Is a column, or a field of a struct, NOT NULL?"""
    return any(not f.nullable or _has_required(getattr(f.type, "fields", ())) for f in fields)


def _load(place: TableStorage) -> DeltaTable:
    uri, from_package = place.uri, _deltalake()
    from deltalake.exceptions import DeltaError

    with place.told():
        try:
            return from_package(uri, storage_options=place.options)
        except DeltaError as error:
            reason = one_line(error)
    raise StoreError(f"{place} cannot be read as a Delta table: {reason}; copy it back from a backup")


def _deltalake() -> type[DeltaTable]:
    try:
        from deltalake import DeltaTable
    except ImportError:
        raise PylogError('this needs the package deltalake: pip install "pyspark-pylog[delta]"') from None
    return DeltaTable


def _bounds(row: Mapping[str, Any], column: str) -> tuple[int, int] | None:
    low, high = row.get(f"min.{column}"), row.get(f"max.{column}")
    return None if low is None or high is None else (low, high)
