"""TransactionCoordinator: the transactional ids whose partition of `__transaction_state` this broker leads.

It drives the machine beside it: one event at a time, the new state first, then the effects. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from logstore.env import SYSTEM, Env
from logstore.records import batch
from replication.config.broker import BrokerConfig
from replication.coordinators.partitioning import PartitionMapping
from replication.coordinators.terms import LOADED_AT_ONCE, InternalTopic, Term, Terms, Written
from replication.coordinators.transactions.machine import events
from replication.coordinators.transactions.machine.records import Loaded, key_of, value_of
from replication.coordinators.transactions.machine.state import (
    COMPLETED,
    EPOCH_GIVEN_MAX,
    NO_ID,
    Phase,
    Transaction,
    TransactionSettings,
)
from replication.coordinators.transactions.machine.step import resume, step
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition

logger = logging.getLogger(__name__)

APPEND_TIMEOUT_MS = 5000
RETRY_S = 0.5  # after an end could not be stored, which nobody asks for again

Done: TypeAlias = Callable[[frozenset[TopicPartition]], None]


class MarkerWriter(Protocol):
    """Has markers written by the leaders of partitions, wherever they are."""

    def write(self, markers: events.WriteMarkers, coordinator_epoch: int, done: Done) -> Callable[[], None]:
        """Go on until all are written; call `done` for each partition once. Returns what gives it up."""


class _Slot:
    __slots__ = ("give_up", "transaction")

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.give_up: Callable[[], None] = lambda: None  # the markers that are being written


class TransactionCoordinator:
    """`next_id` returns a producer id that nobody has; it raises KafkaError while there is none."""

    def __init__(
        self,
        config: BrokerConfig,
        mapping: PartitionMapping,
        topic: InternalTopic,
        markers: MarkerWriter,
        next_id: Callable[[], Awaitable[int]],
        env: Env = SYSTEM,
    ) -> None:
        self._config = config
        self._limits = config.part(TransactionSettings)
        self._topic = topic
        self._markers = markers
        self.next_id = next_id
        self._env = env
        pause_ms = config.zookeeper_session_timeout_ms // 3
        self.terms: Terms[_Slot] = Terms(mapping, topic, self, pause_ms, env)
        self._requests = itertools.count(1)
        self._asking: dict[int, asyncio.Future[events.Body]] = {}

    def begin(self) -> None:
        config = self._config
        self.terms.begin()
        self.terms.every(config.transaction_abort_timed_out_transaction_cleanup_interval_ms, self._tick)
        self.terms.every(config.transaction_remove_expired_transaction_cleanup_interval_ms, self._expire)

    def end(self) -> None:
        self.terms.end()

    def transaction(self, transactional_id: str) -> Transaction | None:
        """Return what is known of the id; None: nothing. Raises: KafkaError: as `Terms.slot`."""
        slot = self.terms.slot(transactional_id)
        return slot.transaction if slot is not None else None

    def transactions(self) -> list[Transaction]:
        """Return all transactions of this broker. Raises: KafkaError: COORDINATOR_LOAD_IN_PROGRESS."""
        return [slot.transaction for slot in self.terms.slots()]

    def open_ages_ms(self) -> list[int]:
        """How long the transactions of this broker are open that are. Raises: as `transactions`."""
        now_ms = self._env.clock.now_ms()
        return [max(0, now_ms - t.started_ms) for t in self.transactions() if t.phase is Phase.ONGOING]

    async def ask(self, transactional_id: str, event: Callable[[int], events.Event]) -> events.Body:
        """Post the event that `event` makes of a request number to the id; return the answer to that request.

        Raises: KafkaError: as `Terms.slot`, since some requests are answered without an append.
        """
        slot = self.terms.slot(transactional_id)
        term = self.terms.term_of(transactional_id)
        if slot is None:
            slot = term.slots[transactional_id] = _Slot(Transaction(id=transactional_id))
        request = next(self._requests)
        answer = self._asking[request] = asyncio.get_running_loop().create_future()
        self._post(term, slot, event(request))
        body: events.Body = await answer
        return body

    async def id_after(self, producer_epoch: int) -> int:
        """Return another producer id if this epoch is the last one that may be given. Raises: KafkaError."""
        return await self.next_id() if producer_epoch >= EPOCH_GIVEN_MAX else NO_ID

    async def fill(self, term: Term[_Slot]) -> bool:
        loaded = Loaded()
        if not await self._topic.load(term.leadership, loaded):
            return False
        for count, (name, stored) in enumerate(loaded.transactions.items()):
            transaction, effects = resume(stored, self._env.clock.now_ms(), self._limits)
            slot = term.slots[name] = _Slot(transaction)
            self._perform(term, slot, effects)
            if count % LOADED_AT_ONCE == 0:
                await asyncio.sleep(0)  # other tasks get a turn; if the term ends, this task is cancelled
        return True

    def clear(self, term: Term[_Slot]) -> None:
        for slot in tuple(term.slots.values()):
            slot.give_up()
            self._post(term, slot, events.Unloaded())

    def _post(self, term: Term[_Slot], slot: _Slot, event: events.Event) -> None:
        slot.transaction, effects = step(slot.transaction, event, self._env.clock.now_ms(), self._limits)
        self._perform(term, slot, effects)

    def _perform(self, term: Term[_Slot], slot: _Slot, effects: tuple[events.Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case events.Answer(request, body):
                    answer = self._asking.pop(request)
                    if not answer.done():
                        answer.set_result(body)
                case events.Append():
                    self._append(term, slot, effect)
                case events.WriteMarkers():
                    self._write_markers(term, slot, effect)
        name = slot.transaction.id
        if slot.transaction.is_blank and term.slots.get(name) is slot:
            del term.slots[name]

    def _write_markers(self, term: Term[_Slot], slot: _Slot, markers: events.WriteMarkers) -> None:
        def done(partitions: frozenset[TopicPartition]) -> None:
            if term.slots.get(slot.transaction.id) is slot:
                self._post(term, slot, events.Marked(partitions))

        slot.give_up()
        slot.give_up = self._markers.write(markers, term.leadership.leader_epoch, done)

    def _append(self, term: Term[_Slot], slot: _Slot, append: events.Append) -> None:
        loop = asyncio.get_running_loop()
        if term.leadership.is_over:
            written = Written(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            loop.call_soon(self._appended, term, slot, append, written)
            return
        stored, now_ms = append.stored, self._env.clock.now_ms()
        value = None if stored.phase is Phase.DEAD else value_of(stored)
        records = batch.build([batch.Record(0, now_ms, key_of(stored.id), value)])
        found = self._topic.append(term.partition, records, timeout_ms=APPEND_TIMEOUT_MS)
        if isinstance(found, Written):
            loop.call_soon(self._appended, term, slot, append, found)
            return
        answer = asyncio.ensure_future(found)
        answer.add_done_callback(lambda done: self._appended(term, slot, append, done.result()))

    def _appended(self, term: Term[_Slot], slot: _Slot, append: events.Append, written: Written) -> None:
        if written.error:
            logger.warning("id=%s %s is not stored: %s", append.stored.id, append.stored.phase, written.error.name)
            if append.stored.phase in COMPLETED:
                asyncio.get_running_loop().call_later(RETRY_S, self._tick_one, term, slot)
        self._post(term, slot, events.Stored(append, written.error))

    def _tick_one(self, term: Term[_Slot], slot: _Slot) -> None:
        if term.slots.get(slot.transaction.id) is slot:
            self._post(term, slot, events.Ticked())

    def _tick(self) -> None:
        self._tell_all(events.Ticked())

    def _expire(self) -> None:
        self._tell_all(events.Expire())

    def _tell_all(self, event: events.Event) -> None:
        for term in self.terms.all():
            for slot in tuple(term.slots.values()) if term.loading is None else ():
                self._post(term, slot, event)
