"""Shared by all jobs: a Spark task per partition, or all of them in this process, and a report with a row for each.

A partition that fails becomes a row, and the job goes on. Only names, numbers and small reports travel between driver
and tasks. Work must bear to run twice: Spark repeats a task whose worker died.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from datasource.connector.connect import is_connect
from datasource.delta.storage import storage_of
from datasource.delta.storage_options import storage_options as checked
from datasource.errors import reason
from datasource.jobs.remote_tasks import over_connect
from datasource.topics.locations import Location
from logstore import TopicInfo
from logstore.env import SYSTEM
from logstore.errors import InvalidRequestError, UnknownTopicError
from logstore.progress import Progress, no_progress
from replication.client.addresses import addresses_of
from replication.client.registry_settings import SETTINGS as REGISTRY
from replication.client.registry_settings import registry_of
from replication.client.security import security_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")
Given = ParamSpec("Given")
Row = Mapping[str, object]

NOTHING, FAILED = "nothing to do", "failed"
# Jobs that brokers need not, and the settings by which they do the same.
_OF_BROKERS = {"retention": "retention.ms and retention.bytes", "compaction": "cleanup.policy=compact"}


@dataclass(frozen=True, slots=True)
class Done(Generic[Item, Result]):
    """How one task ended: with a result, or with an error's one line."""

    item: Item
    result: Result | None
    error: str | None
    duration_s: float


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """A partition of a topic there."""

    location: Location
    topic: str
    partition: int


def located(
    job: str,
    path: str | None,
    bootstrap: str | None,
    table: str | None = None,
    security: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Location:
    """Return where the job finds its topics. `security`: of a cluster, as of `KafkaClient`.

    Raises: InvalidRequestError: neither is given, or both, or the job does not work there; InvalidConfigError: so are
    the table and its storage options.
    """
    storage = checked(storage_options or {})
    if table:
        storage_of(table, storage)
    if bool(path) == bool(bootstrap):
        raise InvalidRequestError(
            "give a directory (path=, --path) or the brokers of a cluster (bootstrap=, --bootstrap-server)"
        )
    named = {name: value for name, value in (security or {}).items() if name in REGISTRY}
    registry = registry_of(named) if named else None
    secured = {name: value for name, value in (security or {}).items() if name not in named}
    if path and secured:
        raise InvalidRequestError("settings of TLS and SASL are for a cluster: a directory is read directly")
    if path:
        return Location(path=str(Path(path).absolute()), registry=registry)  # tasks run in other directories
    assert bootstrap, "one of the two is given"
    addresses_of(bootstrap, "bootstrap")
    if settings := _OF_BROKERS.get(job):
        raise InvalidRequestError(
            f"{job} is for a directory: the brokers of a cluster apply {settings} of each topic by themselves"
        )
    if job == "tiering" and not table:
        raise InvalidRequestError(
            "over a cluster --table (table=) names the Delta table's directory or URL, {topic} for the topic's name"
        )
    return Location(bootstrap=bootstrap, security=security_of(secured), registry=registry)


def chosen(location: Location, topics: str | Sequence[str] | None) -> list[TopicInfo]:
    """Return these topics (None: all), by name. Raises: UnknownTopicError, NotAStoreError, UnreachableError."""
    known = {info.name: info for info in location.read().topics()}
    names = known if topics is None else [topics] if isinstance(topics, str) else topics
    for name in names:
        if name not in known:
            raise UnknownTopicError(name, known, location.path or f"the cluster at {location.bootstrap}")
    return [known[name] for name in sorted(set(names))]


def places(location: Location, infos: Iterable[TopicInfo]) -> list[PartitionPlace]:
    return [PartitionPlace(location, info.name, p) for info in infos for p in range(info.partitions)]


def run_tasks(
    spark: SparkSession | None,
    items: Sequence[Item],
    work: Callable[[Item], Result],
    progress: Progress = no_progress,
) -> list[Done[Item, Result]]:
    """Do `work` on every item, in a Spark task each; return how each ended, in the order of the items.

    `work` is a function of a module, or a `partial` of one, since it travels by name. Without Spark this process does
    the work, one item after the other.
    """
    if not items:
        return []
    if spark is None:
        return list(_in_turn(items, work, progress))
    if is_connect(spark):
        return over_connect(spark, items, partial(guarded, work), progress)
    context = spark.sparkContext
    rdd = context.parallelize(items, len(items)).map(partial(guarded, work))
    with _watched(context, len(items), progress):
        return rdd.collect()


def _in_turn(items: Sequence[Item], work: Callable[[Item], Result], progress: Progress) -> Iterator[Done[Item, Result]]:
    for number, item in enumerate(items):
        progress(number, len(items))
        yield guarded(work, item)
    progress(len(items), len(items))


def guarded(
    work: Callable[[Item], Result], item: Item, *, fatal: tuple[type[Exception], ...] = ()
) -> Done[Item, Result]:
    """Do `work`; return how it ended. Raises: `fatal` errors."""
    start_ms = SYSTEM.clock.monotonic_ms()
    result, error = None, None
    try:
        result = work(item)
    except fatal:
        raise
    except Exception as failure:  # noqa: BLE001  it becomes the row of the partition
        error = reason(failure)
    return Done(item, result, error, (SYSTEM.clock.monotonic_ms() - start_ms) / 1000)


@contextmanager
def _watched(context: SparkContext, total: int, progress: Progress) -> Iterator[None]:
    """Report to `progress` how many tasks of the block's Spark job have ended."""
    if progress is no_progress:
        yield
        return
    from datasource.session import watching

    group, before = f"pylog-{SYSTEM.random.getrandbits(64):x}", context.getLocalProperty("spark.jobGroup.id")
    context.setLocalProperty("spark.jobGroup.id", group)
    progress(0, total)
    try:
        with watching(lambda: progress(_completed(context, group), total)):
            yield
    finally:
        context.setLocalProperty("spark.jobGroup.id", before)  # type: ignore[arg-type]  # None removes it
    progress(total, total)


def _completed(context: SparkContext, group: str) -> int:
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage)


def report_row(place: PartitionPlace, done: Done[Any, Result], describe: Callable[[Result], Row]) -> dict[str, object]:
    """Return the row of a partition: what `describe` says of the result, or the error."""
    row = {"topic": place.topic, "partition": place.partition, "seconds": done.duration_s}
    if done.result is None:
        return row | {"status": FAILED, "note": done.error}
    return row | dict(describe(done.result))


def framed(
    rows: Callable[Concatenate[SparkSession | None, Given], Sequence[Row]], schema: str
) -> Callable[Concatenate[SparkSession, Given], DataFrame]:
    """Return the job that has these rows as a DataFrame with the columns of `schema` (DDL)."""

    def run(spark: SparkSession, *args: Given.args, **options: Given.kwargs) -> DataFrame:
        return to_frame(spark, rows(spark, *args, **options), schema)

    update_wrapper(run, rows).__name__ = run.__qualname__ = "run"
    return run  # type: ignore[return-value]  # a ParamSpec cannot say that `spark` may be named, too


def names_in(schema: str) -> list[str]:
    """Return the columns of a report, in their order."""
    return [column.split()[0] for column in schema.split(", ")]


def to_frame(spark: SparkSession, rows: Iterable[Row], schema: str) -> DataFrame:
    """Return the report as a DataFrame with the columns of `schema` (DDL); what a row does not name is null."""
    from pyspark.sql.types import StructType

    columns = StructType.fromDDL(schema)
    assert isinstance(columns, StructType), schema
    values = [tuple(row.get(name) for name in columns.names) for row in rows]
    return spark.createDataFrame(values, columns)
