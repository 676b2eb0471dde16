"""Copy the committed records of topics into Delta tables, exactly once: a row per record.

How far a table is stands in the table itself, in the commit that added the rows (see `datasource.delta.table`). So
a run that
is killed, at whatever point, leaves either nothing or everything of a commit: the next run begins behind it. Two runs
at once: one waits for nothing and does nothing; should both get through (two hosts), the table refuses the second.

With a declared schema values are JSON objects and their fields become columns; a value that cannot be parsed is a row
of the table `<table>__dlq`, with the reason. That table is committed first and has its own boundary, so that a crash
between the two doubles nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import logstore
from datasource.delta import table as delta_table
from datasource.delta.parquet import DataFile, OffsetSlice, Written, remove, typed_schema, write_piece
from datasource.delta.table import RestoredError, TableConflictError, TierConfig, TopicTable
from datasource.delta.topic_tables import TieringTask, declared, distrust, find, tell_log
from datasource.jobs import delta_spark
from datasource.jobs.tasks import Done, Progress, chosen, no_progress, reason, run_tasks, to_frame
from logstore.env import SYSTEM
from logstore.errors import InvalidRequestError, PylogError, StoreError
from logstore.log.isolation import committed_end

if TYPE_CHECKING:
    from deltalake.transaction import AddAction
    from pyspark.sql import DataFrame, SparkSession

    from logstore.log.log import Log

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

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
class ReportRow:
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
            round(self.duration_s, 3),
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
    values; later runs take the one that was declared last.

    Raises: InvalidRequestError, UnknownTopicError, NotAStoreError. What is wrong with a topic is in its rows.
    """
    with logstore.open(path, mode="r", create=False) as store:
        infos, root = chosen(store, topics), str(store.path)
    if table and "{topic}" not in table and len(infos) > 1:
        raise InvalidRequestError(
            f"table {table!r} would hold {len(infos)} topics: write {{topic}} where their names belong"
        )
    if schema:
        typed_schema(declared(schema))
    lines: list[ReportRow] = []
    for info in infos:
        its = {p: ReportRow(topic=info.name, partition=p) for p in range(info.partitions)}
        look = partial(find, root, info, table, schema)
        try:
            if info.damage:
                raise info.damage
            if dry_run:
                _would(look(), its)
            else:
                with _alone(root, info, its) as is_alone:
                    if is_alone:
                        _tier(spark, look(), its, progress)
        except Exception as error:  # noqa: BLE001  the other topics are tiered all the same
            for line in its.values():
                line.fail(reason(error))
        lines += its.values()
    return to_frame(spark, [line.row() for line in lines], SCHEMA)


def _each(
    lines: Mapping[int, ReportRow], partitions: Iterable[int], look: Callable[[int], Found]
) -> dict[int, Found]:
    """What `look` finds of each partition; of one where it fails the line says why."""
    found = {}
    for partition in list(partitions):
        try:
            found[partition] = look(partition)
        except Exception as error:  # noqa: BLE001  the other partitions are tiered all the same
            lines[partition].fail(reason(error))
    return found


# ---------------------------------------------------------------------------------------------------- plan


def _plan(copy: TieringTask, goal: dict[int, int], lines: Mapping[int, ReportRow]) -> list[OffsetSlice]:
    """Return what the tables lack up to `goal`, one piece per partition; `lines` learn what is odd."""
    main, bad = (
        TopicTable(path, copy.topic_id, copy.path) if delta_table.exists(path) else None
        for path in (copy.table, copy.bad_table)
    )
    with logstore.open(copy.path, mode="r", create=False) as store:

        def piece(partition: int) -> OffsetSlice | None:
            boundary = main.boundary(partition) if main else None
            start = _start(_extent(store, copy, partition), boundary, lines[partition])
            if start >= goal[partition]:
                return None
            return OffsetSlice(
                path=copy.path,
                topic=copy.topic,
                partition=partition,
                start=start,
                end=_end(store.log(copy.topic, partition), start, goal[partition]),
                table=str(copy.table),
                fields=copy.fields,
                bad_table=str(copy.bad_table),
                bad_start=(bad.boundary(partition) or 0) if bad else 0,
            )

        return [found for found in _each(lines, goal, piece).values() if found]


def _start(extent: logstore.OffsetRange, boundary: int | None, line: ReportRow) -> int:
    """Where the table ends, or the log begins, whatever is behind; the line learns of it."""
    if boundary is not None and boundary > extent.end:
        raise StoreError(
            f"the table holds offsets up to {boundary}, and the log ends at {extent.end}: an older copy?"
        )
    lacks = boundary or 0
    if extent.start > lacks:
        line.note(f"offsets {lacks} to {extent.start} were deleted before they were tiered")
    start = max(lacks, extent.start)
    line.start, line.end = (start, start) if line.status == NOTHING else (line.start, start)
    return start


def _extent(store: logstore.LogStore, copy: TieringTask, partition: int) -> logstore.OffsetRange:
    log = store.log(copy.topic, partition)
    end = committed_end(log, store.outcomes())
    return logstore.OffsetRange(min(log.log_start_offset, end), end)


def _end(log: Log, start: int, goal: int) -> int:
    """Where a piece ends that begins at `start`: at the goal, or at the end of the batch that fills it."""
    if log.bytes_between(start, goal) <= PIECE_BYTES:
        return goal
    return min(goal, log.offset_after_bytes(start, PIECE_BYTES))


def _goal(copy: TieringTask, lines: Mapping[int, ReportRow]) -> dict[int, int]:
    """How far every partition is committed now: what is decided together is in it as a whole."""
    with logstore.open(copy.path, mode="r", create=False) as store:
        return store.transactions.settled(lambda: _each(lines, lines, lambda p: _extent(store, copy, p).end))


def _would(copy: TieringTask, lines: Mapping[int, ReportRow]) -> None:
    """What a run would do now."""
    goal = _goal(copy, lines)
    with logstore.open(copy.path, mode="r", create=False) as store:
        for piece in _plan(copy, goal, lines):
            line = lines[piece.partition]
            line.status, line.end = WOULD, goal[piece.partition]
            line.size_bytes = store.log(copy.topic, piece.partition).bytes_between(piece.start, line.end)


# ------------------------------------------------------------------------------------------------------ do


@contextmanager
def _alone(root: str, info: logstore.TopicInfo, lines: Mapping[int, ReportRow]) -> Iterator[bool]:
    """Keep other jobs from the topic; False: one is at it, as the lines say.

    If the block finds that the table has lost rows, the log is told before others may go on.
    """
    lock_path = delta_table.lock_path(root, info.topic_id)
    SYSTEM.files.mkdir(lock_path.parent)
    lock = SYSTEM.files.lock(lock_path, wait=False)
    if lock is None:
        for line in lines.values():
            line.status = SKIPPED
            line.note("another tiering job is at work on this topic")
        yield False
        return
    try:
        yield True
    except RestoredError:
        distrust(root, info)
        raise
    finally:
        lock.release()


def _tier(spark: SparkSession, copy: TieringTask, lines: Mapping[int, ReportRow], progress: Progress) -> None:
    """Tier one topic."""
    if copy.noted is None:
        for path, schema in copy.tables:
            delta_table.create(path, copy.path, copy.topic, copy.topic_id, schema)
    elif copy.fields:
        for path, _ in copy.tables:
            delta_table.name_features(path)  # a table of an earlier pylog may lack them
    note = replace(copy.noted or TierConfig(copy.table), schema=copy.ddl)
    if copy.noted != note:
        delta_table.write_note(copy.path, copy.topic, copy.topic_id, note)
    copy = _tell_log(replace(copy, noted=note), lines)  # a run that was killed did not, perhaps
    if _rounds(spark, copy, _flushed(copy, _goal(copy, lines), lines), lines, progress):
        _tell_log(copy, lines)
        clean(copy)


def _tell_log(copy: TieringTask, lines: Mapping[int, ReportRow]) -> TieringTask:
    return tell_log(copy, [p for p, line in lines.items() if line.status != FAILED], partial(_each, lines))


def _flushed(copy: TieringTask, goal: Mapping[int, int], lines: Mapping[int, ReportRow]) -> dict[int, int]:
    """What a power cut could take from the log must not be in a table: its offsets would be given again."""
    with logstore.open(copy.path, create=False) as store:
        flushed = _each(lines, goal, lambda p: store.log(copy.topic, p).flush())
    return {p: goal[p] for p in flushed}


def _rounds(
    spark: SparkSession,
    copy: TieringTask,
    goal: dict[int, int],
    lines: Mapping[int, ReportRow],
    progress: Progress,
) -> bool:
    """Write and commit piece after piece, until the tables hold everything up to the goal; was something committed?"""
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
    return committed


def _through_package(
    spark: SparkSession, copy: TieringTask, pieces: list[OffsetSlice], progress: Progress
) -> list[Done[OffsetSlice, Written]]:
    """Tasks write files, and one commit per table adds them all. Raises: TableConflictError."""
    main, bad = copy.lake(), copy.bad_lake()
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
    except PylogError:
        remove(main.path, [f.name for _, written in good.values() for f in written.files])
        raise
    return done


def _through_spark(
    spark: SparkSession, copy: TieringTask, pieces: list[OffsetSlice], progress: Progress
) -> list[Done[OffsetSlice, Written]]:
    """Delta's own writer, one commit per partition and table. Raises: TableConflictError: none was made."""
    done: list[Done[OffsetSlice, Written]] = []
    for number, piece in enumerate(pieces):
        progress(number, len(pieces))
        try:
            done.append(delta_spark.write(spark, piece, copy.topic_id))
        except TableConflictError:
            if not done:
                raise
            break  # the others are planned anew
    else:
        progress(len(pieces), len(pieces))
    return done


def _commit(table: TopicTable, files: Sequence[DataFile], ends: Mapping[int, int]) -> None:
    try:
        table.commit([_added(f) for f in files], ends)
    except PylogError:
        remove(table.path, [f.name for f in files])
        raise


def _added(file: DataFile) -> AddAction:
    from deltalake.transaction import AddAction

    return AddAction(
        path=file.name,
        size=file.size_bytes,
        partition_values={delta_table.DATE: file.day},
        modification_time=SYSTEM.clock.now_ms(),
        data_change=True,
        stats=file.stats(),
    )


def _report(line: ReportRow, done: Done[OffsetSlice, Written]) -> None:
    line.duration_s += done.duration_s
    if done.result is None:
        line.fail(done.error or "")
        return
    line.status, line.end = TIERED, done.item.end
    line.rows += done.result.rows
    line.bad_rows += done.result.bad_rows
    line.files += done.result.file_count
    line.size_bytes += done.result.size_bytes


def clean(copy: TieringTask) -> list[Path]:
    """Remove, and return, the files that killed runs left in the tables: old, and in no version of them."""
    removed = []
    for path, _ in copy.tables:
        for file in TopicTable(path, copy.topic_id, copy.path).orphans(age_hours=ORPHAN_AGE_HOURS):
            SYSTEM.files.unlink(file)
            logger.warning("path=%s removed: a tiering job that was killed left it", file)
            removed.append(file)
    return removed
