"""Rows: the partitions of a fetch, and how they are read: from memory what is there, the rest from the disk.

The quota for followers that are not in sync is shared by their rows. A row without a share is left out, as if there
were nothing to read, and looked at again when the quota has some.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Protocol

from logstore.errors import PylogError
from logstore.log import soundness
from logstore.log.reader import ReadResult
from replication.errors import ErrorCode, code_of
from replication.model.cluster import BrokerId, TopicPartition
from replication.network.steps import STEP_ITEMS, step
from replication.protocol.messages import EXAMINER, Aborted, FetchPartition, Isolation, PartitionFetched
from replication.protocol.wire import Buffer
from replication.replica.leader.readable import Readable
from replication.replica.leader.results import FetchTerms, unlimited
from replication.replica.machine import isr
from replication.replica.quota import ReplicationQuota

# Bytes that the event loop copies itself for one fetch, if the system has them in memory.
PROMPT_BYTES_MAX = 256 * 1024


class Reader(Protocol):
    """The session that a row belongs to."""

    replica_id: BrokerId
    replica_epoch: int
    asked_ms: int

    def woken(self, row: Row) -> None:
        """There may be something to read, or to tell."""

    def renew(self, row: Row) -> None:
        """Admit the row again with the next request."""

    def tell(self, row: Row) -> None:
        """Answer the row with the next answer."""


class Row:
    """One partition of a fetch. Implements `CaughtUp`. A reader thread leaves here what it finds."""

    __slots__ = (
        "aborted", "asked", "error", "leader", "quota_bytes", "reader", "result", "stable_end", "start", "tp", "upper",
        "waiting",
    )  # fmt: skip

    def __init__(self, tp: TopicPartition, asked: FetchPartition, leader: Readable, reader: Reader) -> None:
        replica = leader.replica
        self.tp = tp
        self.asked = asked
        self.leader = leader
        self.reader = reader
        self.start = asked.log_start_offset if asked.log_start_offset >= 0 else replica.start
        self.waiting: dict[object, Callable[[], None]] = (
            replica.followers if reader.replica_id >= 0 else replica.consumers
        )
        self.upper = 0
        self.quota_bytes = unlimited()  # 0: the quota has no share for it
        self.stable_end = -1
        self.result: ReadResult | None = None
        self.aborted: Sequence[Aborted] = ()
        self.error: Exception | None = None

    # ------------------------------------------------------------------- as `CaughtUp`

    @property
    def asked_ms(self) -> int:
        return self.reader.asked_ms

    @property
    def event(self) -> isr.Fetched:
        reader = self.reader
        return isr.Fetched(reader.replica_id, self.asked.fetch_offset, reader.asked_ms, reader.replica_epoch)

    def renew(self) -> None:
        self.reader.renew(self)

    def tell(self) -> None:
        self.reader.tell(self)

    # ------------------------------------------------------------------- news

    def wake(self) -> None:
        self.reader.woken(self)

    def wait(self) -> None:
        """Have the replica wake the row, once."""
        self.waiting[self] = self.wake

    def leave(self) -> None:
        """The row is over: nothing wakes it, and its follower does not repeat it."""
        self.waiting.pop(self, None)
        if self.reader.replica_id >= 0:
            self.leader.unfollow(self.reader.replica_id, self)

    @property
    def size_bytes(self) -> int:
        return len(self.result.data) if self.result is not None else 0

    def look(self, terms: FetchTerms) -> bool:
        """Return whether there is something to read. Records of an earlier read are dropped."""
        self.result, self.aborted, self.error = None, (), None
        self.quota_bytes, self.stable_end = unlimited(), -1
        self.upper = self.leader.readable_end(terms)
        return self.asked.fetch_offset < self.upper

    def has_more(self, terms: FetchTerms) -> bool:
        """Return whether there is more than at the last look."""
        return self.leader.readable_end(terms) > self.upper or self.must_answer(terms)

    def must_answer(self, terms: FetchTerms) -> bool:
        leader = self.leader
        if self.error is not None or leader.refusal(self.asked, terms):
            return True
        return terms.is_follower and leader.has_news(terms.replica_id, self.start)

    # ------------------------------------------------------------------- reading

    def _limit(self, max_bytes: int) -> int:
        return min(max_bytes, max(0, self.asked.max_bytes), self.quota_bytes)

    def read_now(self, max_bytes: int, prompt_bytes: int, terms: FetchTerms) -> bool:
        """Read what waits for no disk: the last appends, or a little of the page cache. False: that has none.

        The second is not checked, so that it is for consumers of a sound log; transactions need a look at the disk.
        """
        leader, offset = self.leader, self.asked.fetch_offset
        log = leader.replica.log
        if terms.isolation is Isolation.READ_COMMITTED and log.files.view.transactional:
            return False
        limit = self._limit(max_bytes)
        if terms.replica_id != EXAMINER:
            recent = leader.recent.read(offset, upper=self.upper, max_bytes=limit)
            if recent is not None:
                self.result = ReadResult(memoryview(recent[0]), "", 0, recent[1])
                return True
        if terms.reads_all or prompt_bytes <= 0 or leader.replica.damage is not None:
            return False
        self.result = log.reader.read_cached(offset, max_bytes=limit, upper=self.upper)
        return self.result is not None

    def read(self, max_bytes: int, terms: FetchTerms) -> None:
        """In a reader thread: read, and look at transactions if they matter.

        Records for followers are checked, and all records of a log that is known to be damaged (decision 41).
        """
        replica, offset = self.leader.replica, self.asked.fetch_offset
        is_committed = terms.isolation is Isolation.READ_COMMITTED
        self.result, self.error = None, None
        try:
            upper = self.upper
            if is_committed:
                upper = self.stable_end = min(upper, replica.stable_end())
            if offset < upper:
                self.result = replica.log.read(offset, max_bytes=self._limit(max_bytes), upper=upper)
                if terms.reads_all or replica.damage is not None:
                    self.result = soundness.checked(self.result)
                if is_committed:
                    self.aborted = replica.aborted(offset, self.result.next_offset)
        except (PylogError, OSError) as error:
            self.result, self.error = None, error
            replica.suspect(error)

    def look_at_stable_end(self) -> None:
        """In a reader thread."""
        try:
            self.stable_end = self.leader.replica.stable_end()
        except (PylogError, OSError) as error:
            self.leader.replica.suspect(error)

    # ------------------------------------------------------------------- answering

    def answer(self, terms: FetchTerms) -> PartitionFetched:
        leader, partition = self.leader, self.tp.partition
        if refusal := leader.refusal(self.asked, terms):
            return PartitionFetched(partition, refusal)
        if self.error is not None:
            return leader.refused(code_of(self.error))
        leader.sent(terms, self.size_bytes)
        high_watermark, is_committed = leader.high_watermark, terms.isolation is Isolation.READ_COMMITTED
        stable_end = self._stable_end(high_watermark, is_committed=is_committed)
        aborted = self.aborted if is_committed else None
        records = self.result.data if self.result is not None else b""
        return PartitionFetched(
            partition, ErrorCode.NONE, high_watermark, stable_end, leader.replica.start, aborted, records
        )

    def _stable_end(self, high_watermark: int, *, is_committed: bool) -> int:
        """Return the last stable offset for the answer, whatever the isolation. A follower makes no use of it."""
        known = self.stable_end if is_committed and self.result is not None else -1
        if known < 0 and (now := self.leader.replica.stable_end_known()) is not None:
            known = now
        known = self.stable_end if known < 0 else known
        return high_watermark if known < 0 else min(known, high_watermark)


async def read(rows: Iterable[Row], terms: FetchTerms) -> ReplicationQuota | None:
    """Read as far as the bytes and the quota allow. Return the quota if it has nothing for some rows now."""
    ready, quota = await _share(rows, terms)
    rest, left_bytes = await _read_now(ready, terms)
    if rest:
        await rest[0].leader.replica.host.disk.read(partial(_read_disk, rest, terms, left_bytes))
    return quota


async def _share(rows: Iterable[Row], terms: FetchTerms) -> tuple[Sequence[Row], ReplicationQuota | None]:
    """Return the rows with something to read, those that the quota is for last, and the quota if they get nothing."""
    ready: list[Row] = []
    throttled: list[Row] = []
    for number, row in enumerate(rows, 1):
        if number % STEP_ITEMS == 0:
            await step()
        if row.look(terms):
            is_throttled = terms.is_follower and row.leader.is_throttled(terms.replica_id)
            (throttled if is_throttled else ready).append(row)
    if not throttled:
        return ready, None
    quota = throttled[0].leader.replica.host.leader_quota
    left_bytes = quota.left_bytes()
    for row in throttled:
        row.quota_bytes = left_bytes and max(1, left_bytes // len(throttled))
    return (ready + throttled, None) if left_bytes else (ready, quota)


async def _read_now(rows: Iterable[Row], terms: FetchTerms) -> tuple[Sequence[Row], int]:
    """Read what waits for no disk; return the other rows, and how many bytes are left for them."""
    left_bytes, prompt_bytes = min(terms.max_bytes, terms.room_bytes()), PROMPT_BYTES_MAX
    rest = []
    for number, row in enumerate(rows, 1):
        if number % STEP_ITEMS == 0:
            await step()
        if left_bytes > 0 and row.read_now(left_bytes, prompt_bytes, terms):
            left_bytes -= row.size_bytes
            prompt_bytes -= row.size_bytes
        else:
            rest.append(row)
    return rest, left_bytes


def _read_disk(rows: Sequence[Row], terms: FetchTerms, left_bytes: int) -> None:
    """In a reader thread: read one after the other. The first batch comes however large."""
    left_bytes = min(left_bytes, terms.room_bytes())  # others may have been answered since it was counted
    for row in rows:
        is_first = row is rows[0]
        if left_bytes <= 0 and not is_first:
            continue
        row.read(max(left_bytes, 1), terms)
        if row.size_bytes > left_bytes and not is_first:
            row.result = None
        left_bytes -= row.size_bytes


async def look_at_stable_ends(rows: Collection[Row]) -> None:
    """Have consumers learn where a transaction is open, though nothing was read of it."""
    unknown = [row for row in rows if row.stable_end < 0 and row.leader.replica.stable_end_known() is None]
    if unknown:
        await unknown[0].leader.replica.host.disk.read(partial(_look_at, unknown))


def _look_at(rows: Iterable[Row]) -> None:
    for row in rows:
        row.look_at_stable_end()


def fetch_one(
    leader: Readable, asked: FetchPartition, isolation: Isolation, room_bytes: int, min_bytes: int
) -> tuple[int, int, int, Buffer] | None:
    """Read a consumer's only partition, if it waits for nothing; None: a session must read it, nothing was done.

    Returns high watermark, last stable offset, log start offset and records; no aborted transaction is among them.
    """
    replica, offset = leader.replica, asked.fetch_offset
    start, high_watermark, limit = replica.start, leader.high_watermark, min(asked.max_bytes, room_bytes)
    if (
        leader.is_over
        or not start <= offset < high_watermark
        or asked.current_leader_epoch not in (-1, leader.leader_epoch)
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
        found = replica.log.reader.read_cached(offset, max_bytes=max(0, limit), upper=high_watermark)
        if found is None:
            return None
        records = found.data
    size_bytes = len(records)
    if room_bytes <= 0 or size_bytes < min_bytes:
        return None
    replica.host.counters.bytes_out += size_bytes
    return high_watermark, stable_end, start, records
