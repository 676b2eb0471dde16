"""The requests between a controller and its brokers: LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown.

kio has no classes for them, since Kafka 4 dropped them; these have kio's form, so that its reader and writer work on
them. The bytes are those of Kafka 3.0, in the one version per API that carries the broker's epoch and, where there is
one, the topic's id:

=================== == ===========================================================================
LeaderAndIsr        5  who leads and follows which partition
StopReplica         3  replicas to stop, or to delete, each with its leader epoch
UpdateMetadata      7  what every broker tells its clients
ControlledShutdown  3  from a broker that is about to stop; the answer names what it still leads
=================== == ===========================================================================
"""

# Annotations must be real types here: kio's reader looks at them.
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType
from kio.static.primitive import i16

LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA, CONTROLLED_SHUTDOWN = 4, 5, 6, 7
VERSIONS = {LEADER_AND_ISR: 5, STOP_REPLICA: 3, UPDATE_METADATA: 7, CONTROLLED_SHUTDOWN: 3}
FULL, INCREMENTAL = 1, 2  # LeaderAndIsrRequest.type: is every partition of the broker named?
PLAINTEXT = 0  # UpdateMetadataEndpoint.security_protocol

_Class = TypeVar("_Class")


def _of(kafka_type: str, **default: Any) -> Any:
    return field(metadata={"kafka_type": kafka_type}, **default)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(_of,))
def _entity(
    key: int, kind: EntityType = EntityType.nested, header: Any = RequestHeader
) -> Callable[[type[_Class]], type[_Class]]:
    """Make the class an entity of kio's: a frozen dataclass with the attributes that its reader and writer ask for."""

    def make(cls: type[_Class]) -> type[_Class]:
        made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        for name, value in (
            ("__type__", kind),
            ("__version__", i16(VERSIONS[key])),
            ("__flexible__", True),
            ("__api_key__", i16(key)),
            ("__header_schema__", header),
        ):
            setattr(made, name, value)
        return made

    return make


@dataclass(frozen=True, slots=True, kw_only=True)
class _FromController:
    controller_id: int = _of("int32")
    controller_epoch: int = _of("int32")
    broker_epoch: int = _of("int64", default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartitionState:
    """The state node of a partition, and its replicas. `zk_version` is the version of that node."""

    partition_index: int = _of("int32")
    controller_epoch: int = _of("int32")
    leader: int = _of("int32")
    leader_epoch: int = _of("int32")
    isr: tuple[int, ...] = _of("int32")
    zk_version: int = _of("int32")
    replicas: tuple[int, ...] = _of("int32")


@_entity(LEADER_AND_ISR)
class LeaderAndIsrPartition(_PartitionState):
    """`is_new`: no replica has data yet."""

    adding_replicas: tuple[int, ...] = _of("int32", default=())
    removing_replicas: tuple[int, ...] = _of("int32", default=())
    is_new: bool = _of("bool", default=False)


@_entity(LEADER_AND_ISR)
class LeaderAndIsrTopic:
    topic_name: str = _of("string")
    topic_id: uuid.UUID | None = _of("uuid")
    partition_states: tuple[LeaderAndIsrPartition, ...]


@_entity(LEADER_AND_ISR)
class LiveLeader:
    broker_id: int = _of("int32")
    host_name: str = _of("string")
    port: int = _of("int32")


@_entity(LEADER_AND_ISR, EntityType.request)
class LeaderAndIsrRequest(_FromController):
    type: int = _of("int8", default=INCREMENTAL)
    topic_states: tuple[LeaderAndIsrTopic, ...]
    live_leaders: tuple[LiveLeader, ...]


@_entity(LEADER_AND_ISR, header=ResponseHeader)
class LeaderAndIsrPartitionError:
    partition_index: int = _of("int32")
    error_code: ErrorCode = _of("error_code")


@_entity(LEADER_AND_ISR, header=ResponseHeader)
class LeaderAndIsrTopicError:
    topic_id: uuid.UUID | None = _of("uuid")
    partition_errors: tuple[LeaderAndIsrPartitionError, ...]


@_entity(LEADER_AND_ISR, EntityType.response, ResponseHeader)
class LeaderAndIsrResponse:
    """One error for the whole request, or one per partition."""

    error_code: ErrorCode = _of("error_code")
    topics: tuple[LeaderAndIsrTopicError, ...]


@_entity(STOP_REPLICA)
class StopReplicaPartition:
    """`leader_epoch` is -1 for none, -2 while the topic is being deleted."""

    partition_index: int = _of("int32")
    leader_epoch: int = _of("int32", default=-1)
    delete_partition: bool = _of("bool")


@_entity(STOP_REPLICA)
class StopReplicaTopic:
    topic_name: str = _of("string")
    partition_states: tuple[StopReplicaPartition, ...]


@_entity(STOP_REPLICA, EntityType.request)
class StopReplicaRequest(_FromController):
    topic_states: tuple[StopReplicaTopic, ...]


@_entity(STOP_REPLICA, header=ResponseHeader)
class StopReplicaPartitionError:
    topic_name: str = _of("string")
    partition_index: int = _of("int32")
    error_code: ErrorCode = _of("error_code")


@_entity(STOP_REPLICA, EntityType.response, ResponseHeader)
class StopReplicaResponse:
    """One error for the whole request, or one per partition."""

    error_code: ErrorCode = _of("error_code")
    partition_errors: tuple[StopReplicaPartitionError, ...]


@_entity(UPDATE_METADATA)
class UpdateMetadataPartition(_PartitionState):
    offline_replicas: tuple[int, ...] = _of("int32", default=())


@_entity(UPDATE_METADATA)
class UpdateMetadataTopic:
    topic_name: str = _of("string")
    topic_id: uuid.UUID | None = _of("uuid")
    partition_states: tuple[UpdateMetadataPartition, ...]


@_entity(UPDATE_METADATA)
class UpdateMetadataEndpoint:
    port: int = _of("int32")
    host: str = _of("string")
    listener: str = _of("string")
    security_protocol: int = _of("int16", default=PLAINTEXT)


@_entity(UPDATE_METADATA)
class UpdateMetadataBroker:
    id: int = _of("int32")
    endpoints: tuple[UpdateMetadataEndpoint, ...]
    rack: str | None = _of("string", default=None)


@_entity(UPDATE_METADATA, EntityType.request)
class UpdateMetadataRequest(_FromController):
    topic_states: tuple[UpdateMetadataTopic, ...]
    live_brokers: tuple[UpdateMetadataBroker, ...]


@_entity(UPDATE_METADATA, EntityType.response, ResponseHeader)
class UpdateMetadataResponse:
    error_code: ErrorCode = _of("error_code")


@_entity(CONTROLLED_SHUTDOWN, EntityType.request)
class ControlledShutdownRequest:
    """From a broker that wants to stop, and asks for its leaderships to be moved away."""

    broker_id: int = _of("int32")
    broker_epoch: int = _of("int64", default=-1)


@_entity(CONTROLLED_SHUTDOWN, header=ResponseHeader)
class RemainingPartition:
    topic_name: str = _of("string")
    partition_index: int = _of("int32")


@_entity(CONTROLLED_SHUTDOWN, EntityType.response, ResponseHeader)
class ControlledShutdownResponse:
    """The partitions that the broker still leads; with none left, it may stop."""

    error_code: ErrorCode = _of("error_code")
    remaining_partitions: tuple[RemainingPartition, ...]


# API key -> (request, response)
MESSAGES: dict[int, tuple[Any, Any]] = {
    LEADER_AND_ISR: (LeaderAndIsrRequest, LeaderAndIsrResponse),
    STOP_REPLICA: (StopReplicaRequest, StopReplicaResponse),
    UPDATE_METADATA: (UpdateMetadataRequest, UpdateMetadataResponse),
    CONTROLLED_SHUTDOWN: (ControlledShutdownRequest, ControlledShutdownResponse),
}
