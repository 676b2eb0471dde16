"""Run jobs in turn, once or for ever, in one process and one Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from datasource.jobs import compaction, retention, tiering, verify
from logstore.env import SYSTEM, Clock
from logstore.errors import PylogError

Job = Callable[..., "DataFrame"]

# In this order, retention may delete at once what was tiered, and compaction skips what was deleted.
JOBS: dict[str, Job] = {
    "tiering": tiering.run,
    "retention": retention.run,
    "compaction": compaction.run,
    "verify": verify.run,
}


def turn(
    spark: SparkSession,
    jobs: Sequence[str],
    *,
    table: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Run each of `jobs` once, with options that all have, and those of tables where they count.

    Yields its name and its rows.
    """
    of_tables = {"tiering": {"table": table, "storage_options": storage_options}}
    of_tables["retention"] = {"storage_options": storage_options}
    for name, job in JOBS.items():
        if name in jobs:
            more = of_tables.get(name, {})
            frame = job(spark, **options, **more)
            yield name, [row.asDict(recursive=True) for row in frame.collect()]


def every(
    interval_ms: int,
    work: Callable[[], object],
    failed: Callable[[Exception], None],
    *,
    clock: Clock = SYSTEM.clock,
) -> None:
    """Do `work` for ever, once per `interval_ms`, or at once after a turn that took longer. Ctrl-C ends it.

    `failed` gets the error of a turn that failed; the next turn may succeed.
    """
    while True:
        start_ms = clock.monotonic_ms()
        try:
            work()
        except Exception as error:
            if isinstance(error, OSError) and not isinstance(error, PylogError):
                raise  # nobody reads the output any more, say: no turn would succeed
            failed(error)
        left_ms = interval_ms - (clock.monotonic_ms() - start_ms)
        if left_ms > 0:
            clock.sleep_ms(left_ms)
