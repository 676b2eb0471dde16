"""`pylog acls` on brokers: the options of `kafka-acls.sh`, and what they stand for."""

import pytest

from replication.client.acls import ClusterAcl, create_acls, delete_acls, describe_acls
from replication.client.kafka_client import KafkaClient, KafkaError
from tests.support.commands import run_pylog
from tests.support.in_process import brokers_in_process

RIGHTS = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super_users": "User:ANONYMOUS",
}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    with brokers_in_process(tmp_path_factory.mktemp("acls"), (1,), **RIGHTS) as running:
        yield running


@pytest.fixture
def pylog(brokers):
    def run(*arguments):
        return run_pylog("acls", *arguments, "--bootstrap-server", brokers.bootstrap)

    yield run
    with KafkaClient(brokers.bootstrap) as client:
        client.run(delete_acls, [ClusterAcl()])


def shown(ran):
    keys = ("resource", "name", "pattern", "principal", "operation", "permission", "host")
    return {" ".join(row[key] for key in keys) for row in ran.ok().json}


ALICE = "--allow-principal", "User:alice"
BOTH = "--topic", "t", "--topic", "u"
ADDED = [
    (
        [*ALICE, "--producer", *BOTH, "--transactional-id", "x", "--idempotent"],
        {
            *(f"Topic {t} Literal User:alice {o} Allow *" for t in "tu" for o in ("Write", "Describe", "Create")),
            "TransactionalId x Literal User:alice Write Allow *",
            "TransactionalId x Literal User:alice Describe Allow *",
            "Cluster kafka-cluster Literal User:alice IdempotentWrite Allow *",
        },
    ),
    (
        [*ALICE, "--consumer", "--topic", "t-", "--group", "g-", "--resource-pattern-type", "prefixed"],
        {
            "Topic t- Prefixed User:alice Read Allow *",
            "Topic t- Prefixed User:alice Describe Allow *",
            "Group g- Prefixed User:alice Read Allow *",
        },
    ),
    (
        [*ALICE, "--producer", "--consumer", "--topic", "t", "--group", "g"],
        {
            *(f"Topic t Literal User:alice {o} Allow *" for o in ("Write", "Describe", "Create", "Read")),
            "Group g Literal User:alice Read Allow *",
        },
    ),
    (
        [*ALICE, "--deny-principal", "User:*", "--deny-host", "10.0.0.0/8", "--allow-host", "::1", "--topic", "*"],
        {"Topic * Literal User:alice All Allow ::1", "Topic * Literal User:* All Deny 10.0.0.0/8"},
    ),
    (
        [*ALICE, "--operation", "describe", "--operation", "CLUSTER_ACTION", "--cluster"],
        {f"Cluster kafka-cluster Literal User:alice {o} Allow *" for o in ("Describe", "ClusterAction")},
    ),
]


@pytest.mark.parametrize(("options", "expected"), ADDED, ids=[" ".join(options) for options, _ in ADDED])
def test_acls_are_added_listed_and_removed(pylog, options, expected):
    ran = pylog("add", *options, "--output", "json")
    assert shown(ran) == expected
    assert f"added {len(expected)} ACL" in ran.err
    assert shown(pylog("list", "--output", "json")) == expected
    assert shown(pylog("remove", *options, "--output", "json")) == expected
    assert shown(pylog("list", "--output", "json")) == set()


def test_acls_are_listed_and_removed_by_what_they_concern(pylog):
    pylog("add", *ALICE, "--topic", "orders", "--operation", "Read").ok()
    pylog("add", *ALICE, "--topic", "o", "--resource-pattern-type", "prefixed").ok()
    pylog("add", "--allow-principal", "User:bob", "--topic", "*", "--operation", "Read").ok()

    def names(*options):
        return {row["name"] for row in pylog("list", *options, "--output", "json").ok().json}

    assert names("--topic", "orders") == {"orders"}
    assert names("--topic", "orders", "--resource-pattern-type", "match") == {"orders", "o", "*"}
    assert names("--topic", "o", "--resource-pattern-type", "any") == {"o"}
    assert names("--principal", "User:bob") == {"*"}
    assert names("--group", "orders") == set()
    table = pylog("list", "--topic", "orders").ok().lines
    assert [line.split() for line in table] == [
        ["RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "OPERATION", "PERMISSION", "HOST"],
        ["Topic", "orders", "Literal", "User:alice", "Read", "Allow", "*"],
    ]
    ran = pylog("remove", "--topic", "orders", "--resource-pattern-type", "match")
    assert "removed 3 ACLs" in ran.ok().err


WRONG = [
    (["add", "--topic", "t"], "--allow-principal or --deny-principal"),
    (["add", *ALICE], "give a resource"),
    (["add", "--allow-principal", "alice", "--topic", "t"], "'alice' is no principal"),
    (["add", *ALICE, "--topic", "t", "--operation", "Fly"], "no operation 'Fly'"),
    (["add", *ALICE, "--topic", "t", "--operation", "Any"], "no operation 'Any'"),
    (["add", *ALICE, "--group", "g", "--operation", "Write"], "no Write of a Group"),
    (["add", *ALICE, "--topic", "t", "--allow-host", "db1"], "'db1' is no host"),
    (["add", "--allow-host", "10.0.0.1", "--topic", "t"], "--allow-host needs --allow-principal"),
    (["add", *ALICE, "--producer", "--group", "g"], "--producer needs a --topic"),
    (["add", *ALICE, "--consumer", "--topic", "t"], "--consumer needs a --topic and a --group"),
    (["add", *ALICE, "--consumer", "--topic", "t", "--group", "g", "--cluster"], "--consumer takes no --cluster"),
    (["add", *ALICE, "--idempotent", "--topic", "t"], "--idempotent goes with --producer"),
    (["add", *ALICE, "--producer", "--topic", "t", "--operation", "Read"], "leave --operation out"),
    (["add", "--deny-principal", "User:a", "--producer", "--topic", "t"], "only allow"),
    (["add", *ALICE, "--topic", "t", "--resource-pattern-type", "match"], "'match' is not one of"),
    (["remove"], "give a resource"),
]


@pytest.mark.parametrize(("options", "said"), WRONG, ids=lambda value: " ".join(value)[:60])
def test_options_that_do_not_go_together_are_wrong_usage(pylog, options, said):
    ran = pylog(*options)
    assert ran.code == 2
    assert said in ran.err


def test_a_client_creates_describes_and_deletes_acls(brokers):
    acl = ClusterAcl("topic", "t", "literal", "User:alice", "describe_configs", "ALLOW", "*")
    wrong = acl._replace(principal="alice")
    with KafkaClient(brokers.bootstrap) as client:
        done = client.run(create_acls, [acl, wrong])
        assert done[acl] is None
        assert done[wrong].code.name == "INVALID_REQUEST"
        named = ClusterAcl("Topic", "t", "Literal", "User:alice", "DescribeConfigs", "Allow", "*")
        assert client.run(describe_acls) == [named]
        with pytest.raises(ValueError, match="none of Any, Topic"):
            client.run(describe_acls, ClusterAcl("Table"))
        assert client.run(delete_acls, [ClusterAcl(principal="User:alice"), ClusterAcl("Topic")]) == [named]
        assert client.run(describe_acls) == []


def test_brokers_without_an_authorizer_say_so_in_one_line(tmp_path):
    with brokers_in_process(tmp_path, (1,)) as running:
        for command in (["list"], ["add", *ALICE, "--topic", "t"], ["remove", "--topic", "t"]):
            ran = run_pylog("acls", *command, "--bootstrap-server", running.bootstrap)
            assert "No Authorizer is configured" in ran.failed()
        with KafkaClient(running.bootstrap) as client, pytest.raises(KafkaError):
            client.run(describe_acls)
