"""GroupCoordinator: the consumer groups whose partition of `__consumer_offsets` this broker leads.

It drives the machine beside it: one event at a time, the new state first, then the effects. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from logstore.env import SYSTEM, Env
from logstore.records.batch import TRANSACTIONAL, Record, build
from logstore.records.keyed import build_keyed
from replication.config.broker import BrokerConfig
from replication.coordination.topics import find_missing
from replication.coordination.tree import CoordinationError
from replication.coordinators.groups.machine import events
from replication.coordinators.groups.machine.permission import may_commit, may_stay
from replication.coordinators.groups.machine.records import Loaded, offset_key, offset_value, records_of
from replication.coordinators.groups.machine.standing import caught_up
from replication.coordinators.groups.machine.state import Committed, Group, GroupSettings, NewOffset, Now, deadline_ms
from replication.coordinators.groups.machine.step import code_told, resume, step
from replication.coordinators.partitioning import PartitionMapping
from replication.coordinators.terms import LOADED_AT_ONCE, InternalTopic, Term, Terms, Written
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TopicPartition

logger = logging.getLogger(__name__)


# Of commits that come together: more are several batches.
BATCH_BYTES_MAX = 16 * 1024
FORGET_AGAIN_S = 1.0  # after a deletion of offsets that was not stored
LOOK_AGAIN_S = 5.0  # for a topic of loaded offsets of which this broker has not heard, though there is one
_BLANK = Group(id="")
Told: TypeAlias = Callable[[int, ErrorCode], None]


class Commit(NamedTuple):
    """Offsets that a consumer wants stored, outside of a transaction."""

    group_id: str
    member_id: str
    generation: int
    instance_id: str | None
    offsets: Mapping[TopicPartition, NewOffset]


class _Slot:
    """A group as it was after its last event; and since: who was heard, which commits began, ended, what is stored."""

    __slots__ = ("begun", "due_ms", "ended", "heard", "standing", "stored", "timer")

    def __init__(self, group: Group) -> None:
        self.standing = group
        self.heard: dict[str, int] = {}
        self.stored: dict[TopicPartition, tuple[NewOffset, int]] = {}  # with its place in the log
        self.begun: dict[int, tuple[TopicPartition, ...]] = {}  # by their numbers
        self.ended: set[int] = set()
        self.timer: asyncio.TimerHandle | None = None
        self.due_ms = 0

    @property
    def group(self) -> Group:
        if self.heard or self.stored or self.begun or self.ended:
            stored = {tp: Committed(*new, position) for tp, (new, position) in self.stored.items()}
            self.standing = caught_up(self.standing, self.heard, stored, self.begun, self.ended)
            self.heard, self.stored, self.begun, self.ended = {}, {}, {}, set()
        return self.standing

    def end_commit(self, number: int) -> tuple[TopicPartition, ...]:
        """Return the partitions whose topics have not gone since it began."""
        begun = self.begun.pop(number, None)
        if begun is not None:
            return begun
        self.ended.add(number)
        return self.standing.commits[number]

    def disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class _Batch:
    """Commits for groups of one partition, by their places in what came, and the records of them all."""

    def __init__(self, term: Term[_Slot]) -> None:
        self.term = term
        self.commits: list[tuple[int, Commit]] = []
        self.in_flight: list[tuple[int, _Slot]] = []  # the numbers of these commits
        self.rows: list[tuple[bytes, bytes]] = []
        self.size_bytes = 0

    def add(self, number: int, commit: Commit) -> None:
        self.commits.append((number, commit))
        group_id = commit[0]
        for tp, new in commit[4].items():
            key, value = offset_key(group_id, tp), offset_value(new)
            self.rows.append((key, value))
            self.size_bytes += len(key) + len(value)


class GroupCoordinator:
    def __init__(
        self,
        config: BrokerConfig,
        mapping: PartitionMapping,
        topic: InternalTopic,
        env: Env = SYSTEM,
    ) -> None:
        self._config = config
        self._limits = config.part(GroupSettings, offsets_retention_ms=config.offsets_retention_minutes * 60_000)
        self._metadata = mapping.metadata
        self._tree = mapping.tree
        self._topic = topic
        self._env = env
        pause_ms = config.zookeeper_session_timeout_ms // 3
        self.terms: Terms[_Slot] = Terms(mapping, topic, self, pause_ms, env)
        self._requests = itertools.count(1)
        self._asking: dict[int, asyncio.Future[events.Body]] = {}
        self._topic_ids: dict[str, str | None] = {}
        self._looking: dict[int, asyncio.Task[None]] = {}  # for topics of loaded offsets, by partitions

    # -------------------------------------------------------------------- life

    def begin(self) -> None:
        self.terms.begin()
        self._metadata.listen(self._forget_topics)
        self.terms.every(self._config.offsets_retention_check_interval_ms, self._expire)

    def end(self) -> None:
        self.terms.end()

    # --------------------------------------------------------------- questions

    def group(self, group_id: str) -> Group | None:
        """Return the group; None if there is none of this name. Raises: KafkaError: as `Terms.slot`."""
        slot = self.terms.slot(group_id)
        return slot.group if slot is not None else None

    def groups(self) -> list[Group]:
        """Return all groups of this broker. Raises: KafkaError: COORDINATOR_LOAD_IN_PROGRESS."""
        return [slot.group for slot in self.terms.slots()]

    async def ask(self, group_id: str, event: Callable[[int], events.Event]) -> events.Body:
        """Post the event that `event` makes of a request number to the group; return the answer to that request.

        Raises: KafkaError: as `Terms.term_of`.
        """
        term = self.terms.term_of(group_id)
        slot = term.slots.get(group_id)
        if slot is None:
            slot = term.slots[group_id] = _Slot(Group(id=group_id))
        request = next(self._requests)
        answer = self._asking[request] = asyncio.get_running_loop().create_future()
        self._post(term, slot, event(request))
        body: events.Body = await answer
        return body

    def hear(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> bool:
        """Note a heartbeat to which there is no error; False: nothing was done, `ask` for the answer.

        Raises: KafkaError: as `Terms.term_of`.
        """
        term = self.terms.term_of(group_id)
        slot = term.slots.get(group_id)
        if slot is None or may_stay(slot.standing, member_id, generation, instance_id):
            return False
        self._hear(term, slot, member_id)
        return True

    def _hear(self, term: Term[_Slot], slot: _Slot, member_id: str) -> None:
        now_ms = self._env.clock.monotonic_ms()
        slot.heard[member_id] = now_ms
        due_ms = now_ms + slot.standing.members[member_id].session_timeout_ms
        if slot.timer is None or due_ms < slot.due_ms:
            self._arm(term, slot)

    def commit_each(self, commits: Sequence[Commit], told: Told) -> list[bool | None]:
        """Store what is committed; say for each whether it is. False: nothing was done, `ask` for the answer.

        None: it is on its way, and `told` gets its place among these, and the outcome, later. Commits for groups of one
        partition are one batch.
        """
        stored: list[bool | None] = [False] * len(commits)
        batches: dict[int, _Batch] = {}
        for number, commit in enumerate(commits):
            try:
                term = self.terms.term_of(commit[0])
            except KafkaError:
                continue
            group_id, member_id, generation, instance_id, offsets = commit
            slot = term.slots.get(group_id)
            group = _BLANK if slot is None else slot.standing
            error = may_commit(group, member_id, generation, instance_id, in_transaction=False, has_offsets=True)
            if error or not self._has_short_texts(offsets):
                continue
            batch = batches.get(term.partition)
            if batch is None or batch.size_bytes > BATCH_BYTES_MAX:
                if batch is not None:
                    self._store(batch, stored, told)
                batch = batches[term.partition] = _Batch(term)
            batch.add(number, commit)
        for batch in batches.values():
            self._store(batch, stored, told)
        return stored

    def _has_short_texts(self, offsets: Mapping[TopicPartition, NewOffset]) -> bool:
        length_max = self._limits.offset_metadata_max_bytes // 4
        for new in offsets.values():  # noqa: SIM110  (a generator takes longer)
            if len(new.metadata) > length_max:
                return False
        return True

    def _store(self, batch: _Batch, stored: list[bool | None], told: Told) -> None:
        term, records = batch.term, build_keyed(batch.rows, self._env.clock.now_ms())
        timeout_ms = self._config.offsets_commit_timeout_ms
        written = self._topic.append_batch(term.leadership, records, timeout_ms, partial(self._settled, batch, told))
        if written is not None and written.error:
            return
        position = -1 if written is None else written.base_offset
        for place, (group_id, member_id, _, _, offsets) in batch.commits:
            slot = term.slots.get(group_id)
            if slot is None:
                slot = term.slots[group_id] = _Slot(Group(id=group_id))
            if written is None:
                number = next(self._requests)
                slot.begun[number] = tuple(offsets)
                batch.in_flight.append((number, slot))
            else:
                for tp, new in offsets.items():
                    slot.stored[tp] = new, position
                position += len(offsets)
            if member_id in slot.standing.members:
                self._hear(term, slot, member_id)
            stored[place] = None if written is None else True

    def _settled(self, batch: _Batch, told: Told, written: Written) -> None:
        """Note what became of commits that were in flight."""
        term, position, error = batch.term, written.base_offset, code_told(written.error, events.NewOffsets)
        if error:
            logger.warning("%d commits are not stored: %s", len(batch.commits), written.error.name)
        for (place, commit), (number, slot) in zip(batch.commits, batch.in_flight, strict=True):
            wanted = slot.end_commit(number)
            if not error:
                for tp, new in commit.offsets.items():
                    slot.stored[tp] = new, position
                if len(wanted) < len(commit.offsets):
                    self._forget_again(term, slot, {tp: position for tp in commit.offsets if tp not in wanted})
                position += len(commit.offsets)
            elif slot.group.is_blank and term.slots.get(commit.group_id) is slot:
                del term.slots[commit.group_id]
            told(place, error)

    def transaction_ended(self, partition: int, producer_id: int, *, commits: bool) -> None:
        """Tell the groups of a partition of the offsets topic that it has the marker of this producer."""
        term = self.terms.term(partition)
        if term is None:
            return
        if term.loading is not None:  # it may have read on up to before the marker
            again = partial(self.transaction_ended, partition, producer_id, commits=commits)
            term.missed.append(again)
            return
        for slot in tuple(term.slots.values()):
            if slot.group.uncommitted or slot.group.in_transactions:
                self._post(term, slot, events.TransactionEnded(producer_id, commits))

    def member_id(self, prefix: str) -> str:
        return f"{prefix}-{uuid.UUID(int=self._env.random.getrandbits(128), version=4)}"

    # ------------------------------------------------------------------- terms

    async def fill(self, term: Term[_Slot]) -> bool:
        """See `Keeper`."""
        loaded = Loaded()
        if not await self._topic.load(term.leadership, loaded):
            return False
        topics, end = set[str](), 0
        for count, group_id in enumerate(loaded.names()):
            stored = loaded.groups.get(group_id, Group(id=group_id))
            offsets, uncommitted = loaded.offsets.get(group_id, {}), loaded.uncommitted.get(group_id, {})
            for found in (offsets, *uncommitted.values()):
                topics.update(tp.topic for tp in found)
                end = max(end, 1 + max((one.position for one in found.values()), default=-1))
            group, effects = resume(stored, offsets, self._now(), self._limits, uncommitted)
            slot = term.slots[group_id] = _Slot(group)
            self._perform(term, slot, effects)
            if count % LOADED_AT_ONCE == 0:
                await asyncio.sleep(0)  # other tasks get a turn; if the term ends, this task is cancelled
        looking = self._forget_missing(term, topics, end)
        self._looking[term.partition] = asyncio.get_running_loop().create_task(looking)
        return True

    def clear(self, term: Term[_Slot]) -> None:
        """See `Keeper`."""
        if (looking := self._looking.pop(term.partition, None)) is not None:
            looking.cancel()
        for slot in tuple(term.slots.values()):
            self._post(term, slot, events.Unloaded())
            slot.disarm()

    # --------------------------------------------------------- driving machines

    def _now(self) -> Now:
        return Now(self._env.clock.monotonic_ms(), self._env.clock.now_ms())

    def _post(self, term: Term[_Slot], slot: _Slot, event: events.Event) -> None:
        slot.standing, effects = step(slot.group, event, self._now(), self._limits)
        self._perform(term, slot, effects)

    def _perform(self, term: Term[_Slot], slot: _Slot, effects: tuple[events.Effect, ...]) -> None:
        group = slot.group
        appended: list[tuple[events.Append, Written]] = []
        for effect in effects:
            match effect:
                case events.Answer(request, body):
                    answer = self._asking.pop(request)
                    if not answer.done():
                        answer.set_result(body)
                case events.ForgetLater(positions):
                    again = partial(self._forget_again, term, slot, positions)
                    asyncio.get_running_loop().call_later(FORGET_AGAIN_S, again)
                case events.Append():
                    written = self._append(term, slot, effect)
                    if isinstance(written, Written):
                        appended.append((effect, written))
        if appended:
            for effect, written in appended:
                self._appended(term, slot, effect, written)
            return
        if group.is_blank and term.slots.get(group.id) is slot:
            del term.slots[group.id]
        self._arm(term, slot)

    def _arm(self, term: Term[_Slot], slot: _Slot) -> None:
        """Set the timer for the deadline of the group. One that is early does no harm."""
        due_ms = deadline_ms(slot.group)
        if due_ms is None:
            slot.disarm()
        elif slot.timer is None or due_ms < slot.due_ms:
            slot.disarm()
            slot.due_ms = due_ms
            pause_s = max(due_ms - self._env.clock.monotonic_ms(), 1) / 1000
            slot.timer = asyncio.get_running_loop().call_later(pause_s, self._tick, term, slot)

    def _tick(self, term: Term[_Slot], slot: _Slot) -> None:
        slot.timer = None
        if term.leadership.is_over:
            self.terms.look()  # the term goes on, or is unloaded
        if term.slots.get(slot.group.id) is slot:
            self._post(term, slot, events.Ticked())

    def _append(self, term: Term[_Slot], slot: _Slot, append: events.Append) -> Written | None:
        """What became of it, if that is known at once."""
        if term.leadership.is_over:
            written = Written(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            asyncio.get_running_loop().call_soon(self._appended, term, slot, append, written)
            return None
        now_ms = self._env.clock.now_ms()
        rows = records_of(slot.group.id, append)
        producer = append.write.producer if isinstance(append.write, events.NewOffsets) else None
        if producer is None:
            records = build_keyed(rows, now_ms)
        else:
            items = [Record(n, now_ms, key, value) for n, (key, value) in enumerate(rows)]
            records = build(items, attributes=TRANSACTIONAL, producer=(*producer, -1))
        timeout_ms = self._config.offsets_commit_timeout_ms
        found = self._topic.append(term.partition, records, timeout_ms=timeout_ms, producer=producer)
        if isinstance(found, Written):
            return found
        answer = asyncio.ensure_future(found)
        answer.add_done_callback(lambda done: self._appended(term, slot, append, done.result()))
        return None

    def _appended(self, term: Term[_Slot], slot: _Slot, append: events.Append, written: Written) -> None:
        if written.error:
            what = type(append.write).__name__
            logger.warning("group=%s %s is not stored: %s", slot.group.id, what, written.error.name)
        self._post(term, slot, events.Appended(append.write, written.error, written.base_offset))

    def _forget_again(self, term: Term[_Slot], slot: _Slot, positions: Mapping[TopicPartition, int]) -> None:
        if term.slots.get(slot.group.id) is slot:
            self._post(term, slot, events.ForgetAgain(positions))

    # ------------------------------------------------------------------ offsets

    def _tell(self, term: Term[_Slot], event: events.Event) -> None:
        for slot in tuple(term.slots.values()):
            self._post(term, slot, event)

    def _expire(self) -> None:
        for term in self.terms.all():
            self._tell(term, events.ExpireOffsets())

    def _forget_topics(self) -> None:
        """Forget the offsets of topics that are gone."""
        before, topics = self._topic_ids, self._metadata.topics()
        self._topic_ids = {name: topic.id for name, topic in topics.items()}
        gone = frozenset(
            name for name, topic_id in before.items() if name not in topics or topic_id not in (None, topics[name].id)
        )
        if gone:
            for term in self.terms.all():
                tell = partial(self._tell, term, events.ForgetTopics(gone))
                if term.loading is None:
                    tell()
                else:
                    term.missed.append(tell)

    async def _forget_missing(self, term: Term[_Slot], topics: Collection[str], end: int) -> None:
        """Forget the loaded offsets, before `end`, of topics whose deletion no coordinator heard of, or could store.

        The tree says which those are: this broker may not have heard of a topic that is new.
        """
        while topics := [name for name in topics if self._metadata.topic(name) is None]:
            if self._metadata.is_told and (tree := self._tree()) is not None:
                try:
                    gone = await find_missing(tree, topics)
                except CoordinationError as error:
                    logger.warning("whether topics of committed offsets are gone is asked again: %s", error)
                else:
                    if gone:
                        self._tell(term, events.ForgetTopics(gone, end))
                    topics = [name for name in topics if name not in gone]
            await asyncio.sleep(LOOK_AGAIN_S)
