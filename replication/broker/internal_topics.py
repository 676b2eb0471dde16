"""InternalTopics: partitions of internal topics for the coordinators, which write to them and load them.

A load is complete once everything from before this broker's term is read and committed. Until then nobody is answered:
consumers would start where they were long ago, or at the start of the log, and transactions would be forgotten.

A record of an unknown type, of a later release, is kept and skipped. A value that cannot be read ends the load. The
last record of a key counts in a compacted topic, each record in another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from logstore.records import batch
from logstore.records.marker import ControlMarker, marker_of
from replication.coordinators.binary import UnknownRecordError
from replication.coordinators.terms import Loading, Written
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TopicPartition
from replication.network.steps import begin
from replication.protocol.messages import FetchPartition
from replication.replica.leader.appends import Append
from replication.replica.leader.leader import Leader
from replication.replica.leader.purgatory import PendingProduce
from replication.replica.leader.results import ALL_IN_SYNC, AppendResult
from replication.replica.manager import ReplicaManager

logger = logging.getLogger(__name__)

READ_BYTES = 1024 * 1024  # decoded in another thread, while the event loop turns
# The last record of each key; earlier ones are not even decoded. key -> (offset, value)
Latest: TypeAlias = dict[bytes, tuple[int, bytes | None]]
WAIT_MS = 500
RETRY_S = 0.5
DELETE_TIMEOUT_MS = 5000
DAMAGE_RETRY_S = 30.0


@dataclass(frozen=True, slots=True)
class _Leadership:
    """See `replication.coordinators.terms.Leadership`. Equal if they are the same role."""

    role: Leader

    @property
    def leader_epoch(self) -> int:
        return self.role.state.leader_epoch

    @property
    def is_over(self) -> bool:
        return self.role.is_over


@dataclass(slots=True)
class _Read:
    """The records read so far: committed ones, and by producer id those whose transaction has no marker yet."""

    into: Loading | None = None  # takes each committed record at once
    latest: Latest = field(default_factory=dict)
    open: dict[int, Latest] = field(default_factory=dict)


class InternalTopic:
    def __init__(self, topic: str, replicas: ReplicaManager, *, is_compacted: bool = True) -> None:
        self._topic = topic
        self._replicas = replicas
        self._is_compacted = is_compacted

    def leadership(self, partition: int) -> _Leadership | None:
        try:
            return _Leadership(self._replicas.leader(TopicPartition(self._topic, partition)))
        except KafkaError:
            return None

    def may_lead_soon(self, partition: int) -> bool:
        replicas = self._replicas
        is_changing = replicas.requests.changing.locked()
        return is_changing or replicas.metadata.leader(self._topic, partition) == replicas.config.broker_id

    def append(
        self,
        partition: int,
        records: bytearray,
        *,
        timeout_ms: int,
        producer: tuple[int, int] | None = None,
    ) -> Written | Awaitable[Written]:
        tp = TopicPartition(self._topic, partition)
        if producer is not None:
            try:
                is_in_transaction = self._replicas.leader(tp).writers.holds(*producer)
            except KafkaError as error:
                return Written(error.code)
            if not is_in_transaction:
                # A marker or another role came since it was asked: whoever comes again finds out which.
                return Written(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return begin(self._append(tp, records, timeout_ms))

    def append_batch(
        self, leadership: _Leadership, batch: bytearray, timeout_ms: int, on_written: Callable[[Written], None]
    ) -> Written | None:
        if len(batch) > leadership.role.replica.config.batch_bytes_max:
            return Written(ErrorCode.MESSAGE_TOO_LARGE)
        tp = leadership.role.replica.tp

        def wait(on_written: Callable[[Written], None]) -> PendingProduce:
            pending = PendingProduce((tp,))
            pending.then(lambda: on_written(_written(pending.results[tp])), timeout_ms)
            return pending

        append = Append(batch, ALL_IN_SYNC, wait, on_written, is_own=True)
        (result,) = leadership.role.append((append,))
        return None if result is None else _written(result)

    async def _append(self, tp: TopicPartition, records: bytearray, timeout_ms: int) -> Written:
        done = await self._replicas.append({tp: records}, acks=ALL_IN_SYNC, timeout_ms=timeout_ms, is_own=True)
        return _written(done[tp])

    async def load(self, leadership: _Leadership, into: Loading) -> bool:
        leader = leadership.role
        tp = leader.replica.tp
        read = _Read(None if self._is_compacted else into)
        position = leader.replica.start
        while not leader.is_over:
            # Asked before the fetch: if it holds, an empty answer means that everything is read.
            is_settled = leader.state.is_settled
            found = await self._replicas.fetch(
                {tp: FetchPartition(tp.partition, position, READ_BYTES, leader.state.leader_epoch)},
                max_wait_ms=0 if is_settled else WAIT_MS,
                min_bytes=1,
                max_bytes=READ_BYTES,
            )
            fetched = found[tp]
            if fetched.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
                position = leader.replica.start  # records were deleted
            elif fetched.error_code is not ErrorCode.NONE:
                logger.warning("tp=%s cannot be loaded yet: %s", tp, ErrorCode(fetched.error_code).name)
                await asyncio.sleep(RETRY_S)
            elif len(fetched.records):
                try:
                    position = await asyncio.to_thread(_take, read, fetched.records, position)
                except batch.InvalidBatchError as error:
                    # Going on without it would give consumers old offsets: give none until it is repaired.
                    logger.error("tp=%s cannot be loaded from offset %d on: %s", tp, position, error)
                    await asyncio.sleep(DAMAGE_RETRY_S)
                except UnknownRecordError as error:
                    return await self._stop(leader, error)
            elif is_settled:
                return await self._add_up(leader, read, into)
        return False

    async def _add_up(self, leader: Leader, read: _Read, into: Loading) -> bool:
        """Build `into` of what was read. False, once the leadership ends, if a record is there that nobody can read."""
        tp = leader.replica.tp
        try:
            await asyncio.to_thread(_add_up, read, into)
        except UnknownRecordError as error:
            return await self._stop(leader, error)
        for kind, count in into.unknown.items():
            logger.warning("tp=%s records=%d %s stay and are skipped: a later release wrote them", tp, count, kind)
        return True

    async def _stop(self, leader: Leader, error: UnknownRecordError) -> bool:
        """Return False once the leadership ends: to skip the record would be to take an older value for it, or none."""
        while not leader.is_over:
            tp = leader.replica.tp
            logger.error("tp=%s cannot be loaded: %s; let a broker of the release that wrote it lead", tp, error)
            await asyncio.sleep(DAMAGE_RETRY_S)
        return False

    async def delete_before(self, partition: int, offset: int) -> None:
        """Delete what is below the offset for good, here and at the followers."""
        tp = TopicPartition(self._topic, partition)
        deleted = await self._replicas.delete_records(tp, offset, timeout_ms=DELETE_TIMEOUT_MS)
        if deleted.error_code is not ErrorCode.NONE:
            logger.info("tp=%s records before %d are deleted later: %s", tp, offset, deleted.error_code.name)


def _written(result: AppendResult) -> Written:
    return Written(result.error_code, result.base_offset)


def _take(read: _Read, records: bytes | bytearray | memoryview, start: int) -> int:
    position = start
    for at, header in batch.batches(records):
        if header.is_control:
            _end(read, header.producer_id, marker_of(records, at))
        elif read.into is not None and not header.is_transactional:
            _apply_each(read.into, batch.records(records, at), start)
        else:
            into = read.open.setdefault(header.producer_id, {}) if header.is_transactional else read.latest
            for record in batch.records(records, at):
                if record.offset >= start:
                    into[record.key or b""] = record.offset, record.value
        position = header.next_offset
    return position


def _end(read: _Read, producer_id: int, marker: ControlMarker | None) -> None:
    """End a transaction. If a committed record has the same key, the record that is later in the log counts."""
    ended = read.open.pop(producer_id, {})
    if marker is not None and marker.kind == "COMMIT":
        for key, (offset, value) in ended.items():
            if key not in read.latest or read.latest[key][0] < offset:
                read.latest[key] = offset, value


def _add_up(read: _Read, into: Loading) -> None:
    """Apply in the order of the log, since several versions of a key name the same thing."""
    offset = -1
    try:
        for offset, key in sorted((offset, key) for key, (offset, _) in read.latest.items()):
            into.apply(offset, key, read.latest[key][1])
        for producer_id, latest in read.open.items():
            for key, (offset, value) in latest.items():
                into.apply_open(producer_id, offset, key, value)
    except UnknownRecordError as error:
        raise _unreadable(offset, error) from None


def _apply_each(into: Loading, records: Iterable[batch.Record], start: int) -> None:
    for record in records:
        try:
            if record.offset >= start:
                into.apply(record.offset, record.key or b"", record.value)
        except UnknownRecordError as error:
            raise _unreadable(record.offset, error) from None


def _unreadable(offset: int, error: UnknownRecordError) -> UnknownRecordError:
    return UnknownRecordError(f"the record at offset {offset} cannot be read ({error})")
