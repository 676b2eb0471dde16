"""Requests to the leaders of many partitions, one per broker, repeated for those that are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from replication.client.attempts import LOST, Backoff
from replication.client.cluster import Cluster, Partitions
from replication.client.metadata import NO_LEADER
from replication.errors import ErrorCode, KafkaError, error_of
from replication.model.cluster import TopicPartition, names_of
from replication.network.client import Client

Found = TypeVar("Found")


async def call_leaders(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, Any],
    ask: Callable[[Client, Partitions], Awaitable[Mapping[TopicPartition, Found | ErrorCode]]],
    what: str,
) -> dict[TopicPartition, Found]:
    """Ask the leaders of these partitions: one request per broker, repeated for partitions that were refused.

    `ask` sends one broker its share and returns a result, or an error, for each partition.

    Raises: KafkaError: the last refusal when the time is over, or that no repetition mends;
    UnknownTopicError, UnreachableError.
    """
    done: dict[TopicPartition, Found] = {}
    left, backoff = dict(wanted), cluster.backoff()
    while True:
        refused = await _ask_leaders(cluster, left, ask, done, backoff)
        left = {tp: wanted[tp] for tp in left if tp not in done}
        if not left:
            return done
        cluster.forget({tp.topic for tp in left})
        for tp, error in refused.items():
            if isinstance(error, ErrorCode) and not error.is_retriable:
                raise error_of(error, f"{what} of {tp}")
        if backoff.is_over:
            last = refused.get(next(iter(left)), "no leader")
            raise backoff.failure(f"{what} of {names_of(list(left))}", last)
        await backoff.wait()


async def _ask_leaders(
    cluster: Cluster,
    left: Mapping[TopicPartition, Any],
    ask: Callable[[Client, Partitions], Awaitable[Mapping[TopicPartition, Found | ErrorCode]]],
    done: dict[TopicPartition, Found],
    backoff: Backoff,
) -> dict[TopicPartition, ErrorCode | BaseException | str]:
    shares: dict[int, dict[TopicPartition, Any]] = {}
    refused: dict[TopicPartition, ErrorCode | BaseException | str] = {}
    for tp, asked in left.items():
        leader = (await cluster.leader(tp, backoff)).broker
        if leader == NO_LEADER:
            refused[tp] = ErrorCode.LEADER_NOT_AVAILABLE
        else:
            shares.setdefault(leader, {})[tp] = asked
    answers = await asyncio.gather(*(_share(cluster, b, share, ask, backoff) for b, share in shares.items()))
    for share, answer in zip(shares.values(), answers, strict=True):
        for tp in share:
            found = answer if isinstance(answer, BaseException) else answer.get(tp, "not answered")
            if isinstance(found, (ErrorCode, BaseException, str)):
                refused[tp] = found
            else:
                done[tp] = found
    return refused


async def _share(
    cluster: Cluster,
    broker: int,
    share: Partitions,
    ask: Callable[[Client, Partitions], Awaitable[Mapping[TopicPartition, Any]]],
    backoff: Backoff,
) -> Mapping[TopicPartition, Any] | BaseException:
    try:
        async with asyncio.timeout_at(backoff.deadline):
            return await ask(await cluster.connection(broker), share)
    except (*LOST, KafkaError) as error:
        return error
