"""Let go of what topics need not keep (`retention.ms`, `retention.bytes`, deleted records), partitions in parallel.

Appends and the opening of a store do the same for what they touch; this is for topics that nobody touches. With
`remote.storage.enable=true` only what is tiered goes, and nothing while the table cannot be read or has lost rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import logstore
from datasource.delta.table import RestoredError
from datasource.delta.topic_tables import check_histories, distrust
from datasource.jobs.tasks import (
    Done,
    PartitionPlace,
    Progress,
    chosen,
    no_progress,
    places,
    reason,
    run_tasks,
    to_frame,
)
from logstore.errors import PylogError
from logstore.maintenance.expiry import RetentionReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "topic string, partition int, status string, segments int, bytes bigint, bytes_before bigint, "
    "bytes_after bigint, start_before bigint, start_after bigint, reasons string, seconds double, note string"
)
REMOVED, NOTHING, WOULD, FAILED = "removed", "nothing to do", "would be removed", "failed"


class Outcome(NamedTuple):
    """What retention did, and the size of the partition's log before and after."""

    report: RetentionReport
    bytes_before: int
    bytes_after: int


def run(
    spark: SparkSession,
    *,
    path: str,
    topics: str | Sequence[str] | None = None,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> DataFrame:
    """Return a row per partition: how many segments and bytes went, or (`dry_run`) would go, and why.

    The files go `file.delete.delay.ms` later, with the next run.

    Raises: UnknownTopicError, NotAStoreError.
    """
    untrue = _untrue(path, topics, dry_run=dry_run)
    refused: list[Done[PartitionPlace, Outcome]] = [
        Done(p, None, untrue[p.topic], 0.0) for p in places(path, topics) if p.topic in untrue
    ]
    # First what would go: the first process to open the store lets it go at once, for all partitions.
    would = run_tasks(spark, [p for p in places(path, topics) if p.topic not in untrue], _would)
    if dry_run:
        rows = [_row(one.item, one, WOULD) for one in (*would, *refused)]
    else:
        expected = [(one.item, one.result) for one in would]
        done = run_tasks(spark, expected, _expire, progress)
        rows = [_row(one.item[0], one, REMOVED) for one in done] + [
            _row(one.item, one, REMOVED) for one in refused
        ]
    return to_frame(spark, sorted(rows, key=lambda row: row[:2]), SCHEMA)


def _untrue(path: str, topics: str | Sequence[str] | None, *, dry_run: bool) -> dict[str, str]:
    """The topics that wait for a table of which nobody knows that it has what their logs were told, and why."""
    with logstore.open(path, mode="r", create=False) as store:
        infos, root = chosen(store, topics), str(store.path)
    found = {}
    for info in infos:
        if info.damage is None and info.config.remote_storage_enable:
            try:
                check_histories(root, info.topic_id)
            except PylogError as error:
                found[info.name] = reason(error)
                if isinstance(error, RestoredError) and not dry_run:
                    distrust(root, info)  # appends let go of records, too
    return found


def _would(place: PartitionPlace) -> Outcome:
    with logstore.open(place.path, mode="r", create=False) as store:
        size_bytes = _size_bytes(store, place)
        report = store.expire(place.topic, place.partition, dry_run=True)
    return Outcome(report, size_bytes, size_bytes - report.removed_bytes)


def _expire(expected: tuple[PartitionPlace, Outcome | None]) -> Outcome:
    """Apply retention; the report has what went since `expected`, whoever removed it."""
    place, before = expected
    with logstore.open(place.path, create=False) as store:
        after = store.expire(place.topic, place.partition)
        size_bytes = _size_bytes(store, place)
    if before is None:
        return Outcome(after, size_bytes + after.removed_bytes, size_bytes)
    gone = {segment.base_offset: segment for segment in (*before.report.removed, *after.removed)}
    report = replace(
        after,
        removed=tuple(s for s in gone.values() if s.next_offset <= after.log_start_after),
        log_start_before=before.report.log_start_before,
    )
    return Outcome(report, before.bytes_before, size_bytes)


def _size_bytes(store: logstore.LogStore, place: PartitionPlace) -> int:
    return sum(segment.size_bytes for segment in store.log(place.topic, place.partition).segments())


def _row(place: PartitionPlace, done: Done[Any, Outcome], status: str) -> tuple[object, ...]:
    if done.result is None:
        return (place.topic, place.partition, FAILED, *[None] * 7, done.duration_s, done.error)
    report = done.result.report
    return (
        place.topic,
        place.partition,
        status if report.removed else NOTHING,
        len(report.removed),
        report.removed_bytes,
        done.result.bytes_before,
        done.result.bytes_after,
        report.log_start_before,
        report.log_start_after,
        ", ".join(sorted({segment.reason for segment in report.removed})),
        done.duration_s,
        None,
    )
