"""The tasks of jobs over Spark Connect, which has no RDDs: a DataFrame's function does the work of one row per task."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from logstore.progress import Progress, no_progress

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")


def over_connect(
    spark: SparkSession, items: Sequence[Item], work: Callable[[Item], Result], progress: Progress
) -> list[Result]:
    """Return the result of `work` for every item, in their order: see `run_tasks`."""
    from pyspark import cloudpickle

    pickled = [cloudpickle.dumps(partial(work, item)) for item in items]
    numbers = spark.range(0, len(items), 1, len(items))
    with _watched(spark, len(items), progress):
        rows = numbers.mapInArrow(partial(_work, pickled), "number bigint, result binary").collect()
    found = {row["number"]: pickle.loads(row["result"]) for row in rows}
    return [found[number] for number in range(len(items))]


def _work(pickled: Sequence[bytes], numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyspark import cloudpickle

    for batch in numbers:
        for number in batch.column(0).to_pylist():
            result = cloudpickle.dumps(pickle.loads(pickled[number])())
            yield pa.record_batch(
                [pa.array([number], pa.int64()), pa.array([result], pa.binary())], ["number", "result"]
            )


@contextmanager
def _watched(spark: SparkSession, total: int, progress: Progress) -> Iterator[None]:
    """Report to `progress` how many tasks have ended, as often as the server says so."""
    if progress is no_progress:
        yield
        return
    last = 0

    def told(stages: Iterable[Any] | None, **_: object) -> None:
        nonlocal last
        last = max(last, sum(stage.num_completed_tasks for stage in stages or ()))
        progress(min(last, total), total)

    progress(0, total)
    spark.registerProgressHandler(told)
    try:
        yield
    finally:
        spark.removeProgressHandler(told)
    progress(total, total)
