"""Topics of pylog as tables of Spark: batch and stream, read and write.

::

    from datasource import spark_session

    spark = spark_session()
    spark.read.format("pylog").option("path", "data").option("subscribe", "orders").load()

From the ground up: `errors`, lost records and lines of reports; `schema`, the columns; `topics`, those of a directory
or of a cluster; `delta`, the Delta tables of tiered topics; `connector`, what Spark drives; `session`, spark_session();
`stepping`, a query that tests run batch by batch; `jobs`, maintenance as Spark jobs; `demo`.

Spark finds the format by itself through the package `pyspark_pylog`; `register(spark)` makes it known where that
package cannot be seen, and `register(spark, "data")` makes topics tables of SQL. Streams in update and complete mode
are written by `upsert` and `replace`.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from datasource.connector.counts import count
    from datasource.connector.lags import lag, lag_of_group
    from datasource.connector.observing import QueryObserver, observe
    from datasource.connector.sifting import sift
    from datasource.connector.source import PylogDataSource
    from datasource.connector.upserts import replace, upsert
    from datasource.session import register, spark_session
    from datasource.stepping import SteppedStream

__all__ = [
    "PylogDataSource",
    "QueryObserver",
    "SteppedStream",
    "count",
    "lag",
    "lag_of_group",
    "observe",
    "register",
    "replace",
    "sift",
    "spark_session",
    "upsert",
]


def __getattr__(name: str) -> typing.Any:
    """Import what is asked for: commands that need no Spark do not load it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_PLACES.get(name, "datasource.session")), name)
    globals()[name] = found
    return found


_PLACES = {
    "PylogDataSource": "datasource.connector.source",
    "QueryObserver": "datasource.connector.observing",
    "SteppedStream": "datasource.stepping",
    "count": "datasource.connector.counts",
    "lag": "datasource.connector.lags",
    "lag_of_group": "datasource.connector.lags",
    "observe": "datasource.connector.observing",
    "replace": "datasource.connector.upserts",
    "sift": "datasource.connector.sifting",
    "upsert": "datasource.connector.upserts",
}
