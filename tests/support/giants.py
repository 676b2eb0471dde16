"""The largest requests that each API takes, as frames: what the bounds of `protocol.bounds` let through."""

import io
import struct
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from kio.serial import entity_writer

from logstore.records.batch import Record
from logstore.records.batch import build as build_batch
from replication.protocol import apis, bounds
from replication.protocol.apis import ApiKey
from replication.protocol.kio_entities import build
from replication.protocol.kio_pieces import item_class

PARTITIONS = "giants"  # a topic with EXISTING partitions: a broker that is asked should have it
EXISTING = 600
GROUP = "giants"
BATCH = bytes(build_batch([Record(0, 1_000, b"k", b"x" * 100)]))


@dataclass(frozen=True)
class Giant:
    """One request: `frame` without its size in front."""

    name: str
    key: ApiKey
    version: int
    frame: bytes

    @property
    def wire(self) -> bytes:
        return struct.pack(">i", len(self.frame)) + self.frame


def names() -> list[str]:
    """Several shapes of some APIs; at least one of every API that is served."""
    return [f"{key.name}-{name}" for key in apis.SERVED for name in SHAPES[key]]


def giant(name: str, *, controller_epoch: int = 1, broker_epoch: int = 1) -> Giant:
    """One of them: some megabytes."""
    api, _, shape = name.partition("-")
    key = ApiKey[api]
    by_names = {ApiKey.FETCH: FETCH_VERSION, ApiKey.PRODUCE: PRODUCE_VERSION}
    by_names |= {ApiKey.OFFSET_COMMIT: 9, ApiKey.TXN_OFFSET_COMMIT: 5}
    version = apis.SERVED[key].last if shape == "ids" else by_names.get(key, apis.SERVED[key].last)
    frame = SHAPES[key][shape](key, version)
    if key in apis.INTERBROKER:
        frame = frame.replace(struct.pack(">q", BROKER_EPOCH), struct.pack(">q", broker_epoch))
        frame = frame.replace(struct.pack(">i", CONTROLLER_EPOCH), struct.pack(">i", controller_epoch))
    return Giant(name, key, version, frame)


# ---------------------------------------------------------------------- shapes

ACL = {
    "resource_type": 2, "resource_name": "name-0000000", "resource_pattern_type": 3, "principal": "nobody",
    "host": "*", "operation": 3, "permission_type": 3,
}  # fmt: skip
ACL_FILTER = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip


def entity(key: ApiKey, version: int, values: Mapping[str, Any]) -> Any:
    return build(apis.request_class(key, version), values)


def frame_of(key: ApiKey, version: int, request: Any) -> bytes:
    return b"".join(map(bytes, apis.encode_request(key, version, 1, "giant", request)))[4:]


def written(value: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(value))(out, value)
    return out.getvalue()


def counted(count: int, flexible: bool) -> bytes:
    if not flexible:
        return struct.pack(">i", count)
    from replication.protocol.wire import put_uvarint

    return put_uvarint(count + 1)


def many(
    array: str, item: Mapping[str, Any], more: Mapping[str, Any] = {}, *, weight: int = 1, inner: str = ""
) -> Callable[[ApiKey, int], bytes]:
    """So many items in `array` as there may be; b"0000000" in one becomes its number.

    `inner`: they stand in this array of the one item of `array`. `weight`: how many items each is.
    """

    def make(key: ApiKey, version: int) -> bytes:
        bound = bounds.BOUNDS[key]
        cls = apis.request_class(key, version)
        outer = next(field for field in fields(cls) if field.name == array)
        kind = item_class(outer)
        one = entity(key, version, {**more, array: [item]})
        if inner:
            nested = next(field for field in fields(kind) if field.name == inner)
            kind = item_class(nested)
            value = getattr(getattr(one, array)[0], inner)[0]
        else:
            value = getattr(one, array)[0]
        raw = written(value) if kind is not None else string_of(value, cls.__flexible__)
        whole = frame_of(key, version, one)
        place = whole.index(counted(1, cls.__flexible__) + raw)
        head, tail = whole[:place], whole[place + len(counted(1, cls.__flexible__) + raw) :]
        count = min((bound.items_max - 1 - len(inner)) // weight, (bound.bytes_max - len(whole)) // len(raw))
        numbered = b"0000000" in raw or NUMBER in raw
        items = (
            b"".join(
                raw.replace(b"0000000", b"%07d" % number).replace(NUMBER, struct.pack(">i", number))
                for number in range(count)
            )
            if numbered
            else raw * count
        )
        return head + counted(count, cls.__flexible__) + items + tail

    return make


def string_of(value: str, flexible: bool) -> bytes:
    return (counted(len(value), True) if flexible else struct.pack(">h", len(value))) + value.encode()


NUMBER = struct.pack(">i", 0x5A5A5A5A)  # a partition that becomes its number
NUMBERED = 0x5A5A5A5A


def plain(values: Mapping[str, Any]) -> Callable[[ApiKey, int], bytes]:
    """Nothing in it is an array: as many bytes as there may be, in one of its strings if that is compact."""
    return lambda key, version: frame_of(key, version, entity(key, version, values))


def fat(values: Mapping[str, Any], place: Callable[[Any, Any], Any]) -> Callable[[ApiKey, int], bytes]:
    """The largest number of bytes that is allowed; `place` puts them into the request."""

    def make(key: ApiKey, version: int) -> bytes:
        return frame_of(key, version, place(entity(key, version, values), bounds.BOUNDS[key].bytes_max - 10_000))

    return make


def produce(topic: str) -> Callable[[ApiKey, int], bytes]:
    def make(key: ApiKey, version: int) -> bytes:
        count = bounds.BOUNDS[key].items_max - 1
        head = struct.pack(">hhi", key, version, 1) + struct.pack(">h", 5) + b"giant\0"
        body = [
            b"\0",
            struct.pack(">hi", 1, 30_000),
            counted(1, True),
            string_of(topic, True),
            counted(count, True),
        ]
        for number in range(count):
            body.append(struct.pack(">i", number) + counted(len(BATCH), True) + BATCH + b"\0")
        return head + b"".join(body) + b"\0\0"

    return make


def produce_bytes(key: ApiKey, version: int) -> bytes:
    """100 MB in batches of 900 kB, or as many as one request may have."""
    batch = bytes(build_batch([Record(0, 1_000, b"k", b"x" * 900_000)]))
    head = struct.pack(">hhi", key, version, 1) + struct.pack(">h", 5) + b"giant\0"
    count = min(104_000_000 // len(batch), bounds.BOUNDS[key].items_max - 1)
    rows = [struct.pack(">i", number) + counted(len(batch), True) + batch + b"\0" for number in range(count)]
    start = [b"\0", struct.pack(">hi", 1, 30_000), counted(1, True), string_of(PARTITIONS, True)]
    return head + b"".join([*start, counted(count, True), *rows]) + b"\0\0"


def produce_ids(key: ApiKey, version: int) -> bytes:
    """Topics by ids that nobody has, with a batch each."""
    head = struct.pack(">hhi", key, version, 1) + struct.pack(">h", 5) + b"giant\0"
    count = (bounds.BOUNDS[key].items_max - 1) // 2
    row = counted(1, True) + struct.pack(">i", 0) + counted(len(BATCH), True) + BATCH + b"\0\0"
    rows = [uuid.UUID(int=number + 1).bytes + row for number in range(count)]
    return head + b"".join([b"\0", struct.pack(">hi", 1, 30_000), counted(count, True), *rows, b"\0"])


FETCH_VERSION, PRODUCE_VERSION = 11, 12  # topics by their names


def fetch(key: ApiKey, version: int) -> bytes:
    count = bounds.BOUNDS[key].items_max - 1
    head = struct.pack(">hhi", key, version, 1) + struct.pack(">h", 5) + b"giant"
    head += struct.pack(">iiiib", -1, 100, 1, 50 << 20, 0) + struct.pack(">ii", 0, -1)
    rows = b"".join(struct.pack(">iiqqi", number, -1, 0, -1, 1 << 20) for number in range(count))
    topics = struct.pack(">i", 1) + string_of(PARTITIONS, False) + struct.pack(">i", count) + rows
    return head + topics + struct.pack(">i", 0) + string_of("", False)


OFFSETS = {"partition_index": NUMBERED, "current_leader_epoch": -1, "timestamp": -1}
COMMIT = {
    "partition_index": NUMBERED,
    "committed_offset": 1,
    "committed_leader_epoch": -1,
    "committed_metadata": "m",
}
COMMIT_HEAD = {
    "group_id": GROUP,
    "generation_id_or_member_epoch": -1,
    "member_id": "",
    "group_instance_id": None,
}
JOIN_HEAD = {
    "group_id": GROUP,
    "session_timeout": 6000,
    "rebalance_timeout": 6000,
    "member_id": "",
    "group_instance_id": None,
    "protocol_type": "consumer",
}
SYNC_HEAD = {
    "group_id": GROUP,
    "generation_id": 1,
    "member_id": "m",
    "group_instance_id": None,
    "protocol_type": "consumer",
    "protocol_name": "range",
}
CONTROLLER_EPOCH, BROKER_EPOCH = 0x5B5B5B5B, 0x5C5C5C5C5C5C5C5C  # they become those that the broker knows
ORDER_HEAD = {"controller_id": 1, "controller_epoch": CONTROLLER_EPOCH, "broker_epoch": BROKER_EPOCH}
LEADERSHIP = {  # of another broker: what is not one's own makes no files
    "partition_index": NUMBERED,
    "controller_epoch": CONTROLLER_EPOCH,
    "leader": 2,
    "leader_epoch": 1,
    "isr": (2,),
    "zk_version": 1,
    "replicas": (2,),
}
RESOURCE = {"resource_type": 2, "resource_name": "name-0000000"}
TOPIC_ID = uuid.UUID(int=7)
SHARE_HEAD = {"group_id": GROUP, "member_id": "m", "share_session_epoch": 0, "is_renew_ack": False}
SHARE_LIMITS = {
    "max_wait": 0,
    "min_bytes": 1,
    "max_bytes": 1 << 20,
    "max_records": 500,
    "batch_size": 500,
    "forgotten_topics_data": (),
}
ACKNOWLEDGED = {"first_offset": 0, "last_offset": 9, "acknowledge_types": (1,)}
WRITTEN = {"state_epoch": 1, "leader_epoch": 1, "start_offset": 0, "delivery_complete_count": 0}
STATE_BATCH = {"first_offset": 0, "last_offset": 9, "delivery_state": 2, "delivery_count": 1}


def share_states(values: Mapping[str, Any]) -> Callable[[ApiKey, int], bytes]:
    row = {"topic_id": TOPIC_ID, "partitions": [{"partition": NUMBERED, **values}]}
    return many("topics", row, {"group_id": GROUP}, inner="partitions")


META = {
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
}
MANY_NAMES = many("topics", {"topic_id": None, "name": "name-0000000"}, META)

TRANSACTION_HEAD = {"transactional_id": "giant", "producer_id": 1, "producer_epoch": 0}
TOPIC_OF_ONE = {"name": PARTITIONS, "partitions": (0,)}
MARKER_OF_ONE = {"name": PARTITIONS, "partition_indexes": (0,)}

SHAPES: Mapping[ApiKey, Mapping[str, Callable[[ApiKey, int], bytes]]] = {
    ApiKey.PRODUCE: {"partitions": produce(PARTITIONS), "bytes": produce_bytes, "ids": produce_ids},
    ApiKey.FETCH: {"partitions": fetch},
    ApiKey.LIST_OFFSETS: {
        "partitions": many(
            "topics",
            {"name": PARTITIONS, "partitions": [OFFSETS]},
            {"replica_id": -1, "isolation_level": 0, "timeout": 1000},
            inner="partitions",
        ),
    },
    ApiKey.DESCRIBE_LOG_DIRS: {
        "topics": many("topics", {"topic": "name-0000000", "partitions": (0,)}, weight=2),
    },
    ApiKey.METADATA: {
        "names": MANY_NAMES,
        "same": many("topics", {"topic_id": None, "name": "a-name-that-nobody-has"}, META),
        "existing": many("topics", {"topic_id": None, "name": PARTITIONS}, META),
        "fat": fat(
            META | {"topics": [{"topic_id": None, "name": "n"}]},
            lambda request, size: replace(request, topics=(replace(request.topics[0], name="n" * size),)),
        ),
        "all": plain(META | {"topics": None}),
    },
    ApiKey.LEADER_AND_ISR: {
        "partitions": many(
            "topic_states",
            {"topic_name": "t", "topic_id": TOPIC_ID, "partition_states": [LEADERSHIP]},
            ORDER_HEAD | {"live_leaders": ()},
            weight=3,
            inner="partition_states",
        ),
    },
    ApiKey.STOP_REPLICA: {
        "partitions": many(
            "topic_states",
            {
                "topic_name": "t",
                "partition_states": [{"partition_index": NUMBERED, "leader_epoch": 1, "delete_partition": False}],
            },
            ORDER_HEAD,
            inner="partition_states",
        ),
    },
    ApiKey.UPDATE_METADATA: {
        "partitions": many(
            "topic_states",
            {
                "topic_name": "t",
                "topic_id": TOPIC_ID,
                "partition_states": [LEADERSHIP | {"offline_replicas": ()}],
            },
            ORDER_HEAD | {"live_brokers": ()},
            weight=3,
            inner="partition_states",
        ),
    },
    ApiKey.CONTROLLED_SHUTDOWN: {"one": plain({"broker_id": 99, "broker_epoch": 1})},
    ApiKey.OFFSET_COMMIT: {
        "partitions": many("topics", {"name": PARTITIONS, "partitions": [COMMIT]}, COMMIT_HEAD, inner="partitions"),
    },
    ApiKey.OFFSET_FETCH: {
        "groups": many(
            "groups",
            {"group_id": "group-0000000", "topics": None, "member_id": None, "member_epoch": -1},
            {"require_stable": False},
        ),
        "same": many(
            "groups",
            {"group_id": GROUP, "topics": None, "member_id": None, "member_epoch": -1},
            {"require_stable": False},
        ),
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: {
        "transactions": many(
            "transactions",
            {
                "transactional_id": "name-0000000",
                "producer_id": 1,
                "producer_epoch": 0,
                "topics": [TOPIC_OF_ONE],
            },
            weight=3,
        ),
    },
    ApiKey.ADD_OFFSETS_TO_TXN: {"one": plain(TRANSACTION_HEAD | {"group_id": GROUP})},
    ApiKey.END_TXN: {"one": plain(TRANSACTION_HEAD | {"committed": True})},
    ApiKey.WRITE_TXN_MARKERS: {
        "markers": many(
            "markers",
            {
                "producer_id": 1,
                "producer_epoch": 0,
                "transaction_result": True,
                "topics": [MARKER_OF_ONE],
                "coordinator_epoch": 0,
            },
            weight=3,
        ),
    },
    ApiKey.TXN_OFFSET_COMMIT: {
        "partitions": many(
            "topics",
            {"name": PARTITIONS, "partitions": [COMMIT]},
            TRANSACTION_HEAD | {"group_id": GROUP, "generation_id": -1, "member_id": "", "group_instance_id": None},
            inner="partitions",
        ),
    },
    ApiKey.DESCRIBE_PRODUCERS: {
        "topics": many("topics", {"name": "name-0000000", "partition_indexes": (0,)}, weight=2),
    },
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {
        "names": many("topics", {"name": "name-0000000"}),
        "same": many("topics", {"name": PARTITIONS}),
    },
    ApiKey.DESCRIBE_TRANSACTIONS: {"names": many("transactional_ids", "name-0000000")},  # type: ignore[arg-type]
    ApiKey.LIST_TRANSACTIONS: {
        "states": many("state_filters", "name-0000000", {"producer_id_filters": (), "duration_filter": -1}),  # type: ignore[arg-type]
    },
    ApiKey.FIND_COORDINATOR: {"keys": many("coordinator_keys", "group-0000000", {"key_type": 0})},  # type: ignore[arg-type]
    ApiKey.JOIN_GROUP: {
        "protocols": many("protocols", {"name": "range-0000000", "metadata": b"m" * 8000}, JOIN_HEAD),
    },
    ApiKey.HEARTBEAT: {
        "one": plain({"group_id": GROUP, "generation_id": 1, "member_id": "m", "group_instance_id": None})
    },
    ApiKey.LEAVE_GROUP: {
        "members": many(
            "members",
            {"member_id": "member-0000000", "group_instance_id": None, "reason": None},
            {"group_id": GROUP},
        ),
    },
    ApiKey.SYNC_GROUP: {
        "members": many("assignments", {"member_id": "member-0000000", "assignment": b"a" * 1600}, SYNC_HEAD),
    },
    ApiKey.DESCRIBE_GROUPS: {
        "same": many("groups", GROUP, {"include_authorized_operations": False}),  # type: ignore[arg-type]
        "groups": many("groups", "group-0000000", {"include_authorized_operations": False}),  # type: ignore[arg-type]
    },
    ApiKey.CONSUMER_GROUP_HEARTBEAT: {
        "topics": many(
            "topic_partitions",
            {"topic_id": TOPIC_ID, "partitions": (0,)},
            {"group_id": GROUP, "member_id": "m", "member_epoch": 1},
            weight=2,
        ),
        "names": many(
            "subscribed_topic_names",
            "name-0000000",  # type: ignore[arg-type]
            {"group_id": GROUP, "member_id": "m", "member_epoch": 0, "rebalance_timeout": 1000, "topic_partitions": ()},
        ),
    },
    ApiKey.SHARE_GROUP_HEARTBEAT: {
        "names": many(
            "subscribed_topic_names",
            "name-0000000",  # type: ignore[arg-type]
            {"group_id": GROUP, "member_id": "m", "member_epoch": 0},
        ),
    },
    ApiKey.SHARE_GROUP_DESCRIBE: {
        "groups": many("group_ids", "group-0000000", {"include_authorized_operations": False}),  # type: ignore[arg-type]
    },
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: {
        "groups": many("groups", {"group_id": "group-0000000", "topics": None}, {}),
    },
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: {
        "topics": many("topics", {"topic_name": "name-0000000", "partitions": ()}, {"group_id": GROUP}),
    },
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: {
        "topics": many("topics", {"topic_name": "name-0000000"}, {"group_id": GROUP}),
    },
    ApiKey.CONSUMER_GROUP_DESCRIBE: {
        "groups": many("group_ids", "group-0000000", {"include_authorized_operations": False}),  # type: ignore[arg-type]
    },
    ApiKey.LIST_CONFIG_RESOURCES: {"all": plain({"resource_types": (2,) * 100})},
    ApiKey.SHARE_FETCH: {
        "partitions": many(
            "topics",
            {"topic_id": TOPIC_ID, "partitions": [{"partition_index": NUMBERED, "acknowledgement_batches": ()}]},
            SHARE_HEAD | SHARE_LIMITS,
            inner="partitions",
        ),
    },
    ApiKey.SHARE_ACKNOWLEDGE: {
        "batches": many(
            "topics",
            {"topic_id": TOPIC_ID, "partitions": [{"partition_index": 0, "acknowledgement_batches": [ACKNOWLEDGED]}]},
            SHARE_HEAD | {"share_session_epoch": 1},
            weight=5,
        ),
    },
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: {"partitions": share_states({"state_epoch": 1, "start_offset": 0})},
    ApiKey.READ_SHARE_GROUP_STATE: {"partitions": share_states({"leader_epoch": 1})},
    ApiKey.WRITE_SHARE_GROUP_STATE: {
        "partitions": share_states(WRITTEN | {"state_batches": ()}),
        "batches": many(
            "topics",
            {"topic_id": TOPIC_ID, "partitions": [{"partition": 0} | WRITTEN | {"state_batches": [STATE_BATCH]}]},
            {"group_id": GROUP},
            weight=3,
        ),
    },
    ApiKey.DELETE_SHARE_GROUP_STATE: {"partitions": share_states({})},
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: {"partitions": share_states({"leader_epoch": 1})},
    ApiKey.LIST_GROUPS: {"all": plain({"states_filter": ("Stable",) * 50, "types_filter": ("classic",) * 50})},
    ApiKey.API_VERSIONS: {
        "one": plain({"client_software_name": "n" * 32_000, "client_software_version": "v" * 32_000})
    },
    ApiKey.UPDATE_FEATURES: {
        "unknown": many(
            "feature_updates",
            {"feature": "feature-0000000", "max_version_level": 1, "upgrade_type": 1},
            {"timeout": 1000, "validate_only": True},
        ),
    },
    ApiKey.CREATE_TOPICS: {
        "invalid": many(
            "topics",
            {
                "name": "no/name-0000000",
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": (),
                "configs": (),
            },
            {"timeout": 1000, "validate_only": True},
        ),
        "valid": many(
            "topics",
            {
                "name": "name-0000000",
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": (),
                "configs": (),
            },
            {"timeout": 1000, "validate_only": True},
        ),
        "assignments": many(
            "topics",
            {
                "name": "assigned",
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": NUMBERED, "broker_ids": (1,)}],
                "configs": (),
            },
            {"timeout": 1000, "validate_only": True},
            weight=2,
            inner="assignments",
        ),
    },
    ApiKey.DELETE_TOPICS: {"unknown": many("topics", {"name": "name-0000000", "topic_id": None}, {"timeout": 1000})},
    ApiKey.DELETE_RECORDS: {
        "partitions": many(
            "topics",
            {"name": PARTITIONS, "partitions": [{"partition_index": NUMBERED, "offset": 0}]},
            {"timeout": 1000},
            inner="partitions",
        ),
    },
    ApiKey.INIT_PRODUCER_ID: {
        "one": plain(
            {
                "transactional_id": None,
                "transaction_timeout": 1000,
                "producer_id": -1,
                "producer_epoch": -1,
            }
        )
    },
    ApiKey.OFFSET_FOR_LEADER_EPOCH: {
        "partitions": many(
            "topics",
            {
                "topic": PARTITIONS,
                "partitions": [{"partition": NUMBERED, "current_leader_epoch": -1, "leader_epoch": 0}],
            },
            {"replica_id": -1},
            inner="partitions",
        ),
    },
    ApiKey.DESCRIBE_CONFIGS: {
        "same": many(
            "resources",
            {"resource_type": 2, "resource_name": PARTITIONS, "configuration_keys": None},
            {"include_synonyms": True, "include_documentation": True},
        ),
        "unknown": many(
            "resources",
            RESOURCE | {"configuration_keys": None},
            {"include_synonyms": True, "include_documentation": True},
        ),
    },
    ApiKey.ALTER_CONFIGS: {
        "settings": many(
            "resources",
            {
                "resource_type": 2,
                "resource_name": PARTITIONS,
                "configs": [{"name": "s-0000000", "value": "1"}],
            },
            {"validate_only": True},
            inner="configs",
        ),
    },
    ApiKey.CREATE_PARTITIONS: {
        "unknown": many(
            "topics",
            {"name": "name-0000000", "count": 2, "assignments": None},
            {"timeout": 1000, "validate_only": True},
        ),
    },
    ApiKey.DESCRIBE_ACLS: {"one": plain(ACL_FILTER)},
    ApiKey.CREATE_ACLS: {"refused": many("creations", ACL, {})},
    ApiKey.DELETE_ACLS: {"filters": many("filters", ACL_FILTER | {"resource_name_filter": "name-0000000"}, {})},
    ApiKey.SASL_HANDSHAKE: {"long": plain({"mechanism": "M" * 30_000})},
    ApiKey.SASL_AUTHENTICATE: {"long": plain({"auth_bytes": b"a" * 60_000})},
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: {"unknown": many("users", {"name": "name-0000000"})},
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: {
        "unknown": many("deletions", {"name": "name-0000000", "mechanism": 1}, {"upsertions": ()})
    },
    ApiKey.DESCRIBE_CLIENT_QUOTAS: {
        "refused": many("components", {"entity_type": "user", "match_type": 0, "match": "n-0000000"}, {"strict": True}),
    },
    ApiKey.ALTER_CLIENT_QUOTAS: {
        "quotas": many(
            "entries",
            {
                "entity": [{"entity_type": "client-id", "entity_name": "n-0000000"}],
                "ops": [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}],
            },
            {"validate_only": True},
            weight=3,
        ),
    },
    ApiKey.DELETE_GROUPS: {"unknown": many("groups_names", "group-0000000")},  # type: ignore[arg-type]
    ApiKey.ELECT_LEADERS: {
        "topics": many(
            "topic_partitions",
            {"topic": "name-0000000", "partitions": (0,)},
            {"election_type": 0, "timeout": 1000},
            weight=2,
        ),
    },
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {
        "settings": many(
            "resources",
            {
                "resource_type": 2,
                "resource_name": PARTITIONS,
                "configs": [{"name": "s-0000000", "config_operation": 0, "value": "1"}],
            },
            {"validate_only": True},
            inner="configs",
        ),
        "topics": many("resources", RESOURCE | {"configs": ()}, {"validate_only": True}),
    },
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: {
        "partitions": many(
            "topics",
            {"name": "nothing", "partitions": [{"partition_index": NUMBERED, "replicas": (1,)}]},
            {"timeout": 1000},
            weight=2,
            inner="partitions",
        ),
    },
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {
        "topics": many("topics", {"name": "name-0000000", "partition_indexes": (0,)}, {"timeout": 1000}, weight=2),
    },
    ApiKey.OFFSET_DELETE: {
        "partitions": many(
            "topics",
            {"name": PARTITIONS, "partitions": [{"partition_index": NUMBERED}]},
            {"group_id": GROUP},
            inner="partitions",
        ),
    },
    ApiKey.DESCRIBE_CLUSTER: {
        "one": plain(
            {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": True}
        )
    },
}
