"""Produce and Fetch, which carry records, as values: requests and responses of all versions.

Every other message is a class of `kio` (or of `interbroker`). These are coded by hand, since they are most of the
traffic. One value serves all versions of a message; a field that a version lacks has its default. Records are
writable views of the received bytes, undecoded, so that offsets can be stamped in place.

Times are in milliseconds, -1 for none. `error_code` takes any int, also an ErrorCode.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from replication.protocol.wire import Buffer


class Isolation(enum.IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


ISOLATIONS = frozenset(Isolation)


class ProducePartition(NamedTuple):
    partition: int
    records: Buffer | None


class ProduceTopic(NamedTuple):
    """The batches of one topic, identified by name up to v12, and by id from v13 on: the name is empty there."""

    name: str
    partitions: tuple[ProducePartition, ...]
    topic_id: uuid.UUID | None = None


class ProduceRequest(NamedTuple):
    """acks: 0: no answer; 1: the leader has it; -1: every replica in sync has it."""

    acks: int
    timeout_ms: int
    topics: tuple[ProduceTopic, ...]
    transactional_id: str | None = None


class ProduceOne(NamedTuple):
    """A ProduceRequest of one batch, without a transaction, as most are: read as any other, and made in less time."""

    acks: int
    timeout_ms: int
    tp: tuple[str, int]  # topic and partition
    records: Buffer
    topic_id: uuid.UUID | None = None

    @property
    def transactional_id(self) -> None:
        """None: a request with one is another value."""
        return

    @property
    def topics(self) -> tuple[ProduceTopic, ...]:
        topic, partition = self.tp
        return (ProduceTopic(topic, (ProducePartition(partition, self.records),), self.topic_id),)


class RecordError(NamedTuple):
    """Why one record of a batch was refused (v8+)."""

    batch_index: int
    message: str | None = None


class CurrentLeader(NamedTuple):
    """The current leader, beside an error (Produce v10+, Fetch v12+)."""

    leader_id: int
    leader_epoch: int


class NodeEndpoint(NamedTuple):
    """The address of that leader (Produce v10+, Fetch v16+)."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionProduced(NamedTuple):
    """The outcome for one partition. `base_offset` is -1 with an error."""

    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: tuple[RecordError, ...] = ()
    error_message: str | None = None
    current_leader: CurrentLeader | None = None


class TopicProduced(NamedTuple):
    """The outcomes for one topic; name and id as in the request."""

    name: str
    partitions: Sequence[PartitionProduced]
    topic_id: uuid.UUID | None = None


class ProduceResponse(NamedTuple):
    topics: Sequence[TopicProduced]
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()


EXAMINER = -2  # Kafka's debugging consumer: reads up to the log's end, and what it asks for tells nothing


class FetchPartition(NamedTuple):
    """The position to read from. `log_start_offset` is a follower's own; epochs of -1 need no check."""

    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


class FetchTopic(NamedTuple):
    """The partitions of one topic, identified by name up to v12 and by id from v13 on."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: tuple[FetchPartition, ...]


# Epochs of requests that name all: of a fetch session of their own, or the first of one that goes on.
ONE_REQUEST, FIRST_REQUEST = -1, 0
FULL_SESSIONS = (ONE_REQUEST, FIRST_REQUEST)


def next_session_epoch(epoch: int) -> int:
    """Return the epoch of the request behind this one: from 1 on, and 1 again behind the largest."""
    return epoch % (2**31 - 1) + 1


class ForgottenTopic(NamedTuple):
    """Partitions that leave a fetch session; the topic is named as in FetchTopic."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: tuple[int, ...]


class FetchRequest(NamedTuple):
    """A consumer's request; with `replica_id` >= 0 a follower's, or of EXAMINER. Unused fields are left out.

    `isolation` None: the request named a level that does not exist.
    """

    max_wait_ms: int
    min_bytes: int
    topics: tuple[FetchTopic, ...]
    max_bytes: int = 2**31 - 1
    isolation: Isolation | None = Isolation.READ_UNCOMMITTED
    replica_id: int = -1
    replica_epoch: int = -1
    session_id: int = 0
    session_epoch: int = -1
    rack: str = ""  # where a consumer stands (v11+)
    forgotten: tuple[ForgottenTopic, ...] = ()

    @property
    def replica(self) -> tuple[int, int]:
        return self.replica_id, self.replica_epoch


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int


class PartitionFetched(NamedTuple):
    """Whole batches as stored, from the one that holds the requested offset.

    `aborted` is None for read_uncommitted. `preferred_read_replica`: read there, and not here (v11+); -1: here.
    """

    partition: int
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[Aborted] | None = None
    records: Buffer = b""
    current_leader: CurrentLeader | None = None
    preferred_read_replica: int = -1


class TopicFetched(NamedTuple):
    """The partitions of one topic; name and id as in the request."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: Sequence[PartitionFetched]


class FetchResponse(NamedTuple):
    """The answer to a FetchRequest. `session_id` is 0 without a session."""

    topics: Sequence[TopicFetched]
    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()
