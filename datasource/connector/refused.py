"""A stream that is refused: Spark 4.2 would hide the error of a source that gives it no reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from datasource.connector.one_line import one_line
from logstore.errors import PylogError

if TYPE_CHECKING:
    import pyarrow as pa


class RefusedStreamReader(DataSourceStreamReader):
    """Raises what is wrong with the query, whichever method Spark calls first."""

    def __init__(self, error: PylogError) -> None:
        self._error = error

    @one_line
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        raise self._error

    @one_line
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Raise the error. With this signature Spark asks for no limit first."""
        raise self._error

    @one_line
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the error. Spark calls this first when a query resumes in the middle of a batch."""
        raise self._error

    @one_line
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error
