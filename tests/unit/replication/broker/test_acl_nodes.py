"""The nodes of ACLs: every name has a path of its own, and what is written is read again."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.broker import acl_nodes
from replication.coordination.node_json import MalformedNodeError
from replication.coordination.tree import Node, check_path
from replication.security.access import Operation, Resource
from replication.security.acl import EVERYBODY, Entry, Pattern, PatternType, Permission, Wish, acl_of
from replication.security.acl_rules import Client, Rules, Verdict

text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8) | st.sampled_from(
    ["pylog-sink/", "a/b", "..", ".", "...", "*", "%", "%2F", "%2E%2E", "a%", "\0", "é", "\ue000", "\U0010ffff", "a:b"]
)
patterns = st.builds(Pattern, st.sampled_from(acl_nodes.RESOURCES), text, st.sampled_from(PatternType))
parts = st.just("") | text
principals = st.builds("{}:{}".format, parts.filter(lambda found: ":" not in found), parts)
hosts = st.sampled_from(["*", "::1", "10.0.0.0/8", "::ffff:10.0.0.0/104", "db1", "10.0.0.0/33", "/", "a/8", ""]) | text
wishes = st.builds(
    Wish, st.sampled_from(acl_nodes.RESOURCES), parts, st.sampled_from(PatternType), principals | text, hosts,
    st.sampled_from(Operation), st.sampled_from(Permission),
)  # fmt: skip


def acls_of(wanted):
    """Return those of these wishes that can be ACLs."""
    found = []
    for wish in wanted:
        with suppress(ValueError):
            found.append(acl_of(wish))
    return found


@given(text)
def test_a_name_has_a_path_that_every_store_holds(name):
    written = acl_nodes.encode_name(name)
    assert acl_nodes.decode_name(written) == name
    assert "/" not in written
    check_path(f"/kafka-acl/Topic/{written}")
    refused = (range(32), range(0x7F, 0xA0), range(0xD800, 0xF900), range(0xFFF0, 0x110000))  # by ZooKeeper
    assert not any(ord(each) in some for each in written for some in refused)


@given(patterns, patterns)
def test_two_patterns_have_two_paths(one, other):
    assert (acl_nodes.path_of(one) == acl_nodes.path_of(other)) == (one == other)


@pytest.mark.parametrize("name", ["orders", "CN=a,O=b", "a b", "__consumer_offsets", "é", "*", "a:b", "..."])
def test_a_name_that_a_path_holds_is_written_as_kafka_writes_it(name):
    assert acl_nodes.encode_name(name) == name


@pytest.mark.parametrize("written", ["100%", "%2f", "%41", "a%zz", "%FF", "%2E"])
def test_a_name_that_was_not_written_here_is_none(written):
    known = acl_nodes.decode_name(written)
    assert known is None or acl_nodes.encode_name(known) == written


@given(st.lists(wishes, max_size=5))
def test_all_acls_that_are_created_are_read_as_they_were_written(wanted):
    """Otherwise who adds one would deny everything to everybody."""
    entries = {acl.entry for acl in acls_of(wanted)}
    assert acl_nodes.decode("/kafka-acl/Topic/t", acl_nodes.encode(entries)) == entries


@given(patterns)
def test_a_notice_names_its_pattern(pattern):
    folder = acl_nodes.LITERAL_CHANGES if pattern.kind is PatternType.LITERAL else acl_nodes.EXTENDED_CHANGES
    path = f"{folder}/acl_changes_0000000007"
    assert acl_nodes.decode_notice(path, acl_nodes.encode_notice(pattern)) == pattern


HALF = rb'{"resourceType":"TOPIC","name":"\ud800","patternType":"PREFIXED"}'
NAMELESS = b'{"resourceType":"TOPIC","name":"","patternType":"LITERAL"}'
STRANGE = [b"", b"Topic", b"Topic:", b"Table:t", b"\xff:t", b"{}", b"[]", b'{"resourceType":"TOPIC"}', HALF, NAMELESS]


@pytest.mark.parametrize("data", STRANGE)
def test_a_notice_that_cannot_be_read_names_none(data):
    for folder in acl_nodes.CHANGES:
        assert acl_nodes.decode_notice(f"{folder}/acl_changes_0000000000", data) is None


def test_nodes_of_kafka_are_read_in_any_case_and_its_other_keys_stay():
    rows = [{"principal": "User:a", "permissionType": "ALLOW", "operation": "describeconfigs", "host": "*"}]
    data = json.dumps({"version": 1, "acls": rows, "later": [7]}).encode()
    found = acl_nodes.decode("/kafka-acl/Topic/t", data)
    assert found == {Entry("User:a", Operation.DESCRIBE_CONFIGS)}
    assert json.loads(acl_nodes.encode(found, data))["later"] == [7]


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_bytes_that_are_no_acls_deny(data):
    pattern = Pattern(Resource.TOPIC, "t")
    found = acl_nodes.read_node(pattern, Node(data, 0, 1))
    assert found == acl_nodes.AclNode(acl_nodes.DENIED, is_whole=False)
    with pytest.raises(MalformedNodeError):
        acl_nodes.decode("/kafka-acl/Topic/t", data)


GOOD = {"principal": "User:a", "permissionType": "Deny", "operation": "Read", "host": "*"}
MALFORMED = [
    b"",
    b"no JSON",
    b"[" * 100_000,
    b"[]",
    b'{"version":1}',
    *(
        json.dumps(value).encode()
        for value in (
            {"version": 2, "acls": []},
            {"version": True, "acls": []},
            {"version": 1, "acls": {}},
            {"version": 1, "acls": [7]},
            *(
                {"version": 1, "acls": [GOOD, GOOD | wrong]}
                for wrong in (
                    {"operation": "Fly"}, {"operation": "SomeTopic"}, {"operation": 3}, {"permissionType": "Perhaps"},
                    {"principal": "a"}, {"principal": "User:\ud800"}, {"principal": None}, {"host": ""},
                    {"host": "10.0.0.0/33"}, {"host": "a/8"}, {"host": "10.0.0.0/255.0.0.0"}, {"host": "\udfff"},
                    {"until": 1},
                )
            ),
            {"version": 1, "acls": [{key: GOOD[key] for key in GOOD if key != "host"}]},
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("data", MALFORMED, ids=lambda data: repr(data[:60]))
def test_a_node_with_one_acl_that_cannot_be_read_denies(data):
    """The others in it may be read: perhaps the one that cannot is a denial."""
    assert acl_nodes.read_node(Pattern(Resource.TOPIC, "t"), Node(data, 0, 1)).entries == acl_nodes.DENIED


def test_what_cannot_be_read_denies_every_operation_to_everybody():
    rules = Rules()
    rules.put(Pattern(Resource.TOPIC, "*"), [Entry(EVERYBODY, Operation.ALL)])
    rules.put(Pattern(Resource.TOPIC, "t"), acl_nodes.DENIED)
    for operation in Operation:
        said = [rules.verdict(Client("User:a", "::1"), operation, Resource.TOPIC, name) for name in ("t", "u")]
        assert said == [Verdict.DENIED, Verdict.ALLOWED]


def test_a_node_without_acls_says_nothing():
    node = Node(b'{"version":1,"acls":[]}', 0, 1)
    assert acl_nodes.read_node(Pattern(Resource.TOPIC, "t"), node) == acl_nodes.AclNode(frozenset())


@pytest.mark.parametrize(
    ("name", "expected"),
    [("100%", True), ("100%41", True), ("%2f", True), ("\ue000", True), ("%2F", False), ("a/b%", False), ("t", False)],
)
def test_a_name_is_ambiguous_if_another_could_have_written_it_as_it_is(name, expected):
    assert acl_nodes.is_ambiguous(Pattern(Resource.GROUP, name)) is expected
