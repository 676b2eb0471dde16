"""A client without some rights: every API answers what is refused with its own error, and the rest as ever."""

import uuid

import pytest

from logstore.records.batch import Record, build
from replication.model.cluster import SHARE_STATE_TOPIC, topic_id_of, topic_uuid
from replication.network.work import Work
from replication.protocol.apis import SERVED, ApiKey
from replication.protocol.decoding import TOPIC_IDS
from replication.protocol.messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from replication.protocol.small_messages import COMMIT_IDS_FROM
from replication.security.access import ALLOW_ALL, BROKER, CLUSTER_NAME, NOTHING, Operation
from tests.support.asker import Asker, until
from tests.support.in_process import brokers_in_process
from tests.support.kafka_answers.case import code
from tests.support.kafka_answers.topics import create

TOPIC, GROUP, CLUSTER, TRANSACTION = 29, 30, 31, 53
DENIALS = {TOPIC, GROUP, CLUSTER, TRANSACTION}
NOT_ATTEMPTED = 55
OPEN, SECRET = "open", "secret"
BATCH = bytes(build([Record(0, 1_000, None, b"v")]))


class WithoutRights:
    """Refuses all that is named `secret`, and the cluster; the broker itself may do all."""

    has_rights = True

    def refused(self, context, needs, request):
        if context.principal is BROKER:
            return NOTHING
        return frozenset(need for need in needs(request) if need.name in (SECRET, CLUSTER_NAME)) or NOTHING


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    settings = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}
    directory = tmp_path_factory.mktemp("refusals")
    with brokers_in_process(directory, (1,), group_initial_rebalance_delay_ms=0, **settings) as running:
        with Asker(running.bootstrap) as asker:
            fill(asker)
        running.brokers[1].server.pipeline.authorizer = WithoutRights()
        yield running


@pytest.fixture
def asker(broker):
    with Asker(broker.bootstrap) as made:
        yield made


BOTH = (OPEN, SECRET)
COMMITTED = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}


def quota_of(client_id):
    named = {"entity_type": "client-id", "entity_name": client_id}
    return {"entity": [named], "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}]}


def rows(*names, **fields):
    return [{**fields, "name": name, "topic": name} for name in names]


def committing(group):
    return {
        "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
        "retention_time": -1, "topics": rows(*BOTH, partitions=[COMMITTED]),
    }  # fmt: skip


def fill(asker):
    """Make both topics, groups that have committed for both, and transactions of both names and topics."""
    assert create(asker, OPEN, SECRET) == [0, 0]
    for kind in (0, 1):
        body = {"key_type": kind, "coordinator_keys": [OPEN]}
        until(lambda body=body: code(asker.ask(ApiKey.FIND_COORDINATOR, 4, body).coordinators[0]) == 0)
    for name in (OPEN, SECRET):
        commit = committing(name)
        until(lambda commit=commit: codes_of(asker.ask(ApiKey.OFFSET_COMMIT, 7, commit))[OPEN] == {0})
        made = until(lambda name=name: initialized(asker, name))
        added = asker.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, adding(name, made.producer_id))
        assert codes_of(added) == {OPEN: {0}, SECRET: {0}}


def initialized(asker, name):
    body = {"transactional_id": name, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    found = asker.ask(ApiKey.INIT_PRODUCER_ID, 4, body)
    return None if code(found) else found


def adding(name, producer_id, topics=(OPEN, SECRET)):
    return {
        "v3_and_below_transactional_id": name,
        "v3_and_below_producer_id": producer_id,
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": [{"name": topic, "partitions": (0,)} for topic in topics],
    }


NAMES = ("topic", "name", "topic_name", "group_id", "transactional_id", "resource_name", "key")


def codes_of(answer):
    """The error codes of an answer by the name in whose row they stand; "": they stand above all rows."""
    found = {}

    def look(value, name):
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            for each in value:
                look(each, name)
            return
        fields = getattr(value, "_fields", None) or getattr(value, "__dataclass_fields__", ())
        name = next((str(getattr(value, key)) for key in NAMES if key in fields), name)
        for key in fields:
            if key in ("error_code", "partition_error_code"):
                row = getattr(value, key)
                found.setdefault(name, set()).add(getattr(row, "value", row))
            else:
                look(getattr(value, key), name)

    look(answer, "")
    return found


PARTITION = {"partition_index": 0, "partition": 0, "current_leader_epoch": -1, "leader_epoch": 0, "timestamp": -1}
MEMBER = {
    "group_id": SECRET, "generation_id": 1, "member_id": "m", "group_instance_id": None, "session_timeout": 6000,
    "rebalance_timeout": 6000, "protocol_type": "consumer", "protocol_name": "range", "reason": None,
    "protocols": [{"name": "range", "metadata": b""}], "assignments": [],
    "members": [{"member_id": "m", "group_instance_id": None, "reason": None}],
}  # fmt: skip
ORDER = {"controller_id": 1, "controller_epoch": 1, "broker_epoch": 1, "topic_states": (), "live_leaders": ()}
PRODUCER = {"transactional_id": SECRET, "producer_id": 1, "producer_epoch": 0}
RESOURCES = [{"resource_type": 2, "resource_name": name, "configs": (), "configuration_keys": None} for name in BOTH]
GROUPS = [{"group_id": name, "topics": None, "member_id": None, "member_epoch": -1} for name in BOTH]
MARKERS = [
    {
        "producer_id": 1, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0,
        "transaction_version": 0, "topics": [{"name": OPEN, "partition_indexes": (0,)}],
    }
]  # fmt: skip
FILTER = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
CREATION = {
    "resource_type": 2, "resource_name": OPEN, "resource_pattern_type": 3, "principal": "User:a", "host": "*",
    "operation": 3, "permission_type": 3,
}  # fmt: skip
WAIT = {"timeout": 5000, "validate_only": True}

SHARE_MEMBER = {"group_id": SECRET, "member_id": "m", "share_session_epoch": 0, "is_renew_ack": False}
SHARE_LIMITS = {
    "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500,
    "share_acquire_mode": 0, "forgotten_topics_data": (),
}  # fmt: skip
SHARE_PARTITION = {
    "partition": 0, "state_epoch": 1, "leader_epoch": 0, "start_offset": 0, "delivery_complete_count": 0,
    "state_batches": (),
}  # fmt: skip
SHARE_STATE = {"group_id": OPEN, "topics": [{"topic_id": uuid.UUID(int=1), "partitions": [SHARE_PARTITION]}]}

ALL = {
    "topics": None, "allow_auto_topic_creation": True, "include_topic_authorized_operations": False,
    "include_cluster_authorized_operations": False,
}  # fmt: skip

# Each request, and the error of the rows of `secret`. Rows of `open` have none of DENIALS.
BY_ROW = {
    ApiKey.PRODUCE: (
        ProduceRequest(-1, 5000, tuple(ProduceTopic(name, (ProducePartition(0, BATCH),)) for name in BOTH)),
        TOPIC,
    ),
    ApiKey.FETCH: (
        FetchRequest(
            0, 1, tuple(FetchTopic(name, None, (FetchPartition(0, 0, 1 << 20),)) for name in BOTH)
        ),
        TOPIC,
    ),
    ApiKey.LIST_OFFSETS: (
        {"replica_id": -1, "isolation_level": 0, "timeout": 0, "topics": rows(*BOTH, partitions=[PARTITION])}, TOPIC
    ),
    ApiKey.METADATA: (ALL | {"topics": rows(*BOTH, topic_id=None)}, TOPIC),
    ApiKey.OFFSET_COMMIT: (committing(OPEN), TOPIC),
    ApiKey.DESCRIBE_GROUPS: ({"groups": BOTH, "include_authorized_operations": False}, GROUP),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ({"group_ids": BOTH, "include_authorized_operations": False}, GROUP),
    ApiKey.SHARE_GROUP_DESCRIBE: ({"group_ids": BOTH, "include_authorized_operations": False}, GROUP),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (
        {"groups": [{"group_id": name, "topics": [{"topic_name": "t", "partitions": (0,)}]} for name in BOTH]}, GROUP
    ),
    ApiKey.CREATE_TOPICS: (
        {
            "topics": rows(*BOTH, num_partitions=1, replication_factor=1, assignments=(), configs=()), **WAIT
        },
        TOPIC,
    ),
    ApiKey.DELETE_RECORDS: ({"topics": rows(*BOTH, partitions=[{**PARTITION, "offset": 0}]), **WAIT}, TOPIC),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ({"replica_id": -1, "topics": rows(*BOTH, partitions=[PARTITION])}, TOPIC),
    ApiKey.TXN_OFFSET_COMMIT: (
        {
            **PRODUCER, "transactional_id": OPEN, "group_id": OPEN, "generation_id": -1, "member_id": "",
            "group_instance_id": None, "topics": rows(*BOTH, partitions=[COMMITTED]),
        },
        TOPIC,
    ),
    ApiKey.DESCRIBE_CONFIGS: ({"resources": RESOURCES}, TOPIC),
    ApiKey.ALTER_CONFIGS: ({"resources": RESOURCES, **WAIT}, TOPIC),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ({"resources": RESOURCES, **WAIT}, TOPIC),
    ApiKey.CREATE_PARTITIONS: ({"topics": rows(*BOTH, count=2, assignments=None), **WAIT}, TOPIC),
    ApiKey.DELETE_GROUPS: ({"groups_names": ("none", SECRET)}, GROUP),
    ApiKey.OFFSET_DELETE: ({"group_id": "none", "topics": rows(*BOTH, partitions=[PARTITION])}, TOPIC),
    ApiKey.DESCRIBE_PRODUCERS: ({"topics": rows(*BOTH, partition_indexes=(0,))}, TOPIC),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ({"topics": rows(*BOTH)}, TOPIC),
    ApiKey.DESCRIBE_TRANSACTIONS: ({"transactional_ids": BOTH}, TRANSACTION),
}  # fmt: skip

# Requests that are refused as a whole: wherever the answer has an error, it is this one.
AS_A_WHOLE = {
    ApiKey.LEADER_AND_ISR: (ORDER, CLUSTER),
    ApiKey.STOP_REPLICA: (ORDER, CLUSTER),
    ApiKey.UPDATE_METADATA: ({**ORDER, "live_brokers": ()}, CLUSTER),
    ApiKey.CONTROLLED_SHUTDOWN: ({"broker_id": 1, "broker_epoch": 1}, CLUSTER),
    ApiKey.JOIN_GROUP: (MEMBER, GROUP),
    ApiKey.SYNC_GROUP: (MEMBER, GROUP),
    ApiKey.HEARTBEAT: (MEMBER, GROUP),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (MEMBER | {"member_epoch": 0, "topic_partitions": ()}, GROUP),
    ApiKey.LEAVE_GROUP: (MEMBER, GROUP),
    ApiKey.SHARE_GROUP_HEARTBEAT: (
        {"group_id": SECRET, "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ("t",)}, GROUP
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: ({"group_id": SECRET, "topics": ()}, GROUP),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: ({"group_id": SECRET, "topics": ()}, GROUP),
    ApiKey.INIT_PRODUCER_ID: ({**PRODUCER, "transaction_timeout": 1000}, TRANSACTION),
    ApiKey.ADD_OFFSETS_TO_TXN: ({**PRODUCER, "group_id": OPEN}, TRANSACTION),
    ApiKey.END_TXN: ({**PRODUCER, "committed": True}, TRANSACTION),
    ApiKey.WRITE_TXN_MARKERS: ({"markers": MARKERS}, CLUSTER),
    ApiKey.ELECT_LEADERS: (
        {"election_type": 0, "topic_partitions": [{"topic": OPEN, "partitions": (0,)}], **WAIT}, CLUSTER
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ({"topics": (), **WAIT}, CLUSTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ({"topics": None, **WAIT}, CLUSTER),
    ApiKey.LIST_CONFIG_RESOURCES: ({}, CLUSTER),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ({"users": ()}, CLUSTER),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ({"deletions": ({"name": "u", "mechanism": 1},), "upsertions": ()}, CLUSTER),
    ApiKey.UPDATE_FEATURES: ({"feature_updates": (), **WAIT}, CLUSTER),
    ApiKey.DESCRIBE_LOG_DIRS: ({"topics": rows(OPEN, partitions=(0,))}, CLUSTER),
    ApiKey.DESCRIBE_ACLS: (FILTER, CLUSTER),
    ApiKey.CREATE_ACLS: ({"creations": [CREATION, CREATION | {"resource_name": "u"}]}, CLUSTER),
    ApiKey.DELETE_ACLS: ({"filters": [FILTER, FILTER | {"host_filter": "*"}]}, CLUSTER),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ({"components": (), "strict": False}, CLUSTER),
    ApiKey.ALTER_CLIENT_QUOTAS: ({"entries": [quota_of("a"), quota_of("b")], "validate_only": False}, CLUSTER),
    ApiKey.SHARE_FETCH: (SHARE_MEMBER | SHARE_LIMITS | {"topics": ()}, GROUP),
    ApiKey.SHARE_ACKNOWLEDGE: (SHARE_MEMBER | {"topics": ()}, GROUP),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: (SHARE_STATE, CLUSTER),
    ApiKey.READ_SHARE_GROUP_STATE: (SHARE_STATE, CLUSTER),
    ApiKey.WRITE_SHARE_GROUP_STATE: (SHARE_STATE, CLUSTER),
    ApiKey.DELETE_SHARE_GROUP_STATE: (SHARE_STATE, CLUSTER),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: (SHARE_STATE, CLUSTER),
}  # fmt: skip

# Tests of their own, below.
OTHERWISE = {
    ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CLUSTER, ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS, ApiKey.OFFSET_FETCH,
    ApiKey.FIND_COORDINATOR, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.DELETE_TOPICS,
    ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE,
}  # fmt: skip


IDS_FROM = {ApiKey.FETCH: TOPIC_IDS, ApiKey.PRODUCE: TOPIC_IDS, ApiKey.OFFSET_COMMIT: COMMIT_IDS_FROM}
IDS_FROM |= {ApiKey.TXN_OFFSET_COMMIT: 6}


def of_all_versions(table):
    return [(key, version) for key in table for version in range(key.versions.first, key.versions.last + 1)]


def test_every_api_has_a_test_of_its_refusals():
    assert {*BY_ROW, *AS_A_WHOLE, *OTHERWISE} == set(SERVED)
    assert len(BY_ROW) + len(AS_A_WHOLE) + len(OTHERWISE) == len(SERVED)


@pytest.mark.parametrize(("key", "version"), of_all_versions(BY_ROW), ids=str)
def test_rows_that_are_refused_say_so_and_the_others_are_answered(broker, asker, key, version):
    body, expected = BY_ROW[key]
    has_ids = version >= IDS_FROM.get(key, 99)
    if has_ids and isinstance(body, dict):
        body = body | {"topics": [row | {"topic_id": id_of(broker, row["name"])} for row in body["topics"]]}
    elif has_ids:
        body = body._replace(topics=tuple(t._replace(topic_id=id_of(broker, t.name)) for t in body.topics))
    found = asker.ask(key, version, body)
    codes = codes_of(found)
    if has_ids:
        codes = {t.topic_id: {p.error_code for p in t.partitions} for t in found.topics}
        codes = {name: codes[id_of(broker, name)] for name in BOTH}
    assert codes.pop(SECRET) == {expected}
    others = set().union(*codes.values())
    assert codes
    assert not others & DENIALS


@pytest.mark.parametrize("key", BY_ROW, ids=str)
def test_a_request_of_one_row_is_refused_again_when_it_is_repeated(broker, asker, key):
    """A repeated request may be decoded another way."""
    body, expected = BY_ROW[key]
    version = min(key.versions.last, IDS_FROM.get(key, 99) - 1)
    name, both = next((name, rows) for name, rows in fields_of(body) if isinstance(rows, list | tuple))
    one = body | {name: both[1:]} if isinstance(body, dict) else body._replace(**{name: both[1:]})
    for _ in range(3):
        assert codes_of(asker.ask(key, version, one))[SECRET] == {expected}


def fields_of(body):
    return body.items() if isinstance(body, dict) else body._asdict().items()


@pytest.mark.parametrize("version", range(2, 10))
def test_a_repeated_commit_of_a_group_that_is_refused_says_so(asker, version):
    one = committing(SECRET) | {"topics": rows(OPEN, partitions=[COMMITTED])}
    for _ in range(3):
        assert codes_of(asker.ask(ApiKey.OFFSET_COMMIT, version, one))[OPEN] == {GROUP}


def id_of(broker, name):
    return topic_uuid(broker.brokers[1].replicas.metadata.topic(name).id)


@pytest.mark.parametrize(("key", "version"), of_all_versions(AS_A_WHOLE), ids=str)
def test_a_request_that_is_refused_as_a_whole_says_so_once_or_in_every_row(asker, key, version):
    body, expected = AS_A_WHOLE[key]
    found = asker.ask(key, version, body)
    if key is ApiKey.DESCRIBE_LOG_DIRS and version < 3:
        assert not found.results, "it has no place for an error"
        return
    assert set().union(*codes_of(found).values()) == {expected}


@pytest.mark.parametrize("version", [1, 2])
def test_a_member_of_a_share_group_gets_nothing_of_a_topic_that_it_may_not_read(broker, asker, version):
    acknowledged = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": (1,)}]

    def topics(batches):
        row = {"partition_index": 0, "acknowledgement_batches": batches}
        return [{"topic_id": id_of(broker, name), "partitions": [row]} for name in BOTH]

    def codes(answer, field):
        return {topic.topic_id: getattr(topic.partitions[0], field) for topic in answer.responses}

    opened = asker.ask(
        ApiKey.SHARE_FETCH, version, SHARE_MEMBER | SHARE_LIMITS | {"group_id": OPEN, "topics": topics(())}
    )
    assert codes(opened, "error_code") == {id_of(broker, OPEN): 0, id_of(broker, SECRET): TOPIC}
    for epoch, key, field in (
        (1, ApiKey.SHARE_FETCH, "acknowledge_error_code"),
        (2, ApiKey.SHARE_ACKNOWLEDGE, "error_code"),
    ):
        body = (
            SHARE_MEMBER
            | SHARE_LIMITS
            | {"group_id": OPEN, "share_session_epoch": epoch, "topics": topics(acknowledged)}
        )
        if key is ApiKey.SHARE_ACKNOWLEDGE:
            body = {name: value for name, value in body.items() if name not in SHARE_LIMITS}
        found = codes(asker.ask(key, version, body), field)
        assert found[id_of(broker, SECRET)] == TOPIC
        assert found[id_of(broker, OPEN)] not in DENIALS


@pytest.mark.parametrize(
    ("heartbeat", "describe"),
    [
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE),
        (ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_DESCRIBE),
    ],
)
def test_a_group_that_reads_a_topic_which_the_client_may_not_see_is_not_described(broker, heartbeat, describe):
    group, pipeline = f"readers-{describe.value}", broker.brokers[1].server.pipeline
    member = MEMBER | {"group_id": group, "subscribed_topic_names": (SECRET,), "topic_partitions": None}
    asked = {"group_ids": (group,), "include_authorized_operations": False}
    pipeline.authorizer = ALLOW_ALL
    with Asker(broker.bootstrap) as asker:
        joined = asker.ask(heartbeat, 1, member | {"member_epoch": 0, "topic_partitions": ()})

        def assigned():
            assert asker.ask(heartbeat, 1, member | {"member_epoch": joined.member_epoch}).error_code == 0
            (found,) = asker.ask(describe, 1, asked).groups
            return found.members[0].assignment.topic_partitions

        assert until(assigned)[0].topic_name == SECRET
    pipeline.authorizer = WithoutRights()
    with Asker(broker.bootstrap) as asker:
        (found,) = asker.ask(describe, 1, asked).groups
        asker.ask(heartbeat, 1, member | {"member_epoch": -1, "subscribed_topic_names": ()})
        assert codes_of(asker.ask(ApiKey.DELETE_GROUPS, 2, {"groups_names": (group,)}))[group] == {0}
    assert (found.error_code.value, found.members) == (TOPIC, ())


def test_lists_leave_out_what_the_client_may_not_see(asker):
    assert {group.group_id for group in asker.ask(ApiKey.LIST_GROUPS, 4, {"states_filter": ()}).groups} == {OPEN}
    listed = asker.ask(ApiKey.LIST_TRANSACTIONS, 0, {"state_filters": (), "producer_id_filters": ()})
    assert {found.transactional_id for found in listed.transaction_states} == {OPEN}
    seen = {OPEN, "__consumer_offsets", "__transaction_state"}
    perhaps = {SHARE_STATE_TOPIC}  # a test of share groups made it, if one ran before
    for version in (1, 12):
        topics = {topic.name for topic in asker.ask(ApiKey.METADATA, version, ALL).topics}
        assert topics - perhaps == seen
    topics = {topic.name for topic in asker.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": ()}).topics}
    assert topics - perhaps == seen
    found = asker.ask(ApiKey.OFFSET_FETCH, 8, {"groups": GROUPS[:1], "require_stable": False})
    assert [topic.name for topic in found.groups[0].topics] == [OPEN]
    (described, _) = asker.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": BOTH}).transaction_states
    assert [topic.topic for topic in described.topics] == [OPEN]


def test_an_answer_for_one_client_is_not_given_to_another_that_may_see_less(broker, asker):
    pipeline = broker.brokers[1].server.pipeline
    for _ in range(2):
        for authorizer, topics in ((ALLOW_ALL, set(BOTH)), (WithoutRights(), {OPEN})):
            pipeline.authorizer = authorizer
            with Asker(broker.bootstrap) as other:
                for version in (1, 12):
                    assert {t.name for t in other.ask(ApiKey.METADATA, version, ALL).topics} >= topics
                    named = other.ask(ApiKey.METADATA, version, BY_ROW[ApiKey.METADATA][0])
                    assert {t.name for t in named.topics if not code(t)} == topics
                by_id = [{"topic_id": id_of(broker, name), "name": None} for name in BOTH]
                found = other.ask(ApiKey.METADATA, 12, ALL | {"topics": by_id})
                assert {t.name for t in found.topics if not code(t)} == topics


@pytest.mark.parametrize("version", range(1, 10))
def test_offsets_of_a_group_are_fetched_for_the_topics_that_the_client_may_see(asker, version):
    def fetched(group, names):
        topics = rows(*names, partition_indexes=(0,))
        asked = {"group_id": group, "topics": topics, "member_id": None, "member_epoch": -1}
        return codes_of(asker.ask(ApiKey.OFFSET_FETCH, version, {**asked, "groups": [asked], "require_stable": False}))

    found = fetched(OPEN, BOTH)
    assert (found[OPEN], found[SECRET]) == ({0}, {TOPIC})
    assert set().union(*fetched(SECRET, [OPEN]).values()) == {GROUP}


@pytest.mark.parametrize("version", range(5))
def test_coordinators_are_found_for_what_the_client_may_see(asker, version):
    for kind, expected in ((0, GROUP), (1, TRANSACTION)) if version else ((0, GROUP),):
        found = asker.ask(ApiKey.FIND_COORDINATOR, version, {"key": SECRET, "key_type": kind, "coordinator_keys": BOTH})
        assert codes_of(found) == ({OPEN: {0}, SECRET: {expected}} if version >= 4 else {"": {expected}})


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_to_a_transaction_all_or_none(asker, version):
    found = asker.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, adding(OPEN, 0))
    assert codes_of(found) == {OPEN: {NOT_ATTEMPTED}, SECRET: {TOPIC}}
    assert codes_of(asker.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, adding(SECRET, 0))) == {
        OPEN: {TRANSACTION}, SECRET: {TRANSACTION}
    }  # fmt: skip
    for later in (4, 5):
        assert codes_of(asker.ask(ApiKey.ADD_PARTITIONS_TO_TXN, later, {"transactions": ()})) == {"": {CLUSTER}}


@pytest.mark.parametrize("version", range(1, 7))
def test_a_topic_that_the_client_may_not_delete_stays(broker, asker, version):
    body = {"topic_names": ("none", SECRET), "topics": rows("none", SECRET, topic_id=None), "timeout": 5000}
    found = codes_of(asker.ask(ApiKey.DELETE_TOPICS, version, body))
    assert (found["none"], found[SECRET]) == ({3}, {TOPIC})
    if version == 6:
        body = {"topics": [{"name": None, "topic_id": id_of(broker, SECRET)}], "timeout": 5000}
        (row,) = asker.ask(ApiKey.DELETE_TOPICS, version, body).responses
        assert (row.name, code(row)) == (None, TOPIC)


def test_a_topic_is_not_made_for_a_client_that_may_not_create_it(broker):
    class NoneCreated(WithoutRights):
        def refused(self, context, needs, request):
            created = {need for need in needs(request) if need.operation is Operation.CREATE}
            return created if context.principal is not BROKER else NOTHING

    pipeline = broker.brokers[1].server.pipeline
    pipeline.authorizer = NoneCreated()
    with Asker(broker.bootstrap) as asker:
        found = codes_of(asker.ask(ApiKey.METADATA, 9, ALL | {"topics": rows(OPEN, "new", topic_id=None)}))
    pipeline.authorizer = WithoutRights()
    assert (found[OPEN], found["new"]) == ({0}, {TOPIC})
    assert broker.brokers[1].replicas.metadata.topic("new") is None


def test_a_client_is_shown_the_operations_that_it_may_do(asker):
    asks = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    found = asker.ask(ApiKey.METADATA, 9, ALL | asks)
    assert found.cluster_authorized_operations == 0
    bits = {topic.name: topic.topic_authorized_operations for topic in found.topics}
    assert bits[OPEN] == sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
    found = asker.ask(ApiKey.DESCRIBE_CLUSTER, 0, asks)
    assert (code(found), found.cluster_authorized_operations) == (0, 0)
    (group,) = asker.ask(ApiKey.DESCRIBE_GROUPS, 5, {"groups": (OPEN,), "include_authorized_operations": True}).groups
    assert group.authorized_operations == sum(1 << operation for operation in (3, 6, 8, 10, 11))
    for api in (ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.SHARE_GROUP_DESCRIBE):
        for is_asked, operations in ((True, group.authorized_operations), (False, -(2**31))):
            asks = {"group_ids": (OPEN, OPEN), "include_authorized_operations": is_asked}
            assert [row.authorized_operations for row in asker.ask(api, 1, asks).groups] == [operations]


def test_a_follower_that_may_not_act_for_the_cluster_fetches_nothing(asker):
    request = FetchRequest(
        0, 1, (FetchTopic(OPEN, None, (FetchPartition(0, 0, 1 << 20),)),), replica_id=2, replica_epoch=1
    )
    assert asker.ask(ApiKey.FETCH, 11, request).error_code == CLUSTER


@pytest.mark.parametrize("version", range(4, 13))
def test_a_consumer_of_one_refused_topic_gets_no_records(asker, version):
    request = FetchRequest(0, 1, (FetchTopic(SECRET, None, (FetchPartition(0, 0, 1 << 20),)),))
    ((row,),) = (topic.partitions for topic in asker.ask(ApiKey.FETCH, version, request).topics)
    assert (row.error_code, bytes(row.records or b"")) == (TOPIC, b"")


class BeforeTheTopicIsKnown(WithoutRights):
    """Sees each request of a client just before this id becomes that of `secret`."""

    def __init__(self, running, topic_id):
        self.loop, self.metadata = running.loop, running.brokers[1].replicas.metadata
        self.names = [(topic_id_of(topic_id), SECRET)]

    def refused(self, context, needs, request):
        if context.principal is not BROKER and isinstance(request, Work):
            self.loop.call_soon(self.metadata.note_leaders, (), self.names)
        return super().refused(context, needs, request)


OF_IDS = [ApiKey.FETCH, ApiKey.METADATA, ApiKey.DELETE_TOPICS, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH]


@pytest.mark.parametrize("key", OF_IDS, ids=str)
def test_a_topic_id_that_becomes_known_while_its_request_is_handled_is_authorized_then(broker, key):
    new, many = uuid.uuid4(), range(1000)
    pipeline = broker.brokers[1].server.pipeline
    pipeline.authorizer = BeforeTheTopicIsKnown(broker, new)
    rows = [{"name": None, "topic_id": each} for each in (*(uuid.uuid4() for _ in many), new)]
    partitions = tuple(FetchPartition(number, 0, 1 << 20) for number in many)
    topics = FetchTopic(None, id_of(broker, OPEN), partitions), FetchTopic(None, new, partitions[:1])
    with Asker(broker.bootstrap) as asker:
        if key is ApiKey.FETCH:
            found = asker.ask(key, 13, FetchRequest(0, 1, topics)).topics
            codes = {topic.topic_id: topic.partitions[0].error_code for topic in found}
        elif key is ApiKey.METADATA:
            codes = {row.topic_id: code(row) for row in asker.ask(key, 12, ALL | {"topics": rows}).topics}
        elif key is ApiKey.OFFSET_FETCH:
            asked = GROUPS[0] | {"topics": [row | {"partition_indexes": (0,)} for row in rows]}
            (found,) = asker.ask(key, 10, {"groups": [asked], "require_stable": False}).groups
            codes = {topic.topic_id: topic.partitions[0].error_code for topic in found.topics}
        elif key is ApiKey.OFFSET_COMMIT:  # refused in part, and the new one is looked at first
            ids = id_of(broker, SECRET), new, *(row["topic_id"] for row in rows[:-1])
            asked = [{"topic_id": each, "partitions": [COMMITTED]} for each in ids]
            found = asker.ask(key, COMMIT_IDS_FROM, committing(OPEN) | {"topics": asked}).topics
            codes = {topic.topic_id: topic.partitions[0].error_code for topic in found}
        else:
            answer = asker.ask(key, 6, {"topics": rows, "timeout": 5000})
            codes = {row.topic_id: code(row) for row in answer.responses}
    pipeline.authorizer = WithoutRights()
    assert codes.get(new) == TOPIC
