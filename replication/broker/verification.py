"""Verification: before a partition takes the first batch of a transaction, its leader asks the coordinator.

A batch that comes late, after its transaction has ended, would open one that nobody ends. So the leader takes
transactional batches of a producer only from when the coordinator says that the transaction holds the partition until
the next marker comes: a marker that overtakes the answer voids it. What waits for an answer is appended in its order.
Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import NamedTuple

from replication.config.broker import BrokerConfig
from replication.coordinators.transactions.coordinator import TransactionCoordinator
from replication.coordinators.transactions.machine import events
from replication.errors import ErrorCode, KafkaError, ProtocolError
from replication.model.cluster import TRANSACTIONS_TOPIC, TopicPartition
from replication.model.metadata import Metadata
from replication.network.client import Clients
from replication.protocol.apis import ApiKey
from replication.replica.leader.leader import Leader
from replication.replica.leader.purgatory import PendingProduce
from replication.replica.leader.results import AppendResult

logger = logging.getLogger(__name__)

# While the markers of the transaction before are written: as long as Kafka's leaders, and a little longer.
TRIES, RETRY_S = 10, 0.02
_PRODUCER = struct.Struct(">43xqh")  # of a batch: the id and epoch of its producer


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
        self._tasks: set[asyncio.Task[ErrorCode]] = set()

    def append(
        self,
        leader: Leader,
        records: bytearray | memoryview,
        acks: int,
        request: PendingProduce,
        transaction: tuple[str, bool],
    ) -> None:
        """As `Leader.append`, of a transactional batch; `transaction`: its id, and whether the batch adds to it."""
        producer_id, producer_epoch = _PRODUCER.unpack_from(records)
        asked = Asked(transaction[0], producer_id, producer_epoch, transaction[1])
        wait = self.look(leader, asked)

        def append(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                leader.append(records, acks, request)
            else:
                message = f"{asked.transactional_id!r} does not hold {leader.replica.tp} now: {error.name}"
                request.settle(leader.replica.tp, AppendResult(error, error_message=message))

        if wait is None:
            append(ErrorCode.NONE)
        else:
            wait.add_done_callback(lambda done: append(_judge(leader, asked, done)))

    async def check(self, leader: Leader, asked: Asked) -> ErrorCode:
        """Return NONE if the transaction holds the partition, which may be written to at once."""
        wait = self.look(leader, asked)
        if wait is None:
            return ErrorCode.NONE
        await asyncio.wait((wait,))
        return _judge(leader, asked, wait)

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()

    def look(self, leader: Leader, asked: Asked) -> asyncio.Future[ErrorCode] | None:
        """Return the answer of the coordinator, when it comes; None: it is known, or nobody needs it."""
        if leader.writing.get(asked.producer_id) == asked.producer_epoch:
            return None
        if not (self._config.transaction_partition_verification_enable or asked.adds):
            leader.writing[asked.producer_id] = asked.producer_epoch
            return None
        known = leader.asking.get(asked.producer_id)
        if known is not None and known[0] == asked.producer_epoch:
            return known[1]
        wait = asyncio.get_running_loop().create_task(self._ask(leader.replica.tp, asked))
        self._tasks.add(wait)
        wait.add_done_callback(self._tasks.discard)
        leader.asking[asked.producer_id] = asked.producer_epoch, wait
        wait.add_done_callback(lambda done: _note(leader, asked, done))
        return wait

    async def _ask(self, tp: TopicPartition, asked: Asked) -> ErrorCode:
        error = ErrorCode.NONE
        for _ in range(TRIES):
            try:
                error = await self._ask_once(tp, asked)
            except KafkaError as failure:
                error = failure.code
            except (OSError, TimeoutError, ProtocolError) as failure:
                logger.info("tp=%s the coordinator does not answer: %s", tp, failure)
                error = ErrorCode.NOT_ENOUGH_REPLICAS
            if error is not ErrorCode.CONCURRENT_TRANSACTIONS:
                break
            await asyncio.sleep(RETRY_S)
        # Producers know what to do with these; not with the coordinator's.
        if error.is_retriable:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        told = {ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH}
        if not asked.adds:
            told[ErrorCode.TRANSACTION_ABORTABLE] = ErrorCode.INVALID_TXN_STATE
        return told.get(error, error)

    async def _ask_once(self, tp: TopicPartition, asked: Asked) -> ErrorCode:
        name = asked.transactional_id
        leader = self._metadata.leader(TRANSACTIONS_TOPIC, self._transactions.terms.partition_of(name))
        if leader == self._config.broker_id:
            add = await self._transactions.ask(
                name,
                lambda request: events.Add(
                    request=request,
                    producer_id=asked.producer_id,
                    producer_epoch=asked.producer_epoch,
                    partitions=frozenset({tp}),
                    is_question=not asked.adds,
                ),
            )
            assert isinstance(add, events.Added), "every event has its kind of answer"
            return add.error or add.refused.get(tp, ErrorCode.NONE)
        address = self._metadata.brokers().get(-1 if leader is None else leader)
        if address is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        row = {
            "transactional_id": name,
            "producer_id": asked.producer_id,
            "producer_epoch": asked.producer_epoch,
            "verify_only": not asked.adds,
            "topics": [{"name": tp.topic, "partitions": [tp.partition]}],
        }
        key = ApiKey.ADD_PARTITIONS_TO_TXN
        answer = await self._clients.call(address.host, address.port, key, {"transactions": [row]})
        if answer.error_code:
            return ErrorCode(int(answer.error_code))
        (found,) = answer.results_by_transaction
        return ErrorCode(int(found.topic_results[0].results_by_partition[0].partition_error_code))


def _note(leader: Leader, asked: Asked, done: asyncio.Future[ErrorCode]) -> None:
    """The first to hear of the answer: unless a marker came before it, the producer may write here."""
    if leader.asking.get(asked.producer_id) == (asked.producer_epoch, done):
        del leader.asking[asked.producer_id]
        if not done.cancelled() and done.result() is ErrorCode.NONE:
            leader.writing[asked.producer_id] = asked.producer_epoch


def _judge(leader: Leader, asked: Asked, done: asyncio.Future[ErrorCode]) -> ErrorCode:
    """What counts is what holds now, when the batch is about to be appended."""
    if leader.is_over or done.cancelled():
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    error = done.result()
    if error is ErrorCode.NONE and leader.writing.get(asked.producer_id) != asked.producer_epoch:
        return ErrorCode.INVALID_TXN_STATE
    return error
