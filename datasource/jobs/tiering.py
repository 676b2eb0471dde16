"""Copy the committed records of topics into Delta tables, exactly once: a row per record.

The commit that adds rows also says how far the table goes (`datasource.delta.table`). So a killed run leaves all of a
commit or nothing, and the next run goes on behind it. The second of two runs at once finds the topic locked; on another
host, the table refuses its commit.

With a declared schema values are JSON objects and their fields become columns. A value that cannot be parsed is a row
of the table `<table>__dlq`, with the reason. That table is committed first and has a boundary of its own, so a crash
between the two commits doubles nothing. With the topic's registered schema its columns are beside the bytes, in one
table (`datasource.delta.registered`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from datasource.connector.connect import is_connect
from datasource.delta import tiering
from datasource.delta.columns import typed_schema
from datasource.delta.owner import REGISTERED, owner_of
from datasource.delta.parquet import OffsetSlice, Written, remove, write_piece
from datasource.delta.storage_options import storage_options as checked
from datasource.delta.table import TableConflictError
from datasource.delta.tiering import Report, ReportRow
from datasource.delta.topic_tables import TieringTask, find, table_of
from datasource.errors import reason
from datasource.jobs.tasks import Done, Row, chosen, framed, located, run_tasks
from datasource.topics.interface import is_internal
from logstore.errors import InvalidRequestError, PylogError
from logstore.progress import Progress, no_progress
from logstore.schemas import ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from datasource.delta.owner import Owner
    from datasource.delta.storage import TableStorage
    from datasource.topics.locations import Location

SCHEMA = (
    "topic string, partition int, status string, start bigint, end bigint, records bigint, bad bigint, files int, "
    "bytes bigint, seconds double, note string"
)
CONFLICTS_MAX = 5


def rows(  # noqa: PLR0913  each of them is one choice of the caller
    spark: SparkSession | None,
    *,
    path: str | None = None,
    bootstrap: str | None = None,
    security: Mapping[str, str] | None = None,
    topics: str | Sequence[str] | None = None,
    table: str | None = None,
    schema: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> list[Row]:
    """Tier what was committed when the job began; return a row per partition. `topics` None: all but internal ones.

    `table` is the directory of the table, or its URL (`s3://`, `gs://`, `az://`), with `{topic}` for several topics; it
    is chosen once, at the first run (default: `tiered/<topic>` in the store). Over a cluster (`bootstrap`) every run is
    given it. `storage_options`, as deltalake names them, say how an object store is reached; without them environment
    variables of these names do. `schema` (DDL, as
    "id bigint, at timestamp") declares the fields of JSON values; later runs take the last one that was declared. The
    word `registered` takes the columns of the topic's schema, JSON or Avro, and keeps the bytes of values beside them.
    `security`: of the cluster, as of `KafkaClient`.

    Raises: InvalidRequestError, UnknownTopicError, NotAStoreError, UnreachableError. A topic that fails says so in its
    rows.
    """
    location = located("tiering", path, bootstrap, table, security, storage_options)
    storage = checked(storage_options or {})
    infos = [info for info in chosen(location, topics) if topics is not None or not is_internal(info.name)]
    if table and "{topic}" not in table and len(infos) > 1:
        raise InvalidRequestError(
            f"table {table!r} would hold {len(infos)} topics: write {{topic}} where their names belong"
        )
    if schema and schema.strip().lower() != REGISTERED:
        typed_schema(ddl.parse(schema))
    found: list[ReportRow] = []
    for info in infos:
        report = {p: ReportRow(topic=info.name, partition=p) for p in range(info.partitions)}
        try:
            if info.damage:
                raise info.damage
            asked = table_of(info.name, table, storage) if table else None
            owner = owner_of(location, info, asked, storage)
            if dry_run:
                tiering.preview(_found(location, owner, asked, schema, report), report)
            else:
                with tiering.alone(location, owner, report) as is_alone:
                    if is_alone:
                        _tier(spark, _found(location, owner, asked, schema, report), report, progress)
        except Exception as error:  # noqa: BLE001  the other topics are tiered all the same
            for row in report.values():
                row.fail(reason(error))
        found += report.values()
    return [row.values() for row in found]


run = framed(rows, SCHEMA)


def _found(
    location: Location, owner: Owner, asked: TableStorage | None, schema: str | None, report: Report
) -> TieringTask:
    task = find(location, owner, asked, schema)
    if task.ddl == REGISTERED and task.beside is None:
        for row in report.values():
            row.note("no schema is registered: values are bytes")
    return task


def _tier(spark: SparkSession | None, task: TieringTask, report: Report, progress: Progress) -> None:
    task = tiering.tell_log(tiering.prepare(task), report)  # a killed run may not have come so far
    ends = tiering.flushed(task, tiering.goal(task, report), report)
    if tier_to(spark, task, ends, report, progress):
        tiering.tell_log(task, report)
        tiering.clean(task)


def tier_to(
    spark: SparkSession | None, task: TieringTask, goal: dict[int, int], report: Report, progress: Progress
) -> bool:
    """Write and commit piece after piece, until the tables hold everything up to the goal; was anything committed?"""
    write = partial(_writer(spark, task), task=task, progress=progress)
    conflicts, committed = 0, False
    while pieces := tiering.plan(task, goal, report):
        try:
            done = write(pieces=pieces)
        except TableConflictError:
            conflicts += 1
            if conflicts > CONFLICTS_MAX:
                raise
            continue
        for one in done:
            _note(report[one.item.partition], one)
            if one.result is None:
                del goal[one.item.partition]
            else:
                committed = True
    return committed


def _writer(spark: SparkSession | None, task: TieringTask) -> Callable[..., list[Done[OffsetSlice, Written]]]:
    if task.beside:  # tasks read the registry
        return partial(through_package, spark)
    if spark is not None and not is_connect(spark) and task.table.directory:  # Java has other settings for a URL
        from datasource.jobs import delta_spark

        if delta_spark.has_delta(spark):
            return partial(through_spark, spark)
    return partial(through_package, spark)


def through_package(
    spark: SparkSession | None, task: TieringTask, pieces: list[OffsetSlice], progress: Progress
) -> list[Done[OffsetSlice, Written]]:
    """Tasks write files, and one commit per table adds them all. Raises: TableConflictError."""
    main, bad = task.open_table(), task.open_bad_table()
    for piece in pieces:
        main.check_boundary(piece.partition, piece.start)
    done = run_tasks(spark, pieces, write_piece, progress)
    good = {one.item.partition: (one.item.end, one.result) for one in done if one.result}
    ends = {p: end for p, (end, _) in good.items()}
    try:
        if bad and ends:
            moved = {p: max(end, bad.boundary(p) or 0) for p, end in ends.items()}
            tiering.commit(bad, [f for _, written in good.values() for f in written.bad_files], moved)
    except PylogError:
        remove(main.place, [f.name for _, written in good.values() for f in written.files])
        raise
    if ends:
        tiering.commit(main, [f for _, written in good.values() for f in written.files], ends)
    return done


def through_spark(
    spark: SparkSession, task: TieringTask, pieces: list[OffsetSlice], progress: Progress
) -> list[Done[OffsetSlice, Written]]:
    """Delta's own writer makes one commit per partition and table. Raises: TableConflictError: it made none."""
    from datasource.jobs import delta_spark

    done: list[Done[OffsetSlice, Written]] = []
    for number, piece in enumerate(pieces):
        progress(number, len(pieces))
        try:
            done.append(delta_spark.write(spark, piece, task.owner))
        except TableConflictError:
            if not done:
                raise
            return done  # the others are planned again
    progress(len(pieces), len(pieces))
    return done


def _note(row: ReportRow, done: Done[OffsetSlice, Written]) -> None:
    row.seconds += done.duration_s
    if done.result is None:
        row.fail(done.error or "")
        return
    row.status, row.end = tiering.TIERED, done.item.end
    row.records += done.result.rows
    row.bad += done.result.bad_rows
    row.files += done.result.file_count
    row.bytes += done.result.size_bytes
    if done.result.clamped.count:
        row.note(str(done.result.clamped))
