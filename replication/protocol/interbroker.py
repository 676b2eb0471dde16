"""What a controller and its brokers say to each other: LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown.

kio has no classes for them, since Kafka 4 has no such requests any more; these have kio's form, so that its reader
and writer work on them. The bytes are those of Kafka 3.0, in the one version per API that carries the broker's epoch
and, where there is one, the topic's id:

=================== == ===========================================================================
LeaderAndIsr        5  who leads and follows which partition
StopReplica         3  replicas to let go of, or to delete, each with its leader epoch
UpdateMetadata      7  what every broker tells its clients
ControlledShutdown  3  from a broker that is about to stop; the answer says what it still leads
=================== == ===========================================================================
"""

# ruff: noqa: RUF009  (`_of` is `field`)
# Annotations must be real types here: kio's reader looks at them.
import uuid
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType
from kio.static.primitive import i16

LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA, CONTROLLED_SHUTDOWN = 4, 5, 6, 7
FULL, INCREMENTAL = 1, 2  # LeaderAndIsrRequest.type: is every partition of the broker named?
PLAINTEXT = 0  # UpdateMetadataEndpoint.security_protocol


def _of(kafka_type: str, **default: Any) -> Any:
    return field(metadata={"kafka_type": kafka_type}, **default)


class _LeaderAndIsr:
    __slots__ = ()
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar = i16(5)
    __flexible__: ClassVar = True
    __api_key__: ClassVar = i16(LEADER_AND_ISR)
    __header_schema__: ClassVar[type] = RequestHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrPartition(_LeaderAndIsr):
    """Leadership of one partition. `zk_version` is that of the state node; `is_new`: no replica has data yet."""

    partition_index: int = _of("int32")
    controller_epoch: int = _of("int32")
    leader: int = _of("int32")
    leader_epoch: int = _of("int32")
    isr: tuple[int, ...] = _of("int32")
    zk_version: int = _of("int32")
    replicas: tuple[int, ...] = _of("int32")
    adding_replicas: tuple[int, ...] = _of("int32", default=())
    removing_replicas: tuple[int, ...] = _of("int32", default=())
    is_new: bool = _of("bool", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrTopic(_LeaderAndIsr):
    """The partitions of one topic."""

    topic_name: str = _of("string")
    topic_id: uuid.UUID | None = _of("uuid")
    partition_states: tuple[LeaderAndIsrPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLeader(_LeaderAndIsr):
    """Where a leader is found."""

    broker_id: int = _of("int32")
    host_name: str = _of("string")
    port: int = _of("int32")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrRequest(_LeaderAndIsr):
    """From the controller: become leader or follower of these partitions."""

    __type__: ClassVar = EntityType.request
    controller_id: int = _of("int32")
    controller_epoch: int = _of("int32")
    broker_epoch: int = _of("int64", default=-1)
    type: int = _of("int8", default=INCREMENTAL)
    topic_states: tuple[LeaderAndIsrTopic, ...]
    live_leaders: tuple[LiveLeader, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrPartitionError(_LeaderAndIsr):
    """What became of one partition."""

    __header_schema__: ClassVar[type] = ResponseHeader
    partition_index: int = _of("int32")
    error_code: ErrorCode = _of("error_code")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrTopicError(_LeaderAndIsr):
    """The partitions of one topic."""

    __header_schema__: ClassVar[type] = ResponseHeader
    topic_id: uuid.UUID | None = _of("uuid")
    partition_errors: tuple[LeaderAndIsrPartitionError, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsrResponse(_LeaderAndIsr):
    """One error for the whole request, or one per partition."""

    __type__: ClassVar = EntityType.response
    __header_schema__: ClassVar[type] = ResponseHeader
    error_code: ErrorCode = _of("error_code")
    topics: tuple[LeaderAndIsrTopicError, ...]


class _StopReplica:
    __slots__ = ()
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar = i16(3)
    __flexible__: ClassVar = True
    __api_key__: ClassVar = i16(STOP_REPLICA)
    __header_schema__: ClassVar[type] = RequestHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplicaPartition(_StopReplica):
    """A replica to let go of. The epoch is -1 for none, -2 while the topic is being deleted."""

    partition_index: int = _of("int32")
    leader_epoch: int = _of("int32", default=-1)
    delete_partition: bool = _of("bool")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplicaTopic(_StopReplica):
    """The partitions of one topic."""

    topic_name: str = _of("string")
    partition_states: tuple[StopReplicaPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplicaRequest(_StopReplica):
    """From the controller: stop these replicas, and delete those that say so."""

    __type__: ClassVar = EntityType.request
    controller_id: int = _of("int32")
    controller_epoch: int = _of("int32")
    broker_epoch: int = _of("int64", default=-1)
    topic_states: tuple[StopReplicaTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplicaPartitionError(_StopReplica):
    """What became of one partition."""

    __header_schema__: ClassVar[type] = ResponseHeader
    topic_name: str = _of("string")
    partition_index: int = _of("int32")
    error_code: ErrorCode = _of("error_code")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReplicaResponse(_StopReplica):
    """One error for the whole request, or one per partition."""

    __type__: ClassVar = EntityType.response
    __header_schema__: ClassVar[type] = ResponseHeader
    error_code: ErrorCode = _of("error_code")
    partition_errors: tuple[StopReplicaPartitionError, ...]


class _UpdateMetadata:
    __slots__ = ()
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar = i16(7)
    __flexible__: ClassVar = True
    __api_key__: ClassVar = i16(UPDATE_METADATA)
    __header_schema__: ClassVar[type] = RequestHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataPartition(_UpdateMetadata):
    """What clients are told of one partition."""

    partition_index: int = _of("int32")
    controller_epoch: int = _of("int32")
    leader: int = _of("int32")
    leader_epoch: int = _of("int32")
    isr: tuple[int, ...] = _of("int32")
    zk_version: int = _of("int32")
    replicas: tuple[int, ...] = _of("int32")
    offline_replicas: tuple[int, ...] = _of("int32", default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataTopic(_UpdateMetadata):
    """The partitions of one topic."""

    topic_name: str = _of("string")
    topic_id: uuid.UUID | None = _of("uuid")
    partition_states: tuple[UpdateMetadataPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataEndpoint(_UpdateMetadata):
    """One of a broker's addresses."""

    port: int = _of("int32")
    host: str = _of("string")
    listener: str = _of("string")
    security_protocol: int = _of("int16", default=PLAINTEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataBroker(_UpdateMetadata):
    """A live broker."""

    id: int = _of("int32")
    endpoints: tuple[UpdateMetadataEndpoint, ...]
    rack: str | None = _of("string", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataRequest(_UpdateMetadata):
    """From the controller: the live brokers, all of them, and the partitions that changed."""

    __type__: ClassVar = EntityType.request
    controller_id: int = _of("int32")
    controller_epoch: int = _of("int32")
    broker_epoch: int = _of("int64", default=-1)
    topic_states: tuple[UpdateMetadataTopic, ...]
    live_brokers: tuple[UpdateMetadataBroker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetadataResponse(_UpdateMetadata):
    """Taken, or not."""

    __type__: ClassVar = EntityType.response
    __header_schema__: ClassVar[type] = ResponseHeader
    error_code: ErrorCode = _of("error_code")


class _ControlledShutdown:
    __slots__ = ()
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar = i16(3)
    __flexible__: ClassVar = True
    __api_key__: ClassVar = i16(CONTROLLED_SHUTDOWN)
    __header_schema__: ClassVar[type] = RequestHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlledShutdownRequest(_ControlledShutdown):
    """From a broker: move my leaderships away, I want to stop."""

    __type__: ClassVar = EntityType.request
    broker_id: int = _of("int32")
    broker_epoch: int = _of("int64", default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingPartition(_ControlledShutdown):
    """A partition that it still leads."""

    __header_schema__: ClassVar[type] = ResponseHeader
    topic_name: str = _of("string")
    partition_index: int = _of("int32")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlledShutdownResponse(_ControlledShutdown):
    """What remains: nothing means that the broker may stop."""

    __type__: ClassVar = EntityType.response
    __header_schema__: ClassVar[type] = ResponseHeader
    error_code: ErrorCode = _of("error_code")
    remaining_partitions: tuple[RemainingPartition, ...]


# API key -> (version, request, response)
MESSAGES = {
    LEADER_AND_ISR: (5, LeaderAndIsrRequest, LeaderAndIsrResponse),
    STOP_REPLICA: (3, StopReplicaRequest, StopReplicaResponse),
    UPDATE_METADATA: (7, UpdateMetadataRequest, UpdateMetadataResponse),
    CONTROLLED_SHUTDOWN: (3, ControlledShutdownRequest, ControlledShutdownResponse),
}
