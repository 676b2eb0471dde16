"""Copy the committed records of topics into Delta tables, exactly once: a row per record.

How far a table is stands in the table itself, in the commit that added the rows (see `datasource.lake`). So a run that
is killed, at whatever point, leaves either nothing or everything of a commit: the next run begins behind it. Two runs
at once: one waits for nothing and does nothing; should both get through (two hosts), the table refuses the second.

With a declared schema values are JSON objects and their fields become columns; a value that cannot be parsed is a row
of the table `<table>__dlq`, with the reason. That table is committed first and has its own boundary, so that a crash
between the two doubles nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import logstore
from datasource import lake
from datasource.jobs import delta_spark
from datasource.jobs.parquet import BAD, RAW, DataFile, Piece, Written, remove, typed_schema, write_piece
from datasource.jobs.tasks import Done, Progress, chosen, no_progress, run_tasks, to_frame
from datasource.lake import Lake, TableConflictError
from datasource.planning import Range
from datasource.target import Target, reading
from logstore.env import SYSTEM
from logstore.errors import InvalidRequestError, PylogError, StoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake.transaction import AddAction
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

SCHEMA = (
    "topic string, partition int, status string, start bigint, end bigint, records bigint, bad bigint, files int, "
    "bytes bigint, seconds double, note string"
)
TIERED, NOTHING, WOULD, SKIPPED, FAILED = "tiered", "nothing to do", "would be tiered", "skipped", "failed"

# What one task reads before its rows are committed: what a killed run has to do again, at most.
PIECE_BYTES = 1024 * 1024 * 1024
# A file that is in no version of the table and this old was left by a run that was killed: none takes so long.
ORPHAN_AGE_HOURS = 24
CONFLICTS_MAX = 5


@dataclass(slots=True, kw_only=True)
class Line:
    """What was done with a partition: a row of the report."""

    topic: str
    partition: int
    status: str = NOTHING
    start: int = 0
    end: int = 0
    rows: int = 0
    bad_rows: int = 0
    files: int = 0
    size_bytes: int = 0
    duration_s: float = 0.0
    notes: list[str] = field(default_factory=list)

    def row(self) -> tuple[Any, ...]:
        """The values of SCHEMA."""
        return (
            self.topic,
            self.partition,
            self.status,
            self.start,
            self.end,
            self.rows,
            self.bad_rows,
            self.files,
            self.size_bytes,
            self.duration_s,
            "; ".join(self.notes) or None,
        )

    def note(self, text: str) -> None:
        """Say something about the partition, once."""
        if text not in self.notes:
            self.notes.append(text)

    def fail(self, reason: str) -> None:
        """Note that the partition could not be tiered (further)."""
        self.status = FAILED
        self.note(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A topic and its tables."""

    path: str
    topic: str
    topic_id: str
    table: Path
    fields: tuple[pa.Field, ...]

    @property
    def bad_table(self) -> Path:
        """Where rows go that cannot be parsed."""
        return self.table.with_name(f"{self.table.name}__dlq")

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return typed_schema(self.fields) if self.fields else RAW


def run(  # noqa: PLR0913  each of them is one choice of the caller
    spark: SparkSession,
    *,
    path: str,
    topics: str | Sequence[str] | None = None,
    table: str | None = None,
    schema: str | None = None,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> DataFrame:
    """Tier what was committed when the job began; return a row per partition.

    `table` is the directory of the table, with `{topic}` for several topics; it is chosen once, at the first run
    (default: `tiered/<topic>` in the store). `schema` (DDL, as "id bigint, at timestamp") declares the fields of JSON
    values.

    Raises: InvalidRequestError, UnknownTopicError, StoreError: a table is not that of the topic.
    """
    with logstore.open(path, mode="r", create=False) as store:
        infos, root = chosen(store, topics), str(store.path)
    if table and "{topic}" not in table and len(infos) > 1:
        raise InvalidRequestError(
            f"table {table!r} would hold {len(infos)} topics: write {{topic}} where their names belong"
        )
    fields = declared(schema) if schema else ()
    copies = [
        Copy(path=root, topic=i.name, topic_id=i.topic_id, table=_table(root, i, table), fields=fields)
        for i in infos
    ]
    for copy in copies:
        _check(copy)
    lines = []
    for copy in copies:
        lines += _would(copy) if dry_run else _tier(spark, copy, progress)
    return to_frame(spark, [line.row() for line in lines], SCHEMA)


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


def _table(root: str, info: logstore.TopicInfo, table: str | None) -> Path:
    """The directory of the topic's table: the one noted, or the one asked for, or the default."""
    noted = lake.noted_table(root, info.topic_id)
    asked = Path(table.replace("{topic}", info.name)).absolute() if table else None
    if noted and asked and Path(noted) != asked:
        raise InvalidRequestError(
            f"topic {info.name!r} is tiered to {noted} already: leave the table away, or name this one"
        )
    return Path(noted) if noted else asked or Path(root) / lake.TABLES / info.name


def _check(copy: Copy) -> None:
    """Raise StoreError unless the tables, if they are there, are this topic's and have the right columns."""
    for path, schema in _tables(copy):
        if lake.exists(path):
            there = Lake(path, copy.topic_id).schema()
            if not there.equals(schema):
                wrong = [
                    f.name for f in schema if f.name not in there.names or f.type != there.field(f.name).type
                ]
                wrong += [name for name in there.names if name not in schema.names]
                raise StoreError(
                    f"{path} has other columns than declared ({', '.join(wrong) or 'in another order'}): give the "
                    "schema that it was made with, or change the table first"
                )


def _tables(copy: Copy) -> list[tuple[Path, pa.Schema]]:
    return [(copy.table, copy.schema), *([(copy.bad_table, BAD)] if copy.fields else [])]


# ---------------------------------------------------------------------------------------------------- plan


def _plan(copy: Copy, goal: dict[int, int], lines: Mapping[int, Line]) -> list[Piece]:
    """Return what the tables lack up to `goal`, one piece per partition; `lines` learn what is odd."""
    target = reading(copy.path)
    main = Lake(copy.table, copy.topic_id) if lake.exists(copy.table) else None
    bad = Lake(copy.bad_table, copy.topic_id) if copy.fields and lake.exists(copy.bad_table) else None
    pieces = []
    for partition, extent in target.offsets(copy.topic).items():
        if partition not in goal:
            continue
        line, boundary = lines[partition], main.boundary(partition) if main else None
        if boundary is not None and boundary > extent.end:
            line.fail(
                f"the table holds offsets up to {boundary}, and the log ends at {extent.end}: an older copy?"
            )
            goal.pop(partition)
            continue
        if boundary is not None and extent.start > boundary:
            line.note(f"offsets {boundary} to {extent.start} were deleted before they were tiered")
        start = max(boundary or 0, extent.start)
        line.start, line.end = (start, start) if line.status == NOTHING else (line.start, start)
        if start < goal[partition]:
            pieces.append(
                Piece(
                    path=copy.path,
                    topic=copy.topic,
                    partition=partition,
                    start=start,
                    end=_end(target, copy, partition, start, goal[partition]),
                    table=str(copy.table),
                    fields=copy.fields,
                    bad_table=str(copy.bad_table),
                    bad_start=(bad.boundary(partition) or 0) if bad else 0,
                )
            )
    return pieces


def _end(target: Target, copy: Copy, partition: int, start: int, goal: int) -> int:
    """Where a piece ends that begins at `start`: at the goal, or at the end of the batch that fills it."""
    whole = Range(copy.topic, partition, start, goal)
    if target.size_bytes(whole) <= PIECE_BYTES:
        return goal
    return min(goal, target.offset_after_bytes(whole, PIECE_BYTES))


def _goal(copy: Copy) -> dict[int, int]:
    """How far every partition is committed now."""
    return {p: extent.end for p, extent in reading(copy.path).offsets(copy.topic).items()}


def _flush(copy: Copy, partitions: Iterable[int]) -> None:
    """What a power cut could take from the log must not be in a table: its offsets would be given again."""
    with logstore.open(copy.path, create=False) as store:
        for partition in partitions:
            store.log(copy.topic, partition).flush()


def _lines(copy: Copy, goal: Mapping[int, int]) -> dict[int, Line]:
    return {p: Line(topic=copy.topic, partition=p) for p in goal}


def _would(copy: Copy) -> list[Line]:
    """What a run would do now."""
    goal, target = _goal(copy), reading(copy.path)
    lines = _lines(copy, goal)
    for piece in _plan(copy, goal, lines):
        line, whole = (
            lines[piece.partition],
            Range(copy.topic, piece.partition, piece.start, goal[piece.partition]),
        )
        line.status, line.end = WOULD, whole.end
        line.size_bytes = target.size_bytes(whole)
    return list(lines.values())


# ------------------------------------------------------------------------------------------------------ do


def _tier(spark: SparkSession, copy: Copy, progress: Progress) -> list[Line]:
    """Tier one topic, unless another job is at it."""
    goal = _goal(copy)
    lines = _lines(copy, goal)
    lock_path = lake.lock_path(copy.path, copy.topic_id)
    SYSTEM.files.mkdir(lock_path.parent)
    lock = SYSTEM.files.lock(lock_path, wait=False)
    if lock is None:
        for line in lines.values():
            line.status = SKIPPED
            line.note("another tiering job is at work on this topic")
        return list(lines.values())
    try:
        for path, schema in _tables(copy):
            lake.create(path, copy.topic, copy.topic_id, schema)
        if lake.noted_table(copy.path, copy.topic_id) is None:
            lake.note_table(copy.path, copy.topic, copy.topic_id, str(copy.table))
        _flush(copy, goal)
        _rounds(spark, copy, goal, lines, progress)
    except PylogError as error:
        for line in lines.values():
            line.fail(str(error))
    finally:
        lock.release()
    return list(lines.values())


def _rounds(
    spark: SparkSession, copy: Copy, goal: dict[int, int], lines: Mapping[int, Line], progress: Progress
) -> None:
    """Write and commit piece after piece, until the tables hold everything up to the goal."""
    work = _through_spark if delta_spark.has_delta(spark) else _through_package
    conflicts, committed = 0, False
    while pieces := _plan(copy, goal, lines):
        try:
            done = work(spark, copy, pieces, progress)
        except TableConflictError:
            conflicts += 1
            if conflicts > CONFLICTS_MAX:
                raise
            continue
        for one in done:
            _report(lines[one.item.partition], one)
            if one.result is None:
                del goal[one.item.partition]
            else:
                committed = True
    _note_boundaries(copy, lines)
    if committed:
        clean(copy)


def _through_package(
    spark: SparkSession, copy: Copy, pieces: list[Piece], progress: Progress
) -> list[Done[Piece, Written]]:
    """Tasks write files, and one commit per table adds them all. Raises: TableConflictError."""
    main = Lake(copy.table, copy.topic_id)
    bad = Lake(copy.bad_table, copy.topic_id) if copy.fields else None
    begin = {p.partition: p.start for p in pieces}
    if any((main.boundary(p) or 0) > start for p, start in begin.items()):
        raise TableConflictError(f"{copy.table} moved on since the job was planned")
    done = run_tasks(spark, pieces, write_piece, progress)
    good = {one.item.partition: (one.item.end, one.result) for one in done if one.result}
    ends = {p: end for p, (end, _) in good.items()}
    try:
        if bad and ends:
            moved = {p: max(end, bad.boundary(p) or 0) for p, end in ends.items()}
            _commit(bad, [f for _, written in good.values() for f in written.bad_files], moved)
        if ends:
            _commit(main, [f for _, written in good.values() for f in written.files], ends)
    except TableConflictError:
        remove(main.path, [f.name for _, written in good.values() for f in written.files])
        raise
    return done


def _through_spark(
    spark: SparkSession, copy: Copy, pieces: list[Piece], progress: Progress
) -> list[Done[Piece, Written]]:
    """Delta's own writer, one commit per partition and table."""
    done = []
    for number, piece in enumerate(pieces):
        progress(number, len(pieces))
        done.append(delta_spark.write(spark, piece, copy.topic_id))
    progress(len(pieces), len(pieces))
    return done


def _commit(table: Lake, files: Sequence[DataFile], ends: Mapping[int, int]) -> None:
    try:
        table.commit([_added(f) for f in files], ends)
    except TableConflictError:
        remove(table.path, [f.name for f in files])
        raise


def _added(file: DataFile) -> AddAction:
    from deltalake.transaction import AddAction

    return AddAction(
        path=file.name,
        size=file.size_bytes,
        partition_values={lake.DATE: file.day},
        modification_time=SYSTEM.clock.now_ms(),
        data_change=True,
        stats=file.stats(),
    )


def _report(line: Line, done: Done[Piece, Written]) -> None:
    line.duration_s += done.duration_s
    if done.result is None:
        line.fail(done.error or "")
        return
    line.status, line.end = TIERED, done.item.end
    line.rows += done.result.rows
    line.bad_rows += done.result.bad_rows
    line.files += done.result.file_count
    line.size_bytes += done.result.size_bytes


def _note_boundaries(copy: Copy, lines: Mapping[int, Line]) -> None:
    """Tell the log how far its table is: retention may go up to there (`remote.storage.enable`).

    After the commit, and again by the next run should this one die here.
    """
    table = Lake(copy.table, copy.topic_id)
    with logstore.open(copy.path, create=False) as store:
        for partition, line in lines.items():
            boundary = table.boundary(partition)
            if boundary is not None and line.status != FAILED:
                store.log(copy.topic, partition).advance_tiered_offset(boundary)


def clean(copy: Copy) -> list[Path]:
    """Remove, and return, the files that killed runs left in the tables: old, and in no version of them."""
    removed = []
    for path, _ in _tables(copy):
        for file in Lake(path, copy.topic_id).orphans(age_hours=ORPHAN_AGE_HOURS):
            SYSTEM.files.unlink(file)
            logger.warning("path=%s removed: a tiering job that was killed left it", file)
            removed.append(file)
    return removed
