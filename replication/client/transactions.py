"""Transactions by their ids: begun, given partitions, ended, and looked at.

Laws: every request may be repeated, and is, until its outcome is known or the time of the call is over. A transaction
that was ended is ended: the same end again succeeds, with the same pair, until another transaction of the id begins.
Requests are those of every Kafka from 1.0 on: partitions are added before their first batch, and an end leaves the
epoch as it is. Two-phase commits (KIP-939) need brokers that serve InitProducerId 6. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from logstore.errors import UnknownTopicError
from replication.client.attempts import Backoff
from replication.client.cluster import METADATA_TIMEOUT_MS, UNKNOWN_TOPIC_S, VERSIONS_REQUEST, Cluster
from replication.client.coordinators import transactional_key
from replication.client.metadata import PartitionLeader
from replication.errors import ErrorCode, KafkaError, UnsupportedVersionError, code_in, error_of
from replication.model.cluster import TRANSACTIONS_TOPIC, TopicPartition, by_topic
from replication.protocol.apis import ApiKey

TWO_PHASE_FROM = 6  # InitProducerId
# Later versions are of KIP-890: partitions are added by Produce, and each end begins another epoch.
_LAST = {ApiKey.INIT_PRODUCER_ID: 4, ApiKey.ADD_PARTITIONS_TO_TXN: 3, ApiKey.END_TXN: 4}
_NO_REASON = (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED)
NO_ID = -1
_EPOCH = datetime.fromtimestamp(0, UTC)
_MS = timedelta(milliseconds=1)

_ENDED = "another producer took this transactional id over, or the transaction timed out and is aborted: begin anew"
_REMEDIES = {
    ErrorCode.PRODUCER_FENCED: _ENDED,
    ErrorCode.INVALID_PRODUCER_EPOCH: _ENDED,
    ErrorCode.INVALID_TXN_STATE: "it has no such transaction: that ended the other way, or was never written",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the id has another producer by now, or none "
    "(transactional.id.expiration.ms): begin anew",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the user needs the rights Write and Describe on it; for a "
    "two-phase commit TwoPhaseCommit, too, and brokers with transaction.two.phase.commit.enable=true",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "it must be above 0, and at most the brokers' transaction.max.timeout.ms",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "the user needs the right Write on the topics",
}


class Pair(NamedTuple):
    """A producer's id and epoch, in each of its batches: a higher epoch fences the lower ones."""

    producer_id: int
    epoch: int


class Transaction(NamedTuple):
    """The transaction that a producer writes: its transactional id, and the producer's pair."""

    transactional_id: str
    pair: Pair


class BegunProducer(NamedTuple):
    """A producer's pair. `ongoing`: that of a prepared transaction; until it has ended nothing can be written."""

    pair: Pair
    ongoing: Pair | None


class DescribedTransaction(NamedTuple):
    """The last transaction of an id. `state` is Kafka's word; `partitions` are those that have no marker of its end."""

    transactional_id: str
    state: str
    pair: Pair
    start_ms: int
    timeout_ms: int
    partitions: frozenset[TopicPartition]


class ListedTransaction(NamedTuple):
    """A transactional id with the state of its last transaction, in Kafka's word."""

    transactional_id: str
    producer_id: int
    state: str


async def has_two_phase(cluster: Cluster) -> bool:
    """Whether the brokers speak of two-phase commits; only `init_producer` shows that they accept them.

    Raises: UnreachableError.
    """
    rows = (await cluster.call_any(ApiKey.API_VERSIONS, VERSIONS_REQUEST)).api_keys
    return any(row.api_key == ApiKey.INIT_PRODUCER_ID and row.max_version >= TWO_PHASE_FROM for row in rows)


async def init_producer(
    cluster: Cluster, transactional_id: str, *, timeout_ms: int, is_two_phase: bool = False, keeps: bool = False
) -> BegunProducer:
    """A pair that fences every earlier producer of this id; what it was writing is aborted, or with `keeps` stays open.

    A transaction is aborted when it is older than `timeout_ms`; with `is_two_phase` never.

    Raises: KafkaError: the timeout is too long, the id or two-phase commits are not allowed, or there was no
    coordinator until the deadline; UnsupportedVersionError: these brokers have no two-phase commits; UnreachableError.
    """
    request = {
        "transactional_id": transactional_id,
        "transaction_timeout": timeout_ms,
        "enable2_pc": is_two_phase,
        "keep_prepared_txn": keeps,
    }
    bounds = {"version_min": TWO_PHASE_FROM} if is_two_phase or keeps else {}
    found = await _call(cluster, transactional_id, ApiKey.INIT_PRODUCER_ID, request, **bounds)
    ongoing = Pair(
        getattr(found, "ongoing_txn_producer_id", NO_ID), getattr(found, "ongoing_txn_producer_epoch", NO_ID)
    )
    pair = Pair(found.producer_id, found.producer_epoch)
    return BegunProducer(pair, None if ongoing.producer_id == NO_ID else ongoing)


async def add_partitions(
    cluster: Cluster, transactional_id: str, pair: Pair, partitions: Collection[TopicPartition]
) -> None:
    """Make these a part of the transaction, which begins with the first of them: all, or none.

    Raises: KafkaError: the producer is fenced, a topic is not known or may not be written, or there was no coordinator
    until the deadline; UnreachableError.
    """
    request = {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": pair.producer_id,
        "v3_and_below_producer_epoch": pair.epoch,
        "v3_and_below_topics": by_topic({tp: tp.partition for tp in partitions}, "partitions"),
    }
    patience = cluster.backoff(UNKNOWN_TOPIC_S)
    while True:
        try:
            await _call(cluster, transactional_id, ApiKey.ADD_PARTITIONS_TO_TXN, request)
        except KafkaError as error:  # the coordinator may not know a new topic yet
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or patience.is_over:
                raise
        else:
            return
        await patience.wait()


async def end_transaction(cluster: Cluster, transactional_id: str, pair: Pair, *, commits: bool) -> None:
    """Commit or abort what the producer of this pair has written; returns when that is decided for good.

    Readers see it a moment later, a partition after the other. `pair` may be that of a prepared transaction.

    Raises: KafkaError: there is no such transaction, it ended the other way, the producer is fenced, or there was no
    coordinator until the deadline (it may have ended all the same); UnreachableError.
    """
    request = {
        "transactional_id": transactional_id,
        "producer_id": pair.producer_id,
        "producer_epoch": pair.epoch,
        "committed": commits,
    }
    await _call(cluster, transactional_id, ApiKey.END_TXN, request)


async def end_transactions(cluster: Cluster, pairs: Mapping[str, Pair], *, commits: bool) -> dict[str, KafkaError]:
    """End the transactions of these ids, all at once, as `end_transaction` does; return the errors by id.

    Raises: KafkaError: the user may not describe an id; UnreachableError.
    """

    async def end(name: str, pair: Pair) -> KafkaError | None:
        try:
            await end_transaction(cluster, name, pair, commits=commits)
        except KafkaError as error:
            return error
        return None

    await cluster.coordinators.shares([transactional_key(name) for name in pairs], cluster.backoff())
    ended = await asyncio.gather(*(end(name, pair) for name, pair in pairs.items()))
    return {name: error for name, error in zip(pairs, ended, strict=True) if error is not None}


async def describe_transactions(cluster: Cluster, ids: Collection[str]) -> dict[str, DescribedTransaction] | None:
    """The last transaction of each of these ids; of one that nobody knows nothing. None: brokers before Kafka 3.0.

    Raises: KafkaError: an id may not be seen, or had no coordinator until the deadline; UnreachableError.
    """
    found: dict[str, DescribedTransaction] = {}
    left, backoff = set(ids), cluster.backoff()
    while left:
        shares = await cluster.coordinators.shares([transactional_key(name) for name in left], backoff)
        try:
            answers = await asyncio.gather(*(_described(cluster, [key.name for key in share]) for share in shares))
        except UnsupportedVersionError:
            return None
        for row in (row for answer in answers for row in answer):
            code, name = code_in(row), row.transactional_id
            if code.is_retriable:  # it has moved away from those with which it was asked
                continue
            left.discard(name)
            if code is ErrorCode.NONE:
                found[name] = _described_of(row)
            elif code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise _refusal(code, name, ApiKey.DESCRIBE_TRANSACTIONS)
        if left:
            if backoff.is_over:
                raise _refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, min(left), ApiKey.DESCRIBE_TRANSACTIONS)
            await backoff.wait()
    return found


async def list_transactions(cluster: Cluster, *, states: Iterable[str] = ()) -> list[ListedTransaction] | None:
    """The transactional ids of all brokers, or those in these states. None: brokers before Kafka 3.0.

    Complete: every broker has answered, no coordinator was loading, and none changed meanwhile, so far as the user may
    see that. Raises: KafkaError: it was not so until the deadline; UnreachableError.
    """
    request = {"state_filters": list(states), "producer_id_filters": [], "duration_filter": -1}
    backoff, last = cluster.backoff(), "the coordinators changed"
    while True:
        leaders, brokers = await _coordinators(cluster, backoff)
        api, bounds = ApiKey.LIST_TRANSACTIONS, {"timeout_ms": METADATA_TIMEOUT_MS}
        try:
            answers = await cluster.call_each(brokers, api, request, backoff, **bounds)
        except UnsupportedVersionError:
            return None
        refused = [answer for answer in answers if isinstance(answer, str)]
        refused += [f"partition {n} has no leader" for n, each in leaders.items() if each.broker not in brokers]
        if not refused and (await _coordinators(cluster, backoff))[0] == leaders:
            rows = (row for answer in answers for row in answer.transaction_states)
            return [ListedTransaction(row.transactional_id, row.producer_id, row.transaction_state) for row in rows]
        last = refused[0] if refused else last
        await backoff.wait()
        if backoff.is_over:
            raise backoff.failure(api.name, last, ErrorCode.COORDINATOR_NOT_AVAILABLE)


# -------------------------------------------------------------------- one answer


async def _call(cluster: Cluster, transactional_id: str, api: ApiKey, request: Any, **bounds: int) -> Any:
    bounds = bounds or {"version_max": _LAST[api]}
    answer = await cluster.coordinators.call(transactional_key(transactional_id), api, request, _code, **bounds)
    if code := _code(answer):
        raise _refusal(code, transactional_id, api)
    return answer


def _code(answer: Any) -> ErrorCode:
    """The error of the whole answer. If partitions were refused together, only one of them has the reason."""
    topics = getattr(answer, "results_by_topic_v3_and_below", ())
    rows = [row.partition_error_code.value for topic in topics for row in topic.results_by_partition]
    codes = rows or [answer.error_code.value]
    return error_of(next((code for code in codes if code not in _NO_REASON), codes[0])).code


def _refusal(code: int, transactional_id: str, api: ApiKey) -> KafkaError:
    return error_of(code, f"{api.name} of transactional id {transactional_id!r}{remedy_of(code)}")


def remedy_of(code: int) -> str:
    """The remedy for this error of a transaction, as the end of a message; "" if there is none."""
    return f": {_REMEDIES[ErrorCode(code)]}" if code in _REMEDIES else ""


async def _described(cluster: Cluster, names: list[str]) -> Any:
    """The descriptions of all of these ids, from the coordinator of the first."""

    def code_of(answer: Any) -> ErrorCode:
        codes = {row.transactional_id: row.error_code.value for row in answer.transaction_states}
        return error_of(codes.get(names[0], ErrorCode.COORDINATOR_NOT_AVAILABLE)).code

    request = {"transactional_ids": names}
    key = transactional_key(names[0])
    return (await cluster.coordinators.call(key, ApiKey.DESCRIBE_TRANSACTIONS, request, code_of)).transaction_states


def _described_of(row: Any) -> DescribedTransaction:
    return DescribedTransaction(
        row.transactional_id,
        row.transaction_state,
        Pair(row.producer_id, row.producer_epoch),
        (row.transaction_start_time - _EPOCH) // _MS,
        row.transaction_timeout // _MS,
        frozenset(TopicPartition(topic.topic, number) for topic in row.topics for number in topic.partitions),
    )


async def _coordinators(cluster: Cluster, backoff: Backoff) -> tuple[Mapping[int, PartitionLeader], Collection[int]]:
    """The leaders of the partitions of `__transaction_state`, as far as the user may see them, and all brokers."""
    leaders: Mapping[int, PartitionLeader] = {}
    with contextlib.suppress(UnknownTopicError, KafkaError):  # nobody has begun one, or it may not be seen
        leaders = (await cluster.topic(TRANSACTIONS_TOPIC, is_fresh=True, backoff=backoff)).leaders
    return leaders, tuple(cluster.metadata.brokers) if cluster.metadata is not None else ()
