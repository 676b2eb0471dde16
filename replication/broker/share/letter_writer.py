"""LetterWriter: dead letters of share groups (KIP-1191), written to their topic wherever its leaders are.

Law: the records of each call are told as done once their letters are on all replicas in sync, or after the letters were
refused, which is logged. A write whose error may pass is repeated for RETRIED_S. A letter may be there twice: nobody
knows of a write whose answer is lost. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from logstore.env import Clock
from logstore.errors import PylogError
from logstore.records.batch import InvalidBatchError, Record
from replication.broker.share.letters import Letter, batch_of, copied, cut, fitting, place, ranges_of
from replication.broker.share.machine.events import LettersSent, SendLetters
from replication.broker.topic_admin import NewTopic, TopicAdmin
from replication.config.broker import BrokerConfig
from replication.config.group import GroupConfig
from replication.coordination import topics
from replication.coordination.tree import CoordinationError, Tree
from replication.errors import ErrorCode, KafkaError, code_in, code_of
from replication.model.cluster import TopicPartition
from replication.network.client import Clients
from replication.protocol.apis import ApiKey
from replication.protocol.messages import FetchPartition, ProducePartition, ProduceRequest, ProduceTopic
from replication.replica.leader.results import ALL_IN_SYNC
from replication.replica.manager import ReplicaManager

logger = logging.getLogger(__name__)

ENABLED = "errors.deadletterqueue.group.enable"  # of a topic
RETRY_S, RETRY_S_MAX = 0.1, 5.0
RETRIED_S = 30.0  # about as long as a Kafka 4.4, with its 5 attempts
READ_BYTES = 1024 * 1024  # of the log at a time
LETTERS_MAX = 1000  # at a time: one object each
PRODUCE_LAST = 12  # the last version that names topics

_NOTHING: Mapping[int, Record] = {}


class Source(NamedTuple):
    """The share partition whose records are given up; once it `is_over`, the next leader writes their letters."""

    group_id: str
    tp: TopicPartition
    is_over: Callable[[], bool]


class _Target(NamedTuple):
    tp: TopicPartition
    bytes_max: int


class _Patience:
    """How long errors that may pass are borne: RETRIED_S in a row, and not for each batch anew."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._until_s = asyncio.get_running_loop().time() + RETRIED_S
        self._is_over = False

    def is_over(self, in_s: float) -> bool:
        """Return whether there is no time left for another pause; if so, until the next `begin`."""
        self._is_over = self._is_over or asyncio.get_running_loop().time() + in_s > self._until_s
        return self._is_over


class LetterWriter:
    """`clients` are connections to other brokers; `tree` raises KafkaError while there is none."""

    def __init__(
        self,
        config: BrokerConfig,
        replicas: ReplicaManager,
        clients: Clients,
        admin: TopicAdmin,
        tree: Callable[[], Tree],
        clock: Clock,
    ) -> None:
        self._config, self._replicas, self._clients, self._admin = config, replicas, clients, admin
        self._tree, self._clock = tree, clock

    async def write(
        self, source: Source, config: GroupConfig, given_up: Sequence[SendLetters]
    ) -> AsyncGenerator[LettersSent, None]:
        """Write a letter of each record, or log why not; yield the records that are done, in order.

        Return early once the source is over: letters of a former leader would be there twice.
        """
        topic = config.errors_deadletterqueue_topic_name
        patience = _Patience()
        left: Sequence[SendLetters] = sorted(given_up)
        end, found = 0, _NOTHING
        while left:
            if not config.errors_deadletterqueue_copy_record_enable:
                end = left[-1].last + 1
            elif end <= left[0].first:
                end, found = await self._read(source.tp, left)
            some, left = cut(left, LETTERS_MAX, end)
            letters = [
                Letter(source.group_id, *source.tp, offset, *each[2:], found=found.get(offset))
                for each in some
                for offset in range(each.first, each.last + 1)
            ]
            while letters:
                count = await self._write_some(topic, source, letters, patience)
                if not count:
                    return
                yield LettersSent(ranges_of(letters[:count]))
                del letters[:count]

    # ------------------------------------------------------------------ what is copied

    async def _read(self, tp: TopicPartition, given_up: Sequence[SendLetters]) -> tuple[int, Mapping[int, Record]]:
        """Return before which offset was read, and the records found there: letters of others have headers only."""
        first = given_up[0].first
        fetched = await self._replicas.fetch(
            {tp: FetchPartition(tp.partition, first, READ_BYTES, -1)},
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=READ_BYTES,
        )
        found = fetched[tp]
        if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and found.log_start_offset > first:
            return found.log_start_offset, {}
        if not found.error_code and found.records:
            said = partial(logger.error, "tp=%s offset>=%d cannot be copied into dead letters: %s", tp, first)
            try:
                return await asyncio.to_thread(copied, found.records, given_up, said)
            except InvalidBatchError as error:
                said(error)
        return given_up[0].last + 1, {}

    # ------------------------------------------------------------------ one batch

    async def _write_some(self, topic: str, source: Source, letters: Sequence[Letter], patience: _Patience) -> int:
        """Write as many of these letters as fit together, or log why not; return how many: 0 if the source is over."""
        pause_s, count = RETRY_S, len(letters)
        while not source.is_over():
            try:
                target = await self._target(topic, source)
                count = fitting(letters, target.bytes_max)
                data = await asyncio.to_thread(batch_of, letters[:count], self._clock.now_ms())
                if len(data) > target.bytes_max:
                    raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"{len(data):,} bytes, more than max.message.bytes")
                error = await self._append(target.tp, data)
                why = error.name
            except (OSError, TimeoutError, CoordinationError) as failure:
                error, why = ErrorCode.NETWORK_EXCEPTION, str(failure)
            except PylogError as failure:
                error, why = code_of(failure), str(failure)
            if not error or not error.is_retriable:
                patience.begin()
            if not error:
                return count
            if not error.is_retriable or patience.is_over(pause_s):
                first, last = letters[0].offset, letters[count - 1].offset
                logger.error(
                    "group=%s tp=%s offsets=%d-%d are given up without dead letters in %r: %s",
                    source.group_id, source.tp, first, last, topic, why,
                )  # fmt: skip
                return count
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)
        return 0

    async def _target(self, topic: str, source: Source) -> _Target:
        """Return where letters go; the topic is created if it may be. Raises: KafkaError, InvalidTopicError."""
        known = self._replicas.metadata.topic(topic)
        if not topic:
            raise _refused("the group has no topic for dead letters any more")
        if topic.startswith("__"):
            raise _refused("the name of a topic for dead letters must not begin with __")
        if known is None and not self._config.errors_deadletterqueue_auto_create_topics_enable:
            raise _refused("there is no such topic, and errors.deadletterqueue.auto.create.topics.enable is false")
        prefix = self._config.errors_deadletterqueue_topic_name_prefix
        if not topic.startswith(prefix):
            raise _refused(f"its name does not begin with errors.deadletterqueue.topic.name.prefix={prefix}")
        if known is None:
            own = {ENABLED: "true", "message.timestamp.type": "CreateTime"}
            known = await self._admin.ensure(NewTopic(name=topic, config=own), timeout_s=RETRIED_S)
            if known is None:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "the topic is created, and not ready yet")
        overrides = (await topics.read_configs(self._tree(), [topic]))[topic]
        settings = self._config.log_config(overrides)
        if not settings.errors_deadletterqueue_group_enable:
            raise _refused(f"{ENABLED} of the topic is false")
        partition = place(source.tp.partition, len(known.partitions))
        return _Target(TopicPartition(topic, partition), settings.batch_bytes_max)

    async def _append(self, tp: TopicPartition, data: bytearray) -> ErrorCode:
        """Return NONE once all replicas in sync have the batch. Raises: OSError, TimeoutError, PylogError."""
        timeout_ms = self._config.replica_socket_timeout_ms
        leader = self._replicas.metadata.leader(*tp)
        if leader == self._config.broker_id:
            return (await self._replicas.append({tp: data}, acks=ALL_IN_SYNC, timeout_ms=timeout_ms))[tp].error_code
        address = self._replicas.metadata.brokers().get(-1 if leader is None else leader)
        if address is None:
            return ErrorCode.LEADER_NOT_AVAILABLE
        partitions = (ProducePartition(tp.partition, bytes(data)),)
        request = ProduceRequest(ALL_IN_SYNC, timeout_ms, (ProduceTopic(tp.topic, partitions),))
        client = self._clients.at(address.host, address.port)
        answer = await client.call(ApiKey.PRODUCE, request, version_max=PRODUCE_LAST)
        return code_in(answer.topics[0].partitions[0])


def _refused(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, why)
