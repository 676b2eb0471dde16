"""Compact topics to the last record of each key, partitions in parallel.

A partition is compacted when enough of it is dirty (`min.cleanable.dirty.ratio`, `max.compaction.lag.ms`); writers
and readers go on meanwhile. Topics without `cleanup.policy=compact` are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import logstore
from datasource.jobs.tasks import Done, PartitionPlace, Progress, chosen, no_progress, run_tasks, to_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from logstore.maintenance.compaction import CompactionReport

SCHEMA = (
    "topic string, partition int, status string, records_before bigint, records_after bigint, bytes_before bigint, "
    "bytes_after bigint, dirty_before double, dirty_after double, rounds int, seconds double, note string"
)
COMPACTED, NOTHING, WOULD, FAILED = "compacted", "nothing to do", "would be compacted", "failed"


def run(
    spark: SparkSession,
    *,
    path: str,
    topics: str | Sequence[str] | None = None,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> DataFrame:
    """Return a row per partition of the compacted topics: records, bytes and dirty ratio before and after.

    Raises: UnknownTopicError, NotAStoreError.
    """
    with logstore.open(path, mode="r", create=False) as store:
        places = [
            PartitionPlace(str(store.path), info.name, p)
            for info in chosen(store, topics)
            if info.config.is_compacted or info.damage
            for p in range(info.partitions)
        ]
    done = run_tasks(spark, places, partial(_compact, dry_run), progress)
    return to_frame(spark, [_row(one, WOULD if dry_run else COMPACTED) for one in done], SCHEMA)


def _compact(dry_run: bool, place: PartitionPlace) -> CompactionReport:
    with logstore.open(place.path, mode="r" if dry_run else "auto", create=False) as store:
        return store.compact(place.topic, place.partition, dry_run=dry_run)


def _row(done: Done[PartitionPlace, CompactionReport], status: str) -> tuple[object, ...]:
    place, report = done.item, done.result
    if report is None:
        return (place.topic, place.partition, FAILED, *[None] * 7, done.duration_s, done.error)
    return (
        place.topic,
        place.partition,
        NOTHING if report.skipped else status,
        report.records_before,
        report.records_after,
        report.bytes_before,
        report.bytes_after,
        report.dirty_ratio_before,
        report.dirty_ratio_after,
        report.rounds,
        done.duration_s,
        report.skipped,
    )
