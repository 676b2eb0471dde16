"""Tiering one topic, but for the writing of rows: what its tables lack, commits, and the tiered offset of its log.

The log's tiered offset is a copy of what the table says, and retention goes by it (`remote.storage.enable`). It moves
after the rows are on disk, and back if the table holds less: a table that was restored from an older copy does.

Reports have a row per partition. A failure fails its row, and the other partitions go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import logstore
from datasource.delta import log as delta_log
from datasource.delta import table as delta_table
from datasource.delta.owner import Owner, TierConfig, write_note
from datasource.delta.parquet import DataFile, OffsetSlice, remove
from datasource.delta.table import RestoredError, TopicTable, UnknownCommitError
from datasource.delta.topic_tables import TieringTask, check
from datasource.errors import reason
from datasource.topics.interface import NO_EPOCH, PartitionRange, ReadableTopics, epoch_of
from datasource.topics.locations import Location
from logstore import OffsetRange
from logstore.env import SYSTEM
from logstore.errors import PylogError, StoreError
from logstore.log.log import Log
from logstore.log.segments import offset_checkpoints
from logstore.log.tiering import advance_tiered_offset, tiered_offset

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

TIERED, NOTHING, WOULD, SKIPPED, FAILED = "tiered", "nothing to do", "would be tiered", "skipped", "failed"

# Bytes that one task reads before its rows are committed: a killed run repeats at most this much per partition.
PIECE_BYTES = 1024 * 1024 * 1024
# A killed run left a file that is this old and in no version of the table: no run takes so long.
ORPHAN_AGE_HOURS = 24


@dataclass(slots=True, kw_only=True)
class ReportRow:
    topic: str
    partition: int
    status: str = NOTHING
    start: int = 0
    end: int = 0
    records: int = 0
    bad: int = 0
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    leader_epoch: int = NO_EPOCH  # of the leader whose log was looked at, up to `led_end`
    led_end: int = 0

    def values(self) -> dict[str, Any]:
        hidden = ("notes", "leader_epoch", "led_end")
        named = {name: getattr(self, name) for name in self.__slots__ if name not in hidden}
        return named | {"seconds": round(self.seconds, 3), "note": "; ".join(self.notes) or None}

    def note(self, text: str) -> None:
        """Say something about the partition, once."""
        if text not in self.notes:
            self.notes.append(text)

    def fail(self, why: str) -> None:
        """Note that the partition could not be tiered, or no further."""
        self.status = FAILED
        self.note(why)


Report = Mapping[int, ReportRow]


def each(report: Report, partitions: Iterable[int], look: Callable[[int], Found]) -> dict[int, Found]:
    """Return what `look` finds for each partition, except where it fails: that is in the row."""
    found = {}
    for partition in list(partitions):
        try:
            found[partition] = look(partition)
        except Exception as error:  # noqa: BLE001  the other partitions are tiered all the same
            report[partition].fail(reason(error))
    return found


@contextmanager
def alone(location: Location, owner: Owner, report: Report) -> Iterator[bool]:
    """Keep other jobs from the topic; False if another one is at work, which the report then says.

    If the block finds that the table lost rows, the log's tiered offsets are withdrawn before others may go on.
    """
    with owner.base.alone(owner.note) as is_alone:
        if not is_alone:
            for row in report.values():
                row.status = SKIPPED
                row.note("another tiering job is at work on this topic")
        try:
            yield is_alone
        except RestoredError:
            distrust(location, owner.topic)
            raise


def goal(task: TieringTask, report: Report) -> dict[int, int]:
    """Return how far each partition is committed now.

    A transaction of a directory is in it with all of its partitions or none.
    """
    target = task.location.read()
    return target.settled(lambda: each(report, report, lambda p: target.extent(task.topic, p).end))


def plan(task: TieringTask, goal: Mapping[int, int], report: Report) -> list[OffsetSlice]:
    """Return what the tables lack up to `goal`, at most one piece per partition."""
    main, bad = (
        TopicTable(place, task.owner) if delta_log.exists(place) else None for place in (task.table, task.bad_table)
    )
    target = task.location.read()

    def piece(partition: int) -> OffsetSlice | None:
        boundary = main.boundary(partition) if main else None
        extent = target.extent(task.topic, partition)
        if task.note and partition in task.note.tiered:
            check_not_cut(target, task, partition, extent)
        start = _start(extent, boundary, report[partition])
        if report[partition].leader_epoch == NO_EPOCH:  # no record below the goal has a later one
            report[partition].leader_epoch, report[partition].led_end = epoch_of(extent), extent.end
        if start >= goal[partition]:
            return None
        wanted = PartitionRange(task.topic, partition, start, goal[partition])
        is_small = target.size_bytes(wanted) <= PIECE_BYTES
        return OffsetSlice(
            location=task.location,
            topic=task.topic,
            partition=partition,
            start=start,
            end=wanted.end if is_small else min(wanted.end, target.offset_after_bytes(wanted, PIECE_BYTES)),
            leader_epoch=report[partition].leader_epoch,
            table=task.table,
            fields=task.fields,
            beside=task.beside,
            bad_table=task.bad_table,
            bad_start=(bad.boundary(partition) or 0) if bad else 0,
        )

    return [found for found in each(report, goal, piece).values() if found]


def preview(task: TieringTask, report: Report) -> None:
    ends, target = goal(task, report), task.location.read()
    for piece in plan(task, ends, report):
        row = report[piece.partition]
        row.status, row.end = WOULD, ends[piece.partition]
        row.bytes = target.size_bytes(PartitionRange(piece.topic, piece.partition, piece.start, row.end))


def check_not_cut(target: ReadableTopics, task: TieringTask, partition: int, extent: OffsetRange) -> None:
    """Raise StoreError if an unclean leader election has cut records from the log that the table holds."""
    assert task.note is not None, task
    tiered, epoch = task.note.tiered[partition]
    if NO_EPOCH in (epoch, epoch_of(extent)) or epoch_of(extent) == epoch:
        return
    kept = target.epoch_ends(task.topic, {partition: epoch})[partition]
    if kept < tiered:
        raise StoreError(
            f"an unclean leader election has cut the log at offset {max(0, kept)}, and {task.table} holds records up "
            f"to {tiered}: give another directory with --table (table=): a new table begins at the log's start"
        )


def _start(extent: OffsetRange, boundary: int | None, row: ReportRow) -> int:
    """Return where the table ends, or where the log begins if that is later, which the row then says."""
    if boundary is not None and boundary > extent.end:
        raise StoreError(f"the table holds offsets up to {boundary}, and the log ends at {extent.end}: an older copy?")
    lacks = boundary or 0
    if extent.start > lacks:
        row.note(f"offsets {lacks} to {extent.start} were deleted before they were tiered")
    start = max(lacks, extent.start)
    row.start, row.end = (start, start) if row.status == NOTHING else (row.start, start)
    return start


def prepare(task: TieringTask) -> TieringTask:
    """Create the tables if they are missing, and note them in the store; return the task with the note."""
    if task.note is None:
        for place, schema in task.tables:
            delta_table.create(place, task.owner, schema)
        check(task)  # another job may have been a moment faster, with other columns
    elif task.fields:
        for place, _ in task.tables:
            delta_table.name_features(place)  # tables of earlier versions may lack them
    if task.beside and (missing := task.beside.missing(task.open_table().schema())):
        task.open_table().add_columns(missing, task.beside.note)
        delta_table.name_features(task.table)
    note = replace(task.note or TierConfig(task.table), schema=task.ddl)
    return replace(task, note=note if task.note == note else write_note(task.owner, note))


def flushed(task: TieringTask, goal: Mapping[int, int], report: Report) -> dict[int, int]:
    """Flush the logs; return the goal of those that are on disk now.

    A power failure must not take records from the log that are in the table: their offsets would be given again. A
    cluster's committed records are on all in-sync replicas.
    """
    if not task.owner.is_store:
        return dict(goal)
    with logstore.open(task.location.path, create=False) as store:
        done = each(report, goal, lambda p: store.log(task.topic, p).flush())
    return {p: goal[p] for p in done}


def commit(table: TopicTable, files: Sequence[DataFile], ends: Mapping[int, int]) -> None:
    """Add the files and move the boundaries in one commit.

    Raises: as `TopicTable.commit`. If it is certain that nothing was committed, the files are gone then.
    """
    try:
        table.commit([file.action() for file in files], ends)
    except UnknownCommitError:
        raise
    except PylogError:
        remove(table.place, [file.name for file in files])
        raise


def clean(task: TieringTask) -> list[str]:
    """Remove, and return, the files that killed runs left in the tables: old ones that are in no version."""
    removed = []
    for place, _ in task.tables:
        for name in TopicTable(place, task.owner).orphans(age_hours=ORPHAN_AGE_HOURS):
            place.remove(name)
            removed.append(str(place / name))
            logger.warning("path=%s removed: a tiering job that was killed left it", removed[-1])
    return removed


def tell_log(task: TieringTask, report: Report) -> TieringTask:
    """Move the tiered offsets to what the tables hold on disk; return the task with its new note.

    Those of a cluster are only in the note: its brokers delete without asking.

    Raises: RestoredError: the table lost rows by RESTORE. No tiered offset moves then.
    """
    assert task.note is not None, task
    table = task.open_table()
    partitions = [p for p, row in report.items() if row.status != FAILED]
    tiered = {p: task.note.tiered.get(p, (0, NO_EPOCH))[0] for p in partitions}
    if task.owner.is_store:
        with logstore.open(task.location.path, mode="r", create=False) as store:
            tiered = each(report, partitions, lambda p: _trusted(store.log(task.topic, p), table.boundary(p) or 0))
    new = [(p, start, end) for p, start in tiered.items() if (end := table.boundary(p) or 0) > start]
    note = _make_durable(task, task.note, table, new)
    if not task.owner.is_store:
        note = replace(note, tiered={**note.tiered, **{p: (end, _epoch(report[p], end)) for p, _, end in new}})
    task = replace(task, note=note if note == task.note else write_note(task.owner, note))
    if new and task.owner.is_store:
        with logstore.open(task.location.path, create=False) as store:

            def tell(partition: int) -> None:
                log, boundary = store.log(task.topic, partition), table.boundary(partition) or 0
                if boundary <= log.log_end_offset:  # else the log is an older copy, as the plan will say
                    advance_tiered_offset(log, boundary)

            each(report, [p for p, _, _ in new], tell)
    return task


def _epoch(row: ReportRow, end: int) -> int:
    """Return the epoch of the leader that named the offset `end`; another job may have tiered further than this one."""
    return row.leader_epoch if end <= row.led_end else NO_EPOCH


def _trusted(log: Log, boundary: int) -> int:
    """Return the log's tiered offset, after withdrawing one that is beyond the table's boundary."""
    tiered = tiered_offset(log)
    if tiered > boundary:
        offset_checkpoints.withdraw(SYSTEM, str(log.directory), offset_checkpoints.TIERED)
        return 0
    return tiered


def _make_durable(
    task: TieringTask, note: TierConfig, table: TopicTable, new: Sequence[tuple[int, int, int]]
) -> TierConfig:
    """Fsync what is new in the tables: their logs, and the files that may hold (partition, start, end) of `new`.

    A killed run may have committed that and not fsynced it. Returns the note, with the versions checked here.
    """
    versions = []
    for found, since in ((table, note.version), (task.open_bad_table(), note.bad_version)):
        if found is not None:
            found.check_history(since=since)
            files = [f for f in found.files() if any(f.bounds.may_hold(*offsets) for offsets in new)] if new else []
            if files or found.version > since:
                found.make_durable(since=since, files=files)
        versions.append(found.version if found else since)
    return replace(note, version=versions[0], bad_version=versions[1])


def distrust(location: Location, topic: str) -> None:
    """Withdraw the topic's tiered offsets, so that retention removes nothing that may be nowhere else.

    The store is opened for reading only: the first to open it for writing would apply retention at once. The brokers
    of a cluster have none.
    """
    if not location.path:
        return
    with logstore.open(location.path, mode="r", create=False) as store:
        for partition in range(store.topic(topic).partitions):
            try:
                _trusted(store.log(topic, partition), -1)
            except PylogError as error:
                logger.warning("tp=%s-%d tiered offset not withdrawn: %s", topic, partition, error)
