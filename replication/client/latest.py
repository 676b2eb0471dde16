"""A partition of a cluster as a table of the latest values of its keys: `logstore.records.latest`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from logstore.errors import InvalidRequestError
from logstore.records.latest import LatestValues

if TYPE_CHECKING:
    import pyarrow as pa


class _Sample(Protocol):
    def bytes_of(self, offsets: int) -> int: ...
    def offsets_of(self, size_bytes: int) -> int | None: ...


class _Client(Protocol):
    """The parts of a `KafkaClient` that are used here."""

    @property
    def read(self) -> Callable[..., Iterator[pa.RecordBatch]]: ...
    @property
    def sample(self) -> Callable[..., _Sample]: ...


@dataclass(frozen=True)
class ClientPartition:
    """`logstore.records.latest.Partition`, measured by its first batches; `options`: of `KafkaClient.read`."""

    client: _Client
    topic: str
    partition: int
    options: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def read(self, start: int, end: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return self.client.read(self.topic, self.partition, start, end, columns=columns, **self.options)

    def size_bytes(self, start: int, end: int) -> int:
        return self._sample(start, end).bytes_of(end - start)

    def offset_before_bytes(self, start: int, end: int, max_bytes: int) -> int:
        count = self._sample(start, end).offsets_of(max_bytes)
        return start if count is None else max(start, end - max(1, count))

    def _sample(self, start: int, end: int) -> _Sample:
        return self.client.sample(self.topic, self.partition, start, end)

    def latest(self, start: int, end: int, columns: Sequence[str], first: int) -> Iterator[pa.RecordBatch]:
        """Yield the last record of each key before `end`.

        Raises: InvalidRequestError: `start` is behind the `first` record, so that values would be hidden; as `read`.
        """
        if start > first:
            raise InvalidRequestError(
                f"start={start}: view='latest' reads from the beginning, {first}; 'end' bounds it"
            )
        yield from LatestValues(self).rows(start, end, columns)
