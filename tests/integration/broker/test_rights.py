"""Every API and each right that it takes: without the right the request is refused, does nothing, and tells nothing.

docs/security.md has the rights of every API in a table, which is held here against what the APIs declare.
"""

import re
import uuid
from pathlib import Path

import pytest

from replication.broker.needs import needs_of
from replication.coordination.tree import NoNodeError
from replication.model.cluster import topic_id_of
from replication.model.metadata import Metadata
from replication.network.refusals import CODES, Part
from replication.protocol import apis
from replication.protocol.apis import SERVED, ApiKey
from replication.protocol.decoding import TOPIC_IDS
from replication.protocol.kio_entities import build
from replication.protocol.messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from replication.protocol.small_messages import COMMIT_IDS_FROM
from replication.security.access import CLUSTER_NAME, Operation, Resource
from replication.security.acl import EVERYBODY, Entry, Filter, Pattern, Permission, text_of
from tests.integration.broker.test_refusals import (
    ALL,
    AS_A_WHOLE,
    BATCH,
    BY_ROW,
    OPEN,
    PARTITION,
    PRODUCER,
    SECRET,
    adding,
    codes_of,
    fields_of,
    fill,
    rows,
)
from tests.support.asker import Asker, until
from tests.support.in_process import brokers_in_process

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
ABSENT = "absent"  # a topic that there is none of; as long as SECRET
SHARERS = "sharers"  # a share group without members
ME = "User:ANONYMOUS"
RIGHTS = {
    "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer",
    "super_users": "User:ops",
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_num_partitions": 1,
    "transaction_two_phase_commit_enable": "true",
    "group_initial_rebalance_delay_ms": 0,
}


def of_secret(body):
    """The same request, of SECRET only."""
    name, both = next((n, found) for n, found in fields_of(body) if isinstance(found, list | tuple))
    return body | {name: both[1:]} if isinstance(body, dict) else body._replace(**{name: both[1:]})


BODIES = {key: of_secret(body) for key, (body, _) in BY_ROW.items()}
BODIES |= {key: body for key, (body, _) in AS_A_WHOLE.items()}
BODIES |= {
    ApiKey.PRODUCE: ProduceRequest(
        -1, 5000, (ProduceTopic(SECRET, (ProducePartition(0, BATCH),)),), transactional_id=SECRET
    ),
    ApiKey.DELETE_TOPICS: {"topic_names": (SECRET,), "topics": rows(SECRET, topic_id=None), "timeout": 5000},
    ApiKey.ADD_PARTITIONS_TO_TXN: adding(SECRET, 1, [SECRET]),
    ApiKey.FIND_COORDINATOR: {"key_type": 0, "coordinator_keys": [SECRET]},
    ApiKey.OFFSET_FETCH: {
        "groups": [
            {
                "group_id": OPEN, "member_id": None, "member_epoch": -1,
                "topics": [{"name": SECRET, "partition_indexes": (0,)}],
            }
        ],
        "require_stable": False,
    },
    ApiKey.INIT_PRODUCER_ID: {**PRODUCER, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1},
    ApiKey.DELETE_GROUPS: {"groups_names": (SECRET,)},
    ApiKey.OFFSET_DELETE: {"group_id": SECRET, "topics": rows(SECRET, partitions=[PARTITION])},
    ApiKey.ELECT_LEADERS: {
        "election_type": 0, "topic_partitions": [{"topic": SECRET, "partitions": (0,)}], "timeout": 5000
    },
    ApiKey.CREATE_ACLS: {
        "creations": [
            {
                "resource_type": 2, "resource_name": SECRET, "resource_pattern_type": 3, "principal": ME, "host": "*",
                "operation": 2, "permission_type": 3,
            }
        ]
    },
    ApiKey.DELETE_RECORDS: {"topics": rows(SECRET, partitions=[{**PARTITION, "offset": 1}]), "timeout": 5000},
    ApiKey.CREATE_PARTITIONS: {
        "topics": rows(SECRET, count=2, assignments=None), "timeout": 5000, "validate_only": False
    },
    ApiKey.CREATE_TOPICS: {
        "topics": rows(ABSENT, num_partitions=1, replication_factor=1, assignments=(), configs=()),
        "timeout": 5000, "validate_only": False,
    },
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: {
        "topics": [{"name": SECRET, "partitions": [{"partition_index": 0, "replicas": (1,)}]}], "timeout": 5000
    },
    ApiKey.UPDATE_FEATURES: {
        "feature_updates": [{"feature": "pylog.version", "max_version_level": 3, "upgrade_type": 1}],
        "timeout": 5000, "validate_only": False,
    },
}  # fmt: skip
SETTINGS = [{"name": "retention.ms", "value": "1", "config_operation": 0}]
for _key in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
    BODIES[_key] = {
        "resources": [{"resource_type": 2, "resource_name": SECRET, "configs": SETTINGS}], "validate_only": False
    }  # fmt: skip
for _key in (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_HEARTBEAT):
    BODIES[_key] = BODIES[_key] | {"subscribed_topic_names": (SECRET,), "member_epoch": 0}

# The same of another kind, or of an older version: what they need beside.
MORE = [
    (ApiKey.FETCH, 11, FetchRequest(0, 1, (FetchTopic(SECRET, None, (FetchPartition(0, 0, 1),)),), replica_id=1)),
    (ApiKey.FIND_COORDINATOR, 6, {"key_type": 1, "coordinator_keys": [SECRET]}),
    (ApiKey.FIND_COORDINATOR, 6, {"key_type": 2, "coordinator_keys": [f"g:{'A' * 22}:0"]}),
    (
        ApiKey.ADD_PARTITIONS_TO_TXN, 5,
        {
            "transactions": [
                {
                    "transactional_id": SECRET, "producer_id": 1, "producer_epoch": 0, "verify_only": True,
                    "topics": [{"name": SECRET, "partitions": (0,)}],
                }
            ]
        },
    ),
    (ApiKey.INIT_PRODUCER_ID, 5, {"transactional_id": None, "transaction_timeout": 1000}),
    (
        ApiKey.INIT_PRODUCER_ID, 6,
        {**PRODUCER, "transaction_timeout": 1000, "enable2_pc": True, "producer_id": -1, "producer_epoch": -1},
    ),
    *(
        (key, last, {
                "resources": [
                    {"resource_type": kind, "resource_name": name, "configs": SETTINGS, "configuration_keys": None}
                ],
                "validate_only": False,
            })
        for key, last in (
            (ApiKey.DESCRIBE_CONFIGS, 4), (ApiKey.ALTER_CONFIGS, 2), (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1)
        )
        for kind, name in ((4, "1"), (32, SECRET))
    ),
]  # fmt: skip
# They need nothing: their rows do, which tests/integration/broker/test_refusals.py looks at.
FREE = {ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CLUSTER, ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS}
FREE |= {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
VERSIONS = {ApiKey.FETCH: TOPIC_IDS - 1, ApiKey.PRODUCE: TOPIC_IDS - 1, ApiKey.OFFSET_COMMIT: COMMIT_IDS_FROM - 1}
VERSIONS |= {ApiKey.ADD_PARTITIONS_TO_TXN: 3, ApiKey.TXN_OFFSET_COMMIT: 5, ApiKey.OFFSET_FETCH: 9}
REQUESTS = [(key, VERSIONS.get(key, key.versions.last), body) for key, body in BODIES.items()] + MORE


def framed(key, version, body):
    of_class = body if isinstance(body, tuple) else build(apis.request_class(key, version), body)
    return b"".join(map(bytes, apis.encode_request(key, version, 1, "test", of_class)))[4:]


def entity(key, version, body):
    """The request as the broker decodes it."""
    return apis.decode_request(memoryview(framed(key, version, body))).body


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with brokers_in_process(tmp_path_factory.mktemp("rights"), (1,), **RIGHTS) as running:
        may_all(running)
        with Asker(running.bootstrap) as asker:
            fill(asker)
            asker.ask(
                ApiKey.PRODUCE, 9, ProduceRequest(-1, 5000, (ProduceTopic(SECRET, (ProducePartition(0, BATCH),)),))
            )
            for epoch in (0, -1):
                member = {"group_id": SHARERS, "member_id": "m", "member_epoch": epoch}
                made = asker.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, member | {"subscribed_topic_names": ("none",)})
                assert made.error_code == 0
        yield running


@pytest.fixture
def asker(running):
    with Asker(running.bootstrap) as made:
        yield made


def grant(running, rights):
    """Let the client have these rights, and no more."""
    authorizer = running.brokers[1].authorizer

    async def do():
        authorizer.keep(())
        patterns = {Pattern(resource, name) for _, resource, name in rights}
        for pattern in patterns:
            entries = [Entry(ME, o) for o, resource, name in rights if Pattern(resource, name) == pattern]
            authorizer.put(pattern, entries)

    running.do(do())


def may_all(running):
    named = [(Operation.ALL, kind, "*") for kind in (Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID)]
    grant(running, [*named, (Operation.ALL, Resource.CLUSTER, CLUSTER_NAME)])


NEEDS = needs_of(Metadata())


def needed(key, version, body):
    return list(NEEDS[key](Part(key, version, entity(key, version, body))))


MISSING = [
    pytest.param(key, version, body, need, id=f"{key.name}-{version}-{need.operation.name}-{at}")
    for at, (key, version, body) in enumerate(REQUESTS)
    for need in needed(key, version, body)
]


def everything(running):
    """All that a request could change: the tree, and the ends of all logs."""
    broker = running.brokers[1]

    async def tree():
        found, paths, known = {}, ["/"], broker.lifecycle.tree
        while paths:
            path = paths.pop()
            if path not in ("/", "/pylog/registrations"):
                node = await known.get(path)
                found[path] = node and (node.data, node.version)
            try:
                paths += [f"{path.rstrip('/')}/{name}" for name in await known.children(path)]
            except NoNodeError:
                continue
        return found

    async def logs():
        metadata = broker.replicas.metadata
        tps = [(name, number) for name, topic in metadata.topics().items() for number in topic.partitions]
        found = {tp: broker.replicas.partition(*tp).replica.log for tp in tps}
        return {tp: (log.log_start_offset, log.log_end_offset) for tp, log in found.items()}

    rules = broker.authorizer.rules
    return running.do(tree()), running.do(logs()), {each: rules.selected(each, Filter()) for each in rules.patterns()}


@pytest.mark.parametrize(("key", "version", "body", "missing"), MISSING)
def test_without_a_right_a_request_is_refused_and_does_nothing(running, asker, key, version, body, missing):
    grant(running, [need[:3] for need in needed(key, version, body) if need != missing])
    before = everything(running)
    answer = asker.ask(key, version, body)
    assert everything(running) == before
    codes = set().union(*codes_of(answer).values())
    assert CODES[missing.resource] in codes, f"{answer}"
    assert BATCH not in repr(answer).encode()
    # Denied, and not only left unsaid, beside a right to everything.
    may_all(running)
    denied = Pattern(missing.resource, missing.name)
    entry = Entry(EVERYBODY, missing.operation, Permission.DENY)
    others = [Entry(ME, Operation.ALL)] if missing.resource is Resource.CLUSTER else []
    if missing.instead is None:
        running.do(denying(running, denied, [entry, *others]))
        before = everything(running)
        assert CODES[missing.resource] in set().union(*codes_of(asker.ask(key, version, body)).values())
        assert everything(running) == before


async def denying(running, pattern, entries):
    running.brokers[1].authorizer.put(pattern, entries)


@pytest.mark.parametrize(("key", "version", "body", "missing"), [each for each in MISSING if each.values[3].instead])
def test_another_right_that_does_as_well_is_enough(running, asker, key, version, body, missing):
    operation, resource, name, _ = missing.instead
    other = (operation, Resource.TOPIC, "any") if resource is Resource.SOME_TOPIC else (operation, resource, name)
    grant(running, [other])
    assert not set(CODES.values()) & set().union(*codes_of(asker.ask(key, version, harmless(key, body))).values())


def harmless(key, body):
    """The same, but that nothing comes or goes."""
    if key is ApiKey.DELETE_TOPICS:
        return body | {"topics": rows("none", topic_id=None)}
    return body | {"validate_only": True} if key is ApiKey.CREATE_TOPICS else body


NAMING = [each for each in REQUESTS if SECRET in repr(each[2]) and each[0] is not ApiKey.CREATE_TOPICS]


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [pytest.param(*each, id=f"{each[0].name}-{each[1]}-{at}") for at, each in enumerate(NAMING)],
)
def test_what_one_may_not_see_is_as_if_it_were_not_there(running, asker, key, version, body):
    """Byte by byte the same answer, for what there is and for what there is none of."""
    grant(running, [])
    assert_nothing_is_told(asker, key, version, body)


def assert_nothing_is_told(asker, key, version, body):
    frame = framed(key, version, body)
    assert SECRET.encode() in frame
    found = asker.send(frame)
    absent = asker.send(frame.replace(SECRET.encode(), ABSENT.encode()))
    assert absent.replace(ABSENT.encode(), SECRET.encode()) == found


BEGUN = {"topic_name": SECRET, "partitions": [{"partition_index": 0, "start_offset": 0}]}
OF_TOPICS = [each for each in NAMING if any(need.resource is Resource.TOPIC for need in needed(*each))] + [
    (ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, {"group_id": SHARERS, "topics": [BEGUN]}),
    (ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, {"group_id": SHARERS, "topics": [{"topic_name": SECRET}]}),
    (
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1,
        {"groups": [{"group_id": SHARERS, "topics": [{"topic_name": SECRET, "partitions": (0,)}]}]},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [pytest.param(*each, id=f"{each[0].name}-{each[1]}-{at}") for at, each in enumerate(OF_TOPICS)],
)
def test_a_topic_is_not_there_for_those_who_have_rights_on_all_but_topics(running, asker, key, version, body):
    grant(running, [(Operation.ALL, Resource.GROUP, "*"), (Operation.ALL, Resource.TRANSACTIONAL_ID, "*")])
    before = everything(running)
    assert_nothing_is_told(asker, key, version, body)
    assert everything(running) == before


@pytest.mark.parametrize("pattern", ["sec.*", ".*"])
def test_a_member_is_assigned_no_topic_that_its_pattern_finds_and_it_may_not_see(running, asker, pattern):
    """The member of the same name and group gets both once it may see them."""
    member = {
        "group_id": f"readers-{len(pattern)}", "member_id": "m", "rebalance_timeout": 6000, "topic_partitions": None,
        "subscribed_topic_regex": pattern,
    }  # fmt: skip
    metadata = running.brokers[1].replicas.metadata

    def assigned(epoch):
        joining = {"topic_partitions": ()} if epoch == 0 else {}
        found = asker.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, member | joining | {"member_epoch": epoch})
        assert found.error_code == 0
        ids = [row.topic_id for row in found.assignment.topic_partitions] if found.assignment is not None else []
        return found.member_epoch, {metadata.name_of(topic_id_of(each)) for each in ids}

    grant(running, [(Operation.ALL, Resource.GROUP, "*"), (Operation.DESCRIBE, Resource.TOPIC, OPEN)])
    epoch, names = assigned(0)
    assert names <= {OPEN}
    may_all(running)

    def sees():
        nonlocal epoch
        epoch, found = assigned(epoch)
        return SECRET in found

    until(sees)
    assigned(-1)


def bits(*operations):
    return sum(1 << operation for operation in operations)


def test_operations_of_the_cluster_are_told_to_those_who_may_describe_it(running, asker):
    asked = {"include_cluster_authorized_operations": True}
    for rights, expected in (
        ([Operation.CREATE], 0),
        ([Operation.CREATE, Operation.DESCRIBE], bits(Operation.CREATE, Operation.DESCRIBE)),
        ([Operation.CREATE, Operation.ALTER], bits(Operation.CREATE, Operation.ALTER, Operation.DESCRIBE)),
    ):
        grant(running, [(operation, Resource.CLUSTER, CLUSTER_NAME) for operation in rights])
        found = asker.ask(ApiKey.DESCRIBE_CLUSTER, 0, asked)
        assert found.cluster_authorized_operations == expected


def test_settings_of_a_new_topic_are_shown_to_those_who_may_describe_them(running, asker):
    new = {"name": "new", "num_partitions": 3, "replication_factor": 1, "assignments": (), "configs": ()}
    for rights, shown in (
        ([Operation.CREATE, Operation.DESCRIBE], False),
        ([Operation.CREATE, Operation.ALTER_CONFIGS], True),
    ):
        grant(running, [(operation, Resource.TOPIC, "new") for operation in rights])
        asked = {"topics": [new], "timeout": 5000, "validate_only": True}
        (row,) = asker.ask(ApiKey.CREATE_TOPICS, 7, asked).topics
        assert row.error_code == 0
        assert (row.topic_config_error_code, row.num_partitions) == ((0, 3) if shown else (29, -1))
        assert bool(row.configs) == shown


def test_groups_are_listed_for_those_who_may_describe_the_cluster_or_them(running, asker):
    for right, expected in (
        ((Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME), {OPEN, SECRET}),
        ((Operation.READ, Resource.GROUP, OPEN), {OPEN}),
        ((Operation.ALTER_CONFIGS, Resource.GROUP, OPEN), set()),
    ):
        grant(running, [right])
        listed = asker.ask(ApiKey.LIST_GROUPS, 4, {"states_filter": ()}).groups
        assert {group.group_id for group in listed} & {OPEN, SECRET} == expected


def test_a_right_that_is_taken_away_holds_for_no_request_that_comes_later(running, asker):
    """Not even on a connection that had it a moment ago, and whose answers are kept for it."""
    rows = [ProduceTopic(SECRET, (ProducePartition(0, BATCH),))]
    for _ in range(20):
        for rights, expected in (([(Operation.WRITE, Resource.TOPIC, SECRET)], 0), ([], 29)):
            grant(running, rights)
            answer = asker.ask(ApiKey.PRODUCE, 9, ProduceRequest(-1, 5000, tuple(rows)))
            assert answer.topics[0].partitions[0].error_code == expected


IDS = [uuid.UUID(int=number) for number in (1, 2, 3)]  # of OPEN, of SECRET, and of none
BY_ID = [{"topic_id": each, "name": None} for each in IDS]
NAMED = {"group_id": "g", "topics": rows(OPEN, SECRET, OPEN, partition_indexes=(0,)), "require_stable": False}
OF_IDS = [{"topic_id": each, "partition_indexes": (0,)} for each in IDS]
OF_GROUP = {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": OF_IDS}
SEVERAL = [
    (ApiKey.FETCH, 17, FetchRequest(0, 1, tuple(FetchTopic("", i, (FetchPartition(0, 0, 1),)) for i in IDS))),
    (ApiKey.METADATA, 13, ALL | {"topics": BY_ID}),
    (ApiKey.DELETE_TOPICS, 6, {"topics": BY_ID, "timeout": 5000}),
    (ApiKey.OFFSET_FETCH, 7, NAMED),
    (ApiKey.OFFSET_FETCH, 10, {"groups": [OF_GROUP], "require_stable": False}),
]


@pytest.mark.parametrize(
    ("key", "version", "body"), SEVERAL, ids=[f"{key.name}-{version}" for key, version, _ in SEVERAL]
)
def test_a_right_is_named_for_each_topic_of_several(key, version, body):
    """Handlers look at each again; of a long request they are looked up ahead, in steps."""
    metadata = Metadata()
    metadata.note_leaders(
        (), [(topic_id_of(topic_id), name) for topic_id, name in zip(IDS[:2], (OPEN, SECRET), strict=True)]
    )
    found = needs_of(metadata)[key](Part(key, version, entity(key, version, body)))
    assert [need.name for need in found if need.resource is Resource.TOPIC] == [OPEN, SECRET]


def test_every_api_is_tried():
    assert {key for key, *_ in REQUESTS} | FREE == set(SERVED)


# --------------------------------------------------------------- the table of the docs


def said(key, need):
    name = text_of(key)
    resource = "Topic" if need.resource is Resource.SOME_TOPIC else text_of(need.resource)
    return f"{name}: {text_of(need.operation)} {resource}"


def test_the_table_names_the_rights_that_the_apis_declare():
    declared = set()
    for key, version, body in REQUESTS:
        for need in needed(key, version, body):
            declared.add(said(key, need))
            if need.instead is not None:
                declared.add(said(key, need.instead))
    table = PAGE.read_text(encoding="utf-8").partition("## Who may do what")[2].partition("\n## ")[0]
    found = set()
    for name, rights in re.findall(r"^\| (\w+) \| ([^|]*) \|", table, re.MULTILINE):
        for operation, resource in re.findall(r"`(\w+)` (?:on )?(Topic|Group|Cluster|TransactionalId)", rights):
            found.add(f"{name}: {operation} {resource}")
    assert declared - found == set()
    assert found - declared == OF_ROWS
    names = re.findall(r"^\| (\w+) \| [^|]*\|", table, re.MULTILINE)
    assert sorted(name for name in names if name != "API") == sorted(text_of(key) for key in SERVED)


# Rights that their handlers look at: of rows that they list, of topics behind what is asked for.
OF_ROWS = {
    "AlterShareGroupOffsets: Read Topic", "ConsumerGroupDescribe: Describe Topic",
    "DeleteShareGroupOffsets: Read Topic", "DescribeCluster: Describe Cluster",
    "DescribeShareGroupOffsets: Describe Topic", "ListGroups: Describe Cluster",
    "ListGroups: Describe Group", "ListTransactions: Describe TransactionalId", "Metadata: Create Cluster",
    "Metadata: Create Topic", "ShareAcknowledge: Read Topic", "ShareFetch: Read Topic",
    "ShareGroupDescribe: Describe Topic",
}  # fmt: skip
