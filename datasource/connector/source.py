"""PylogDataSource: `spark.read.format("pylog")` and its three relatives."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from datasource.connector import sail
from datasource.connector.garbage import exempt_loaded
from datasource.connector.one_line import one_line
from datasource.connector.options import check_read, read_options, selected_columns, write_options
from datasource.connector.server_paths import check_paths
from datasource.connector.typed_options import is_typed
from datasource.schema import check_read_schema, spark_schema
from logstore import InvalidRequestError, PylogError

if TYPE_CHECKING:
    import pyarrow as pa

    from datasource.connector.options import ReadOptions
    from datasource.connector.reader import BatchReader
    from datasource.connector.writer import BatchWriter, StreamWriter

# Spark loads this only where spark.sql.python.filterPushdown.enabled is on; with it off, a reader that could take
# filters is an error. With it on, Spark 4.2 keeps one plan per DataFrame or view: `f.count()` after
# `f.where("partition = 0").count()` counts partition 0. So filters are taken only with the option `pushdown`.
_PUSHDOWN = "pyspark.sql.worker.data_source_pushdown_filters"


class PylogDataSource(DataSource):
    """Topics as tables: batch and stream, read and write, with the options of Spark's Kafka connector.

    ::

        spark.read.format("pylog").option("path", d).option("subscribe", "orders").load()
        df.write.format("pylog").option("path", d).option("topic", "orders").mode("append").save()

    It is recreated in many processes, so it holds the options and nothing else, and loads what reads and writes only
    where Spark asks for it.
    """

    _of_sail = False

    @one_line
    def __init__(self, options: MutableMapping[str, str]) -> None:
        if sail.in_sail() and not self._of_sail:
            raise InvalidRequestError(sail.UNKNOWN)
        check_paths(options, os.environ)
        self.options = options

    @classmethod
    def name(cls) -> str:
        return "pylog"

    @one_line
    def schema(self) -> StructType | pa.Schema:
        """The columns of a read, without looking at any file: `columns` and `includeHeaders` decide.

        Spark asks at `load()`, for a batch and a stream alike, so this refuses wrong options. If the user gives a
        schema Spark does not ask, and the reader refuses them.
        """
        check_read(self.options)
        if is_typed(self.options):
            from datasource.connector.typed import spark_columns

            columns = spark_columns(read_options(self.options, streaming=None))
        else:
            columns = spark_schema(selected_columns(self.options))
        exempt_loaded("schema")
        return sail.to_arrow(columns) if self._of_sail else columns

    @one_line
    def reader(self, schema: StructType | pa.Schema) -> BatchReader:
        """Return the reader of a batch, for any of our columns."""
        from datasource.connector.reader import BatchReader, PushingBatchReader

        options = _prepared(read_options(self.options, streaming=False), sail.to_spark(schema))
        kind = PushingBatchReader if options.pushdown and _PUSHDOWN in sys.modules else BatchReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a stream, for any of our columns. It raises what is wrong when it is first used.

        If this method raised, Spark 4.2 would try to stop a reader that it does not have, and report that instead.
        """
        from datasource.connector.reader import StreamReader
        from datasource.connector.refused import RefusedStreamReader

        try:
            return StreamReader(_prepared(read_options(self.options, streaming=True), schema), schema)
        except PylogError as error:
            return RefusedStreamReader(error)

    @one_line
    def writer(self, schema: StructType | pa.Schema, overwrite: bool) -> BatchWriter:
        """Return the writer of a batch, after checking columns and options."""
        from datasource.connector.writer import BatchWriter

        writer = BatchWriter(write_options(self.options), sail.to_spark(schema), overwrite=overwrite)
        exempt_loaded("writer")
        return writer

    @one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        from datasource.connector.checkpoints import refuse_reset
        from datasource.connector.writer import StreamWriter

        options = write_options(self.options, streaming=True)
        refuse_reset(options.checkpoint)
        return StreamWriter(options, schema, overwrite=overwrite)


def _prepared(options: ReadOptions, schema: StructType) -> ReadOptions:
    """Return the options of a read of these columns. Raises: InvalidRequestError, InvalidConfigError: there is none."""
    if options.typed is None:
        check_read_schema(schema)
        return options
    from datasource.connector.typed import prepared

    return prepared(options, schema)


class SailDataSource(PylogDataSource):
    """The same as `register` makes it known in Sail: for batches, since `sail.SailClient` refuses streams."""

    _of_sail = True
