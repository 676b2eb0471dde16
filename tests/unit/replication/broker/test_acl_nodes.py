"""The nodes of ACLs: every name has a path of its own, and what is written is read again."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.broker import acl_nodes
from replication.coordination.node_json import MalformedNodeError
from replication.coordination.tree import Node, check_path
from replication.security.access import Operation, Resource
from replication.security.acl import Entry, Pattern, PatternType, Permission

text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8) | st.sampled_from(
    ["pylog-sink/", "a/b", "..", ".", "...", "*", "%", "%2F", "%2E%2E", "a%", "\0", "é", "\ue000", "\U0010ffff", "a:b"]
)
patterns = st.builds(Pattern, st.sampled_from(acl_nodes.RESOURCES), text, st.sampled_from(PatternType))
principals = st.builds("{}:{}".format, text.filter(lambda found: ":" not in found), text)
entries = st.builds(Entry, principals, st.sampled_from(Operation), st.sampled_from(Permission), text)


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


@given(st.frozensets(entries, max_size=5))
def test_acls_are_read_as_they_were_written(rows):
    assert acl_nodes.decode("/kafka-acl/Topic/t", acl_nodes.encode(rows)) == rows


@given(patterns)
def test_a_notice_names_its_pattern(pattern):
    folder = acl_nodes.LITERAL_CHANGES if pattern.kind is PatternType.LITERAL else acl_nodes.EXTENDED_CHANGES
    path = f"{folder}/acl_changes_0000000007"
    assert acl_nodes.decode_notice(path, acl_nodes.encode_notice(pattern)) == pattern


@pytest.mark.parametrize("data", [b"", b"Topic", b"Table:t", b"\xff:t", b"{}", b"[]", b'{"resourceType":"TOPIC"}'])
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
    """Or they are none at all: an empty node."""
    pattern = Pattern(Resource.TOPIC, "t")
    found = acl_nodes.read_node(pattern, Node(data, 0, 1))
    assert found == acl_nodes.AclNode(acl_nodes.DENIED, is_whole=False) or not found.entries
    if data:
        with pytest.raises(MalformedNodeError):
            acl_nodes.decode("/kafka-acl/Topic/t", data)
