"""Fetches: reading several partitions for one reader, and waiting until there is enough.

A fetch is answered at once if it may not wait, asks for nothing, finds `min_bytes`, or an error. Otherwise it is parked
on its partitions, and looks again when one of them has more; at the end of its time it is answered with what there is.
A follower is also answered when a log starts behind its own.

What a quota holds back is left out, as if there were nothing, and looked at again when the quota allows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from logstore.errors import PylogError
from logstore.log import soundness
from logstore.log.reader import ReadResult
from replication.errors import ErrorCode, KafkaError, code_of
from replication.model.cluster import TopicPartition
from replication.network.steps import STEP_ITEMS, step
from replication.protocol.messages import EXAMINER, Aborted, FetchPartition, Isolation, PartitionFetched
from replication.protocol.wire import Buffer
from replication.replica.leader.leader import Leader
from replication.replica.leader.results import FetchTerms, unlimited
from replication.replica.storage.batch_cache import BatchCache
from replication.replica.storage.replica_log import ReplicaLog

# What the event loop copies itself for one fetch, if the system has it in memory.
PROMPT_BYTES_MAX = 256 * 1024

Found = dict[TopicPartition, PartitionFetched]
Response = TypeVar("Response")


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


class _Reading:
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

    def must_answer(self, terms: FetchTerms) -> bool:
        leader = self.leader
        is_behind = terms.is_follower and (
            leader.replica.start > self.start or (isinstance(leader, Leader) and leader.has_news(terms.replica_id))
        )
        return self.error is not None or leader.is_over or is_behind

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

    def answer(self, terms: FetchTerms) -> PartitionFetched:
        leader = self.leader
        if leader.is_over:
            return PartitionFetched(self.tp.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
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
            self.stable_end if self.stable_end >= 0 else high_watermark,
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
    readings: list[_Reading] = []
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
            readings.append(_Reading(tp, asked, leader))
        else:
            found[tp] = refused
    must_answer = bool(found) or not readings or terms.max_wait_ms <= 0
    while True:
        await _read(await _ready(readings, terms), terms)
        if must_answer or await _is_enough(readings, terms):
            break
        must_answer = not await _woken(readings, terms, deadline_s)
    for number, reading in enumerate(readings, 1):
        if number % STEP_ITEMS == 0:
            await step()
        found[reading.tp] = reading.answer(terms)
    return found


def fetch_one(
    leader: Leader, asked: FetchPartition, isolation: Isolation, room_bytes: int, min_bytes: int
) -> tuple[int, int, Buffer] | None:
    """What a consumer gets of its only partition, if it waits for nothing; None: `fetch` it, nothing was done.

    Returns high watermark, log start offset and records; no aborted transaction is among them.
    """
    replica, state, offset = leader.replica, leader.state, asked.fetch_offset
    start, high_watermark, limit = replica.start, state.high_watermark, min(asked.max_bytes, room_bytes)
    if (
        leader.is_over
        or not start <= offset < high_watermark
        or asked.current_leader_epoch not in (-1, state.leader_epoch)
    ):
        return None
    if isolation is Isolation.READ_COMMITTED and replica.log.files.view.transactional:
        return None
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
    return high_watermark, start, records


def fetch_followed(
    leader_of: Callable[[TopicPartition], Leader],
    wanted: Mapping[TopicPartition, FetchPartition],
    terms: FetchTerms,
    respond: Callable[[Found], Response],
) -> Response | asyncio.Future[Response] | None:
    """What `respond` makes of a follower's fetch, now or later, as long as all it asks for is in memory.

    None: `fetch` it. What was noted of it is noted again then, which changes nothing.
    """
    if len(wanted) > STEP_ITEMS:
        return None
    readings = []
    for tp, asked in wanted.items():
        try:
            leader = leader_of(tp)
        except KafkaError:
            return None
        if leader.admit(asked, terms) is not None:
            return None
        readings.append(_Reading(tp, asked, leader))
    fetching = _Following(readings, terms, respond, partial(fetch, leader_of, wanted))
    if not fetching.read():
        return None
    if fetching.is_enough() or terms.max_wait_ms <= 0 or not readings:
        return respond(fetching.found())
    return fetching.park()


class _Following(Generic[Response]):
    """A follower's fetch of a few partitions: it needs no task while what comes is in memory.

    It looks at the end of a turn of the loop, once, however many of its partitions got more in it.
    """

    def __init__(
        self,
        readings: Sequence[_Reading],
        terms: FetchTerms,
        respond: Callable[[Found], Response],
        fetch_else: Callable[[FetchTerms], Coroutine[Any, Any, Found]],
    ) -> None:
        self._readings, self._terms = readings, terms
        self._respond, self._fetch_else = respond, fetch_else
        self._is_woken = False
        self._task: asyncio.Task[Found] | None = None

    def read(self) -> bool:
        """Take what is there from memory. False: the disk or a quota must be asked."""
        terms = self._terms
        left_bytes = min(terms.max_bytes, terms.room_bytes())
        for reading in self._readings:
            reading.result = None
            if reading.look(terms):
                if left_bytes <= 0 or reading.is_throttled(terms):
                    return False
                if not reading.read_recent(left_bytes, terms.isolation):
                    return False
                left_bytes -= reading.size_bytes
        return True

    def is_enough(self) -> bool:
        size_bytes = 0
        for reading in self._readings:
            if reading.must_answer(self._terms):
                return True
            size_bytes += reading.size_bytes
        return size_bytes >= self._terms.min_bytes

    def found(self) -> Found:
        return {reading.tp: reading.answer(self._terms) for reading in self._readings}

    def park(self) -> asyncio.Future[Response]:
        self._loop = loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[Response] = loop.create_future()
        self._answer.add_done_callback(self._unpark)
        self._deadline_s = loop.time() + self._terms.max_wait_ms / 1000
        self._timer = loop.call_at(self._deadline_s, self._look, True)
        self._wait()
        return self._answer

    def _wait(self) -> None:
        for reading in self._readings:
            reading.leader.replica.followers[self] = self._wake

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._look)

    def _look(self, is_late: bool = False) -> None:
        self._is_woken = False
        if self._answer.done() or self._task is not None:
            return
        try:
            if not self.read():
                self._fetch_on(is_late)
            elif is_late or self.is_enough():
                self._answer.set_result(self._respond(self.found()))
            else:
                self._wait()
        except Exception as error:  # noqa: BLE001  the server closes the connection, and logs it
            self._answer.set_exception(error)

    def _fetch_on(self, is_late: bool) -> None:
        """Leave the rest of the wait to a task."""
        left_s = 0 if is_late else max(0, self._deadline_s - self._loop.time())
        terms = self._terms._replace(max_wait_ms=int(1000 * left_s))
        self._task = asyncio.ensure_future(self._fetch_else(terms))
        self._task.add_done_callback(self._fetched)

    def _fetched(self, task: asyncio.Task[Found]) -> None:
        if self._answer.done():
            return
        if task.cancelled():
            self._answer.cancel()
            return
        try:
            self._answer.set_result(self._respond(task.result()))
        except Exception as error:  # noqa: BLE001  as above
            self._answer.set_exception(error)

    def _unpark(self, _: asyncio.Future[Response]) -> None:
        """It is answered, or nobody waits any more."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        for reading in self._readings:
            reading.leader.replica.followers.pop(self, None)


async def _ready(readings: Sequence[_Reading], terms: FetchTerms) -> Sequence[_Reading]:
    """Return those with something to read: throttled ones last, and only if the quota has a share for them."""
    ready: list[_Reading] = []
    throttled: list[_Reading] = []
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


async def _read(readings: Sequence[_Reading], terms: FetchTerms) -> None:
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


def _read_disk(readings: Sequence[_Reading], terms: FetchTerms, left_bytes: int) -> None:
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


async def _is_enough(readings: Sequence[_Reading], terms: FetchTerms) -> bool:
    size_bytes = 0
    for number, reading in enumerate(readings, 1):
        if number % STEP_ITEMS == 0:
            await step()
        size_bytes += reading.size_bytes
        if reading.must_answer(terms):
            return True
    return size_bytes >= terms.min_bytes


async def _woken(readings: Sequence[_Reading], terms: FetchTerms, deadline_s: float) -> bool:
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
