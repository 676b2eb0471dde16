"""GroupCoordinator: the consumer groups whose partition of `__consumer_offsets` this broker leads.

It drives the machine beside it: one event at a time, the new state first, then the effects. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from logstore.env import SYSTEM, Env
from logstore.records.keyed import build_keyed
from replication.config.broker import BrokerConfig
from replication.config.group import GroupConfig
from replication.coordinators.groups.batches import BYTES_MAX, Commit, CommitBatch, batch_of
from replication.coordinators.groups.classic import events
from replication.coordinators.groups.classic.permission import may_stay
from replication.coordinators.groups.classic.state import Group
from replication.coordinators.groups.classic.step import error_of_append
from replication.coordinators.groups.consumer.events import ConsumerHeartbeat
from replication.coordinators.groups.consumer.quiet import quiet_answer
from replication.coordinators.groups.consumer.state import ConsumerGroup
from replication.coordinators.groups.deleted_topics import DeletedTopics
from replication.coordinators.groups.kinds import AnyGroup, Effects, Event, deadline_ms, may_commit, resume, step
from replication.coordinators.groups.messages import Answer, Append, Appended, Body, Now
from replication.coordinators.groups.offsets.events import (
    ExpireOffsets,
    ForgetAgain,
    ForgetLater,
    NewOffsets,
    TransactionEnded,
)
from replication.coordinators.groups.parts.events import Heard
from replication.coordinators.groups.records import Loaded
from replication.coordinators.groups.settings import Limits
from replication.coordinators.groups.share.events import AskStates
from replication.coordinators.groups.share.state import ShareGroup
from replication.coordinators.groups.slot import Slot
from replication.coordinators.groups.state_questions import StateQuestions
from replication.coordinators.partitioning import PartitionMapping
from replication.coordinators.share_state.states import ShareStates
from replication.coordinators.terms import LOADED_AT_ONCE, InternalTopic, Term, Terms, Written
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TopicPartition

logger = logging.getLogger(__name__)

FORGET_AGAIN_S = 1.0  # after a deletion of offsets that was not stored
_BLANK = Group(id="")
OnCommitted: TypeAlias = Callable[[int, ErrorCode], None]


class GroupCoordinator:
    def __init__(
        self,
        config: BrokerConfig,
        group_config: Callable[[str], GroupConfig],
        mapping: PartitionMapping,
        topic: InternalTopic,
        states: ShareStates,
        env: Env = SYSTEM,
    ) -> None:
        self._config = config
        self._limits = Limits(config, group_config)
        self._topic = topic
        self._env = env
        pause_ms = config.zookeeper_session_timeout_ms // 3
        self.terms: Terms[Slot] = Terms(mapping, topic, self, pause_ms, env)
        self._requests = itertools.count(1)
        self._asking: dict[int, asyncio.Future[Body]] = {}
        self._deleted_topics = DeletedTopics(mapping, self.terms, self._tell)
        self._share_states = StateQuestions(states, self._post)

    def begin(self) -> None:
        self.terms.begin()
        self._deleted_topics.begin()

        def expire() -> None:
            for term in self.terms.all():
                self._tell(term, ExpireOffsets())

        self.terms.every(self._config.offsets_retention_check_interval_ms, expire)

    def end(self) -> None:
        self.terms.end()
        self._share_states.end()

    def group(self, group_id: str) -> AnyGroup | None:
        """Return the group; None if there is none of this name. Raises: KafkaError: as `Terms.slot`."""
        slot = self.terms.slot(group_id)
        return slot.group if slot is not None else None

    def groups(self) -> list[AnyGroup]:
        """Return all groups of this broker. Raises: KafkaError: COORDINATOR_LOAD_IN_PROGRESS."""
        return [slot.group for slot in self.terms.slots()]

    async def ask(self, group_id: str, event: Callable[[int], Event]) -> Body:
        """Post the event that `event` makes of a request number to the group; return the answer to that request.

        Raises: KafkaError: as `Terms.term_of`.
        """
        term = self.terms.term_of(group_id)
        slot = term.slots.get(group_id)
        if slot is None:
            slot = term.slots[group_id] = Slot(Group(id=group_id))
        request = next(self._requests)
        answer = self._asking[request] = asyncio.get_running_loop().create_future()
        self._post(term, slot, event(request))
        body: Body = await answer
        return body

    def hear(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> bool:
        """Note a heartbeat to which there is no error; False: nothing was done, `ask` for the answer.

        Raises: KafkaError: as `Terms.term_of`.
        """
        term = self.terms.term_of(group_id)
        slot = term.slots.get(group_id)
        if slot is None or not isinstance(slot.settled, Group):
            return False
        if may_stay(slot.settled, member_id, generation, instance_id):
            return False
        self._hear(term, slot, member_id, slot.settled.members[member_id].session_timeout_ms)
        return True

    async def ask_consumer(self, heartbeat: ConsumerHeartbeat, group_id: str) -> Heard:
        """Return the answer to this heartbeat. Raises: KafkaError: as `Terms.term_of`."""
        term = self.terms.term_of(group_id)
        slot = term.slots.get(group_id)
        if slot is not None and isinstance(slot.settled, ConsumerGroup):
            found = quiet_answer(slot.settled, heartbeat)
            if found is not None:
                self._hear(term, slot, heartbeat.member_id, self._limits.of(group_id).group_consumer_session_timeout_ms)
                return found
        answer = await self.ask(group_id, lambda request: replace(heartbeat, request=request))
        assert isinstance(answer, Heard), "every event has its kind of answer"
        return answer

    def _hear(self, term: Term[Slot], slot: Slot, member_id: str, session_timeout_ms: int) -> None:
        if slot.add_heartbeat(member_id, self._env.clock.monotonic_ms() + session_timeout_ms):
            self._arm(term, slot)

    def commit_each(self, commits: Sequence[Commit], on_committed: OnCommitted) -> list[bool | None]:
        """Store what is committed; say for each whether it is. False: nothing was done, `ask` for the answer.

        None: it is on its way, and `on_committed` gets its place among these, and the outcome, later. Commits for
        groups of one partition are one batch.
        """
        stored: list[bool | None] = [False] * len(commits)
        batches: list[CommitBatch] = []
        last: dict[Term[Slot], CommitBatch] = {}
        for place, commit in enumerate(commits):
            group_id, member_id, generation, instance_id, _ = commit
            try:
                term = self.terms.term_of(group_id)
            except KafkaError:
                continue
            slot = term.slots.get(group_id)
            group = _BLANK if slot is None else slot.settled
            if may_commit(group, member_id, generation, instance_id):
                continue
            batch = last.get(term)
            if batch is None or batch.size_bytes > BYTES_MAX:
                batch = last[term] = CommitBatch(term)
                batches.append(batch)
            batch.add(place, commit, self._config.offset_metadata_max_bytes)
        for batch in batches:
            if batch.commits:
                self._store(batch, stored, on_committed)
        return stored

    def _store(self, batch: CommitBatch, stored: list[bool | None], on_committed: OnCommitted) -> None:
        term, records = batch.term, build_keyed(batch.rows, self._env.clock.now_ms())
        timeout_ms = self._config.offsets_commit_timeout_ms
        written = self._topic.append_batch(
            term.leadership, records, timeout_ms, partial(self._settled, batch, on_committed)
        )
        if written is not None and written.error:
            return
        position = -1 if written is None else written.base_offset
        for place, (group_id, member_id, _, _, offsets) in batch.commits:
            slot = term.slots.get(group_id)
            if slot is None:
                slot = term.slots[group_id] = Slot(Group(id=group_id))
            if written is None:
                number = next(self._requests)
                slot.begun[number] = tuple(offsets)
                batch.in_flight.append((number, slot))
            else:
                slot.add_stored(offsets, position)
                position += len(offsets)
            if isinstance(slot.settled, Group) and member_id in slot.settled.members:
                self._hear(term, slot, member_id, slot.settled.members[member_id].session_timeout_ms)
            stored[place] = None if written is None else True

    def _settled(self, batch: CommitBatch, on_committed: OnCommitted, written: Written) -> None:
        """Note what became of commits that were in flight."""
        term, position, error = batch.term, written.base_offset, error_of_append(written.error, NewOffsets)
        if error:
            logger.warning("%d commits are not stored: %s", len(batch.commits), written.error.name)
        for (place, commit), (number, slot) in zip(batch.commits, batch.in_flight, strict=True):
            wanted = slot.end_commit(number)
            if not error:
                slot.add_stored(commit.offsets, position)
                if len(wanted) < len(commit.offsets):
                    self._forget_again(term, slot, {tp: position for tp in commit.offsets if tp not in wanted})
                position += len(commit.offsets)
            elif slot.group.is_blank and term.slots.get(commit.group_id) is slot:
                del term.slots[commit.group_id]
            on_committed(place, error)

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
            if slot.group.offsets.uncommitted or slot.group.offsets.in_transactions:
                self._post(term, slot, TransactionEnded(producer_id, commits))

    def member_id(self, prefix: str) -> str:
        return f"{prefix}-{uuid.UUID(int=self._env.random.getrandbits(128), version=4)}"

    async def fill(self, term: Term[Slot]) -> bool:
        loaded = Loaded()
        if not await self._topic.load(term.leadership, loaded):
            return False
        topics, end = set[str](), 0
        for count, group_id in enumerate(loaded.names()):
            stored = loaded.group(group_id)
            offsets, uncommitted = loaded.offsets.get(group_id, {}), loaded.uncommitted.get(group_id, {})
            if isinstance(stored, ShareGroup):
                topics.update(stored.states.names)
            for found in (offsets, *uncommitted.values()):
                topics.update(tp.topic for tp in found)
                end = max(end, 1 + max((one.position for one in found.values()), default=-1))
            group, effects = resume(stored, offsets, self._now(), self._limits.of(group_id), uncommitted)
            slot = term.slots[group_id] = Slot(group)
            self._perform(term, slot, effects)
            if count % LOADED_AT_ONCE == 0:
                await asyncio.sleep(0)  # other tasks get a turn; if the term ends, this task is cancelled
        self._deleted_topics.begin_search(term, topics, end)
        return True

    def clear(self, term: Term[Slot]) -> None:
        self._deleted_topics.end_search(term)
        for slot in tuple(term.slots.values()):
            self._post(term, slot, events.Unloaded())
            slot.disarm()

    def _now(self) -> Now:
        return Now(self._env.clock.monotonic_ms(), self._env.clock.now_ms())

    def _post(self, term: Term[Slot], slot: Slot, event: Event) -> None:
        slot.settled, effects = step(slot.group, event, self._now(), self._limits.of(slot.settled.id))
        self._perform(term, slot, effects)

    def _perform(self, term: Term[Slot], slot: Slot, effects: Effects) -> None:
        group = slot.group
        appended: list[tuple[Append, Written]] = []
        for effect in effects:
            match effect:
                case Answer(request, body):
                    _settle(self._asking.pop(request), body)
                case ForgetLater(positions):
                    again = partial(self._forget_again, term, slot, positions)
                    asyncio.get_running_loop().call_later(FORGET_AGAIN_S, again)
                case AskStates():
                    self._share_states.ask(term, slot, effect)
                case Append():
                    written = self._append(term, slot, effect)
                    if isinstance(written, Written):
                        appended.append((effect, written))
        if appended:
            for append, written in appended:
                self._appended(term, slot, append, written)
            return
        if group.is_blank and term.slots.get(group.id) is slot:
            del term.slots[group.id]
        self._arm(term, slot)

    def _arm(self, term: Term[Slot], slot: Slot) -> None:
        """Set the timer for the deadline of the group. One that is early does no harm."""
        due_ms = deadline_ms(slot.group)
        if due_ms is None:
            slot.disarm()
        elif slot.timer is None or due_ms < slot.due_ms:
            slot.disarm()
            slot.due_ms = due_ms
            pause_s = max(due_ms - self._env.clock.monotonic_ms(), 1) / 1000
            slot.timer = asyncio.get_running_loop().call_later(pause_s, self._tick, term, slot)

    def _tick(self, term: Term[Slot], slot: Slot) -> None:
        slot.timer = None
        if term.leadership.is_over:
            self.terms.look()  # the term goes on, or is unloaded
        if term.slots.get(slot.group.id) is slot:
            self._post(term, slot, events.Ticked())

    def _append(self, term: Term[Slot], slot: Slot, append: Append) -> Written | None:
        """Append; return the outcome if it is known at once."""
        if term.leadership.is_over:
            written = Written(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            asyncio.get_running_loop().call_soon(self._appended, term, slot, append, written)
            return None
        records, producer = batch_of(slot.group.id, append, self._env.clock.now_ms())
        timeout_ms = self._config.offsets_commit_timeout_ms
        found = self._topic.append(term.partition, records, timeout_ms=timeout_ms, producer=producer)
        if isinstance(found, Written):
            return found
        answer = asyncio.ensure_future(found)
        answer.add_done_callback(lambda done: self._appended(term, slot, append, done.result()))
        return None

    def _appended(self, term: Term[Slot], slot: Slot, append: Append, written: Written) -> None:
        if written.error:
            what = type(append.write).__name__
            logger.warning("group=%s %s is not stored: %s", slot.group.id, what, written.error.name)
        self._post(term, slot, Appended(append.write, written.error, written.base_offset))

    def _forget_again(self, term: Term[Slot], slot: Slot, positions: Mapping[TopicPartition, int]) -> None:
        if term.slots.get(slot.group.id) is slot:
            self._post(term, slot, ForgetAgain(positions))

    def _tell(self, term: Term[Slot], event: Event) -> None:
        for slot in tuple(term.slots.values()):
            self._post(term, slot, event)


def _settle(answer: asyncio.Future[Body], body: Body) -> None:
    if not answer.done():
        answer.set_result(body)
