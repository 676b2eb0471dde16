"""PylogDataSource: `spark.read.format("pylog")` and its three relatives."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from datasource.connector.options import check_read, read_options, selected_columns, write_options
from datasource.connector.reader import BatchReader, PushingBatchReader, RefusedStreamReader, StreamReader
from datasource.connector.writer import BatchWriter, StreamWriter
from datasource.schema import check_read_schema, spark_schema
from logstore import PylogError

# Loaded by Spark only where the switch spark.sql.python.filterPushdown.enabled is on. With the switch off, a
# reader that could take filters is an error.
#
# With the switch on, Spark 4.2 keeps one plan per DataFrame or view: `f.count()` after `f.where("partition =
# 0").count()` counts partition 0, and so does the other side of a self-join. So filters are taken only on
# option `pushdown`.
_PUSHDOWN = "pyspark.sql.worker.data_source_pushdown_filters"


class PylogDataSource(DataSource):
    """Topics as tables: batch and stream, read and write, with the options of Spark's Kafka connector.

    ::

        spark.read.format("pylog").option("path", d).option("subscribe", "orders").load()
        df.write.format("pylog").option("path", d).option("topic", "orders").mode("append").save()

    It is recreated in many processes, so it holds the options and nothing else.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        """The name in `format(...)` and `USING`."""
        return "pylog"

    def schema(self) -> StructType:
        """The columns of a read, without looking at any file: `columns` and `includeHeaders` decide.

        Spark asks at `load()`, for a batch and a stream alike, so wrong options are refused here. It does not
        ask when the user gives a schema; then they are refused by the reader.
        """
        check_read(self.options)
        return spark_schema(selected_columns(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        """A batch read of (a subset of) our columns."""
        check_read_schema(schema)
        options = read_options(self.options, streaming=False)
        kind = PushingBatchReader if options.pushdown and _PUSHDOWN in sys.modules else BatchReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream of (a subset of) our columns; what is wrong with it is said when it is first used.

        If this method raised, Spark 4.2 would stop a reader that it does not have, and end the query with that
        error of its own.
        """
        try:
            check_read_schema(schema)
            return StreamReader(read_options(self.options, streaming=True), schema)
        except PylogError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A batch write; everything that can be wrong with columns and options is found here."""
        return BatchWriter(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """A stream write, checked in the same way."""
        return StreamWriter(write_options(self.options, streaming=True), schema, overwrite=overwrite)
