"""ReplicaLog: the log of one replica, as the event loop knows it; and what its roles need of their broker.

Invariant: `start` and `end` are the log's offsets as of the last job whose outcome the loop has; jobs that change the
log go through its queue, in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from logstore.config import LogConfig
from logstore.env import Clock
from logstore.log.log import Log
from logstore.schemas.strategies import Demand
from replication.config.broker import BrokerConfig
from replication.model.cluster import BrokerId, TopicPartition, topic_uuid
from replication.protocol.messages import Aborted
from replication.replica.machine.isr import Event, WriteIsr
from replication.replica.machine.looks import Looks
from replication.replica.quota import ReplicationQuota
from replication.replica.storage.executor import DiskExecutor, Job
from replication.replica.storage.offline import OfflineReplicas

Found = TypeVar("Found")


class IsrUpdates(Protocol):
    """Writes and reads of ISRs in the tree. Answers come as events, once each, in the event loop."""

    def write(self, tp: TopicPartition, leader_epoch: int, change: WriteIsr, answered: Callable[[Event], None]) -> None:
        """Write it; answer with IsrWritten or IsrRefused, or never if the outcome cannot be known any more."""

    def refresh(self, tp: TopicPartition, answered: Callable[[Event], None]) -> None:
        """Read what stands; answer with LeadershipRefreshed."""

    def changed(self, tp: TopicPartition) -> None:
        """Tell the controller that the ISR of this partition is another one."""


class SchemaIds(Protocol):
    """The ids in `_schemas`: see `leader.schema_ids`."""

    looks: Looks

    def demands(self, topic: str, config: LogConfig) -> tuple[Demand, ...]: ...
    def fresh_demands(self, topic: str, config: LogConfig) -> tuple[Demand, ...]: ...
    def look(self, then: Callable[[], None]) -> None: ...


@dataclass(slots=True)
class ReplicaCounters:
    isr_shrinks: int = 0
    isr_expands: int = 0
    failed_isr_updates: int = 0
    lost_records: int = 0  # below a high watermark, and cut nevertheless
    scrubbed_bytes: int = 0
    scrub_passes: int = 0
    repairs: int = 0  # of damaged replicas: cut, and copied from the leader
    failed_fetches: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0
    throttled_bytes_in: int = 0  # of those: of replicas that a quota holds back
    throttled_bytes_out: int = 0
    messages_in: int = 0
    nonzero_base_offsets: int = 0
    answered_errors: Counter[tuple[str, int]] = field(default_factory=Counter)  # by the kind of request, and the code


@dataclass(frozen=True, slots=True)
class Host:
    broker: BrokerId
    config: BrokerConfig
    disk: DiskExecutor
    clock: Clock
    isr: IsrUpdates
    offline: OfflineReplicas
    is_sound: Callable[[], bool]  # as far as is known: no fsync failed, and the reserve is there
    keep_reserve: Callable[[], None]  # raises DiskFullError while no room may be taken
    cutting: Callable[[TopicPartition, int], AbstractContextManager[None]]  # around the cut of a log
    suspect: Callable[[TopicPartition, BaseException], None]  # a log may be damaged; from any thread
    disk_full: Callable[[], None]  # a write found no room: see `room`
    disk_failed: Callable[[], None]  # an fsync failed: nothing here is to be trusted any more
    leader_quota: ReplicationQuota
    follower_quota: ReplicationQuota
    schema_ids: SchemaIds  # as this broker knows them
    look: Callable[[], None]  # before something is acknowledged: has the loop stood still? See `loop_watch`
    counters: ReplicaCounters = field(default_factory=ReplicaCounters)


class ReplicaLog:
    """See the module. `followers` and `consumers` are woken when there is more to read, once each.

    `damage` says what is damaged in it, if that is known; `ends_early`: so that its end is unknown.
    """

    def __init__(self, host: Host, tp: TopicPartition, log: Log) -> None:
        self.host = host
        self.tp = tp
        self.log = log
        self.topic_uuid = topic_uuid(log.topic_id)
        self.queue = host.disk.queue()
        self.start = log.files.view.start
        self.end = log.files.view.end
        self.damage: str | None = None
        self.ends_early = False
        self.followers: dict[object, Callable[[], None]] = {}
        self.consumers: dict[object, Callable[[], None]] = {}

    @property
    def local_start(self) -> int:
        """The first offset whose segment is in this directory: `start`, unless older ones are stored elsewhere."""
        return max(self.start, self.log.files.view.local_start)

    @property
    def config(self) -> LogConfig:
        return self.log.config

    def submit(self, job: Job) -> None:
        self.host.disk.submit(self.queue, job)

    async def call(self, act: Callable[[], Found]) -> Found:
        """Have a function done in the log's queue; then the offsets are known anew."""
        offsets = self.start, self.end

        def acting() -> Found:
            nonlocal offsets
            try:
                return act()
            finally:
                offsets = self.offsets()

        return await self.host.disk.call(self.queue, acting, then=lambda: self.note(offsets))

    def offsets(self) -> tuple[int, int]:
        """Where the log starts and ends, at the end of a job in its queue."""
        view = self.log.files.view
        return view.start, view.end

    def note_start(self, start: int) -> None:
        """The log begins there now, if that is news. From any thread."""
        self.host.disk.loop.call_soon_threadsafe(self._note_start, start)

    def _note_start(self, start: int) -> None:
        self.note((max(self.start, min(start, self.end)), self.end))

    def note(self, offsets: tuple[int, int]) -> None:
        has_moved = offsets[0] > self.start
        self.start, self.end = offsets
        if has_moved:
            self.wake_followers()  # theirs move with it

    @property
    def has_transactions(self) -> bool:
        return bool(self.log.files.view.transactional)

    def stable_end(self) -> int:
        """The first offset of the oldest open transaction, or the log's end. Looks at the disk if there are any."""
        return self.log.producers.last_stable_offset if self.has_transactions else self.log.files.view.end

    def stable_end_known(self) -> int | None:
        """The same without a look at the disk; None: it takes one."""
        return self.log.producers.stable_end_known(self.log.files.view)

    def aborted(self, start: int, end: int) -> tuple[Aborted, ...]:
        """The aborted transactions with records in [start, end). Looks at the disk if there are any."""
        if not self.log.files.view.transactional:
            return ()
        found = self.log.producers.aborted(start, end)
        return tuple(Aborted(transaction.producer_id, transaction.first_offset) for transaction in found)

    def suspect(self, error: BaseException) -> None:
        self.host.suspect(self.tp, error)

    def wake_followers(self) -> None:
        _wake(self.followers)

    def wake_consumers(self) -> None:
        _wake(self.consumers)


def _wake(waiting: dict[object, Callable[[], None]]) -> None:
    if waiting:
        woken = tuple(waiting.values())
        waiting.clear()
        for wake in woken:
            wake()
