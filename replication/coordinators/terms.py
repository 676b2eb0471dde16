"""Terms: the partitions of an internal topic that this broker leads, each loaded before anybody is answered from it.

Invariant: a coordinator answers for a name only in the term of leadership in which it loaded the partition, and appends
only in that term; so two brokers never decide about it. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from logstore.env import Env
from replication.coordinators.partitioning import PartitionMapping, no_metadata
from replication.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

LOOK_MS = 1000  # to notice changes of leadership of which nothing else tells
LOADED_AT_ONCE = 100  # names, before other tasks get a turn
# How long after its start, or after it left a partition, a broker says that names are being loaded: see `is_moving`.
# Members find the new coordinator by their next heartbeat, after 3 s by default.
MOVING_MS = 10_000


class Leadership(Protocol):
    """The time in which this broker leads a partition, in however many leader epochs. Equal only to itself."""

    @property
    def leader_epoch(self) -> int: ...

    @property
    def is_over(self) -> bool: ...


class Written(NamedTuple):
    """The outcome of an append. `base_offset` is the offset of its first record."""

    error: ErrorCode
    base_offset: int = -1


class Loading(Protocol):
    """The state built from the records of a partition, in order. Raises UnknownRecordError if one cannot be read."""

    unknown: Counter[str]  # how many records there are of each type that is not known

    def apply(self, position: int, key: bytes, value: bytes | None) -> None: ...

    def apply_open(self, producer_id: int, position: int, key: bytes, value: bytes | None) -> None:
        """Take a record of a transaction that has no marker yet."""


class InternalTopic(Protocol):
    """The partitions of the topic that this broker leads."""

    def leadership(self, partition: int) -> Any | None:
        """Return the present Leadership; None if this broker does not lead the partition."""

    def may_lead_soon(self, partition: int) -> bool:
        """Return whether the metadata name this broker as its leader, or a controller tells it something just now."""

    def append(
        self,
        partition: int,
        records: bytearray,
        *,
        timeout_ms: int,
        producer: tuple[int, int] | None = None,
    ) -> Written | Awaitable[Written]:
        """Append a batch whose records have keys; the outcome is known when all replicas in sync have it, or it failed.

        `producer` (id and epoch): its transaction must hold the partition, else NOT_LEADER_OR_FOLLOWER.
        """

    def append_batch(
        self, leadership: Any, batch: bytearray, timeout_ms: int, on_written: Callable[[Written], None]
    ) -> Written | None:
        """`append` such a batch, outside of transactions, in this leadership; None: `on_written` gets the outcome."""

    async def load(self, leadership: Any, into: Loading) -> bool:
        """Take in everything that is committed; False if the leadership ended before it was read."""


Slot = TypeVar("Slot")


class Term(Generic[Slot]):
    """One partition of the topic, as long as this broker leads it; `slots` are by their names."""

    def __init__(self, partition: int, leadership: Leadership) -> None:
        self.partition = partition
        self.leadership = leadership
        self.slots: dict[str, Slot] = {}
        self.loading: asyncio.Task[None] | None = None
        self.missed: list[Callable[[], None]] = []  # what to do once it is loaded


class Keeper(Protocol[Slot]):
    """The coordinator that the terms are of."""

    async def fill(self, term: Term[Slot]) -> bool:
        """Load the slots of the term; False if its leadership ended before."""

    def clear(self, term: Term[Slot]) -> None:
        """Give the slots up: another broker leads, or this one stops."""


class Terms(Generic[Slot]):
    def __init__(
        self,
        mapping: PartitionMapping,
        topic: InternalTopic,
        keeper: Keeper[Slot],
        pause_ms: int,
        env: Env,
    ) -> None:
        self._mapping = mapping
        self._metadata = mapping.metadata
        self._topic = topic
        self._keeper = keeper
        self._env = env
        self._terms: dict[int, Term[Slot]] = {}
        self._left_ms: dict[int, int] = {}  # when partitions were led here last
        self._begun_ms = 0
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        # A process that was paused for this long may have lost its session without knowing.
        self._pause_ms = pause_ms
        self._seen_ms = self._doubtful_until_ms = 0
        self.partition_of = mapping.partition_of
        self.learned = mapping.learned

    def begin(self) -> None:
        self._metadata.listen(self._metadata_changed)
        self._mapping.look()
        self._begun_ms = self._seen_ms = self._env.clock.monotonic_ms()
        self.every(min(LOOK_MS, self._pause_ms / 2), self.look)

    def end(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._mapping.end()
        for number in tuple(self._terms):
            self._unload(number)

    def every(self, pause_ms: float, act: Callable[[], None]) -> None:
        """Act now, and every so often until the end."""

        def run() -> None:
            act()
            self._timers[act] = asyncio.get_running_loop().call_later(pause_ms / 1000, run)

        run()

    def _metadata_changed(self) -> None:
        self._mapping.look()
        self.look()

    def all(self) -> tuple[Term[Slot], ...]:
        return tuple(self._terms.values())

    def term(self, number: int) -> Term[Slot] | None:
        """Return the term of a partition; None: it is not led here."""
        return self._terms.get(number)

    def term_of(self, name: str) -> Term[Slot]:
        """Return the loaded term that keeps a name.

        Raises: KafkaError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
        """
        number = self.partition_of(name)
        term = self._terms.get(number)
        if term is not None and term.loading is None and not term.leadership.is_over:
            return term
        term = self._look_at(number)
        if term is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"another broker keeps {name!r}")
        if term.loading is not None or term.leadership.is_over:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{name!r} is being loaded")
        return term

    def slot(self, name: str) -> Slot | None:
        """Return what is kept under the name, for an answer without an append; None: nothing.

        After a pause of this process it answers nothing for a while, since another broker may be the coordinator by
        now. (Changes need no such care: they are appended, and a log with another leader refuses them.)

        Raises: KafkaError: as `term_of`.
        """
        if self._notice() < self._doubtful_until_ms:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "this broker was paused, and may not lead any more"
            )
        return self.term_of(name).slots.get(name)

    def is_moving(self, name: str) -> bool:
        """Return whether this broker kept a name a moment ago, or may keep it in a moment, though it does not now.

        It may have led it before its restart, too, and have no LeaderAndIsr yet.
        """
        now_ms = self._env.clock.monotonic_ms()
        if now_ms - self._begun_ms < MOVING_MS:
            return True
        try:
            number = self.partition_of(name)
        except KafkaError:
            return False
        left_ms = self._left_ms.get(number)
        return self._topic.may_lead_soon(number) or (left_ms is not None and now_ms - left_ms < MOVING_MS)

    def slots(self) -> list[Slot]:
        """Return everything that is kept here.

        Raises: KafkaError: COORDINATOR_LOAD_IN_PROGRESS; COORDINATOR_NOT_AVAILABLE: no metadata of the cluster yet.
        """
        if not self._metadata.is_initialized:
            raise no_metadata()
        self.look()
        if any(term.loading is not None for term in self._terms.values()):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return [slot for term in self._terms.values() for slot in term.slots.values()]

    def look(self) -> None:
        """Load the partitions that this broker has begun to lead; unload those that it no longer leads."""
        self._notice()
        topic = self._metadata.topic(self._mapping.topic)
        for number in {*self._terms, *(topic.partitions if topic is not None else ())}:
            self._look_at(number)

    def _look_at(self, number: int) -> Term[Slot] | None:
        present, term = self._topic.leadership(number), self._terms.get(number)
        if term is not None and present != term.leadership:
            self._unload(number)
            term = None
        if term is None and present is not None:
            term = self._terms[number] = Term(number, present)
            term.loading = asyncio.get_running_loop().create_task(self._load(term))
        return term

    async def _load(self, term: Term[Slot]) -> None:
        began_ms = self._env.clock.monotonic_ms()
        if not await self._keeper.fill(term):
            return
        term.loading = None
        missed, term.missed = term.missed, []
        for act in missed:
            act()
        if term.slots:
            took_ms = self._env.clock.monotonic_ms() - began_ms
            logger.info(
                "tp=%s-%d names=%d loaded in %d ms",
                self._mapping.topic,
                term.partition,
                len(term.slots),
                took_ms,
            )

    def _unload(self, number: int) -> None:
        term = self._terms.pop(number)
        self._left_ms[number] = self._env.clock.monotonic_ms()
        if term.loading is not None:
            term.loading.cancel()
        self._keeper.clear(term)
        term.slots.clear()

    def _notice(self) -> int:
        """Notice a pause of this process; return the time."""
        now_ms = self._env.clock.monotonic_ms()
        if now_ms - self._seen_ms > self._pause_ms:
            logger.warning(
                "paused for %d ms: checking which partitions this broker still leads", now_ms - self._seen_ms
            )
            self._doubtful_until_ms = now_ms + self._pause_ms
        self._seen_ms = now_ms
        return now_ms
