"""Produce: records in as they are, undecoded. What is asked of a batch here is read off its header.

A request's partitions fail one by one: each has its own error code. With acks=0 nobody can be told, so that a failure
closes the connection, which makes the client look up who leads.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import TypeAlias

from logstore.records.batch import is_transactional
from replication.broker.handlers.moved import MOVED, current_leader
from replication.broker.verification import Verification
from replication.config.broker import BrokerConfig
from replication.errors import ErrorCode, KafkaError, ProtocolError, message_of
from replication.model.cluster import INTERNAL_TOPICS, TopicPartition
from replication.model.metadata import Metadata
from replication.network.steps import STEP_ITEMS, in_steps
from replication.network.work import Encoded, Handler, Work
from replication.protocol.apis import ApiKey
from replication.protocol.messages import (
    NodeEndpoint,
    PartitionProduced,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    RecordError,
    TopicProduced,
)
from replication.protocol.wire import Buffer
from replication.replica.leader.guard import Accepts, Refusal, base_offset_of, refuse_header
from replication.replica.leader.leader import PROMPT_BYTES_MAX, append_one
from replication.replica.leader.purgatory import PendingProduce, Results
from replication.replica.leader.results import ALL_IN_SYNC, LEADER_ONLY, AppendResult
from replication.replica.manager import ReplicaManager

logger = logging.getLogger(__name__)

APPENDED_AT_ONCE = 100  # partitions of a long request in one turn of the loop: some 30 us each
PRODUCE_LEADERS = 10  # the first version that tells who leads now
PRODUCE_ADDS = 12  # the version whose transactional batches add their partition to the transaction
ACKS = frozenset((ALL_IN_SYNC, 0, LEADER_ONLY))


ACCEPTS = tuple(Accepts(version, False) for version in range(ApiKey.PRODUCE.versions.last + 1))

Answer: TypeAlias = Encoded | ProduceResponse | None


class DataHandlers:
    def __init__(
        self,
        config: BrokerConfig,
        replicas: ReplicaManager,
        verification: Verification,
    ) -> None:
        self._config = config
        self._replicas = replicas
        self._verification = verification
        self._metadata: Metadata = replicas.metadata
        self._errors = replicas.counters.answered_errors

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.PRODUCE: self.produce}

    # ----------------------------------------------------------------- produce

    def produce(self, context: Work, request: ProduceRequest) -> Awaitable[Answer] | Answer:
        """Append batches, one per partition. They are in the log, or in its queue, in order, when this returns.

        But for requests of very many partitions, or in a transaction. The server begins none behind such a long one
        before it is answered; those in transactions are appended in the order in which the coordinator was asked.
        """
        acks, timeout_ms, topics, transactional_id = request
        count = sum([len(topic.partitions) for topic in topics])
        if transactional_id is not None or max(len(topics), count) > STEP_ITEMS:
            return self._produce_many(context, request)
        refused: dict[TopicPartition, AppendResult] = {}
        records: dict[TopicPartition, bytearray | memoryview] = {}
        all_wrong, accepts = _refuse_all(request), ACCEPTS[context.version]
        for name, partitions in topics:
            reason = all_wrong or _refuse_topic(name)
            for row in partitions:
                self._sort(accepts, TopicPartition(name, row[0]), row, reason, refused, records)
        for tp in refused:
            records.pop(tp, None)
        pending = PendingProduce(records)
        self._append_some(context, request, records, pending)
        if pending.is_over:
            return self._produced(context, request, refused, pending.results)
        if acks == ALL_IN_SYNC:
            context.park()
        respond = partial(self._produced, context, request, refused)
        return pending.wait(respond, max(0, timeout_ms) if acks == ALL_IN_SYNC else -1)

    async def _produce_many(self, context: Work, request: ProduceRequest) -> ProduceResponse | None:
        refused: dict[TopicPartition, AppendResult] = {}
        records: dict[TopicPartition, bytearray | memoryview] = {}
        all_wrong, accepts = _refuse_all(request), Accepts(context.version, request.transactional_id is not None)
        async for chunk in in_steps((topic.name, row) for topic in request.topics for row in topic.partitions):
            for name, row in chunk:
                reason = all_wrong or _refuse_topic(name)
                self._sort(accepts, TopicPartition(name, row.partition), row, reason, refused, records)
        async for some in in_steps(refused):
            for tp in some:
                records.pop(tp, None)
        if request.acks == ALL_IN_SYNC:
            context.park()
        timeout_ms = max(0, request.timeout_ms) if request.acks == ALL_IN_SYNC else -1
        waits = []
        async for tps in in_steps(records, APPENDED_AT_ONCE):
            pending = PendingProduce(tps)
            self._append_some(context, request, {tp: records[tp] for tp in tps}, pending)
            waits.append(pending.results if pending.is_over else pending.wait(dict, timeout_ms))
        for wait in waits:
            async for tps in in_steps(found := wait if isinstance(wait, dict) else await wait):
                refused.update((tp, found[tp]) for tp in tps)
        if request.acks == 0:
            self._check_unanswered(refused)
            return None
        return await self._produced_many(context.version, request, refused)

    def _sort(
        self,
        accepts: Accepts,
        tp: TopicPartition,
        partition: ProducePartition,
        reason: AppendResult | None,
        refused: dict[TopicPartition, AppendResult],
        records: dict[TopicPartition, bytearray | memoryview],
    ) -> None:
        """Add the batch to `refused` or to `records`. A partition named twice is added to both, and refused."""
        batch = partition.records or b""
        if reason is None:
            if tp in records:
                wrong: Refusal | None = (ErrorCode.INVALID_REQUEST, "the request names this partition twice")
            else:
                wrong = refuse_header(accepts, batch) or self._refuse_base_offset(batch)
            if wrong is None:
                records[tp] = bytearray(batch) if isinstance(batch, bytes) else batch  # stamped in place
                return
            reason = AppendResult(wrong[0], error_message=wrong[1])
        refused[tp] = reason

    def _refuse_base_offset(self, batch: Buffer) -> Refusal | None:
        """Older clients of pylog send batches that do not begin at 0: for one more release brokers take them."""
        base_offset = base_offset_of(batch)
        if base_offset == 0:
            return None
        if self._config.produce_base_offset_strict:
            return ErrorCode.INVALID_RECORD, f"base offset {base_offset}: a batch that is produced begins at 0"
        counters = self._replicas.counters
        if not counters.nonzero_base_offsets:
            logger.warning(
                "A producer sends a batch with base offset %d, which Kafka refuses, as the next release of pylog will: "
                "update the client (pylog_nonzero_base_offsets_total counts such batches)",
                base_offset,
            )
        counters.nonzero_base_offsets += 1
        return None

    def _append_some(
        self,
        context: Work,
        request: ProduceRequest,
        records: Mapping[TopicPartition, bytearray | memoryview],
        pending: PendingProduce,
    ) -> None:
        """Append these, those of a transaction once it is known to hold their partition; tell `pending` the results."""
        adds, may_write = context.version >= PRODUCE_ADDS, sum(map(len, records.values())) <= PROMPT_BYTES_MAX
        for tp, batch in records.items():
            try:
                leader = self._replicas.leader(tp)
            except KafkaError as error:
                pending.settle(tp, AppendResult(error.code, error_message=message_of(error)))
                continue
            if request.transactional_id is not None and is_transactional(batch):
                transaction = request.transactional_id, adds
                timeout_ms = max(0, request.timeout_ms)
                self._verification.append(leader, batch, request.acks, pending, transaction, timeout_ms)
            else:
                append_one(leader, batch, request.acks, pending, may_write=may_write)

    async def _produced_many(
        self, version: int, request: ProduceRequest, results: Mapping[TopicPartition, AppendResult]
    ) -> ProduceResponse:
        moved: dict[int, NodeEndpoint] = {}
        rows: list[list[PartitionProduced]] = [[] for _ in request.topics]
        asked = ((n, topic.name, row) for n, topic in enumerate(request.topics) for row in topic.partitions)
        async for chunk in in_steps(asked):
            for number, name, (index, _) in chunk:
                tp = TopicPartition(name, index)
                rows[number].append(self._partition_produced(version, tp, results[tp], moved))
        topics = [TopicProduced(topic.name, found) for topic, found in zip(request.topics, rows, strict=True)]
        return ProduceResponse(topics, node_endpoints=tuple(moved.values()))

    def failed_one(self, version: int, tp: TopicPartition, result: AppendResult) -> ProduceResponse:
        """The answer to a request of one batch that failed."""
        moved: dict[int, NodeEndpoint] = {}
        rows = [self._partition_produced(version, tp, result, moved)]
        return ProduceResponse([TopicProduced(tp.topic, rows)], node_endpoints=tuple(moved.values()))

    def _produced(self, context: Work, request: ProduceRequest, refused: Results, appended: Results) -> Answer:
        results = {**appended, **refused} if refused else appended
        if request.acks == 0:
            self._check_unanswered(results)
            return None
        version = context.version
        moved: dict[int, NodeEndpoint] = {}
        topics = []
        for topic in request.topics:
            rows = []
            for index, _ in topic.partitions:
                tp = TopicPartition(topic.name, index)
                rows.append(self._partition_produced(version, tp, results[tp], moved))
            topics.append(TopicProduced(topic.name, rows))
        return ProduceResponse(topics, node_endpoints=tuple(moved.values()))

    def _partition_produced(
        self, version: int, tp: TopicPartition, result: AppendResult, moved: dict[int, NodeEndpoint]
    ) -> PartitionProduced:
        code, base_offset, append_ms, log_start, message, wrong_rows = result
        if code is ErrorCode.TRANSACTION_ABORTABLE and version < PRODUCE_ADDS:
            code = ErrorCode.INVALID_TXN_STATE  # the client aborts for this one, too
        errors = tuple(RecordError(row, message) for row in wrong_rows)
        leader = None
        if code is not ErrorCode.NONE:
            self._errors["Produce", code] += 1
            if code in MOVED and version >= PRODUCE_LEADERS:
                leader = current_leader(self._metadata, tp, moved)
        return PartitionProduced(tp[1], code, base_offset, append_ms, log_start, errors, message, leader)

    def _check_unanswered(self, results: Results) -> None:
        """Raise ProtocolError for what was refused with acks=0: only the end of the connection tells the client."""
        for (name, index), result in results.items():
            if result.error_code:
                self._errors["Produce", result.error_code] += 1
                raise ProtocolError(f"records with acks=0 for {name}-{index} were refused: {result.error_code.name}")


def _refuse_all(request: ProduceRequest) -> AppendResult | None:
    """Why nothing of the request may be appended."""
    if request.acks not in ACKS:
        return AppendResult(ErrorCode.INVALID_REQUIRED_ACKS, error_message=f"acks={request.acks}: -1, 0 or 1")
    return None


def _refuse_topic(name: str) -> AppendResult | None:
    """What brokers write for themselves is theirs alone: what a client puts there would be read as state of groups."""
    if name not in INTERNAL_TOPICS:
        return None
    return AppendResult(
        ErrorCode.INVALID_TOPIC_EXCEPTION, error_message=f"{name} is internal: only brokers write to it"
    )
