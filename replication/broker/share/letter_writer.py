"""LetterWriter: dead letters of share groups (KIP-1191), written to their topic wherever its leaders are.

Law: the records of each call are told as done once their letters are on all replicas in sync, or after the letters were
refused, which is logged. A write whose error may pass is repeated for RETRIED_S. A letter may be there twice: nobody
knows of a write whose answer is lost. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from logstore.env import Clock
from logstore.errors import PylogError
from logstore.records import batch
from logstore.records.batch import Record
from replication.broker.share.letters import Letter, batch_of, fitting, place
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
from replication.protocol.wire import Buffer
from replication.replica.leader.results import ALL_IN_SYNC
from replication.replica.manager import ReplicaManager

logger = logging.getLogger(__name__)

ENABLED = "errors.deadletterqueue.group.enable"  # of a topic
RETRY_S, RETRY_S_MAX = 0.1, 5.0
RETRIED_S = 30.0  # about as long as a Kafka 4.4, with its 5 attempts
READ_BYTES = 1024 * 1024  # of the log at a time
PRODUCE_LAST = 12  # the last version that names topics

Done = Callable[[LettersSent], object]


class Source(NamedTuple):
    """The share partition whose records are given up."""

    group_id: str
    tp: TopicPartition


class _Target(NamedTuple):
    tp: TopicPartition
    bytes_max: int


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

    async def write(self, source: Source, config: GroupConfig, given_up: Sequence[SendLetters], done: Done) -> None:
        """Write a letter of each record, or log why not; `done` is told of the records in their order."""
        topic = config.errors_deadletterqueue_topic_name
        for each in given_up:
            first = each.first
            while first <= each.last:
                last = each.last
                found: Mapping[int, Record] = {}
                if config.errors_deadletterqueue_copy_record_enable:
                    last, found = await self._read(source.tp, first, each.last)
                letters = [
                    Letter(source.group_id, *source.tp, offset, *each[2:], found=found.get(offset))
                    for offset in range(first, last + 1)
                ]
                while letters:
                    count = await self._write_some(topic, source, letters)
                    done(LettersSent(letters[0].offset, letters[count - 1].offset))
                    del letters[:count]
                first = last + 1

    # ------------------------------------------------------------------ what is copied

    async def _read(self, tp: TopicPartition, first: int, last: int) -> tuple[int, Mapping[int, Record]]:
        """Return up to where was read, and the records that are in the log: of others, letters have headers only."""
        found = await self._replicas.fetch(
            {tp: FetchPartition(tp.partition, first, READ_BYTES, -1)},
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=READ_BYTES,
        )
        data = found[tp].records
        if found[tp].error_code or not data:
            return last, {}
        try:
            return await asyncio.to_thread(_records_of, data, first, last)
        except batch.InvalidBatchError as error:
            logger.error("tp=%s cannot be read for dead letters from offset %d on: %s", tp, first, error)
            return last, {}

    # ------------------------------------------------------------------ one batch

    async def _write_some(self, topic: str, source: Source, letters: Sequence[Letter]) -> int:
        """Write as many of these letters as fit together, or log why not; return how many."""
        loop = asyncio.get_running_loop()
        until_s, pause_s, count = loop.time() + RETRIED_S, RETRY_S, len(letters)
        while True:
            try:
                target = await self._target(topic, source)
                count = fitting(letters, target.bytes_max)
                error = await self._append(target.tp, batch_of(letters[:count], self._clock.now_ms()))
                why = error.name
            except (OSError, TimeoutError, CoordinationError) as failure:
                error, why = ErrorCode.NETWORK_EXCEPTION, str(failure)
            except PylogError as failure:
                error, why = code_of(failure), str(failure)
            if not error:
                return count
            if not error.is_retriable or loop.time() + pause_s > until_s:
                first, last = letters[0].offset, letters[count - 1].offset
                logger.error(
                    "group=%s tp=%s offsets=%d-%d are given up without dead letters in %r: %s",
                    source.group_id, source.tp, first, last, topic, why,
                )  # fmt: skip
                return count
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)

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


def _records_of(data: Buffer, first: int, last: int) -> tuple[int, Mapping[int, Record]]:
    """Return up to where the batches reach, and their records in between. Raises: InvalidBatchError."""
    found: dict[int, Record] = {}
    end = first - 1
    for at, header in batch.batches(data):
        if header.base_offset > last:
            return last, found
        if not header.is_control:
            found.update((row.offset, row) for row in batch.records(data, at) if first <= row.offset <= last)
        end = header.last_offset
    return min(max(end, first), last), found
