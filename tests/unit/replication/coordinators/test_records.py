"""Kafka's bytes in `__consumer_offsets`, as its message definitions have them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.coordinators.binary import UnknownRecordError, partition_of
from replication.coordinators.groups.classic.events import AppendGroup, EmptyGroup
from replication.coordinators.groups.classic.state import Group, Member, Phase
from replication.coordinators.groups.keys import Key, Kind
from replication.coordinators.groups.offsets.events import AppendOffsets
from replication.coordinators.groups.offsets.state import Committed
from replication.coordinators.groups.records import (
    GroupKey,
    Loaded,
    OffsetKey,
    group_key,
    group_value,
    offset_key,
    offset_value,
    read_group,
    read_key,
    read_offset,
    records_of,
)
from replication.model.cluster import TopicPartition

TP = TopicPartition("orders", 7)
INT32, INT64 = st.integers(0, 2**31 - 1), st.integers(-1, 2**63 - 1)
TEXT = st.text(max_size=20)
MEMBERS = st.lists(
    st.fixed_dictionaries(
        {
            "id": TEXT,
            "instance_id": st.none() | TEXT,
            "client_id": TEXT,
            "client_host": TEXT,
            "rebalance_timeout_ms": INT32,
            "session_timeout_ms": INT32,
            "assignment": st.binary(max_size=30),
        }
    ),
    max_size=3,
    unique_by=lambda member: member["id"],
)
SUBSCRIPTION = st.binary(max_size=30)


@st.composite
def groups(draw):
    protocol = draw(st.none() | TEXT)
    members = [
        Member(**member, protocols=((protocol or "", draw(SUBSCRIPTION)),), deadline_ms=0) for member in draw(MEMBERS)
    ]
    return Group(
        id="g",
        phase=Phase.STABLE if members else Phase.EMPTY,
        protocol_type=draw(TEXT) or None,
        generation=draw(INT32),
        protocol=protocol,
        leader=draw(st.none() | TEXT),
        since_ms=draw(INT64),
        members={member.id: member for member in members},
    )


def test_the_key_of_an_offset():
    assert offset_key("g1", TP) == bytes.fromhex("0001 0002 6731 0006 6f7264657273 00000007")


def test_the_key_of_a_group():
    assert group_key("g1") == bytes.fromhex("0002 0002 6731")


def test_the_value_of_an_offset():
    value = offset_value(Committed(258, 3, "hi", 5))
    assert value == bytes.fromhex("0003 0000000000000102 00000003 0002 6869 0000000000000005")


def test_an_offset_that_says_when_it_expires_has_version_1():
    value = offset_value(Committed(258, -1, "hi", 5, 6))
    assert value == bytes.fromhex("0001 0000000000000102 0002 6869 0000000000000005 0000000000000006")
    assert read_offset(value, 9) == Committed(258, -1, "hi", 5, 6, 9)


def test_the_value_of_a_group():
    member = Member(
        id="m", instance_id="i", client_id="c", client_host="/h", rebalance_timeout_ms=2, session_timeout_ms=1,
        protocols=(("roundrobin", b"R"), ("range", b"S")), deadline_ms=7, assignment=b"AA",
    )  # fmt: skip
    stored = Group(
        id="g",
        protocol_type="consumer",
        generation=4,
        protocol="range",
        leader="m",
        since_ms=8,
        members={"m": member},
    )
    assert group_value(stored) == bytes.fromhex(
        "0003 0008 636f6e73756d6572 00000004 0005 72616e6765 0001 6d 0000000000000008 00000001"
        "0001 6d 0001 69 0001 63 0002 2f68 00000002 00000001 00000001 53 00000002 4141"
    )


@pytest.mark.parametrize(
    ("version", "since", "rebalance", "instance"),
    [(0, "", "", ""), (1, "", "00000002", ""), (2, "0000000000000008", "00000002", "")],
)
def test_groups_that_earlier_brokers_wrote_are_read(version, since, rebalance, instance):
    value = bytes.fromhex(
        f"{version:04x} 0001 63 00000004 ffff ffff {since} 00000001"
        f"0001 6d {instance} 0001 63 0002 2f68 {rebalance} 00000001 00000000 00000000"
    )
    group = read_group("g", value)
    assert (group.generation, group.protocol, group.since_ms) == (4, None, 8 if version == 2 else -1)
    assert group.members["m"].rebalance_timeout_ms == (2 if version else 1)


@given(groups())
def test_a_group_is_read_as_it_was_written(stored):
    assert read_group("g", group_value(stored)) == stored


@given(TEXT, TEXT, INT32)
def test_a_key_is_read_as_it_was_written(group, topic, partition):
    tp = TopicPartition(topic, partition)
    assert read_key(offset_key(group, tp)) == OffsetKey(group, tp)
    assert read_key(group_key(group)) == GroupKey(group)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_bytes_that_are_no_record_are_an_error_and_nothing_else(key, value):
    for read in (
        lambda data: Loaded().apply(0, key, data),
        lambda data: Loaded().apply_open(7, 0, key, data),
        read_key,
        lambda data: read_group("g", data),
        lambda data: read_offset(data, 0),
    ):
        with suppress(UnknownRecordError):
            read(value)


def test_the_last_record_of_a_key_counts_and_one_without_a_value_wipes_it():
    loaded = Loaded()
    group = Group(id="g", generation=3)
    rows = records_of("g", AppendOffsets(EmptyGroup(), {TP: Committed(1)}))
    rows += records_of("g", AppendGroup(EmptyGroup(), group))
    rows += records_of("g", AppendOffsets(EmptyGroup(), {TP: Committed(2), TopicPartition("u", 0): Committed(5)}))
    rows += records_of("h", AppendOffsets(EmptyGroup(), {TP: Committed(9)}))
    rows += records_of("h", AppendOffsets(EmptyGroup(), {TP: None}))
    for position, (key, value) in enumerate(rows):
        loaded.apply(position, key, value)
    assert loaded.groups == {"g": group}
    assert {tp: stored.offset for tp, stored in loaded.offsets["g"].items()} == {
        TP: 2,
        TopicPartition("u", 0): 5,
    }
    assert list(loaded.names()) == ["g"]
    for key, value in records_of("g", AppendOffsets(EmptyGroup(), {}, gone_keys=frozenset({Key(Kind.CLASSIC)}))):
        loaded.apply(99, key, value)
    assert loaded.groups == {}


@pytest.mark.parametrize("key", [offset_key("g", TP), group_key("g")])
@pytest.mark.parametrize(
    "value",
    [
        b"\x00\x04" + offset_value(Committed(1))[2:],
        b"\x00\x04" + group_value(Group(id="g", generation=3))[2:],
        b"\x00\x09 of the future",
        b"\x00",
        b"",
    ],
)
def test_a_value_that_cannot_be_read_ends_the_load_so_that_no_older_one_stands_for_it(key, value):
    loaded = Loaded()
    with pytest.raises(UnknownRecordError):
        loaded.apply(1, key, value)
    if key == offset_key("g", TP):
        with pytest.raises(UnknownRecordError):
            loaded.apply_open(7, 1, key, value)


def test_records_of_types_of_a_later_release_are_counted_by_their_type():
    loaded = Loaded()
    for key in (b"\x00\x09" + offset_key("g", TP)[2:], b"\x00\x09", b"\x00\x11later"):
        loaded.apply(0, key, offset_value(Committed(1)))
        loaded.apply_open(7, 0, key, None)
    loaded.apply(0, b"", None)
    assert (loaded.offsets, loaded.groups, loaded.uncommitted) == ({}, {}, {})
    assert loaded.unknown == {"of key version 9": 4, "of key version 17": 2, "without a key version": 1}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", 0),
        ("g", 103),
        ("hello", 99162322),
        ("polygenelubricants", 0),
        ("Gruppe ä", 738166623),
        ("😀", 1772899),
    ],
)
def test_a_group_is_in_the_partition_that_java_s_hash_of_its_name_says(name, code):
    assert partition_of(name, 50) == abs(code) % 50
    assert partition_of(name, 1_000_003) == abs(code) % 1_000_003
