"""A topic and its tables: which they are, whether they are as they should be, and what the log is told of them.

What the log is told (its tiered offset) is what retention goes by with `remote.storage.enable`. It is told what the
table holds, after that is on disk, and whatever it was told before: a table that came back from a copy holds less.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import logstore
from datasource.delta import table as lake
from datasource.delta.parquet import BAD, RAW, typed_schema
from datasource.delta.table import TierConfig, TopicTable
from logstore.env import SYSTEM
from logstore.errors import InvalidRequestError, PylogError, StoreError
from logstore.log.segments import offset_checkpoints

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.log.log import Log

logger = logging.getLogger(__name__)

Found = TypeVar("Found")


class Each(Protocol):
    """What `look` finds of each partition; one where it fails is left out, and somebody is told why."""

    def __call__(self, partitions: Iterable[int], look: Callable[[int], Found], /) -> dict[int, Found]:
        """Look at each partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TieringTask:
    """A topic and its tables; `ddl` declares the fields of its values."""

    path: str
    topic: str
    topic_id: str
    table: Path
    noted: TierConfig | None = None
    ddl: str = ""
    fields: tuple[pa.Field, ...] = ()

    @property
    def bad_table(self) -> Path:
        """Where rows go that cannot be parsed."""
        return lake.bad_table(self.table)

    @property
    def tables(self) -> list[tuple[Path, pa.Schema]]:
        """The tables, and their columns."""
        if not self.fields:
            return [(self.table, RAW)]
        return [(self.table, typed_schema(self.fields)), (self.bad_table, BAD)]

    def lake(self) -> TopicTable:
        """The table as it is now. Raises: StoreError."""
        return TopicTable(self.table, self.topic_id, self.path)

    def bad_lake(self) -> TopicTable | None:
        """The table of bad rows; None: there are none. Raises: StoreError."""
        return TopicTable(self.bad_table, self.topic_id, self.path) if self.fields else None


def declared(ddl: str) -> tuple[pa.Field, ...]:
    """Return the fields of a schema as DDL. Raises: InvalidRequestError: it is none."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    try:
        kind = StructType.fromDDL(ddl)
        assert isinstance(kind, StructType), kind
        return tuple(to_arrow_schema(kind, timezone="UTC"))
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidRequestError(
            f"schema {ddl!r}: write columns and types, as 'id bigint, who string' ({reason})"
        ) from None


def find(root: str, info: logstore.TopicInfo, table: str | None, schema: str | None) -> TieringTask:
    """The topic and its table: the one noted, or the one asked for, or the default."""
    noted = lake.noted(root, info.topic_id)
    asked = Path(table.replace("{topic}", info.name)).absolute() if table else None
    if noted and asked and noted.table.resolve() != asked.resolve():
        raise InvalidRequestError(
            f"topic {info.name!r} is tiered to {noted.table} already: leave the table away, or name this one"
        )
    ddl = schema or (noted.schema if noted else "")
    copy = TieringTask(
        path=root,
        topic=info.name,
        topic_id=info.topic_id,
        table=noted.table if noted else asked or Path(root) / lake.TABLES / info.name,
        noted=noted,
        ddl=ddl,
        fields=declared(ddl) if ddl else (),
    )
    check(copy)
    return copy


def check(copy: TieringTask) -> None:
    """Raise StoreError unless the tables are this topic's and have the right columns; or are not there, nor noted.

    Raises: RestoredError: a table lost rows by RESTORE.
    """
    check_histories(copy.path, copy.topic_id)
    for path, schema in copy.tables:
        if copy.noted or lake.exists(path):
            there = TopicTable(path, copy.topic_id, copy.path).schema()
            if not there.equals(schema):
                wrong = [
                    f.name for f in schema if f.name not in there.names or f.type != there.field(f.name).type
                ]
                wrong += [name for name in there.names if name not in schema.names]
                raise StoreError(
                    f"{path} has other columns than declared ({', '.join(wrong) or 'in another order'}): give the "
                    "schema that it was made with, or change the table first"
                )


def check_histories(root: str, topic_id: str) -> None:
    """Raise RestoredError if one of the topic's tables lost rows by RESTORE; StoreError: it cannot be read."""
    note = lake.noted(root, topic_id)
    for path, version in note.tables if note else ():
        TopicTable(path, topic_id, root).check_history(since=version)


# ------------------------------------------------------------------------------------------ what the log is told


def tell_log(copy: TieringTask, partitions: Iterable[int], each: Each) -> TieringTask:
    """Tell the log how far its tables are, on disk; return the topic with what is noted of them now.

    Raises: RestoredError: they have not what they say. The log is told nothing then.
    """
    table = copy.lake()
    with logstore.open(copy.path, mode="r", create=False) as store:
        told = each(partitions, lambda p: _told(store.log(copy.topic, p), table.boundary(p) or 0))
    new = [(p, start, end) for p, start in told.items() if (end := table.boundary(p) or 0) > start]
    copy = replace(copy, noted=_on_disk(copy, table, new))
    if new:
        with logstore.open(copy.path, create=False) as store:

            def tell(partition: int) -> None:
                log, boundary = store.log(copy.topic, partition), table.boundary(partition) or 0
                if boundary <= log.log_end_offset:  # else the log is the older one, as the plan will say
                    log.advance_tiered_offset(boundary)

            each((p for p, _, _ in new), tell)
    return copy


def _told(log: Log, boundary: int) -> int:
    """What the log was told, which is taken back if it is more than the table has."""
    told = log.tiered_offset
    if told > boundary:
        offset_checkpoints.withdraw(SYSTEM, str(log.directory), offset_checkpoints.TIERED)
        return 0
    return told


def _on_disk(copy: TieringTask, table: TopicTable, new: Sequence[tuple[int, int, int]]) -> TierConfig:
    """Look at what is new in the tables, and let it survive a loss of power: with what holds these offsets.

    A run that was killed may have committed, and not come so far.
    """
    assert copy.noted is not None, copy
    versions = []
    for lake_, since in ((table, copy.noted.version), (copy.bad_lake(), copy.noted.bad_version)):
        if lake_ is not None:
            lake_.check_history(since=since)
            files = [f for f in lake_.files() if any(f.may_hold(*offsets) for offsets in new)] if new else []
            if files or lake_.version > since:
                lake_.make_durable(since=since, files=files)
        versions.append(lake_.version if lake_ else since)
    note = replace(copy.noted, version=versions[0], bad_version=versions[1])
    if note != copy.noted:
        lake.write_note(copy.path, copy.topic, copy.topic_id, note)
    return note


def distrust(root: str, info: logstore.TopicInfo) -> None:
    """Take back what the log was told: of nothing in it anybody knows that it is anywhere else.

    The store is opened for reading only: who opens it for writing, alone, lets go at once of what may go.
    """
    with logstore.open(root, mode="r", create=False) as store:
        for partition in range(info.partitions):
            try:
                _told(store.log(info.name, partition), -1)
            except PylogError as error:
                logger.warning("tp=%s-%d tiered offset not taken back: %s", info.name, partition, error)
