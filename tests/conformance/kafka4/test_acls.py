"""The same ACLs and the same requests at brokers here and at a Kafka 4.4 with its StandardAuthorizer.

Nobody has a name on these listeners: hosts tell clients apart. The one at ADMIN may do everything, the one at GUEST
all that its ACLs allow.
"""

import pytest

from replication.errors import ErrorCode
from replication.protocol.apis import INTERBROKER, ApiKey
from replication.security.access import CLUSTER_NAME, Operation, Resource, of_topic
from replication.security.acl import PatternType, Permission
from tests.integration.broker import test_acls as own
from tests.integration.broker.test_refusals import DENIALS, codes_of, fill
from tests.integration.broker.test_rights import MISSING
from tests.support.asker import CLOSED, SILENT, Asker, until
from tests.support.commands import run_pylog
from tests.support.in_process import brokers_in_process
from tests.support.kafka4 import Kafka4, run_tool
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("starts a Kafka")]

ADMIN, GUEST = "127.0.0.1", "127.0.0.2"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ME = "User:ANONYMOUS"
EVERYTHING = [
    own.creation(resource_type=kind, resource_name=name, principal=ME, host=ADMIN, operation=Operation.ALL)
    for kind, name in (
        (Resource.CLUSTER, CLUSTER_NAME), (Resource.TOPIC, "*"), (Resource.GROUP, "*"), (Resource.TRANSACTIONAL_ID, "*")
    )
]  # fmt: skip
# Those of the guest, and of everybody else than the admin.
OF_OTHERS = [
    own.wanted(host_filter=host) for host in (GUEST, "*", "::1", "127.0.0.0/30", "127.0.0.0/31", "127.0.0.3/32")
]


class Side:
    """One of the two: a client that may do everything, and another that may not."""

    def __init__(self, address):
        self.address = address
        self.admin = Asker(address)
        codes = {code for code, _ in own.create(self.admin, *EVERYTHING)}
        assert codes == {0}
        until(lambda: len(own.describe(self.admin)) == len(EVERYTHING))
        fill(self.admin)
        self.guest = Asker(address, source=GUEST)

    def grant(self, *acls):
        """Let these be all ACLs of the guest."""
        self.admin.ask(ApiKey.DELETE_ACLS, 3, {"filters": OF_OTHERS})
        if acls:
            assert {code for code, _ in own.create(self.admin, *acls)} == {0}
        until(lambda: len(own.describe(self.admin, host_filter=GUEST)) == len(set(map(str, acls))))

    def close(self):
        self.admin.close()
        self.guest.close()


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    directory = tmp_path_factory.mktemp("acls")
    rights = {"authorizer.class.name": AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    rights["transaction.two.phase.commit.enable"] = "true"
    few = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
    ours = {key.replace(".", "_"): value for key, value in (rights | few).items()}
    with (
        brokers_in_process(directory / "ours", (1,), group_initial_rebalance_delay_ms=0, **ours) as running,
        Kafka4(directory / "theirs", settings=rights | few) as kafka,
    ):
        made = Side(running.bootstrap), Side(kafka.bootstrap)
        yield made
        for side in made:
            side.close()


def granting(need):
    operation, resource, name, _ = need
    return own.creation(
        resource_type=resource, resource_name=name, principal=ME, host=GUEST, operation=operation
    )  # fmt: skip


def is_there(key, version, body):
    """Has a Kafka 4.4 this version? Two-phase commits come with one that it has not yet."""
    return key not in INTERBROKER and (key, version) != (ApiKey.INIT_PRODUCER_ID, 6)


CASES = [case for case in MISSING if is_there(*case.values[:3])]
OTHERWISE = {
    # A follower that may not act for the cluster: in each row at a Kafka, once here.
    (ApiKey.FETCH, Resource.CLUSTER): ({31}, {0, 29}),
    # A batch that is in no transaction, of a request that names one: a Kafka looks at the batch.
    (ApiKey.PRODUCE, Resource.TRANSACTIONAL_ID): ({53}, {0}),
}


@pytest.mark.parametrize(("key", "version", "body", "missing"), CASES)
def test_a_right_that_is_missing_here_is_missing_there(sides, key, version, body, missing):
    from tests.integration.broker.test_rights import needed

    found = []
    for side in sides:
        side.grant(*(granting(need) for need in needed(key, version, body) if need != missing))
        found.append(set().union(*codes_of(side.guest.ask(key, version, body)).values()))
    here, there = found
    assert (here, there) == OTHERWISE.get((key, missing.resource), (here, here))


WITH_INSTEAD = [case for case in CASES if case.values[3].instead is not None]


@pytest.mark.parametrize(("key", "version", "body", "missing"), WITH_INSTEAD)
def test_another_right_that_is_enough_here_is_enough_there(sides, key, version, body, missing):
    from tests.integration.broker.test_rights import harmless

    instead = missing.instead
    if instead.resource is Resource.SOME_TOPIC:
        instead = instead._replace(resource=Resource.TOPIC, name="any")
    found = []
    for side in sides:
        side.grant(granting(instead))
        found.append(set().union(*codes_of(side.guest.ask(key, version, harmless(key, body))).values()))
    assert [codes & DENIALS for codes in found] == [set(), set()]
    assert all(found)


ALLOWED, DENIED = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
# ACLs (name, pattern, operation, permission, host), and whether the guest may describe, read and configure "open".
MIXED = [
    [("open", LITERAL, "READ", ALLOWED, GUEST)],
    [("op", PREFIXED, "WRITE", ALLOWED, GUEST)],
    [("*", LITERAL, "DELETE", ALLOWED, GUEST)],
    [("open", LITERAL, "ALTER_CONFIGS", ALLOWED, GUEST)],
    [("open", LITERAL, "DESCRIBE", ALLOWED, GUEST)],
    [("open", LITERAL, "ALL", ALLOWED, GUEST), ("*", LITERAL, "READ", DENIED, GUEST)],
    [("open", LITERAL, "ALL", ALLOWED, GUEST), ("o", PREFIXED, "DESCRIBE", DENIED, GUEST)],
    [("open", LITERAL, "READ", ALLOWED, GUEST), ("open", LITERAL, "ALL", DENIED, GUEST)],
    [("open", LITERAL, "READ", ALLOWED, GUEST), ("open", LITERAL, "WRITE", DENIED, GUEST)],
    [("opens", PREFIXED, "ALL", ALLOWED, GUEST), ("ope", LITERAL, "ALL", ALLOWED, GUEST)],
    [("open", PREFIXED, "CREATE", ALLOWED, GUEST)],
    [("*", PREFIXED, "ALL", ALLOWED, GUEST)],
    [("open", LITERAL, "READ", ALLOWED, "127.0.0.0/30")],
    [("open", LITERAL, "READ", ALLOWED, "127.0.0.0/31")],
    [("open", LITERAL, "READ", ALLOWED, "*"), ("open", LITERAL, "READ", DENIED, "127.0.0.3/32")],
]


@pytest.mark.parametrize("rows", MIXED, ids=str)
def test_acls_together_say_the_same(sides, rows):
    found = []
    for side in sides:
        side.admin.ask(ApiKey.DELETE_ACLS, 3, {"filters": [own.wanted()]})
        acls = [
            own.creation(
                resource_name=name, resource_pattern_type=kind, principal=ME, host=host, permission_type=permission,
                operation=Operation[operation],
            )
            for name, kind, operation, permission, host in rows
        ]  # fmt: skip
        assert {code for code, _ in own.create(side.admin, *EVERYTHING, *acls)} == {0}
        until(lambda side=side, acls=acls: len(own.describe(side.admin)) == len(EVERYTHING) + len(acls))
        topics = [{"name": "open", "topic_id": None}]
        asked = {"topics": topics, "allow_auto_topic_creation": False, "include_topic_authorized_operations": True}
        answer = side.guest.ask(ApiKey.METADATA, 9, asked | {"include_cluster_authorized_operations": True})
        (topic,) = answer.topics
        everything = side.guest.ask(ApiKey.METADATA, 9, asked | {"topics": None} | NO_CLUSTER)
        found.append(
            (
                topic.error_code, topic.topic_authorized_operations, answer.cluster_authorized_operations,
                {each.name for each in everything.topics} - {"__consumer_offsets", "__transaction_state"},
            )
        )  # fmt: skip
    assert found[0] == found[1]


NO_CLUSTER = {"include_cluster_authorized_operations": False}


@pytest.mark.parametrize(("fields", "said"), own.INVALID, ids=str)
def test_what_cannot_be_an_acl_is_refused_alike(sides, fields, said):
    is_long = len(fields.get("resource_name", "")) > 100  # it has no place in a Kafka's record
    if fields.get("resource_type") in (6, 99) or fields.get("operation") == 14 or is_long:
        pytest.skip("docs/security.md has these differences")
    ((here, our_words),), ((there, their_words),) = (own.create(side.admin, own.creation(**fields)) for side in sides)
    if "ANY" in said or "MATCH" in said:  # docs/security.md has this one, too
        assert (here, there, their_words) == (ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_SERVER_ERROR, None)
        return
    assert (here, their_words.startswith(our_words)) == (there, True), their_words


FILTERS = [
    {},
    {"resource_type_filter": Resource.TOPIC},
    {"resource_name_filter": "open", "pattern_type_filter": 2},
    {"resource_name_filter": "*"},
    {"resource_name_filter": "*", "pattern_type_filter": 2},
    {"resource_name_filter": "o", "pattern_type_filter": PREFIXED},
    {"principal_filter": ME, "host_filter": GUEST},
    {"operation": Operation.ALL},
    {"permission_type": Permission.DENY},
    {"resource_type_filter": 7},
]


def test_filters_find_and_delete_the_same(sides):
    acls = [
        own.creation(resource_name=name, resource_pattern_type=kind, principal=who, host=host, operation=operation)
        for name, kind in (("open", LITERAL), ("o", PREFIXED), ("a/b", PREFIXED))
        for who, host in ((ME, GUEST), ("User:a", "*"), ("Group:x", "::1"))
        for operation in (Operation.READ, Operation.ALL)
    ]
    for side in sides:
        side.admin.ask(ApiKey.DELETE_ACLS, 3, {"filters": [own.wanted()]})
        assert {code for code, _ in own.create(side.admin, *EVERYTHING, *acls, *acls)} == {0}
        until(lambda side=side: len(own.describe(side.admin)) == len(EVERYTHING) + len(acls))
    for fields in FILTERS:
        here, there = (own.describe(side.admin, **fields) for side in sides)
        assert here == there, fields
    gone = [{"resource_name_filter": "o"}, {"principal_filter": "User:a"}, {"resource_name_filter": "none"}]
    here, there = (own.delete(side.admin, *gone) for side in sides)
    assert here == there
    assert here[0][1]


OPTIONS = [
    *("--allow-principal", "User:alice", "--allow-host", "10.0.0.1", "--producer", "--idempotent"),
    *("--topic", "orders-", "--transactional-id", "orders-", "--resource-pattern-type", "prefixed"),
]


def test_kafkas_tool_does_here_what_ours_does_there(sides):
    here, there = sides
    alice = {"principal_filter": "User:alice"}

    def both(what, *options, theirs=(), ours=()):
        """Return what is printed by kafka-acls.sh at the broker here, and by ours at the Kafka."""
        tool, at = "org.apache.kafka.tools.AclCommand", "--bootstrap-server"
        theirs = run_tool(tool, f"--{what}", at, here.address, *theirs, *options).stdout
        return theirs, run_pylog("acls", what, at, there.address, *ours, *options).ok().out

    both("add", *OPTIONS)
    found = own.describe(here.admin, **alice)
    assert len(found) == 6
    until(lambda: own.describe(there.admin, **alice) == found)
    matching = "--topic", "orders-eu", "--resource-pattern-type", "match", "--principal", "User:alice"
    theirs, ours = both("list", *matching)
    assert (theirs.count("principal=User:alice, host=10.0.0.1"), ours.count("User:alice")) == (3, 3)
    both("remove", *OPTIONS, theirs=["--force"], ours=["--yes"])
    assert own.describe(here.admin, **alice) == set()
    until(lambda: own.describe(there.admin, **alice) == set())


def test_no_other_rights_are_needed_there(sides):
    """It does what all others are refused, but for topics that come or go, and ACLs of the admin."""
    from tests.integration.broker.test_rights import REQUESTS, harmless, needed

    refused = {}
    for key, version, named in REQUESTS:
        if key in WAITING or not is_there(key, version, named):
            continue
        body = {"filters": OF_OTHERS} if key is ApiKey.DELETE_ACLS else harmless(key, named)
        for side in sides:
            side.grant(*map(granting, (*needed(key, version, body), *OF_ROWS.get(key, ()))))
            answer = side.guest.ask(key, version, body)
            assert answer not in (CLOSED, SILENT), key
            codes = set().union(*codes_of(answer).values())
            if codes & DENIALS:
                refused.setdefault((key.name, version), []).append(codes)
    assert refused == {}


OF_ROWS = {ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (of_topic(Operation.DESCRIBE, "t"),)}  # handlers look at these
WAITING = {ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}  # their answers come late
