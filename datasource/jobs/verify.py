"""Read every batch of a store again, partitions in parallel, and report damage: file, position, reason.

The job checks CRCs, offsets, indexes, leader epochs and transactions. It changes nothing, and nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import logstore
from datasource.jobs import tasks
from datasource.jobs.tasks import Done, PartitionPlace, Row
from logstore.progress import Progress, no_progress
from logstore.tools.verify import PartitionReport, verify_descriptions, verify_partition, verify_transactions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "topic string, partition int, status string, segments int, bytes bigint, seconds double, "
    "damage array<struct<file: string, position: bigint, reason: string>>"
)
SOUND, DAMAGED, WOULD = "sound", "damaged", "would be read"


def run(
    spark: SparkSession,
    *,
    path: str,
    topics: str | Sequence[str] | None = None,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> DataFrame:
    """Return a row per partition: `status` is "sound" or "damaged", and `damage` has every place.

    Records without a description of their topic have a row without partition, a damaged journal of transactions one
    without topic, too.

    Raises: UnknownTopicError, NotAStoreError. Damage, and what cannot be opened, is in the rows.
    """
    done = tasks.run_tasks(
        spark, tasks.places(*tasks.chosen(path, topics)), partial(_verified, dry_run), progress
    )
    rows = [_row(_found(one), one.duration_s, WOULD if dry_run else None) for one in done]
    if not dry_run:
        with logstore.open(path, mode="r", create=False) as store:
            more = list(verify_descriptions(store)) if topics is None else []
            if journal := verify_transactions(store):
                more.append(journal)
        rows += [_row(report, 0.0) for report in more]
    return tasks.to_frame(spark, rows, SCHEMA)


def _verified(dry_run: bool, place: PartitionPlace) -> PartitionReport:
    with logstore.open(place.path, mode="r", create=False) as store:
        return verify_partition(store, place.topic, place.partition, dry_run=dry_run)


def _found(done: Done[PartitionPlace, PartitionReport]) -> PartitionReport:
    """The report of a task. A partition that cannot be opened is damaged."""
    if done.result is not None:
        return done.result
    place = done.item
    where = f"{place.path}/{place.topic}-{place.partition}"
    return PartitionReport(place.topic, place.partition, None, None, ((where, 0, done.error or ""),))


def _row(report: PartitionReport, duration_s: float, status: str | None = None) -> Row:
    return {
        "topic": report.topic,
        "partition": report.partition,
        "status": status or (DAMAGED if report.damage else SOUND),
        "segments": report.segments,
        "bytes": report.size_bytes,
        "seconds": duration_s,
        "damage": list(report.damage),
    }
