"""Topics of pylog as tables of Spark: batch and stream, read and write.

::

    from datasource import spark_session

    spark = spark_session()
    spark.read.format("pylog").option("path", "data").option("subscribe", "orders").load()

Spark finds the format by itself through the package `pyspark_pylog`; `register(spark)` makes it known where
that package cannot be seen.
"""

from datasource.session import lag, register, spark_session
from datasource.source import PylogDataSource

__all__ = ["PylogDataSource", "lag", "register", "spark_session"]
