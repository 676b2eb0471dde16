"""Read every batch again, partitions in parallel, and report damage: file, position, reason.

In a directory the job checks CRCs, offsets, indexes, leader epochs and transactions. Over a cluster it fetches all
records from their leaders, and checks CRCs and offsets; of the other replicas, of indexes and files it sees nothing:
brokers check their own (`log.scrub.interval.ms`). It changes nothing, and nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import logstore
from datasource.jobs import tasks
from datasource.jobs.tasks import FAILED, Done, PartitionPlace
from logstore.progress import Progress, no_progress
from logstore.tools.verify import PartitionReport, verify_descriptions, verify_partition, verify_transactions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "topic string, partition int, status string, segments int, bytes bigint, seconds double, note string, "
    "damage array<struct<file: string, position: bigint, reason: string>>"
)
SOUND, DAMAGED, WOULD = "sound", "damaged", "would be read"


def run(  # noqa: PLR0913  each of them is one choice of the caller
    spark: SparkSession,
    *,
    path: str | None = None,
    bootstrap: str | None = None,
    security: Mapping[str, str] | None = None,
    topics: str | Sequence[str] | None = None,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> DataFrame:
    """Return a row per partition: `status` is "sound" or "damaged", and `damage` has every place.

    Over a cluster (`bootstrap`, `security` as of `KafkaClient`) `segments` is null, `bytes` is what was fetched, and a
    partition whose leader does not give all of it is "failed", with a note; behind a damaged header nothing is read. In
    a directory, records without a description of their topic have a row without partition, a damaged journal of
    transactions one without topic, too.

    Raises: UnknownTopicError, NotAStoreError, UnreachableError. Damage, and what cannot be read, is in the rows.
    """
    location = tasks.located("verify", path, bootstrap, security=security)
    wanted = tasks.places(location, tasks.chosen(location, topics))
    done = tasks.run_tasks(spark, wanted, partial(_verified, dry_run), progress)
    rows = [_row(_found(one), one.duration_s, WOULD if dry_run else None) | _failure(one) for one in done]
    if not dry_run and location.path:
        with logstore.open(location.path, mode="r", create=False) as store:
            more = list(verify_descriptions(store)) if topics is None else []
            if journal := verify_transactions(store):
                more.append(journal)
        rows += [_row(report, 0.0) for report in more]
    return tasks.to_frame(spark, rows, SCHEMA)


def _verified(dry_run: bool, place: PartitionPlace) -> PartitionReport:
    if place.location.bootstrap:
        topics = place.location.cluster("read_uncommitted")
        size_bytes, damage = (None, []) if dry_run else topics.verify(place.topic, place.partition)
        return PartitionReport(place.topic, place.partition, None, size_bytes, tuple(damage))
    with logstore.open(place.location.path, mode="r", create=False) as store:
        return verify_partition(store, place.topic, place.partition, dry_run=dry_run)


def _found(done: Done[PartitionPlace, PartitionReport]) -> PartitionReport:
    """The report of a task. A partition of a directory that cannot be opened is damaged."""
    if done.result is not None:
        return done.result
    place = done.item
    where = f"{place.location.path}/{place.topic}-{place.partition}"
    return PartitionReport(place.topic, place.partition, None, None, ((where, 0, done.error or ""),))


def _failure(done: Done[PartitionPlace, PartitionReport]) -> dict[str, object]:
    """The extra columns for a partition that a cluster did not serve: whether its records are sound is unknown."""
    if done.result is not None or done.item.location.path:
        return {}
    return {"status": FAILED, "note": done.error, "damage": []}


def _row(report: PartitionReport, duration_s: float, status: str | None = None) -> dict[str, object]:
    return {
        "topic": report.topic,
        "partition": report.partition,
        "status": status or (DAMAGED if report.damage else SOUND),
        "segments": report.segments,
        "bytes": report.size_bytes,
        "seconds": duration_s,
        "damage": list(report.damage),
    }
