"""Fetches: reading several partitions for one reader, and waiting until there is enough.

A fetch is answered at once if it may not wait, asks for nothing, finds `min_bytes`, or an error. Otherwise it is parked
on its partitions, and looks again when one of them has more; at the end of its time it is answered with what there is.
A follower is also answered when a log starts behind its own. What followers ask for is kept: see `sessions`.

What a quota holds back is left out, as if there were nothing, and looked at again when the quota allows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from logstore.errors import PylogError
from logstore.log import soundness
from logstore.log.reader import ReadResult
from replication.errors import ErrorCode, KafkaError, code_of
from replication.model.cluster import TopicPartition
from replication.network.steps import STEP_ITEMS, in_steps, step
from replication.protocol.messages import EXAMINER, Aborted, FetchPartition, Isolation, PartitionFetched
from replication.protocol.wire import Buffer
from replication.replica.leader.leader import Leader
from replication.replica.leader.results import FetchTerms, unlimited
from replication.replica.storage.batch_cache import BatchCache
from replication.replica.storage.replica_log import ReplicaLog

# What the event loop copies itself for one fetch, if the system has it in memory.
PROMPT_BYTES_MAX = 256 * 1024

Found = dict[TopicPartition, PartitionFetched]


class Readable(Protocol):
    """A replica in the role in which this fetch may read it; `admit` returns why it may not."""

    replica: ReplicaLog
    recent: BatchCache

    @property
    def is_over(self) -> bool: ...
    @property
    def high_watermark(self) -> int: ...
    def readable_end(self, terms: FetchTerms) -> int: ...
    def admit(self, asked: FetchPartition, terms: FetchTerms) -> PartitionFetched | None: ...
    def refused(self, code: ErrorCode) -> PartitionFetched: ...
    def judge_epoch(self, asked: int) -> ErrorCode: ...


class Reading:
    """One partition of a fetch. What the reader thread finds is kept here."""

    __slots__ = ("aborted", "asked", "error", "leader", "quota_bytes", "result", "stable_end", "start", "tp", "upper")

    def __init__(self, tp: TopicPartition, asked: FetchPartition, leader: Readable) -> None:
        self.tp = tp
        self.asked = asked
        self.leader = leader
        self.start = asked.log_start_offset if asked.log_start_offset >= 0 else leader.replica.start
        self.upper = 0
        self.quota_bytes = unlimited()  # 0: it is held back
        self.stable_end = -1
        self.result: ReadResult | None = None
        self.aborted: Sequence[Aborted] = ()
        self.error: Exception | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.result.data) if self.result is not None else 0

    def look(self, terms: FetchTerms) -> bool:
        self.upper = self.leader.readable_end(terms)
        return self.asked.fetch_offset < self.upper

    def is_throttled(self, terms: FetchTerms) -> bool:
        return terms.is_follower and isinstance(self.leader, Leader) and self.leader.is_throttled(terms.replica_id)

    def _limit(self, max_bytes: int) -> int:
        return min(max_bytes, max(0, self.asked.max_bytes), self.quota_bytes)

    def read_recent(self, max_bytes: int, isolation: Isolation) -> bool:
        """Take it from memory, if it is there; transactions need a look at the disk."""
        if isolation is Isolation.READ_COMMITTED and self.leader.replica.log.files.view.transactional:
            return False
        limit = self._limit(max_bytes)
        found = self.leader.recent.read(self.asked.fetch_offset, upper=self.upper, max_bytes=limit)
        if found is None:
            return False
        self.result, self.error = ReadResult(memoryview(found[0]), "", 0, found[1]), None
        return True

    def read_cached(self, max_bytes: int, terms: FetchTerms) -> bool:
        """Take it from the system's memory, if it is little, and nobody needs it checked."""
        replica = self.leader.replica
        if terms.reads_all or replica.damage is not None:
            return False
        if terms.isolation is Isolation.READ_COMMITTED and replica.log.files.view.transactional:
            return False
        limit = self._limit(max_bytes)
        self.result = replica.log.read_cached(self.asked.fetch_offset, max_bytes=limit, upper=self.upper)
        self.error = None
        return self.result is not None

    def has_more(self, terms: FetchTerms) -> bool:
        return self.must_answer(terms) or self.leader.readable_end(terms) > self.upper

    def refusal(self) -> ErrorCode:
        """Return why this replica may not be read any more since it was admitted; NONE if it may."""
        if self.leader.is_over:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return self.leader.judge_epoch(self.asked.current_leader_epoch)

    def must_answer(self, terms: FetchTerms) -> bool:
        leader = self.leader
        is_behind = terms.is_follower and (
            leader.replica.start > self.start or (isinstance(leader, Leader) and leader.has_news(terms.replica_id))
        )
        return self.error is not None or is_behind or self.refusal() is not ErrorCode.NONE

    def read(self, max_bytes: int, terms: FetchTerms) -> None:
        """In a reader thread: read, and look at transactions if they matter.

        What is copied, or is to be, is checked, and all of a log that is known to be damaged (decision 41).
        """
        isolation = terms.isolation
        self.result, self.error = None, None
        replica = self.leader.replica
        try:
            upper = self.upper
            if isolation is Isolation.READ_COMMITTED:
                upper = self.stable_end = min(upper, replica.stable_end())
            if self.asked.fetch_offset < upper:
                limit = self._limit(max_bytes)
                self.result = replica.log.read(self.asked.fetch_offset, max_bytes=limit, upper=upper)
                if terms.reads_all or replica.damage is not None:
                    self.result = soundness.checked(self.result)
                if isolation is Isolation.READ_COMMITTED:
                    self.aborted = replica.aborted(self.asked.fetch_offset, self.result.next_offset)
        except (PylogError, OSError) as error:
            self.result, self.error = None, error
            replica.suspect(error)

    def look_at_stable_end(self) -> None:
        """In a reader thread: have it known."""
        try:
            self.stable_end = self.leader.replica.stable_end()
        except (PylogError, OSError) as error:
            self.leader.replica.suspect(error)

    def _stable_end(self, terms: FetchTerms, high_watermark: int) -> int:
        """Return the last stable offset for the answer, whatever the isolation. A follower makes no use of it."""
        known = self.stable_end if terms.isolation is Isolation.READ_COMMITTED and self.result is not None else -1
        if known < 0 and (now := self.leader.replica.stable_end_known()) is not None:
            known = now
        known = self.stable_end if known < 0 else known
        return high_watermark if known < 0 else min(known, high_watermark)

    def answer(self, terms: FetchTerms) -> PartitionFetched:
        leader = self.leader
        if refusal := self.refusal():
            return PartitionFetched(self.tp.partition, refusal)
        if self.error is not None:
            return leader.refused(code_of(self.error))
        counters = leader.replica.host.counters
        if terms.is_follower and isinstance(leader, Leader):
            leader.tell(terms.replica_id)
            if self.size_bytes and leader.is_throttled(terms.replica_id):
                leader.replica.host.leader_quota.charge(self.size_bytes)
                counters.throttled_bytes_out += self.size_bytes
        if terms.reads_all:
            counters.replication_bytes_out += self.size_bytes
        else:
            counters.bytes_out += self.size_bytes
        high_watermark = leader.high_watermark
        return PartitionFetched(
            self.tp.partition,
            ErrorCode.NONE,
            high_watermark,
            self._stable_end(terms, high_watermark),
            leader.replica.start,
            self.aborted if terms.isolation is Isolation.READ_COMMITTED else None,
            self.result.data if self.result is not None else b"",
        )


async def fetch(
    leader_of: Callable[[TopicPartition], Readable],
    wanted: Mapping[TopicPartition, FetchPartition],
    terms: FetchTerms,
) -> Found:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + terms.max_wait_ms / 1000
    found: Found = {}
    readings: list[Reading] = []
    for number, (tp, asked) in enumerate(wanted.items(), 1):
        if number % STEP_ITEMS == 0:
            await step()
        try:
            leader = leader_of(tp)
        except KafkaError as error:
            found[tp] = PartitionFetched(tp.partition, error.code)
            continue
        refused = leader.admit(asked, terms)
        if refused is None:
            readings.append(Reading(tp, asked, leader))
        else:
            found[tp] = refused
    must_answer = bool(found) or not readings or terms.max_wait_ms <= 0
    while True:
        await read(await ready(readings, terms), terms)
        if must_answer or await is_enough(readings, terms):
            break
        must_answer = not await _woken(readings, terms, deadline_s)
    await _look_at_stable_ends(readings, terms)
    for number, reading in enumerate(readings, 1):
        if number % STEP_ITEMS == 0:
            await step()
        found[reading.tp] = reading.answer(terms)
    return found


async def _look_at_stable_ends(readings: Sequence[Reading], terms: FetchTerms) -> None:
    """Have consumers told where a transaction is open, though nothing was read of it."""
    if terms.is_follower:
        return
    unknown = []
    async for some in in_steps(readings):
        unknown += [each for each in some if each.stable_end < 0 and each.leader.replica.stable_end_known() is None]
    if unknown:
        await unknown[0].leader.replica.host.disk.read(partial(_look_at, unknown))


def _look_at(readings: Sequence[Reading]) -> None:
    for reading in readings:
        reading.look_at_stable_end()


def fetch_one(
    leader: Leader, asked: FetchPartition, isolation: Isolation, room_bytes: int, min_bytes: int
) -> tuple[int, int, int, Buffer] | None:
    """What a consumer gets of its only partition, if it waits for nothing; None: `fetch` it, nothing was done.

    Returns high watermark, last stable offset, log start offset and records; no aborted transaction is among them.
    """
    replica, state, offset = leader.replica, leader.state, asked.fetch_offset
    start, high_watermark, limit = replica.start, state.high_watermark, min(asked.max_bytes, room_bytes)
    if (
        leader.is_over
        or not start <= offset < high_watermark
        or asked.current_leader_epoch not in (-1, state.leader_epoch)
    ):
        return None
    stable_end = high_watermark
    if replica.log.files.view.transactional:
        known = None if isolation is Isolation.READ_COMMITTED else replica.stable_end_known()
        if known is None:
            return None
        stable_end = min(known, high_watermark)
    recent = leader.recent.read(offset, upper=high_watermark, max_bytes=max(0, limit))
    if recent is not None:
        records: Buffer = recent[0]
    elif replica.damage is not None:
        return None
    else:
        found = replica.log.read_cached(offset, max_bytes=max(0, limit), upper=high_watermark)
        if found is None:
            return None
        records = found.data
    size_bytes = len(records)
    if room_bytes <= 0 or size_bytes < min_bytes:
        return None
    replica.host.counters.bytes_out += size_bytes
    return high_watermark, stable_end, start, records


async def ready(readings: Sequence[Reading], terms: FetchTerms) -> Sequence[Reading]:
    """Return those with something to read: throttled ones last, and only if the quota has a share for them."""
    ready: list[Reading] = []
    throttled: list[Reading] = []
    for number, reading in enumerate(readings, 1):
        if number % STEP_ITEMS == 0:
            await step()
        if reading.look(terms):
            (throttled if reading.is_throttled(terms) else ready).append(reading)
        reading.quota_bytes = unlimited()
    if throttled:
        left_bytes = throttled[0].leader.replica.host.leader_quota.left_bytes()
        for reading in throttled:
            reading.quota_bytes = left_bytes and max(1, left_bytes // len(throttled))
        if left_bytes:
            ready += throttled
    return ready


async def read(readings: Sequence[Reading], terms: FetchTerms) -> None:
    """Read as far as the bytes allow: from memory what is there (not for an examiner), the rest from the disk."""
    left_bytes, rest = min(terms.max_bytes, terms.room_bytes()), []
    prompt_bytes = PROMPT_BYTES_MAX
    for number, reading in enumerate(readings, 1):
        if number % STEP_ITEMS == 0:
            await step()
        if left_bytes > 0 and terms.replica_id != EXAMINER and reading.read_recent(left_bytes, terms.isolation):
            left_bytes -= reading.size_bytes
        elif min(left_bytes, prompt_bytes) > 0 and reading.read_cached(left_bytes, terms):
            left_bytes -= reading.size_bytes
            prompt_bytes -= reading.size_bytes
        else:
            rest.append(reading)
    if rest:
        await rest[0].leader.replica.host.disk.read(partial(_read_disk, rest, terms, left_bytes))


def _read_disk(readings: Sequence[Reading], terms: FetchTerms, left_bytes: int) -> None:
    """In a reader thread: read one after the other. The first batch comes however large."""
    left_bytes = min(left_bytes, terms.room_bytes())  # others may have been answered since it was counted
    for reading in readings:
        is_first = reading is readings[0]
        if left_bytes <= 0 and not is_first:
            reading.result = None
            continue
        reading.read(max(left_bytes, 1), terms)
        if reading.size_bytes > left_bytes and not is_first:
            reading.result = None
        left_bytes -= reading.size_bytes


async def is_enough(readings: Sequence[Reading], terms: FetchTerms) -> bool:
    size_bytes = 0
    for number, reading in enumerate(readings, 1):
        if number % STEP_ITEMS == 0:
            await step()
        size_bytes += reading.size_bytes
        if reading.must_answer(terms):
            return True
    return size_bytes >= terms.min_bytes


async def _woken(readings: Sequence[Reading], terms: FetchTerms, deadline_s: float) -> bool:
    """Wait until one of the partitions has more, or changes hands; False if the time was over before."""
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[bool] = loop.create_future()

    def wake(in_time: bool = True) -> None:
        if not woken.done():
            woken.set_result(in_time)

    parked = []
    timers = [loop.call_at(deadline_s, wake, False)]
    if held := [reading for reading in readings if not reading.quota_bytes]:
        wait_s = held[0].leader.replica.host.leader_quota.wait_ms() / 1000
        timers.append(loop.call_at(min(deadline_s, loop.time() + wait_s), wake))
    try:
        for number, reading in enumerate(readings, 1):
            if number % STEP_ITEMS == 0:
                await step()
            replica = reading.leader.replica
            waiting = replica.followers if terms.is_follower else replica.consumers
            waiting[woken] = wake
            parked.append(waiting)
            if reading.has_more(terms):  # it came before it could wake this
                return True
        return await woken
    finally:
        for timer in timers:
            timer.cancel()
        for waiting in parked:
            waiting.pop(woken, None)
