"""The tasks of jobs over Spark Connect, which has no RDDs: a DataFrame's function does the work of one row per task."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import TYPE_CHECKING, TypeVar, cast

from logstore.progress import Progress, no_progress

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo

Item = TypeVar("Item")
Result = TypeVar("Result")

GROUP = 200  # items: each task of a group gets the work of all of it


def over_connect(
    spark: SparkSession, items: Sequence[Item], work: Callable[[Item], Result], progress: Progress
) -> list[Result]:
    """Return the result of `work` for every item, in their order: see `run_tasks`."""
    frames = []
    for first in range(0, len(items), GROUP):
        pickled = [_pickled(partial(work, item)) for item in items[first : first + GROUP]]
        numbers = spark.range(first, first + len(pickled), 1, len(pickled))
        frames.append(numbers.mapInArrow(partial(_work, first, pickled), "number bigint, result binary"))
    with _watched(spark, len(items), progress):
        rows = reduce(type(frames[0]).union, frames).collect()
    found = {row["number"]: pickle.loads(row["result"]) for row in rows}
    return [found[number] for number in range(len(items))]


def _work(first: int, pickled: Sequence[bytes], numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in numbers:
        for number in batch.column(0).to_pylist():
            result = _pickled(pickle.loads(pickled[number - first])())
            yield pa.record_batch(
                [pa.array([number], pa.int64()), pa.array([result], pa.binary())], ["number", "result"]
            )


def _pickled(value: object) -> bytes:
    from pyspark import cloudpickle

    return cast("bytes", cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


@contextmanager
def _watched(spark: SparkSession, total: int, progress: Progress) -> Iterator[None]:
    """Report to `progress` how many tasks have ended, as often as the server says so."""
    if progress is no_progress:
        yield
        return
    last = 0

    def told(stages: Iterable[StageInfo] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        nonlocal last
        last = max(last, sum(stage.num_completed_tasks for stage in stages or ()))
        progress(min(last, total), total)

    progress(0, total)
    handler = cast("ProgressHandler", told)
    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)
    progress(total, total)
