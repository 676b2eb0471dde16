"""SchemaTopic: the topic `_schemas`, read by a broker from its leader, as any consumer does. Belongs to the event loop.

The state is that of committed records up to the end that the leader named last. It is folded anew when the topic is
another one, its end was cut, or its leader is in another epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from logstore.records.batch import InvalidBatchError
from logstore.schemas.subjects import TOPIC, Subjects
from replication.coordination.topics import read_name
from replication.coordination.tree import Tree
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import NO_LEADER, BrokerId, topic_uuid
from replication.model.metadata import Metadata
from replication.model.times import SpecialTime, to_wire
from replication.network.client import Client
from replication.protocol.apis import ApiKey
from replication.protocol.messages import FetchPartition, FetchRequest, FetchTopic, PartitionFetched
from replication.replica.leader.schema_records import fold

FETCH_BYTES = 4 * 1024 * 1024


class _Source(NamedTuple):
    """Whose log it is."""

    topic_id: str | None
    leader_epoch: int


class SchemaTopic:
    """`connect` returns a connection to a broker, which is closed here."""

    def __init__(
        self, metadata: Metadata, tree: Callable[[], Tree | None], connect: Callable[[BrokerId], Client]
    ) -> None:
        self._metadata = metadata
        self._tree = tree
        self._connect = connect
        self._client: Client | None = None
        self._leader = NO_LEADER
        self._source: _Source | None = None
        self._state, self._offset = Subjects(), 0

    async def read_on(self) -> tuple[Subjects, bool]:
        """Return the state at the end of the topic, and whether it is another than the last time.

        Raises: OSError, TimeoutError, PylogError: it cannot be read now; call again.
        """
        topic = self._metadata.topic(TOPIC)
        if topic is None:
            await self._check_missing()
            return self._state, self._begin(None)
        client = self._client_of(self._metadata.leader(TOPIC, 0))
        try:
            return await self._read(client, topic.id)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    async def _check_missing(self) -> None:
        """Raise KafkaError if there may be such a topic, although this broker knows of none."""
        tree = self._tree()
        if tree is None or not self._metadata.is_initialized or (await read_name(tree, TOPIC)).exists:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "this broker does not know yet who leads it")

    def _client_of(self, leader: BrokerId | None) -> Client:
        if leader is None or leader == NO_LEADER:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "nobody leads it")
        if self._client is None or leader != self._leader:
            self.close()
            self._client, self._leader = self._connect(leader), leader
        return self._client

    def _begin(self, source: _Source | None) -> bool:
        """Begin anew if this is another log; return whether it is."""
        is_other = source != self._source
        if is_other:
            self._source, self._state, self._offset = source, Subjects(), 0
        return is_other

    async def _read(self, client: Client, topic_id: str | None) -> tuple[Subjects, bool]:
        end, leader_epoch = await _end(client)
        source = _Source(topic_id, leader_epoch)
        if end < self._offset:
            self._source = None
        is_new = self._begin(source)
        begun, offset, state = self._offset, self._offset, self._state
        self._source = None  # until all of it is in the state
        while offset < end:
            row = await _fetch(client, topic_id, offset)
            if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and row.log_start_offset > offset:
                offset = row.log_start_offset
                continue
            if row.error_code:
                raise KafkaError(ErrorCode(row.error_code), f"offset {offset} cannot be read")
            try:
                behind = await asyncio.to_thread(fold, state, row.records, offset)
            except InvalidBatchError as error:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
            offset = end if behind == offset else behind  # compaction left nothing of the rest
        self._source, self._offset = source, offset
        return state, is_new or offset > begun


async def _end(client: Client) -> tuple[int, int]:
    """Return the committed end of the topic, and the epoch of its leader. Raises: KafkaError, and as `Client.call`."""
    topics = [{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": to_wire(SpecialTime.LATEST)}]}]
    answer: Any = await client.call(ApiKey.LIST_OFFSETS, {"replica_id": -1, "isolation_level": 0, "topics": topics})
    ((row,),) = (topic.partitions for topic in answer.topics)
    if row.error_code:
        raise KafkaError(ErrorCode(row.error_code), "its end is not known")
    return int(row.offset), int(row.leader_epoch)


async def _fetch(client: Client, topic_id: str | None, offset: int) -> PartitionFetched:
    topic = FetchTopic(TOPIC, topic_uuid(topic_id), (FetchPartition(0, offset, FETCH_BYTES),))
    answer: Any = await client.call(ApiKey.FETCH, FetchRequest(0, 0, (topic,), max_bytes=FETCH_BYTES))
    ((row,),) = (topic.partitions for topic in answer.topics)
    assert isinstance(row, PartitionFetched)
    return row
