"""Requests for one partition, decoded in less time: as `decode_request` decodes them, whatever was decoded before."""

import itertools
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from replication.errors import ProtocolError
from replication.protocol import apis, bounds, one_partition
from replication.protocol.apis import SERVED, ApiKey
from replication.protocol.decoding import TOPIC_IDS
from replication.protocol.messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ProduceOne,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from replication.protocol.small_messages import COMMIT_IDS_FROM, CommitOne, OffsetCommitRequest

NAMES = st.sampled_from(["", "a", "b", "aa", "é", "x" * 30, "y" * 126, "z" * 300])
CLIENTS = st.sampled_from(["me", "", "é"])
COMMITS = st.tuples(
    st.integers(*SERVED[ApiKey.OFFSET_COMMIT]),
    NAMES,
    st.sampled_from([-1, 4]),
    NAMES,
    st.sampled_from([-1, 0, 2**40]),
    st.sampled_from(["t", "u", "é"]),
    st.integers(0, 2),
    st.sampled_from([0, 1, 256, 2**62]),
    st.sampled_from([-1, 0, 3, 2**30]),
    st.sampled_from([None, "", "", "", "a", "\0\0", "\1\0\0\0", "\0" * 14, "é"]),
    st.sampled_from([None, None, None, "static"]),
    CLIENTS,
)
PRODUCES = st.tuples(
    st.integers(*SERVED[ApiKey.PRODUCE]),
    NAMES,
    st.sampled_from([-1, 0, 1, 7]),
    st.sampled_from([0, 5, -1, 2**31 - 1]),
    st.sampled_from([0, 1, 2**31 - 1]),
    st.sampled_from([None, b"", b"x", bytes(3), bytes(126), bytes(127), bytes(200), bytes(20_000)]),
    st.sampled_from([None, None, None, "", "tx"]),
    st.booleans(),
    CLIENTS,
)
FETCHES = st.tuples(
    st.integers(*SERVED[ApiKey.FETCH]),
    st.sampled_from([-1, 3]),
    st.sampled_from([0, 500, 2**31 - 1]),
    st.sampled_from([0, 1, 2]),
    NAMES,
    st.sampled_from([None, UUID(int=0), UUID(int=7), UUID(int=2**128 - 1)]),
    st.sampled_from([(0, -1), (0, 0), (9, 4)]),
    st.tuples(
        st.sampled_from([0, 2**31 - 1]),
        st.sampled_from([0, 2**40]),
        st.integers(-1, 2**31 - 1),
        *[st.sampled_from([-1, 0, 5])] * 3,
    ),
    st.sampled_from(["", "", "", "rack"]),
    st.sampled_from([0, 0, 0, 1]),
    st.booleans(),
    CLIENTS,
)
FLIPS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 5)), max_size=4)


def frame_of_commit(correlation_id, commit):
    version, group, generation, member, retention, topic, partition, offset, epoch, text, instance, client = commit
    row = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": epoch,
           "committed_metadata": text}  # fmt: skip
    body = {"group_id": group, "generation_id_or_member_epoch": generation, "member_id": member,
            "group_instance_id": instance if version >= 7 else None,
            "retention_time": retention,
            "topics": [{"name": topic, "topic_id": UUID(int=7), "partitions": [row]}]}  # fmt: skip
    return bytearray(b"".join(apis.encode_request(ApiKey.OFFSET_COMMIT, version, correlation_id, client, body))[4:])


def frame_of_produce(correlation_id, produce):
    version, topic, acks, timeout_ms, partition, records, transactional_id, has_more, client = produce
    rows = (ProducePartition(partition, records),) * (1 + has_more)
    topic_id = UUID(int=len(topic)) if version >= TOPIC_IDS and topic else None
    request = ProduceRequest(acks, timeout_ms, (ProduceTopic(topic, rows, topic_id),), transactional_id)
    return bytearray(b"".join(apis.encode_request(ApiKey.PRODUCE, version, correlation_id, client, request))[4:])


def frame_of_fetch(correlation_id, fetch):
    version, replica, wait_ms, isolation, topic, topic_id, session, row, rack, forgotten, has_more, client = fetch
    rows = (FetchPartition(*row),) * (1 + has_more)
    topics = (FetchTopic(topic if version < TOPIC_IDS else None, topic_id if version >= TOPIC_IDS else None, rows),)
    request = FetchRequest(wait_ms, 1, topics, 1 << 20, isolation, replica, -1, *session)
    if version >= 11:
        request = request._replace(rack=rack)
    if version >= 7:
        request = request._replace(forgotten=(ForgottenTopic(topic, topic_id or UUID(int=0), (1,)),) * forgotten)
    return bytearray(b"".join(apis.encode_request(ApiKey.FETCH, version, correlation_id, client, request))[4:])


def general(request):
    """The request with the body that the decoder of all requests makes."""
    whole = {ProduceOne: ProduceRequest, CommitOne: OffsetCommitRequest}.get(type(request.body))
    if whole is None:
        return request
    return request._replace(body=whole(*(getattr(request.body, name) for name in whole._fields)))


def check_alike(frame):
    """Return whether it was decoded in less time."""
    one = one_partition.decode_one(memoryview(frame))
    if one is not None:
        assert general(one) == apis.decode_request(memoryview(frame))
    return one is not None


def check_damaged(frame, flips):
    for at, change in flips:  # where most of the lengths are, and the end
        frame[at % len(frame) if at < 50 else -1 - at % 10 % len(frame)] ^= change
    try:
        check_alike(frame)
    except ProtocolError as error:
        raise AssertionError("decoded, and yet no request") from error


PLAIN = ("g", -1, "", -1, "t", 0, 1, -1, "", None, "me")


@example(commits=[(version, *PLAIN) for version in range(2, 10)], flips=[(59, 1)])
@example(commits=[(version, *PLAIN) for version in range(2, 10)], flips=[(58, 2)])
@given(commits=st.lists(COMMITS, min_size=1, max_size=12), flips=FLIPS)
def test_a_commit_is_decoded_as_if_none_had_been_before(commits, flips):
    number = itertools.count(7)
    for commit in (*commits, *commits):
        check_alike(frame_of_commit(next(number), commit))
        check_damaged(frame_of_commit(next(number), commit), flips)


@given(fetch=FETCHES, flips=FLIPS)
def test_a_fetch_is_decoded_as_any_other(fetch, flips):
    check_alike(frame_of_fetch(7, fetch))
    check_damaged(frame_of_fetch(7, fetch), flips)


@pytest.mark.parametrize("version", range(11, SERVED[ApiKey.FETCH].last + 1))
def test_most_fetches_are_decoded_in_less_time(version):
    plain = (version, -1, 500, 0, "t", UUID(int=7), (0, -1), (0, 5, 1 << 20, -1, -1, -1), "", 0)
    assert check_alike(frame_of_fetch(1, (*plain, False, "me")))
    assert not check_alike(frame_of_fetch(1, (*plain, True, "me")))


@pytest.mark.parametrize("version", range(SERVED[ApiKey.PRODUCE].first, SERVED[ApiKey.PRODUCE].last + 1))
def test_most_requests_are_decoded_in_less_time(version):
    assert check_alike(frame_of_produce(1, (version, "t", -1, 5, 0, bytes(80), None, False, "me")))
    assert check_alike(frame_of_commit(1, (min(version, COMMIT_IDS_FROM - 1), *PLAIN)))
    assert not check_alike(frame_of_produce(1, (version, "t", -1, 5, 0, bytes(80), "tx", False, "me")))
    assert not check_alike(frame_of_produce(1, (version, "t", -1, 5, 0, bytes(80), None, True, "me")))


@pytest.mark.parametrize("version", range(2, 10))
def test_a_commit_that_is_repeated_is_decoded_once_unless_more_is_in_it(version):
    plain = frame_of_commit(1, (version, "plain", *PLAIN[1:]))
    known = frame_of_commit(1, (version, "known", *PLAIN[1:]))
    tags = bytes([1, 9, 1, 0])  # one of a byte, in the place of none
    others = [known + b"\0", known[:-1] + tags, frame_of_commit(1, (version, *PLAIN[:-3], "text", None, "me"))]
    bodies = [type(apis_or_one(frame).body) for frame in (plain, plain, *others, *others, known)]
    assert bodies == [OffsetCommitRequest, CommitOne, *[OffsetCommitRequest] * 7]


def apis_or_one(frame):
    return one_partition.decode_one(memoryview(frame)) or apis.decode_request(memoryview(frame))


@given(produces=st.lists(PRODUCES, min_size=1, max_size=12), flips=FLIPS)
def test_a_produce_is_decoded_as_if_none_had_been_before(produces, flips):
    number = itertools.count(7)
    for produce in (*produces, *produces):
        check_alike(frame_of_produce(next(number), produce))
        check_damaged(frame_of_produce(next(number), produce), flips)


@pytest.mark.parametrize("version", range(SERVED[ApiKey.PRODUCE].first, SERVED[ApiKey.PRODUCE].last + 1))
@pytest.mark.parametrize("records", [b"\xff" * 300, b"\x80" * 300, bytes(300)])
def test_any_produce_is_decoded_whatever_its_bytes_are_where_one_for_one_partition_has_sizes(version, records):
    for topic, transactional_id in (("orders", "order-processor"), ("o" * 200, None), ("orders", "t" * 200)):
        frame = frame_of_produce(7, (version, topic, -1, 5, 0, records, transactional_id, False, "app"))
        assert general(bounds.decode_short(memoryview(frame))) == apis.decode_request(memoryview(frame))


@pytest.mark.parametrize("version", [3, 9, 13])
def test_the_producers_that_are_remembered_are_no_more_than_so_much(version, monkeypatch):
    known = ({}, {}, {})
    monkeypatch.setattr(one_partition, "_produces", known)
    monkeypatch.setattr(one_partition, "REMEMBERED", 3)
    for n in range(10):
        for topic in ("t", "u", "v", "w" * 600):
            frame = frame_of_produce(n, (version, topic, -1, 5, 0, bytes(80), None, False, "me"))
            assert check_alike(frame) == (topic != "w" * 600 or version != 9)
    form = (version >= 9) + (version >= TOPIC_IDS)
    assert len(known[form]) == (2 if version >= TOPIC_IDS else 3)
    assert not any(each for number, each in enumerate(known) if number != form)


def test_what_comes_again_is_remembered_and_no_more_than_so_much(monkeypatch):
    known = {}
    monkeypatch.setattr(one_partition, "_commits", known)
    monkeypatch.setattr(one_partition, "REMEMBERED", 3)
    for n in range(10):
        for version in (2, 6, 8):
            assert check_alike(frame_of_commit(n, (version, "g", -1, "", -1, "t", 0, n, 5, "", None, "me")))
        assert len(known) == 3
    check_alike(frame_of_commit(1, (2, "h", -1, "", -1, "t", 0, 1, 5, "", None, "me")))
    assert len(known) == 1
    check_alike(frame_of_commit(1, (2, "h" * 600, -1, "", -1, "t", 0, 1, 5, "", None, "me")))
    assert len(known) == 1
