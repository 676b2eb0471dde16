"""Maintenance as Spark jobs: each is a function, a command (`pylog jobs NAME`), and can be given to spark-submit.

::

    from datasource.jobs import compaction, retention, tiering, verify

    tiering.run(spark, path="data", topics=["orders"]).show()

`run(spark, path=…, topics=…, dry_run=…)` returns a DataFrame with a row per partition: what was done, or would be. A
partition that fails says so in its row, and the others go on. A job may be killed and run again, and two may run at
once. From the ground up: `tasks`, what all of them share; `delta_spark`, tiering through Delta's own writer; the jobs,
`retention`, `compaction`, `tiering` and `verify`; `schedule`, jobs in turn; `cli`; `release`,
a command without Spark for what its writers left.
"""

from datasource.jobs import compaction, retention, tiering, verify

__all__ = ["compaction", "retention", "tiering", "verify"]
