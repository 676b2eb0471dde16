"""The messages that carry records, as values: Produce and Fetch, requests and responses of all versions.

Every other message is a class of `kio` (or of `interbroker`). These are read and written by hand, because they are
most of the traffic: a value per message is the same for all its versions, and a field that a version has not has its
default. Records are views of the bytes that came, undecoded and writable, so that offsets can be stamped in place.

Times are in milliseconds, -1 for none. `error_code` takes any int, so `replication.errors.ErrorCode` too.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from replication.protocol.wire import Buffer


class Isolation(enum.IntEnum):
    """What of a transaction a consumer wants to see."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


# -------------------------------------------------------------------- Produce


class ProducePartition(NamedTuple):
    """Batches for one partition; None if the producer sent null."""

    partition: int
    records: Buffer | None


class ProduceTopic(NamedTuple):
    """The partitions of one topic."""

    name: str
    partitions: tuple[ProducePartition, ...]


class ProduceRequest(NamedTuple):
    """acks: 0 nobody answers, 1 the leader has it, -1 every in-sync replica has it."""

    acks: int
    timeout_ms: int
    topics: tuple[ProduceTopic, ...]
    transactional_id: str | None = None


class RecordError(NamedTuple):
    """Why one record of a batch was refused (v8+)."""

    batch_index: int
    message: str | None = None


class CurrentLeader(NamedTuple):
    """Who leads now, told with an error (Produce v10+, Fetch v12+)."""

    leader_id: int
    leader_epoch: int


class NodeEndpoint(NamedTuple):
    """Where that leader is (Produce v10+, Fetch v16+)."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionProduced(NamedTuple):
    """What became of one partition's records. `base_offset` is -1 with an error."""

    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: tuple[RecordError, ...] = ()
    error_message: str | None = None
    current_leader: CurrentLeader | None = None


class TopicProduced(NamedTuple):
    """The partitions of one topic."""

    name: str
    partitions: Sequence[PartitionProduced]


class ProduceResponse(NamedTuple):
    """The answer to a ProduceRequest whose acks is not 0."""

    topics: Sequence[TopicProduced]
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()


# ---------------------------------------------------------------------- Fetch


class FetchPartition(NamedTuple):
    """Where to read. `log_start_offset` is a follower's own; epochs are -1 if they need no check."""

    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


class FetchTopic(NamedTuple):
    """The partitions of one topic, named by its name up to v12 and by its id from v13 on."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: tuple[FetchPartition, ...]


class ForgottenTopic(NamedTuple):
    """Partitions that leave a fetch session (v7+)."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: tuple[int, ...]


class FetchRequest(NamedTuple):
    """A consumer's request, or with `replica_id` >= 0 a follower's."""

    max_wait_ms: int
    min_bytes: int
    topics: tuple[FetchTopic, ...]
    max_bytes: int = 2**31 - 1
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    replica_id: int = -1
    replica_epoch: int = -1
    session_id: int = 0
    session_epoch: int = -1
    forgotten: tuple[ForgottenTopic, ...] = ()
    rack_id: str = ""
    cluster_id: str | None = None


class Aborted(NamedTuple):
    """An aborted transaction whose records are among those returned."""

    producer_id: int
    first_offset: int


class EpochEndOffset(NamedTuple):
    """Where the follower's log and the leader's part (v12+)."""

    epoch: int
    end_offset: int


class PartitionFetched(NamedTuple):
    """Whole batches as stored, from the one that holds the offset asked for.

    `aborted` is None for read_uncommitted. `preferred_read_replica` is -1: read on here.
    """

    partition: int
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[Aborted] | None = None
    records: Buffer = b""
    preferred_read_replica: int = -1
    diverging_epoch: EpochEndOffset | None = None
    current_leader: CurrentLeader | None = None


class TopicFetched(NamedTuple):
    """The partitions of one topic; name and id as in the request."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: Sequence[PartitionFetched]


class FetchResponse(NamedTuple):
    """The answer to a FetchRequest. `session_id` is 0 where no session is kept."""

    topics: Sequence[TopicFetched]
    throttle_time_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()
