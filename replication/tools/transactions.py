"""Transactions of a cluster: which there are, which hang, and how those that nobody ends are ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from logstore.env import SYSTEM
from logstore.errors import InvalidRequestError, did_you_mean
from replication.client.admin import OpenTransaction, abort_in_log, open_transactions
from replication.client.kafka_client import TRANSACTION_TIMEOUT_MS, KafkaClient
from replication.client.metadata import NO_LEADER
from replication.client.transactions import DescribedTransaction, ListedTransaction
from replication.model.cluster import TopicPartition
from replication.tools.topics import partitions_of, selected

Row = dict[str, Any]
UNENDED = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})


def listed(client: KafkaClient, states: Collection[str] = ()) -> list[Row]:
    """The transactional ids, or those in these states, in Kafka's words. Raises: KafkaError, UnreachableError."""
    return [
        {"transactional_id": each.transactional_id, "producer_id": each.producer_id, "state": each.state}
        for each in sorted(_all(client))
        if not states or each.state in states
    ]


def _all(client: KafkaClient) -> list[ListedTransaction]:
    found = client.list_transactions()
    if found is None:
        raise InvalidRequestError("these brokers are older than Kafka 3.0, and list no transactions")
    return found


def described(client: KafkaClient, names: Iterable[str]) -> list[Row]:
    """The last transaction of each id, and the partitions that lack the marker of its end.

    Raises: InvalidRequestError: an id is not known; KafkaError.
    """
    wanted = list(names)
    found = client.describe_transactions(wanted) or {}
    for name in wanted:
        if name not in found:
            known = {each.transactional_id for each in _all(client)}
            raise InvalidRequestError(f"no transactional id {name!r}{did_you_mean(name, known)}")
    return [_row(found[name]) for name in wanted]


def _row(each: DescribedTransaction) -> Row:
    return {
        "transactional_id": each.transactional_id,
        "state": each.state,
        "producer_id": each.pair.producer_id,
        "epoch": each.pair.epoch,
        "start_ms": each.start_ms if each.start_ms >= 0 else None,
        "timeout_ms": each.timeout_ms,
        "partitions": tuple(map(str, sorted(each.partitions))),
    }


def abort(client: KafkaClient, name: str) -> None:
    """Fence the producer of an id; what it has open is aborted, what is decided is finished.

    Raises: InvalidRequestError: the id is not known; KafkaError.
    """
    described(client, [name])
    client.init_producer(name, timeout_ms=TRANSACTION_TIMEOUT_MS)


def hanging(client: KafkaClient, topics: Iterable[str] | None, *, older_than_ms: int) -> list[Row]:
    """Transactions that are open in a log for so long, and of which no coordinator knows: nobody will end them.

    `topics` None: those of all topics. Partitions that nobody leads are left out. Raises: UnknownTopicError,
    KafkaError.
    """
    led = [tp for tp, each in partitions_of(selected(client, topics)).items() if each.leader != NO_LEADER]
    found = client.run(open_transactions, led) if led else {}
    now_ms = SYSTEM.clock.now_ms()
    old = {tp: [each for each in rows if now_ms - each.last_append_ms > older_than_ms] for tp, rows in found.items()}
    known = _unended(client, {each.producer_id for rows in old.values() for each in rows})
    return [
        {**tp._asdict(), **each._asdict()}
        for tp, rows in sorted(old.items())
        for each in rows
        if not _is_known(known, tp, each)
    ]


def _unended(client: KafkaClient, producers: Collection[int]) -> Mapping[int, DescribedTransaction]:
    """The transactions that coordinators still have to end, by producer id."""
    if not producers:
        return {}
    names = [each.transactional_id for each in _all(client) if each.producer_id in producers]
    found = (client.describe_transactions(names) or {}) if names else {}
    return {each.pair.producer_id: each for each in found.values() if each.state in UNENDED}


def _is_known(known: Mapping[int, DescribedTransaction], tp: TopicPartition, open_: OpenTransaction) -> bool:
    transaction = known.get(open_.producer_id)
    return transaction is not None and tp in transaction.partitions and open_.epoch <= transaction.pair.epoch


def abort_hanging(client: KafkaClient, topic: str, partition: int, first_offset: int) -> Row:
    """Abort the transaction that begins at this offset of a log, if no coordinator knows it; return what it was.

    Raises: InvalidRequestError: there is none, or its coordinator will end it; UnknownTopicError, KafkaError.
    """
    tp = TopicPartition(topic, partition)
    found = client.run(open_transactions, [tp])[tp]
    hanging = next((each for each in found if each.first_offset == first_offset), None)
    if hanging is None:
        offsets = [each.first_offset for each in found]
        raise InvalidRequestError(f"no open transaction begins at offset {first_offset} of {tp}; there are {offsets}")
    known = _unended(client, {hanging.producer_id})
    if _is_known(known, tp, hanging):
        name = known[hanging.producer_id].transactional_id
        raise InvalidRequestError(f"the coordinator of {name!r} will end it: abort that transactional id")
    client.run(abort_in_log, tp, hanging)
    return {**tp._asdict(), **hanging._asdict()}
