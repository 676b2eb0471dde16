"""Compact topics to the last record of each key, partitions in parallel.

A partition is compacted when enough of it is dirty (`min.cleanable.dirty.ratio`, `max.compaction.lag.ms`); writers
and readers go on. Topics without `cleanup.policy=compact` are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import logstore
from datasource.jobs import tasks
from datasource.jobs.tasks import NOTHING, PartitionPlace, Row
from logstore.maintenance.compaction import CompactionReport
from logstore.progress import Progress, no_progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = (
    "topic string, partition int, status string, records_before bigint, records_after bigint, bytes_before bigint, "
    "bytes_after bigint, dirty_before double, dirty_after double, rounds int, seconds double, note string"
)
COMPACTED, WOULD = "compacted", "would be compacted"


def rows(
    spark: SparkSession | None,
    *,
    path: str | None = None,
    bootstrap: str | None = None,
    topics: str | Sequence[str] | None = None,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> list[Row]:
    """Return a row per partition of the compacted topics: records, bytes and dirty ratio before and after.

    Raises: UnknownTopicError, NotAStoreError; InvalidRequestError: a cluster (`bootstrap`) compacts by itself.
    """
    location = tasks.located("compaction", path, bootstrap)
    infos = tasks.chosen(location, topics)
    wanted = tasks.places(location, (info for info in infos if info.config.is_compacted or info.damage))
    done = tasks.run_tasks(spark, wanted, partial(_compact, dry_run), progress)
    describe = partial(_described, WOULD if dry_run else COMPACTED)
    return [tasks.report_row(one.item, one, describe) for one in done]


run = tasks.framed(rows, SCHEMA)


def _compact(dry_run: bool, place: PartitionPlace) -> CompactionReport:
    with logstore.open(place.location.path, mode="r" if dry_run else "auto", create=False) as store:
        return store.compact(place.topic, place.partition, dry_run=dry_run)


def _described(status: str, report: CompactionReport) -> Row:
    return {
        "status": NOTHING if report.skipped else status,
        "records_before": report.records_before,
        "records_after": report.records_after,
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "dirty_before": report.dirty_ratio_before,
        "dirty_after": report.dirty_ratio_after,
        "rounds": report.rounds,
        "note": report.skipped,
    }
