"""Maintenance as Spark jobs: each is a function, a command (`pylog jobs NAME`), and can be given to spark-submit.

::

    from datasource.jobs import compaction, retention, tiering, verify

    tiering.run(spark, path="data", topics=["orders"]).show()

`run(spark, path=…, topics=…, dry_run=…)` returns a DataFrame with a row per partition: what was done, or would be. A
partition that fails says so in its row, and the others go on. A job may be killed and run again, and two may run at
once. From the ground up: `remote_tasks`, those over Spark Connect; `tasks`, what all of them share; `delta_spark`,
tiering through Delta's own writer; the jobs, `retention`, `compaction`, `tiering` and `verify`; `schedule`, jobs in
turn; `options` of the commands; `cli`, with Spark; `here`, three of the jobs in this process; `release`, for what
Spark's writers left.

Only what works with Spark imports it.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from datasource.jobs import compaction, retention, tiering, verify

__all__ = ["compaction", "retention", "tiering", "verify"]


def __getattr__(name: str) -> typing.Any:
    """Import the job that is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
