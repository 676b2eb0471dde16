"""A member of a group whose records are rows of typed columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from replication.client.blocking import Consumer, Run
from replication.client.client_loop import End
from replication.client.consumer import AsyncConsumer

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.schemas.typed import TypedRecords


class TypedConsumer(Consumer):
    """A `Consumer` that polls typed rows; `records_of` says what those of a topic are, and is asked once a topic."""

    def __init__(self, wrapped: AsyncConsumer, run: Run, end: End, records_of: Callable[[str], TypedRecords]) -> None:
        super().__init__(wrapped, run, end)
        self._records_of = records_of
        self._records: dict[str, TypedRecords] = {}

    def poll(self, timeout_ms: int = 1000) -> pa.RecordBatch | None:
        """Return the next records of one partition as rows; None: there were none in time.

        Raises: as `AsyncConsumer.poll`; MisfitError, by mode FAILFAST: the next poll goes on behind these records.
        """
        found = super().poll(timeout_ms)
        if found is None:
            return None
        topic, partition = found.column("topic")[0].as_py(), found.column("partition")[0].as_py()
        if topic not in self._records:
            self._records[topic] = self._records_of(topic)
        return self._records[topic].decode(found, topic, partition).rows
