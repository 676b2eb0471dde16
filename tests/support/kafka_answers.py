"""Single requests, and what a broker says to them: ours, and a real Kafka 4.4 where that is something else.

The cases that differ are the rows of a table in docs/protocol.md, under the same names. Each case has a topic `t` of
one partition with three records, and names of its own.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from logstore.records.batch import Record, build
from replication.protocol.apis import ApiKey
from replication.protocol.messages import FetchPartition, ProducePartition, ProduceRequest, ProduceTopic
from tests.support.asker import CLOSED, SILENT, Asker, fetch_request, until

SAME = object()
NOT_ASKED = -(2**31)
METADATA_FLAGS = ("include_topic_authorized_operations", "include_cluster_authorized_operations")
NO_ID, AN_ID = uuid.UUID(int=0), uuid.UUID(int=9)
BATCH = 70  # the bytes of a batch of `t`
EVERYTHING = 1 << 20
_CASES: list["Case"] = []


@dataclass(frozen=True)
class Case:
    name: str
    ask: Callable[[Asker], Any]
    ours: Any
    kafkas: Any  # the same, or something else

    @property
    def differs(self):
        return self.ours != self.kafkas


def case(name, ours, kafkas=SAME):
    def add(ask):
        _CASES.append(Case(name, ask, ours, ours if kafkas is SAME else kafkas))
        return ask

    return add


def cases():
    return list(_CASES)


def prepare(asker):
    """Make the topic `t`, and a coordinator for groups and transactions."""
    keep = {"name": "retention.ms", "value": "-1"}  # the records are of 1970
    create(asker, asker.named("t"), configs=[keep])
    for kind in (0, 1):
        body = {"key_type": kind, "coordinator_keys": [asker.named("g")]}
        until(lambda body=body: code(asker.ask(ApiKey.FIND_COORDINATOR, 4, body).coordinators[0]) == 0)
    for value in (b"v0", b"v1", b"v2"):
        batch = build([Record(0, 1_000, None, value)])
        rows = (ProduceTopic(asker.named("t"), (ProducePartition(0, bytes(batch)),)),)
        request = ProduceRequest(-1, 5000, rows)
        until(lambda request=request: code(asker.ask(ApiKey.PRODUCE, 9, request).topics[0].partitions[0]) == 0)
    until(lambda: code(join(asker, asker.named("first"))) == 0)  # its partition was to be loaded
    until(lambda: code(init(asker, -1, -1, transactional_id=None)) == 0)  # a Kafka fetches numbers first


def code(row):
    return row.error_code.value if hasattr(row.error_code, "value") else row.error_code


def codes(rows):
    return [code(row) for row in rows]


# ------------------------------------------------------------------- topics


def create(asker, *names, version=7, **topic):
    new = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": (), **topic}
    body = {"topics": [{**new, "name": name} for name in names], "timeout": 15_000, "validate_only": False}
    return codes(asker.ask(ApiKey.CREATE_TOPICS, version, body).topics)


def create_with(asker, **settings):
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in settings.items()]
    name = asker.named(f"with{uuid.uuid4().hex[:8]}")
    found = create(asker, name, configs=configs)
    return name, found


def described(asker, topic, key):
    body = {
        "resources": [{"resource_type": 2, "resource_name": topic, "configuration_keys": [key]}],
        "include_synonyms": False,
        "include_documentation": False,
    }
    rows = until(lambda: asker.ask(ApiKey.DESCRIBE_CONFIGS, 4, body).results[0].configs)  # the topic may be news
    return rows[0].value


def topic_id(asker, name):
    (topic,) = metadata(asker, 12, (name, None))
    return topic.topic_id


def metadata(asker, version, *topics):
    body = {
        "topics": [{"name": name, "topic_id": number} for name, number in topics],
        "allow_auto_topic_creation": False,
        **dict.fromkeys(METADATA_FLAGS, False),
    }
    return asker.ask(ApiKey.METADATA, version, body).topics


@case("Metadata by id, beside an empty name", [(0, True)])
@case("Metadata by id, beside the name of no topic", [(0, True)])
def by_id(asker, name=""):
    number = topic_id(asker, asker.named("t"))
    return [(code(row), row.name == asker.named("t")) for row in metadata(asker, 12, (name, number))]


_CASES[-2] = replace(_CASES[-2], ask=lambda asker: by_id(asker, "other"))


@case("Metadata by an unknown id, beside a name", [(100, None, AN_ID)])
def by_unknown_id(asker):
    return [(code(row), row.name, row.topic_id) for row in metadata(asker, 12, ("", AN_ID), ("other", AN_ID))][:1]


@case("Metadata by id before version 12", [42, 42])
def by_id_too_early(asker):
    number = topic_id(asker, asker.named("t"))
    return [code(row) for version in (10, 11) for row in metadata(asker, version, (asker.named("t"), number))]


@case("Metadata without a name or an id", [100], [-1])
def by_nothing(asker):
    return codes(metadata(asker, 12, (None, None)))


def delete(asker, *topics):
    body = {"topics": [{"name": name, "topic_id": number} for name, number in topics], "timeout": 5000}
    return codes(asker.ask(ApiKey.DELETE_TOPICS, 6, body).responses)


@case("DeleteTopics: names that nobody has", [3, 3, 3])
def delete_unknown(asker):
    return delete(asker, ("", None), ("nope", None), ("a/b", None))


@case("DeleteTopics: a name twice", ([42], 0))
def delete_twice(asker):
    create(asker, asker.named("twice"))
    found = delete(asker, (asker.named("twice"), None), (asker.named("twice"), None))
    return found, code(metadata(asker, 12, (asker.named("twice"), None))[0])


@case("DeleteTopics: a name, and its id", ([42], 0))
def delete_by_both(asker):
    create(asker, asker.named("both"))
    number = topic_id(asker, asker.named("both"))
    found = delete(asker, (asker.named("both"), None), (None, number))
    return found, code(metadata(asker, 12, (asker.named("both"), None))[0])


@case("DeleteTopics: name and id in one; neither; an unknown id, once and twice", ([42], [42], [100], [42]))
def delete_oddly(asker):
    two = (None, AN_ID), (None, AN_ID)
    return (
        delete(asker, (asker.named("t"), AN_ID)),
        delete(asker, (None, None)),
        delete(asker, two[0]),
        delete(asker, *two),
    )


@case("CreateTopics: a partition twice in the assignment", [39])
def assigned_twice(asker):
    rows = [{"partition_index": 0, "broker_ids": (1,)}] * 2
    return create(asker, asker.named("assigned"), num_partitions=-1, replication_factor=-1, assignments=rows)


@case("CreateTopics: a setting that is null", [40])
def created_with_null(asker):
    return create_with(asker, retention_ms=None)[1]


@case("CreateTopics: a setting twice, of which the last counts", ([0], "2000000"))
def created_with_two(asker):
    name = asker.named("settings")
    found = create(asker, name, configs=[{"name": "retention.ms", "value": f"{each}000000"} for each in (1, 2)])
    return found, described(asker, name, "retention.ms")


@case("CreateTopics: an empty cleanup.policy", ([0], ""))
def created_without_policy(asker):
    name, found = create_with(asker, cleanup_policy="")
    return found, described(asker, name, "cleanup.policy")


@case(
    "CreateTopics: the order of cleanup.policy",
    ["delete,compact", "compact,delete", "compact", "delete,compact"],
)
def order_of_policies(asker):
    values = "delete,compact", "compact,delete", "compact,compact", " delete , compact "
    return [described(asker, create_with(asker, cleanup_policy=value)[0], "cleanup.policy") for value in values]


@case("CreateTopics: remote.storage.enable", [0], [40])
def created_remote(asker):
    return create_with(asker, remote_storage_enable="true")[1]


@case("CreateTopics: a setting that is not here, local.retention.ms", [40], [0])
def created_local(asker):
    return create_with(asker, local_retention_ms="5")[1]


@case("CreateTopics: a setting that is not here, preallocate", [40], [0])
def created_preallocated(asker):
    return create_with(asker, preallocate="true")[1]


@case("CreatePartitions of an internal topic", [17], [0])
def grow_internal(asker):
    topic = {"name": "__consumer_offsets", "count": 99, "assignments": None}
    body = {"topics": [topic], "timeout": 5000, "validate_only": True}
    return codes(asker.ask(ApiKey.CREATE_PARTITIONS, 2, body).results)


@case("ElectLeaders of an unknown type", (42, [42, 42]))
def elect(asker):
    body = {
        "election_type": 9,
        "topic_partitions": [{"topic": asker.named("t"), "partitions": (0, 1)}],
        "timeout": 5000,
    }
    found = asker.ask(ApiKey.ELECT_LEADERS, 2, body)
    return code(found), codes(row for topic in found.replica_election_results for row in topic.partition_result)


@case("ElectLeaders of all partitions, none of which needs it", (0, []))
def elect_all(asker):
    found = asker.ask(ApiKey.ELECT_LEADERS, 2, {"election_type": 0, "topic_partitions": None, "timeout": 5000})
    return code(found), codes(row for topic in found.replica_election_results for row in topic.partition_result)


@case("AlterPartitionReassignments: a partition twice", [42], [0, 85])
def reassign_twice(asker):
    rows = [{"partition_index": 0, "replicas": replicas} for replicas in ((1,), None)]
    body = {"timeout": 5000, "topics": [{"name": asker.named("t"), "partitions": rows}]}
    found = asker.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, body)
    return codes(row for topic in found.responses for row in topic.partitions)


@case("DescribeProducers: a partition twice", [0], [0, 0])
def describe_producers_twice(asker):
    body = {"topics": [{"name": asker.named("t"), "partition_indexes": (0, 0)}]}
    return codes(asker.ask(ApiKey.DESCRIBE_PRODUCERS, 0, body).topics[0].partitions)


@case("DescribeTransactions: an id twice", [105], [105, 105])
def describe_transactions_twice(asker):
    body = {"transactional_ids": ("nobody", "nobody")}
    return codes(asker.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, body).transaction_states)


@case(
    "ApiVersions: this broker, another, another cluster, half of a name, any",
    [(0, True), (129, False), (129, False), (42, False), (42, False), (0, True)],
)
def versions_of_whom(asker):
    body = {"include_cluster_authorized_operations": False, "endpoint_type": 1}
    own = asker.ask(ApiKey.DESCRIBE_CLUSTER, 1, body).cluster_id

    def asked(cluster_id, node_id):
        software = {"client_software_name": "asker", "client_software_version": "1"}
        found = asker.ask(ApiKey.API_VERSIONS, 5, {**software, "cluster_id": cluster_id, "node_id": node_id})
        return code(found), bool(found.api_keys)

    return [asked(own, 1), asked(own, 9), asked("other", 1), asked(own, -1), asked(None, 1), asked(None, -1)]


def described_cluster(asker, version, **body):
    found = asker.ask(
        ApiKey.DESCRIBE_CLUSTER, version,
        {"include_cluster_authorized_operations": False, "include_fenced_brokers": True, "endpoint_type": 1, **body},
    )  # fmt: skip
    return code(found), [getattr(broker, "is_fenced", None) for broker in found.brokers]


@case(
    "DescribeCluster: by version, of controllers, of an unknown type",
    [(0, [None]), (0, [None]), (0, [False]), (114, []), (115, [])],
)
def describe_the_cluster(asker):
    return [
        *(described_cluster(asker, version) for version in range(3)),
        *(described_cluster(asker, 2, endpoint_type=kind) for kind in (2, 9)),
    ]


def listed_transactions(asker, pattern):
    body = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1, "transactional_id_pattern": pattern}
    found = asker.ask(ApiKey.LIST_TRANSACTIONS, 2, body)
    word = f"-{asker.word}"
    return code(found), sorted(
        row.transactional_id.removesuffix(word)
        for row in found.transaction_states
        if row.transactional_id.endswith(word)
    )


@case(
    "ListTransactions by a pattern",
    [(0, ["listed", "listed2"]), (0, ["listed", "listed2"]), (0, []), (0, ["listed2"]), (128, []), (128, []), (0, [])],
)
def list_by_pattern(asker):
    for name in ("listed", "listed2"):
        until(lambda name=name: code(init(asker, -1, -1, transactional_id=asker.named(name))) == 0)
    rest = "-.*"
    patterns = "listed.*", f"(?i)LISTED2?{rest}", "listed", f"l[a-z]+2{rest}", "a)(b", "(", "(a|aa)+b"
    return [listed_transactions(asker, pattern) for pattern in patterns]


@case("AlterPartitionReassignments: the same replicas, where another number is not allowed", (False, [0]))
def reassign_alike(asker):
    rows = [{"partition_index": 0, "replicas": (1,)}]
    topics = [{"name": asker.named("t"), "partitions": rows}]
    body = {"timeout": 5000, "allow_replication_factor_change": False, "topics": topics}
    found = asker.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, body)
    return found.allow_replication_factor_change, codes(row for topic in found.responses for row in topic.partitions)


@case("FindCoordinator of share groups", [42, 42])
def find_share(asker):
    body = {"key_type": 2, "coordinator_keys": ["g"]}
    return [code(asker.ask(ApiKey.FIND_COORDINATOR, version, body).coordinators[0]) for version in (5, 6)]


@case("InitProducerId: an id without an epoch, an epoch without an id", [42, 42])
def half_a_producer(asker):
    return [code(init(asker, *half)) for half in ((7, -1), (-1, 0))]


@case("InitProducerId: a producer without a transactional id", (0, 0))
def producer_of_no_transaction(asker):
    found = init(asker, 7, 0, transactional_id=None)
    return code(found), found.producer_epoch


def init(asker, producer_id, producer_epoch, **more):
    body = {
        "transactional_id": asker.named("init"),
        "transaction_timeout": 10_000,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        **more,
    }
    return asker.ask(ApiKey.INIT_PRODUCER_ID, 4, body)


def described_topics(asker, *names, cursor=None, limit=2000):
    """(error, topic, partitions) of each row of a page, and where the next one begins."""
    body = {
        "topics": [{"name": name} for name in names],
        "response_partition_limit": limit,
        "cursor": cursor and {"topic_name": cursor[0], "partition_index": cursor[1]},
    }
    found = asker.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, body)
    rows = [(code(row), row.name, tuple(each.partition_index for each in row.partitions)) for row in found.topics]
    following = found.next_cursor
    return rows, following and (following.topic_name, following.partition_index)


def paged(asker):
    """Two topics of two and three partitions that a broker knows whole."""
    names = [asker.named(f"paged{count}") for count in (2, 3)]
    for count, name in zip((2, 3), names, strict=True):
        create(asker, name, num_partitions=count)
        until(lambda name=name, count=count: len(metadata(asker, 12, (name, None))[0].partitions) == count)
    return names


@case("DescribeTopicPartitions: what is told of a partition", (0, False, 3576, True, (0, 0, 1, (1,), (1,), (), (), ())))
def describe_a_topic(asker):
    body = {"topics": [{"name": asker.named("t")}]}
    (row,) = asker.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, body).topics
    (one,) = row.partitions
    told = (
        code(one), one.partition_index, one.leader_id, one.replica_nodes, one.isr_nodes,
        one.eligible_leader_replicas, one.last_known_elr, one.offline_replicas,
    )  # fmt: skip
    has_id = row.topic_id == topic_id(asker, asker.named("t"))
    return code(row), row.is_internal, row.topic_authorized_operations, has_id, told


@case("DescribeTopicPartitions: names that nobody has, and one twice", [(17, "a/b"), (3, "nope")])
def describe_unknown(asker):
    return [row[:2] for row in described_topics(asker, "nope", "a/b", "nope")[0]]


@case("DescribeTopicPartitions of an empty name", [(17, "")], [(-1, "")])
def describe_nameless(asker):
    return [row[:2] for row in described_topics(asker, "")[0]]


@case("DescribeTopicPartitions: pages", [[(0, (0, 1)), (0, (0,))], [(0, (1, 2))], [(3, ())]])
def describe_in_pages(asker):
    names, found, cursor = [*paged(asker), asker.named("qnone")], [], None
    while cursor is not None or not found:
        rows, cursor = described_topics(asker, *reversed(names), cursor=cursor, limit=3 if not found else 2)
        found.append([(error, partitions) for error, _, partitions in rows])
    return found


@case("DescribeTopicPartitions: no more than one partition, and fewer", [(1, 1), (1, 1), (1, 1)])
def describe_little(asker):
    names = paged(asker)
    found = [described_topics(asker, *names, limit=limit) for limit in (1, 0, -5)]
    return [(len(rows[0][2]), cursor[1]) for rows, cursor in found]


@case("DescribeTopicPartitions: cursors", [[42, 42], [42, 42], [], [(0, ())], [(0, (2,))], [(0, (0, 1, 2))]])
def describe_from_cursors(asker):
    two, three = paged(asker)

    def rows(cursor, *names):
        return [(error, partitions) for error, _, partitions in described_topics(asker, *names, cursor=cursor)[0]]

    wrong = [rows((asker.named("t"), 0), two, three), rows((two, -1), two, three)]
    return [
        *([error for error, _ in found] for found in wrong),
        rows((two, -1)),
        rows((three, 9), two, three),
        rows((three, 2), two, three),
        rows((three, 0), two, three),
    ]


@case("DescribeTopicPartitions of all topics, from a cursor of no topic", (True, True))
def describe_all(asker):
    two, three = paged(asker)
    found, _ = described_topics(asker, cursor=(two + "/", 5))
    return (0, three, (0, 1, 2)) in found, all(name > two for _, name, _ in found)


# ------------------------------------------------------------------ settings


def alter(asker, kind, name, *changes, validate_only=False, times=1):
    rows = [{"name": key, "config_operation": how, "value": value} for key, how, value in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": rows}
    body = {"resources": [resource] * times, "validate_only": validate_only}
    return codes(asker.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses)


def alter_all(asker, kind, name, key, value):
    resource = {"resource_type": kind, "resource_name": name, "configs": [{"name": key, "value": value}]}
    return codes(asker.ask(ApiKey.ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": True}).responses)


SET, DELETE, APPEND, SUBTRACT = range(4)


@case("IncrementalAlterConfigs: a value that is null", [42, 42, 42, 0])
def altered_to_null(asker):
    changes = ("retention.ms", SET, None), ("cleanup.policy", APPEND, None), ("cleanup.policy", SUBTRACT, None)
    rest = ("retention.ms", DELETE, None)
    return [found for change in (*changes, rest) for found in alter(asker, 2, asker.named("t"), change)]


@case("IncrementalAlterConfigs: an unknown operation", [42], [-1])
def altered_unknown(asker):
    return alter(asker, 2, asker.named("t"), ("retention.ms", 9, "1"))


@case("IncrementalAlterConfigs: all of cleanup.policy, and back", ["", "delete", "delete,compact"])
def policies_taken_away(asker):
    name, _ = create_with(asker)
    found = []
    for how, policy, then in (
        (SUBTRACT, "delete", ""),
        (APPEND, "delete", "delete"),
        (APPEND, "compact", "delete,compact"),
    ):
        assert alter(asker, 2, name, ("cleanup.policy", how, policy)) == [0]
        until(lambda then=then: described(asker, name, "cleanup.policy") == then)  # a broker may hear of it later
        found.append(then)
    return found


@case("IncrementalAlterConfigs: an empty text added to cleanup.policy", ([40], "delete"))
def policy_with_nothing(asker):
    name, _ = create_with(asker)
    return alter(asker, 2, name, ("cleanup.policy", APPEND, "")), described(asker, name, "cleanup.policy")


@case("IncrementalAlterConfigs: an unknown name, of a broker and of all brokers", [40, 40], [0, 0])
def broker_unknown_name(asker):
    change = "nonsense", SET, "1"
    return alter(asker, 4, "1", change, validate_only=True) + alter(asker, 4, "", change, validate_only=True)


@case("IncrementalAlterConfigs: log.cleaner.threads", [40, 40], [0, 42])
def broker_cleaner_threads(asker):
    return [
        found
        for value in ("1", "x")
        for found in alter(asker, 4, "1", ("log.cleaner.threads", SET, value), validate_only=True)
    ]


@case("IncrementalAlterConfigs of a group", [42], [0])
def altered_group(asker):
    return alter(asker, 32, "g", ("consumer.session.timeout.ms", SET, "50000"), validate_only=True)


@case("IncrementalAlterConfigs: a topic twice in one request", [42], [42, 42])
def altered_twice(asker):
    return alter(asker, 2, asker.named("t"), ("retention.ms", SET, "1000"), times=2)


@case("AlterConfigs: a value that is null; an empty cleanup.policy", [42, 0])
def all_altered(asker):
    topic = asker.named("t")
    return alter_all(asker, 2, topic, "retention.ms", None) + alter_all(asker, 2, topic, "cleanup.policy", "")


@case("AlterConfigs: an unknown name, of a broker", [40], [0])
def all_of_a_broker_altered(asker):
    return alter_all(asker, 4, "1", "nonsense", "1")


def describe(asker, *resources):
    rows = [{"resource_type": kind, "resource_name": name, "configuration_keys": None} for kind, name in resources]
    body = {"resources": rows, "include_synonyms": False, "include_documentation": False}
    return codes(asker.ask(ApiKey.DESCRIBE_CONFIGS, 4, body).results)


@case("DescribeConfigs of a topic that cannot be", [17, 17, 3])
def describe_illegal(asker):
    return describe(asker, (2, "")) + describe(asker, (2, "a/b")) + describe(asker, (2, "nope"))


@case("DescribeConfigs of a broker's loggers, of client metrics, of a group", [42, 42, 42], [0, 0, 0])
def describe_others(asker):
    return describe(asker, (8, "1")) + describe(asker, (16, "x")) + describe(asker, (32, "g"))


@case("DescribeConfigs of all brokers, where nothing was set", [], ["min.insync.replicas"])
def describe_all_brokers(asker):
    row = {"resource_type": 4, "resource_name": "", "configuration_keys": None}
    body = {"resources": [row], "include_synonyms": False, "include_documentation": False}
    return [each.name for each in asker.ask(ApiKey.DESCRIBE_CONFIGS, 4, body).results[0].configs]


@case("DescribeConfigs: a topic twice in one request", [0], [0, 0])
def describe_twice(asker):
    return describe(asker, (2, asker.named("t")), (2, asker.named("t")))


# -------------------------------------------------------------------- groups


def join(asker, group, *, member_id="", protocols=(("range", b"\0"),), instead=(b"", b"")):
    body = {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": name, "metadata": metadata} for name, metadata in protocols],
    }
    found = asker.ask(ApiKey.JOIN_GROUP, 5, body, instead=instead)
    if found not in (CLOSED, SILENT) and code(found) == 79 and not member_id and not instead[0]:
        return join(asker, group, member_id=found.member_id, protocols=protocols)
    return found


def sync(asker, group, joined, *, version=3, **fields):
    body = {
        "group_id": group,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "group_instance_id": None,
        "protocol_type": None,
        "protocol_name": None,
        "assignments": [{"member_id": joined.member_id, "assignment": b"abc"}],
        **fields,
    }
    return code(asker.ask(ApiKey.SYNC_GROUP, version, body))


def member(asker, group):
    joined = join(asker, group)
    assert sync(asker, group, joined) == 0
    return joined


@case("JoinGroup: a static leader is back, by version", [(False, 0, None), (False, 0, None), (True, 1, True)])
def join_statically(asker):
    """Does it lead, of how many members is it told, and is it to skip the assignment?"""
    group = asker.named("static")

    def joined(version):
        body = {
            "group_id": group, "session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": "",
            "group_instance_id": "i", "protocol_type": "consumer", "reason": "it is back",
            "protocols": [{"name": "range", "metadata": b"\0"}],
        }  # fmt: skip
        return asker.ask(ApiKey.JOIN_GROUP, version, body)

    first = joined(9)
    assert (code(first), first.skip_assignment, sync(asker, group, first)) == (0, False, 0)
    found = [joined(version) for version in (7, 8, 9)]
    assert codes(found) == [0, 0, 0]
    return [(row.leader == row.member_id, len(row.members), getattr(row, "skip_assignment", None)) for row in found]


@case("JoinGroup: a group id that is not UTF-8", 79)
def join_not_utf8(asker):
    found = join(asker, "no-utf-8-here", instead=(b"no-utf-8-here", b"\xff\xfe" + b"no-utf-8-he"))
    return found if found is CLOSED else code(found)


@case("Produce: a topic whose name is not UTF-8", [3, 3])
def produce_not_utf8(asker):
    rows = (ProducePartition(0, bytes(build([Record(0, 1_000, None, b"v")]))),)
    request = ProduceRequest(-1, 1000, (ProduceTopic("no-utf-8-here", rows),))
    instead = (b"no-utf-8-here", b"\xff\xfe" + b"no-utf-8-he")
    found = [asker.ask(ApiKey.PRODUCE, version, request, instead=instead) for version in (8, 9)]
    return [each if each is CLOSED else code(each.topics[0].partitions[0]) for each in found]


def produce_by_ids(asker, *ids, version=13, acks=-1):
    rows = (ProducePartition(0, bytes(build([Record(0, 1_000, None, b"v")]))),)
    topics = tuple(ProduceTopic("", rows, number) for number in ids)
    found = asker.ask(ApiKey.PRODUCE, version, ProduceRequest(acks, 5000, topics))
    if found in (CLOSED, SILENT):
        return found
    return [(topic.topic_id, code(topic.partitions[0]), topic.partitions[0].base_offset) for topic in found.topics]


@case("Produce by ids: known, unknown, none, and two", [[(True, 0, 0)], [(True, 100, -1)], [(False, 100, -1)], 2])
def produce_ids(asker):
    create(asker, asker.named("ids"))
    number = until(lambda: topic_id(asker, asker.named("ids")))
    until(lambda: code(metadata(asker, 12, (asker.named("ids"), None))[0].partitions[0]) == 0)
    found = [produce_by_ids(asker, asked) for asked in (number, AN_ID, None)]
    told = [[(asked is not None and row[0] == asked, *row[1:]) for row in rows]
            for asked, rows in zip((number, AN_ID, None), found, strict=True)]  # fmt: skip
    both = {row[0]: row[1:] for row in produce_by_ids(asker, number, AN_ID)}
    return [*told, len(both) if both == {number: (0, 1), AN_ID: (100, -1)} else both]


@case("Produce by an unknown id with acks=0", CLOSED)
def produce_unknown_silently(asker):
    return produce_by_ids(asker, AN_ID, acks=0)


@case("Fetch by id in the newest version", (0, 3, BATCH * 3))
def fetch_by_id(asker):
    number = topic_id(asker, asker.named("t"))
    found = asker.ask(ApiKey.FETCH, 18, fetch_request(None, topic_id=number, max_wait_ms=100))
    (row,) = found.topics[0].partitions
    return row.error_code, row.high_watermark, len(row.records)


@case("SyncGroup of another protocol, of none, and of this one", [23, 23, 23, 0])
def sync_other(asker):
    group = asker.named("sync")
    joined = member(asker, group)
    named = [("connect", "range"), ("consumer", "other"), (None, None), ("consumer", "range")]
    return [sync(asker, group, joined, version=5, protocol_type=a, protocol_name=b) for a, b in named]


@case("LeaveGroup: a member twice", [25, 0, 25])
def leave_twice(asker):
    group = asker.named("leave")
    joined = member(asker, group)
    names = "stranger", joined.member_id, joined.member_id
    rows = [{"member_id": name, "group_instance_id": None} for name in names]
    return codes(asker.ask(ApiKey.LEAVE_GROUP, 3, {"group_id": group, "members": rows}).members)


@case("LeaveGroup: no members", 0)
def leave_nobody(asker):
    return code(asker.ask(ApiKey.LEAVE_GROUP, 3, {"group_id": asker.named("leave"), "members": ()}))


def commit(asker, group, topic):
    row = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": ""}
    body = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": [row]}],
    }
    return codes(asker.ask(ApiKey.OFFSET_COMMIT, 7, body).topics[0].partitions)


@case("DeleteGroups: an empty name, with offsets and without; a name twice", [[0], [0], [69], [69]])
def delete_groups(asker):
    def delete(*names):
        return codes(asker.ask(ApiKey.DELETE_GROUPS, 2, {"groups_names": names}).results)

    return [commit(asker, "", asker.named("t")), delete(""), delete(""), delete("nope", "nope")]


def delete_offset(asker, group, topic):
    body = {"group_id": group, "topics": [{"name": topic, "partitions": [{"partition_index": 0}]}]}
    found = asker.ask(ApiKey.OFFSET_DELETE, 0, body)
    return code(found), codes(row for each in found.topics for row in each.partitions)


@case("OffsetDelete: an empty name; a topic that is none; an offset", [(24, []), (0, [3]), (0, [0])])
def delete_offsets(asker):
    group, topic = asker.named("offsets"), asker.named("t")
    commit(asker, group, topic)
    return [delete_offset(asker, *each) for each in (("", topic), (group, "nope"), (group, topic))]


@case("OffsetDelete: the last offset of a group without members, again", [(0, [0]), (69, [])], [(0, [0]), (0, [0])])
def delete_last_offset(asker):
    group, topic = asker.named("last"), asker.named("t")
    commit(asker, group, topic)
    return [delete_offset(asker, group, topic) for _ in range(2)]


@case("FindCoordinator: a key twice", ["a", "a", "b"])
def find_twice(asker):
    body = {"key_type": 0, "coordinator_keys": ("a", "a", "b")}
    return [row.key for row in asker.ask(ApiKey.FIND_COORDINATOR, 4, body).coordinators]


@case("OffsetFetch: a group twice", 1, 2)
def fetch_offsets_twice(asker):
    groups = [{"group_id": "never", "member_id": None, "member_epoch": -1, "topics": None}] * 2
    return len(asker.ask(ApiKey.OFFSET_FETCH, 8, {"groups": groups, "require_stable": False}).groups)


@case("DescribeGroups: a group twice", 1, 2)
def describe_group_twice(asker):
    body = {"groups": ("never", "never"), "include_authorized_operations": False}
    return len(asker.ask(ApiKey.DESCRIBE_GROUPS, 5, body).groups)


@case(
    "DescribeGroups: a group that does not exist, by version",
    [(0, "Dead", None), (69, "Dead", "Group never not found.")],
)
def describe_no_group(asker):
    body = {"groups": ("never",), "include_authorized_operations": False}
    rows = [asker.ask(ApiKey.DESCRIBE_GROUPS, version, body).groups[0] for version in (5, 6)]
    return [(code(row), row.group_state, getattr(row, "error_message", None)) for row in rows]


@case("ListGroups by type", [["classic"], ["classic"], []])
def list_groups_by_type(asker):
    assert code(join(asker, asker.named("typed"))) == 0

    def types(*wanted):
        body = {"states_filter": (), "types_filter": wanted}
        rows = asker.ask(ApiKey.LIST_GROUPS, 5, body).groups
        return [row.group_type for row in rows if row.group_id == asker.named("typed")]

    return [types(), types("Classic", "share"), types("consumer")]


@case("operations that are allowed, where they are asked for", [(3576, 3400, 8096, 8096), (NOT_ASKED,) * 4])
def operations(asker):
    def told(are_asked):
        flags = dict.fromkeys(METADATA_FLAGS, are_asked)
        body = {"topics": [{"name": asker.named("t"), "topic_id": None}], "allow_auto_topic_creation": False, **flags}
        groups = {"groups": (asker.named("first"),), "include_authorized_operations": are_asked}
        cluster = {"include_cluster_authorized_operations": are_asked, "endpoint_type": 1}
        of_both = asker.ask(ApiKey.METADATA, 10, body)
        (of_topic,) = asker.ask(ApiKey.METADATA, 12, body).topics
        assert of_topic.topic_authorized_operations == of_both.topics[0].topic_authorized_operations
        return (
            of_topic.topic_authorized_operations,
            asker.ask(ApiKey.DESCRIBE_GROUPS, 5, groups).groups[0].authorized_operations,
            asker.ask(ApiKey.DESCRIBE_CLUSTER, 1, cluster).cluster_authorized_operations,
            of_both.cluster_authorized_operations,
        )

    return [told(True), told(False)]


# ------------------------------------------------------------------- records


def list_offsets(asker, *times, isolation=0, version=7):
    rows = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": time} for time in times]
    topics = [{"name": asker.named("t"), "partitions": rows}]
    body = {"replica_id": -1, "isolation_level": isolation, "topics": topics, "timeout": 1000}
    return [(code(row), row.offset) for row in asker.ask(ApiKey.LIST_OFFSETS, version, body).topics[0].partitions]


@case("ListOffsets: a partition twice", [(42, -1), (42, -1)], [(42, -1)])
def list_twice(asker):
    return list_offsets(asker, -1, -2)


NONE, TOO_OLD = (0, -1, -1, -1), (35, -1, -1, -1)


@case("ListOffsets: places, by version", {
    -1: [(0, 3, -1, 0)] * 5, -2: [(0, 0, -1, 0)] * 5, -3: [(0, 0, 1000, 0)] * 5, -4: [TOO_OLD, *[(0, 0, -1, 0)] * 4],
    -5: [TOO_OLD] * 2 + [NONE] * 3, -6: [TOO_OLD] * 4 + [NONE], -7: [TOO_OLD] * 5,
})  # fmt: skip
def list_places(asker):
    def row(place, version):
        asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": place}
        topics = [{"name": asker.named("t"), "partitions": [asked]}]
        body = {"replica_id": -1, "isolation_level": 0, "topics": topics, "timeout": 1000}
        (found,) = asker.ask(ApiKey.LIST_OFFSETS, version, body).topics[0].partitions
        return code(found), found.offset, found.timestamp, found.leader_epoch

    return {place: [row(place, version) for version in range(7, 12)] for place in range(-1, -8, -1)}


@case("ListOffsets: an unknown isolation level", [(42, -1)], [(-1, -1)])
def list_isolated(asker):
    return list_offsets(asker, -1, isolation=7)


def fetch(asker, offset=0, each_bytes=EVERYTHING, *, version=11, **options):
    """(error, error of the partition, high watermark, bytes of records)."""
    request = fetch_request(asker.named("t"), FetchPartition(0, offset, each_bytes), max_wait_ms=100, **options)
    found = asker.ask(ApiKey.FETCH, version, request)
    if found is CLOSED:
        return found
    (row,) = found.topics[0].partitions
    return found.error_code, row.error_code, row.high_watermark, len(row.records)


@case("Fetch: max_bytes that end within a batch", (0, 0, 3, BATCH), (0, 0, 3, 100))
def fetch_half(asker):
    return fetch(asker, max_bytes=100, min_bytes=1 << 24)


@case("Fetch: max_bytes and partition_max_bytes below 0", [(0, 0, 3, BATCH)] * 2, [(0, -1, -1, 0)] * 2)
def fetch_negative(asker):
    return [fetch(asker, max_bytes=-1, min_bytes=-1), fetch(asker, each_bytes=-1)]


@case("Fetch: outside of the log", [(0, 1, 3, 0)] * 2, [(0, 1, -1, 0)] * 2)
def fetch_outside(asker):
    return [fetch(asker, 4), fetch(asker, -5)]


@case("Fetch: an unknown isolation level", [(0, 42, -1, 0), (42, 42, -1, 0)], [(0, -1, -1, 0), (-1, -1, -1, 0)])
def fetch_isolated(asker):
    return [fetch(asker, version=version, isolation=7) for version in (6, 11)]


@case("Fetch as a follower that is none", (0, 77, -1, 0), (0, 6, -1, 0))
def fetch_as_a_follower(asker):
    return fetch(asker, replica_id=77)


@case("OffsetForLeaderEpoch: no epoch, the first, one that is yet to come", [(0, -1, -1), (0, 0, 3), (0, -1, -1)])
def ends_of_epochs(asker):
    found = []
    for epoch in (-1, 0, 99):
        asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
        body = {"replica_id": -1, "topics": [{"topic": asker.named("t"), "partitions": [asked]}]}
        (row,) = asker.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, body).topics[0].partitions
        found.append((code(row), row.leader_epoch, row.end_offset))
    return found


@case("JoinGroup: a protocol twice", 0, SILENT)
def join_twice(asker):
    found = join(asker, asker.named("twice"), protocols=(("range", b"1"), ("range", b"2")))
    return found if found is SILENT else code(found)
