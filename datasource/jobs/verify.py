"""Read every batch of a store again, partitions in parallel, and say what is damaged: file, position, reason.

Checked are CRCs, offsets, indexes, leader epochs and transactions. Nothing is changed, nobody is kept from anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import logstore
from datasource.jobs.tasks import Done, PartitionPlace, Progress, no_progress, places, run_tasks, to_frame
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

    A topic of which records are there and no description has a row without partition; a damaged journal of transactions
    one without topic, too.

    Raises: UnknownTopicError, NotAStoreError. Damage, and what cannot be opened, is in the rows.
    """
    done = run_tasks(spark, places(path, topics), partial(_verified, dry_run), progress)
    rows = [_row(one, dry_run) for one in done]
    with logstore.open(path, mode="r", create=False) as store:
        more = [] if dry_run or topics is not None else list(verify_descriptions(store))
        if not dry_run and (journal := verify_transactions(store)):
            more.append(journal)
    rows += [(report.topic, None, DAMAGED, None, None, 0.0, list(report.damage)) for report in more]
    return to_frame(spark, rows, SCHEMA)


def _verified(dry_run: bool, place: PartitionPlace) -> PartitionReport:
    with logstore.open(place.path, mode="r", create=False) as store:
        return verify_partition(store, place.topic, place.partition, dry_run=dry_run)


def _row(done: Done[PartitionPlace, PartitionReport], dry_run: bool) -> tuple[object, ...]:
    place, report = done.item, done.result
    if report is None:
        where = f"{place.path}/{place.topic}-{place.partition}"
        report = PartitionReport(place.topic, place.partition, None, None, ((where, 0, done.error or ""),))
    status = WOULD if dry_run else DAMAGED if report.damage else SOUND
    return (
        report.topic,
        report.partition,
        status,
        report.segments,
        report.size_bytes,
        done.duration_s,
        list(report.damage),
    )
