"""Offsets of a partition that this broker leads: by time, by leader epoch; and the start of its log, moved up.

Lookups that need the disk run in a reader thread. A failure is an error code in the answer.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from logstore.errors import InvalidRequestError, PylogError
from logstore.maintenance import retention
from replication.errors import ErrorCode, KafkaError, code_of
from replication.model.cluster import TopicPartition
from replication.model.times import AskedTime, SpecialTime
from replication.protocol.messages import Isolation
from replication.replica.leader.leader import Leader
from replication.replica.leader.results import DeletedRecords, EpochEnd, FoundOffset

Find: TypeAlias = Callable[[TopicPartition], Leader]  # Raises: KafkaError: this broker does not lead it

# Places in the remote storage of a Kafka (KIP-405): there is none here, and no offset, as in a Kafka without one.
_OF_REMOTE_STORAGE = (SpecialTime.LATEST_TIERED, SpecialTime.EARLIEST_PENDING_UPLOAD)


async def for_time(
    find: Find,
    tp: tuple[str, int],
    time: AskedTime,
    *,
    replica_id: int = -1,
    leader_epoch: int = -1,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> FoundOffset:
    """The first record that is not older, or the place that is asked for; ListOffsets.

    OFFSET_NOT_AVAILABLE while the true high watermark of this leader epoch is not known.
    """
    try:
        leader = find(TopicPartition(*tp))
    except KafkaError as failure:
        return FoundOffset(failure.code)
    error = leader.judge_epoch(leader_epoch)
    if error is not ErrorCode.NONE:
        return FoundOffset(error)
    if (start := _start_of(leader, time)) is not None:
        return start
    if leader.replica.ends_early:
        return FoundOffset(ErrorCode.KAFKA_STORAGE_ERROR)
    if replica_id < 0 and not leader.state.is_settled:
        return FoundOffset(ErrorCode.OFFSET_NOT_AVAILABLE)
    end = leader.state.log_end_offset if replica_id >= 0 else leader.high_watermark
    if time is SpecialTime.LATEST and not (isolation is Isolation.READ_COMMITTED and leader.replica.has_transactions):
        return FoundOffset(ErrorCode.NONE, -1, end, leader.state.leader_epoch)
    try:
        return await leader.replica.host.disk.read(partial(_look_up, leader, time, end, isolation))
    except (PylogError, OSError) as failure:
        leader.replica.suspect(failure)
        return FoundOffset(code_of(failure))


def _start_of(leader: Leader, time: AskedTime) -> FoundOffset | None:
    """Return a place that is known at once, whatever the high watermark is; None: it is another place."""
    if time in _OF_REMOTE_STORAGE:
        return FoundOffset(ErrorCode.NONE)
    if time in (SpecialTime.EARLIEST, SpecialTime.EARLIEST_LOCAL):
        return _found(leader, leader.replica.start if time is SpecialTime.EARLIEST else leader.replica.local_start)
    return None


def _look_up(leader: Leader, time: AskedTime, end: int, isolation: Isolation) -> FoundOffset:
    log = leader.replica.log
    if isolation is Isolation.READ_COMMITTED:
        end = min(end, leader.replica.stable_end())
    if time is SpecialTime.LATEST:
        return FoundOffset(ErrorCode.NONE, -1, end, leader.state.leader_epoch)
    # For MAX_TIMESTAMP that of a transaction's marker counts, as in Kafka.
    found = log.reader.newest() if isinstance(time, SpecialTime) else log.reader.offset_for_time(time)
    if found is None or found.offset >= end:
        return FoundOffset(ErrorCode.NONE)
    return _found(leader, found.offset, found.timestamp_ms)


def _found(leader: Leader, offset: int, timestamp_ms: int = -1) -> FoundOffset:
    starts: Any = leader.replica.log.epochs.starts
    number = bisect.bisect_right(starts, offset, key=lambda start: start.start_offset)
    epoch = starts[number - 1].epoch if number else -1
    return FoundOffset(ErrorCode.NONE, timestamp_ms, offset, epoch)


def end_of_epoch(
    find: Find, tp: tuple[str, int], epoch: int, *, replica_id: int = -1, leader_epoch: int = -1
) -> EpochEnd:
    """The largest epoch that is not above `epoch`, and where it ends; OffsetForLeaderEpoch.

    If all are newer, a follower gets the log's begin. For an epoch that is yet to come a client gets nothing,
    and a follower, which may be ahead, the end of the log.
    """
    try:
        leader = find(TopicPartition(*tp))
    except KafkaError as failure:
        return EpochEnd(failure.code)
    error = leader.judge_epoch(leader_epoch)
    if error is not ErrorCode.NONE:
        return EpochEnd(error)
    if leader.replica.ends_early:
        return EpochEnd(ErrorCode.KAFKA_STORAGE_ERROR)
    if replica_id < 0 and epoch >= leader.state.leader_epoch:
        own = leader.state.leader_epoch, leader.state.log_end_offset
        return EpochEnd(ErrorCode.NONE, *own) if epoch == own[0] else EpochEnd(ErrorCode.NONE)
    found = leader.replica.log.epochs.end_offset(epoch, leader.state.log_end_offset)
    if found is None:
        return EpochEnd(ErrorCode.NONE, -1, leader.replica.start if replica_id >= 0 else -1)
    return EpochEnd(ErrorCode.NONE, found.epoch, found.start_offset)


async def delete_records(find: Find, tp: tuple[str, int], offset: int, *, timeout_ms: int) -> DeletedRecords:
    """Delete what is below `offset` (-1: all that is committed) for good, here and at the followers in sync.

    Answered when they have done it, too, or `timeout_ms` is over.
    """
    try:
        leader = find(TopicPartition(*tp))
    except KafkaError as error:
        return DeletedRecords(error.code)
    replica, high_watermark = leader.replica, leader.high_watermark
    if offset == -1:
        offset = high_watermark
    if offset > high_watermark:
        return DeletedRecords(ErrorCode.OFFSET_OUT_OF_RANGE)
    try:
        await replica.call(partial(_advance_start, leader, offset))
    except InvalidRequestError as failure:
        code = code_of(failure)
        return DeletedRecords(ErrorCode.POLICY_VIOLATION if code is ErrorCode.INVALID_REQUEST else code)
    except (PylogError, OSError) as failure:
        return DeletedRecords(code_of(failure))
    replica.wake_followers()  # they hear of it now, and not when they ask next
    deadline_s = replica.host.disk.loop.time() + timeout_ms / 1000
    while low_watermark(leader) < offset and not leader.is_over:
        left_s = deadline_s - replica.host.disk.loop.time()
        coming = leader.starts.next()
        try:
            await asyncio.wait_for(coming, left_s)
        except TimeoutError:
            return DeletedRecords(ErrorCode.REQUEST_TIMED_OUT)
    if leader.is_over:
        return DeletedRecords(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return DeletedRecords(ErrorCode.NONE, low_watermark(leader))


def low_watermark(leader: Leader) -> int:
    """Nothing below is at any replica in sync."""
    followers = [broker for broker in leader.state.isr if broker != leader.state.broker]
    return leader.starts.low_watermark(leader.replica.start, followers)


def _advance_start(leader: Leader, offset: int) -> None:
    log = leader.replica.log
    log.advance_start(retention.deletable_to(log, offset))
