"""GroupCoordinator: the consumer groups whose partition of `__consumer_offsets` this broker leads.

Invariant: a group is answered for only in the term of leadership in which its partition was loaded, and whatever is
stored is appended in that term; so two brokers never speak for a group with effect. It drives `replication.groups`:
one event at a time, the new state first, then the effects. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import Callable

from logstore.env import SYSTEM, Env
from logstore.records import batch
from replication.config.broker import BrokerConfig
from replication.errors import ErrorCode, KafkaError
from replication.groups.loading import load
from replication.groups.machine import events
from replication.groups.machine.events import StoredGroup
from replication.groups.machine.records import records_of
from replication.groups.machine.state import Group, GroupSettings, Now, deadline_ms
from replication.groups.machine.step import resume, step
from replication.groups.partitioning import GroupMapping
from replication.model.cluster import OFFSETS_TOPIC, TopicPartition
from replication.replica.leader.leader import Leader
from replication.replica.leader.results import ALL_IN_SYNC, AppendResult
from replication.replica.manager import ReplicaManager

logger = logging.getLogger(__name__)

# Changes of leadership are noticed at once where something is told; this is for the others.
LOOK_MS = 1000
GROUPS_AT_ONCE = 100  # when they are loaded
# Between two roles of a partition there is a moment without one. Longer: somebody else is to lead it.
BETWEEN_ROLES_MS = 1000


class _Slot:
    """One group: its state, and the timer that is set for it."""

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
    """One partition of the offsets topic, for as long as nobody but this broker leads it.

    That may be several leader epochs in a row: a controller begins one whenever a follower dies.
    """

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.slots: dict[str, _Slot] = {}
        self.loading: asyncio.Task[None] | None = None
        self.over_since_ms: int | None = None

    def goes_on_with(self, leader: Leader) -> bool:
        """Did nobody lead in between? What is loaded still holds then."""
        return self.loading is None and leader.state.leader_epoch == self.leader.state.leader_epoch + 1


class GroupCoordinator:
    """See the module. `begin` and `end` are its life."""

    def __init__(self, config: BrokerConfig, replicas: ReplicaManager, env: Env = SYSTEM) -> None:
        self._config = config
        self._limits = limits_of(config)
        self._replicas = replicas
        self._env = env
        self._mapping = GroupMapping(replicas)
        self._terms: dict[int, _Term] = {}
        self._requests = itertools.count(1)
        self._asking: dict[int, asyncio.Future[events.Body]] = {}
        self._topic_ids: dict[str, str | None] = {}
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        # A process that stood still this long may have lost its session, and the news is not here yet.
        self._pause_ms = config.zookeeper_session_timeout_ms // 3
        self._seen_ms = self._doubtful_until_ms = 0

    # -------------------------------------------------------------------- life

    def begin(self) -> None:
        """Follow what this broker leads from now on."""
        self._replicas.metadata.listen(self._metadata_changed)
        self._mapping.look()
        self._seen_ms = self._env.clock.monotonic_ms()
        self._every(min(LOOK_MS, self._pause_ms / 2), self.look)
        self._every(self._config.offsets_retention_check_interval_ms, self._expire)

    def end(self) -> None:
        """Speak for no group any more; what is parked is told so."""
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
        """The partition that keeps a group. Raises: KafkaError: as `GroupMapping`."""
        return self._mapping.partition_of(group_id)

    async def learned(self, timeout_s: float) -> None:
        """Wait until `partition_of` knows what there is to know, or the time is over."""
        await self._mapping.learned(timeout_s)

    def group(self, group_id: str) -> Group | None:
        """The group as it is; None if there is none of this name.

        After a standstill of this process nothing is told for a while: another broker may know better by now. (What
        changes a group needs no such care: it is appended, and a log that has another leader refuses it.)

        Raises: KafkaError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
        """
        if self._notice() < self._doubtful_until_ms:
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "this broker stood still, and must look first"
            )
        slot = self._term(group_id).slots.get(group_id)
        return slot.group if slot is not None else None

    def groups(self) -> list[Group]:
        """All groups of this broker. Raises: KafkaError: COORDINATOR_LOAD_IN_PROGRESS."""
        self.look()
        if any(term.loading is not None for term in self._terms.values()):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return [slot.group for term in self._terms.values() for slot in term.slots.values()]

    async def ask(self, group_id: str, event: Callable[[int], events.Event]) -> events.Body:
        """Have the group's machine answer the event that `event` makes of a request's number.

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
        """A name that no member ever had."""
        return f"{prefix}-{uuid.UUID(int=self._env.random.getrandbits(128), version=4)}"

    # ------------------------------------------------------------------- terms

    def _term(self, group_id: str) -> _Term:
        """The term in which this broker speaks for the group."""
        number = self.partition_of(group_id)
        term = self._look_at(number)
        if term is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"another broker keeps group {group_id!r}")
        if term.loading is not None or term.leader.is_over:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"group {group_id!r} is being loaded")
        return term

    def look(self) -> None:
        """Load what this broker has begun to lead; let go of what it leads no more."""
        self._notice()
        topic = self._replicas.metadata.topic(OFFSETS_TOPIC)
        for number in {*self._terms, *(topic.partitions if topic is not None else ())}:
            self._look_at(number)

    def _look_at(self, number: int) -> _Term | None:
        """The term of this moment; begun now if it is a new one."""
        leader, term = self._leader(number), self._terms.get(number)
        if term is not None and leader is not term.leader:
            if leader is not None and term.goes_on_with(leader):
                term.leader, term.over_since_ms = leader, None
            elif leader is not None or not self._is_between_roles(number, term):
                self._unload(number)
                term = None
        if term is None and leader is not None:
            term = self._terms[number] = _Term(leader)
            term.loading = asyncio.get_running_loop().create_task(self._load(term))
        return term

    def _leader(self, number: int) -> Leader | None:
        try:
            return self._replicas.leader(TopicPartition(OFFSETS_TOPIC, number))
        except KafkaError:
            return None

    def _is_between_roles(self, number: int, term: _Term) -> bool:
        partition = self._replicas.partitions().get(TopicPartition(OFFSETS_TOPIC, number))
        if partition is None or partition.role is not None or partition.known_leader_epoch is None:
            return False
        now_ms = self._env.clock.monotonic_ms()
        if term.over_since_ms is None:
            term.over_since_ms = now_ms
        return now_ms - term.over_since_ms < BETWEEN_ROLES_MS

    async def _load(self, term: _Term) -> None:
        began_ms = self._env.clock.monotonic_ms()
        loaded = await load(self._replicas, term.leader)
        if loaded is None:
            return
        for count, group_id in enumerate(loaded.names()):
            stored = loaded.groups.get(group_id, StoredGroup(id=group_id))
            group, effects = resume(stored, loaded.offsets.get(group_id, {}), self._now(), self._limits)
            slot = term.slots[group_id] = _Slot(group)
            self._perform(term, slot, effects)
            if count % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(
                    0
                )  # others want their turn; if the term ends meanwhile, this is cancelled
        term.loading = None
        if term.slots:
            took_ms = self._env.clock.monotonic_ms() - began_ms
            logger.info("tp=%s groups=%d loaded in %d ms", term.leader.replica.tp, len(term.slots), took_ms)

    def _unload(self, number: int) -> None:
        term = self._terms.pop(number)
        if term.loading is not None:
            term.loading.cancel()
        for slot in tuple(term.slots.values()):
            self._post(term, slot, events.Unloaded())
            slot.disarm()
        term.slots.clear()

    def _notice(self) -> int:
        """See whether this process stood still; return the time."""
        now_ms = self._env.clock.monotonic_ms()
        if now_ms - self._seen_ms > self._pause_ms:
            logger.warning("stood still for %d ms: groups are looked at again", now_ms - self._seen_ms)
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
        """Have the group told the time when it must be. A timer that is too early does no harm."""
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
        if term.leader.is_over:
            self.look()  # it goes on, or is unloaded
        if term.slots.get(slot.group.id) is slot:
            self._post(term, slot, events.Ticked())

    def _append(self, term: _Term, slot: _Slot, append: events.Append) -> None:
        """Store what the machine wants stored; tell it how that came out."""
        tp = term.leader.replica.tp
        if term.leader.is_over:
            result = AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            asyncio.get_running_loop().call_soon(self._appended, term, slot, append, result)
            return
        now_ms = self._env.clock.now_ms()
        rows = records_of(slot.group.id, append)
        records = batch.build([batch.Record(n, now_ms, key, value) for n, (key, value) in enumerate(rows)])
        answer = asyncio.ensure_future(
            self._replicas.append(
                {tp: records}, acks=ALL_IN_SYNC, timeout_ms=self._config.offsets_commit_timeout_ms
            )
        )
        answer.add_done_callback(lambda done: self._appended(term, slot, append, done.result()[tp]))

    def _appended(self, term: _Term, slot: _Slot, append: events.Append, result: AppendResult) -> None:
        if result.error_code:
            logger.warning(
                "group=%s %s is not stored: %s",
                slot.group.id,
                type(append.write).__name__,
                result.error_code.name,
            )
        self._post(term, slot, events.Appended(append.write, result.error_code, result.base_offset))

    # ------------------------------------------------------------------ offsets

    def _tell_all(self, event: events.Event) -> None:
        for term in tuple(self._terms.values()):
            for slot in tuple(term.slots.values()):
                self._post(term, slot, event)

    def _expire(self) -> None:
        self._tell_all(events.ExpireOffsets())

    def _metadata_changed(self) -> None:
        """Who leads may have changed; and offsets in topics that are gone lead nowhere."""
        self._mapping.look()
        self.look()
        before, topics = self._topic_ids, self._replicas.metadata.topics()
        self._topic_ids = {name: topic.id for name, topic in topics.items()}
        gone = frozenset(
            name
            for name, topic_id in before.items()
            if name not in topics or topic_id not in (None, topics[name].id)
        )
        if gone:
            self._tell_all(events.ForgetTopics(gone))


def limits_of(config: BrokerConfig) -> GroupSettings:
    """What the settings of the broker say about groups."""
    return GroupSettings(
        group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        group_min_session_timeout_ms=config.group_min_session_timeout_ms,
        group_max_session_timeout_ms=config.group_max_session_timeout_ms,
        group_max_size=config.group_max_size,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
    )
