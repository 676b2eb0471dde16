"""Delete what topics need not keep (`retention.ms`, `retention.bytes`, deleted records), partitions in parallel.

Appends and the opening of a store do the same for the topics that they touch. With `remote.storage.enable=true` only
what is tiered goes, and nothing while the table cannot be read or has lost rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import logstore
from datasource.delta.storage_options import StorageOptions
from datasource.delta.storage_options import storage_options as checked
from datasource.errors import reason
from datasource.jobs import tasks
from datasource.jobs.tasks import NOTHING, Done, PartitionPlace, Row
from datasource.topics.locations import Location
from logstore.errors import PylogError
from logstore.maintenance.retention import RetentionReport
from logstore.progress import Progress, no_progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = (
    "topic string, partition int, status string, segments int, bytes bigint, bytes_before bigint, "
    "bytes_after bigint, start_before bigint, start_after bigint, reasons string, seconds double, note string"
)
REMOVED, WOULD = "removed", "would be removed"


class Outcome(NamedTuple):
    """The outcome of retention, and the size of the partition's log before and after."""

    report: RetentionReport
    bytes_before: int
    bytes_after: int


def rows(  # noqa: PLR0913  each of them is one choice of the caller
    spark: SparkSession | None,
    *,
    path: str | None = None,
    bootstrap: str | None = None,
    topics: str | Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> list[Row]:
    """Return a row per partition: how many segments and bytes went, or (`dry_run`) would go, and why.

    The files go `file.delete.delay.ms` later, with the next run. `storage_options`: of tables in an object store, as
    those of tiering.

    Raises: UnknownTopicError, NotAStoreError; InvalidRequestError: a cluster (`bootstrap`) deletes by itself.
    """
    location = tasks.located("retention", path, bootstrap, storage_options=storage_options)
    infos = tasks.chosen(location, topics)
    refused = _refused(location, infos, checked(storage_options or {}), dry_run=dry_run)
    everywhere = tasks.places(location, infos)
    # First ask what would go: the first process that opens the store for writing deletes it, in all partitions.
    would = tasks.run_tasks(spark, [place for place in everywhere if place.topic not in refused], _would)
    done: list[tuple[PartitionPlace, Done[Any, Outcome]]] = [(one.item, one) for one in would]
    if not dry_run:
        expected = [(one.item, one.result) for one in would]
        done = [(one.item[0], one) for one in tasks.run_tasks(spark, expected, _expire, progress)]
    done += [(place, Done(place, None, refused[place.topic], 0.0)) for place in everywhere if place.topic in refused]
    done.sort(key=lambda found: (found[0].topic, found[0].partition))
    describe = partial(_described, WOULD if dry_run else REMOVED)
    return [tasks.report_row(place, one, describe) for place, one in done]


run = tasks.framed(rows, SCHEMA)


def _refused(
    location: Location, infos: Iterable[logstore.TopicInfo], storage: StorageOptions, *, dry_run: bool
) -> dict[str, str]:
    """Return the topics whose table may lack what their logs count as tiered, and why."""
    tiered = [info for info in infos if info.damage is None and info.config.remote_storage_enable]
    if not tiered:
        return {}
    from datasource.delta.owner import of_store
    from datasource.delta.table import RestoredError
    from datasource.delta.tiering import distrust
    from datasource.delta.topic_tables import check_histories

    found = {}
    for info in tiered:
        try:
            check_histories(of_store(location.path, info.name, info.topic_id, storage))
        except PylogError as error:
            found[info.name] = reason(error)
            if isinstance(error, RestoredError) and not dry_run:
                distrust(location, info.name)  # appends apply retention, too
    return found


def _would(place: PartitionPlace) -> Outcome:
    with logstore.open(place.location.path, mode="r", create=False) as store:
        size_bytes = _size_bytes(store, place)
        report = store.expire(place.topic, place.partition, dry_run=True)
    return Outcome(report, size_bytes, size_bytes - report.removed_bytes)


def _expire(expected: tuple[PartitionPlace, Outcome | None]) -> Outcome:
    """Apply retention; report what went since `expected`, whoever deleted it."""
    place, before = expected
    with logstore.open(place.location.path, create=False) as store:
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


def _described(status: str, outcome: Outcome) -> Row:
    report = outcome.report
    return {
        "status": status if report.removed else NOTHING,
        "segments": len(report.removed),
        "bytes": report.removed_bytes,
        "bytes_before": outcome.bytes_before,
        "bytes_after": outcome.bytes_after,
        "start_before": report.log_start_before,
        "start_after": report.log_start_after,
        "reasons": ", ".join(sorted({segment.reason for segment in report.removed})),
    }
