"""Whether the leader has what a damaged replica would cut: read from it, batch by batch, and checked here.

It is read as Kafka's debugging consumer reads: up to the end of the leader's log, and without a word that would let
the leader take this replica for a follower. A MiB or so is held at a time, and read slowly.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple
from uuid import UUID

from logstore.records.batch import InvalidBatchError, batches, check
from replication.errors import ErrorCode, ProtocolError
from replication.model.cluster import BrokerId, TopicPartition
from replication.model.times import SpecialTime, to_wire
from replication.network.client import Client
from replication.protocol.apis import ApiKey
from replication.protocol.messages import EXAMINER, FetchPartition, FetchRequest, FetchTopic, PartitionFetched
from replication.protocol.wire import Buffer

IDLE_TIMES = 9  # so many times as long as a read took there is a pause: who leads has others to serve


class NotShownError(Exception): ...


class Wanted(NamedTuple):
    """From `start` on, everything; up to `end`, or (None: nobody here can tell) to the end of the leader's log."""

    tp: TopicPartition
    topic_id: UUID | None
    leader_epoch: int
    start: int
    end: int | None
    may_have_gaps: bool


async def read(client: Client, me: BrokerId, wanted: Wanted, max_bytes: int) -> None:
    """Return once the leader has shown all of it, in this leader epoch, as far as its log goes.

    Raises: NotShownError: it did not answer, or not soundly.
    """
    clock = asyncio.get_running_loop()
    try:
        end = await _end(client, me, wanted)
        offset = wanted.start
        while offset < end:
            since_s = clock.time()
            row = await _ask(client, wanted, offset, max_bytes)
            if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and row.log_start_offset > offset:
                offset = row.log_start_offset  # what was here before that, the leader retains no more
                continue
            _check_code(row, offset)
            behind = await asyncio.to_thread(_check, row.records, offset, wanted.may_have_gaps)
            if behind == offset:
                if not wanted.may_have_gaps:
                    raise NotShownError(f"nothing is at offset {offset}, and the log ends at {end}")
                return
            offset = behind
            if offset < end:
                await asyncio.sleep(IDLE_TIMES * (clock.time() - since_s))
    except (OSError, TimeoutError, ProtocolError) as error:
        raise NotShownError(f"no answer: {error}") from error


async def _end(client: Client, me: BrokerId, wanted: Wanted) -> int:
    epoch, tp = wanted.leader_epoch, wanted.tp
    asked = {"partition_index": tp.partition, "current_leader_epoch": epoch, "timestamp": to_wire(SpecialTime.LATEST)}
    topics = [{"name": tp.topic, "partitions": [asked]}]
    answer: Any = await client.call(ApiKey.LIST_OFFSETS, {"replica_id": me, "isolation_level": 0, "topics": topics})
    ((row,),) = (topic.partitions for topic in answer.topics)
    if row.error_code:
        raise NotShownError(f"where its log ends is answered {ErrorCode(row.error_code).name}")
    end = int(row.offset)
    return end if wanted.end is None else min(end, wanted.end)


async def fetch(client: Client, wanted: Wanted, offset: int, max_bytes: int) -> Buffer:
    """Batches from the one that holds this offset on, as that replica has them. Raises: NotShownError."""
    try:
        row = await _ask(client, wanted, offset, max_bytes)
    except (OSError, TimeoutError, ProtocolError) as error:
        raise NotShownError(f"no answer: {error}") from error
    _check_code(row, offset)
    if not row.records:
        raise NotShownError(f"nothing is at offset {offset}")
    return row.records


def _check_code(row: PartitionFetched, offset: int) -> None:
    if row.error_code:
        raise NotShownError(f"offset {offset} is answered {ErrorCode(row.error_code).name}")


async def _ask(client: Client, wanted: Wanted, offset: int, max_bytes: int) -> PartitionFetched:
    asked = FetchPartition(wanted.tp.partition, offset, max_bytes, wanted.leader_epoch)
    topic = FetchTopic(wanted.tp.topic, wanted.topic_id, (asked,))
    request = FetchRequest(0, 0, (topic,), max_bytes=max_bytes, replica_id=EXAMINER)
    answer: Any = await client.call(ApiKey.FETCH, request)
    ((row,),) = (topic.partitions for topic in answer.topics)
    assert isinstance(row, PartitionFetched)
    return row


def _check(records: Buffer, offset: int, may_have_gaps: bool) -> int:
    """Where the batches end, which begin at this offset; the offset itself, if there are none."""
    begin = offset
    try:
        for position, batch in batches(records):
            check(records, position, batch)
            is_first = offset == begin  # it may begin before what was asked for
            is_next = batch.base_offset <= offset < batch.next_offset if is_first else batch.base_offset == offset
            if not is_next and not (may_have_gaps and batch.base_offset > offset):
                raise NotShownError(f"at offset {offset} there is a batch of {batch.base_offset}")
            offset = batch.next_offset
    except InvalidBatchError as error:
        raise NotShownError(f"behind offset {offset} is what was not written: {error.reason}") from error
    return offset
