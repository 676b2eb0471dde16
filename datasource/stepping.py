"""SteppedStream: a streaming query that tests run micro-batch by micro-batch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from logstore.errors import InvalidRequestError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

STEP_TIMEOUT_S = 120


class SteppedStream:
    """A query whose `step` runs one micro-batch. Each step starts the query, from its checkpoint, and ends it.

    ::

        stream = SteppedStream(counts, "checkpoint", output_mode="update")
        store.append("orders", [{"value": "tea"}])
        assert stream.step() == [Row(value="tea", count=1)]

    `query` is a streaming DataFrame, whose rows the steps return, or a DataStreamWriter, which writes to its sink, with
    a checkpointLocation of its own (`datasource.upsert` returns one). The session is a classic one: Spark Connect runs
    foreachBatch elsewhere.
    """

    def __init__(
        self,
        query: DataFrame | DataStreamWriter,
        checkpoint: str | os.PathLike[str] | None = None,
        *,
        output_mode: str = "append",
    ) -> None:
        from pyspark.sql import DataFrame

        self.last_progress: StreamingQueryProgress | None = None
        self._rows: list[Row] = []
        self._id: str | None = None
        if not isinstance(query, DataFrame):
            self._writer = query
            return
        if checkpoint is None:
            raise InvalidRequestError("a DataFrame needs a checkpoint: name a directory")
        writer = query.writeStream.outputMode(output_mode).option("checkpointLocation", os.fspath(checkpoint))
        self._writer = writer.foreachBatch(self._take)

    def _take(self, frame: DataFrame, number: int) -> None:
        self._rows = frame.collect()

    def step(self, *, timeout_s: int = STEP_TIMEOUT_S) -> list[Row]:
        """Run one micro-batch over all records that are there, whatever maxOffsetsPerTrigger says; return its rows.

        Without new records nothing runs, and there are no rows; `last_progress` is that of the last micro-batch. A
        batch that was planned but not committed runs again, as it does after a crash.

        Raises: StreamingQueryException: the query failed; TimeoutError: the batch was not over in time;
        InvalidRequestError: the writer has no checkpointLocation, so that each step would begin anew.
        """
        self._rows = []
        query = self._writer.trigger(once=True).start()
        try:
            if not query.awaitTermination(timeout_s):
                raise TimeoutError(f"the micro-batch was not over within {timeout_s} s: {query.status}")
        finally:
            query.stop()
        self._check_id(query)
        for progress in query.recentProgress:
            if progress.numInputRows:
                self.last_progress = progress
        return self._rows

    def _check_id(self, query: StreamingQuery) -> None:
        if self._id not in (None, query.id):
            raise InvalidRequestError(
                "each step began anew, since the writer has no checkpointLocation: "
                'add .option("checkpointLocation", "/a/directory")'
            )
        self._id = query.id
