"""Producer: prebuilt batches to the leaders of their partitions, in order and once each.

Laws: the batches of a partition are appended in the order of `send`, each once, whatever is repeated: a broker knows a
batch again by its producer and sequence. At most `IN_FLIGHT` requests wait on a broker. When one is refused, those
behind it are sent again, too, as soon as all are answered. A batch that cannot be appended until its deadline, or
ever, fails, and everything behind it: it would follow a gap. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from logstore.errors import PylogError, RecordTooLargeError
from logstore.records import batch as batches
from replication.client.cluster import BACKOFF_MAX_S, BACKOFF_MIN_S, LOST, Cluster
from replication.client.metadata import NO_LEADER
from replication.errors import ErrorCode, KafkaError, ProtocolError, error_of
from replication.model.cluster import TopicPartition
from replication.protocol.apis import ApiKey
from replication.protocol.messages import ProducePartition, ProduceRequest, ProduceTopic

logger = logging.getLogger(__name__)

IN_FLIGHT = 5  # brokers know the last five batches of a producer again
REQUEST_BYTES = 8 * 1024 * 1024
ACKS_ALL = -1

# A broker that says so has the batch, or has had it.
_IS_THERE = ErrorCode.DUPLICATE_SEQUENCE_NUMBER


@dataclass(slots=True, eq=False)
class _Batch:
    """One batch, and who waits for its base offset."""

    data: memoryview
    deadline: float
    done: asyncio.Future[int]
    error: KafkaError | None = None  # why the last attempt failed
    is_refused: bool = False  # by the present attempt


@dataclass(slots=True, eq=False)
class _Partition:
    """Invariant: `sent` are the oldest batches, in order; while `is_rewinding`, nothing is sent."""

    tp: TopicPartition
    waiting: deque[_Batch] = field(default_factory=deque)
    sent: deque[_Batch] = field(default_factory=deque)
    is_rewinding: bool = False
    backoff_s: float = 0.0
    not_before: float = 0.0
    next_sequence: int = 0


class Producer:
    """See the module. Made by `begin`; `timeout_ms` is the time that a batch has until it is acknowledged."""

    def __init__(self, cluster: Cluster, producer: tuple[int, int], *, timeout_ms: int) -> None:
        self._cluster = cluster
        self._producer_id, self._epoch = producer
        self._timeout_s = timeout_ms / 1000
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._in_flight: dict[int, int] = {}
        self._error: PylogError | None = None
        self._changed = asyncio.Event()
        self._requests: set[asyncio.Task[None]] = set()
        self._sender = asyncio.create_task(self._send_all())

    @classmethod
    async def begin(cls, cluster: Cluster, *, timeout_ms: int = 120_000) -> Producer:
        """A producer with an id of its own. Raises: UnreachableError, UnsupportedVersionError, KafkaError."""
        backoff = cluster.backoff()
        while True:
            request = {"transactional_id": None, "transaction_timeout": timeout_ms}
            answer = (await cluster.call_any(ApiKey.INIT_PRODUCER_ID, request)).body
            code = ErrorCode(answer.error_code.value)
            if code is ErrorCode.NONE:
                return cls(cluster, (answer.producer_id, answer.producer_epoch), timeout_ms=timeout_ms)
            if not code.is_retriable or backoff.is_over:
                raise KafkaError(code, "no producer id")
            await backoff.wait()

    def stamp(self, tp: TopicPartition, count: int) -> batches.ProducerStamp:
        """What the next batches of the partition bear, `count` records in all: send all of them, in their order."""
        state = self._partitions.setdefault(tp, _Partition(tp))
        first, state.next_sequence = state.next_sequence, batches.sequence_after(state.next_sequence, count)
        return batches.ProducerStamp(self._producer_id, self._epoch, first)

    def send(self, tp: TopicPartition, data: memoryview) -> asyncio.Future[int]:
        """Send one batch that bears `stamp`; the future is its base offset, -1 where the broker does not know it.

        Raises: PylogError: the producer has failed before.
        """
        if self._error is not None:
            raise self._error
        loop = asyncio.get_running_loop()
        batch = _Batch(data, loop.time() + self._timeout_s, loop.create_future())
        self._partitions[tp].waiting.append(batch)
        self._changed.set()
        return batch.done

    @property
    def has_failed(self) -> bool:
        """A batch could not be appended: nothing is taken any more."""
        return self._error is not None

    def fail(self, error: PylogError) -> None:
        """Take nothing more: what was stamped will not be sent, and would leave a gap."""
        self._fail_all(error)

    async def close(self) -> None:
        """Stop. What was not acknowledged may be appended, or not."""
        for task in (self._sender, *self._requests):
            task.cancel()
        await asyncio.gather(self._sender, *self._requests, return_exceptions=True)
        self._fail_all(KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer was closed"))

    # ------------------------------------------------------------------- sending

    async def _send_all(self) -> None:
        try:
            while self._error is None:
                self._changed.clear()
                wait_s = await self._send_ready()
                try:
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
                except TimeoutError:
                    pass
        except PylogError as error:
            self._fail_all(error)
        except Exception as error:  # whoever waits for an answer must hear of it
            self._fail_all(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the producer failed: {error!r}"))
            raise

    async def _send_ready(self) -> float | None:
        """Send what can be sent now; return in how many seconds to look again, None: when something has changed."""
        now, again = asyncio.get_running_loop().time(), float("inf")
        shares: dict[int, list[_Partition]] = {}
        for state in tuple(self._partitions.values()):  # others come while a leader is looked up
            if not state.waiting or state.is_rewinding or len(state.sent) >= IN_FLIGHT:
                continue
            if state.waiting[0].deadline <= now:
                raise _late(state)
            again = min(again, state.waiting[0].deadline - now)
            if state.not_before > now:
                again = min(again, state.not_before - now)
                continue
            leader = (await self._cluster.leader(state.tp)).broker
            if leader == NO_LEADER:
                self._retry_later(state)
                again = min(again, state.backoff_s)
            elif self._in_flight.get(leader, 0) < IN_FLIGHT:
                shares.setdefault(leader, []).append(state)
        for leader, states in shares.items():
            self._send(leader, states)
            if any(state.waiting for state in states):
                self._changed.set()
        return None if again == float("inf") else max(again, 0.001)

    def _send(self, leader: int, states: Iterable[_Partition]) -> None:
        taken: dict[_Partition, _Batch] = {}
        size = 0
        for state in states:
            if size and size + len(state.waiting[0].data) > REQUEST_BYTES:
                continue
            taken[state] = batch = state.waiting.popleft()
            state.sent.append(batch)
            size += len(batch.data)
        self._in_flight[leader] = self._in_flight.get(leader, 0) + 1
        task = asyncio.create_task(self._request(leader, taken))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _request(self, leader: int, taken: dict[_Partition, _Batch]) -> None:
        failed: Any = None
        answers: dict[TopicPartition, Any] = {}
        try:
            topics = {state.tp.topic for state in taken}
            request = self._produce_request(taken)
            answer = await self._cluster.call_leader(leader, topics, ApiKey.PRODUCE, request)
            answers = {
                TopicPartition(topic.name, p.partition): p
                for topic in answer.body.topics
                for p in topic.partitions
            }
        except (*LOST, KafkaError) as error:
            failed = KafkaError(ErrorCode.NETWORK_EXCEPTION, str(error))
        except (ProtocolError, PylogError) as error:
            self._fail_all(error)
            return
        finally:
            self._in_flight[leader] -= 1
            self._changed.set()
        for state, batch in taken.items():
            found = answers.get(state.tp)
            if failed is None and found is None:
                failed = KafkaError(ErrorCode.NETWORK_EXCEPTION, f"no answer for {state.tp}")
            refusal = failed if found is None else _refusal(found, state.tp)
            try:
                self._answered(state, batch, found, refusal)
            except PylogError as final:
                self._fail_all(final)
                return

    def _produce_request(self, taken: dict[_Partition, _Batch]) -> ProduceRequest:
        topics: dict[str, list[ProducePartition]] = {}
        for state, batch in taken.items():
            topics.setdefault(state.tp.topic, []).append(ProducePartition(state.tp.partition, batch.data))
        left_s = min(batch.deadline for batch in taken.values()) - asyncio.get_running_loop().time()
        return ProduceRequest(
            ACKS_ALL,
            max(1, min(30_000, int(left_s * 1000))),
            tuple(ProduceTopic(name, tuple(partitions)) for name, partitions in topics.items()),
        )

    # ------------------------------------------------------------------- answers

    def _answered(self, state: _Partition, batch: _Batch, found: Any, error: KafkaError | None) -> None:
        """One batch is answered. Raises: PylogError: it can never be appended."""
        if error is None:
            state.sent.remove(batch)
            state.backoff_s = 0.0
            if not batch.done.done():
                batch.done.set_result(found.base_offset)
            if state.is_rewinding:
                self._rewind(state)
            return
        batch.error, batch.is_refused = error, True
        is_behind = error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and batch is not state.sent[0]
        if not error.code.is_retriable and not is_behind and not state.is_rewinding:
            raise _final(error, state.tp, batch)
        if not state.is_rewinding:
            state.is_rewinding = True
            self._retry_later(state)
        self._rewind(state)

    def _rewind(self, state: _Partition) -> None:
        """Have everything that was not appended sent again, once all that is under way is answered."""
        if not all(batch.is_refused for batch in state.sent):
            return
        first = state.sent[0] if state.sent else None
        if first is not None and first.error is not None and not first.error.code.is_retriable:
            raise _final(first.error, state.tp, first)
        for batch in state.sent:
            batch.is_refused = False
        state.waiting.extendleft(reversed(state.sent))
        state.sent.clear()
        state.is_rewinding = False
        self._changed.set()

    def _retry_later(self, state: _Partition) -> None:
        self._cluster.forget([state.tp.topic])
        state.backoff_s = min(max(2 * state.backoff_s, BACKOFF_MIN_S), BACKOFF_MAX_S)
        state.not_before = asyncio.get_running_loop().time() + state.backoff_s

    def _fail_all(self, error: PylogError) -> None:
        self._error = self._error or error
        for state in self._partitions.values():
            for batch in (*state.sent, *state.waiting):
                if not batch.done.done():
                    batch.done.set_exception(error)
                    batch.done.exception()  # seen: whoever waits for none of them is no error of its own
        self._changed.set()


def _refusal(found: Any, tp: TopicPartition) -> KafkaError | None:
    if found.error_code in (ErrorCode.NONE, _IS_THERE):
        return None
    return error_of(
        found.error_code, f"append to {tp}{': ' if found.error_message else ''}{found.error_message or ''}"
    )


def _final(error: KafkaError, tp: TopicPartition, batch: _Batch) -> PylogError:
    if error.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return RecordTooLargeError(len(batch.data), len(batch.data) - 1, f"batch for {tp}")
    return error


def _late(state: _Partition) -> KafkaError:
    last = state.waiting[0].error
    return KafkaError(
        ErrorCode.REQUEST_TIMED_OUT,
        f"append to {state.tp} was not acknowledged in time{f'; last: {last}' if last else ''}",
    )


def split(data: memoryview) -> list[tuple[memoryview, int]]:
    """The batches of a buffer with the count of their records: a request takes one batch for a partition."""
    return [(data[at : at + header.size_bytes], header.count) for at, header in batches.batches(data)]
