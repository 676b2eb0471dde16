"""TopicTail: batches of a topic as they are appended, of some partitions or of all, new ones included."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal, SupportsIndex

from logstore.config import Isolation
from logstore.env import Clock
from logstore.errors import InvalidRequestError, StaleLogError, UnreadableBatchError
from logstore.log.isolation import Outcomes, end_of
from logstore.log.log import Log
from logstore.records.times import Time
from logstore.store.log_manager import LogManager
from logstore.store.reading import OffsetRange, ReadingOn, offset_at, read_isolated, with_partition

if TYPE_CHECKING:
    import pyarrow as pa

Position = Time | Literal["earliest", "latest"]


class TopicTail:
    """One reader of a topic. It knows where it starts when it is made."""

    def __init__(
        self,
        logs: LogManager,
        outcomes: Callable[[], Outcomes],
        topic: str,
        partitions: Sequence[int] | None,
        start: Position | Mapping[int, Time],
        isolation: Isolation,
    ) -> None:
        self._logs, self._outcomes, self._topic = logs, outcomes, topic
        self._isolation = isolation
        info = logs.topic(topic)
        self._topic_id = info.topic_id
        self._takes_new = partitions is None
        chosen = range(info.partitions) if partitions is None else partitions
        self._positions = self._resolve(start, {p: logs.log(topic, p) for p in chosen})

    def _resolve(self, start: Position | Mapping[int, Time], chosen: Mapping[int, Log]) -> dict[int, int]:
        if isinstance(start, Mapping):
            for partition in start.keys() - chosen.keys():
                self._logs.log(self._topic, partition)  # one that is not there is a mistake
            return {p: self._at(log, start[p]) if p in start else self._end(log) for p, log in chosen.items()}
        if start == "latest":
            return {p: self._end(log) for p, log in chosen.items()}
        if start == "earliest":
            return {p: log.log_start_offset for p, log in chosen.items()}
        if isinstance(start, SupportsIndex | datetime):
            return {p: self._at(log, start) for p, log in chosen.items()}
        raise InvalidRequestError(
            f"start={start!r}: 'earliest', 'latest', a datetime, an offset, or one of these per partition"
        )

    def batches(self, clock: Clock, *, poll_ms: int, timeout_ms: int | None) -> Iterator[pa.RecordBatch]:
        """Yield records as they are appended, with a first column `partition`, until nothing came for `timeout_ms`."""
        return ReadingOn(lambda: self._batches(clock, poll_ms, timeout_ms))

    def _batches(self, clock: Clock, poll_ms: int, timeout_ms: int | None) -> Iterator[pa.RecordBatch]:
        quiet_since = clock.monotonic_ms()
        while True:
            found = False
            for partition in sorted(self._positions):
                for batch in self._new_in(partition):
                    found = True
                    yield with_partition(batch, partition)
            if self._takes_new:
                for partition in range(len(self._positions), self._logs.topic(self._topic).partitions):
                    self._positions[partition] = 0
            if found:
                quiet_since = clock.monotonic_ms()
            elif timeout_ms is not None and clock.monotonic_ms() - quiet_since >= timeout_ms:
                return
            else:
                clock.sleep_ms(poll_ms)

    def _new_in(self, partition: int) -> Iterator[pa.RecordBatch]:
        log, position = self._logs.log(self._topic, partition), self._positions[partition]
        if log.topic_id != self._topic_id:
            raise StaleLogError(f"topic {self._topic!r} was deleted and recreated; follow it from its start")
        outcomes = self._outcomes()
        begin, end = max(position, log.log_start_offset), end_of(log, self._isolation, outcomes)
        try:
            yield from read_isolated(log, begin, end, None, self._isolation, outcomes)
        except UnreadableBatchError as error:
            self._positions[partition] = error.next_offset
            raise
        self._positions[partition] = max(end, position)

    def _at(self, log: Log, place: Time) -> int:
        return offset_at(log, place, OffsetRange(log.log_start_offset, self._end(log)), "start")

    def _end(self, log: Log) -> int:
        return end_of(log, self._isolation, self._outcomes())
