"""Verification: before a partition takes the first batch of a transaction, its leader asks the coordinator.

A batch that comes late, after its transaction has ended, would open one that nobody ends. So the leader takes
transactional batches of a producer only from when the coordinator says that the transaction holds the partition until
the next marker comes: where a marker of that transaction overtakes the answer, the coordinator is asked again. Batches
that wait for an answer are appended in their order. All partitions of a transaction that are asked about in one turn of
the loop, as those of one Produce, are one request, and one append of the coordinator. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Coroutine, Mapping, Set
from typing import Any, NamedTuple, TypeVar

from logstore.errors import PylogError
from replication.config.broker import BrokerConfig
from replication.coordinators.transactions.coordinator import TransactionCoordinator
from replication.coordinators.transactions.machine import events
from replication.errors import ErrorCode, KafkaError, ProtocolError
from replication.model.cluster import TRANSACTIONS_TOPIC, TopicPartition, by_topic
from replication.model.metadata import Metadata
from replication.network.client import Clients
from replication.protocol.apis import ApiKey
from replication.replica.leader.leader import Leader, append_one
from replication.replica.leader.purgatory import PendingProduce
from replication.replica.leader.results import AppendResult
from replication.replica.leader.writers import Question, Waiter, has_begun

logger = logging.getLogger(__name__)

Found = TypeVar("Found")
# Between two questions while the coordinator cannot say: at first as in Kafka, then a part of the wait so far.
RETRY_S, RETRY_S_MAX, RETRY_PART = 0.02, 0.2, 0.125
# A question is asked for no more than half the time of its request, so that the answer finds its client.
ASKED_PART = 0.5
_PRODUCER = struct.Struct(">43xqhi")  # of a batch: the id and epoch of its producer, and the first sequence number


class Asked(NamedTuple):
    """A transaction, as its producer names it. `adds`: the partition is to be added to it (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds: bool


class Verification:
    """Without `transaction.partition.verification.enable` only those that ask for it are added, and others believed."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: Metadata,
        clients: Clients,
        transactions: TransactionCoordinator,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._clients = clients
        self._transactions = transactions
        self._tasks: set[asyncio.Task[Any]] = set()
        self._together: dict[Asked, tuple[set[TopicPartition], asyncio.Task[Mapping[TopicPartition, ErrorCode]]]] = {}

    def append(
        self,
        leader: Leader,
        records: bytearray | memoryview,
        acks: int,
        request: PendingProduce,
        transaction: tuple[str, bool],
        timeout_ms: int,
    ) -> None:
        """Append a transactional batch as `append_one` does. `transaction`: id, and whether the batch adds to it."""
        producer_id, producer_epoch, sequence = _PRODUCER.unpack_from(records)
        asked = Asked(transaction[0], producer_id, producer_epoch, transaction[1])

        def append(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                append_one(leader, records, acks, request)
            else:
                message = f"{asked.transactional_id!r} does not hold {leader.replica.tp} now: {error.name}"
                if error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    message = f"the transaction does not begin in {leader.replica.tp} with sequence number {sequence}"
                request.settle(leader.replica.tp, AppendResult(error, error_message=message))

        self._look(leader, asked, timeout_ms, append, sequence if asked.adds else 0)

    async def check(self, leader: Leader, asked: Asked) -> ErrorCode:
        """Return NONE if the transaction holds the partition, which may be written to at once."""
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def tell(error: ErrorCode) -> None:
            if not answer.done():  # nobody waits any more
                answer.set_result(error)

        self._look(leader, asked, self._config.offsets_commit_timeout_ms, tell)
        return answer.result() if answer.done() else await answer

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _look(self, leader: Leader, asked: Asked, timeout_ms: int, tell: Waiter, sequence: int = 0) -> None:
        """Call `tell` with NONE if the transaction holds the partition: at once, where that is known or not asked."""
        producer = asked.producer_id, asked.producer_epoch
        if not (self._config.transaction_partition_verification_enable or asked.adds):
            leader.writers.add(*producer)
        if leader.writers.holds(*producer):
            tell(ErrorCode.NONE)
            return
        loop = asyncio.get_running_loop()
        question, is_new = leader.writers.question(*producer)
        question.wait(tell, sequence)
        question.until_s = max(question.until_s, loop.time() + ASKED_PART * timeout_ms / 1000)
        if is_new:
            task = self._start(self._ask(leader, asked, question))
            # Where it ended early; else all are answered already.
            over = ErrorCode.NOT_LEADER_OR_FOLLOWER
            task.add_done_callback(lambda _: leader.writers.answered(*producer, over))

    def _start(self, what: Coroutine[Any, Any, Found]) -> asyncio.Task[Found]:
        task = asyncio.get_running_loop().create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _ask(self, leader: Leader, asked: Asked, question: Question) -> None:
        """Ask until the coordinator knows, and no marker has overtaken what it said; then tell all who wait."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            question.is_void = False
            begun = not question.comes_late or await _has_begun(leader, asked)
            error = question.judge(await self._ask_once(leader.replica.tp, asked))
            now_s = loop.time()
            if leader.is_over or not error.is_retriable or now_s >= question.until_s:
                break
            await asyncio.sleep(min(RETRY_S_MAX, max(RETRY_S, (now_s - began_s) * RETRY_PART)))
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER if leader.is_over else _producer_error(error, adds=asked.adds)
        leader.writers.answered(asked.producer_id, asked.producer_epoch, error, has_begun=begun)

    async def _ask_once(self, tp: TopicPartition, asked: Asked) -> ErrorCode:
        if asked not in self._together:
            tps: set[TopicPartition] = set()
            self._together[asked] = tps, self._start(self._ask_together(asked, tps))
        tps, answer = self._together[asked]
        tps.add(tp)
        code = (await asyncio.shield(answer)).get(tp, ErrorCode.UNKNOWN_SERVER_ERROR)
        if code is ErrorCode.OPERATION_NOT_ATTEMPTED:  # another partition was refused, and all with it
            code = (await self._ask_about(asked, {tp})).get(tp, ErrorCode.UNKNOWN_SERVER_ERROR)
        return code

    async def _ask_together(self, asked: Asked, tps: Set[TopicPartition]) -> Mapping[TopicPartition, ErrorCode]:
        del self._together[asked]  # this begins once all that ask in this turn have done so
        return await self._ask_about(asked, tps)

    async def _ask_about(self, asked: Asked, tps: Set[TopicPartition]) -> Mapping[TopicPartition, ErrorCode]:
        try:
            return await self._answers(asked, tps)
        except KafkaError as failure:
            return dict.fromkeys(tps, failure.code)
        except (OSError, TimeoutError, ProtocolError) as failure:
            logger.info("tp=%s the coordinator does not answer: %s", min(tps), failure)
            return dict.fromkeys(tps, ErrorCode.NOT_ENOUGH_REPLICAS)

    async def _answers(self, asked: Asked, tps: Set[TopicPartition]) -> Mapping[TopicPartition, ErrorCode]:
        name = asked.transactional_id
        leader = self._metadata.leader(TRANSACTIONS_TOPIC, self._transactions.terms.partition_of(name))
        if leader == self._config.broker_id:
            add = await self._transactions.ask(
                name,
                lambda request: events.Add(
                    request=request,
                    producer_id=asked.producer_id,
                    producer_epoch=asked.producer_epoch,
                    partitions=frozenset(tps),
                    is_question=not asked.adds,
                ),
            )
            assert isinstance(add, events.Added), "every event has its kind of answer"
            return {tp: add.error or add.refused.get(tp, ErrorCode.NONE) for tp in tps}
        address = self._metadata.brokers().get(-1 if leader is None else leader)
        if address is None:
            return dict.fromkeys(tps, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        row = {
            "transactional_id": name,
            "producer_id": asked.producer_id,
            "producer_epoch": asked.producer_epoch,
            "verify_only": not asked.adds,
            "topics": by_topic({tp: tp.partition for tp in sorted(tps)}, "partitions"),
        }
        key = ApiKey.ADD_PARTITIONS_TO_TXN
        answer = await self._clients.call(address.host, address.port, key, {"transactions": [row]})
        if answer.error_code:
            return dict.fromkeys(tps, ErrorCode(int(answer.error_code)))
        (found,) = answer.results_by_transaction
        return {
            TopicPartition(topic.name, each.partition_index): ErrorCode(int(each.partition_error_code))
            for topic in found.topic_results
            for each in topic.results_by_partition
        }


async def _has_begun(leader: Leader, asked: Asked) -> bool:
    """Return whether the log has the beginning of this transaction; a log that cannot be read has it for nobody."""
    try:
        opened = await leader.replica.host.disk.read(leader.replica.log.producers.open_transactions)
    except (PylogError, OSError) as failure:
        logger.info("tp=%s its producers are not known: %s", leader.replica.tp, failure)
        return False
    return has_begun(opened, asked.producer_id, asked.producer_epoch)


def _producer_error(error: ErrorCode, *, adds: bool) -> ErrorCode:
    """Return what producers know what to do with, for an answer of the coordinator."""
    if error.is_retriable:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    is_unknown = error is ErrorCode.TRANSACTION_ABORTABLE and not adds
    return ErrorCode.INVALID_TXN_STATE if is_unknown else error
