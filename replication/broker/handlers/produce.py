"""Produce: records into logs as they are, undecoded. A batch is judged here by its header.

The requests of one turn of the event loop are handled together: the batches of one log go to it in one list. A
request's partitions fail one by one, each with its own error code. With acks=0 there is no answer, so a failure closes
the connection, which makes the client look up the leader.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from logstore.records.batch import is_transactional
from replication.broker.handlers.moved import MOVED, current_leader
from replication.broker.verification import Verification
from replication.config.broker import BrokerConfig
from replication.errors import NONE, ErrorCode, KafkaError, ProtocolError, message_of
from replication.model.cluster import INTERNAL_TOPICS, TopicPartition, topic_id_of
from replication.network import steps
from replication.network.pipeline import TurnHandler
from replication.network.steps import in_steps
from replication.network.work import Work
from replication.protocol.apis import ApiKey
from replication.protocol.decoding import TOPIC_IDS
from replication.protocol.encoding import produced_one
from replication.protocol.messages import (
    NodeEndpoint,
    PartitionProduced,
    ProduceOne,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    RecordError,
    TopicProduced,
)
from replication.protocol.wire import Buffer
from replication.replica.leader.appends import PROMPT_BYTES_MAX, Append
from replication.replica.leader.guard import OTHER_OFFSET, Accepts, base_offset_of, refuse_header
from replication.replica.leader.leader import Leader
from replication.replica.leader.purgatory import PendingProduce, Results
from replication.replica.leader.results import ALL_IN_SYNC, LEADER_ONLY, AppendResult
from replication.replica.manager import ReplicaManager
from replication.security.access import Operation, Resource, of_topic, of_transaction

logger = logging.getLogger(__name__)

APPENDED_AT_ONCE = 100  # partitions of a long request in one turn of the loop: some 30 us each
PRODUCE_LEADERS = 10  # the first version whose answer names the current leader
PRODUCE_ADDS = 12  # the version whose transactional batches add their partition to the transaction
ACKS = frozenset((ALL_IN_SYNC, 0, LEADER_ONLY))
ACCEPTS = tuple(
    tuple(Accepts(version, transactional) for transactional in (False, True))
    for version in range(ApiKey.PRODUCE.versions.last + 1)
)
_new = tuple.__new__  # of a value that has all its fields: a third of the time of its class
NO_SUCH_ID = AppendResult(ErrorCode.UNKNOWN_TOPIC_ID)
TWICE = AppendResult(ErrorCode.INVALID_REQUEST, error_message="the request names this partition twice")


# A batch of a request, by topic and partition, and the results of all batches of that; None: it is the only one.
# (A named tuple takes four times as long to make.)
_Row: TypeAlias = tuple[Work, tuple[str, int], PendingProduce | None]


class _Batches(NamedTuple):
    """The batches of one turn, by their logs: each has its `_Row`. A thread is to write those of `slow` logs."""

    appends: dict[Leader, list[Append]]
    slow: set[Leader]


class ProduceHandler:
    def __init__(self, config: BrokerConfig, replicas: ReplicaManager, verification: Verification) -> None:
        self._config = config
        self._replicas = replicas
        self._verification = verification
        self._errors = replicas.counters.answered_errors

    def turns(self) -> Mapping[ApiKey, TurnHandler]:
        return {ApiKey.PRODUCE: self.produce}

    def produce(self, works: Sequence[Work]) -> None:
        """Append and answer all of them. Records of one connection are in the log in the order of its requests.

        But for requests of very many partitions: behind such a long one, the connection begins none before it is
        answered. Batches of transactions are appended in the order in which the coordinator was asked.
        """
        batches = _Batches({}, set())
        begun: list[tuple[Work, PendingProduce]] = []
        for work in works:
            if work.is_long:
                work.reply(self._produce_many(work))
                continue
            if work.version >= TOPIC_IDS:
                work.body = self._named(work.body)
            body: ProduceOne | ProduceRequest = work.body
            if type(body) is ProduceOne:
                self._place((work, body.tp, None), body.records, None, batches, is_slow=False)
            else:
                begun.append((work, self._place_all(work, _rows_of(work), batches)))
        self._append(batches)
        for work, pending in begun:
            self._answer_or_wait(work, pending)

    def _named(self, body: ProduceOne | ProduceRequest) -> ProduceOne | ProduceRequest:
        """Return the request with the names of its topics; that of an unknown id stays empty."""
        if type(body) is ProduceOne:
            name = self._name_of(body.topic_id)
            if name:
                return body._replace(tp=(name, body.tp[1]))
            body = ProduceRequest(body.acks, body.timeout_ms, body.topics)
        topics = tuple(map(self._named_topic, body.topics))
        return ProduceRequest(body.acks, body.timeout_ms, topics, body.transactional_id)

    def _named_topic(self, topic: ProduceTopic) -> ProduceTopic:
        return ProduceTopic(self._name_of(topic.topic_id), topic.partitions, topic.topic_id)

    def _name_of(self, topic_id: UUID | None) -> str:
        return self._replicas.metadata.name_of(topic_id_of(topic_id)) or ""

    async def _produce_many(self, work: Work) -> Any:
        """The same for a request of very many partitions, in steps."""
        if work.version >= TOPIC_IDS:
            await self._name(work)
        request, rows = work.body, _rows_of(work)
        times: Counter[TopicPartition] = Counter()
        async for some in in_steps(rows):
            times.update(tp for tp, _ in some)
        pending = PendingProduce(times)
        is_slow = _is_slow(records for _, records in rows)
        async for some in in_steps(rows, APPENDED_AT_ONCE):
            batches = _Batches({}, set())
            for tp, records in some:
                if times[tp] > 1:
                    pending.settle(tp, TWICE)
                else:
                    self._place((work, tp, pending), records, request.transactional_id, batches, is_slow=is_slow)
            self._append(batches)
        if not pending.is_over:
            timeout_ms = self._park(work)
            await pending.wait(bool, timeout_ms)
        return await steps.run(self._response(work, pending.results))

    async def _name(self, work: Work) -> None:
        """Give a long request the names of its topics, in steps."""
        request: ProduceRequest = work.body
        topics: list[ProduceTopic] = []
        async for some in in_steps(request.topics):
            named = [self._named_topic(topic) for topic in some]
            # A later step may know an id that the pipeline's authorization did not: to this client it stays unknown.
            hidden = work.hidden(Operation.WRITE, Resource.TOPIC, (topic.name for topic in named if topic.name))
            unseen = {name for name in hidden if not work.refuses(of_topic(Operation.WRITE, name))}
            topics += [topic._replace(name="") if topic.name in unseen else topic for topic in named]
        work.body = request._replace(topics=tuple(topics))

    def _place_all(
        self, work: Work, rows: Sequence[tuple[TopicPartition, Buffer | None]], batches: _Batches
    ) -> PendingProduce:
        request: ProduceRequest = work.body
        times = Counter([tp for tp, _ in rows])
        pending = PendingProduce(times)
        is_slow = _is_slow(records for _, records in rows)
        for tp, records in rows:
            if times[tp] > 1:
                pending.settle(tp, TWICE)
            else:
                self._place((work, tp, pending), records, request.transactional_id, batches, is_slow=is_slow)
        return pending

    def _place(
        self, row: _Row, records: Buffer | None, transactional_id: str | None, batches: _Batches, *, is_slow: bool
    ) -> None:
        """Add the batch to those of its log, or settle it with the reason for which it is refused."""
        work, tp, _ = row
        request: ProduceOne | ProduceRequest = work.body
        acks = request.acks
        batch = records or b""
        leader = self._replicas.known_leader(tp)
        accepts = ACCEPTS[work.version][transactional_id is not None]
        if (
            leader is None
            or acks not in ACKS
            or tp[0] in INTERNAL_TOPICS
            or work.refused
            or refuse_header(accepts, batch) is not None
        ):
            refusal = self._refusal(work, TopicPartition(*tp), batch, accepts)
            if refusal is not None:
                self._settle(row, refusal)
                return
            leader = self._replicas.leader(TopicPartition(*tp))
        data = bytearray(batch) if isinstance(batch, bytes) else batch  # stamped in place
        if transactional_id is not None and is_transactional(data):
            self._append(batches)  # those before it, so that it stays behind them
            batches.appends.clear()
            batches.slow.clear()
            self._append_verified(row, leader, data, transactional_id)
            return
        append: Append = _new(Append, (data, acks, self._waiter, row, False))
        appends = batches.appends
        if leader in appends:
            appends[leader].append(append)
        else:
            appends[leader] = [append]
        if is_slow:
            batches.slow.add(leader)

    def _append_verified(
        self, row: _Row, leader: Leader, records: bytearray | memoryview, transactional_id: str
    ) -> None:
        work, _, pending = row
        assert pending is not None, "a request for one batch is in no transaction"
        request: ProduceRequest = work.body
        transaction = transactional_id, work.version >= PRODUCE_ADDS
        self._verification.append(leader, records, request.acks, pending, transaction, max(0, request.timeout_ms))

    def _append(self, batches: _Batches) -> None:
        """Append these, and settle what is known at once. A thread writes behind the first that is too large."""
        for leader, appends in batches.appends.items():
            results = leader.append(appends, may_write=leader not in batches.slow)
            for (_, _, _, row, _), result in zip(appends, results, strict=True):
                if result is not None:
                    self._settle(row, result)

    def _refusal(self, work: Work, tp: TopicPartition, batch: Buffer, accepts: Accepts) -> AppendResult | None:
        """Return why the batch may not be appended here; None: it may."""
        name = tp.topic
        request: ProduceOne | ProduceRequest = work.body
        if request.acks not in ACKS:
            return AppendResult(ErrorCode.INVALID_REQUIRED_ACKS, error_message=f"acks={request.acks}: -1, 0 or 1")
        if name in INTERNAL_TOPICS:  # clients' records would be read there as the state of groups
            said = f"{name} is internal: only brokers write to it"
            return AppendResult(ErrorCode.INVALID_TOPIC_EXCEPTION, error_message=said)
        if work.refuses(of_transaction(Operation.WRITE, request.transactional_id or "")):
            return AppendResult(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if work.refuses(of_topic(Operation.WRITE, name)):
            return AppendResult(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        wrong = refuse_header(accepts, batch)
        if wrong is OTHER_OFFSET:
            wrong = self._refuse_base_offset(base_offset_of(batch))
        if wrong is not None:
            return AppendResult(wrong[0], error_message=wrong[1])
        try:
            self._replicas.leader(tp)
        except KafkaError as error:
            return AppendResult(error.code, error_message=message_of(error))
        return None

    def _refuse_base_offset(self, base_offset: int) -> tuple[ErrorCode, str] | None:
        """Older clients of pylog send batches that do not begin at 0: for one more release brokers take them."""
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

    # ---------------------------------------------------------------- responses

    def _settle(self, row: _Row, result: AppendResult) -> None:
        work, tp, pending = row
        request: ProduceOne | ProduceRequest = work.body
        if pending is not None:
            pending.settle(TopicPartition(*tp), result)
        elif result[0] is NONE and request.acks:
            _, offset, append_ms, log_start, _, _ = result
            named: tuple[str | UUID, int] = tp
            if work.version >= TOPIC_IDS:
                topic_id = request.topic_id if type(request) is ProduceOne else request.topics[0].topic_id
                assert topic_id is not None, "it has a name"
                named = topic_id, tp[1]
            data = produced_one(work.version, work.correlation_id, named, offset, append_ms, log_start)
            work.origin.answer(work, data)
        else:
            self._answer(work, {TopicPartition(*tp): result})

    def _waiter(self, row: _Row) -> PendingProduce:
        """Return the waiter for the result of a batch; a request of one batch waits from now on."""
        work, tp, pending = row
        if pending is None:
            pending = PendingProduce((TopicPartition(*tp),))
            self._wait(work, pending)
        return pending

    def _answer_or_wait(self, work: Work, pending: PendingProduce) -> None:
        if pending.is_over:
            self._answer(work, pending.results)
        else:
            self._wait(work, pending)

    def _wait(self, work: Work, pending: PendingProduce) -> None:
        timeout_ms = self._park(work)
        work.begin()
        pending.then(partial(self._answer, work, pending.results), timeout_ms)

    def _park(self, work: Work) -> int:
        """Return for how long the request may wait, -1: until its records are in the log; it is not queued then."""
        request: ProduceOne | ProduceRequest = work.body
        if request.acks != ALL_IN_SYNC:
            return -1
        work.park()
        return max(0, request.timeout_ms)

    def _answer(self, work: Work, results: Results) -> None:
        request: ProduceOne | ProduceRequest = work.body
        if len(results) == 1 and request.acks and (work.version < TOPIC_IDS or len(request.topics) == 1):
            ((tp, result),) = results.items()
            if result[0] is NONE:
                self._settle((work, tp, None), result)
                return
        try:
            response = steps.all_at_once(self._response(work, results))
        except ProtocolError as error:
            work.fail(error)
        else:
            work.answer(response)

    def _response(self, work: Work, results: Results) -> Generator[None, None, ProduceResponse | None]:
        """Make the response, row by row; None with acks=0.

        Raises: ProtocolError: with acks=0, something failed: only the end of the connection tells the client.
        """
        request: ProduceOne | ProduceRequest = work.body
        moved: dict[int, NodeEndpoint] = {}
        topics = []
        for name, partitions, topic_id in request.topics:
            rows = []
            for index, _ in partitions:
                tp = TopicPartition(name, index)
                result = results[tp] if name or work.version < TOPIC_IDS else NO_SUCH_ID
                rows.append(self._row(work, tp, result, moved))
                yield
            topics.append(TopicProduced(name, rows, topic_id))
        return ProduceResponse(topics, node_endpoints=tuple(moved.values())) if request.acks else None

    def _row(
        self, work: Work, tp: TopicPartition, result: AppendResult, moved: dict[int, NodeEndpoint]
    ) -> PartitionProduced:
        code, base_offset, append_ms, log_start, message, wrong_rows = result
        if code is ErrorCode.TRANSACTION_ABORTABLE and work.version < PRODUCE_ADDS:
            code = ErrorCode.INVALID_TXN_STATE  # the client aborts for this one, too
        errors = tuple(RecordError(row, message) for row in wrong_rows)
        leader = None
        if code is not ErrorCode.NONE:
            self._errors["Produce", code] += 1
            request: ProduceOne | ProduceRequest = work.body
            if request.acks == 0:
                raise ProtocolError(f"records with acks=0 for {tp} were refused: {code.name}")
            if code in MOVED and work.version >= PRODUCE_LEADERS:
                leader = current_leader(self._replicas.metadata, tp, moved, work.listener)
        return PartitionProduced(tp.partition, code, base_offset, append_ms, log_start, errors, message, leader)


def _rows_of(work: Work) -> list[tuple[TopicPartition, Buffer | None]]:
    """Return the batches of a request with names, by their partitions; those of unknown ids are left out."""
    request: ProduceRequest = work.body
    known = [topic for topic in request.topics if topic.name] if work.version >= TOPIC_IDS else request.topics
    return [(TopicPartition(name, row[0]), row[1]) for name, partitions, _ in known for row in partitions]


def _is_slow(batches: Iterable[Buffer | None]) -> bool:
    """Return whether so much comes together that the event loop does not write it itself."""
    return sum(len(batch or b"") for batch in batches) > PROMPT_BYTES_MAX
