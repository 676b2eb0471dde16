"""The rules of ACLs beside an evaluator that goes through all of them, one after the other, as Kafka's words say."""

import ipaddress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from replication.security.access import BROKER, NOTHING, Context, Need, Operation, Principal, Resource, of_cluster
from replication.security.acl import ANYTHING, EVERYBODY, Acl, Entry, Filter, Pattern, PatternType, Permission, concerns
from replication.security.acl_authorizer import AclAuthorizer
from replication.security.acl_rules import Client, Rules, Verdict

RESOURCES = [Resource.TOPIC, Resource.GROUP]
NAMES = ["a", "ab", "abc", "b", "*", "hardcode", "a/b"]
PRINCIPALS = ["User:alice", "User:bob", "Group:alice"]
HOSTS = ["10.0.0.1", "10.0.1.1", "::1"]
CONTEXTS_KEPT, ANSWERS_KEPT = 100, 1000  # few, so that tests reach them soon
HOSTS_OF_ACLS = [*HOSTS, "*", "10.0.0.0/24", "10.0.0.9/16", "0:0:0:0:0:0:0:1", "::/0", "name", "10.0.0.0/99"]

patterns = st.builds(Pattern, st.sampled_from(RESOURCES), st.sampled_from(NAMES), st.sampled_from(PatternType))
entries = st.builds(
    Entry,
    st.sampled_from([*PRINCIPALS, EVERYBODY]),
    st.sampled_from(Operation),
    st.sampled_from(Permission),
    st.sampled_from(HOSTS_OF_ACLS),
)
all_acls = st.lists(st.builds(Acl, patterns, entries), max_size=12)
clients = st.builds(Client, st.sampled_from(PRINCIPALS), st.sampled_from(HOSTS))
operations = st.sampled_from([each for each in Operation if each is not Operation.ALL])

IMPLIES = {
    (Operation.READ, Operation.DESCRIBE), (Operation.WRITE, Operation.DESCRIBE), (Operation.DELETE, Operation.DESCRIBE),
    (Operation.ALTER, Operation.DESCRIBE), (Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS),
}  # fmt: skip


def rules_of(acls):
    rules = Rules()
    for pattern in {acl.pattern for acl in acls}:
        rules.put(pattern, [acl.entry for acl in acls if acl.pattern == pattern])
    return rules


def is_of(entry, client):
    if entry.principal not in (client.principal, "User:*"):
        return False
    if entry.host in ("*", client.host):
        return True
    try:
        return ipaddress.ip_address(client.host) in ipaddress.ip_network(entry.host, strict=False)
    except ValueError:
        return False


def is_about(pattern, resource, name):
    if pattern.resource != resource:
        return False
    if pattern.kind == PatternType.PREFIXED:
        return name[: len(pattern.name)] == pattern.name
    return pattern.name in ("*", name)


def naive(acls, client, operation, resource, name):
    about = [acl.entry for acl in acls if is_about(acl.pattern, resource, name)]
    mine = [entry for entry in about if is_of(entry, client)]
    if any(e.permission == Permission.DENY and e.operation in (operation, Operation.ALL) for e in mine):
        return Verdict.DENIED
    allowing = [e.operation for e in mine if e.permission == Permission.ALLOW]
    if any(each in (operation, Operation.ALL) or (each, operation) in IMPLIES for each in allowing):
        return Verdict.ALLOWED
    return Verdict.DENIED if about else Verdict.UNSAID


@given(all_acls, clients, operations, st.sampled_from(RESOURCES), st.sampled_from([*NAMES, "", "abcd", "z"]))
def test_rules_say_what_all_acls_say_one_by_one(acls, client, operation, resource, name):
    assert rules_of(acls).verdict(client, operation, resource, name) is naive(acls, client, operation, resource, name)


@given(all_acls, all_acls, clients, operations, st.sampled_from(NAMES))
def test_rules_that_were_others_before_say_the_same(before, acls, client, operation, name):
    rules = rules_of(before)
    for pattern in {acl.pattern for acl in [*before, *acls]}:
        rules.put(pattern, [acl.entry for acl in acls if acl.pattern == pattern])
    assert len(rules) == len(set(acls))
    said = rules.verdict(client, operation, Resource.TOPIC, name)
    assert said is naive(acls, client, operation, Resource.TOPIC, name)


FEW = [
    Entry("User:alice", operation, permission)
    for operation in (Operation.ALL, Operation.READ, Operation.DESCRIBE, Operation.ALTER_CONFIGS)
    for permission in Permission
]


@pytest.mark.parametrize("first", FEW, ids=str)
def test_two_acls_say_together_what_both_say(first):
    client = Client("User:alice", "10.0.0.1")
    for second in FEW:
        for name, kind in (("a", PatternType.LITERAL), ("*", PatternType.LITERAL), ("a", PatternType.PREFIXED)):
            acls = [Acl(Pattern(Resource.TOPIC, "a"), first), Acl(Pattern(Resource.TOPIC, name, kind), second)]
            rules = rules_of(acls)
            for operation in set(Operation) - {Operation.ALL}:
                said = rules.verdict(client, operation, Resource.TOPIC, "a")
                assert said is naive(acls, client, operation, Resource.TOPIC, "a"), (second, name, kind, operation)


def test_a_prefix_that_goes_leaves_others_of_its_length():
    rules, client = Rules(), Client("User:alice", "10.0.0.1")
    patterns = [Pattern(Resource.TOPIC, name, PatternType.PREFIXED) for name in ("ab", "cd", "c")]
    for pattern in patterns:
        rules.put(pattern, [Entry("User:alice", Operation.READ)])
    rules.put(patterns[0], ())
    said = [rules.verdict(client, Operation.READ, Resource.TOPIC, name) for name in ("abc", "cde", "c")]
    assert said == [Verdict.UNSAID, Verdict.ALLOWED, Verdict.ALLOWED]


@given(all_acls, clients, operations)
def test_a_client_that_may_do_it_on_some_name_may_do_it_somewhere_unless_two_denials_share_what_is_allowed(
    acls, client, operation
):
    """The names are all that patterns of these ACLs can tell apart, if nothing is implied: Kafka looks at no more."""
    plain = [acl for acl in acls if acl.entry.permission is Permission.DENY or acl.entry.operation in (operation, 2)]
    names = {pattern.name + end for pattern, _ in plain for end in ("", "\0")} | {"\0", "hardcode"}
    names -= {"*"}
    said = [naive(plain, client, operation, Resource.TOPIC, name) for name in names]
    anywhere = rules_of(plain).verdict_anywhere(client, operation, Resource.TOPIC)
    if Verdict.ALLOWED in said:
        assert anywhere is Verdict.ALLOWED
    if anywhere is Verdict.ALLOWED:
        assert any(
            acl.entry.permission is Permission.ALLOW
            and is_of(acl.entry, client)
            and acl.pattern.resource == Resource.TOPIC
            for acl in plain
        )
    if anywhere is Verdict.UNSAID:
        assert Verdict.UNSAID in said


SOMEWHERE = [
    # allowed, denied, may write somewhere
    ([("a", 3)], [], True),
    ([("a", 3)], [("a", 3)], False),
    ([("a", 3)], [("a", 4)], False),
    ([("ab", 4)], [("a", 4)], False),
    ([("ab", 4)], [("ab", 4)], False),
    ([("ab", 4)], [("ab", 3)], True),
    ([("a", 4)], [("ab", 4)], True),
    ([("*", 3)], [("a", 4)], True),
    ([("*", 3)], [("*", 3)], False),
    ([("a", 3), ("b", 3)], [("a", 3)], True),
    ([("*", 3)], [("hard", 4)], True),
    ([("a", 3)], [("*", 3)], False),
    ([("a", 4)], [("*", 3), ("b", 4)], False),
    ([], [], False),
]


@pytest.mark.parametrize(("allowed", "denied", "expected"), SOMEWHERE)
def test_a_right_somewhere_is_one_that_no_denial_covers(allowed, denied, expected):
    acls = [
        Acl(Pattern(Resource.TOPIC, name, PatternType(kind)), Entry("User:alice", Operation.WRITE, permission))
        for permission, rows in ((Permission.ALLOW, allowed), (Permission.DENY, denied))
        for name, kind in rows
    ]
    said = rules_of(acls).verdict_anywhere(Client("User:alice", "10.0.0.1"), Operation.WRITE, Resource.TOPIC)
    assert (said is Verdict.ALLOWED) == expected


def test_a_right_somewhere_is_of_the_very_operation():
    """No other one implies it, and none but its own denial takes it away, as in Kafka."""
    client = Client("User:alice", "10.0.0.1")
    for allowed, denied, expected in ((Operation.READ, None, False), (Operation.DESCRIBE, Operation.READ, True)):
        rows = [Entry("User:alice", allowed)]
        rows += [Entry("User:alice", denied, Permission.DENY)] if denied else []
        rules = rules_of([Acl(Pattern(Resource.TOPIC, "a"), row) for row in rows])
        said = rules.verdict_anywhere(client, Operation.DESCRIBE, Resource.TOPIC)
        assert (said is Verdict.ALLOWED) == expected


filters = st.builds(
    Filter,
    st.sampled_from([1, *RESOURCES, 6]),
    st.sampled_from([None, *NAMES]),
    st.sampled_from([1, 2, *PatternType]),
    st.sampled_from([None, *PRINCIPALS, EVERYBODY]),
    st.sampled_from([1, *Operation, 13]),
    st.sampled_from([1, *Permission]),
    st.sampled_from([None, *HOSTS_OF_ACLS]),
)


CONCERNED = [
    Acl(Pattern(Resource.TOPIC, name, kind), Entry("User:alice", Operation.READ))
    for name, kind in zip(("a", "ab", "abc", "*"), [PatternType.PREFIXED, PatternType.LITERAL] * 2, strict=True)
]


@given(all_acls, filters)
@example(CONCERNED, Filter(name="ab", kind=2))
@example(CONCERNED, Filter(name="ab"))
@example(CONCERNED, Filter(operation=0))
@example(CONCERNED, Filter(resource=0))
@example(CONCERNED, Filter(kind=9))
def test_a_filter_selects_what_all_its_fields_select(acls, wanted):
    def selects(acl):
        pattern, entry = acl
        name = wanted.name
        if name is not None and not (concerns(pattern, name) if wanted.kind == 2 else pattern.name == name):
            return False
        plain = [
            (wanted.resource, pattern.resource), (wanted.kind, pattern.kind), (wanted.principal, entry.principal),
            (wanted.operation, entry.operation), (wanted.permission, entry.permission), (wanted.host, entry.host),
        ]  # fmt: skip
        return all(field in (1, None, found) or (wanted.kind == 2 and found is pattern.kind) for field, found in plain)

    rules = rules_of(acls)
    found = {Acl(pattern, entry) for pattern in rules.patterns() for entry in rules.selected(pattern, wanted)}
    assert {acl for acl in acls if wanted.selects(acl)} == found
    assert found == {acl for acl in acls if selects(acl)}


# --------------------------------------------------------------- the authorizer


def context_of(principal="alice", host="10.0.0.1", kind="User"):
    return Context(host, 1, Principal(principal, kind))


def may(authorizer, need, context=None):
    return not authorizer.refused(context or context_of(), lambda needs: needs, [need])


needs = st.builds(Need, operations, st.sampled_from(RESOURCES), st.sampled_from(NAMES), st.none())
changes = st.lists(st.tuples(patterns, st.lists(entries, max_size=3)), max_size=6)


@given(changes, st.lists(needs, max_size=6), st.booleans(), st.sampled_from(PRINCIPALS), st.sampled_from(HOSTS))
def test_answers_of_the_cache_are_those_of_the_rules_after_every_change(changed, asked, unsaid, principal, host):
    kind, name = principal.split(":")
    authorizer, context = AclAuthorizer(allows_unsaid=unsaid), context_of(name, host, kind)
    known = {}
    for pattern, rows in [*changed, (Pattern(Resource.TOPIC, "a"), [])]:
        authorizer.put(pattern, rows)
        known[pattern] = rows
        acls = [Acl(p, e) for p, found in known.items() for e in found]
        for _ in range(2):
            said = authorizer.refused(context, lambda needs: needs, asked)
            allowed = {Verdict.ALLOWED, Verdict.UNSAID} if unsaid else {Verdict.ALLOWED}
            assert set(said) == {n for n in asked if naive(acls, Client(principal, host), *n[:3]) not in allowed}


def test_another_right_does_as_well():
    authorizer = AclAuthorizer()
    need = Need(Operation.CREATE, Resource.TOPIC, "t", of_cluster(Operation.CREATE))
    assert not may(authorizer, need)
    authorizer.put(Pattern(Resource.CLUSTER, "kafka-cluster"), [Entry("User:alice", Operation.CREATE)])
    assert may(authorizer, need)
    assert not may(authorizer, need._replace(instead=None))


def test_super_users_and_brokers_may_do_what_is_denied_to_everybody():
    authorizer = AclAuthorizer({"User:root", "User:a,b=c"})
    for resource in RESOURCES:
        authorizer.put(Pattern(resource, ANYTHING), [Entry(EVERYBODY, Operation.ALL, Permission.DENY)])
    need = Need(Operation.READ, Resource.TOPIC, "t")
    for principal in ("root", "a,b=c"):
        assert may(authorizer, need, context_of(principal))
    assert authorizer.refused(Context("x", 0, BROKER), lambda needs: needs, [need]) is NOTHING
    strangers = [
        ("root", "Group"),
        ("Root", "User"),
        ("root\n", "User"),
        ("BROKER", "User"),
        ("*", "User"),
        ("", "User"),
    ]
    for name, kind in strangers:
        assert not may(authorizer, need, context_of(name, kind=kind))


@pytest.mark.parametrize("name", ["alice ", " alice", "alice\n", "ALICE", "аlice", "alice,User:root", "alice\0"])
def test_a_name_that_looks_the_same_is_another(name):
    authorizer = AclAuthorizer()
    authorizer.put(Pattern(Resource.TOPIC, "t"), [Entry("User:alice", Operation.READ)])
    assert may(authorizer, Need(Operation.READ, Resource.TOPIC, "t"))
    assert not may(authorizer, Need(Operation.READ, Resource.TOPIC, "t"), context_of(name))


@pytest.mark.parametrize(
    ("acl", "client"),
    [
        ("0:0:0:0:0:0:0:1", "::1"),
        ("10.0.0.1", "::ffff:10.0.0.1"),
        ("2001:DB8::/32", "2001:db8::7"),
        ("10.9.9.9/8", "10.0.0.1"),
        ("::ffff:10.0.0.0/104", "10.0.0.1"),
        ("10.0.0.0/8", "::ffff:10.0.0.1"),
        ("fe80::1", "fe80::1%eth0"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("fe80::/10", "fe80::1%eth0"),
    ],
)
def test_an_address_is_the_same_however_it_is_written(acl, client):
    authorizer = AclAuthorizer()
    authorizer.put(Pattern(Resource.TOPIC, "t"), [Entry("User:alice", Operation.READ, host=acl)])
    assert may(authorizer, Need(Operation.READ, Resource.TOPIC, "t"), context_of(host=client))
    assert not may(authorizer, Need(Operation.READ, Resource.TOPIC, "t"), context_of(host="192.168.0.1"))


@pytest.mark.parametrize(
    ("acl", "client"),
    [
        ("fe80::1%eth0", "fe80::1%eth1"),
        ("fe80::1%eth0", "fe80::1"),
        ("10.0.0.1", "10.0.0.10"),
        ("10.0.0.0/31", "10.0.0.2"),
    ],
)
def test_another_address_is_another(acl, client):
    authorizer = AclAuthorizer()
    authorizer.put(Pattern(Resource.TOPIC, "t"), [Entry("User:alice", Operation.READ, host=acl)])
    assert not may(authorizer, Need(Operation.READ, Resource.TOPIC, "t"), context_of(host=client))


def test_names_that_are_longer_than_those_of_topics_are_not_kept():
    """A client that asks about many of them would fill the memory: some are 32 KiB long."""
    authorizer = AclAuthorizer()
    authorizer.put(Pattern(Resource.GROUP, "a", PatternType.PREFIXED), [Entry("User:alice", Operation.READ)])
    for name, expected in (("a" * 250, True), ("b" * 250, False)):
        need = Need(Operation.READ, Resource.GROUP, name)
        assert (may(authorizer, need), may(authorizer, need), authorizer.kept[1]) == (expected, expected, 0)
    assert may(authorizer, Need(Operation.READ, Resource.GROUP, "a" * 249))
    assert authorizer.kept[1] == 1


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr("replication.security.acl_authorizer.CONTEXTS_KEPT", CONTEXTS_KEPT)
    monkeypatch.setattr("replication.security.acl_authorizer.ANSWERS_KEPT", ANSWERS_KEPT)
    authorizer = AclAuthorizer()
    for number in range(CONTEXTS_KEPT + 10):
        may(authorizer, Need(Operation.READ, Resource.TOPIC, "t"), context_of(str(number)))
        assert authorizer.kept[0] <= CONTEXTS_KEPT
    context = context_of()
    for number in range(ANSWERS_KEPT + 10):
        may(authorizer, Need(Operation.READ, Resource.TOPIC, str(number)), context)
        assert authorizer.kept[1] <= ANSWERS_KEPT


def test_a_question_that_was_asked_before_does_not_ask_the_rules_again(monkeypatch):
    authorizer, context = AclAuthorizer(), context_of()
    authorizer.put(Pattern(Resource.TOPIC, "topic-", PatternType.PREFIXED), [Entry("User:alice", Operation.WRITE)])
    granted, refused = (Need(Operation.WRITE, Resource.TOPIC, name) for name in ("topic-1", "other"))
    verdict, asked = authorizer.rules.verdict, []

    def counted(client, operation, resource, name):
        asked.append(name)
        return verdict(client, operation, resource, name)

    monkeypatch.setattr(authorizer.rules, "verdict", counted)
    for _ in range(100):
        assert authorizer.refused(context, _same, (granted, refused)) == {refused}
        assert authorizer.refused(context_of(), _same, (granted,)) is NOTHING  # another connection of the same client
    assert asked == ["topic-1", "other"]


def _same(needs):
    return needs
