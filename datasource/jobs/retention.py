"""Let go of what topics need not keep (`retention.ms`, `retention.bytes`, deleted records), partitions in parallel.

Appends and the opening of a store do the same for what they touch; this is for topics that nobody touches. With
`remote.storage.enable=true` only what is tiered goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import logstore
from datasource.jobs.tasks import Done, Place, Progress, no_progress, places, run_tasks, to_frame
from logstore.housekeeping import RetentionReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "topic string, partition int, status string, segments int, bytes bigint, start_before bigint, "
    "start_after bigint, reasons string, seconds double, note string"
)
REMOVED, NOTHING, WOULD, FAILED = "removed", "nothing to do", "would be removed", "failed"


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
    # First what would go: the first process to open the store lets it go at once, for all partitions.
    would = run_tasks(spark, places(path, topics), _would)
    if dry_run:
        return to_frame(spark, [_row(one.item, one, WOULD) for one in would], SCHEMA)
    expected = [(one.item, one.result) for one in would]
    done = run_tasks(spark, expected, _expire, progress)
    return to_frame(spark, [_row(one.item[0], one, REMOVED) for one in done], SCHEMA)


def _would(place: Place) -> RetentionReport:
    with logstore.open(place.path, mode="r", create=False) as store:
        return store.expire(place.topic, place.partition, dry_run=True)


def _expire(expected: tuple[Place, RetentionReport | None]) -> RetentionReport:
    """Apply retention; the report has what went since `expected`, whoever removed it."""
    place, before = expected
    with logstore.open(place.path, create=False) as store:
        after = store.expire(place.topic, place.partition)
    if before is None:
        return after
    gone = {segment.base_offset: segment for segment in (*before.removed, *after.removed)}
    return replace(
        after,
        removed=tuple(s for s in gone.values() if s.next_offset <= after.log_start_after),
        log_start_before=before.log_start_before,
    )


def _row(place: Place, done: Done[Any, RetentionReport], status: str) -> tuple[object, ...]:
    report = done.result
    if report is None:
        return (place.topic, place.partition, FAILED, *[None] * 5, done.duration_s, done.error)
    return (
        place.topic,
        place.partition,
        status if report.removed else NOTHING,
        len(report.removed),
        report.removed_bytes,
        report.log_start_before,
        report.log_start_after,
        ", ".join(sorted({segment.reason for segment in report.removed})),
        done.duration_s,
        None,
    )
