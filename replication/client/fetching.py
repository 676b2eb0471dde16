"""Offsets of partitions, and the batches of a range, as bytes.

Laws: what is returned begins with the batch that holds the offset asked for, and has no gap but those that
compaction left; a reader of committed records never gets one of an aborted transaction. A leader change is waited
for; an offset that the log does not hold (any more) is raised, never skipped. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from logstore.errors import CorruptLogError, OffsetOutOfRangeError, PylogError
from logstore.records import batch as batches
from logstore.store.description import as_ms
from replication.client.attempts import LOST, may_pass
from replication.client.cluster import Cluster, Partitions
from replication.client.leader_requests import call_leaders
from replication.client.metadata import NO_EPOCH, NO_LEADER, Extent
from replication.errors import ErrorCode, KafkaError, ProtocolError, code_in, error_of, raise_for_code
from replication.model.cluster import TopicPartition, by_partition, by_topic, rows_by_topic, topic_uuid
from replication.model.times import AskedTime, SpecialTime, TimeMs, to_wire
from replication.network.client import Client
from replication.protocol.apis import ApiKey
from replication.protocol.messages import (
    Aborted,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    Isolation,
    PartitionFetched,
)

EARLIEST, LATEST = SpecialTime.EARLIEST, SpecialTime.LATEST
FIRST_FETCH_BYTES, FETCH_BYTES = 1024 * 1024, 4 * 1024 * 1024
FETCH_BYTES_MAX = 1024 * 1024 * 1024  # of one batch; more than any broker takes
FETCH_WAIT_MS = 500
SMALL_BYTES = 64 * 1024
LATE_MS = 500  # of an answer that should have come
NEAR_MS = 3_000  # a near replica that is silent so long is given up: its leader serves
TOPIC_IDS_FROM = 13  # Fetch: topics are named by ids


class FoundOffset(NamedTuple):
    """An offset, and the timestamp of its record; -1 and -1 if there is none.

    For LATEST `leader_epoch` is that of the leader: no record below has a later one. -1: before Kafka 2.1.
    """

    offset: int
    timestamp_ms: int = -1
    leader_epoch: int = -1


class TruncatedError(PylogError):
    """The log was cut below what its leader once called committed, and may hold other records there by now."""


class Fetched(NamedTuple):
    """Whole batches as stored. `next_offset` is behind the last one, and behind those that were left out.

    `leader_epoch` is that of the last one.
    """

    parts: tuple[memoryview, ...]
    next_offset: int
    leader_epoch: int = NO_EPOCH


async def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, AskedTime | datetime],
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> dict[TopicPartition, FoundOffset]:
    """The offset of each partition at EARLIEST, at LATEST, or of the first record at or after a moment.

    LATEST is the high watermark; for READ_COMMITTED the last stable offset. A datetime needs a time zone.

    Raises: UnknownTopicError, UnknownPartitionError, UnreachableError, KafkaError.
    """
    times = {tp: TimeMs(as_ms(time, str(tp))) if isinstance(time, datetime) else time for tp, time in wanted.items()}
    return await call_leaders(cluster, times, partial(ask_offsets, isolation=isolation), "the offset")


async def ask_offsets(
    broker: Client, times: Partitions, *, isolation: Isolation = Isolation.READ_UNCOMMITTED
) -> dict[TopicPartition, FoundOffset | ErrorCode]:
    """Ask one leader, once, for the offsets at these times or places. Raises: as `Client.call`."""
    rows = {tp: {"partition_index": tp.partition, "timestamp": to_wire(time)} for tp, time in times.items()}
    request = {"replica_id": -1, "isolation_level": int(isolation), "topics": by_topic(rows, "partitions")}
    answer = await broker.call(ApiKey.LIST_OFFSETS, request)
    return {tp: _found_offset(row) for tp, row in by_partition(answer.topics)}


def _found_offset(row: Any) -> FoundOffset | ErrorCode:
    return code_in(row) or FoundOffset(row.offset, row.timestamp, getattr(row, "leader_epoch", -1))


async def epoch_ends(cluster: Cluster, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Where the records of these leader epochs and of earlier ones end in the logs of the leaders; -1: there are none.

    An offset beyond that, which was committed in such an epoch, was cut by an unclean election.

    Raises: as `list_offsets`; UnsupportedVersionError: a broker before Kafka 2.1, which names no epochs either.
    """
    return await call_leaders(cluster, epochs, partial(ask_epoch_ends, cluster), "the end of a leader epoch")


async def ask_epoch_ends(cluster: Cluster, broker: Client, epochs: Partitions) -> dict[TopicPartition, int | ErrorCode]:
    """Ask one leader, once, for the ends of leader epochs. Raises: as `Client.call`."""
    rows = {}
    for tp, epoch in epochs.items():
        known = (await cluster.leader(tp)).epoch
        rows[tp] = {"partition": tp.partition, "current_leader_epoch": known, "leader_epoch": epoch}
    topics = [{"topic": name, "partitions": found} for name, found in rows_by_topic(rows.items()).items()]
    request = {"replica_id": -1, "topics": topics}
    answer = await broker.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, request)
    return {
        TopicPartition(topic.topic, p.partition): code_in(p) or p.end_offset
        for topic in answer.topics
        for p in topic.partitions
    }


async def fetch(
    cluster: Cluster,
    tp: TopicPartition,
    offset: int,
    end: int,
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    max_bytes: int = FETCH_BYTES,
) -> Fetched:
    """The batches from the one that holds `offset`, about `max_bytes` of them, none that begins at `end` or later.

    `end` must be at most what `list_offsets` gave as LATEST with this isolation. No parts, and `next_offset` = `end`:
    compaction left nothing of the range.

    Raises: OffsetOutOfRangeError: the log does not hold the offset (any more). CorruptLogError: what came is damaged.
    KafkaError: the leader refuses, or there was none until the deadline. UnknownTopicError, UnreachableError.
    """
    backoff, empty = cluster.backoff(), 0
    while True:
        answer = await _answer(cluster, tp, offset, isolation, max_bytes)
        if isinstance(answer, str):
            refused = answer
        elif answer.preferred_read_replica >= 0:
            continue
        elif len(answer.records):
            if (found := whole(answer, tp, offset, end, isolation)) is not None:
                return found
            max_bytes = min(2 * max_bytes, FETCH_BYTES_MAX)  # it came with a part of one batch only
            continue
        elif _readable_end(answer, isolation) >= end:
            empty += 1
            if empty > 1:  # twice, so that no answer cut short by its own bounds is taken for the end
                return Fetched((), end)
            continue
        else:
            refused = f"the leader's log is readable up to {_readable_end(answer, isolation)} so far"
        cluster.forget([tp.topic])
        if backoff.is_over:
            raise backoff.failure(f"fetch of {tp} at offset {offset}", refused)
        await backoff.wait()


async def fetch_of_epoch(
    leader_epoch: int, cluster: Cluster, tp: TopicPartition, offset: int, end: int, **bounds: Any
) -> Fetched:
    """Fetch as `fetch` does; `leader_epoch` is the epoch of the leader that named `end`, NO_EPOCH if unknown.

    Raises: as `fetch`; TruncatedError: there are records of a later epoch below `end`.
    """
    found = await fetch(cluster, tp, offset, end, **bounds)
    if leader_epoch != NO_EPOCH and (await cluster.leader(tp)).epoch != leader_epoch:
        for header in (header for part in found.parts for _, header in batches.batches(part)):
            if header.leader_epoch > leader_epoch:
                raise TruncatedError(
                    f"{tp} holds records of leader epoch {header.leader_epoch} from offset {header.base_offset} on, "
                    f"where it held others in epoch {leader_epoch}: it was cut by an unclean leader election"
                )
    return found


async def _answer(
    cluster: Cluster, tp: TopicPartition, offset: int, isolation: Isolation, max_bytes: int
) -> PartitionFetched | str:
    """The leader's answer, or the reason to ask again. Raises: as `fetch`."""
    try:
        leader = await cluster.leader(tp)
        if leader.broker == NO_LEADER:
            return "no leader"
        broker = cluster.read_replicas.of(tp, leader)
        wanted = {tp: FetchPartition(tp.partition, offset, max_bytes, leader.epoch)}
        answer = row_of(await ask_replica(cluster, broker, wanted, isolation, max_bytes), tp, broker)
    except LOST as error:
        return str(error)
    except KafkaError as error:
        if may_pass(error):
            return str(error)
        raise
    if not answer.error_code:
        return answer
    refusal = error_of(answer.error_code, f"fetch of {tp} at offset {offset}")
    if refusal.code is ErrorCode.OFFSET_OUT_OF_RANGE:
        raise await out_of_range(cluster, tp, offset)
    if not refusal.code.is_retriable:
        raise refusal
    return str(refusal)


def _readable_end(answer: PartitionFetched, isolation: Isolation) -> int:
    return answer.last_stable_offset if isolation is Isolation.READ_COMMITTED else answer.high_watermark


async def ask_replica(
    cluster: Cluster,
    broker: int,
    share: Mapping[TopicPartition, FetchPartition],
    isolation: Isolation,
    max_bytes: int,
) -> dict[TopicPartition, PartitionFetched]:
    """Fetch from one broker, the leader of these partitions or a nearest replica.

    If a nearest replica fails, or does not have the offset, the next fetch goes to the leader.

    Raises: as `Cluster.call_leader`; KafkaError: the whole request was refused; UnknownTopicError.
    """
    leaders = {tp: await cluster.leader(tp) for tp in share}
    near = [tp for tp, leader in leaders.items() if leader.broker != broker]
    try:
        answers = await _ask_broker(cluster, broker, share, isolation, max_bytes, is_near=bool(near))
    except (*LOST, KafkaError):
        cluster.read_replicas.failed(near)
        raise
    for tp, answer in answers.items():
        if answer.preferred_read_replica >= 0:
            cluster.read_replicas.note(tp, leaders[tp], answer.preferred_read_replica)
        elif tp in near and answer.error_code not in (ErrorCode.NONE, ErrorCode.OFFSET_NOT_AVAILABLE):
            cluster.read_replicas.failed([tp])
            answers[tp] = answer._replace(error_code=ErrorCode.OFFSET_NOT_AVAILABLE)  # that is the leader's to say
    return answers


async def _ask_broker(
    cluster: Cluster,
    broker: int,
    share: Mapping[TopicPartition, FetchPartition],
    isolation: Isolation,
    max_bytes: int,
    *,
    is_near: bool,
) -> dict[TopicPartition, PartitionFetched]:
    request, names, version_max = await _request(cluster, share, isolation, max_bytes, FETCH_WAIT_MS)
    request = request._replace(rack=cluster.read_replicas.rack(share))
    bounds: dict[str, Any] = {"version_max": version_max}
    if is_near:
        bounds["timeout_ms"] = NEAR_MS
    answer = await cluster.call_leader(broker, {tp.topic for tp in share}, ApiKey.FETCH, request, **bounds)
    return rows_fetched(answer, names, broker)


async def _request(
    cluster: Cluster,
    share: Mapping[TopicPartition, FetchPartition],
    isolation: Isolation,
    max_bytes: int,
    wait_ms: int,
) -> tuple[FetchRequest, dict[UUID | None, str], int | None]:
    """A fetch that waits so long for the first record, the names of the topic ids, and the last version it fits.

    It names no rack: a leader that knows of a nearer replica says so at once, instead of waiting.
    """
    topics = rows_by_topic(share.items())
    ids = {name: topic_uuid((await cluster.topic(name)).id) for name in topics}
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        topics=tuple(FetchTopic(name, ids[name], tuple(rows)) for name, rows in topics.items()),
        max_bytes=max_bytes,
        isolation=isolation,
    )
    names = {topic_id: name for name, topic_id in ids.items()}
    return request, names, None if all(ids.values()) else TOPIC_IDS_FROM - 1


async def wait_for_more(
    cluster: Cluster,
    ends: Mapping[TopicPartition, int],
    *,
    wait_ms: int,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> bool:
    """Return True as soon as a leader has more than this end, or refuses to say; False if none has within `wait_ms`.

    `ends` are those that `list_offsets` gave with this isolation. The waiting fetches have connections of their own,
    and name one byte: a leader sends one batch with its answer. A leader that hangs is waited for LATE_MS longer.

    Raises: as `Cluster.leader`.
    """
    shares: dict[int, dict[TopicPartition, FetchPartition]] = {}
    for tp, end in ends.items():
        leader = await cluster.leader(tp)
        if leader.broker != NO_LEADER:
            shares.setdefault(leader.broker, {})[tp] = FetchPartition(tp.partition, end, 1, leader.epoch)
    if not shares:
        await asyncio.sleep(wait_ms / 1000)
        return False
    asked = [asyncio.create_task(_has_more(cluster, b, share, isolation, wait_ms)) for b, share in shares.items()]
    try:
        for answer in asyncio.as_completed(asked, timeout=(wait_ms + LATE_MS) / 1000):
            if await answer:
                return True
        return False
    except TimeoutError:
        return True
    finally:
        for task in asked:
            task.cancel()


async def _has_more(
    cluster: Cluster, broker: int, share: Mapping[TopicPartition, FetchPartition], isolation: Isolation, wait_ms: int
) -> bool:
    try:
        request, names, version_max = await _request(cluster, share, isolation, 1, wait_ms)
        waiting = await cluster.connection(broker, waits=True)
        answer = await waiting.call(ApiKey.FETCH, request, version_max=version_max, timeout_ms=wait_ms + NEAR_MS)
        rows = rows_fetched(answer, names, broker)
    except (*LOST, PylogError):
        return True
    return any(
        row.error_code or len(row.records) or _readable_end(row, isolation) > share[tp].fetch_offset
        for tp, row in rows.items()
    )


def rows_fetched(answer: Any, names: Mapping[UUID | None, str], broker: int) -> dict[TopicPartition, PartitionFetched]:
    """The rows of an answer to Fetch, whose topics may be named by ids alone. Raises: KafkaError: it was refused."""
    raise_for_code(answer, f"fetch from broker {broker}")
    return {
        TopicPartition(topic.name or names[topic.topic_id], p.partition): p
        for topic in answer.topics
        for p in topic.partitions
    }


def row_of(rows: Mapping[TopicPartition, PartitionFetched], tp: TopicPartition, broker: int) -> PartitionFetched:
    """The row of a partition. Raises: ProtocolError: it was asked for, and is not there."""
    if tp not in rows:
        raise ProtocolError(f"broker {broker} answers a fetch of {tp} without that partition")
    return rows[tp]


async def out_of_range(cluster: Cluster, tp: TopicPartition, offset: int) -> OffsetOutOfRangeError:
    first, last = await asyncio.gather(list_offsets(cluster, {tp: EARLIEST}), list_offsets(cluster, {tp: LATEST}))
    return OffsetOutOfRangeError(offset, first[tp].offset, last[tp].offset, str(tp))


# ------------------------------------------------------------------- batches


def whole(answer: PartitionFetched, tp: TopicPartition, offset: int, end: int, isolation: Isolation) -> Fetched | None:
    """The whole batches of an answer up to `end`; None if there is not one."""
    data = memoryview(answer.records)
    where = f"fetched from {tp} at offset {offset}"
    try:
        stop, last = _whole_bytes(data)(data, len(data), upper=end)
        if stop:
            header = batches.header_at(data, last)
            aborted = answer.aborted if isolation is Isolation.READ_COMMITTED else None
            parts = tuple(committed(data[:stop], aborted or ()))
            return Fetched(parts, header.next_offset, header.leader_epoch)
        if len(data) >= batches.HEADER_BYTES and batches.header_at(data).base_offset >= end:
            return Fetched((), end)
        return None
    except batches.InvalidBatchError as error:
        remedy = "message formats before v2 (Kafka 0.11) are not read; else the broker's log is damaged"
        raise CorruptLogError(where, error.position, error.reason, remedy) from None


def _whole_bytes(data: memoryview) -> Callable[..., tuple[int, int]]:
    """The way to find whole batches: a process that reads little loads no kernels for it."""
    if len(data) < SMALL_BYTES:
        return batches.whole_bytes
    from logstore.records.arrow import whole_bytes

    return whole_bytes


def committed(data: memoryview, aborted: Iterable[Aborted]) -> Iterator[memoryview]:
    """The batches without those of aborted transactions: runs of them, as they are.

    `aborted` names each aborted transaction that has data here by its producer and first offset. It ends at the
    producer's next marker, so `data` must begin within or before it.
    """
    waiting = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
    if not waiting:
        yield data
        return
    open_ones: set[int] = set()
    begin = 0
    for position, header in batches.batches(data):
        while waiting and waiting[-1].first_offset <= header.last_offset:
            open_ones.add(waiting.pop().producer_id)
        if header.is_control:
            open_ones.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in open_ones:
            batches.check(data, position, header)  # left out by its header: that must be right
            if position > begin:
                yield data[begin:position]
            begin = position + header.size_bytes
    if begin < len(data):
        yield data[begin:]


async def extents(
    cluster: Cluster,
    topic: str,
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    partitions: Iterable[int] | None = None,
) -> dict[int, Extent]:
    """First and next offset of every partition, or of these, as a reader of this isolation sees them.

    Raises: UnknownTopicError, UnknownPartitionError, UnreachableError, KafkaError.
    """
    known = (await cluster.topic(topic, is_fresh=True)).leaders
    asked = [TopicPartition(topic, p) for p in (known if partitions is None else partitions)]
    first, last = await asyncio.gather(
        list_offsets(cluster, dict.fromkeys(asked, EARLIEST)),
        list_offsets(cluster, dict.fromkeys(asked, LATEST), isolation=isolation),
    )
    return {
        tp.partition: Extent(first[tp].offset, max(first[tp].offset, last[tp].offset), last[tp].leader_epoch)
        for tp in asked
    }
