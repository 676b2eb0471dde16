"""Requests of operators: delete records, elect leaders, move replicas, describe log directories.

Belongs to one event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from replication.client.cluster import METADATA_TIMEOUT_MS, VERSIONS_REQUEST, Cluster, Partitions
from replication.client.leader_requests import call_leaders
from replication.client.metadata import NO_LEADER, ClusterMetadata
from replication.errors import ErrorCode, KafkaError, UnsupportedVersionError, code_in, error_of, raise_for_code
from replication.model.cluster import Assignment, TopicPartition, by_partition, by_topic
from replication.network.client import Client, spoken
from replication.protocol.apis import ApiKey, name_of
from replication.protocol.features import SCHEMAS

_PREFERRED, _UNCLEAN = 0, 1  # the kinds of election
_UPGRADE = 1  # the kind of an update of a feature
_KRAFT_LOG = "__cluster_metadata"


class LogDir(NamedTuple):
    """A directory of a broker. `bytes_of` has the size of each replica in it; sizes are -1 before Kafka 3.3."""

    path: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    bytes_of: Mapping[TopicPartition, int]
    lag_of: Mapping[TopicPartition, int]


class ApiVersions(NamedTuple):
    """An API of a broker. `used` is the version that pylog's client would use; None: none of them."""

    key: int
    name: str
    first: int
    last: int
    used: int | None


class BrokerFeatures(NamedTuple):
    """The levels that a broker supports, first and last, and those of its cluster, by the name of their feature."""

    supported: Mapping[str, tuple[int, int]]
    finalized: Mapping[str, int]
    epoch: int


class Moving(NamedTuple):
    """A reassignment under way."""

    replicas: Assignment
    adding: Assignment
    removing: Assignment


async def delete_records(cluster: Cluster, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Delete the records below these offsets, or of -1 all; return where the logs begin then.

    Raises: OffsetOutOfRange as KafkaError: an offset is above the high watermark; UnknownTopicError,
    UnknownPartitionError, UnreachableError. Records of other partitions may be deleted all the same.
    """

    async def ask(broker: Client, share: Partitions) -> Mapping[TopicPartition, int | ErrorCode]:
        rows = {tp: {"partition_index": tp.partition, "offset": offset} for tp, offset in share.items()}
        request = {"topics": by_topic(rows, "partitions"), "timeout": cluster.timeout_ms}
        answer = await broker.call(ApiKey.DELETE_RECORDS, request)
        return {tp: code_in(row) or row.low_watermark for tp, row in by_partition(answer.topics)}

    return await call_leaders(cluster, offsets, ask, "deletion of records")


async def log_dirs(cluster: Cluster, broker: int) -> list[LogDir]:
    """The directories of a broker with all its replicas. Raises: KafkaError, OSError: it does not answer."""
    answer = await cluster.call(broker, ApiKey.DESCRIBE_LOG_DIRS, {"topics": None})
    if code := getattr(answer, "error_code", ErrorCode.NONE).value:
        raise error_of(code, f"directories of broker {broker}")
    found = []
    for row in answer.results:
        replicas = dict(by_partition(row.topics))
        code = code_in(row)
        found.append(
            LogDir(
                row.log_dir,
                None if code is ErrorCode.NONE else code.name,
                getattr(row, "total_bytes", -1),
                getattr(row, "usable_bytes", -1),
                {tp: replica.partition_size for tp, replica in replicas.items()},
                {tp: replica.offset_lag for tp, replica in replicas.items()},
            )
        )
    return found


async def api_versions(cluster: Cluster, broker: int) -> list[ApiVersions]:
    """The APIs of a broker. Raises: KafkaError, OSError: it does not answer."""
    rows = (await cluster.call(broker, ApiKey.API_VERSIONS, VERSIONS_REQUEST)).api_keys
    return [_versions(row.api_key, row.min_version, row.max_version) for row in rows]


def _versions(number: int, first: int, last: int) -> ApiVersions:
    try:
        key = ApiKey(number)
    except ValueError:
        return ApiVersions(number, name_of(number), first, last, None)
    ours = spoken(key)
    used = min(last, ours.last)
    return ApiVersions(number, key.name, first, last, used if used >= max(first, ours.first) else None)


async def broker_features(cluster: Cluster, broker: int) -> BrokerFeatures:
    """The features of a broker. Raises: KafkaError, OSError: it does not answer."""
    answer = await cluster.call(broker, ApiKey.API_VERSIONS, VERSIONS_REQUEST)
    return BrokerFeatures(
        {row.name: (row.min_version, row.max_version) for row in getattr(answer, "supported_features", ())},
        {row.name: row.max_version_level for row in getattr(answer, "finalized_features", ())},
        getattr(answer, "finalized_features_epoch", -1),
    )


async def controller(cluster: Cluster, known: ClusterMetadata | None = None) -> int | None:
    """The controller; of a KRaft quorum its leader, which need not be a broker. None: there is none now.

    Metadata of KRaft's brokers names any of them: `known`, the present one (by default it is asked for), is believed
    only where brokers have no quorum, or do not tell of it. Raises: UnreachableError.
    """
    request = {"topics": [{"topic_name": _KRAFT_LOG, "partitions": [{"partition_index": 0}]}]}
    with contextlib.suppress(UnsupportedVersionError):
        answer = await cluster.call_any(ApiKey.DESCRIBE_QUORUM, request, timeout_ms=METADATA_TIMEOUT_MS)
        if code_in(answer) is ErrorCode.NONE:
            rows = (row for topic in answer.topics for row in topic.partitions if code_in(row) is ErrorCode.NONE)
            return next((row.leader_id for row in rows if row.leader_id != NO_LEADER), None)
    known = known or await cluster.describe()
    return known.controller if known.controller in known.brokers else None


async def judges_schemas(cluster: Cluster, broker: int) -> bool:
    """Whether the broker is one of pylog that judges schemas. Raises: KafkaError, OSError: it does not answer."""
    return SCHEMAS.name in (await broker_features(cluster, broker)).supported


async def is_pylog(cluster: Cluster) -> bool:
    """Whether every broker is one of pylog. Raises: KafkaError, OSError: one does not answer."""
    return all([await judges_schemas(cluster, broker) for broker in (await cluster.describe()).brokers])


async def update_feature(cluster: Cluster, broker: int, name: str, level: int, *, dry_run: bool = False) -> None:
    """Have a broker raise a feature's level. Raises: KafkaError, OSError, UnsupportedVersionError."""
    update = {"feature": name, "max_version_level": level, "upgrade_type": _UPGRADE}
    request = {
        "timeout": cluster.timeout_ms,
        "feature_updates": (update,),
        "validate_only": dry_run,
    }
    answer = await cluster.call(broker, ApiKey.UPDATE_FEATURES, request, version_min=1)
    raise_for_code(answer, answer.error_message or name)


async def elect_leaders(
    cluster: Cluster, partitions: Iterable[TopicPartition] | None, *, is_unclean: bool = False
) -> dict[TopicPartition, KafkaError | None]:
    """Have the preferred replicas of these partitions, or of all, lead; why one does not; None: it does.

    Asked about all, it leaves out those that needed no election.

    `is_unclean`: have any live replica lead where nobody does. Records that only others have are lost.

    Returns when they lead, or when it is known that they cannot. Raises: KafkaError, UnreachableError,
    UnsupportedVersionError.
    """
    wanted = None
    if partitions is not None:
        rows = by_topic({tp: tp.partition for tp in partitions}, "partitions")
        wanted = [{"topic": row["name"], "partitions": row["partitions"]} for row in rows]
    timeout_ms = cluster.timeout_ms
    kind = _UNCLEAN if is_unclean else _PREFERRED
    request = {"election_type": kind, "topic_partitions": wanted, "timeout": timeout_ms // 2}
    # Version 0 names no type, and elects preferred replicas.
    answer = await cluster.call_any(ApiKey.ELECT_LEADERS, request, timeout_ms=timeout_ms, version_min=kind)
    if code := getattr(answer, "error_code", ErrorCode.NONE).value:
        raise error_of(code, "election of leaders")
    done: dict[TopicPartition, KafkaError | None] = {}
    for topic in answer.replica_election_results:
        for row in topic.partition_result:
            code = row.error_code.value
            tp = TopicPartition(topic.topic, row.partition_id)
            is_fine = code in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
            done[tp] = None if is_fine else error_of(code, row.error_message or str(tp))
    return done


async def reassign(
    cluster: Cluster, wanted: Mapping[TopicPartition, Assignment | None]
) -> dict[TopicPartition, KafkaError | None]:
    """Ask for other replicas of these partitions, or (None) have their reassignment cancelled; why one was refused.

    Returns when it is asked for: `reassignments` shows what is under way. Raises: KafkaError, UnreachableError.
    """
    rows = {tp: {"partition_index": tp.partition, "replicas": row} for tp, row in wanted.items()}
    answer = await _ask_controller(cluster, ApiKey.ALTER_PARTITION_REASSIGNMENTS, by_topic(rows, "partitions"))
    return {
        tp: error_of(row.error_code, row.error_message or "") if row.error_code else None
        for tp, row in by_partition(answer.responses)
    }


async def reassignments(cluster: Cluster) -> dict[TopicPartition, Moving]:
    """Every reassignment under way. Raises: KafkaError, UnreachableError."""
    answer = await _ask_controller(cluster, ApiKey.LIST_PARTITION_REASSIGNMENTS, None)
    return {
        tp: Moving(tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas))
        for tp, row in by_partition(answer.topics)
    }


async def _ask_controller(cluster: Cluster, key: ApiKey, topics: Any) -> Any:
    request = {"timeout": cluster.timeout_ms, "topics": topics}
    answer = await cluster.call_controller(key, request, code_in)
    raise_for_code(answer, answer.error_message or key.name)
    return answer


class OpenTransaction(NamedTuple):
    """A transaction as the log of one partition knows it: its producer, its first offset, and its last append."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    first_offset: int
    last_append_ms: int


async def open_transactions(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, list[OpenTransaction]]:
    """The open transactions in these partitions' logs. Raises: KafkaError, UnknownTopicError, UnreachableError."""

    async def ask(broker: Client, share: Partitions) -> Mapping[TopicPartition, Any]:
        request = {"topics": by_topic({tp: tp.partition for tp in share}, "partition_indexes")}
        answer = await broker.call(ApiKey.DESCRIBE_PRODUCERS, request)
        return {
            tp: code_in(row) or [_open(each) for each in row.active_producers if each.current_txn_start_offset >= 0]
            for tp, row in by_partition(answer.topics)
        }

    return await call_leaders(cluster, dict.fromkeys(partitions), ask, "the producers")


def _open(row: Any) -> OpenTransaction:
    return OpenTransaction(
        row.producer_id, row.producer_epoch, row.coordinator_epoch, row.current_txn_start_offset, row.last_timestamp
    )


async def abort_in_log(cluster: Cluster, tp: TopicPartition, hanging: OpenTransaction) -> None:
    """Write the marker that aborts a transaction in one partition, whatever its coordinator says.

    Only for one that no coordinator knows: another one would be aborted in this partition, and committed in others.

    Raises: KafkaError, UnreachableError.
    """

    async def ask(broker: Client, share: Partitions) -> Mapping[TopicPartition, Any]:
        marker = {
            "producer_id": hanging.producer_id,
            "producer_epoch": hanging.epoch,
            "transaction_result": False,
            "topics": by_topic({tp: tp.partition}, "partition_indexes"),
            "coordinator_epoch": max(0, hanging.coordinator_epoch),
            "transaction_version": 0,
        }
        answer = await broker.call(ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]})
        (row,) = (row for found in answer.markers for topic in found.topics for row in topic.partitions)
        return {tp: code_in(row) or True}

    await call_leaders(cluster, {tp: None}, ask, "the end of a transaction")
