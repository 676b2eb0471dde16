"""GroupCoordinator: the consumer groups whose partition of `__consumer_offsets` this broker leads.

Invariant: it answers for a group only in the term of leadership in which it loaded the partition, and appends only in
that term; so two brokers never decide about a group. It drives the machine beside it: one event at a time, the new
state first, then the effects. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from logstore.env import SYSTEM, Env
from logstore.records import batch
from replication.config.broker import BrokerConfig
from replication.coordination.tree import Tree
from replication.coordinators.groups.machine import events
from replication.coordinators.groups.machine.records import Loaded, records_of
from replication.coordinators.groups.machine.state import Group, GroupSettings, Now, deadline_ms
from replication.coordinators.groups.machine.step import resume, step
from replication.coordinators.partitioning import GroupMapping
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import OFFSETS_TOPIC
from replication.model.metadata import Metadata

logger = logging.getLogger(__name__)

LOOK_MS = 1000  # to notice changes of leadership of which nothing else tells
GROUPS_AT_ONCE = 100  # while loading, before other tasks get a turn
BETWEEN_ROLES_MS = 1000  # a longer gap between two roles of a partition means that another broker may lead it


class Leadership(Protocol):
    """One leader epoch of this broker for a partition of the offsets topic. Equal only to itself."""

    @property
    def leader_epoch(self) -> int: ...

    @property
    def is_over(self) -> bool: ...


Led_co = TypeVar("Led_co", bound=Leadership, covariant=True)
Led_contra = TypeVar("Led_contra", bound=Leadership, contravariant=True)


class Written(NamedTuple):
    """The outcome of an append. `base_offset` is the offset of its first record."""

    error: ErrorCode
    base_offset: int = -1


class PartitionWriter(Protocol[Led_co]):
    """Appends to the partitions of the offsets topic that this broker leads."""

    def leadership(self, partition: int) -> Led_co | None:
        """Return the present leadership; None if this broker does not lead the partition."""

    def is_between_roles(self, partition: int) -> bool:
        """Return whether the former role of the partition is over and the next one has not begun."""

    async def append(self, partition: int, records: bytearray, *, timeout_ms: int) -> Written:
        """Append a batch; return when all replicas in sync have it, or it failed."""


class PartitionLoader(Protocol[Led_contra]):
    async def load(self, leadership: Led_contra) -> Loaded | None:
        """Return everything that is committed; None if the leadership ended before it was read."""


class _Slot:
    __slots__ = ("due_ms", "group", "timer")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.timer: asyncio.TimerHandle | None = None
        self.due_ms = 0

    def disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class _Term:
    """One partition of the offsets topic, as long as no other broker leads it.

    That may be several leader epochs in a row: a controller begins one whenever a follower dies.
    """

    def __init__(self, partition: int, leadership: Leadership) -> None:
        self.partition = partition
        self.leadership = leadership
        self.slots: dict[str, _Slot] = {}
        self.loading: asyncio.Task[None] | None = None
        self.over_since_ms: int | None = None

    def goes_on_with(self, leadership: Leadership) -> bool:
        """Return whether no other broker led in between: then the loaded groups are still valid."""
        return self.loading is None and leadership.leader_epoch == self.leadership.leader_epoch + 1


class GroupCoordinator:
    """`tree` returns that of the session, None while there is none."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: Metadata,
        tree: Callable[[], Tree | None],
        writer: PartitionWriter[Any],
        loader: PartitionLoader[Any],
        env: Env = SYSTEM,
    ) -> None:
        self._config = config
        self._limits = config.part(
            GroupSettings, offsets_retention_ms=config.offsets_retention_minutes * 60_000
        )
        self._metadata = metadata
        self._writer = writer
        self._loader = loader
        self._env = env
        self._mapping = GroupMapping(metadata, tree)
        self._terms: dict[int, _Term] = {}
        self._requests = itertools.count(1)
        self._asking: dict[int, asyncio.Future[events.Body]] = {}
        self._topic_ids: dict[str, str | None] = {}
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        # A process that was paused for this long may have lost its session without knowing.
        self._pause_ms = config.zookeeper_session_timeout_ms // 3
        self._seen_ms = self._doubtful_until_ms = 0

    # -------------------------------------------------------------------- life

    def begin(self) -> None:
        self._metadata.listen(self._metadata_changed)
        self._mapping.look()
        self._seen_ms = self._env.clock.monotonic_ms()
        self._every(min(LOOK_MS, self._pause_ms / 2), self.look)
        self._every(self._config.offsets_retention_check_interval_ms, self._expire)

    def end(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._mapping.end()
        for number in tuple(self._terms):
            self._unload(number)

    def _every(self, pause_ms: float, act: Callable[[], None]) -> None:
        def run() -> None:
            act()
            self._timers[act] = asyncio.get_running_loop().call_later(pause_ms / 1000, run)

        run()

    # --------------------------------------------------------------- questions

    def partition_of(self, group_id: str) -> int:
        """Return the partition that keeps a group. Raises: KafkaError: as `GroupMapping`."""
        return self._mapping.partition_of(group_id)

    async def learned(self, timeout_s: float) -> None:
        """Wait until `partition_of` knows the number of partitions, or the time is up."""
        await self._mapping.learned(timeout_s)

    def group(self, group_id: str) -> Group | None:
        """Return the group; None if there is none of this name.

        After a pause of this process it answers nothing for a while, since another broker may be the coordinator by
        now. (Changes of a group need no such care: they are appended, and a log with another leader refuses them.)

        Raises: KafkaError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
        """
        if self._notice() < self._doubtful_until_ms:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "this broker was paused, and may not lead any more"
            )
        slot = self._term(group_id).slots.get(group_id)
        return slot.group if slot is not None else None

    def groups(self) -> list[Group]:
        """Return all groups of this broker. Raises: KafkaError: COORDINATOR_LOAD_IN_PROGRESS."""
        self.look()
        if any(term.loading is not None for term in self._terms.values()):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return [slot.group for term in self._terms.values() for slot in term.slots.values()]

    async def ask(self, group_id: str, event: Callable[[int], events.Event]) -> events.Body:
        """Post the event that `event` makes of a request number to the group; return the answer to that request.

        Raises: KafkaError: as `group`.
        """
        term = self._term(group_id)
        slot = term.slots.get(group_id)
        if slot is None:
            slot = term.slots[group_id] = _Slot(Group(id=group_id))
        request = next(self._requests)
        answer = self._asking[request] = asyncio.get_running_loop().create_future()
        self._post(term, slot, event(request))
        body: events.Body = await answer
        return body

    def member_id(self, prefix: str) -> str:
        return f"{prefix}-{uuid.UUID(int=self._env.random.getrandbits(128), version=4)}"

    # ------------------------------------------------------------------- terms

    def _term(self, group_id: str) -> _Term:
        number = self.partition_of(group_id)
        term = self._look_at(number)
        if term is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"another broker keeps group {group_id!r}")
        if term.loading is not None or term.leadership.is_over:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"group {group_id!r} is being loaded")
        return term

    def look(self) -> None:
        """Load the partitions that this broker has begun to lead; unload those that it no longer leads."""
        self._notice()
        topic = self._metadata.topic(OFFSETS_TOPIC)
        for number in {*self._terms, *(topic.partitions if topic is not None else ())}:
            self._look_at(number)

    def _look_at(self, number: int) -> _Term | None:
        present, term = self._writer.leadership(number), self._terms.get(number)
        if term is not None and present != term.leadership:
            if present is not None and term.goes_on_with(present):
                term.leadership, term.over_since_ms = present, None
            elif present is not None or not self._is_between_roles(term):
                self._unload(number)
                term = None
        if term is None and present is not None:
            term = self._terms[number] = _Term(number, present)
            term.loading = asyncio.get_running_loop().create_task(self._load(term))
        return term

    def _is_between_roles(self, term: _Term) -> bool:
        if not self._writer.is_between_roles(term.partition):
            return False
        now_ms = self._env.clock.monotonic_ms()
        if term.over_since_ms is None:
            term.over_since_ms = now_ms
        return now_ms - term.over_since_ms < BETWEEN_ROLES_MS

    async def _load(self, term: _Term) -> None:
        began_ms = self._env.clock.monotonic_ms()
        loaded = await self._loader.load(term.leadership)
        if loaded is None:
            return
        for count, group_id in enumerate(loaded.names()):
            stored = loaded.groups.get(group_id, Group(id=group_id))
            group, effects = resume(stored, loaded.offsets.get(group_id, {}), self._now(), self._limits)
            slot = term.slots[group_id] = _Slot(group)
            self._perform(term, slot, effects)
            if count % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)  # other tasks get a turn; if the term ends, this task is cancelled
        term.loading = None
        if term.slots:
            took_ms = self._env.clock.monotonic_ms() - began_ms
            logger.info(
                "tp=%s-%d groups=%d loaded in %d ms", OFFSETS_TOPIC, term.partition, len(term.slots), took_ms
            )

    def _unload(self, number: int) -> None:
        term = self._terms.pop(number)
        if term.loading is not None:
            term.loading.cancel()
        for slot in tuple(term.slots.values()):
            self._post(term, slot, events.Unloaded())
            slot.disarm()
        term.slots.clear()

    def _notice(self) -> int:
        """Notice a pause of this process; return the time."""
        now_ms = self._env.clock.monotonic_ms()
        if now_ms - self._seen_ms > self._pause_ms:
            logger.warning(
                "paused for %d ms: checking which groups are still led here", now_ms - self._seen_ms
            )
            self._doubtful_until_ms = now_ms + self._pause_ms
        self._seen_ms = now_ms
        return now_ms

    # --------------------------------------------------------- driving machines

    def _now(self) -> Now:
        return Now(self._env.clock.monotonic_ms(), self._env.clock.now_ms())

    def _post(self, term: _Term, slot: _Slot, event: events.Event) -> None:
        slot.group, effects = step(slot.group, event, self._now(), self._limits)
        self._perform(term, slot, effects)

    def _perform(self, term: _Term, slot: _Slot, effects: tuple[events.Effect, ...]) -> None:
        group = slot.group
        for effect in effects:
            match effect:
                case events.Answer(request, body):
                    answer = self._asking.pop(request)
                    if not answer.done():
                        answer.set_result(body)
                case events.Append():
                    self._append(term, slot, effect)
        if group.is_blank and term.slots.get(group.id) is slot:
            del term.slots[group.id]
        self._arm(term, slot)

    def _arm(self, term: _Term, slot: _Slot) -> None:
        """Set the timer for the deadline of the group. One that is early does no harm."""
        due_ms = deadline_ms(slot.group)
        if due_ms is None:
            slot.disarm()
        elif slot.timer is None or due_ms < slot.due_ms:
            slot.disarm()
            slot.due_ms = due_ms
            pause_s = max(due_ms - self._env.clock.monotonic_ms(), 1) / 1000
            slot.timer = asyncio.get_running_loop().call_later(pause_s, self._tick, term, slot)

    def _tick(self, term: _Term, slot: _Slot) -> None:
        slot.timer = None
        if term.leadership.is_over:
            self.look()  # the term goes on, or is unloaded
        if term.slots.get(slot.group.id) is slot:
            self._post(term, slot, events.Ticked())

    def _append(self, term: _Term, slot: _Slot, append: events.Append) -> None:
        if term.leadership.is_over:
            written = Written(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            asyncio.get_running_loop().call_soon(self._appended, term, slot, append, written)
            return
        now_ms = self._env.clock.now_ms()
        rows = records_of(slot.group.id, append)
        records = batch.build([batch.Record(n, now_ms, key, value) for n, (key, value) in enumerate(rows)])
        answer = asyncio.ensure_future(
            self._writer.append(term.partition, records, timeout_ms=self._config.offsets_commit_timeout_ms)
        )
        answer.add_done_callback(lambda done: self._appended(term, slot, append, done.result()))

    def _appended(self, term: _Term, slot: _Slot, append: events.Append, written: Written) -> None:
        if written.error:
            what = type(append.write).__name__
            logger.warning("group=%s %s is not stored: %s", slot.group.id, what, written.error.name)
        self._post(term, slot, events.Appended(append.write, written.error, written.base_offset))

    # ------------------------------------------------------------------ offsets

    def _tell_all(self, event: events.Event) -> None:
        for term in tuple(self._terms.values()):
            for slot in tuple(term.slots.values()):
                self._post(term, slot, event)

    def _expire(self) -> None:
        self._tell_all(events.ExpireOffsets())

    def _metadata_changed(self) -> None:
        """Leaders may have changed, and topics may be gone: their offsets are forgotten."""
        self._mapping.look()
        self.look()
        before, topics = self._topic_ids, self._metadata.topics()
        self._topic_ids = {name: topic.id for name, topic in topics.items()}
        gone = frozenset(
            name
            for name, topic_id in before.items()
            if name not in topics or topic_id not in (None, topics[name].id)
        )
        if gone:
            self._tell_all(events.ForgetTopics(gone))
