"""Sender: prebuilt batches to the leaders of their partitions, in order and, with acks=all, once each.

Laws: the batches of a partition are appended in the order of `send`. With acks=all each is appended once, whatever is
repeated: a broker knows a batch again by its producer and sequence. At most `IN_FLIGHT` requests wait on a broker; one
for a partition until one is acknowledged by its present leader, and always with acks 0 or 1, where nothing is known
again. When one is refused, those behind it are sent again, too, as soon as all are answered. A batch that is too large
is sent again in halves. One that cannot be appended until its deadline, or ever, fails alone. When a leader misses what
came before a batch (that failed, or was cut by an unclean election), the batch and those behind it are numbered anew in
a new epoch of the producer: the leader has none of them. If it does not know the producer, and its log begins behind
what was acknowledged, it may have had and deleted them; what was sent before then fails. Every batch is answered, also
when the sender itself fails. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from typing import Any

from logstore.errors import PylogError
from replication.client.attempts import BACKOFF_MAX_S, BACKOFF_MIN_S, LOST, SAYS_AFTER_S, failure_of, reason_of
from replication.client.cluster import Cluster
from replication.client.metadata import NO_LEADER
from replication.client.partition_queue import EPOCH_MAX, IN_FLIGHT, TOO_LARGE, Answered, Batch, PartitionQueue
from replication.client.transactions import Transaction, add_partitions, remedy_of
from replication.errors import ErrorCode, KafkaError, code_in, error_of
from replication.model.cluster import TopicPartition, rows_by_topic
from replication.network.loops import is_set_within
from replication.protocol.apis import ApiKey
from replication.protocol.messages import ProducePartition, ProduceRequest, ProduceTopic

logger = logging.getLogger(__name__)

REQUEST_BYTES = 8 * 1024 * 1024
ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
PRODUCE_LAST = 11  # from 12 on brokers add partitions themselves, and each end must begin another epoch
NO_OFFSET = -1  # appended, and nobody says where

# A broker that says so has the batch, or has had it.
_IS_THERE = ErrorCode.DUPLICATE_SEQUENCE_NUMBER


class Sender:
    """See the module. `timeout_ms` is the time that a batch has until it is acknowledged; `producer` needs acks=all.

    With a `transaction`, its pair must be the `producer`.
    """

    def __init__(
        self,
        cluster: Cluster,
        producer: tuple[int, int] | None,
        *,
        acks: int = ACKS_ALL,
        timeout_ms: int = 120_000,
        transaction: Transaction | None = None,
    ) -> None:
        self._cluster = cluster
        self._producer = producer
        self._transaction = transaction
        self.added: frozenset[TopicPartition] = frozenset()  # the partitions of the transaction
        self._acks = acks
        self._timeout_s = timeout_ms / 1000
        self._partitions: dict[TopicPartition, PartitionQueue] = {}
        self._in_flight: dict[int, int] = {}
        self.error: PylogError | None = None  # if nothing is taken any more
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unanswered_bytes, self._room = 0, asyncio.Event()
        self._has_said = False  # that appends take long, since the last one
        self._start(self._send_all())

    @classmethod
    async def begin(cls, cluster: Cluster, *, acks: int = ACKS_ALL, timeout_ms: int = 120_000) -> Sender:
        """A sender; with acks=all it has a producer id.

        Raises: UnreachableError, UnsupportedVersionError, KafkaError.
        """
        if acks != ACKS_ALL:
            return cls(cluster, None, acks=acks, timeout_ms=timeout_ms)
        backoff = cluster.backoff()
        while True:
            request = {"transactional_id": None, "transaction_timeout": timeout_ms}
            answer = await cluster.call_any(ApiKey.INIT_PRODUCER_ID, request)
            code = code_in(answer)
            if code is ErrorCode.NONE:
                return cls(cluster, (answer.producer_id, answer.producer_epoch), timeout_ms=timeout_ms)
            if not code.is_retriable or backoff.is_over:
                raise KafkaError(code, "no producer id")
            await backoff.wait()

    def send(self, tp: TopicPartition, data: memoryview, first: int, count: int, answered: Answered) -> None:
        """Send one writable batch of `count` records. `answered` gets each of them once, in the event loop.

        Raises: PylogError: the sender has failed before.
        """
        if self.error is not None:
            raise self.error
        assert self._transaction is None or tp in self.added, "it is a part of the transaction"
        state = self._partitions.get(tp)
        if state is None:
            state = self._partitions[tp] = PartitionQueue(tp, self._producer[1] if self._producer else -1)
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        state.waiting.append(Batch(data, first, count, deadline, answered))
        self._unanswered_bytes += len(data)
        self._changed.set()

    async def add(self, partitions: Collection[TopicPartition]) -> None:
        """Make these a part of the transaction, if there is one; before their first `send`. Raises: KafkaError."""
        new = frozenset(partitions) - self.added
        if self._transaction is not None and new:
            await add_partitions(self._cluster, *self._transaction, new)
            self.added |= new

    async def room(self, bytes_max: int) -> None:
        """Wait until no more than so many bytes are unanswered."""
        while self._unanswered_bytes > bytes_max:
            self._room.clear()
            await self._room.wait()

    async def close(self) -> None:
        """Stop. Records that were not acknowledged may be appended, or not."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail_all(KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer was closed"))

    # ------------------------------------------------------------------- sending

    def _start(self, what: Any) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fail all waiting batches when a task of the sender has failed."""
        self._tasks.discard(task)
        if (error := failure_of(task, "the producer")) is not None:
            logger.error("the producer failed", exc_info=task.exception())
            self._fail_all(error)

    async def _send_all(self) -> None:
        while self.error is None:
            self._changed.clear()
            await is_set_within(self._changed, await self._send_ready())

    async def _send_ready(self) -> float | None:
        """Send what can be sent now; return in how many seconds to look again, None: when something has changed."""
        now, again = asyncio.get_running_loop().time(), float("inf")
        shares: dict[int, list[PartitionQueue]] = {}
        for state in tuple(self._partitions.values()):  # others come while a leader is looked up
            if not self._may_send(state, now):
                continue
            again = min(again, state.waiting[0].deadline - now)
            if state.not_before > now:
                again = min(again, state.not_before - now)
                continue
            leader = await self._leader(state)
            if leader is None:
                again = min(again, state.backoff_s)
            elif self._in_flight.get(leader, 0) < IN_FLIGHT and state.turn_to(leader):
                shares.setdefault(leader, []).append(state)
        for leader, states in shares.items():
            self._send(leader, states)
            if any(state.waiting for state in states):
                self._changed.set()
        return None if again == float("inf") else max(again, 0.001)

    def _may_send(self, state: PartitionQueue, now: float) -> bool:
        """Is there something to send, in its turn? Late batches fail first."""
        while not state.is_rewinding and state.waiting and state.waiting[0].deadline <= now:
            self._give_up(state, _late(state.tp, state.waiting[0]))
        return state.may_send

    async def _leader(self, state: PartitionQueue) -> int | None:
        """The partition's leader; None if it has none, or cannot be found: then all waiting batches have failed."""
        try:
            leader = (await self._cluster.leader(state.tp)).broker
        except PylogError as error:
            while state.waiting:
                self._give_up(state, error)
            return None
        if leader == NO_LEADER:
            self._retry_later(state, "it has no leader")
            return None
        return leader

    def _send(self, leader: int, states: Iterable[PartitionQueue]) -> None:
        taken: dict[PartitionQueue, Batch] = {}
        size, producer_id = 0, self._producer[0] if self._producer is not None else None
        for state in states:
            if not state.waiting or (size and size + len(state.waiting[0].data) > REQUEST_BYTES):
                continue
            taken[state] = batch = state.take(producer_id, is_transactional=self._transaction is not None)
            size += len(batch.data)
        if taken:
            self._in_flight[leader] = self._in_flight.get(leader, 0) + 1
            self._start(self._request(leader, taken))

    async def _request(self, leader: int, taken: dict[PartitionQueue, Batch]) -> None:
        failed: KafkaError | None = None
        answers: dict[TopicPartition, Any] = {}
        try:
            answers = await self._answers(leader, taken)
        except (*LOST, KafkaError) as error:
            failed = KafkaError(ErrorCode.NETWORK_EXCEPTION, str(error))
        finally:
            self._in_flight[leader] -= 1
            self._changed.set()
        for state, batch in taken.items() if self.error is None else ():
            found = answers.get(state.tp)
            if self._acks == ACKS_NONE and failed is None:
                self._appended(state, batch, NO_OFFSET)
            elif found is None:
                lost = failed or KafkaError(ErrorCode.NETWORK_EXCEPTION, f"no answer for {state.tp}")
                self._refused(state, batch, lost)
            elif found.error_code in (ErrorCode.NONE, _IS_THERE):
                self._appended(state, batch, found.base_offset)
            else:
                batch.may_be_deleted = not 0 <= found.log_start_offset <= state.acknowledged_end
                self._refused(state, batch, _refusal(found, state.tp, self._transaction))

    async def _answers(self, leader: int, taken: dict[PartitionQueue, Batch]) -> dict[TopicPartition, Any]:
        """The leader's answer for each partition; empty with acks=0. Raises: as `Cluster.call_leader`."""
        topics = rows_by_topic((s.tp, ProducePartition(s.tp.partition, batch.data)) for s, batch in taken.items())
        left_s = min(batch.deadline for batch in taken.values()) - asyncio.get_running_loop().time()
        request = ProduceRequest(
            self._acks,
            max(1, min(30_000, int(left_s * 1000))),
            tuple(ProduceTopic(name, tuple(partitions)) for name, partitions in topics.items()),
            self._transaction.transactional_id if self._transaction else None,
        )
        if self._acks == ACKS_NONE:
            await (await self._cluster.connection(leader)).tell(ApiKey.PRODUCE, request)
            return {}
        bounds = {"version_max": PRODUCE_LAST} if self._transaction else {}
        answer = await self._cluster.call_leader(leader, topics, ApiKey.PRODUCE, request, **bounds)
        return {TopicPartition(topic.name, p.partition): p for topic in answer.topics for p in topic.partitions}

    # ------------------------------------------------------------------- answers

    def _appended(self, state: PartitionQueue, batch: Batch, base_offset: int) -> None:
        state.sent.remove(batch)
        state.backoff_s, state.failing_since_s, self._has_said = 0.0, None, False
        state.is_known = self._producer is not None and not state.is_rewinding
        if base_offset != NO_OFFSET:
            state.acknowledged_end = base_offset + batch.count
        self._settle(batch, base_offset)
        self._rewind(state)

    def _refused(self, state: PartitionQueue, batch: Batch, error: KafkaError) -> None:
        batch.error, batch.is_refused, state.is_known = error, True, False
        if not state.is_rewinding:
            state.is_rewinding = True
            if error.code not in TOO_LARGE:
                self._retry_later(state, error)
        self._rewind(state)

    def _rewind(self, state: PartitionQueue) -> None:
        """Have everything that was not appended sent again, once all that is under way is answered."""
        if not state.is_rewinding or not all(batch.is_refused for batch in state.sent):
            return
        oldest = state.sent[0] if state.sent else None
        has_gap, is_lost = (oldest.has_gap, oldest.is_lost) if oldest is not None else (False, False)
        if oldest is not None and self._transaction is not None and (has_gap or is_lost):
            self._fail_all(oldest.failure(state.tp))
            return
        again: list[Batch] = []
        for batch in state.sent:
            if batch.can_be_halved:
                again += self._halves(batch)
            elif batch is oldest and is_lost:
                self._settle(batch, batch.failure(state.tp))
            else:  # whatever was said of those behind the oldest was said of a gap
                batch.prepare_again()
                again.append(batch)
        state.sent.clear()
        state.waiting.extendleft(reversed(again))
        state.is_rewinding = False
        if has_gap and not is_lost:
            self._begin_epoch(state)
        self._changed.set()

    def _halves(self, batch: Batch) -> Iterable[Batch]:
        self._unanswered_bytes -= len(batch.data)
        for half in batch.halves():
            self._unanswered_bytes += len(half.data)
            yield half

    def _begin_epoch(self, state: PartitionQueue) -> None:
        if state.epoch == EPOCH_MAX:
            self._fail_all(
                KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, "its epochs are used up: make another producer")
            )
        logger.info("tp=%s epoch=%d of the producer begins", state.tp, state.epoch + 1)
        state.begin_epoch()

    def _give_up(self, state: PartitionQueue, error: PylogError) -> None:
        """The oldest batch that waits fails; with a transaction everything does."""
        if self._transaction is not None:
            self._fail_all(error)
        else:
            self._settle(state.waiting.popleft(), error)

    def _settle(self, batch: Batch, outcome: int | PylogError) -> None:
        self._unanswered_bytes -= len(batch.data)
        self._room.set()
        batch.answered(batch.first, batch.count, outcome)

    def _retry_later(self, state: PartitionQueue, why: object) -> None:
        now_s = asyncio.get_running_loop().time()
        self._cluster.forget([state.tp.topic])
        state.backoff_s = min(max(2 * state.backoff_s, BACKOFF_MIN_S), BACKOFF_MAX_S)
        state.not_before = now_s + state.backoff_s
        if state.failing_since_s is None:
            state.failing_since_s = now_s
        elif now_s - state.failing_since_s >= SAYS_AFTER_S and not self._has_said:
            self._has_said = True  # and not of every partition
            logger.warning("still trying to append to %s: %s", state.tp, reason_of(why))

    def _fail_all(self, error: PylogError) -> None:
        self.error = self.error or error
        for state in self._partitions.values():
            for batch in (*state.sent, *state.waiting):
                self._settle(batch, error)
            state.sent.clear()
            state.waiting.clear()
        self._changed.set()


def _refusal(found: Any, tp: TopicPartition, transaction: Transaction | None) -> KafkaError:
    said = f": {found.error_message}" if found.error_message else ""
    return error_of(found.error_code, f"append to {tp}{said}{remedy_of(found.error_code) if transaction else ''}")


def _late(tp: TopicPartition, batch: Batch) -> KafkaError:
    last = f"; last: {batch.error}" if batch.error else ""
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"append to {tp} was not acknowledged in time{last}")
