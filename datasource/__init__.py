"""Topics of pylog as tables of Spark: batch and stream, read and write.

::

    from datasource import spark_session

    spark = spark_session()
    spark.read.format("pylog").option("path", "data").option("subscribe", "orders").load()

From the ground up: `errors`, lost records and lines of reports; `schema`, the columns; `topics`, those of a directory
or of a cluster; `delta`, the Delta tables of tiered topics; `connector`, what Spark drives; `session`, spark_session();
`jobs`, maintenance as Spark jobs; `demo`.

Spark finds the format by itself through the package `pyspark_pylog`; `register(spark)` makes it known where that
package cannot be seen.
"""

from datasource.connector.source import PylogDataSource
from datasource.session import lag, lag_of_group, register, spark_session

__all__ = ["PylogDataSource", "lag", "lag_of_group", "register", "spark_session"]
