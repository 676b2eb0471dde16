"""Small messages by hand: what kio reads and writes, in every version; and no bytes do harm."""

import datetime
import uuid
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader

from replication.errors import ErrorCode, ProtocolError, TooManyItemsError
from replication.protocol import apis
from replication.protocol import small_messages as sm
from replication.protocol.apis import ApiKey
from replication.protocol.kio_entities import build
from replication.protocol.wire import MALFORMED
from tests.support import kio_twin
from tests.support.repeats import times

COMMITS, METADATA, HEARTBEATS = (
    range(key.versions.first, key.versions.last + 1)
    for key in (ApiKey.OFFSET_COMMIT, ApiKey.METADATA, ApiKey.HEARTBEAT)
)
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(max_size=10) | st.sampled_from(["t" * 126, "t" * 127, "é" * 64, "t" * 249])
TIMES_MS = st.integers(-10, 10**12) | st.sampled_from([sm.TIME_MS_MIN, 86_399_999_990_000_000])
ROWS = st.tuples(INT32, INT64, INT32, st.none() | NAMES)
TOPICS = st.lists(st.tuples(NAMES, st.lists(ROWS, min_size=1, max_size=1)), min_size=1, max_size=1) | st.lists(
    st.tuples(NAMES, st.lists(ROWS, max_size=3)), max_size=3
)
GROUPS = st.tuples(NAMES, INT32, NAMES, st.none() | st.just("") | NAMES)
FLAGS = dict.fromkeys(
    ("allow_auto_topic_creation", "include_cluster_authorized_operations", "include_topic_authorized_operations"), False
)
TAGS = b"\x01\x63\x02ab"  # one that nobody knows


def id_of(name):
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


def commit_entity(version, group, retention_ms, topics):
    cls = apis.request_class(ApiKey.OFFSET_COMMIT, version)
    return build(
        cls,
        {
            "group_id": group[0],
            "generation_id_or_member_epoch": group[1],
            "member_id": group[2],
            "group_instance_id": group[3],
            "retention_time": datetime.timedelta(milliseconds=retention_ms),
            "topics": [
                {
                    "name": name,
                    "topic_id": id_of(name),
                    "partitions": [
                        {
                            "partition_index": index,
                            "committed_offset": offset,
                            "committed_leader_epoch": epoch,
                            "committed_metadata": text,
                        }
                        for index, offset, epoch, text in rows
                    ],
                }
                for name, rows in topics
            ],
        },
    )


def as_version_says(version, group, retention_ms, topics):
    return sm.OffsetCommitRequest(
        *group[:3],
        group[3] if version >= 7 else None,
        retention_ms if version < 5 else -1,
        [
            sm.CommitTopic(
                name if version < 10 else "",
                [sm.CommitPartition(row[0], row[1], row[2] if version >= 6 else -1, row[3]) for row in rows],
                id_of(name) if version >= 10 else None,
            )
            for name, rows in topics
        ],
    )


def listed(request):
    topics = [topic._replace(partitions=list(topic.partitions)) for topic in request.topics]
    return request._replace(topics=topics)


@given(GROUPS, TIMES_MS, TOPICS)
@settings(max_examples=times(50, 150), deadline=None)
def test_a_commit_is_read_as_kio_writes_it(group, retention_ms, topics):
    for version in COMMITS:
        raw = kio_twin.written(commit_entity(version, group, retention_ms, topics))
        wanted = as_version_says(version, group, retention_ms, topics)
        assert listed(sm.offset_commit_request(version, memoryview(raw), 0)) == wanted
        assert listed(sm.offset_commit_request(version, memoryview(b"head" + raw), 4)) == wanted
        with pytest.raises((ProtocolError, *MALFORMED)):
            sm.offset_commit_request(version, memoryview(raw[:-1]), 0)
        if version >= sm.COMMIT_FLEXIBLE:  # with a tag at its end it is not read in one piece
            assert listed(sm.offset_commit_request(version, memoryview(raw[:-1] + TAGS), 0)) == wanted


@pytest.mark.parametrize("version", COMMITS)
@pytest.mark.parametrize("name", ["t", "t" * 126, "t" * 127, "t" * 300])
@pytest.mark.parametrize("instance_id", [None, "", "i"])
def test_whoever_commits_one_offset_it_is_read_as_kio_writes_it(version, name, instance_id):
    said = (name, 3, name, instance_id), 5, [(name, [(1, 2, 3, name)])]
    raw = kio_twin.written(commit_entity(version, *said))
    assert listed(sm.offset_commit_request(version, memoryview(raw), 0)) == as_version_says(version, *said)


@pytest.mark.parametrize("version", COMMITS)
def test_a_commit_of_one_offset_that_says_two_is_refused(version):
    raw = kio_twin.written(commit_entity(version, ("g", 3, "m", None), 5, [("topic", [(1, 2, 3, "x")])]))
    named = id_of("topic").bytes if version >= sm.COMMIT_IDS_FROM else b"topic"
    begin, end = raw.index(named), raw.index(named) + len(named)
    topics, partitions = (begin - 3, end + 3) if version < sm.COMMIT_FLEXIBLE else (begin - 2, end)
    topics += version >= sm.COMMIT_IDS_FROM  # an id has no size in front
    for at in (topics, partitions):
        wrong = bytearray(raw)
        wrong[at] += 1
        with pytest.raises((ProtocolError, *MALFORMED)):
            sm.offset_commit_request(version, memoryview(wrong), 0)


def test_a_commit_of_a_time_beyond_all_is_refused():
    raw = bytearray(kio_twin.written(commit_entity(2, ("g", 3, "m", None), 5, [("t", [(1, 2, 3, "x")])])))
    at = raw.index((5).to_bytes(8, "big"))
    raw[at : at + 8] = (2**63 - 1).to_bytes(8, "big")
    with pytest.raises(ProtocolError, match="a time"):
        sm.offset_commit_request(2, memoryview(raw), 0)


@pytest.mark.parametrize("version", COMMITS)
def test_topics_and_partitions_of_a_commit_are_counted(version):
    topics = [("t", [(n, 0, 0, None) for n in range(4)]), ("u", [(n, 0, 0, None) for n in range(3)])]
    raw = memoryview(kio_twin.written(commit_entity(version, ("g", 3, "m", None), 5, topics)))
    sm.offset_commit_request(version, raw, 0, 9)
    with pytest.raises(TooManyItemsError):
        sm.offset_commit_request(version, raw, 0, 8)


@given(st.lists(st.tuples(NAMES, st.lists(INT32, max_size=3)), max_size=3))
@settings(max_examples=30, deadline=None)
def test_the_answer_to_a_commit_is_what_kio_writes(topics):
    asked = [
        sm.CommitTopic(name, [sm.CommitPartition(n, 0, 0, None) for n in rows], id_of(name)) for name, rows in topics
    ]
    rows = [
        {
            "name": name,
            "topic_id": id_of(name),
            "partitions": [{"partition_index": n, "error_code": ErrorCode.NONE} for n in numbers],
        }
        for name, numbers in topics
    ]
    for version in COMMITS:
        whole = b"".join(apis.encode_response(ApiKey.OFFSET_COMMIT, version, 77, {"topics": rows}))
        assert sm.offset_commit_response(version, 77, asked) == whole


@pytest.mark.parametrize("version", [version for version in COMMITS if version < sm.COMMIT_IDS_FROM])
@pytest.mark.parametrize("name", ["", "t", "é" * 70])
def test_the_answer_to_a_commit_of_one_partition_is_the_same(version, name):
    asked = [sm.CommitTopic(name, [sm.CommitPartition(2**30 + 7, 0, 0, None)])]
    assert sm.one_offset_committed(version, -5, (name, 2**30 + 7)) == sm.offset_commit_response(version, -5, asked)


@pytest.mark.parametrize("version", HEARTBEATS)
def test_the_answer_to_a_heartbeat_is_what_kio_writes(version):
    for code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
        whole = b"".join(apis.encode_response(ApiKey.HEARTBEAT, version, 2**31 - 1, {"error_code": code}))
        assert sm.heartbeat_response(version, 2**31 - 1, code) == whole


@given(st.none() | st.lists(st.tuples(st.none() | NAMES, st.none() | st.uuids()), max_size=4), st.booleans())
@settings(max_examples=times(25, 50), deadline=None)
def test_a_metadata_request_is_read_as_kio_writes_it(topics, allows):
    for version in METADATA:
        has_ids = version >= 10
        asked = [(name if has_ids else name or "", topic_id if has_ids else None) for name, topic_id in topics or ()]
        is_null = topics is None and version >= 1
        entity = build(
            apis.request_class(ApiKey.METADATA, version),
            {
                "topics": None if is_null else [{"name": name, "topic_id": topic_id} for name, topic_id in asked],
                **dict.fromkeys(FLAGS, not allows),
                "allow_auto_topic_creation": allows,
            },
        )
        raw = kio_twin.written(entity)
        asks_cluster, asks_topics = not allows and version in (8, 9, 10), not allows and version >= 8
        wanted = sm.MetadataRequest(None if is_null else tuple(asked), allows or version < 4, asks_cluster, asks_topics)
        assert sm.metadata_request(version, memoryview(raw), 0) == wanted
        with pytest.raises((ProtocolError, *MALFORMED)):
            sm.metadata_request(version, memoryview(raw[:-1]), 0)
        if version >= sm.METADATA_FLEXIBLE:
            assert sm.metadata_request(version, memoryview(raw[:-1] + TAGS), 0) == wanted


@pytest.mark.parametrize("version", METADATA)
def test_topics_of_a_metadata_request_are_counted(version):
    cls = apis.request_class(ApiKey.METADATA, version)
    raw = memoryview(kio_twin.written(build(cls, {**FLAGS, "topics": [{"name": "t", "topic_id": None}] * 5})))
    sm.metadata_request(version, raw, 0, 5)
    with pytest.raises(TooManyItemsError):
        sm.metadata_request(version, raw, 0, 4)


@pytest.mark.parametrize("key", [ApiKey.OFFSET_COMMIT, ApiKey.METADATA, ApiKey.HEARTBEAT])
@given(
    data=st.data(), noise=st.sampled_from([b"", b"\xff\xff\xff\xff\x7f", b"\x7f\xff\xff\xff"]) | st.binary(max_size=5)
)
@settings(max_examples=times(25, 60), deadline=None)
def test_mutated_bytes_are_refused_or_read(key, data, noise):
    for version in range(key.versions.first, key.versions.last + 1):
        cls = apis.request_class(key, version)
        if key is ApiKey.OFFSET_COMMIT:
            raw = bytearray(kio_twin.written(commit_entity(version, ("g", 1, "m", None), 5, [("t", [(1, 2, 3, "x")])])))
        elif key is ApiKey.METADATA:
            raw = bytearray(kio_twin.written(build(cls, {**FLAGS, "topics": [{"name": "topic", "topic_id": None}]})))
        else:
            raw = bytearray(kio_twin.written(build(cls, {"group_id": "g", "generation_id": 1, "member_id": "m"})))
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + len(noise)] = noise
        with suppress(ProtocolError, OverflowError, *MALFORMED):
            apis.decode_request_body(key, version, memoryview(raw), 0)


@pytest.mark.parametrize("version", HEARTBEATS)
def test_what_comes_again_is_the_same_and_what_differs_is_not(version):
    cls = apis.request_class(ApiKey.HEARTBEAT, version)
    for generation in (1, 2, 1):
        raw = kio_twin.written(build(cls, {"group_id": "g", "generation_id": generation, "member_id": "m"}))
        found = apis.decode_request_body(ApiKey.HEARTBEAT, version, memoryview(b"\x00" + raw), 1)
        assert found == entity_reader(cls)(raw, 0)[0]
        assert found.generation_id == generation
