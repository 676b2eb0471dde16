"""A range of a partition as a table of the latest values of its keys: `logstore.records.latest`, wherever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from datasource.topics.interface import PartitionRange, ReadableTopics

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Ranged:
    """`logstore.records.latest.Partition`: `records` gives the records of a part of the range."""

    topics: ReadableTopics
    range: PartitionRange
    records: Callable[[PartitionRange, Sequence[str]], Iterator[pa.RecordBatch]]

    def __str__(self) -> str:
        return str(self.range)

    def read(self, start: int, end: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return self.records(self._part(start, end), columns)

    def size_bytes(self, start: int, end: int) -> int:
        return self.topics.size_bytes(self._part(start, end))

    def offset_before_bytes(self, start: int, end: int, max_bytes: int) -> int:
        return self.topics.offset_before_bytes(self._part(start, end), max_bytes)

    def _part(self, start: int, end: int) -> PartitionRange:
        return replace(self.range, start=start, end=end)
