"""Work on partitions as Spark tasks: one partition in one task, what goes wrong there is data, not the end of the job.

Only names, numbers and small reports travel between driver and tasks. A task may run twice (Spark tries again
when its worker dies), so whatever work does must bear that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import logstore
from logstore.env import SYSTEM
from logstore.errors import PylogError, UnknownTopicError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]  # tasks that ended, of how many

POLL_MS = 200


def no_progress(done: int, total: int) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True)
class Done(Generic[Item, Result]):
    """How one task ended: with a result, or with an error's one line."""

    item: Item
    result: Result | None
    error: str | None
    duration_s: float


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """A partition of a topic of the store at `path`."""

    path: str
    topic: str
    partition: int


def places(path: str, topics: str | Sequence[str] | None) -> list[PartitionPlace]:
    """Return every partition of these topics (None: of all), sorted.

    Raises: UnknownTopicError; NotAStoreError.
    """
    with logstore.open(path, mode="r", create=False) as store:
        return [
            PartitionPlace(str(store.path), info.name, p)
            for info in chosen(store, topics)
            for p in range(info.partitions)
        ]


def chosen(store: logstore.LogStore, topics: str | Sequence[str] | None) -> list[logstore.TopicInfo]:
    """Return these topics (None: all), by name. Raises: UnknownTopicError."""
    if topics is None:
        return store.topics()
    names = [topics] if isinstance(topics, str) else list(topics)
    known = {info.name: info for info in store.topics()}
    for name in names:
        if name not in known:
            raise UnknownTopicError(name, known, str(store.path))
    return [known[name] for name in sorted(set(names))]


def run_tasks(
    spark: SparkSession,
    items: Sequence[Item],
    work: Callable[[Item], Result],
    progress: Progress = no_progress,
) -> list[Done[Item, Result]]:
    """Do `work` on every item, a Spark task each; return how each ended, in the order of the items.

    `work` is a function of a module, or a `partial` of one: it travels by name.
    """
    if not items:
        return []
    context = spark.sparkContext
    rdd = context.parallelize(items, len(items)).map(partial(_guarded, work))
    with _watched(context, len(items), progress):
        return rdd.collect()


def _guarded(work: Callable[[Item], Result], item: Item) -> Done[Item, Result]:
    start_ms = SYSTEM.clock.monotonic_ms()
    result, error = None, None
    try:
        result = work(item)
    except Exception as failure:  # noqa: BLE001  it becomes the row of the partition
        error = reason(failure)
    return Done(item, result, error, (SYSTEM.clock.monotonic_ms() - start_ms) / 1000)


def reason(error: Exception) -> str:
    """Return the line for a report; what nobody foresaw is logged as a whole."""
    if isinstance(error, PylogError | OSError):
        return str(error)
    logger.error("not foreseen", exc_info=error)
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


@contextmanager
def _watched(context: SparkContext, total: int, progress: Progress) -> Iterator[None]:
    """Tell `progress` now and then how many tasks of the block's Spark job have ended."""
    if progress is no_progress:
        yield
        return
    group, before = f"pylog-{SYSTEM.random.getrandbits(64):x}", context.getLocalProperty("spark.jobGroup.id")
    context.setLocalProperty("spark.jobGroup.id", group)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(POLL_MS / 1000):
            progress(_completed(context, group), total)

    watcher = threading.Thread(target=watch, daemon=True)
    progress(0, total)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        context.setLocalProperty("spark.jobGroup.id", before)  # type: ignore[arg-type]  # None removes it
    progress(total, total)


def _completed(context: SparkContext, group: str) -> int:
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage)


def to_frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: str) -> DataFrame:
    """Return the report as a DataFrame; `schema` is DDL."""
    return spark.createDataFrame(list(rows), schema)
