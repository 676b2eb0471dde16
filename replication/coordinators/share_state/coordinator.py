"""ShareCoordinator: the share partitions whose partition of `__share_group_state` this broker leads.

It drives the machine beside it: one event at a time, the new state first, then the effects. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from logstore.env import SYSTEM, Env
from logstore.records.keyed import build_keyed
from replication.config.broker import BrokerConfig
from replication.coordination.topics import find_missing_ids
from replication.coordination.tree import CoordinationError
from replication.coordinators.partitioning import PartitionMapping
from replication.coordinators.share_state.machine import events
from replication.coordinators.share_state.machine.records import Loaded, key_of, value_of
from replication.coordinators.share_state.machine.state import SharePartitionKey, ShareStateSettings, Snapshot
from replication.coordinators.share_state.machine.step import ShareState, step
from replication.coordinators.share_state.states import IdPartition, Summary
from replication.coordinators.terms import LOADED_AT_ONCE, InternalTopic, Term, Terms, Written
from replication.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)

NO_STATE = Summary()  # of a share partition that is not kept


class PrunedTopic(InternalTopic, Protocol):
    async def delete_before(self, partition: int, offset: int) -> None:
        """Delete what is below the offset for good; say nothing of a failure, since it is tried again."""


class _Slot:
    __slots__ = ("name", "position", "state")

    def __init__(self, name: SharePartitionKey, state: ShareState, position: int) -> None:
        self.name = name
        self.state = state
        self.position = position  # of its last snapshot in the log


class ShareCoordinator:
    def __init__(self, config: BrokerConfig, mapping: PartitionMapping, topic: PrunedTopic, env: Env = SYSTEM) -> None:
        self._config = config
        self._settings = config.part(ShareStateSettings)
        self._mapping = mapping
        self._topic = topic
        self._env = env
        pause_ms = config.zookeeper_session_timeout_ms // 3
        self.terms: Terms[_Slot] = Terms(mapping, topic, self, pause_ms, env)
        self._requests = itertools.count(1)
        self._asking: dict[int, asyncio.Future[events.Answer]] = {}
        self._pruned: dict[int, int] = {}  # up to where, by partitions
        self._keeping: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self.terms.begin()
        self.terms.every(self._config.share_coordinator_state_topic_prune_interval_ms, self._keep_house)

    def end(self) -> None:
        self.terms.end()
        if self._keeping is not None:
            self._keeping.cancel()

    def stored(self) -> list[tuple[SharePartitionKey, Snapshot]]:
        """Return what is stored of all share partitions that are kept here. Raises: KafkaError: as `Terms.slots`."""
        return [(slot.name, slot.state.stored) for slot in self.terms.slots() if slot.state.stored is not None]

    def summary(self, group_id: str, partition: IdPartition) -> Summary:
        """Return what is stored of a share partition. Raises: KafkaError: as `ask`."""
        self._check(partition)
        slot = self.terms.slot(str(SharePartitionKey(group_id, *partition)))
        if slot is None or (stored := slot.state.stored) is None:
            return NO_STATE
        return Summary(
            ErrorCode.NONE,
            stored.state_epoch,
            stored.leader_epoch,
            stored.start_offset,
            stored.delivery_complete_count,
        )

    async def ask(self, group_id: str, partition: IdPartition, event: Callable[[int], events.Request]) -> events.Answer:
        """Post the event that `event` makes of a request number; return the answer to that request.

        Raises: KafkaError: INVALID_REQUEST, UNKNOWN_TOPIC_OR_PARTITION; as `Terms.slot`, since some requests are
        answered without an append.
        """
        self._check(partition)
        key = SharePartitionKey(group_id, *partition)
        name = str(key)
        slot = self.terms.slot(name)
        term = self.terms.term_of(name)
        if slot is None:
            slot = term.slots[name] = _Slot(key, ShareState(), -1)
        request = next(self._requests)
        asked = self._asking[request] = asyncio.get_running_loop().create_future()
        self._post(term, slot, event(request))
        answer: events.Answer = await asked
        return answer

    def _check(self, partition: IdPartition) -> None:
        metadata = self._mapping.metadata
        if not partition.topic_id or partition.partition < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a share partition has a topic id and a partition of it")
        name = metadata.name_of(partition.topic_id)
        topic = None if name is None else metadata.topic(name)
        if topic is None or partition.partition not in topic.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def fill(self, term: Term[_Slot]) -> bool:
        loaded = Loaded()
        if not await self._topic.load(term.leadership, loaded):
            return False
        for count, (key, (stored, updates, position)) in enumerate(loaded.states.items()):
            term.slots[str(key)] = _Slot(key, ShareState(stored=stored, updates=updates), position)
            if count % LOADED_AT_ONCE == 0:
                await asyncio.sleep(0)  # other tasks get a turn; if the term ends, this task is cancelled
        return True

    def clear(self, term: Term[_Slot]) -> None:
        self._pruned.pop(term.partition, None)
        for slot in tuple(term.slots.values()):
            self._post(term, slot, events.Unloaded())

    def _post(self, term: Term[_Slot], slot: _Slot, event: events.Event) -> None:
        slot.state, effects = step(slot.state, event, self._env.clock.now_ms(), self._settings)
        for effect in effects:
            match effect:
                case events.Answer(request):
                    answer = self._asking.pop(request)
                    if not answer.done():
                        answer.set_result(effect)
                case events.Append():
                    self._append(term, slot, effect)
        name = str(slot.name)
        if slot.state.is_blank and term.slots.get(name) is slot:
            del term.slots[name]

    def _append(self, term: Term[_Slot], slot: _Slot, append: events.Append) -> None:
        record = append.record
        row = key_of(slot.name, record), None if record is None else value_of(record)
        appended = partial(self._appended, term, slot, append)
        found: Written | None = Written(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not term.leadership.is_over:
            records = build_keyed([row], self._env.clock.now_ms())
            timeout_ms = self._config.share_coordinator_write_timeout_ms
            found = self._topic.append_batch(term.leadership, records, timeout_ms, appended)
        if found is not None:
            asyncio.get_running_loop().call_soon(appended, found)

    def _appended(self, term: Term[_Slot], slot: _Slot, append: events.Append, written: Written) -> None:
        if written.error:
            logger.warning("share-partition=%s its state is not stored: %s", slot.name, written.error.name)
        elif isinstance(append.record, Snapshot):
            slot.position = written.base_offset
        self._post(term, slot, events.Stored(append, written.error))

    # ------------------------------------------------------------------ old records, deleted topics

    def _keep_house(self) -> None:
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.get_running_loop().create_task(self._prune())

    async def _prune(self) -> None:
        """Delete the records before the oldest snapshot that counts, and the states of topics that are gone."""
        terms = [term for term in self.terms.all() if term.loading is None and not term.leadership.is_over]
        for term in terms:
            start = min((slot.position for slot in term.slots.values() if slot.state.stored), default=-1)
            if start > self._pruned.get(term.partition, 0):
                await self._topic.delete_before(term.partition, start)
                self._pruned[term.partition] = start
        missing = await self._missing(slot.name.topic_id for term in terms for slot in term.slots.values())
        for term in terms:
            for slot in tuple(term.slots.values()) if not term.leadership.is_over else ():
                self._post(term, slot, events.Forget() if slot.name.topic_id in missing else events.Refresh())

    async def _missing(self, topic_ids: Iterable[str]) -> frozenset[str]:
        """Return those topics that the tree does not have: the metadata of this broker may lack a new one."""
        metadata, tree = self._mapping.metadata, self._mapping.tree()
        asked = {topic_id for topic_id in topic_ids if metadata.name_of(topic_id) is None}
        if not asked or tree is None or not metadata.is_initialized:
            return frozenset()
        try:
            return await find_missing_ids(tree, asked)
        except CoordinationError as error:
            logger.warning("whether shared topics are gone is asked again: %s", error)
            return frozenset()
