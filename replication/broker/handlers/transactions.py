"""The APIs of transactions: of producers, of leaders and coordinators among each other, and of administrators."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from logstore.env import Clock
from logstore.errors import PylogError
from logstore.records.marker import Marker
from replication.broker.handlers.coordinators import GROUP, CoordinatorHandlers
from replication.broker.markers import write_here
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.partitioning import no_metadata
from replication.coordinators.patterns import matching
from replication.coordinators.transactions.coordinator import TransactionCoordinator
from replication.coordinators.transactions.machine import events
from replication.coordinators.transactions.machine.state import NO_EPOCH, NO_ID, Phase, Transaction
from replication.errors import ErrorCode, KafkaError, code_of, message_of
from replication.model.cluster import OFFSETS_TOPIC, TopicPartition, rows_by_topic
from replication.network.steps import all_of
from replication.network.work import Handler, Response, Work
from replication.protocol import requests
from replication.protocol.apis import ApiKey
from replication.protocol.kio_pieces import Rows
from replication.replica.manager import ReplicaManager
from replication.security.access import Operation, Resource

logger = logging.getLogger(__name__)

FENCED_KNOWN_FROM = {  # the first versions with PRODUCER_FENCED; before, INVALID_PRODUCER_EPOCH says it
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
SEVERAL_FROM = 4  # AddPartitionsToTxn: of leaders, for several transactions
BUMPS_FROM = 5  # EndTxn: every transaction has an epoch of its own
STATES = frozenset(Phase) - {Phase.PREPARE_EPOCH_FENCE}

Answer = TypeVar("Answer", bound=events.Body)


class TransactionHandlers:
    def __init__(
        self,
        coordinators: CoordinatorHandlers,
        transactions: TransactionCoordinator,
        groups: GroupCoordinator,
        replicas: ReplicaManager,
        clock: Clock,
    ) -> None:
        self._coordinators = coordinators
        self._transactions = transactions
        self._groups = groups
        self._replicas = replicas
        self._clock = clock

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.INIT_PRODUCER_ID: self.init_producer_id,
            ApiKey.ADD_PARTITIONS_TO_TXN: self.add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self.add_offsets,
            ApiKey.END_TXN: self.end,
            ApiKey.WRITE_TXN_MARKERS: self.write_markers,
            ApiKey.DESCRIBE_PRODUCERS: self.describe_producers,
            ApiKey.DESCRIBE_TRANSACTIONS: self.describe,
            ApiKey.LIST_TRANSACTIONS: self.list,
        }

    async def _ask(self, name: str, kind: type[Answer], make: Callable[[int], events.Event]) -> Answer:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        answer = await self._transactions.ask(name, make)
        assert isinstance(answer, kind), "every event has its kind of answer"
        return answer

    # ---------------------------------------------------------------- producers

    async def init_producer_id(self, context: Work, body: requests.InitProducerIdRequest) -> Response:
        """Without a transactional id: a new producer id with epoch 0, even for a client that names one."""
        context.park()
        if (body.producer_id == NO_ID) != (body.producer_epoch == NO_EPOCH):
            return _initialized(ErrorCode.INVALID_REQUEST, events.Initialized())  # half of a producer
        name, fresh_id = body.transactional_id, -1
        try:
            fresh_id = await self._transactions.next_id()
        except KafkaError as error:
            logger.warning("no producer id is available: %s", error)
            found = events.Initialized(ErrorCode.COORDINATOR_NOT_AVAILABLE)  # clients try again
        else:
            found = events.Initialized(ErrorCode.NONE, fresh_id, 0)
            if name is not None:
                found = await self._initialize(name, fresh_id, body)
        return _initialized(_client_error(context, found.error), found)

    async def _initialize(self, name: str, fresh_id: int, body: requests.InitProducerIdRequest) -> events.Initialized:
        try:
            return await self._ask(
                name,
                events.Initialized,
                lambda request: events.Initialize(
                    request=request,
                    fresh_id=fresh_id,
                    timeout_ms=_ms(body.transaction_timeout),
                    producer_id=body.producer_id,
                    producer_epoch=body.producer_epoch,
                    is_two_phase=body.enable2_pc,
                    keeps_prepared=body.keep_prepared_txn,
                ),
            )
        except KafkaError as error:
            return events.Initialized(error.code)

    async def add_partitions(self, context: Work, body: requests.AddPartitionsToTxnRequest) -> Response:
        """AddPartitionsToTxn: of a producer up to version 3, all or none; from 4 on of leaders, for several."""
        context.park()
        if context.version < SEVERAL_FROM:
            tps = _added_partitions(body.v3_and_below_topics)
            name = body.v3_and_below_transactional_id
            pair = body.v3_and_below_producer_id, body.v3_and_below_producer_epoch
            codes = await self._add(context, name, pair, tps, is_question=False)
            return {"results_by_topic_v3_and_below": _added(codes)}

        async def one(row: requests.AddPartitionsToTxnTransaction) -> Response:
            tps = _added_partitions(row.topics)
            pair = row.producer_id, row.producer_epoch
            codes = await self._add(context, row.transactional_id, pair, tps, is_question=row.verify_only)
            return {"transactional_id": row.transactional_id, "topic_results": _added(codes)}

        return {"error_code": ErrorCode.NONE, "results_by_transaction": await all_of(one, body.transactions)}

    async def _add(
        self,
        context: Work,
        name: str,
        pair: tuple[int, int],
        tps: frozenset[TopicPartition],
        *,
        is_question: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        if not self._replicas.metadata.is_initialized:
            return dict.fromkeys(tps, no_metadata().code)
        unknown = {tp for tp in tps if self._replicas.metadata.leader(*tp) is None}
        if unknown and not is_question:
            refused = dict.fromkeys(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return dict.fromkeys(tps, ErrorCode.OPERATION_NOT_ATTEMPTED) | refused
        added = await self._added(name, pair, tps, is_question=is_question)
        return {tp: _client_error(context, added.error or added.refused.get(tp, ErrorCode.NONE)) for tp in tps}

    async def _added(
        self, name: str, pair: tuple[int, int], tps: frozenset[TopicPartition], *, is_question: bool
    ) -> events.Added:
        try:
            return await self._ask(
                name,
                events.Added,
                lambda request: events.Add(
                    request=request,
                    producer_id=pair[0],
                    producer_epoch=pair[1],
                    partitions=tps,
                    is_question=is_question,
                ),
            )
        except KafkaError as error:
            return events.Added(error.code)

    async def add_offsets(self, context: Work, body: requests.AddOffsetsToTxnRequest) -> Response:
        """AddOffsetsToTxn: the partition of the group is in the transaction from now on."""
        context.park()
        try:
            await self._coordinators.ready(GROUP)  # nobody may have looked for the group yet
            tp = TopicPartition(OFFSETS_TOPIC, self._groups.terms.partition_of(body.group_id))
        except KafkaError as error:
            logger.info("group=%s has no partition yet: %s", body.group_id, error)
            return {"error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}  # it comes again
        pair = body.producer_id, body.producer_epoch
        added = await self._added(body.transactional_id, pair, frozenset({tp}), is_question=False)
        return {"error_code": _client_error(context, added.error)}

    async def end(self, context: Work, body: requests.EndTxnRequest) -> Response:
        """EndTxn: answered when the decision is stored; markers follow."""
        context.park()
        try:
            fresh_id = await self._transactions.id_after(body.producer_epoch)
            ended = await self._ask(
                body.transactional_id,
                events.Ended,
                lambda request: events.End(
                    request=request,
                    producer_id=body.producer_id,
                    producer_epoch=body.producer_epoch,
                    commits=body.committed,
                    bumps_epoch=context.version >= BUMPS_FROM,
                    fresh_id=fresh_id,
                ),
            )
        except KafkaError as error:
            ended = events.Ended(error.code)
        return {
            "error_code": _client_error(context, ended.error),
            "producer_id": ended.producer_id,
            "producer_epoch": ended.producer_epoch,
        }

    # ------------------------------------------------------------------ brokers

    async def write_markers(self, context: Work, body: requests.WriteTxnMarkersRequest) -> Response:
        """WriteTxnMarkers: answered when all replicas in sync have them."""
        context.park()

        async def one(row: requests.WritableTxnMarker) -> Response:
            marker = Marker(
                row.producer_id,
                row.producer_epoch,
                row.transaction_result,
                row.coordinator_epoch,
                row.transaction_version >= 2,
            )
            tps = frozenset(TopicPartition(topic.name, n) for topic in row.topics for n in topic.partition_indexes)
            codes = await write_here(self._replicas, self._groups, marker, tps)
            return {"producer_id": row.producer_id, "topics": _rows_of(codes, "partitions", "error_code")}

        return {"markers": await all_of(one, body.markers)}

    # ----------------------------------------------------------- administration

    async def describe_producers(self, context: Work, body: requests.DescribeProducersRequest) -> Response:
        """DescribeProducers: what these logs know of those who write. Followers answer, too, as in Kafka."""

        async def row(asked: tuple[str, int]) -> Response:
            found = {"partition_index": asked[1], "error_code": ErrorCode.NONE, "error_message": None}
            try:
                replica = self._replicas.partition(*asked).replica
                states = await replica.host.disk.read(replica.log.producers.states)
            except (PylogError, OSError) as error:
                return {
                    **found,
                    "error_code": code_of(error),
                    "error_message": message_of(error),
                    "active_producers": (),
                }
            rows = (
                {
                    "producer_id": state.producer_id,
                    "producer_epoch": state.epoch,
                    "last_sequence": state.last_sequence,
                    "last_timestamp": state.last_append_ms,
                    "coordinator_epoch": state.coordinator_epoch,
                    "current_txn_start_offset": state.open_from,
                }
                for state in states
            )
            return {**found, "active_producers": Rows(len(states), rows)}

        topics = []
        for topic in body.topics:
            numbers = dict.fromkeys(topic.partition_indexes)
            topics.append({"name": topic.name, "partitions": await all_of(row, ((topic.name, n) for n in numbers))})
        return {"topics": topics}

    def describe(self, context: Work, body: requests.DescribeTransactionsRequest) -> Response:
        def row(name: str) -> Response:
            try:
                if not name:
                    raise KafkaError(ErrorCode.INVALID_REQUEST)
                found = self._transactions.transaction(name)
                if found is None:
                    raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
            except KafkaError as error:
                return _described(Transaction(id=name, phase=Phase.DEAD), error.code)
            hidden = context.hidden(Operation.DESCRIBE, Resource.TOPIC, (tp.topic for tp in found.partitions))
            return _described(found, hidden=hidden)

        asked = dict.fromkeys(body.transactional_ids)
        return {"transaction_states": Rows(len(asked), map(row, asked))}

    async def list(self, context: Work, body: requests.ListTransactionsRequest) -> Response:
        """ListTransactions: those of this broker: of these states, producers, names, and as old (default: any)."""
        wanted, producer_ids = frozenset(body.state_filters), frozenset(body.producer_id_filters)
        unknown = wanted - STATES
        try:
            found = self._transactions.transactions()
            if pattern := body.transactional_id_pattern:
                names = await asyncio.to_thread(matching, pattern, [one.id for one in found])
                found = [one for one in found if one.id in names]
        except KafkaError as error:
            return {"error_code": error.code, "unknown_state_filters": (), "transaction_states": ()}
        since_ms = self._clock.now_ms() - body.duration_filter
        is_any_age = body.duration_filter < 0
        hidden = context.hidden(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, (one.id for one in found))
        rows = [
            {
                "transactional_id": one.id,
                "producer_id": one.producer_id,
                "transaction_state": one.phase,
            }
            for one in found
            if one.id not in hidden
            and (not wanted or one.phase in wanted)
            and (not producer_ids or one.producer_id in producer_ids)
            and (is_any_age or 0 <= one.started_ms <= since_ms)
        ]
        return {
            "error_code": ErrorCode.NONE,
            "unknown_state_filters": tuple(unknown),
            "transaction_states": rows,
        }


def _initialized(code: ErrorCode, found: events.Initialized) -> Response:
    return {
        "error_code": code,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "ongoing_txn_producer_id": found.ongoing_producer_id,
        "ongoing_txn_producer_epoch": found.ongoing_producer_epoch,
    }


def _described(found: Transaction, code: ErrorCode = ErrorCode.NONE, hidden: frozenset[str] = frozenset()) -> Response:
    topics = rows_by_topic((tp, tp.partition) for tp in sorted(found.partitions) if tp.topic not in hidden)
    return {
        "error_code": code,
        "transactional_id": found.id,
        "transaction_state": found.phase if code is ErrorCode.NONE else "",
        "transaction_timeout": found.timeout_ms,
        "transaction_start_time": datetime.fromtimestamp(found.started_ms / 1000, UTC),
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "topics": [{"topic": name, "partitions": numbers} for name, numbers in topics.items()],
    }


def _client_error(context: Work, code: ErrorCode) -> ErrorCode:
    known_from = FENCED_KNOWN_FROM.get(context.key, 0)
    is_old = code is ErrorCode.PRODUCER_FENCED and context.version < known_from
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_old else code


def _added_partitions(topics: Iterable[requests.AddPartitionsToTxnTopic]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic.name, number) for topic in topics for number in topic.partitions)


def _added(codes: Mapping[TopicPartition, ErrorCode]) -> list[Response]:
    return _rows_of(codes, "results_by_partition", "partition_error_code")


def _rows_of(codes: Mapping[TopicPartition, ErrorCode], rows: str, field: str) -> list[Response]:
    topics = rows_by_topic((tp, {"partition_index": tp.partition, field: code}) for tp, code in codes.items())
    return [{"name": name, rows: found} for name, found in topics.items()]


def _ms(time: timedelta) -> int:
    return round(time.total_seconds() * 1000)
