"""ACLs at brokers: what they allow, and how they are described, created and deleted, by whichever broker is asked."""

import asyncio
import json
import logging
import threading

import pytest

from replication.broker import acl_changes, acl_nodes
from replication.coordination import open_tree
from replication.coordination.tree import Create, Delete
from replication.errors import ErrorCode
from replication.network.server import Server
from replication.protocol.apis import ApiKey
from replication.security.access import (
    Context,
    Operation,
    Principal,
    Resource,
    of_cluster,
    of_group,
    of_topic,
)
from replication.security.acl import EVERYBODY, Entry, Filter, Pattern, PatternType, Permission
from tests.support.asker import Asker, until
from tests.support.in_process import brokers_in_process

RIGHTS = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super_users": "User:ANONYMOUS; User:CN=ops,O=example",
}
ANY = 1
NAMES = ["pylog-sink/", "a/b", "..", ".", "*", "%", "100%41", "a\nb", "\x7f", "Ü∞\U0001f600", "a:b", " ", "zookeeper"]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    with brokers_in_process(tmp_path_factory.mktemp("acls"), (1, 2), **RIGHTS) as running:
        yield running


@pytest.fixture
def askers(brokers):
    with Asker(str(brokers.brokers[1].endpoint)) as one, Asker(str(brokers.brokers[2].endpoint)) as other:
        yield one, other
        delete(one, {})
        for asker in (one, other):
            until(lambda asker=asker: not describe(asker))


def creation(**fields):
    row = {
        "resource_type": Resource.TOPIC, "resource_name": "t", "resource_pattern_type": PatternType.LITERAL,
        "principal": "User:alice", "host": "*", "operation": Operation.READ, "permission_type": Permission.ALLOW,
    }  # fmt: skip
    return row | fields


def wanted(**fields):
    row = {
        "resource_type_filter": ANY, "resource_name_filter": None, "pattern_type_filter": ANY,
        "principal_filter": None, "host_filter": None, "operation": ANY, "permission_type": ANY,
    }  # fmt: skip
    return row | fields


def create(asker, *rows, version=3):
    return [
        (r.error_code, r.error_message) for r in asker.ask(ApiKey.CREATE_ACLS, version, {"creations": rows}).results
    ]


def describe(asker, version=3, **fields):
    found = asker.ask(ApiKey.DESCRIBE_ACLS, version, wanted(**fields))
    assert found.error_code == 0, found.error_message
    return {
        (row.resource_type, row.resource_name, row.pattern_type, e.principal, e.host, e.operation, e.permission_type)
        for row in found.resources
        for e in row.acls
    }


def delete(asker, *filters, version=3):
    body = {"filters": [wanted(**fields) for fields in filters]}
    rows = asker.ask(ApiKey.DELETE_ACLS, version, body).filter_results
    return [(row.error_code, {(m.resource_name, m.principal) for m in row.matching_acls}) for row in rows]


def may(broker, need, name="alice", host="10.0.0.1"):
    return not broker.authorizer.refused(Context(host, 7, Principal(name)), lambda need: [need], need)


READ_T = of_topic(Operation.READ, "t")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_created_described_and_deleted(askers, version):
    rows = creation(), creation(principal="User:bob", operation=Operation.WRITE), creation(resource_name="u")
    assert create(askers[0], *rows, rows[0], version=version) == [(0, None)] * 4
    for asker in askers:
        until(lambda asker=asker: len(describe(asker, version)) == 3)
    assert describe(askers[0], version, principal_filter="User:bob") == {
        (Resource.TOPIC, "t", PatternType.LITERAL, "User:bob", "*", Operation.WRITE, Permission.ALLOW)
    }
    found = delete(askers[1], {"resource_name_filter": "t"}, {"principal_filter": "User:alice"}, version=version)
    assert found == [(0, {("t", "User:alice"), ("t", "User:bob")}), (0, {("t", "User:alice"), ("u", "User:alice")})]
    for asker in askers:
        until(lambda asker=asker: not describe(asker, version))


def test_every_broker_goes_by_a_change_and_the_one_that_was_asked_at_once(brokers, askers):
    one, other = brokers.brokers[1], brokers.brokers[2]
    assert not may(one, READ_T)
    create(askers[0], creation())
    assert may(one, READ_T)
    until(lambda: may(other, READ_T))
    create(askers[1], creation(permission_type=Permission.DENY, host="10.0.0.0/24"))
    assert not may(other, READ_T)
    until(lambda: not may(one, READ_T))
    assert may(one, READ_T, host="10.0.1.1")
    delete(askers[0], {"permission_type": Permission.DENY})
    assert may(one, READ_T)


@pytest.mark.parametrize("kind", PatternType)
@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_a_name_of_any_kind_is_kept_by_the_tree_and_told_to_all_brokers(brokers, askers, name, kind):
    assert create(askers[0], creation(resource_name=name, resource_pattern_type=kind)) == [(0, None)]
    expected = (Resource.TOPIC, name, kind, "User:alice", "*", Operation.READ, Permission.ALLOW)
    assert describe(askers[0]) == {expected}
    until(lambda: describe(askers[1]) == {expected})
    until(lambda: may(brokers.brokers[2], of_topic(Operation.READ, name)))
    pattern = Pattern(Resource.TOPIC, name, kind)
    path = acl_nodes.path_of(pattern)
    assert path.count("/") == (3 if kind is PatternType.LITERAL else 4)
    assert acl_nodes.decode_name(path.rpartition("/")[2]) == name
    tree = brokers.brokers[1].lifecycle.tree
    assert pattern in brokers.do(acl_nodes.read_all(tree))
    assert delete(askers[1], {"resource_name_filter": name}) == [(0, {(name, "User:alice")})]
    assert brokers.do(tree.get(path)) is None


def test_nodes_are_those_of_kafka(brokers, askers):
    tree = brokers.brokers[1].lifecycle.tree
    create(
        askers[0],
        creation(resource_type=Resource.TRANSACTIONAL_ID, operation=Operation.DESCRIBE_CONFIGS, host="1.2.3.4"),
        creation(resource_name="p-", resource_pattern_type=PatternType.PREFIXED, permission_type=Permission.DENY),
    )
    row = {"principal": "User:alice", "permissionType": "Allow", "operation": "DescribeConfigs", "host": "1.2.3.4"}
    node = brokers.do(tree.get("/kafka-acl/TransactionalId/t"))
    assert json.loads(node.data) == {"version": 1, "acls": [row]}
    node = brokers.do(tree.get("/kafka-acl-extended/prefixed/Topic/p-"))
    row = {"principal": "User:alice", "permissionType": "Deny", "operation": "Read", "host": "*"}
    assert json.loads(node.data) == {"version": 1, "acls": [row]}
    last = brokers.do(tree.children("/kafka-acl-changes"))[-1]
    assert last.startswith("acl_changes_")
    assert brokers.do(tree.get(f"/kafka-acl-changes/{last}")).data == b"TRANSACTIONAL_ID:t"
    last = brokers.do(tree.children("/kafka-acl-extended-changes"))[-1]
    told = json.loads(brokers.do(tree.get(f"/kafka-acl-extended-changes/{last}")).data)
    assert told == {"version": 1, "resourceType": "TOPIC", "name": "p-", "patternType": "PREFIXED"}


INVALID = [
    ({"resource_type": 6}, "delegation tokens"),
    ({"resource_type": ANY}, "Invalid resourceType ANY"),
    ({"resource_type": 99}, "Invalid resourceType UNKNOWN"),
    ({"resource_pattern_type": 2}, "Invalid patternType MATCH"),
    ({"resource_pattern_type": ANY}, "Invalid patternType ANY"),
    ({"operation": ANY}, "Invalid operation ANY"),
    ({"operation": 14}, "Invalid operation"),
    ({"permission_type": ANY}, "Invalid permissionType ANY"),
    ({"resource_name": ""}, "Invalid empty resource name"),
    ({"resource_type": Resource.CLUSTER, "resource_name": "c"}, "The only valid name for the CLUSTER resource"),
    ({"principal": "alice"}, "no colon"),
    ({"host": ""}, "Host pattern cannot be null or empty"),
    ({"host": "10.0.0.0/33"}, "Invalid CIDR notation '10.0.0.0/33'"),
    ({"host": "a/8"}, "Invalid CIDR notation"),
    ({"resource_name": "n" * 32_768}, "more than 32,767 bytes"),
]


@pytest.mark.parametrize(("fields", "said"), INVALID, ids=str)
def test_what_cannot_be_an_acl_is_refused_beside_others_that_are_created(askers, fields, said):
    (code, message), other = create(askers[0], creation(**fields), creation())
    assert (code, other) == (ErrorCode.INVALID_REQUEST, (0, None))
    assert said in message
    assert len(describe(askers[0])) == 1


@pytest.mark.parametrize("fields", [{"resource_type_filter": 0}, {"pattern_type_filter": 9}, {"operation": 0}], ids=str)
def test_a_filter_that_nobody_knows_selects_nothing_and_says_so(askers, fields):
    create(askers[0], creation())
    assert askers[0].ask(ApiKey.DESCRIBE_ACLS, 3, wanted(**fields)).error_code == ErrorCode.INVALID_REQUEST
    assert [code for code, _ in delete(askers[0], fields, {"resource_name_filter": "none"})] == [42, 0]
    assert len(describe(askers[0])) == 1


# tests/unit/replication/broker/test_acl_nodes.py has all kinds.
MALFORMED = [
    b"",
    b"no JSON",
    b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Deny","operation":"Read","host":"10.0.0.0/33"}]}',
]


@pytest.mark.parametrize("data", MALFORMED, ids=str)
def test_a_node_that_cannot_be_read_denies_and_says_so_in_one_line(brokers, askers, caplog, data):
    one, tree = brokers.brokers[1], brokers.brokers[1].lifecycle.tree
    create(askers[0], creation(resource_name="*"), creation())
    assert may(one, READ_T)
    caplog.set_level(logging.ERROR)
    brokers.do(tree.set("/kafka-acl/Topic/t", data))
    brokers.do(tree.create("/kafka-acl-changes/acl_changes_", b"Topic:t", sequence=True))
    until(lambda: not may(one, READ_T))
    assert may(one, of_topic(Operation.READ, "u"))
    assert may(one, READ_T, name="ANONYMOUS"), "a super user may"
    said = [r.getMessage() for r in caplog.records if "/kafka-acl/Topic/t" in r.getMessage()]
    assert said
    assert not any("\n" in line for line in said)
    ((code, message),) = create(askers[0], creation())
    assert (code, "cannot be read" in message) == (ErrorCode.INVALID_REQUEST, True)
    assert delete(askers[0], {"resource_name_filter": "t"}) == [(0, {("t", EVERYBODY)})]
    assert may(one, READ_T)


def test_a_broker_that_missed_notices_reads_all_again(brokers, askers):
    """Here they are deleted under its hands, as those of a broker that was away for a thousand of them."""
    tree = brokers.brokers[1].lifecycle.tree
    create(askers[0], creation())
    until(lambda: may(brokers.brokers[2], READ_T))
    entries = [Entry("User:alice", Operation.READ, Permission.DENY)]
    brokers.do(tree.set("/kafka-acl/Topic/t", acl_nodes.encode(entries)))
    for name in brokers.do(tree.children("/kafka-acl-changes")):
        brokers.do(tree.delete(f"/kafka-acl-changes/{name}"))
    brokers.do(tree.create("/kafka-acl-changes/acl_changes_", b"Topic:other", sequence=True))
    for broker in brokers.brokers.values():
        until(lambda broker=broker: not may(broker, READ_T))


@pytest.mark.parametrize("stray", ["zzz", "acl_changes_", "acl_changes_99999999999", "acl_changes_x"])
def test_a_node_among_the_notices_that_is_none_hides_no_change(brokers, askers, stray):
    tree = brokers.brokers[1].lifecycle.tree
    path = f"/kafka-acl-changes/{stray}"
    brokers.do(tree.create(path, b"TOPIC:t"))
    for permission in Permission:
        create(askers[0], creation(permission_type=permission, operation=Operation.ALL))
        until(lambda: len(describe(askers[1])) == 1)
        assert may(brokers.brokers[2], READ_T) is (permission is Permission.ALLOW)
        delete(askers[0], {})
        until(lambda: not describe(askers[1]))
    brokers.do(tree.delete(path))


def test_brokers_follow_changes_after_all_nodes_of_acls_were_deleted(brokers, askers):
    tree = brokers.brokers[1].lifecycle.tree
    create(askers[0], creation())
    until(lambda: may(brokers.brokers[2], READ_T))

    async def delete_below(path):
        for name in await tree.children(path):
            await delete_below(f"{path}/{name}")
        await tree.delete(path)

    for path in ("/kafka-acl", "/kafka-acl-extended", *acl_nodes.CHANGES):
        brokers.do(delete_below(path))
    for broker in brokers.brokers.values():
        until(lambda broker=broker: not may(broker, READ_T))
    create(askers[1], creation())
    for broker in brokers.brokers.values():
        until(lambda broker=broker: may(broker, READ_T))
    create(askers[0], creation(permission_type=Permission.DENY))
    until(lambda: not may(brokers.brokers[2], READ_T))


def test_a_name_that_is_no_percent_encoding_denies_whatever_is_added_beside_it(brokers, askers):
    """A tool of Kafka may have written it, for a group that is called so."""
    tree, path = brokers.brokers[1].lifecycle.tree, "/kafka-acl/Group/100%"
    brokers.do(tree.create(path, acl_nodes.encode([Entry("User:alice", Operation.READ)])))
    brokers.do(tree.create("/kafka-acl-changes/acl_changes_", b"Group:100%", sequence=True))
    pattern, need = Pattern(Resource.GROUP, "100%"), of_group(Operation.READ, "100%")
    for broker in brokers.brokers.values():
        until(lambda broker=broker: broker.authorizer.rules.selected(pattern, Filter()))
    assert create(askers[0], creation(resource_type=Resource.GROUP, resource_name="100%")) == [(0, None)]
    assert not may(brokers.brokers[1], need)
    delete(askers[0], {"resource_name_filter": "100%"})
    assert not may(brokers.brokers[1], need)
    assert describe(askers[0], permission_type=Permission.DENY)
    brokers.do(tree.delete(path))
    brokers.do(tree.create("/kafka-acl-changes/acl_changes_", b"Group:100%", sequence=True))
    for asker in askers:
        until(lambda asker=asker: not describe(asker))


def test_acls_that_cannot_be_deleted_say_so_beside_those_that_are(brokers, askers):
    """Somebody has put a node below that of an ACL."""
    tree, below = brokers.brokers[1].lifecycle.tree, "/kafka-acl/Topic/t/below"
    create(askers[0], creation(), creation(resource_name="u"))
    brokers.do(tree.create(below))
    (row,) = askers[0].ask(ApiKey.DELETE_ACLS, 3, {"filters": [wanted()]}).filter_results
    assert (row.error_code, {m.resource_name for m in row.matching_acls if m.error_code != 0}) == (0, {"t"})
    assert {m.resource_name for m in row.matching_acls} == {"t", "u"}
    assert {name for _, name, *_ in describe(askers[0])} == {"t"}
    brokers.do(tree.delete(below))


def test_changes_of_one_pattern_by_two_brokers_at_once_are_all_kept(brokers, askers):
    """Each broker is asked by a thread, so that their writes of the one node cross."""
    names = [[f"User:{number}-{broker}" for number in range(20)] for broker in (1, 2)]

    def add(asker, principals):
        for principal in principals:
            assert create(asker, creation(principal=principal)) == [(0, None)]

    threads = [threading.Thread(target=add, args=each) for each in zip(askers, names, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    node = brokers.do(acl_nodes.read(brokers.brokers[1].lifecycle.tree, [Pattern(Resource.TOPIC, "t")]))
    assert {entry.principal for entry in node[Pattern(Resource.TOPIC, "t")].entries} == {*names[0], *names[1]}


class Crossed:
    """A tree in which somebody else makes a change between the first look and the first write."""

    def __init__(self, tree, other):
        self._tree, self._other = tree, other

    def __getattr__(self, name):
        return getattr(self._tree, name)

    async def write_batch(self, multis):
        other, self._other = self._other, None
        if other is not None:
            assert await acl_nodes.change(self._tree, other) == {}
        return await self._tree.write_batch(multis)


A, B = (Entry(f"User:{name}", Operation.READ) for name in ("a", "b"))
CROSSING = [
    # before, what one makes of it, what the other makes of it, after both
    ({A}, lambda known: known - {A}, lambda known: known | {B}, {B}),
    ({A}, lambda known: known | {B}, lambda known: known - {A}, {B}),
    ({A, B}, lambda known: known - {A}, lambda known: known - {B}, set()),
    (set(), lambda known: known | {A}, lambda known: known | {B}, {A, B}),
    ({A}, lambda known: known - {A}, lambda known: known - {A}, set()),
]


@pytest.mark.parametrize(("before", "mine", "theirs", "after"), CROSSING)
def test_two_changes_that_cross_are_both_made(brokers, askers, before, mine, theirs, after):
    pattern, tree = Pattern(Resource.TOPIC, "t"), brokers.brokers[1].lifecycle.tree

    def changes(make):
        return {pattern: lambda known: frozenset(make(known.entries))}

    async def both():
        await acl_nodes.change(tree, changes(lambda known: before))
        assert await acl_nodes.change(Crossed(tree, changes(theirs)), changes(mine)) == {}
        return (await acl_nodes.read(tree, [pattern]))[pattern].entries

    assert brokers.do(both()) == after
    until(lambda: not describe(askers[0]) if not after else len(describe(askers[0])) == len(after))


def test_a_broker_may_do_everything_and_super_users_too(brokers):
    one = brokers.brokers[1]
    assert may(one, of_cluster(Operation.CLUSTER_ACTION), name="ANONYMOUS")
    assert may(one, of_cluster(Operation.CLUSTER_ACTION), name="CN=ops,O=example")
    assert not may(one, of_cluster(Operation.CLUSTER_ACTION))


def test_acls_outlast_a_restart_and_rule_before_the_first_request(tmp_path, monkeypatch):
    allowed = []

    async def start(server, *where, **more):
        refused = server.pipeline.authorizer.refused
        allowed.append(not refused(Context("10.0.0.1", 7, Principal("alice")), lambda need: [need], READ_T))
        return await started(server, *where, **more)

    started = Server.start
    monkeypatch.setattr(Server, "start", start)
    with brokers_in_process(tmp_path, (1,), **RIGHTS) as running, Asker(running.bootstrap) as asker:
        create(asker, creation(), creation(resource_name="p-", resource_pattern_type=PatternType.PREFIXED))
    with brokers_in_process(tmp_path, (1,), **RIGHTS) as running, Asker(running.bootstrap) as asker:
        assert may(running.brokers[1], READ_T)
        assert may(running.brokers[1], of_topic(Operation.READ, "p-1"))
        assert len(describe(asker)) == 2
    assert (allowed[0], allowed[-1]) == (False, True), "before it listens"


def test_a_notice_that_came_and_went_between_two_looks_is_not_missed(tmp_path):
    """The first of all notices is gone, and another one is there, when the broker looks."""
    with brokers_in_process(tmp_path, (1,), **RIGHTS) as running:
        broker, folder = running.brokers[1], "/kafka-acl-extended-changes"
        data = acl_nodes.encode([Entry("User:alice", Operation.READ)])
        told = [acl_nodes.encode_notice(Pattern(Resource.TOPIC, name, PatternType.PREFIXED)) for name in ("t", "u")]
        steps = [
            Create("/kafka-acl-extended/prefixed/Topic/t", data),
            Create(f"{folder}/acl_changes_", told[0], sequence=True),
            Delete(f"{folder}/acl_changes_0000000000"),
            Create(f"{folder}/acl_changes_", told[1], sequence=True),
        ]
        assert running.do(broker.lifecycle.tree.multi(steps))[1].path == f"{folder}/acl_changes_0000000000"
        until(lambda: may(broker, READ_T))


def test_old_notices_are_deleted_and_later_ones_are_followed(brokers, askers, monkeypatch):
    monkeypatch.setattr(acl_changes, "NOTICES_KEPT", 3)
    tree = brokers.brokers[1].lifecycle.tree
    for number in range(12):
        create(askers[0], creation(principal=f"User:{number}"))
    until(lambda: len(brokers.do(tree.children("/kafka-acl-changes"))) <= 6)
    create(askers[0], creation())
    until(lambda: may(brokers.brokers[2], READ_T))


def test_acls_that_are_more_than_a_node_holds_are_refused_beside_others(askers):
    large = creation(principal="User:" + "a" * 700_000)
    (code, said), other = create(askers[0], large, creation(resource_name="u"))
    assert (code, "more than a node holds" in said, other) == (ErrorCode.INVALID_REQUEST, True, (0, None))


def begun_with(directory, acls):
    """Make a tree with these ACLs of clients without a name: pattern -> operation and host."""

    async def fill():
        tree = await open_tree(f"sqlite:{directory / 'tree.db'}", on_session=lambda event: None)
        await acl_nodes.prepare(tree)
        nodes = {each: frozenset({Entry("User:ANONYMOUS", *right)}) for each, right in acls.items()}
        changes = {each: lambda known, entries=entries: entries for each, entries in nodes.items()}
        assert await acl_nodes.change(tree, changes) == {}
        await tree.close()

    asyncio.run(fill())


def test_hosts_decide_for_a_client_without_a_name(tmp_path):
    """Nobody is a super user here: the ACLs are there before the broker is."""
    hosts = {Resource.TOPIC: "127.0.0.0/8", Resource.GROUP: "10.0.0.1"}
    begun_with(
        tmp_path,
        {Pattern(kind, "*"): (Operation.DESCRIBE, Permission.ALLOW, host) for kind, host in hosts.items()},
    )
    rights = RIGHTS | {"super_users": "User:ops"}
    with brokers_in_process(tmp_path, (1,), **rights) as running, Asker(running.bootstrap) as asker:
        asked = {"topics": [{"name": "t", "topic_id": None}], "allow_auto_topic_creation": False}
        found = asker.ask(ApiKey.METADATA, 9, asked | OPERATIONS)
        assert found.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        groups = asker.ask(ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["g"], "include_authorized_operations": False})
        assert groups.groups[0].error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        ((code, _),) = create(asker, creation())
        assert code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert asker.ask(ApiKey.DESCRIBE_ACLS, 3, wanted()).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert delete(asker, {}) == [(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, set())]


OPERATIONS = {"include_topic_authorized_operations": False, "include_cluster_authorized_operations": False}


def test_without_an_authorizer_there_are_no_acls(tmp_path):
    with brokers_in_process(tmp_path, (1,)) as running, Asker(running.bootstrap) as asker:
        assert create(asker, creation()) == [(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")]
        found = asker.ask(ApiKey.DESCRIBE_ACLS, 3, wanted())
        assert (found.error_code, found.error_message) == (54, "No Authorizer is configured on the broker")
        assert delete(asker, {}) == [(ErrorCode.SECURITY_DISABLED, set())]
        assert running.do(running.brokers[1].lifecycle.tree.get("/kafka-acl")) is None
